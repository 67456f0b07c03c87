// Two or four elements (`n`) to half floats, packed in words, at an even element `ix`.  x is the tensor's name.
alias x_item = u32;

//!include "common/pack_f16.wgsl" as x

fn x_store4(ix: u32, n: u32, value: vec4<f32>) {
    x[ix / 2u] = x_pack2(value.xy);
    if n > 2u {
        x[ix / 2u + 1u] = x_pack2(value.zw);
    }
}
