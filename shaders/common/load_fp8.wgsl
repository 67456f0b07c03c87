// Four values of fp8 (e4m3) at element `ix`, a multiple of 4, times the scale of their row of x_width() elements;
// scales lie from word x_scales() on.  x is the tensor's name.
alias x_item = u32;

// Two codes in the upper bytes of 16-bit halves: as half floats they are 256 times too small, subnormals too.
fn x_pair(codes: u32) -> vec2<f32> {
    return unpack2x16float((codes & 0x80008000u) | ((codes & 0x7f007f00u) >> 1u));
}

fn x_load4(ix: u32, n: u32) -> vec4<f32> {
    let scale = 256.0 * bitcast<f32>(x[x_scales() + ix / x_width()]);
    let word = x[ix / 4u];
    let even = x_pair(word << 8u);
    let odd = x_pair(word);
    return vec4<f32>(even.x, odd.x, even.y, odd.y) * scale;
}
