enable f16;
// Four half floats at element `ix`, a multiple of 4, on devices with the f16 feature.  x is the tensor's name.
alias x_item = vec4<f16>;

fn x_load4(ix: u32, n: u32) -> vec4<f32> {
    return vec4<f32>(x[ix / 4u]);
}
