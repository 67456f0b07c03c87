// delta_chunk_gather: the tokens of one chunk of one head, in f32, with gates applied and padded to whole chunks.
//
// A lane takes a channel, and walks over the chunk's tokens forth and back for the products of decays.  Tokens
// past a sequence's end get k = v = q = 0, beta = 0 and decay 1: they leave the state alone.
// Reference: reference::delta.   Spec: linear.md, 2 and 3.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;           // invocations in a workgroup
const DIM_K: u32 = 64u;
const DIM_V: u32 = 64u;
const DECAY: bool = true;
const CHANNELS: bool = false;     // one decay a row of the state, not a head
const GATE_LOGITS: bool = false;  // decays from a_log and dt_bias
const BETA_LOGITS: bool = false;  // strengths from logits
const L2NORM: bool = false;
const RAGGED: bool = false;       // table holds starts and lengths
// end constants

//!include "common/delta.wgsl"
//!include "common/delta_chunk.wgsl"
//!include "common/load_f32_element.wgsl" as q
//!include "common/load_f32_element.wgsl" as k
//!include "common/load_f32_element.wgsl" as v
//!include "common/load_f32_element.wgsl" as g

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> q: array<q_item>;          // [batch, tokens, heads_k, dim_k]
@group(0) @binding(2) var<storage, read> k: array<k_item>;          // [batch, tokens, heads_k, dim_k]
@group(0) @binding(3) var<storage, read> v: array<v_item>;          // [batch, tokens, heads, dim_v]
@group(0) @binding(4) var<storage, read> g: array<g_item>;          // [batch, tokens, heads] or [.., dim_k]
@group(0) @binding(5) var<storage, read> table: array<u32>;         // beta, starts, lengths, a_log, dt_bias
@group(0) @binding(6) var<storage, read_write> scratch: array<f32>; // [sequences, heads, chunks, stride]

var<workgroup> tile_token: array<vec4<f32>, CHUNK>;                 // factors of q and k, beta, decay: 1 KiB

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let chunk = group.x;
    let head = group.y;
    let sequence = params.sequence_base + group.z;
    let start = sequence_start(sequence);
    let live = live_tokens(sequence_length(sequence, start));
    let token0 = start + params.token_base + chunk * CHUNK;
    let n = min(max(live, chunk * CHUNK) - chunk * CHUNK, CHUNK);
    let at = chunk_at(group.z, head, chunk);
    let q_at = params.q_base + sequence * params.q_batch + key_head(head) * params.q_head;
    let k_at = params.k_base + sequence * params.k_batch + key_head(head) * params.k_head;
    let v_at = params.v_base + sequence * params.v_batch + head * params.v_head;
    let g_at = params.g_base + sequence * params.g_batch + head * params.g_head;

    for (var i = lane; i < CHUNK; i += LANES) {
        var about = vec4<f32>(0.0, 0.0, 0.0, 1.0);
        if i < n {
            let token = token0 + i;
            about = vec4<f32>(params.scale, 1.0, beta_of(sequence, token, head), 1.0);
            if L2NORM {
                var sums = vec2<f32>();
                for (var d = 0u; d < DIM_K; d++) {
                    let qx = q_load1(q_at + token * params.q_token + d);
                    let kx = k_load1(k_at + token * params.k_token + d);
                    sums += vec2<f32>(qx * qx, kx * kx);
                }
                sums = inverseSqrt(sums + params.eps);
                about.x *= sums.x;
                about.y = sums.y;
            }
            if DECAY && !CHANNELS {
                about.w = decay_of(g_load1(g_at + token * params.g_token), head, head);
            }
        }
        tile_token[i] = about;
        scratch[at + BETA_AT + i] = about.z;
        if !CHANNELS {
            scratch[at + D_AT + i] = about.w;
        }
    }
    workgroupBarrier();
    for (var c = lane; c < WIDTH; c += LANES) {
        var product = 1.0;
        for (var i = 0u; i < CHUNK; i++) {
            let about = tile_token[i];
            var qx = 0.0;
            var kx = 0.0;
            var decay = about.w;
            if i < n && c < DIM_K {
                let token = token0 + i;
                qx = about.x * q_load1(q_at + token * params.q_token + c);
                kx = about.y * k_load1(k_at + token * params.k_token + c);
                if DECAY && CHANNELS {
                    decay = decay_of(g_load1(g_at + token * params.g_token + c), head, head * DIM_K + c);
                }
            }
            product *= decay;
            scratch[at + Q_AT + i * WIDTH + c] = qx;
            scratch[at + K_AT + i * WIDTH + c] = kx;
            if CHANNELS {
                scratch[at + D_AT + i * GATES + c] = decay;
            }
            scratch[at + QG_AT + c * CHUNK + i] = product * qx;
            scratch[at + X_AT + i * COLUMNS_X + DIM_V + c] = about.z * product * kx;
        }
        scratch[at + TOTAL_AT + c] = product;
        var after = 1.0;
        for (var back = 0u; back < CHUNK; back++) {
            let i = CHUNK - 1u - back;
            // what this lane has written
            scratch[at + KT_AT + i * WIDTH + c] = after * scratch[at + K_AT + i * WIDTH + c];
            if CHANNELS {
                after *= scratch[at + D_AT + i * GATES + c];
            } else {
                after *= tile_token[i].w;
            }
        }
    }
    for (var c = lane; c < DIM_V; c += LANES) {
        for (var i = 0u; i < CHUNK; i++) {
            var value = 0.0;
            if i < n {
                value = tile_token[i].z * v_load1(v_at + (token0 + i) * params.v_token + c);
            }
            scratch[at + X_AT + i * COLUMNS_X + c] = value;
        }
    }
}
