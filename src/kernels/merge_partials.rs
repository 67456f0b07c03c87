//! `merge_partials`: results over disjoint keys to one.

use bytemuck::{Pod, Zeroable};

use super::attention::Operand;
use super::grid;
use crate::gpu::shader::Constants;
use crate::gpu::{Binding, DType, Step};

pub(crate) const NAME: &str = "merge_partials";
const LANES: u32 = 64;

/// `Params` of the shader.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    pub(crate) rows: u32,
    pub(crate) groups: u32,
    pub(crate) heads: u32,
    pub(crate) row_base: u32,
    pub(crate) total: u32,
    pub(crate) items: u32,
    pub(crate) item_base: u32,
    pub(crate) width: u32,
    pub(crate) parts: [u32; 2],
    /// Base, lse base, part stride, lse part stride.
    pub(crate) a: [u32; 4],
    pub(crate) b: [u32; 4],
    /// Base, batch, head, row.
    pub(crate) o: [u32; 4],
    /// Base, batch, head.
    pub(crate) lse: [u32; 3],
    pub(crate) sinks_at: u32,
}

/// What the text depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Problem {
    pub(crate) dim_v: usize,
    pub(crate) o: Operand,
    pub(crate) sinks: bool,
    pub(crate) lse: bool,
}

pub(crate) fn constants(problem: Problem) -> Constants {
    let quads = problem.dim_v.is_multiple_of(4);
    let load = if quads { "load_f32" } else { "load_f32_element" };
    Constants::default()
        .set("LANES", LANES)
        .set("DIM_V", problem.dim_v as u32)
        .set("SINKS", problem.sinks)
        .set("LSE", problem.lse)
        .set("a", load)
        .set("b", load)
        .set("o", problem.o.storer())
}

/// Dispatches for all rows. Bindings: a, its lse, b, its lse, table, o, lse.
pub(crate) fn steps(problem: Problem, params: Params, bindings: &[Binding; 7], max_groups: u32) -> Vec<Step> {
    let items = params.total as usize * problem.dim_v.div_ceil(4);
    let flops = u64::from(params.parts[0] + params.parts[1]) * 10;
    grid(items, LANES, max_groups)
        .map(|part| {
            let params = Params { items: items as u32, item_base: part.first, width: part.width, ..params };
            Step {
                kernel: NAME,
                constants: constants(problem),
                params: bytemuck::bytes_of(&params).to_vec(),
                bindings: bindings.to_vec(),
                groups: part.groups,
                flops: u64::from(part.count) * flops,
            }
        })
        .collect()
}

/// An f32 tensor whose rows are whole groups of four where `dim` is.
pub(crate) fn f32_operand(dim: usize) -> Operand {
    Operand { dtype: DType::F32, quads: dim.is_multiple_of(4) }
}
