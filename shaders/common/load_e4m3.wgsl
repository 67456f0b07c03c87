// Four 8-bit floats (1 sign, 4 exponent, 3 mantissa bits) at element `ix`, a multiple of 4.  x is the tensor's
// name.  There are no infinities; the two NaN codes read as 480.
alias x_item = u32;

fn x_load4(ix: u32, n: u32) -> vec4<f32> {
    let bytes = vec4<u32>(x[ix / 4u]) >> vec4<u32>(0u, 8u, 16u, 24u);
    let magnitude = bytes & vec4<u32>(0x7fu);
    // a shift into place and 120 added to the exponent; subnormal codes are multiples of 2^-9
    let normal = bitcast<vec4<f32>>((magnitude << vec4<u32>(20u)) + vec4<u32>(0x3c000000u));
    let value = select(normal, vec4<f32>(magnitude) * 0.001953125, magnitude < vec4<u32>(8u));
    return select(value, -value, (bytes & vec4<u32>(0x80u)) != vec4<u32>());
}
