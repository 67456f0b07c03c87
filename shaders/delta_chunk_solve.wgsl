// delta_chunk_solve: (I + A) [U | W] = [beta V | beta G K] of one chunk of one head, by forward substitution.
//
// A lane takes a column; BLOCK rows at a time stand in its registers.
// Reference: reference::delta.   Spec: linear.md, 2 and 3.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;           // invocations in a workgroup
const DIM_K: u32 = 64u;
const DIM_V: u32 = 64u;
const CHANNELS: bool = false;     // one decay a row of the state, not a head
// end constants

//!include "common/delta_params.wgsl"
//!include "common/delta_chunk.wgsl"

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read_write> scratch: array<f32>; // [sequences, heads, chunks, stride]

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    // a workgroup's number holds its chunk and its block of columns
    let blocks = (COLUMNS_X + LANES - 1u) / LANES;
    let at = chunk_at(group.z, group.y, group.x / blocks);
    let column = group.x % blocks * LANES + lane;
    if column < COLUMNS_X {
        for (var first = 0u; first < params.chunk; first += BLOCK) {
            var x: array<f32, BLOCK>;
            for (var r = 0u; r < BLOCK; r++) { //!unroll
                x[r] = scratch[at + X_AT + (first + r) * COLUMNS_X + column];
            }
            for (var j = 0u; j < first; j++) {
                // solved by this lane before
                let known = scratch[at + X_AT + j * COLUMNS_X + column];
                for (var r = 0u; r < BLOCK; r++) { //!unroll
                    x[r] = fma(-scratch[at + A_AT + j * CHUNK + first + r], known, x[r]);
                }
            }
            for (var j = 0u; j < params.block; j++) {
                var known = x[0];
                for (var r = 0u; r < BLOCK; r++) { //!unroll
                    known = select(known, x[r], r == j);
                }
                // A is 0 on and above the diagonal
                for (var r = 0u; r < BLOCK; r++) { //!unroll
                    x[r] = fma(-scratch[at + A_AT + (first + j) * CHUNK + first + r], known, x[r]);
                }
            }
            for (var r = 0u; r < BLOCK; r++) { //!unroll
                scratch[at + X_AT + (first + r) * COLUMNS_X + column] = x[r];
            }
        }
    }
}
