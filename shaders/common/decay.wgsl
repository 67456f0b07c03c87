// Decay of a state by exp(g), g <= 0, as (a, b) of  s <- s a + s b:  b is 0 or 1.  Near 1 the difference to 1 is
// kept instead of the factor: a factor's rounding would add up in one direction over many tokens.

fn decay_of(g: f32) -> vec2<f32> {
    let series = g * (1.0 + g * (0.5 + g * (1.0 / 6.0 + g * (1.0 / 24.0 + g * (1.0 / 120.0
        + g * (1.0 / 720.0))))));
    let far = select(exp2(max(g * LOG2E, -126.0)), 0.0, g < -87.0);
    return select(vec2<f32>(far, 0.0), vec2<f32>(series, 1.0), g > -0.25);
}
