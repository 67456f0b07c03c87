// Up to four bf16 elements, read as words, at any element `ix`; the first `n` (at least 1) are read, the rest
// are 0.  x is the tensor's name.
alias x_item = u32;

fn x_load1(ix: u32) -> f32 {
    return bitcast<f32>((x[ix / 2u] >> (16u * (ix % 2u))) << 16u);
}

fn x_load4(ix: u32, n: u32) -> vec4<f32> {
    let last = ix + n - 1u;
    let read = vec4<f32>(
        x_load1(ix), x_load1(min(ix + 1u, last)), x_load1(min(ix + 2u, last)), x_load1(min(ix + 3u, last)));
    return select(vec4<f32>(), read, vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(n));
}
