// selective_scan: a state-space layer with a decay for each channel and row, a token after another; a lane holds
// one channel's state in registers.
//
//   h_n <- exp(dt A_n) h_n + dt B_n x      y = sum_n C_n h_n + skip x
//
// Chunks run side by side: first without outputs, from 0, for what each adds to the state and the sum of its dt;
// chunk_states turns these into the state before each chunk; then again from there, for the outputs.
// Reference: reference::selective_scan.   Spec: linear.md, 5.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
const TOKENS: u32 = 16u;      // staged at a time
const DIM: u32 = 16u;         // of a channel's state
const DT_BIAS: bool = false;  // dt is softplus(dt + bias)
const RAGGED: bool = false;   // table holds starts and lengths
const KEEP: bool = false;     // slot n holds the state after n tokens
const OUTPUT: bool = true;    // y is written; else the sums of dt are, in its place
const STORE: bool = true;     // the state is written
// end constants
const QUADS: u32 = (DIM + 3u) / 4u;
const ROWS: u32 = QUADS * 4u;

struct Params {
    tokens: u32,       // on the token axis
    token_base: u32,   // first token of this dispatch, from a sequence's first
    token_count: u32,  // tokens of a chunk
    chunks: u32,
    fresh: u32,        // 1: states start at 0
    sequences: u32,
    channels: u32,
    slot_base: u32,    // slot of the state before the first token
    starts_at: u32, lengths_at: u32, a_at: u32, skip_at: u32, dt_bias_at: u32,
    x_base: u32, x_sequence: u32, x_token: u32, x_channel: u32,
    dt_base: u32, dt_sequence: u32, dt_token: u32, dt_channel: u32,
    b_base: u32, b_sequence: u32, b_token: u32,
    c_base: u32, c_sequence: u32, c_token: u32,
    y_base: u32, y_sequence: u32, y_token: u32,
    state_base: u32, state_slot: u32,
}

//!include "common/sequences.wgsl"
//!include "common/activation.wgsl"
//!include "common/decay.wgsl"
//!include "common/load_f32_element.wgsl" as x
//!include "common/load_f32_element.wgsl" as b
//!include "common/load_f32_element.wgsl" as c

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> x: array<x_item>;         // [batch, tokens, channels]
@group(0) @binding(2) var<storage, read> dt: array<f32>;           // [batch, tokens, channels]
@group(0) @binding(3) var<storage, read> b: array<b_item>;         // [batch, tokens, dim]
@group(0) @binding(4) var<storage, read> c: array<c_item>;         // [batch, tokens, dim]
@group(0) @binding(5) var<storage, read> table: array<u32>;        // a, skip, dt_bias, starts, lengths
@group(0) @binding(6) var<storage, read_write> state: array<f32>;  // [slots, sequences, channels, dim]
@group(0) @binding(7) var<storage, read_write> y: array<f32>;      // as x; or [chunks, sequences, channels]

var<workgroup> tile_b: array<vec4<f32>, TOKENS * QUADS>;           // TOKENS * QUADS * 16 bytes
var<workgroup> tile_c: array<vec4<f32>, TOKENS * QUADS>;           // TOKENS * QUADS * 16 bytes

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let sequence = group.z / params.chunks;
    let chunk = group.z % params.chunks;
    let start = sequence_start(sequence);
    let length = sequence_length(sequence, start);
    let first = min(params.token_base + chunk * params.token_count, length);
    let live = min(params.token_count, length - first);
    let channel = group.x * LANES + lane;
    let inside = channel < params.channels;
    let ch = min(channel, params.channels - 1u);
    let x_at = params.x_base + sequence * params.x_sequence + ch * params.x_channel;
    let dt_at = params.dt_base + sequence * params.dt_sequence + ch * params.dt_channel;
    let y_at = params.y_base + sequence * params.y_sequence + ch;
    let state_at = params.state_base + (params.slot_base + chunk) * params.state_slot
        + (sequence * params.channels + ch) * DIM;
    let skip = bitcast<f32>(table[params.skip_at + ch]);

    // rows past the edge are loaded from inside, count as 0, and are not stored
    var h: array<f32, ROWS>;
    var a: array<f32, ROWS>;
    for (var i = 0u; i < ROWS; i++) { //!unroll
        let row = min(i, DIM - 1u);
        h[i] = select(0.0, state[state_at + row], params.fresh == 0u && i < DIM);
        a[i] = bitcast<f32>(table[params.a_at + ch * DIM + row]);
    }
    var total = 0.0;
    for (var t0 = 0u; t0 < live; t0 += TOKENS) {
        let n = min(TOKENS, live - t0);
        let token = start + first + t0;
        workgroupBarrier();
        for (var ix = lane; ix < n * QUADS; ix += LANES) {
            let d = ix % QUADS * 4u;
            let many = min(4u, DIM - d);
            let from_token = token + ix / QUADS;
            tile_b[ix] = b_load4(params.b_base + sequence * params.b_sequence + from_token * params.b_token + d, many);
            if OUTPUT {
                tile_c[ix] =
                    c_load4(params.c_base + sequence * params.c_sequence + from_token * params.c_token + d, many);
            }
        }
        workgroupBarrier();
        for (var t = 0u; t < n; t++) {
            if KEEP {
                let at = state_at + (t0 + t) * params.state_slot;
                for (var i = 0u; i < DIM; i++) { //!unroll
                    if inside {
                        state[at + i] = h[i];
                    }
                }
            }
            let value = x_load1(x_at + (token + t) * params.x_token);
            var step = dt[dt_at + (token + t) * params.dt_token];
            if DT_BIAS {
                step = softplus(step + bitcast<f32>(table[params.dt_bias_at + ch]));
            }
            total += step;
            let amount = step * value;
            var sum = skip * value;
            for (var i = 0u; i < QUADS; i++) { //!unroll
                let bq = tile_b[t * QUADS + i];
                var cq = vec4<f32>();
                if OUTPUT {
                    cq = tile_c[t * QUADS + i];
                }
                for (var e = 0u; e < 4u; e++) { //!unroll
                    let decay = decay_of(step * a[i * 4u + e]);
                    let old = h[i * 4u + e];
                    let next = fma(bq[e], amount, fma(old, decay.x, old * decay.y));
                    h[i * 4u + e] = next;
                    if OUTPUT {
                        sum = fma(cq[e], next, sum);
                    }
                }
            }
            if OUTPUT && inside {
                y[y_at + (token + t) * params.y_token] = sum;
            }
        }
    }
    if STORE && inside {
        // past a sequence's end every slot holds its last state
        let slots = select(1u, params.token_count + 1u - live, KEEP);
        for (var extra = 0u; extra < slots; extra++) {
            let at = state_at + select(0u, live + extra, KEEP) * params.state_slot;
            for (var i = 0u; i < DIM; i++) { //!unroll
                state[at + i] = h[i];
            }
        }
    }
    if !OUTPUT && inside {
        y[params.y_base + (chunk * params.sequences + sequence) * params.channels + ch] = total;
    }
}
