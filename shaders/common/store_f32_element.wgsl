// The first `n` of four elements to 32-bit storage at any element `ix`.  x is the tensor's name.
alias x_item = f32;

fn x_store4(ix: u32, n: u32, value: vec4<f32>) {
    x[ix] = value.x;
    if n > 1u {
        x[ix + 1u] = value.y;
    }
    if n > 2u {
        x[ix + 2u] = value.z;
    }
    if n > 3u {
        x[ix + 3u] = value.w;
    }
}
