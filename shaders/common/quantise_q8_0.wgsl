// 32 values to block `block` of q8_0; returns the scale's 16 bits.  x is the tensor's name.
// The scale is rounded to 16 bits after the values are chosen, as ggml does.

fn x_quantise(block: u32, at: u32, count: u32) -> u32 {
    let quads = params.quads;
    let d = largest(at, count) / 127.0;
    let id = reciprocal(d);
    for (var i = 0u; i < quads; i++) {
        let value = quad_of(at, i, count) * id;
        // half away from zero
        let size = floor(abs(value));
        let away = size + select(vec4<f32>(), vec4<f32>(1.0), abs(value) - size >= vec4<f32>(0.5));
        x[block * 8u + i] = bytes_of(vec4<i32>(sign(value) * away));
    }
    return pack2x16float(vec2<f32>(min(d, 65504.0), 0.0)) & 0xffffu;
}
