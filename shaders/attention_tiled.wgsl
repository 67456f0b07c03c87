// attention_tiled: a tile of query rows against one split of the keys, by a workgroup, without subgroups.
//
//   s_j = scale * dot(q, k_j)      m = max s_j      l = sum exp(s_j - m)      o = sum exp(s_j - m) * v_j / l
//
// Invocations form a grid of LANES_X by LANES_Y; each owns ROWS rows by KEYS keys of the scores, and ROWS rows
// by every LANES_X-th group of four columns of the output, all in registers.  Keys and values pass through
// workgroup memory in stages.
// Reference: reference::attention.   Spec: softmax-attention.md, 4, 6, 8; masks.md, 9.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES_X: u32 = 8u;
const LANES_Y: u32 = 8u;
const ROWS: u32 = 4u;           // query rows to an invocation
const KEYS: u32 = 4u;           // keys to an invocation
const CHUNK_QUADS: u32 = 8u;    // groups of four columns of q and k to a stage
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
const STAGES_V: u32 = (QUADS_V + LANES_X - 1u) / LANES_X;
const THREADS: u32 = LANES_X * LANES_Y;
const Q_TILE: u32 = LANES_Y * ROWS;
const KV_TILE: u32 = LANES_X * KEYS;
// a column of padding keeps the rows of a tile in different banks
const Q_PITCH: u32 = CHUNK_QUADS + 1u;
const V_PITCH: u32 = LANES_X + 1u;
const P_PITCH: u32 = KV_TILE + 1u;
const TILE_KV: u32 = KV_TILE * max(Q_PITCH, V_PITCH);

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

var<workgroup> tile_q: array<vec4<f32>, Q_TILE * Q_PITCH>;   // a chunk of q: Q_TILE * Q_PITCH * 16 bytes
var<workgroup> tile_kv: array<vec4<f32>, TILE_KV>;           // a chunk of k, then of v: TILE_KV * 16 bytes
var<workgroup> tile_p: array<f32, Q_TILE * P_PITCH>;         // row maxima, then probabilities: 4 bytes each

