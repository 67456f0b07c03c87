// project_heads: each head's rows through the head's own matrix.
//
//   y[b, h, l, o] = sum_i w[h, o, i] x[b, h, l, i]
//
// The matrix is read once for a tile of rows.  Either of its axes may be the contiguous one: up-projections of
// latent attention are used both ways round (absorbed queries contract the other axis).
// Reference: reference::mla.   Spec: mla.md, 3 and 4.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES_X: u32 = 16u;        // invocations across outputs, four each
const LANES_Y: u32 = 4u;         // across rows
const ROWS: u32 = 4u;            // rows to an invocation
const OUT_CONTIGUOUS: bool = false; // neighbours in w are outputs, not inputs
// end constants
const THREADS: u32 = LANES_X * LANES_Y;
const CHUNK: u32 = 4u;           // groups of four inputs to a stage
const PITCH: u32 = CHUNK + 1u;
const ROW_TILE: u32 = LANES_Y * ROWS;

struct Params {
    rows: u32,        // batch * seq
    seq: u32,
    n_in: u32,
    n_out: u32,
    tile_base: u32,   // first tile of rows of this dispatch
    head_base: u32,
    x_base: u32, x_batch: u32, x_head: u32, x_row: u32,
    w_base: u32, w_head: u32, w_out: u32, w_in: u32,
    y_base: u32, y_batch: u32, y_head: u32, y_row: u32,
    // Loop bounds equal to constants: drivers would unroll loops over constants, loads and all.
    chunk: u32, stage_x: u32, stage_w: u32,
}

//!include "common/load_f32.wgsl" as x
//!include "common/load_f32.wgsl" as w
//!include "common/store_f32.wgsl" as y

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> x: array<x_item>;        // [batch, heads, seq, n_in]
@group(0) @binding(2) var<storage, read> w: array<w_item>;        // [heads, n_out, n_in] by strides
@group(0) @binding(3) var<storage, read_write> y: array<y_item>;  // [batch, heads, seq, n_out]

var<workgroup> tile_x: array<vec4<f32>, ROW_TILE * PITCH>;        // ROW_TILE * 80 bytes
var<workgroup> tile_w: array<vec4<f32>, 4u * LANES_X * PITCH>;    // LANES_X * 320 bytes

fn x_offset(head: u32, row: u32) -> u32 {
    return params.x_base + row / params.seq * params.x_batch + head * params.x_head
        + row % params.seq * params.x_row;
}

@compute @workgroup_size(LANES_X, LANES_Y)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let out0 = group.x * LANES_X * 4u;
    let row0 = (params.tile_base + group.y) * ROW_TILE;
    let row_last = params.rows - 1u;
    let head = params.head_base + group.z;
    let w_head = params.w_base + head * params.w_head;
    let out_last = params.n_out - 1u;
    var sum: array<vec4<f32>, ROWS>;
    for (var r = 0u; r < ROWS; r++) { //!unroll
        sum[r] = vec4<f32>();
    }
    for (var in0 = 0u; in0 < params.n_in; in0 += 4u * CHUNK) {
        workgroupBarrier();
        for (var i = thread; i < params.stage_x; i += THREADS) {
            let at = in0 + i % CHUNK * 4u;
            let source = min(at, (params.n_in - 1u) / 4u * 4u);
            let value = x_load4(x_offset(head, min(row0 + i / CHUNK, row_last)) + source,
                min(4u, params.n_in - source));
            tile_x[i / CHUNK * PITCH + i % CHUNK] = select(vec4<f32>(), value, at < params.n_in);
        }
        for (var i = thread; i < params.stage_w; i += THREADS) {
            if OUT_CONTIGUOUS {
                // input `i / LANES_X` of the stage, four outputs
                let input = min(in0 + i / LANES_X, params.n_in - 1u);
                let source = min(out0 + i % LANES_X * 4u, out_last / 4u * 4u);
                tile_w[i] = w_load4(w_head + input * params.w_in + source, min(4u, params.n_out - source));
            } else {
                // four inputs of output `4 lane + j`, which lies in the j-th run of lanes
                let slot = i / CHUNK;
                let output = min(out0 + slot % LANES_X * 4u + slot / LANES_X, out_last);
                let source = min(in0 + i % CHUNK * 4u, (params.n_in - 1u) / 4u * 4u);
                tile_w[slot * PITCH + i % CHUNK] =
                    w_load4(w_head + output * params.w_out + source, min(4u, params.n_in - source));
            }
        }
        workgroupBarrier();
        for (var c = 0u; c < params.chunk; c++) {
            var wq: array<vec4<f32>, 4>;
            for (var j = 0u; j < 4u; j++) { //!unroll
                wq[j] = tile_w[select((j * LANES_X + local.x) * PITCH + c, (c * 4u + j) * LANES_X + local.x,
                    OUT_CONTIGUOUS)];
            }
            for (var r = 0u; r < ROWS; r++) { //!unroll
                let xq = tile_x[(local.y * ROWS + r) * PITCH + c];
                if OUT_CONTIGUOUS {
                    sum[r] = fma(vec4<f32>(xq.x), wq[0],
                        fma(vec4<f32>(xq.y), wq[1], fma(vec4<f32>(xq.z), wq[2],
                        fma(vec4<f32>(xq.w), wq[3], sum[r]))));
                } else {
                    sum[r] += vec4<f32>(dot(xq, wq[0]), dot(xq, wq[1]), dot(xq, wq[2]), dot(xq, wq[3]));
                }
            }
        }
    }
    let output = out0 + local.x * 4u;
    for (var r = 0u; r < ROWS; r++) { //!unroll
        let row = row0 + local.y * ROWS + r;
        if row <= row_last && output < params.n_out {
            let at = params.y_base + row / params.seq * params.y_batch + head * params.y_head
                + row % params.seq * params.y_row;
            y_store4(at + output, min(4u, params.n_out - output), sum[r]);
        }
    }
}
