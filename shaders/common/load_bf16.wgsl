// Four bf16 elements, read as words, at element `ix`, a multiple of 4.  x is the tensor's name.
alias x_item = vec2<u32>;

fn x_load4(ix: u32, n: u32) -> vec4<f32> {
    let words = x[ix / 4u];
    return bitcast<vec4<f32>>(vec4<u32>(
        words.x << 16u, words.x & 0xffff0000u, words.y << 16u, words.y & 0xffff0000u));
}
