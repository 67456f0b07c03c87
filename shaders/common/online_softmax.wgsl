// The running maximum, sum and numerator of a softmax, in base 2.  Spec: softmax-attention.md, 4.
//
// WGSL promises nothing about infinities, so a hidden score is NEG and a running maximum starts at M_START,
// far above it: exp2(NEG - m) is exactly 0 whatever m is, and l == 0 means "saw no key".

const NEG: f32 = -1e30;
const M_START: f32 = -1e29;
const LOG2E: f32 = 1.4426950408889634;
const LN2: f32 = 0.6931471805599453;
const MINUS_INFINITY: u32 = 0xff800000u;

// tanh that neither overflows (the built-in does, beyond 44 on some drivers) nor cancels near 0.
fn tanh_safe(x: f32) -> f32 {
    let x2 = x * x;
    let near_zero = x * (1.0 + x2 * (-0.33333334 + x2 * (0.13333334 + x2 * -0.053968254)));
    let far = 1.0 - 2.0 / (exp2(2.0 * LOG2E * clamp(x, -15.0, 15.0)) + 1.0);
    return select(far, near_zero, x2 < 0.04);
}

// Log-sum-exp of a sum l of exp(s - top), all natural, as bits: minus infinity for a row that saw no key.
fn lse_bits(top: f32, l: f32) -> u32 {
    return select(bitcast<u32>(top + LN2 * log2(max(l, 1e-37))), MINUS_INFINITY, l == 0.0);
}

// exp(x) of x <= 0, however far below.
fn exp_down(x: f32) -> f32 {
    return exp2(max(x, -200.0) * LOG2E);
}
