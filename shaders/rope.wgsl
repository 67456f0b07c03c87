// rope: turns pairs of a row's first elements by the angles of its position, and scales the rest.
//
//   half:         (x[i], x[i + h])       -> (x c - y s, y c + x s)      with c, s of pair i
//   interleaved:  (x[2 i], x[2 i + 1])   -> the same
//   rest:         t x
// The table holds c_0, s_0, ..., c_(h-1), s_(h-1), t of each position: angles are the host's, in f64, since
// WGSL's sine is good to 2^-11 near 0 and to nothing elsewhere.
// Reference: reference::rope.   Spec: rope-and-scale.md, 1 and 2.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
const INTERLEAVED: bool = false;
// end constants

struct Params {
    dim: u32,        // width of a row
    quads: u32,      // groups of four that hold it
    pairs: u32,
    heads: u32,
    rows: u32,       // positions
    items: u32,      // invocations with work in all dispatches
    item_base: u32,  // first of this dispatch
    width: u32,      // of them in a row of the grid
    x_base: u32, x_batch: u32, x_head: u32, x_row: u32,
    y_base: u32, y_batch: u32, y_head: u32, y_row: u32,
    table_base: u32, table_batch: u32, table_row: u32,
}

//!include "common/load_f32_element.wgsl" as x
//!include "common/store_f32_element.wgsl" as y

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> x: array<x_item>;        // [batch, heads, rows, dim]
@group(0) @binding(2) var<storage, read> table: array<f32>;       // [1 or batch, rows, 2 * pairs + 1]
@group(0) @binding(3) var<storage, read_write> y: array<y_item>;  // [batch, heads, rows, dim]

fn turned(x_row: u32, table_row: u32, element: u32) -> f32 {
    let e = min(element, params.dim - 1u);
    let own = x_load1(x_row + e);
    if e >= 2u * params.pairs {
        return own * table[table_row + 2u * params.pairs];
    }
    var pair = e % params.pairs;
    var first = e < params.pairs;
    var other = select(e - params.pairs, e + params.pairs, first);
    if INTERLEAVED {
        pair = e / 2u;
        first = e % 2u == 0u;
        other = e ^ 1u;
    }
    let turn = x_load1(x_row + other) * table[table_row + 2u * pair + 1u];
    return own * table[table_row + 2u * pair] + select(turn, -turn, first);
}

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    // one invocation for four elements of a row; the grid may be larger
    let item = params.item_base + id.y * params.width + id.x;
    if id.x >= params.width || item >= params.items {
        return;
    }
    let element = item % params.quads * 4u;
    let place = item / params.quads;
    let row = place % params.rows;
    let head = place / params.rows % params.heads;
    let b = place / params.rows / params.heads;
    let x_row = params.x_base + b * params.x_batch + head * params.x_head + row * params.x_row;
    let table_row = params.table_base + b * params.table_batch + row * params.table_row;
    let value = vec4<f32>(
        turned(x_row, table_row, element),
        turned(x_row, table_row, element + 1u),
        turned(x_row, table_row, element + 2u),
        turned(x_row, table_row, element + 3u));
    let at = params.y_base + b * params.y_batch + head * params.y_head + row * params.y_row;
    y_store4(at + element, min(4u, params.dim - element), value);
}
