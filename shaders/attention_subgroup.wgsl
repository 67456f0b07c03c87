// attention_subgroup: ROWS query rows against one split of the keys, by one subgroup of known size.
//
//   s_j = scale * dot(q, k_j)      m = max s_j      l = sum exp(s_j - m)      o = sum exp(s_j - m) * v_j / l
//
// For scores a lane is a key and q is broadcast by shuffles; for the output a lane is four columns and the
// probabilities are broadcast.  No workgroup memory, no barriers.
// Reference: reference::attention.   Spec: softmax-attention.md, 4, 6, 8; masks.md, 9.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 8u;          // subgroup size
const LANES_LOG2: u32 = 3u;
const ROWS: u32 = 4u;           // query rows to a subgroup
const KEYS: u32 = 2u;           // keys to a lane in one step
const DIM_K: u32 = 64u;
const DIM_V: u32 = 64u;
const CAUSAL: bool = true;
const WINDOW: bool = false;
const CHUNK: bool = false;
const KV_LEN: bool = false;     // table holds valid lengths
const Q_STARTS: bool = false;   // table holds positions of query 0
const SOFTCAP: bool = false;
const SINKS: bool = false;      // table holds learned sinks
const ALIBI: bool = false;      // table holds slopes
const BIAS: bool = false;
const BIAS_HIDDEN: f32 = -1e30; // a bias at or below hides its key
const LSE: bool = true;         // lse is wanted
const PARTIAL: bool = false;    // o and lse hold partials of splits
const RING: bool = false;       // k and v are rings
const PAGED: bool = false;      // k and v lie in pages that `table` lists
// end constants
const QUADS_K: u32 = (DIM_K + 3u) / 4u;
const QUADS_V: u32 = (DIM_V + 3u) / 4u;
const CHUNKS_K: u32 = (QUADS_K + LANES - 1u) / LANES; // groups of four columns to a lane
const CHUNKS_V: u32 = (QUADS_V + LANES - 1u) / LANES;
const KV_TILE: u32 = LANES * KEYS;

//!include "common/attention.wgsl"
//!include "common/mask.wgsl"
//!include "common/online_softmax.wgsl"
//!include "common/load_f32.wgsl" as q
//!include "common/load_f32.wgsl" as k
//!include "common/load_f32.wgsl" as v
//!include "common/load_f32_element.wgsl" as bias
//!include "common/store_f32.wgsl" as o

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> q: array<q_item>;        // [batch, heads_q, seq_q, dim_k]
@group(0) @binding(2) var<storage, read> k: array<k_item>;        // [batch, heads_kv, seq_kv, dim_k]
@group(0) @binding(3) var<storage, read> v: array<v_item>;        // [batch, heads_kv, seq_kv, dim_v]
@group(0) @binding(4) var<storage, read> bias: array<bias_item>;  // [1 or batch, 1 or heads_q, seq_q, seq_kv]
@group(0) @binding(5) var<storage, read> table: array<u32>;       // kv_len, q_starts, sinks, slopes, pages
@group(0) @binding(6) var<storage, read_write> o: array<o_item>;  // [batch, heads_q, seq_q, dim_v]
@group(0) @binding(7) var<storage, read_write> lse: array<u32>;   // [batch, heads_q, seq_q], f32 bits

fn lanes_max(value: f32) -> f32 {
    var x = value;
    for (var step = 0u; step < LANES_LOG2; step++) { //!unroll
        x = max(x, subgroupShuffleXor(x, 1u << step));
    }
    return x;
}

