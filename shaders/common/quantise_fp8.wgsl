// A row of values to fp8 (e4m3: 4 bits of exponent, 3 of fraction) with one scale that makes the largest 448;
// returns the scale's bits.  x is the tensor's name.

// To the nearest, ties to even.
fn x_e4m3(value: f32) -> i32 {
    let size = min(abs(value), 448.0);
    let bits = bitcast<u32>(size);
    // below 2^-6 the steps are 2^-9; 8 of them are the code of 2^-6
    let small = u32(round(size * 512.0));
    let large = ((bits + 0x7ffffu + ((bits >> 20u) & 1u)) >> 20u) - 960u;
    let code = select(large, small, size < 0.015625);
    return i32(code | select(0u, 0x80u, value < 0.0));
}

fn x_quantise(row: u32, at: u32, count: u32) -> u32 {
    let quads = params.quads;
    let scale = largest(at, count) / 448.0;
    let id = reciprocal(scale);
    for (var i = 0u; i < quads; i++) {
        let value = quad_of(at, i, count) * id;
        x[row * quads + i] =
            bytes_of(vec4<i32>(x_e4m3(value.x), x_e4m3(value.y), x_e4m3(value.z), x_e4m3(value.w)));
    }
    return bitcast<u32>(scale);
}
