// What the delta rule's kernels share: parameters, sequences, heads, gates.  Spec: linear.md, 2 and 3.

struct Params {
    tokens: u32,        // on the token axis
    token_base: u32,    // first token of this dispatch, from each sequence's start
    token_count: u32,   // of them, at most
    sequence_base: u32, // first sequence of this dispatch
    fresh: u32,         // 1: states start at 0
    heads: u32,         // value heads
    heads_k: u32,
    groups: u32,        // value heads to a key head
    tiled: u32,         // 1: value heads h, h + heads_k, ... share a key head
    q_base: u32, q_batch: u32, q_token: u32, q_head: u32,
    k_base: u32, k_batch: u32, k_token: u32, k_head: u32,
    v_base: u32, v_batch: u32, v_token: u32, v_head: u32,
    g_base: u32, g_batch: u32, g_token: u32, g_head: u32,
    o_base: u32, o_batch: u32, o_token: u32, o_head: u32,
    state_base: u32,
    state_slot: u32,    // elements between kept states; 0 where only the last is
    beta_at: u32, beta_batch: u32,
    starts_at: u32, lengths_at: u32, a_log_at: u32, dt_bias_at: u32,
    scale: f32,
    eps: f32,           // of the l2 norm
    beta_factor: f32,   // of beta's sigmoid
    rows: u32,          // lanes that share a column, where a loop needs it
    stride: u32,        // elements of scratch between chunks
}

const LOG2E: f32 = 1.4426950408889634;

// exp(x) of x <= 0, however far below.
fn exp_gate(x: f32) -> f32 {
    return exp2(max(x, -200.0) * LOG2E);
}

fn sequence_start(n: u32) -> u32 {
    if !RAGGED {
        return 0u;
    }
    return u32(clamp(bitcast<i32>(table[params.starts_at + n]), 0, i32(params.tokens)));
}

fn sequence_length(n: u32, start: u32) -> u32 {
    if !RAGGED {
        return params.tokens;
    }
    return u32(clamp(bitcast<i32>(table[params.lengths_at + n]), 0, i32(params.tokens - start)));
}

// Tokens of this dispatch that a sequence has.
fn live_tokens(length: u32) -> u32 {
    return min(max(length, params.token_base) - params.token_base, params.token_count);
}

fn key_head(head: u32) -> u32 {
    return select(head / params.groups, head % params.heads_k, params.tiled == 1u);
}

// Strength of the write of value head `head` at token `at` of batch entry `b`.
fn beta_of(b: u32, at: u32, head: u32) -> f32 {
    let raw = bitcast<f32>(table[params.beta_at + b * params.beta_batch + at * params.heads + head]);
    if !BETA_LOGITS {
        return raw;
    }
    let e = exp_gate(-abs(raw));
    return params.beta_factor * select(e, 1.0, raw >= 0.0) / (1.0 + e);
}

// Decay from a gate: exp(g), or exp(-exp(a_log) softplus(g + dt_bias)).
fn decay_of(g: f32, head: u32, channel: u32) -> f32 {
    if !GATE_LOGITS {
        return exp_gate(g);
    }
    let x = g + bitcast<f32>(table[params.dt_bias_at + channel]);
    let softplus = max(x, 0.0) + log(1.0 + exp_gate(-abs(x)));
    return exp_gate(-exp(bitcast<f32>(table[params.a_log_at + head])) * softplus);
}
