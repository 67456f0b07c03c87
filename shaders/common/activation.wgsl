// Sigmoid, SiLU and softplus that neither overflow nor lose small values: exponents are never above 0.

const LOG2E: f32 = 1.4426950408889634;

fn sigmoid(x: f32) -> f32 {
    let e = exp2(max(-abs(x) * LOG2E, -126.0));
    return select(e, 1.0, x >= 0.0) / (1.0 + e);
}

fn silu(x: f32) -> f32 {
    return x * sigmoid(x);
}

// max(x, 0) + ln(1 + e) with e = exp(-|x|), as 2 artanh(e / (2 + e)): the built-in logarithm is only
// absolutely accurate near 1.
fn softplus(x: f32) -> f32 {
    let e = exp2(max(-abs(x) * LOG2E, -126.0));
    let s = e / (2.0 + e);
    let s2 = s * s;
    let series = 1.0 + s2 * (1.0 / 3.0 + s2 * (0.2 + s2 * (1.0 / 7.0 + s2 * (1.0 / 9.0
        + s2 * (1.0 / 11.0 + s2 * (1.0 / 13.0))))));
    return max(x, 0.0) + 2.0 * s * series;
}
