// causal_conv1d: a short depthwise convolution over the tokens of a sequence, an output an invocation.
//
//   y_t = act(bias + sum_j w_j x_{t - (taps - 1) + j}),   tokens before the first come from the state
//
// Reference: reference::causal_conv1d.   Spec: linear.md, 1.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
const RAGGED: bool = false;  // table holds starts and lengths
const BIAS: bool = false;
const SILU: bool = true;
// end constants

struct Params {
    tokens: u32,
    channels: u32,
    taps: u32,
    fresh: u32,                  // 1: the state counts as 0
    item_base: u32,              // first token and channel of this dispatch
    width: u32,                  // of them in a row of the grid
    starts_at: u32, lengths_at: u32,
    x_base: u32, x_sequence: u32, x_token: u32, x_channel: u32,
    w_base: u32, w_channel: u32, w_tap: u32,
    bias_base: u32, bias_channel: u32,
    state_base: u32,
    y_base: u32, y_sequence: u32,
}

//!include "common/sequences.wgsl"
//!include "common/activation.wgsl"
//!include "common/load_f32_element.wgsl" as x
//!include "common/load_f32_element.wgsl" as w
//!include "common/load_f32_element.wgsl" as bias

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> x: array<x_item>;       // [batch, tokens, channels]
@group(0) @binding(2) var<storage, read> w: array<w_item>;       // [channels, taps]
@group(0) @binding(3) var<storage, read> bias: array<bias_item>; // [channels]
@group(0) @binding(4) var<storage, read> table: array<u32>;      // starts, lengths
@group(0) @binding(5) var<storage, read> state: array<f32>;      // [sequences, channels, taps - 1]
@group(0) @binding(6) var<storage, read_write> y: array<f32>;    // [batch, tokens, channels]

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let item = params.item_base + id.y * params.width + id.x;
    let sequence = id.z;
    let t = item / params.channels;
    let c = item % params.channels;
    let start = sequence_start(sequence);
    if id.x < params.width && t < sequence_length(sequence, start) {
        let x_at = params.x_base + sequence * params.x_sequence + c * params.x_channel;
        let state_at = params.state_base + (sequence * params.channels + c) * (params.taps - 1u);
        var sum = 0.0;
        if BIAS {
            sum = bias_load1(params.bias_base + c * params.bias_channel);
        }
        for (var j = 0u; j < params.taps; j++) {
            let back = params.taps - 1u - j;
            var value = 0.0;
            if t >= back {
                value = x_load1(x_at + (start + t - back) * params.x_token);
            } else if params.fresh == 0u {
                value = state[state_at + t + j];
            }
            sum = fma(w_load1(params.w_base + c * params.w_channel + j * params.w_tap), value, sum);
        }
        if SILU {
            sum = silu(sum);
        }
        y[params.y_base + sequence * params.y_sequence + (start + t) * params.channels + c] = sum;
    }
}
