// delta_step: a token after another, COLUMNS columns of a head's state in the registers of a workgroup.
//
//   S <- diag(decay) S      u = beta (v - S^T k)      S <- S + k u^T      o = scale S^T q
//
// ROW_SPLIT lanes share a column and join their sums through workgroup memory, with one barrier a token: sums
// alternate between two tiles, and a token's output is joined after the next token's barrier.
// Reference: reference::delta.   Spec: linear.md, 2 and 3.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;           // invocations in a workgroup
const ROW_SPLIT: u32 = 2u;        // lanes that share a column
const TOKENS: u32 = 4u;           // staged at a time
const DIM_K: u32 = 64u;
const DIM_V: u32 = 64u;
const DECAY: bool = true;
const CHANNELS: bool = false;     // one decay a row of the state, not a head
const GATE_LOGITS: bool = false;  // decays from a_log and dt_bias
const BETA_LOGITS: bool = false;  // strengths from logits
const L2NORM: bool = false;
const RAGGED: bool = false;       // table holds starts and lengths
const KEEP: bool = false;         // the state after each token is kept
const DECAY_QUADS: u32 = 1u;      // of tile_decay
// end constants
const QUADS_K: u32 = (DIM_K + 3u) / 4u;
const QUADS: u32 = (QUADS_K + ROW_SPLIT - 1u) / ROW_SPLIT; // groups of four rows to a lane
const ROWS: u32 = QUADS * 4u;
const COLUMNS: u32 = LANES / ROW_SPLIT;
const STAGED: u32 = QUADS * ROW_SPLIT;                     // groups of four of a staged token

//!include "common/delta.wgsl"
//!include "common/load_f32.wgsl" as q
//!include "common/load_f32.wgsl" as k
//!include "common/load_f32_element.wgsl" as v
//!include "common/load_f32_element.wgsl" as g

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> q: array<q_item>;         // [batch, tokens, heads_k, dim_k]
@group(0) @binding(2) var<storage, read> k: array<k_item>;         // [batch, tokens, heads_k, dim_k]
@group(0) @binding(3) var<storage, read> v: array<v_item>;         // [batch, tokens, heads, dim_v]
@group(0) @binding(4) var<storage, read> g: array<g_item>;         // [batch, tokens, heads] or [.., dim_k]
@group(0) @binding(5) var<storage, read> table: array<u32>;        // beta, starts, lengths, a_log, dt_bias
@group(0) @binding(6) var<storage, read_write> state: array<f32>;  // [slots, sequences, heads, dim_k, dim_v]
@group(0) @binding(7) var<storage, read_write> o: array<f32>;      // [batch, tokens, heads, dim_v]

