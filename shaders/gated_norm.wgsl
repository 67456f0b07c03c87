// gated_norm: RMS normalisation with a gate before or after it, a group of a row to a workgroup.
//
//   after:   y = x / sqrt(mean x^2 + eps) w act(z)          before: the same of x act(z), without the gate at the end
//
// Reference: reference::gated_norm.   Spec: linear.md, 2 to 7.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
const BEFORE: bool = false;  // the gate comes before the norm
const SILU: bool = true;     // act is SiLU; else the sigmoid
// end constants
const_assert LANES == 64u;

struct Params {
    rows: u32,         // groups of all rows
    width: u32,        // workgroups in a row of the grid
    row_base: u32,     // first group of this dispatch
    group: u32,        // elements of a group
    groups: u32,       // of a row
    x_base: u32, z_base: u32, w_base: u32, y_base: u32,
    eps: f32,
}

//!include "common/activation.wgsl"
//!include "common/load_f32_element.wgsl" as x
//!include "common/load_f32_element.wgsl" as z
//!include "common/load_f32_element.wgsl" as w

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> x: array<x_item>;       // [rows, groups, group]
@group(0) @binding(2) var<storage, read> z: array<z_item>;       // [rows, groups, group]
@group(0) @binding(3) var<storage, read> w: array<w_item>;       // [groups, group]
@group(0) @binding(4) var<storage, read_write> y: array<f32>;    // [rows, groups, group]

var<workgroup> tile_sum: array<f32, LANES>;                      // LANES * 4 bytes

fn gate(at: u32) -> f32 {
    let value = z_load1(params.z_base + at);
    if SILU {
        return silu(value);
    }
    return sigmoid(value);
}

fn gated(at: u32) -> f32 {
    var value = x_load1(params.x_base + at);
    if BEFORE {
        value *= gate(at);
    }
    return value;
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    // a group past the last repeats it, and stores nothing
    let row = params.row_base + id.y * params.width + id.x;
    let at = min(row, params.rows - 1u) * params.group;
    var sum = 0.0;
    for (var i = lane; i < params.group; i += LANES) {
        let value = gated(at + i);
        sum = fma(value, value, sum);
    }
    tile_sum[lane] = sum;
    workgroupBarrier();
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        if lane < half {
            tile_sum[lane] += tile_sum[lane + half];
        }
        workgroupBarrier();
    }
    let factor = inverseSqrt(tile_sum[0] / f32(params.group) + params.eps);
    let w_at = params.w_base + row % params.groups * params.group;
    for (var i = lane; i < params.group; i += LANES) {
        var value = gated(at + i) * factor * w_load1(w_at + i);
        if !BEFORE {
            value *= gate(at + i);
        }
        if row < params.rows {
            y[params.y_base + at + i] = value;
        }
    }
}
