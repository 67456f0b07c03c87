// Four values of q4_0 at padded element `ix`, a multiple of 4: blocks of 16 bytes that hold values j and j + 16,
// their 16-bit scales from word x_scales() on.  x is the tensor's name.
alias x_item = u32;

fn x_load4(ix: u32, n: u32) -> vec4<f32> {
    let block = ix / 32u;
    let scale = unpack2x16float(x[x_scales() + block / 2u] >> (16u * (block % 2u))).x;
    let word = x[block * 4u + ix / 4u % 4u] >> ((ix / 4u) & 4u);
    let q = vec4<i32>((vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(15u)) - vec4<i32>(8);
    return vec4<f32>(q) * scale;
}
