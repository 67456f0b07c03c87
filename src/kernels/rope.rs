//! `rope`: rotary embedding of rows, from one tensor's place to another's.

use bytemuck::{Pod, Zeroable};

use super::attention::Operand;
use super::grid;
use crate::gpu::shader::Constants;
use crate::gpu::{Binding, Step};
use crate::limits::Limits;

pub(crate) const NAME: &str = "rope";
const LANES: u32 = 64;

/// `Params` of the shader.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    pub(crate) dim: u32,
    pub(crate) quads: u32,
    pub(crate) pairs: u32,
    pub(crate) heads: u32,
    pub(crate) rows: u32,
    pub(crate) items: u32,
    pub(crate) item_base: u32,
    pub(crate) width: u32,
    /// Base, batch, head, row.
    pub(crate) x: [u32; 4],
    pub(crate) y: [u32; 4],
    /// Base, batch, row.
    pub(crate) table: [u32; 3],
}

pub(crate) fn constants(interleaved: bool, x: Operand, y: Operand, limits: &Limits) -> Constants {
    Constants::default()
        .set("LANES", LANES)
        .set("INTERLEAVED", interleaved)
        .set("x", Operand { quads: false, ..x }.loader(limits))
        .set("y", y.pair_storer())
}

/// Dispatches for `batch` entries. Bindings: x, table, y.
pub(crate) fn steps(
    constants: &Constants,
    batch: usize,
    params: Params,
    bindings: &[Binding; 3],
    max_groups: u32,
) -> Vec<Step> {
    let quads = params.dim.div_ceil(4);
    let items = batch * params.heads as usize * params.rows as usize * quads as usize;
    grid(items, LANES, max_groups)
        .map(|part| {
            let params =
                Params { quads, items: items as u32, item_base: part.first, width: part.width, ..params };
            Step {
                kernel: NAME,
                constants: constants.clone(),
                params: bytemuck::bytes_of(&params).to_vec(),
                bindings: bindings.to_vec(),
                groups: part.groups,
                flops: u64::from(part.count) * 24,
            }
        })
        .collect()
}
