// 32 values to block `block` of q4_0; returns the scale's 16 bits.  x is the tensor's name.
// The value of largest size becomes -8 steps; byte j holds values j and j + 16.

fn x_quantise(block: u32, at: u32, count: u32) -> u32 {
    let quads = params.quads;
    var top = 0.0;
    for (var i = 0u; i < quads; i++) {
        let value = quad_of(at, i, count);
        for (var e = 0u; e < 4u; e++) { //!unroll
            top = select(top, value[e], abs(value[e]) > abs(top));
        }
    }
    let d = top / -8.0;
    let id = sign(d) * reciprocal(abs(d));
    for (var i = 0u; i < quads / 2u; i++) {
        let low = vec4<i32>(quad_of(at, i, count) * id + 8.5);
        let high = vec4<i32>(quad_of(at, i + quads / 2u, count) * id + 8.5);
        x[block * 4u + i] = bytes_of(min(low, vec4<i32>(15)) | (min(high, vec4<i32>(15)) << vec4<u32>(4u)));
    }
    return pack2x16float(vec2<f32>(clamp(d, -65504.0, 65504.0), 0.0)) & 0xffffu;
}
