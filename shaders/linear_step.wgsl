// linear_step: linear attention with decay, a token after another; COLUMNS columns of a head's state in the
// registers of a workgroup.
//
//   S <- exp(g) S + k (w v)^T      o = S^T q + skip v
//   lightning: g = -slope, w = 1.      SSD: g = dt A, w = dt, q = C, k = B, v = x, skip = D.
//
// ROW_SPLIT lanes share a column and join their sums through workgroup memory once a stage of TOKENS tokens.
// Chunks run side by side: first without outputs, from 0, for what each adds to the state and the sum of its g;
// chunk_states turns these into the state before each chunk; then again from there, for the outputs.
// Reference: reference::lightning_attention, reference::ssd.   Spec: linear.md, 4 and 6.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;       // invocations in a workgroup
const ROW_SPLIT: u32 = 1u;    // lanes that share a column
const TOKENS: u32 = 8u;       // staged at a time
const DIM_K: u32 = 64u;       // rows of the state
const DIM_V: u32 = 64u;       // columns
const DT: bool = false;       // decay and weight of each write from dt
const DT_BIAS: bool = false;  // dt is softplus(dt + bias)
const SKIP: bool = false;     // table holds skip
const RAGGED: bool = false;   // table holds starts and lengths
const KEEP: bool = false;     // slot n holds the state after n tokens
const OUTPUT: bool = true;    // o is written; else the sums of g are, in its place
const STORE: bool = true;     // the state is written
// end constants
const QUADS_K: u32 = (DIM_K + 3u) / 4u;
const QUADS: u32 = (QUADS_K + ROW_SPLIT - 1u) / ROW_SPLIT; // groups of four rows to a lane
const ROWS: u32 = QUADS * 4u;
const COLUMNS: u32 = LANES / ROW_SPLIT;
const STAGED: u32 = QUADS * ROW_SPLIT;                     // groups of four of a staged token

struct Params {
    tokens: u32,       // on the token axis
    token_base: u32,   // first token of this dispatch, from a sequence's first
    token_count: u32,  // tokens of a chunk
    chunks: u32,
    fresh: u32,        // 1: states start at 0
    sequences: u32,
    groups: u32,       // heads that share q and k
    slot_base: u32,    // slot of the state before the first token
    starts_at: u32, lengths_at: u32, decay_at: u32, skip_at: u32, dt_bias_at: u32,
    q_base: u32, q_sequence: u32, q_token: u32, q_head: u32,
    k_base: u32, k_sequence: u32, k_token: u32, k_head: u32,
    v_base: u32, v_sequence: u32, v_token: u32, v_head: u32,
    dt_base: u32, dt_sequence: u32, dt_token: u32, dt_head: u32,
    o_base: u32, o_sequence: u32, o_token: u32, o_head: u32,
    state_base: u32, state_slot: u32, state_sequence: u32, state_head: u32, state_row: u32, state_column: u32,
    dt_low: f32, dt_high: f32,
}

//!include "common/sequences.wgsl"
//!include "common/activation.wgsl"
//!include "common/decay.wgsl"
//!include "common/load_f32_element.wgsl" as q
//!include "common/load_f32_element.wgsl" as k
//!include "common/load_f32_element.wgsl" as v

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> q: array<q_item>;         // lightning [batch, heads, tokens, dim]
@group(0) @binding(2) var<storage, read> k: array<k_item>;         // SSD [batch, tokens, groups, dim_k]
@group(0) @binding(3) var<storage, read> v: array<v_item>;         // SSD [batch, tokens, heads, dim_v]
@group(0) @binding(4) var<storage, read> dt: array<f32>;           // [batch, tokens, heads]
@group(0) @binding(5) var<storage, read> table: array<u32>;        // decay, skip, dt_bias, starts, lengths
@group(0) @binding(6) var<storage, read_write> state: array<f32>;  // [slots, sequences, heads, ..]
@group(0) @binding(7) var<storage, read_write> o: array<f32>;      // as v; or [chunks, sequences, heads]

var<workgroup> tile_q: array<vec4<f32>, TOKENS * STAGED>;          // TOKENS * STAGED * 16 bytes
var<workgroup> tile_k: array<vec4<f32>, TOKENS * STAGED>;          // TOKENS * STAGED * 16 bytes
var<workgroup> tile_token: array<vec4<f32>, TOKENS>;               // decay, weight, g
var<workgroup> tile_sum: array<f32, TOKENS * LANES>;               // TOKENS * LANES * 4 bytes

