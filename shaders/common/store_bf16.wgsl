// Four elements to bf16, packed in words, at element `ix`, a multiple of 4.  x is the tensor's name.
alias x_item = vec2<u32>;

//!include "common/pack_bf16.wgsl" as x

fn x_store4(ix: u32, n: u32, value: vec4<f32>) {
    x[ix / 4u] = vec2<u32>(x_pack2(value.xy), x_pack2(value.zw));
}
