// delta_chunk_scores: products of the keys and queries of one chunk with its keys, through the decays between.
//
//   A_ij = beta_i sum_c k_ic k_jc (G_ic / G_jc)  of i > j      P_ij = sum_c q_ic k_jc (G_ic / G_jc)  of i >= j
//
// A lane takes a key j and carries k_j forward: at each later token it is multiplied by that token's decay, so the
// quotients are products of factors of at most 1.  BLOCK channels are staged at a time.
// Reference: reference::delta.   Spec: linear.md, 2 and 3.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;           // invocations in a workgroup: keys of a chunk
const DIM_K: u32 = 64u;
const DIM_V: u32 = 64u;
const CHANNELS: bool = false;     // one decay a row of the state, not a head
// end constants

//!include "common/delta_params.wgsl"
//!include "common/delta_chunk.wgsl"
const_assert LANES == CHUNK;

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read_write> scratch: array<f32>; // [sequences, heads, chunks, stride]

var<workgroup> tile_k: array<vec4<f32>, CHUNK * BLOCK / 4u>;        // 4 KiB
var<workgroup> tile_q: array<vec4<f32>, CHUNK * BLOCK / 4u>;        // 4 KiB
var<workgroup> tile_decay: array<vec4<f32>, CHUNK * BLOCK / 4u>;    // 4 KiB

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = chunk_at(group.z, group.y, group.x);
    for (var c0 = 0u; c0 < params.width; c0 += BLOCK) {
        workgroupBarrier();
        for (var ix = lane; ix < CHUNK * BLOCK / 4u; ix += LANES) {
            let i = ix / (BLOCK / 4u);
            let c = c0 + ix % (BLOCK / 4u) * 4u;
            var kq = vec4<f32>();
            var qq = vec4<f32>();
            var decay = vec4<f32>();
            for (var e = 0u; e < 4u; e++) { //!unroll
                kq[e] = scratch[at + K_AT + i * WIDTH + c + e];
                qq[e] = scratch[at + Q_AT + i * WIDTH + c + e];
                decay[e] = scratch[at + D_AT + i * GATES + min(c + e, GATES - 1u)];
            }
            tile_k[ix] = kq;
            tile_q[ix] = qq;
            tile_decay[ix] = decay;
        }
        workgroupBarrier();
        var carried: array<vec4<f32>, 4>;
        for (var m = 0u; m < 4u; m++) { //!unroll
            carried[m] = tile_k[lane * 4u + m];
        }
        for (var i = 0u; i < params.chunk; i++) {
            var a = 0.0;
            var p = 0.0;
            if i >= lane {
                for (var m = 0u; m < 4u; m++) { //!unroll
                    carried[m] = select(carried[m] * tile_decay[i * 4u + m], carried[m], i == lane);
                    a += dot(tile_k[i * 4u + m], carried[m]);
                    p += dot(tile_q[i * 4u + m], carried[m]);
                }
                a = select(a * scratch[at + BETA_AT + i], 0.0, i == lane);
            }
            // this lane alone writes and reads its key's sums
            if c0 > 0u {
                a += scratch[at + A_AT + lane * CHUNK + i];
                p += scratch[at + P_AT + lane * CHUNK + i];
            }
            scratch[at + A_AT + lane * CHUNK + i] = a;
            scratch[at + P_AT + lane * CHUNK + i] = p;
        }
    }
}
