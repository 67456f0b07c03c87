// Four values of q8_0 at padded element `ix`, a multiple of 4: blocks of 32 signed bytes, their 16-bit scales from
// word x_scales() on.  x is the tensor's name.
alias x_item = u32;

fn x_load4(ix: u32, n: u32) -> vec4<f32> {
    let block = ix / 32u;
    let scale = unpack2x16float(x[x_scales() + block / 2u] >> (16u * (block % 2u))).x;
    let q = bitcast<vec4<i32>>(vec4<u32>(x[ix / 4u]) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
    return vec4<f32>(q) * scale;
}
