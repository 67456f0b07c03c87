// What all attention kernels share: parameters, the key range of a row tile, the shape of a score.
//
// A row is a pair of query i and head g of the group that shares a key-value head: row = i * groups + g, so
// a tile of rows reads its keys once for all heads of the group.  Offsets and strides count elements.

struct Params {
    rows: u32,        // groups * seq_q
    groups: u32,      // query heads to a key-value head
    heads: u32,       // key-value heads in this dispatch
    seq_kv: u32,
    tile_base: u32,   // first row tile of this dispatch
    tile_count: u32,
    split_base: u32,  // first split
    split_tiles: u32, // key tiles to a split
    row_base: u32,    // first row in `o` and `lse` when they hold partials
    row_count: u32,   // rows held there
    q_base: u32, q_batch: u32, q_head: u32, q_row: u32,
    k_base: u32, k_batch: u32, k_head: u32, k_row: u32,
    v_base: u32, v_batch: u32, v_head: u32, v_row: u32,
    bias_base: u32, bias_batch: u32, bias_head: u32, bias_row: u32,
    o_base: u32, o_batch: u32, o_head: u32, o_row: u32, o_split: u32,
    lse_base: u32, lse_batch: u32, lse_head: u32, lse_split: u32,
    q_start: i32, k_start: i32, window: i32, sink_tokens: i32, chunk: i32,
    kv_len_at: u32, q_starts_at: u32, sinks_at: u32, slopes_at: u32,
    scale: f32,       // of q; includes log2(e) when SHAPED is false
    softcap: f32,
    // Loop bounds equal to constants: drivers would unroll loops over constants, loads and all.
    quads_k: u32, lanes: u32, stages: u32, chunk_quads: u32, stage_q: u32, stage_k: u32, stage_v: u32,
    // Caches: slots of a ring or log2 of a page, pages in `table`, words at which scales start.
    place: u32, pages_at: u32, pages_batch: u32, k_scales: u32, v_scales: u32,
}

//!include "common/cache_slot.wgsl"

// Scores need work beyond q * k: the cap, a bias, ALiBi.
const SHAPED: bool = SOFTCAP || BIAS || ALIBI;

fn query_of(row: u32) -> u32 {
    return row / params.groups;
}

fn head_of(head_kv: u32, row: u32) -> u32 {
    return head_kv * params.groups + row % params.groups;
}

fn q_offset(b: u32, head_kv: u32, row: u32) -> u32 {
    return params.q_base + b * params.q_batch + head_of(head_kv, row) * params.q_head
        + query_of(row) * params.q_row;
}

// Turn of a ring in which the tile's first key lies, and where the scales of k and v start: key_span sets them
// once, since software adapters load parameters as they load anything else.
var<private> turn: u32;
var<private> scales: vec2<u32>;

// Where key `key` lies.
fn k_offset(b: u32, head_kv: u32, key: u32) -> u32 {
    let slot = slot_of(b, key, turn);
    return params.k_base + b * params.k_batch + head_kv * params.k_head + slot * params.k_row;
}

fn v_offset(b: u32, head_kv: u32, key: u32) -> u32 {
    let slot = slot_of(b, key, turn);
    return params.v_base + b * params.v_batch + head_kv * params.v_head + slot * params.v_row;
}

// What loaders of quantised rows ask for.
fn k_scales() -> u32 {
    return scales.x;
}

fn k_width() -> u32 {
    return DIM_K;
}

fn v_scales() -> u32 {
    return scales.y;
}

fn v_width() -> u32 {
    return DIM_V;
}

fn o_offset(b: u32, head_kv: u32, row: u32, split: u32) -> u32 {
    if PARTIAL {
        let z = b * params.heads + head_kv;
        return params.o_base + split * params.o_split
            + (z * params.row_count + row - params.row_base) * DIM_V;
    }
    return params.o_base + b * params.o_batch + head_of(head_kv, row) * params.o_head
        + query_of(row) * params.o_row;
}

fn lse_offset(b: u32, head_kv: u32, row: u32, split: u32) -> u32 {
    if PARTIAL {
        let z = b * params.heads + head_kv;
        return params.lse_base + split * params.lse_split + z * params.row_count + row - params.row_base;
    }
    return params.lse_base + b * params.lse_batch + head_of(head_kv, row) * params.lse_head + query_of(row);
}

// Position of query row 0 of batch entry b.
fn q_first(b: u32) -> i32 {
    if Q_STARTS {
        // the host has not seen these: MAX_POSITION of src/mask.rs keeps sums of positions in range
        return clamp(bitcast<i32>(table[params.q_starts_at + b]), -536870912, 536870912);
    }
    return params.q_start;
}

