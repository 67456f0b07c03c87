// A row of values to bytes with one scale, to the nearest and ties to even; returns the scale's bits.
// x is the tensor's name.

fn x_quantise(row: u32, at: u32, count: u32) -> u32 {
    let quads = params.quads;
    let scale = max(largest(at, count) / 127.0, 1e-6);
    for (var i = 0u; i < quads; i++) {
        let value = round(quad_of(at, i, count) / scale);
        x[row * quads + i] = bytes_of(vec4<i32>(clamp(value, vec4<f32>(-127.0), vec4<f32>(127.0))));
    }
    return bitcast<u32>(scale);
}
