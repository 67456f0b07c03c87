// indexed_attention: the heads of one query against one split of its list of keys, by a workgroup, without
// subgroups.
//
//   s_j = scale * dot(q, k_j)      m = max s_j      l = sum exp(s_j - m)      o = sum exp(s_j - m) * v_j / l
//
// j runs over the list alone: nothing else is read.  Invocations form a grid of LANES_X by LANES_Y; each owns
// ROWS heads by KEYS keys of the scores, and ROWS heads by every LANES_X-th group of four columns of the output.
// Reference: reference::indexed_attention.   Spec: sparse.md, A2 and B4.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES_X: u32 = 16u;
const LANES_Y: u32 = 4u;
const ROWS: u32 = 4u;           // query heads to an invocation
const KEYS: u32 = 2u;           // keys to an invocation
const CHUNK_QUADS: u32 = 8u;    // groups of four columns of q and k to a stage
const DIM_K: u32 = 64u;
const DIM_V: u32 = 64u;
const LIST: bool = true;        // without, slots are keys
const COMPACT: bool = false;    // a list has as many entries as keys are seen, then holes
const CAUSAL: bool = true;
const KV_LEN: bool = false;     // table holds valid lengths
const Q_STARTS: bool = false;   // table holds positions of query 0
const LSE: bool = true;         // lse is wanted
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

//!include "common/indexed.wgsl"
//!include "common/visible.wgsl"
//!include "common/online_softmax.wgsl"
//!include "common/load_f32.wgsl" as q
//!include "common/load_f32.wgsl" as k
//!include "common/load_f32.wgsl" as v
//!include "common/store_f32.wgsl" as o

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> q: array<q_item>;        // [batch, heads_q, seq_q, dim_k]
@group(0) @binding(2) var<storage, read> k: array<k_item>;        // [batch, heads_kv, seq_kv, dim_k]
@group(0) @binding(3) var<storage, read> v: array<v_item>;        // [batch, heads_kv, seq_kv, dim_v]
@group(0) @binding(4) var<storage, read> list: array<i32>;        // [batch, 1 or heads_kv, seq_q, entries]
@group(0) @binding(5) var<storage, read> table: array<u32>;       // kv_len, q_starts
@group(0) @binding(6) var<storage, read_write> o: array<o_item>;  // [batch, heads_q, seq_q, dim_v]
@group(0) @binding(7) var<storage, read_write> lse: array<u32>;   // [batch, heads_q, seq_q], f32 bits

var<workgroup> tile_q: array<vec4<f32>, Q_TILE * Q_PITCH>;   // a chunk of q: Q_TILE * Q_PITCH * 16 bytes
var<workgroup> tile_kv: array<vec4<f32>, TILE_KV>;           // a chunk of k, then of v: TILE_KV * 16 bytes
var<workgroup> tile_p: array<f32, Q_TILE * P_PITCH>;         // row maxima, then probabilities: 4 bytes each
var<workgroup> tile_keys: array<u32, KV_TILE>;               // keys of the step's slots: KV_TILE * 4 bytes

@compute @workgroup_size(LANES_X, LANES_Y)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let at = place_of(group, Q_TILE);
    let split = params.split_base + group.y;
    let x = local.x;
    let y = local.y * ROWS;

    var m: array<f32, ROWS>;
    var l: array<f32, ROWS>;      // over this invocation's keys
    var ro: array<vec4<f32>, ROWS * STAGES_V>;
    for (var r = 0u; r < ROWS; r++) { //!unroll
        m[r] = M_START;
    }

    for (var slot0 = at.first; slot0 < at.end; slot0 += KV_TILE) {
        let n_keys = min(params.tile, at.end - slot0);
        var s: array<f32, ROWS * KEYS>;
        workgroupBarrier();
        for (var i = thread; i < params.tile; i += THREADS) {
            tile_keys[i] = key_of(at, slot0 + i);
        }
        for (var quad0 = 0u; quad0 < params.quads_k; quad0 += CHUNK_QUADS) {
            workgroupBarrier();
            for (var i = thread; i < params.stage_q; i += THREADS) {
                let quad = quad0 + i % CHUNK_QUADS;
                let column = min(quad, QUADS_K - 1u) * 4u;
                let row = min(at.row0 + i / CHUNK_QUADS, at.row_last);
                let value = q_load4(q_offset(at, row) + column, min(4u, DIM_K - column)) * params.scale;
                tile_q[i / CHUNK_QUADS * Q_PITCH + i % CHUNK_QUADS] =
                    select(vec4<f32>(), value, quad < QUADS_K);
            }
            for (var i = thread; i < params.stage_k; i += THREADS) {
                let quad = quad0 + i % CHUNK_QUADS;
                let column = min(quad, QUADS_K - 1u) * 4u;
                let key = tile_keys[i / CHUNK_QUADS];
                let value = k_load4(k_offset(at, key) + column, min(4u, DIM_K - column));
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
        // the row's maximum over all invocations that share it
        for (var r = 0u; r < ROWS; r++) { //!unroll
            var top = NEG;
            for (var u = 0u; u < KEYS; u++) { //!unroll
                s[r * KEYS + u] = select(s[r * KEYS + u], NEG, tile_keys[x + u * LANES_X] == HOLE);
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
                let column = min(stage * LANES_X + i % LANES_X, QUADS_V - 1u) * 4u;
                let key = tile_keys[i / LANES_X];
                let value = v_load4(v_offset(at, key) + column, min(4u, DIM_V - column));
                // what stands in for a hole may be NaN
                tile_kv[i / LANES_X * V_PITCH + i % LANES_X] = select(value, vec4<f32>(), key == HOLE);
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
        let row = at.row0 + y + r;
        var sum = 0.0;
        for (var i = 0u; i < params.lanes; i++) {
            sum += tile_p[(y + r) * P_PITCH + i];
        }
        if row <= at.row_last {
            let factor = select(1.0 / sum, 0.0, sum == 0.0);
            let out = o_offset(at, row, split);
            for (var c = 0u; c < STAGES_V; c++) { //!unroll
                let quad = c * LANES_X + x;
                if quad < QUADS_V {
                    o_store4(out + quad * 4u, min(4u, DIM_V - quad * 4u), ro[r * STAGES_V + c] * factor);
                }
            }
            if LSE && x == 0u {
                lse[lse_offset(at, row, split)] = lse_bits(m[r] * LN2, sum);
            }
        }
    }
}