fn lanes_add(value: f32) -> f32 {
    var x = value;
    for (var step = 0u; step < LANES_LOG2; step++) { //!unroll
        x += subgroupShuffleXor(x, 1u << step);
    }
    return x;
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32) {
    // late rows see the most keys: start with them
    let tile = params.tile_base + params.tile_count - 1u - group.x;
    let split = params.split_base + group.y;
    let b = group.z / params.heads;
    let head_kv = group.z % params.heads;
    let row0 = tile * ROWS;
    let row_last = min(row0 + ROWS, params.rows) - 1u;
    let span = key_span(b, row0, row_last);

    // Loads and stores stay in loops, and registers are picked by comparison: on processors that pretend to be
    // GPUs each load in the text costs milliseconds to compile.
    var rq: array<vec4<f32>, ROWS * CHUNKS_K>;
    var q_pos: array<i32, ROWS>;
    for (var i = 0u; row0 + i <= row_last; i++) {
        let at = q_offset(b, head_kv, row0 + i);
        let position = q_first(b) + i32(query_of(row0 + i));
        var loaded: array<vec4<f32>, CHUNKS_K>;
        for (var c = 0u; c < CHUNKS_K; c++) { //!unroll
            let quad = min(c * LANES + lane, QUADS_K - 1u);
            loaded[c] = q_load4(at + quad * 4u, min(4u, DIM_K - quad * 4u)) * params.scale;
        }
        for (var r = 0u; r < ROWS; r++) { //!unroll
            q_pos[r] = select(q_pos[r], position, r == i);
            for (var c = 0u; c < CHUNKS_K; c++) { //!unroll
                rq[r * CHUNKS_K + c] = select(rq[r * CHUNKS_K + c], loaded[c], r == i);
            }
        }
    }
    var m: array<f32, ROWS>;
    var l: array<f32, ROWS>;      // this lane's share
    var ro: array<vec4<f32>, ROWS * CHUNKS_V>;
    for (var r = 0u; r < ROWS; r++) { //!unroll
        m[r] = M_START;
    }

    let t_end = min((split + 1u) * params.split_tiles, span.tiles);
    for (var t = split * params.split_tiles; t < t_end; t++) {
        let key0 = tile_key(span, t);
        let key_end = tile_end(span, t);
        var k_at: array<u32, KEYS>;
        var s: array<f32, ROWS * KEYS>;
        for (var u = 0u; u < KEYS; u++) { //!unroll
            k_at[u] = k_offset(b, head_kv, min(key0 + u * LANES + lane, key_end - 1u));
        }
        for (var c = 0u; c < params.stages; c++) {
            var mine: array<vec4<f32>, ROWS>;
            for (var r = 0u; r < ROWS; r++) { //!unroll
                mine[r] = rq[r * CHUNKS_K];
                for (var other = 0u; other < CHUNKS_K; other++) { //!unroll
                    mine[r] = select(mine[r], rq[r * CHUNKS_K + other], other == c);
                }
            }
            let quads = min(params.lanes, params.quads_k - c * LANES);
            for (var i = 0u; i < quads; i++) {
                let d = (c * LANES + i) * 4u;
                var kq: array<vec4<f32>, KEYS>;
                for (var u = 0u; u < KEYS; u++) { //!unroll
                    kq[u] = k_load4(k_at[u] + d, min(4u, DIM_K - d));
                }
                for (var e = 0u; e < 4u; e++) { //!unroll
                    for (var r = 0u; r < ROWS; r++) { //!unroll
                        let x = subgroupShuffle(mine[r][e], i);
                        for (var u = 0u; u < KEYS; u++) { //!unroll
                            s[r * KEYS + u] = fma(x, kq[u][e], s[r * KEYS + u]);
                        }
                    }
                }
            }
        }
        if SHAPED || !tile_is_full(span, key0, key_end) {
            for (var u = 0u; u < KEYS; u++) { //!unroll
                let key = key0 + u * LANES + lane;
                for (var r = 0u; r < ROWS; r++) { //!unroll
                    let row = min(row0 + r, row_last);
                    let shaped =
                        shape_score(s[r * KEYS + u], b, head_of(head_kv, row), query_of(row), q_pos[r], key);
                    let sees = key < key_end && visible(q_pos[r], params.k_start + i32(key));
                    s[r * KEYS + u] = select(NEG, shaped, sees);
                }
            }
        }
        for (var r = 0u; r < ROWS; r++) { //!unroll
            var top = m[r];
            for (var u = 0u; u < KEYS; u++) { //!unroll
                top = max(top, s[r * KEYS + u]);
            }
            top = lanes_max(top);
            let shrink = exp2(m[r] - top);
            m[r] = top;
            l[r] *= shrink;
            for (var u = 0u; u < KEYS; u++) { //!unroll
                s[r * KEYS + u] = exp2(s[r * KEYS + u] - top);
                l[r] += s[r * KEYS + u];
            }
            for (var c = 0u; c < CHUNKS_V; c++) { //!unroll
                ro[r * CHUNKS_V + c] *= shrink;
            }
        }
        // keys that do not exist may hold NaN: they are not read
        let n = min(KV_TILE, key_end - key0);
        for (var j = 0u; j < n; j++) {
            let at = v_offset(b, head_kv, key0 + j);
            var vq: array<vec4<f32>, CHUNKS_V>;
            for (var c = 0u; c < CHUNKS_V; c++) { //!unroll
                let quad = min(c * LANES + lane, QUADS_V - 1u);
                vq[c] = v_load4(at + quad * 4u, min(4u, DIM_V - quad * 4u));
            }
            for (var r = 0u; r < ROWS; r++) { //!unroll
                var mine = s[r * KEYS];
                for (var u = 0u; u < KEYS; u++) { //!unroll
                    mine = select(mine, s[r * KEYS + u], u == j / LANES);
                }
                let p = vec4<f32>(subgroupShuffle(mine, j % LANES));
                for (var c = 0u; c < CHUNKS_V; c++) { //!unroll
                    ro[r * CHUNKS_V + c] = fma(p, vq[c], ro[r * CHUNKS_V + c]);
                }
            }
        }
    }

    for (var r = 0u; r < ROWS; r++) { //!unroll
        l[r] = lanes_add(l[r]);
    }
    for (var i = 0u; row0 + i <= row_last; i++) {
        var row_m = m[0];
        var row_l = l[0];
        var row_o: array<vec4<f32>, CHUNKS_V>;
        for (var r = 0u; r < ROWS; r++) { //!unroll
            row_m = select(row_m, m[r], r == i);
            row_l = select(row_l, l[r], r == i);
            for (var c = 0u; c < CHUNKS_V; c++) { //!unroll
                row_o[c] = select(row_o[c], ro[r * CHUNKS_V + c], r == i);
            }
        }
        let row = row0 + i;
        let total = with_sink(row_m, row_l, head_of(head_kv, row));
        let factor = select(total.x / total.z, 0.0, total.z == 0.0);
        let at = o_offset(b, head_kv, row, split);
        for (var c = 0u; c < CHUNKS_V; c++) { //!unroll
            let quad = c * LANES + lane;
            if quad < QUADS_V {
                o_store4(at + quad * 4u, min(4u, DIM_V - quad * 4u), row_o[c] * factor);
            }
        }
        if LSE && lane == 0u {
            lse[lse_offset(b, head_kv, row, split)] = lse_bits(total.y, total.z);
        }
    }
}
