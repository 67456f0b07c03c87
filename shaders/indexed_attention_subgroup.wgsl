// indexed_attention_subgroup: the heads of one query against one split of its list of keys, by one subgroup of
// known size.
//
//   s_j = scale * dot(q, k_j)      m = max s_j      l = sum exp(s_j - m)      o = sum exp(s_j - m) * v_j / l
//
// j runs over the list alone: nothing else is read.  For scores a lane is a key and q, loaded stage by stage, is
// broadcast by shuffles; for the output a lane is four columns and the probabilities are broadcast.
// Reference: reference::indexed_attention.   Spec: sparse.md, A2 and B4.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 8u;          // subgroup size
const LANES_LOG2: u32 = 3u;
const ROWS: u32 = 8u;           // query heads to a subgroup
const KEYS: u32 = 4u;           // keys to a lane in one step
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
const CHUNKS_V: u32 = (QUADS_V + LANES - 1u) / LANES; // groups of four columns of the output to a lane
const KV_TILE: u32 = LANES * KEYS;

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
    let at = place_of(group, ROWS);
    let split = params.split_base + group.y;
    var m: array<f32, ROWS>;
    var l: array<f32, ROWS>;      // this lane's share
    var ro: array<vec4<f32>, ROWS * CHUNKS_V>;
    for (var r = 0u; r < ROWS; r++) { //!unroll
        m[r] = M_START;
    }

    for (var slot0 = at.first; slot0 < at.end; slot0 += KV_TILE) {
        var key: array<u32, KEYS>;
        var k_at: array<u32, KEYS>;
        var s: array<f32, ROWS * KEYS>;
        for (var u = 0u; u < KEYS; u++) { //!unroll
            key[u] = key_of(at, slot0 + u * LANES + lane);
            k_at[u] = k_offset(at, key[u]);
        }
        for (var c = 0u; c < params.stages; c++) {
            var mine: array<vec4<f32>, ROWS>;
            let quad = min(c * LANES + lane, QUADS_K - 1u);
            for (var r = 0u; r < ROWS; r++) { //!unroll
                let row = q_offset(at, min(at.row0 + r, at.row_last));
                mine[r] = q_load4(row + quad * 4u, min(4u, DIM_K - quad * 4u));
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
        for (var r = 0u; r < ROWS; r++) { //!unroll
            var top = m[r];
            for (var u = 0u; u < KEYS; u++) { //!unroll
                s[r * KEYS + u] = select(s[r * KEYS + u] * params.scale, NEG, key[u] == HOLE);
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
        let n = min(params.tile, at.end - slot0);
        for (var j = 0u; j < n; j++) {
            var own = key[0];
            for (var u = 0u; u < KEYS; u++) { //!unroll
                own = select(own, key[u], u == j / LANES);
            }
            let key_j = subgroupShuffle(own, j % LANES);
            let v_at = v_offset(at, key_j);
            var vq: array<vec4<f32>, CHUNKS_V>;
            for (var c = 0u; c < CHUNKS_V; c++) { //!unroll
                let quad = min(c * LANES + lane, QUADS_V - 1u);
                // what stands in for a hole may be NaN
                vq[c] = select(v_load4(v_at + quad * 4u, min(4u, DIM_V - quad * 4u)), vec4<f32>(), key_j == HOLE);
            }
            for (var r = 0u; r < ROWS; r++) { //!unroll
                var p_own = s[r * KEYS];
                for (var u = 0u; u < KEYS; u++) { //!unroll
                    p_own = select(p_own, s[r * KEYS + u], u == j / LANES);
                }
                let p = vec4<f32>(subgroupShuffle(p_own, j % LANES));
                for (var c = 0u; c < CHUNKS_V; c++) { //!unroll
                    ro[r * CHUNKS_V + c] = fma(p, vq[c], ro[r * CHUNKS_V + c]);
                }
            }
        }
    }

    for (var r = 0u; r < ROWS; r++) { //!unroll
        l[r] = lanes_add(l[r]);
    }
    for (var i = 0u; at.row0 + i <= at.row_last; i++) {
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
        let factor = select(1.0 / row_l, 0.0, row_l == 0.0);
        let out = o_offset(at, at.row0 + i, split);
        for (var c = 0u; c < CHUNKS_V; c++) { //!unroll
            let quad = c * LANES + lane;
            if quad < QUADS_V {
                o_store4(out + quad * 4u, min(4u, DIM_V - quad * 4u), row_o[c] * factor);
            }
        }
        if LSE && lane == 0u {
            lse[lse_offset(at, at.row0 + i, split)] = lse_bits(row_m * LN2, row_l);
        }
    }
}
