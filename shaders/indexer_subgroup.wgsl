// indexer_subgroup: scores of one query against a block of keys, by one subgroup of known size.
//
//   score_s = sum over heads of w_h * max(0, scale * dot(q_h, k_s))        0 for keys that the query does not see
//
// A lane is a key, KEYS times; q lies across the lanes and is broadcast by shuffles.  Heads pass in blocks of
// ROWS: all but the first add to the scores of those before.
// Reference: reference::index_scores.   Spec: sparse.md, A2.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 8u;          // subgroup size
const ROWS: u32 = 32u;          // heads to a block
const KEYS: u32 = 8u;           // keys to a lane in one step
const DIM: u32 = 128u;
const CAUSAL: bool = true;
const KV_LEN: bool = false;     // table holds valid lengths
const Q_STARTS: bool = false;   // table holds positions of query 0
const KEY_SCALE: bool = false;  // keys have a factor each
// end constants
const QUADS: u32 = (DIM + 3u) / 4u;
const CHUNKS: u32 = (QUADS + LANES - 1u) / LANES; // groups of four columns to a lane
const KV_TILE: u32 = LANES * KEYS;

//!include "common/indexer.wgsl"
//!include "common/visible.wgsl"
//!include "common/load_f32.wgsl" as q
//!include "common/load_f32.wgsl" as k

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> q: array<q_item>;             // [batch, seq_q, heads, dim]
@group(0) @binding(2) var<storage, read> k: array<k_item>;             // [batch, seq_kv, dim]
@group(0) @binding(3) var<storage, read> w: array<f32>;                // [batch, seq_q, heads]
@group(0) @binding(4) var<storage, read> key_scale: array<f32>;        // [batch, seq_kv]
@group(0) @binding(5) var<storage, read> table: array<u32>;            // kv_len, q_starts
@group(0) @binding(6) var<storage, read_write> scores: array<f32>;     // [batch, seq_q, seq_kv]

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32) {
    let b = params.batch_base + group.z;
    let query = params.query_base + group.y;
    let n = visible_keys(b, query);
    let key_first = (params.block_base + group.x) * params.block;
    let key_end = min(key_first + params.block, params.seq_kv);
    let seen = min(key_end, n);
    let out = scores_at(b, query);

    for (var head0 = 0u; head0 < params.heads; head0 += ROWS) {
        // loads stay in a loop, and registers are picked by comparison: see docs/wgsl.md
        var rq: array<vec4<f32>, ROWS * CHUNKS>;
        var rw: array<f32, ROWS>;
        for (var i = 0u; i < params.rows; i++) {
            let at = q_at(b, query, min(head0 + i, params.heads - 1u));
            let weight = weight_of(b, query, head0 + i);
            var loaded: array<vec4<f32>, CHUNKS>;
            for (var c = 0u; c < CHUNKS; c++) { //!unroll
                let quad = min(c * LANES + lane, QUADS - 1u);
                loaded[c] = q_load4(at + quad * 4u, min(4u, DIM - quad * 4u));
            }
            for (var r = 0u; r < ROWS; r++) { //!unroll
                rw[r] = select(rw[r], weight, r == i);
                for (var c = 0u; c < CHUNKS; c++) { //!unroll
                    rq[r * CHUNKS + c] = select(rq[r * CHUNKS + c], loaded[c], r == i);
                }
            }
        }
        for (var key0 = key_first; key0 < seen; key0 += KV_TILE) {
            var k_row: array<u32, KEYS>;
            var s: array<f32, ROWS * KEYS>;
            for (var u = 0u; u < KEYS; u++) { //!unroll
                k_row[u] = k_at(b, min(key0 + u * LANES + lane, seen - 1u));
            }
            for (var c = 0u; c < params.chunks; c++) {
                var mine: array<vec4<f32>, ROWS>;
                for (var r = 0u; r < ROWS; r++) { //!unroll
                    mine[r] = rq[r * CHUNKS];
                    for (var other = 0u; other < CHUNKS; other++) { //!unroll
                        mine[r] = select(mine[r], rq[r * CHUNKS + other], other == c);
                    }
                }
                let quads = min(params.lanes, params.quads - c * LANES);
                for (var i = 0u; i < quads; i++) {
                    let d = (c * LANES + i) * 4u;
                    var kq: array<vec4<f32>, KEYS>;
                    for (var u = 0u; u < KEYS; u++) { //!unroll
                        kq[u] = k_load4(k_row[u] + d, min(4u, DIM - d));
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
            var total: array<f32, KEYS>;
            for (var r = 0u; r < ROWS; r++) { //!unroll
                for (var u = 0u; u < KEYS; u++) { //!unroll
                    total[u] = fma(rw[r], max(s[r * KEYS + u], 0.0), total[u]);
                }
            }
            for (var i = 0u; i < KV_TILE && key0 + i + lane < seen; i += LANES) {
                var sum = total[0];
                for (var u = 0u; u < KEYS; u++) { //!unroll
                    sum = select(sum, total[u], u == i / LANES);
                }
                let key = key0 + i + lane;
                sum *= key_factor(b, key);
                if head0 > 0u {
                    sum += scores[out + key];
                }
                scores[out + key] = sum;
            }
        }
    }
    for (var key = max(key_first, seen) + lane; key < key_end; key += LANES) {
        scores[out + key] = 0.0;
    }
}
