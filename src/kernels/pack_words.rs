//! `pack_words`: a packed f32 tensor to a 16-bit one of any length.

use bytemuck::{Pod, Zeroable};

use crate::gpu::shader::Constants;
use crate::gpu::{Binding, DType, Step};

pub(crate) const NAME: &str = "pack_words";
const LANES: u32 = 64;

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    source_base: u32,
    base: u32,
    count: u32,
    width: u32,
}

pub(crate) fn constants(dtype: DType) -> Constants {
    let pack = if dtype == DType::F16 { "pack_f16" } else { "pack_bf16" };
    Constants::default().set("LANES", LANES).set("o", pack)
}

/// The dispatch; `source` and `target` come with the element at which the tensor starts in the binding.
pub(crate) fn step(
    dtype: DType,
    source: (Binding, u32),
    target: (Binding, u32),
    count: usize,
    max_groups: u32,
) -> Step {
    let words = count as u32 / 2 + 2;
    let width = words.min(max_groups.min(1024) * LANES);
    let params = Params { source_base: source.1, base: target.1, count: count as u32, width };
    Step {
        kernel: NAME,
        constants: constants(dtype),
        params: bytemuck::bytes_of(&params).to_vec(),
        bindings: vec![source.0, target.0],
        groups: [width.div_ceil(LANES), words.div_ceil(width), 1],
        flops: count as u64,
    }
}
