// conv_tail: the last taps - 1 inputs of each channel, after all tokens or after each; in place.
//
// Reference: reference::causal_conv1d.   Spec: linear.md, 1 and 9.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
const RAGGED: bool = false;  // table holds starts and lengths
const KEEP: bool = false;    // slot n holds the state after n tokens
// end constants

struct Params {
    tokens: u32,
    channels: u32,
    taps: u32,
    fresh: u32,                  // 1: the state counts as 0
    slot_base: u32,              // first slot of this dispatch
    starts_at: u32, lengths_at: u32,
    x_base: u32, x_sequence: u32, x_token: u32, x_channel: u32,
    state_base: u32, state_slot: u32,
}

//!include "common/sequences.wgsl"
//!include "common/load_f32_element.wgsl" as x

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> x: array<x_item>;         // [batch, tokens, channels]
@group(0) @binding(2) var<storage, read> table: array<u32>;        // starts, lengths
@group(0) @binding(3) var<storage, read_write> state: array<f32>;  // [slots, sequences, channels, taps - 1]

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let c = id.x;
    let slot = params.slot_base + id.y;
    let sequence = id.z;
    let start = sequence_start(sequence);
    var n = sequence_length(sequence, start);
    if KEEP {
        n = min(n, slot);
    }
    if c < params.channels {
        let x_at = params.x_base + sequence * params.x_sequence + c * params.x_channel;
        let held = params.state_base + (sequence * params.channels + c) * (params.taps - 1u);
        let at = held + slot * params.state_slot;
        // entries move to the front, so none is read after it is written
        for (var j = 0u; j + 1u < params.taps; j++) {
            var value = 0.0;
            if n + j + 1u >= params.taps {
                value = x_load1(x_at + (start + n + j + 1u - params.taps) * params.x_token);
            } else if params.fresh == 0u {
                value = state[held + n + j];
            }
            // slot 0 is what the others read: it is written only where it counts as 0, or is the only one
            if !KEEP || slot > 0u || params.fresh == 1u {
                state[at + j] = value;
            }
        }
    }
}
