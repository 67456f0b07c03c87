// Two values to the word of two bf16 elements.  x is the tensor's name.

// Round to nearest, ties to even.
fn x_round(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

fn x_pack2(value: vec2<f32>) -> u32 {
    return x_round(value.x) | (x_round(value.y) << 16u);
}
