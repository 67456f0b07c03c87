//! `chunk_states`: from what each chunk adds to a state to the state before each chunk.

use bytemuck::{Pod, Zeroable};

use crate::gpu::shader::Constants;
use crate::gpu::{Binding, Step};

pub(crate) const NAME: &str = "chunk_states";
const LANES: u32 = 64;

/// `Params` of the shader.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    pub(crate) elements: u32,
    pub(crate) chunks: u32,
    pub(crate) fresh: u32,
    pub(crate) width: u32,
    pub(crate) per_sum: u32,
    pub(crate) rates_count: u32,
    pub(crate) sums: u32,
    pub(crate) state_base: u32,
    pub(crate) chunk_base: u32,
    pub(crate) sums_base: u32,
    pub(crate) rates_base: u32,
}

pub(crate) fn constants(rates: bool) -> Constants {
    Constants::default().set("LANES", LANES).set("RATES", rates)
}

/// The dispatch. Bindings: sums, rates, states of the chunks, state.
pub(crate) fn step(params: Params, rates: bool, bindings: &[Binding; 4], max_groups: u32) -> Step {
    let width = params.elements.min(max_groups.min(1024) * LANES);
    let params = Params { width, ..params };
    Step {
        kernel: NAME,
        constants: constants(rates),
        params: bytemuck::bytes_of(&params).to_vec(),
        bindings: bindings.to_vec(),
        groups: [width.div_ceil(LANES), params.elements.div_ceil(width), 1],
        flops: u64::from(params.elements) * u64::from(params.chunks) * 12,
    }
}
