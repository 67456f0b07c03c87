//! `nsa_weights`, `nsa_blocks`, `nsa_gate`, `block_mean`: what native sparse attention does beside attending.

use bytemuck::{Pod, Zeroable};

use super::attention::Operand;
use super::merge_partials::f32_operand;
use crate::gpu::shader::Constants;
use crate::gpu::{Binding, Step};
use crate::limits::Limits;
use crate::sparse::Seen;

pub(crate) const WEIGHTS: &str = "nsa_weights";
pub(crate) const BLOCKS: &str = "nsa_blocks";
pub(crate) const GATE: &str = "nsa_gate";
pub(crate) const MEAN: &str = "block_mean";
pub(crate) const LANES: u32 = 64;

/// `Params` of `nsa_weights`.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Weights {
    pub(crate) groups: u32,
    pub(crate) heads: u32,
    pub(crate) seq_kv: u32,
    pub(crate) query_base: u32,
    /// Base, batch, head, row.
    pub(crate) q: [u32; 4],
    pub(crate) k: [u32; 4],
    /// Base, batch, head.
    pub(crate) lse: [u32; 3],
    /// Head, row.
    pub(crate) o: [u32; 2],
    pub(crate) scale: f32,
    pub(crate) quads: u32,
    pub(crate) seen: Seen,
}

/// `Params` of `nsa_blocks`.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Blocks {
    pub(crate) queries: u32,
    pub(crate) query_base: u32,
    pub(crate) q_start: i32,
    pub(crate) compressed: u32,
    pub(crate) candidates: u32,
    pub(crate) block: u32,
    pub(crate) across: u32,
    pub(crate) overlap: u32,
}

/// `Params` of `nsa_gate`.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Gate {
    pub(crate) heads: u32,
    pub(crate) rows: u32,
    pub(crate) grid: Grid,
    /// Base, batch, head, row.
    pub(crate) gates: [u32; 4],
    pub(crate) bases: [u32; 4],
}

/// `Params` of `block_mean`.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Mean {
    pub(crate) heads: u32,
    pub(crate) blocks: u32,
    pub(crate) step: u32,
    pub(crate) reach: u32,
    pub(crate) grid: Grid,
    /// Base, batch, head, row.
    pub(crate) x: [u32; 4],
}

/// Items that a series of dispatches covers, one an invocation.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Grid {
    items: u32,
    item_base: u32,
    width: u32,
}

impl Grid {
    /// Dispatches of at most `at_once` items each, with their groups and how many items each holds.
    fn cut(items: usize, at_once: u64, limits: &Limits) -> Vec<(Self, [u32; 3], u64)> {
        let width = (items as u32).min(limits.workgroups.min(1024) * LANES);
        let most = (width as usize * limits.workgroups as usize).min((at_once as usize).max(width as usize));
        (0..items)
            .step_by(most)
            .map(|first| {
                let now = (items - first).min(most);
                let grid = Self { items: items as u32, item_base: first as u32, width };
                (grid, [width.div_ceil(LANES), now.div_ceil(width as usize) as u32, 1], now as u64)
            })
            .collect()
    }
}

pub(crate) fn weights_constants(
    dim: usize,
    q: Operand,
    k: Operand,
    seen: Constants,
    limits: &Limits,
) -> Constants {
    seen.set("LANES", LANES).set("DIM", dim as u32).set("q", q.loader(limits)).set("k", k.loader(limits))
}

pub(crate) fn blocks_constants() -> Constants {
    Constants::default().set("LANES", LANES)
}

pub(crate) fn gate_constants(dim: usize, limits: &Limits) -> Constants {
    let operand = f32_operand(dim);
    let load = operand.loader(limits);
    let constants = Constants::default().set("LANES", LANES).set("DIM", dim as u32);
    constants.set("a", load).set("b", load).set("c", load).set("o", operand.storer())
}

pub(crate) fn mean_constants(dim: usize, source: Operand, limits: &Limits) -> Constants {
    let constants = Constants::default().set("LANES", LANES).set("DIM", dim as u32);
    constants.set("source", source.loader(limits)).set("o", f32_operand(dim).storer())
}

/// One dispatch over `groups`; `flops` is its work.
pub(crate) fn step<P: Pod>(
    kernel: &'static str,
    constants: Constants,
    params: &P,
    bindings: Vec<Binding>,
    groups: [u32; 3],
    flops: u64,
) -> Step {
    Step { kernel, constants, params: bytemuck::bytes_of(params).to_vec(), bindings, groups, flops }
}

/// Dispatches of the gated sum over `rows * heads * batch` rows of `dim` columns.
pub(crate) fn gate(
    dim: usize,
    count: usize,
    params: Gate,
    bindings: &[Binding; 5],
    limits: &Limits,
) -> Vec<Step> {
    let items = count * dim.div_ceil(4);
    let cut = Grid::cut(items, limits.dispatch_flops / 64, limits);
    cut.into_iter()
        .map(|(grid, groups, now)| {
            let params = Gate { grid, ..params };
            step(GATE, gate_constants(dim, limits), &params, bindings.to_vec(), groups, now * 64)
        })
        .collect()
}

/// Dispatches of the means of `count` blocks.
pub(crate) fn mean(
    dim: usize,
    source: Operand,
    count: usize,
    params: Mean,
    bindings: &[Binding; 2],
    limits: &Limits,
) -> Vec<Step> {
    let items = count * dim.div_ceil(4);
    let each = 32 * u64::from(params.reach);
    let cut = Grid::cut(items, limits.dispatch_flops / each, limits);
    cut.into_iter()
        .map(|(grid, groups, now)| {
            let params = Mean { grid, ..params };
            step(MEAN, mean_constants(dim, source, limits), &params, bindings.to_vec(), groups, now * each)
        })
        .collect()
}
