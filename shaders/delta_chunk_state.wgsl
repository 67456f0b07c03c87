// delta_chunk_state: the state from chunk to chunk, the only part that runs one after another.
//
//   V' = U - W S      S <- diag(G_last) S + (decays after k_j, times k_j)^T V'
//
// COLUMNS columns of a head's state lie in the registers of a workgroup; ROW_SPLIT lanes share a column.  The state
// before each chunk and V' go to scratch.
// Reference: reference::delta.   Spec: linear.md, 2 and 3.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;           // invocations in a workgroup
const ROW_SPLIT: u32 = 2u;        // lanes that share a column
const TOKENS: u32 = 8u;           // staged at a time
const DIM_K: u32 = 64u;
const DIM_V: u32 = 64u;
const CHANNELS: bool = false;     // one decay a row of the state, not a head
// end constants

//!include "common/delta_params.wgsl"
//!include "common/delta_chunk.wgsl"
const COLUMNS: u32 = LANES / ROW_SPLIT;
const QUADS: u32 = (WIDTH / 4u + ROW_SPLIT - 1u) / ROW_SPLIT; // groups of four rows to a lane
const ROWS: u32 = QUADS * 4u;
const STAGED: u32 = ROWS * ROW_SPLIT;                         // rows of a staged token

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read_write> scratch: array<f32>; // [sequences, heads, chunks, stride]
@group(0) @binding(2) var<storage, read_write> state: array<f32>;   // [sequences, heads, dim_k, dim_v]

var<workgroup> tile_rows: array<f32, TOKENS * STAGED>;              // TOKENS * STAGED * 4 bytes
var<workgroup> tile_sum: array<f32, TOKENS * LANES>;                // TOKENS * LANES * 4 bytes
var<workgroup> tile_v: array<f32, CHUNK * COLUMNS>;                 // CHUNK * COLUMNS * 4 bytes

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.y;
    let row_part = lane / COLUMNS;
    let row0 = row_part * ROWS;
    let beside = lane % COLUMNS;
    let column = group.x * COLUMNS + beside;
    let column_in = min(column, DIM_V - 1u);
    let state_at = params.state_base + ((params.sequence_base + group.z) * params.heads + head) * DIM_K * DIM_V;

    // rows and columns past the edge are loaded from inside, count as 0, and are not stored
    var s: array<f32, ROWS>;
    for (var i = 0u; i < ROWS; i++) { //!unroll
        let held = state[state_at + min(row0 + i, DIM_K - 1u) * DIM_V + column_in];
        s[i] = select(0.0, held, params.fresh == 0u && row0 + i < DIM_K && column < DIM_V);
    }
    for (var chunk = 0u; chunk < params.chunks; chunk++) {
        let at = chunk_at(group.z, head, chunk);
        for (var i = 0u; i < ROWS; i++) { //!unroll
            if row0 + i < DIM_K && column < DIM_V {
                scratch[at + S_AT + (row0 + i) * DIM_V + column] = s[i];
            }
        }
        for (var first = 0u; first < params.chunk; first += TOKENS) {
            workgroupBarrier();
            for (var ix = lane; ix < TOKENS * STAGED; ix += LANES) {
                let row = ix % STAGED;
                let held = scratch[at + X_AT + (first + ix / STAGED) * COLUMNS_X + DIM_V + min(row, WIDTH - 1u)];
                tile_rows[ix] = select(0.0, held, row < WIDTH);
            }
            workgroupBarrier();
            for (var j = 0u; j < params.staged; j++) {
                var sum = 0.0;
                for (var i = 0u; i < ROWS; i++) { //!unroll
                    sum = fma(tile_rows[j * STAGED + row0 + i], s[i], sum);
                }
                tile_sum[j * LANES + lane] = sum;
            }
            workgroupBarrier();
            for (var j = row_part; j < TOKENS; j += ROW_SPLIT) {
                let x_at = at + X_AT + (first + j) * COLUMNS_X + column;
                var value = scratch[min(x_at, at + X_AT + (first + j) * COLUMNS_X + DIM_V - 1u)];
                for (var p = 0u; p < params.rows; p++) {
                    value -= tile_sum[j * LANES + p * COLUMNS + beside];
                }
                tile_v[(first + j) * COLUMNS + beside] = value;
                if column < DIM_V {
                    scratch[x_at] = value;
                }
            }
        }
        for (var i = 0u; i < ROWS; i++) { //!unroll
            s[i] *= scratch[at + TOTAL_AT + min(row0 + i, WIDTH - 1u)];
        }
        for (var first = 0u; first < params.chunk; first += TOKENS) {
            workgroupBarrier();
            for (var ix = lane; ix < TOKENS * STAGED; ix += LANES) {
                let row = ix % STAGED;
                let held = scratch[at + KT_AT + (first + ix / STAGED) * WIDTH + min(row, WIDTH - 1u)];
                tile_rows[ix] = select(0.0, held, row < WIDTH);
            }
            workgroupBarrier();
            for (var j = 0u; j < params.staged; j++) {
                let value = tile_v[(first + j) * COLUMNS + beside];
                for (var i = 0u; i < ROWS; i++) { //!unroll
                    s[i] = fma(tile_rows[j * STAGED + row0 + i], value, s[i]);
                }
            }
        }
    }
    for (var i = 0u; i < ROWS; i++) { //!unroll
        if row0 + i < DIM_K && column < DIM_V {
            state[state_at + (row0 + i) * DIM_V + column] = s[i];
        }
    }
}