@compute @workgroup_size(LANES_X, LANES_Y)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    // late rows see the most keys: start with them
    let tile = params.tile_base + params.tile_count - 1u - group.x;
    let split = params.split_base + group.y;
    let b = group.z / params.heads;
    let head_kv = group.z % params.heads;
    let row0 = tile * Q_TILE;
    let row_last = min(row0 + Q_TILE, params.rows) - 1u;
    let span = key_span(b, row0, row_last);
    let x = local.x;
    let y = local.y * ROWS;

    var m: array<f32, ROWS>;
    var l: array<f32, ROWS>;      // over this invocation's keys
    var ro: array<vec4<f32>, ROWS * STAGES_V>;
    for (var r = 0u; r < ROWS; r++) { //!unroll
        m[r] = M_START;
        l[r] = 0.0;
        for (var c = 0u; c < STAGES_V; c++) { //!unroll
            ro[r * STAGES_V + c] = vec4<f32>();
        }
    }

    let t_end = min((split + 1u) * params.split_tiles, span.tiles);
    for (var t = split * params.split_tiles; t < t_end; t++) {
        let key0 = tile_key(span, t);
        let key_end = tile_end(span, t);
        let n_keys = min(KV_TILE, key_end - key0);
        var s: array<f32, ROWS * KEYS>;
        for (var i = 0u; i < ROWS * KEYS; i++) { //!unroll
            s[i] = 0.0;
        }
        for (var quad0 = 0u; quad0 < params.quads_k; quad0 += CHUNK_QUADS) {
            workgroupBarrier();
            for (var i = thread; i < params.stage_q; i += THREADS) {
                let quad = quad0 + i % CHUNK_QUADS;
                let at = min(quad, QUADS_K - 1u) * 4u;
                let row = min(row0 + i / CHUNK_QUADS, row_last);
                let value = q_load4(q_offset(b, head_kv, row) + at, min(4u, DIM_K - at)) * params.scale;
                tile_q[i / CHUNK_QUADS * Q_PITCH + i % CHUNK_QUADS] =
                    select(vec4<f32>(), value, quad < QUADS_K);
            }
            for (var i = thread; i < params.stage_k; i += THREADS) {
                let quad = quad0 + i % CHUNK_QUADS;
                let at = min(quad, QUADS_K - 1u) * 4u;
                let key = min(key0 + i / CHUNK_QUADS, key_end - 1u);
                let value = k_load4(k_offset(b, head_kv, key) + at, min(4u, DIM_K - at));
                tile_kv[i / CHUNK_QUADS * Q_PITCH + i % CHUNK_QUADS] =
                    select(vec4<f32>(), value, quad < QUADS_K);
            }
            workgroupBarrier();
            for (var i = 0u; i < params.chunk_quads; i++) {
                var kq: array<vec4<f32>, KEYS>;
                for (var u = 0u; u < KEYS; u++) { //!unroll
                    kq[u] = tile_kv[(x + u * LANES_X) * Q_PITCH + i];
                }
                for (var r = 0u; r < ROWS; r++) { //!unroll
                    let qq = tile_q[(y + r) * Q_PITCH + i];
                    for (var u = 0u; u < KEYS; u++) { //!unroll
                        s[r * KEYS + u] += dot(qq, kq[u]);
                    }
                }
            }
        }
        if SHAPED || !tile_is_full(span, key0, key_end) {
            for (var r = 0u; r < ROWS; r++) { //!unroll
                let row = min(row0 + y + r, row_last);
                let q_pos = q_first(b) + i32(query_of(row));
                for (var u = 0u; u < KEYS; u++) { //!unroll
                    let key = key0 + x + u * LANES_X;
                    let shaped =
                        shape_score(s[r * KEYS + u], b, head_of(head_kv, row), query_of(row), q_pos, key);
                    let sees = key < key_end && visible(q_pos, params.k_start + i32(key));
                    s[r * KEYS + u] = select(NEG, shaped, sees);
                }
            }
        }
        // the row's maximum over all invocations that share it
        for (var r = 0u; r < ROWS; r++) { //!unroll
            var top = s[r * KEYS];
            for (var u = 0u; u < KEYS; u++) { //!unroll
                top = max(top, s[r * KEYS + u]);
            }
            tile_p[(y + r) * P_PITCH + x] = top;
        }
        workgroupBarrier();
        var shrink: array<f32, ROWS>;
        for (var r = 0u; r < ROWS; r++) { //!unroll
            var top = m[r];
            for (var i = 0u; i < params.lanes; i++) {
                top = max(top, tile_p[(y + r) * P_PITCH + i]);
            }
            shrink[r] = exp2(m[r] - top);
            m[r] = top;
            l[r] *= shrink[r];
        }
        workgroupBarrier();
        for (var r = 0u; r < ROWS; r++) { //!unroll
            for (var u = 0u; u < KEYS; u++) { //!unroll
                let p = exp2(s[r * KEYS + u] - m[r]);
                l[r] += p;
                tile_p[(y + r) * P_PITCH + x + u * LANES_X] = p;
            }
            for (var c = 0u; c < STAGES_V; c++) { //!unroll
                ro[r * STAGES_V + c] *= shrink[r];
            }
        }
        // a loop, and registers picked by comparison: written out, it would compile once for each stage
        for (var stage = 0u; stage < params.stages; stage++) {
            workgroupBarrier();
            for (var i = thread; i < params.stage_v; i += THREADS) {
                let at = min(stage * LANES_X + i % LANES_X, QUADS_V - 1u) * 4u;
                let key = min(key0 + i / LANES_X, key_end - 1u);
                tile_kv[i / LANES_X * V_PITCH + i % LANES_X] =
                    v_load4(v_offset(b, head_kv, key) + at, min(4u, DIM_V - at));
            }
            workgroupBarrier();
            var added: array<vec4<f32>, ROWS>;
            for (var j = 0u; j < n_keys; j++) {
                let vq = tile_kv[j * V_PITCH + x];
                for (var r = 0u; r < ROWS; r++) { //!unroll
                    added[r] = fma(vec4<f32>(tile_p[(y + r) * P_PITCH + j]), vq, added[r]);
                }
            }
            for (var r = 0u; r < ROWS; r++) { //!unroll
                for (var c = 0u; c < STAGES_V; c++) { //!unroll
                    ro[r * STAGES_V + c] += select(vec4<f32>(), added[r], c == stage);
                }
            }
        }
    }

    workgroupBarrier();
    for (var r = 0u; r < ROWS; r++) { //!unroll
        tile_p[(y + r) * P_PITCH + x] = l[r];
    }
    workgroupBarrier();
    for (var r = 0u; r < ROWS; r++) { //!unroll
        let row = row0 + y + r;
        var sum = 0.0;
        for (var i = 0u; i < params.lanes; i++) {
            sum += tile_p[(y + r) * P_PITCH + i];
        }
        let total = with_sink(m[r], sum, head_of(head_kv, row));
        if row <= row_last {
            let factor = select(total.x / total.z, 0.0, total.z == 0.0);
            let at = o_offset(b, head_kv, row, split);
            for (var c = 0u; c < STAGES_V; c++) { //!unroll
                let quad = c * LANES_X + x;
                if quad < QUADS_V {
                    o_store4(at + quad * 4u, min(4u, DIM_V - quad * 4u), ro[r * STAGES_V + c] * factor);
                }
            }
            if LSE && x == 0u {
                lse[lse_offset(b, head_kv, row, split)] = lse_bits(total.y, total.z);
            }
        }
    }
}
