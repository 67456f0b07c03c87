// Two values to the word of two half floats.  x is the tensor's name.

// Values beyond the largest half float become it: overflow in pack2x16float differs between drivers.
fn x_pack2(value: vec2<f32>) -> u32 {
    return pack2x16float(clamp(value, vec2<f32>(-65504.0), vec2<f32>(65504.0)));
}
