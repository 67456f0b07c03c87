// Four elements to 32-bit storage at element `ix`, a multiple of 4.  x is the tensor's name.
alias x_item = vec4<f32>;

fn x_store4(ix: u32, n: u32, value: vec4<f32>) {
    x[ix / 4u] = value;
}
