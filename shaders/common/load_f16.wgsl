// Four elements of half floats, read as words, at element `ix`, a multiple of 4.  x is the tensor's name.
alias x_item = vec2<u32>;

fn x_load4(ix: u32, n: u32) -> vec4<f32> {
    let words = x[ix / 4u];
    return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}
