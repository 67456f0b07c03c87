// Four elements of 32-bit storage at element `ix`, a multiple of 4.  x is the tensor's name.
alias x_item = vec4<f32>;

fn x_load4(ix: u32, n: u32) -> vec4<f32> {
    return x[ix / 4u];
}