// Decay, weight of the write, and g of a token.
fn token_of(sequence: u32, token: u32, head: u32) -> vec4<f32> {
    var g = -bitcast<f32>(table[params.decay_at + head]);
    var weight = 1.0;
    if DT {
        weight = dt[params.dt_base + sequence * params.dt_sequence + token * params.dt_token + head * params.dt_head];
        if DT_BIAS {
            weight = softplus(weight + bitcast<f32>(table[params.dt_bias_at + head]));
        }
        weight = clamp(weight, params.dt_low, params.dt_high);
        g = -g * weight;
    }
    return vec4<f32>(decay_of(g), weight, g);
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.y;
    let sequence = group.z / params.chunks;
    let chunk = group.z % params.chunks;
    let start = sequence_start(sequence);
    let length = sequence_length(sequence, start);
    let first = min(params.token_base + chunk * params.token_count, length);
    let live = min(params.token_count, length - first);
    let quad0 = lane / COLUMNS * QUADS;
    let column0 = group.x * COLUMNS;
    let column = column0 + lane % COLUMNS;
    let column_in = min(column, DIM_V - 1u);
    let q_at = params.q_base + sequence * params.q_sequence + head / params.groups * params.q_head;
    let k_at = params.k_base + sequence * params.k_sequence + head / params.groups * params.k_head;
    let v_at = params.v_base + sequence * params.v_sequence + head * params.v_head;
    let o_at = params.o_base + sequence * params.o_sequence + head * params.o_head;
    let state_at = params.state_base + (params.slot_base + chunk) * params.state_slot
        + sequence * params.state_sequence + head * params.state_head + column_in * params.state_column;

    // rows and columns past the edge are loaded from inside, count as 0, and are not stored
    var s: array<f32, ROWS>;
    for (var i = 0u; i < ROWS; i++) { //!unroll
        let row = quad0 * 4u + i;
        let held = state[state_at + min(row, DIM_K - 1u) * params.state_row];
        s[i] = select(0.0, held, params.fresh == 0u && row < DIM_K);
    }
    var total = 0.0;
    for (var t0 = 0u; t0 < live; t0 += TOKENS) {
        let n = min(TOKENS, live - t0);
        let token = start + first + t0;
        workgroupBarrier();
        for (var ix = lane; ix < n * STAGED; ix += LANES) {
            let quad = ix % STAGED;
            let d = min(quad, QUADS_K - 1u) * 4u;
            let many = min(4u, DIM_K - d);
            let from_token = token + ix / STAGED;
            if OUTPUT {
                let q_quad = q_load4(q_at + from_token * params.q_token + d, many);
                tile_q[ix] = select(vec4<f32>(), q_quad, quad < QUADS_K);
            }
            let k_quad = k_load4(k_at + from_token * params.k_token + d, many);
            tile_k[ix] = select(vec4<f32>(), k_quad, quad < QUADS_K);
        }
        if lane < n {
            tile_token[lane] = token_of(sequence, token + lane, head);
        }
        workgroupBarrier();
        for (var t = 0u; t < n; t++) {
            if KEEP {
                let at = state_at + (t0 + t) * params.state_slot;
                for (var i = 0u; i < ROWS; i++) { //!unroll
                    if column < DIM_V && quad0 * 4u + i < DIM_K {
                        state[at + (quad0 * 4u + i) * params.state_row] = s[i];
                    }
                }
            }
            let about = tile_token[t];
            let value = about.z * v_load1(v_at + (token + t) * params.v_token + column_in);
            total += about.w;
            var sum = 0.0;
            for (var i = 0u; i < QUADS; i++) { //!unroll
                let kq = tile_k[t * STAGED + quad0 + i];
                var qq = vec4<f32>();
                if OUTPUT {
                    qq = tile_q[t * STAGED + quad0 + i];
                }
                for (var e = 0u; e < 4u; e++) { //!unroll
                    let old = s[i * 4u + e];
                    let next = fma(kq[e], value, fma(old, about.x, old * about.y));
                    s[i * 4u + e] = next;
                    if OUTPUT {
                        sum = fma(qq[e], next, sum);
                    }
                }
            }
            tile_sum[t * LANES + lane] = sum;
        }
        workgroupBarrier();
        if OUTPUT {
            for (var ix = lane; ix < n * COLUMNS; ix += LANES) {
                let t = ix / COLUMNS;
                let beside = ix % COLUMNS;
                var sum = 0.0;
                for (var part = 0u; part < ROW_SPLIT; part++) { //!unroll
                    sum += tile_sum[t * LANES + part * COLUMNS + beside];
                }
                if column0 + beside < DIM_V {
                    if SKIP {
                        let x = v_load1(v_at + (token + t) * params.v_token + column0 + beside);
                        sum = fma(bitcast<f32>(table[params.skip_at + head]), x, sum);
                    }
                    o[o_at + (token + t) * params.o_token + column0 + beside] = sum;
                }
            }
        }
    }
    if STORE {
        // past a sequence's end every slot holds its last state
        let slots = select(1u, params.token_count + 1u - live, KEEP);
        for (var extra = 0u; extra < slots; extra++) {
            let at = state_at + select(0u, live + extra, KEEP) * params.state_slot;
            for (var i = 0u; i < ROWS; i++) { //!unroll
                if column < DIM_V && quad0 * 4u + i < DIM_K {
                    state[at + (quad0 * 4u + i) * params.state_row] = s[i];
                }
            }
        }
    }
    if !OUTPUT && group.x == 0u && lane == 0u {
        o[params.o_base + (chunk * params.sequences + sequence) * params.o_head + head] = total;
    }
}