var<workgroup> tile_k: array<vec4<f32>, TOKENS * STAGED>;           // TOKENS * STAGED * 16 bytes
var<workgroup> tile_q: array<vec4<f32>, TOKENS * STAGED>;           // TOKENS * STAGED * 16 bytes
var<workgroup> tile_decay: array<vec4<f32>, DECAY_QUADS>;           // DECAY_QUADS * 16 bytes
var<workgroup> tile_token: array<vec4<f32>, TOKENS>;                // factors of k and q, beta, decay
var<workgroup> tile_sum: array<f32, 2u * LANES>;                    // LANES * 8 bytes
var<workgroup> tile_read: array<f32, 2u * LANES>;                   // LANES * 8 bytes

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.y;
    let sequence = params.sequence_base + group.z;
    let start = sequence_start(sequence);
    let live = live_tokens(sequence_length(sequence, start));
    let row_part = lane / COLUMNS;
    let quad0 = row_part * QUADS;
    let beside = lane % COLUMNS;
    let column = group.x * COLUMNS + beside;
    let column_in = min(column, DIM_V - 1u);
    let q_at = params.q_base + sequence * params.q_batch + key_head(head) * params.q_head;
    let k_at = params.k_base + sequence * params.k_batch + key_head(head) * params.k_head;
    let v_at = params.v_base + sequence * params.v_batch + head * params.v_head;
    let g_at = params.g_base + sequence * params.g_batch + head * params.g_head;
    let o_at = params.o_base + sequence * params.o_batch + head * params.o_head + column;
    let state_at = params.state_base + params.token_base * params.state_slot
        + (sequence * params.heads + head) * DIM_K * DIM_V;

    // rows and columns past the edge are loaded from inside, count as 0, and are not stored
    var s: array<f32, ROWS>;
    for (var i = 0u; i < ROWS; i++) { //!unroll
        let row = quad0 * 4u + i;
        let held = state[state_at + min(row, DIM_K - 1u) * DIM_V + column_in];
        s[i] = select(0.0, held, params.fresh == 0u && row < DIM_K && column < DIM_V);
    }
    // one stage, or one a token where each state is kept
    var t = 0u;
    for (var stage = 0u; stage < params.stages; stage++) {
        let until = select(live, min(stage, live), KEEP);
        for (; t < until; t++) {
            let token = start + params.token_base + t;
            let slot = t % TOKENS;
            if slot == 0u {
                let n = min(TOKENS, live - t);
                workgroupBarrier();
                for (var ix = lane; ix < n * STAGED; ix += LANES) {
                    let quad = ix % STAGED;
                    let d = min(quad, QUADS_K - 1u) * 4u;
                    let many = min(4u, DIM_K - d);
                    let from_token = token + ix / STAGED;
                    tile_k[ix] = select(vec4<f32>(), k_load4(k_at + from_token * params.k_token + d, many), quad < QUADS_K);
                    tile_q[ix] = select(vec4<f32>(), q_load4(q_at + from_token * params.q_token + d, many), quad < QUADS_K);
                    if DECAY && CHANNELS {
                        let gates = g_load4(g_at + from_token * params.g_token + d, many);
                        var decay = vec4<f32>();
                        for (var e = 0u; e < 4u; e++) { //!unroll
                            decay[e] = decay_of(gates[e], head, head * DIM_K + min(d + e, DIM_K - 1u));
                        }
                        tile_decay[ix] = decay;
                    }
                }
                workgroupBarrier();
                for (var j = lane; j < n; j += LANES) {
                    var factors = vec2<f32>(1.0, 1.0);
                    if L2NORM {
                        var sums = vec2<f32>();
                        for (var i = 0u; i < STAGED; i++) {
                            let kq = tile_k[j * STAGED + i];
                            let qq = tile_q[j * STAGED + i];
                            sums += vec2<f32>(dot(kq, kq), dot(qq, qq));
                        }
                        factors = inverseSqrt(sums + params.eps);
                    }
                    var decay = 1.0;
                    if DECAY && !CHANNELS {
                        decay = decay_of(g_load1(g_at + (token + j) * params.g_token), head, head);
                    }
                    tile_token[j] =
                        vec4<f32>(factors.x, factors.y * params.scale, beta_of(sequence, token + j, head), decay);
                }
                workgroupBarrier();
            }
            let about = tile_token[slot];
            let side = (t % 2u) * LANES;
            var sum = 0.0;
            for (var i = 0u; i < QUADS; i++) { //!unroll
                var decay = vec4<f32>(about.w);
                if DECAY && CHANNELS {
                    decay = tile_decay[slot * STAGED + quad0 + i];
                }
                let kq = tile_k[slot * STAGED + quad0 + i];
                for (var e = 0u; e < 4u; e++) { //!unroll
                    if DECAY {
                        s[i * 4u + e] *= decay[e];
                    }
                    sum = fma(s[i * 4u + e], kq[e], sum);
                }
            }
            tile_sum[side + lane] = sum;
            workgroupBarrier();
            var predicted = 0.0;
            var read = 0.0;
            for (var p = 0u; p < params.rows; p++) {
                predicted += tile_sum[side + p * COLUMNS + beside];
                read += tile_read[LANES - side + p * COLUMNS + beside];
            }
            if t > 0u && row_part == 0u && column < DIM_V {
                o[o_at + (token - 1u) * params.o_token] = read;
            }
            let value = v_load1(v_at + token * params.v_token + column_in);
            let u = about.x * about.z * (value - about.x * predicted);
            var sum_q = 0.0;
            for (var i = 0u; i < QUADS; i++) { //!unroll
                let kq = tile_k[slot * STAGED + quad0 + i];
                let qq = tile_q[slot * STAGED + quad0 + i];
                for (var e = 0u; e < 4u; e++) { //!unroll
                    s[i * 4u + e] = fma(kq[e], u, s[i * 4u + e]);
                    sum_q = fma(s[i * 4u + e], qq[e], sum_q);
                }
            }
            tile_read[side + lane] = sum_q * about.y;
        }
        let at = state_at + stage * params.state_slot + quad0 * 4u * DIM_V + column;
        for (var i = 0u; i < ROWS; i++) { //!unroll
            if column < DIM_V && quad0 * 4u + i < DIM_K {
                state[at + i * DIM_V] = s[i];
            }
        }
    }
    workgroupBarrier();
    let side = ((live + 1u) % 2u) * LANES;
    var read = 0.0;
    for (var p = 0u; p < params.rows; p++) {
        read += tile_read[side + p * COLUMNS + beside];
    }
    if live > 0u && row_part == 0u && column < DIM_V {
        o[o_at + (start + params.token_base + live - 1u) * params.o_token] = read;
    }
}
