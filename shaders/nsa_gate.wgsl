// nsa_gate: the three branches times their gates.
//
//   o = g_0 * compressed + g_1 * selected + g_2 * window
//
// Reference: reference::nsa.   Spec: sparse.md, B.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
const DIM: u32 = 64u;
// end constants
const QUADS: u32 = (DIM + 3u) / 4u;

struct Params {
    heads: u32,
    rows: u32,       // queries
    items: u32,      // invocations with work in all dispatches
    item_base: u32,  // first of this dispatch
    width: u32,      // of them in a row of the grid
    gates_base: u32, gates_batch: u32, gates_head: u32, gates_row: u32,
    a_base: u32, b_base: u32, c_base: u32, o_base: u32,
}

//!include "common/load_f32.wgsl" as a
//!include "common/load_f32.wgsl" as b
//!include "common/load_f32.wgsl" as c
//!include "common/store_f32.wgsl" as o

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> a: array<a_item>;        // [batch, heads, rows, dim], packed
@group(0) @binding(2) var<storage, read> b: array<b_item>;        // the same
@group(0) @binding(3) var<storage, read> c: array<c_item>;        // the same
@group(0) @binding(4) var<storage, read> gates: array<f32>;       // [batch, heads, rows, 3]
@group(0) @binding(5) var<storage, read_write> o: array<o_item>;  // [batch, heads, rows, dim], packed

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    // one invocation for four columns of a row; the grid may be larger
    let item = params.item_base + id.y * params.width + id.x;
    let column = item % QUADS * 4u;
    let n = min(4u, DIM - column);
    let row = min(item, params.items - 1u) / QUADS;
    let z = row / params.rows;
    let gate = params.gates_base + z / params.heads * params.gates_batch + z % params.heads * params.gates_head
        + row % params.rows * params.gates_row;
    let at = row * DIM + column;
    let sum = gates[gate] * a_load4(params.a_base + at, n) + gates[gate + 1u] * b_load4(params.b_base + at, n)
        + gates[gate + 2u] * c_load4(params.c_base + at, n);
    if id.x < params.width && item < params.items {
        o_store4(params.o_base + at, n, sum);
    }
}
