// Four signed bytes at element `ix`, a multiple of 4, times the scale of their row of x_width() elements; scales lie
// from word x_scales() on.  x is the tensor's name.
alias x_item = u32;

fn x_load4(ix: u32, n: u32) -> vec4<f32> {
    let scale = bitcast<f32>(x[x_scales() + ix / x_width()]);
    let q = bitcast<vec4<i32>>(vec4<u32>(x[ix / 4u]) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
    return vec4<f32>(q) * scale;
}
