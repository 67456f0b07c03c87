// chunk_states: what each chunk adds to a state, to the state before each chunk; an element an invocation.
//
//   before_c = S      S <- exp(g_c) S + added_c
//
// Reference: reference::lightning_attention, reference::ssd, reference::selective_scan.   Spec: linear.md, 4 to 6.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
const RATES: bool = false;  // g is the chunk's sum of dt, times the element's own rate
// end constants

struct Params {
    elements: u32,       // of all sequences' states
    chunks: u32,
    fresh: u32,          // 1: states start at 0
    width: u32,          // invocations in a row of the grid
    per_sum: u32,        // elements that share a sum
    rates_count: u32,    // elements of rates: those of one sequence's state
    sums: u32,           // of one chunk
    state_base: u32, chunk_base: u32, sums_base: u32, rates_base: u32,
}

//!include "common/activation.wgsl"
//!include "common/decay.wgsl"

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> sums: array<f32>;              // [chunks, sums]
@group(0) @binding(2) var<storage, read> rates: array<f32>;             // [channels, dim]
@group(0) @binding(3) var<storage, read_write> chunk_state: array<f32>; // [chunks, elements]
@group(0) @binding(4) var<storage, read_write> state: array<f32>;       // [elements]

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let ix = id.y * params.width + id.x;
    if id.x < params.width && ix < params.elements {
        var s = 0.0;
        if params.fresh == 0u {
            s = state[params.state_base + ix];
        }
        var rate = 1.0;
        if RATES {
            rate = rates[params.rates_base + ix % params.rates_count];
        }
        for (var c = 0u; c < params.chunks; c++) {
            let at = params.chunk_base + c * params.elements + ix;
            let added = chunk_state[at];
            chunk_state[at] = s;
            let decay = decay_of(rate * sums[params.sums_base + c * params.sums + ix / params.per_sum]);
            s = added + fma(s, decay.x, s * decay.y);
        }
        state[params.state_base + ix] = s;
    }
}
