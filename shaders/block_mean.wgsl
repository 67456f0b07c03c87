// block_mean: the mean of `reach` neighbouring rows, one every `step` rows: the plainest way to compress blocks.
// Reference: reference::nsa.   Spec: sparse.md, B2.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
const DIM: u32 = 64u;
// end constants
const QUADS: u32 = (DIM + 3u) / 4u;

struct Params {
    heads: u32,
    blocks: u32,
    step: u32,
    reach: u32,
    items: u32,      // invocations with work in all dispatches
    item_base: u32,  // first of this dispatch
    width: u32,      // of them in a row of the grid
    x_base: u32, x_batch: u32, x_head: u32, x_row: u32,
}

//!include "common/load_f32.wgsl" as source
//!include "common/store_f32.wgsl" as o

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> source: array<source_item>; // [batch, heads, seq, dim]
@group(0) @binding(2) var<storage, read_write> o: array<o_item>;     // [batch, heads, blocks, dim], packed

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    // one invocation for four columns of a block; the grid may be larger
    let item = params.item_base + id.y * params.width + id.x;
    let column = item % QUADS * 4u;
    let n = min(4u, DIM - column);
    let row = min(item, params.items - 1u) / QUADS;
    let block = row % params.blocks;
    let z = row / params.blocks;
    var at = params.x_base + z / params.heads * params.x_batch + z % params.heads * params.x_head
        + block * params.step * params.x_row + column;
    var sum = vec4<f32>();
    for (var i = 0u; i < params.reach; i++) {
        sum += source_load4(at, n);
        at += params.x_row;
    }
    if id.x < params.width && item < params.items {
        o_store4(row * DIM + column, n, sum / f32(params.reach));
    }
}
