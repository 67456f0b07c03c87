// pack_words: a packed f32 tensor to a packed 16-bit one of any length and alignment, a word an invocation.
//
// Words at the edges that hold a neighbour's element keep it.
// Reference: half::f16::from_f32, half::bf16::from_f32.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
// end constants

struct Params {
    source_base: u32, // first element of the source
    base: u32,        // first element of the target
    count: u32,       // elements
    width: u32,       // invocations in a row of the grid
}

//!include "common/pack_f16.wgsl" as o

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> source: array<f32>;         // [count]
@group(0) @binding(2) var<storage, read_write> o: array<u32>;        // [count], two elements a word

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let word = params.base / 2u + id.y * params.width + id.x;
    let end = params.base + params.count;
    if id.x < params.width && word * 2u < end {
        let low = word * 2u >= params.base;
        let high = word * 2u + 1u < end;
        let at = params.source_base + word * 2u - params.base;
        let last = params.source_base + params.count - 1u;
        // an element outside the tensor is loaded from inside, then masked away
        let value = vec2<f32>(source[select(params.source_base, at, low)], source[min(at + 1u, last)]);
        let mask = select(0u, 0xffffu, low) | select(0u, 0xffff0000u, high);
        o[word] = (o[word] & ~mask) | (o_pack2(value) & mask);
    }
}
