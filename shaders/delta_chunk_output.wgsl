// delta_chunk_output: what the tokens of one chunk of one head read.
//
//   O = diag(G) Q S + P V'      with the state S before the chunk
//
// A lane takes a column, and a workgroup BLOCK tokens.
// Reference: reference::delta.   Spec: linear.md, 2 and 3.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;           // invocations in a workgroup
const DIM_K: u32 = 64u;
const DIM_V: u32 = 64u;
const CHANNELS: bool = false;     // one decay a row of the state, not a head
const RAGGED: bool = false;       // table holds starts and lengths
const GATE_LOGITS: bool = false;
const BETA_LOGITS: bool = false;
// end constants

//!include "common/delta.wgsl"
//!include "common/delta_chunk.wgsl"

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> table: array<u32>;         // starts, lengths
@group(0) @binding(2) var<storage, read> scratch: array<f32>;       // [sequences, heads, chunks, stride]
@group(0) @binding(3) var<storage, read_write> o: array<f32>;       // [batch, tokens, heads, dim_v]

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    // a workgroup's number holds its chunk, its block of rows and its block of columns
    let blocks = (DIM_V + LANES - 1u) / LANES;
    let chunk = group.x / blocks / (CHUNK / BLOCK);
    let first = group.x / blocks % (CHUNK / BLOCK) * BLOCK;
    let column = group.x % blocks * LANES + lane;
    let head = group.y;
    let sequence = params.sequence_base + group.z;
    let start = sequence_start(sequence);
    let live = live_tokens(sequence_length(sequence, start));
    let at = chunk_at(group.z, head, chunk);
    if column < DIM_V {
        var sum: array<f32, BLOCK>;
        for (var c = 0u; c < params.dim_k; c++) {
            let held = scratch[at + S_AT + c * DIM_V + column];
            for (var r = 0u; r < BLOCK; r++) { //!unroll
                sum[r] = fma(scratch[at + QG_AT + c * CHUNK + first + r], held, sum[r]);
            }
        }
        // P is 0 where a token would read a later one
        for (var j = 0u; j < first + BLOCK; j++) {
            let value = scratch[at + X_AT + j * COLUMNS_X + column];
            for (var r = 0u; r < BLOCK; r++) { //!unroll
                sum[r] = fma(scratch[at + P_AT + j * CHUNK + first + r], value, sum[r]);
            }
        }
        for (var r = 0u; r < BLOCK; r++) { //!unroll
            let token = chunk * CHUNK + first + r;
            if token < live {
                o[params.o_base + sequence * params.o_batch + head * params.o_head
                    + (start + params.token_base + token) * params.o_token + column] = sum[r];
            }
        }
    }
}
