// What the delta rule's kernels share: sequences, heads, gates.  Spec: linear.md, 2 and 3.

//!include "common/delta_params.wgsl"

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
