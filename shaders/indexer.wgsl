// indexer: scores of one query against a tile of keys, by a workgroup, without subgroups.
//
//   score_s = sum over heads of w_h * max(0, scale * dot(q_h, k_s))        0 for keys that the query does not see
//
// Invocations form a grid of LANES_X by LANES_Y; each owns ROWS heads by KEYS keys of a block of heads, and the
// sums over its heads of all blocks.
// Reference: reference::index_scores.   Spec: sparse.md, A2.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES_X: u32 = 8u;
const LANES_Y: u32 = 8u;
const ROWS: u32 = 4u;           // heads to an invocation
const KEYS: u32 = 4u;           // keys to an invocation
const CHUNK_QUADS: u32 = 8u;    // groups of four columns to a stage
const DIM: u32 = 128u;
const CAUSAL: bool = true;
const KV_LEN: bool = false;     // table holds valid lengths
const Q_STARTS: bool = false;   // table holds positions of query 0
const KEY_SCALE: bool = false;  // keys have a factor each
// end constants
const QUADS: u32 = (DIM + 3u) / 4u;
const THREADS: u32 = LANES_X * LANES_Y;
const Q_TILE: u32 = LANES_Y * ROWS;
const KV_TILE: u32 = LANES_X * KEYS;
const PITCH: u32 = CHUNK_QUADS + 1u; // a column of padding keeps the rows of a tile in different banks

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

var<workgroup> tile_q: array<vec4<f32>, Q_TILE * PITCH>;   // Q_TILE * PITCH * 16 bytes
var<workgroup> tile_k: array<vec4<f32>, KV_TILE * PITCH>;  // KV_TILE * PITCH * 16 bytes
var<workgroup> tile_sums: array<f32, THREADS * KEYS>;      // THREADS * KEYS * 4 bytes

@compute @workgroup_size(LANES_X, LANES_Y)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let b = params.batch_base + group.z;
    let query = params.query_base + group.y;
    let n = visible_keys(b, query);
    let key0 = (params.block_base + group.x) * KV_TILE;
    let key_end = min(key0 + KV_TILE, params.seq_kv);
    let seen = min(key_end, n);
    let x = local.x;
    let y = local.y * ROWS;

    var total: array<f32, KEYS>;
    // a tile that nobody sees has no heads to go through
    let heads = select(params.heads, 0u, key0 >= seen);
    for (var head0 = 0u; head0 < heads; head0 += Q_TILE) {
        var s: array<f32, ROWS * KEYS>;
        for (var i = 0u; i < ROWS * KEYS; i++) { //!unroll
            s[i] = 0.0;
        }
        for (var quad0 = 0u; quad0 < params.quads; quad0 += CHUNK_QUADS) {
            workgroupBarrier();
            for (var i = thread; i < params.stage_q; i += THREADS) {
                let quad = quad0 + i % CHUNK_QUADS;
                let at = min(quad, QUADS - 1u) * 4u;
                let head = min(head0 + i / CHUNK_QUADS, params.heads - 1u);
                let value = q_load4(q_at(b, query, head) + at, min(4u, DIM - at));
                tile_q[i / CHUNK_QUADS * PITCH + i % CHUNK_QUADS] = select(vec4<f32>(), value, quad < QUADS);
            }
            for (var i = thread; i < params.stage_k; i += THREADS) {
                let quad = quad0 + i % CHUNK_QUADS;
                let at = min(quad, QUADS - 1u) * 4u;
                let key = min(key0 + i / CHUNK_QUADS, seen - 1u);
                let value = k_load4(k_at(b, key) + at, min(4u, DIM - at));
                tile_k[i / CHUNK_QUADS * PITCH + i % CHUNK_QUADS] = select(vec4<f32>(), value, quad < QUADS);
            }
            workgroupBarrier();
            for (var i = 0u; i < params.stage_quads; i++) {
                var kq: array<vec4<f32>, KEYS>;
                for (var u = 0u; u < KEYS; u++) { //!unroll
                    kq[u] = tile_k[(x + u * LANES_X) * PITCH + i];
                }
                for (var r = 0u; r < ROWS; r++) { //!unroll
                    let qq = tile_q[(y + r) * PITCH + i];
                    for (var u = 0u; u < KEYS; u++) { //!unroll
                        s[r * KEYS + u] += dot(qq, kq[u]);
                    }
                }
            }
        }
        for (var r = 0u; r < ROWS; r++) { //!unroll
            let weight = weight_of(b, query, head0 + y + r);
            for (var u = 0u; u < KEYS; u++) { //!unroll
                total[u] = fma(weight, max(s[r * KEYS + u], 0.0), total[u]);
            }
        }
    }
    for (var u = 0u; u < KEYS; u++) { //!unroll
        tile_sums[local.y * KV_TILE + u * LANES_X + x] = total[u];
    }
    workgroupBarrier();
    for (var i = thread; key0 + i < key_end; i += THREADS) {
        var sum = 0.0;
        for (var other = 0u; other < params.lanes; other++) {
            sum += tile_sums[other * KV_TILE + i];
        }
        let key = key0 + i;
        let factor = key_factor(b, key);
        scores[scores_at(b, query) + key] = select(sum * factor, 0.0, key >= seen);
    }
}