// Keys that a tile of rows may see, as tiles of KV_TILE keys: those of the sink tokens, then the rest.
struct Span {
    q_lo: i32,       // positions of the tile's first and last query
    q_hi: i32,
    limit: u32,      // keys that exist
    sink_end: u32,   // sink tokens before `first`
    first: u32,
    end: u32,
    sink_tiles: u32,
    tiles: u32,
}

fn key_span(b: u32, row_first: u32, row_last: u32) -> Span {
    var limit = params.seq_kv;
    if KV_LEN {
        limit = min(limit, u32(max(bitcast<i32>(table[params.kv_len_at + b]), 0)));
    }
    let q_lo = q_first(b) + i32(query_of(row_first));
    let q_hi = q_first(b) + i32(query_of(row_last));
    // relative to key 0
    let lo = q_lo - params.k_start;
    let hi = q_hi - params.k_start;
    var first = 0;
    var end = i32(limit);
    var sink_end = 0;
    if CAUSAL {
        end = min(end, hi + 1);
    }
    if WINDOW {
        first = max(first, lo - params.window + 1);
        sink_end = min(params.sink_tokens - params.k_start, i32(limit));
        if CAUSAL {
            sink_end = min(sink_end, hi + 1);
        } else {
            end = min(end, hi + params.window);
        }
        sink_end = max(sink_end, 0);
    }
    if CHUNK {
        first = max(first, floor_block(q_lo, params.chunk) * params.chunk - params.k_start);
        end = min(end, (floor_block(q_hi, params.chunk) + 1) * params.chunk - params.k_start);
    }
    if first <= sink_end {
        // the two touch; with keys ahead of a query in sight, the window may even end before the sinks do
        first = 0;
        end = max(end, sink_end);
        sink_end = 0;
    }
    end = max(end, first);
    turn = turn_of(u32(first));
    scales = vec2<u32>(params.k_scales, params.v_scales);
    let sink_tiles = (u32(sink_end) + KV_TILE - 1u) / KV_TILE;
    let tiles = sink_tiles + (u32(end - first) + KV_TILE - 1u) / KV_TILE;
    return Span(q_lo, q_hi, limit, u32(sink_end), u32(first), u32(end), sink_tiles, tiles);
}

fn tile_key(span: Span, t: u32) -> u32 {
    return select(span.first + (t - span.sink_tiles) * KV_TILE, t * KV_TILE, t < span.sink_tiles);
}

fn tile_end(span: Span, t: u32) -> u32 {
    return select(span.end, span.sink_end, t < span.sink_tiles);
}

// Whether every row of the tile sees all KV_TILE keys from `key0` on, so that no element needs a test.
fn tile_is_full(span: Span, key0: u32, key_end: u32) -> bool {
    var full = key0 + KV_TILE <= key_end;
    let k_lo = params.k_start + i32(key0);
    let k_hi = k_lo + i32(KV_TILE) - 1;
    if CAUSAL {
        full = full && k_hi <= span.q_lo;
    }
    if WINDOW {
        full = full && k_lo > span.q_hi - params.window && (CAUSAL || k_hi < span.q_lo + params.window);
    }
    if CHUNK {
        let block = floor_block(span.q_lo, params.chunk);
        full = full && block == floor_block(span.q_hi, params.chunk)
            && block == floor_block(k_lo, params.chunk) && block == floor_block(k_hi, params.chunk);
    }
    return full;
}

// The score in base 2 of a query and a visible key: cap, then bias, as the spec orders them.
fn shape_score(score: f32, b: u32, head: u32, query: u32, q_pos: i32, key: u32) -> f32 {
    var s = score;
    if SOFTCAP {
        s = params.softcap * tanh_safe(s / params.softcap);
    }
    if ALIBI {
        let distance = abs(q_pos - (params.k_start + i32(key)));
        s -= bitcast<f32>(table[params.slopes_at + head]) * f32(distance);
    }
    if BIAS {
        let at = params.bias_base + b * params.bias_batch + head * params.bias_head + query * params.bias_row;
        let added = bias_load1(at + min(key, params.seq_kv - 1u));
        // the storage type's lowest value, or minus infinity, means "hidden"
        s = select(s + added, NEG, added <= BIAS_HIDDEN);
    }
    return select(s, s * LOG2E, SHAPED);
}

// Adds the learned sink of a head to the denominator: (numerator's factor, m in natural units, l).
fn with_sink(m: f32, l: f32, head: u32) -> vec3<f32> {
    let natural = m * LN2;
    if SINKS {
        // in natural units, since a sink near the largest float times log2(e) is none
        let sink = bitcast<f32>(table[params.sinks_at + head]);
        let top = max(natural, sink);
        let shrink = exp_down(natural - top);
        return vec3<f32>(shrink, top, l * shrink + exp_down(sink - top));
    }
    return vec3<f32>(1.0, natural, l);
}
