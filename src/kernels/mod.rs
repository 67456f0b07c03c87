//! The kernels: what each needs, how it is tuned, and the registry.

pub(crate) mod attention;
mod attention_subgroup;
mod attention_tiled;
pub(crate) mod cache_append;
pub(crate) mod causal_conv1d;
pub(crate) mod ceiling;
pub(crate) mod chunk_states;
pub(crate) mod delta_chunk;
pub(crate) mod delta_step;
pub(crate) mod gated_norm;
pub(crate) mod indexed_attention;
pub(crate) mod indexer;
pub(crate) mod linear_step;
pub(crate) mod merge_partials;
pub(crate) mod nsa;
pub(crate) mod pack_words;
pub(crate) mod project_heads;
pub(crate) mod rope;
pub(crate) mod selective_scan;
pub(crate) mod top_k;

pub(crate) use attention_subgroup::AttentionSubgroup;
pub(crate) use attention_tiled::AttentionTiled;
use delta_step::{DeltaStep, DeltaStepSubgroup};

use crate::Result;
use crate::gpu::shader::Constants;
use crate::limits::Limits;

/// One WGSL file and what is needed to launch it.
pub(crate) trait Kernel {
    /// File stem in `shaders/`; also the name in labels, errors and benches.
    const NAME: &'static str;
    /// What to compute: shapes, types, mask. The caller's.
    type Problem;
    /// How: tile sizes, splits, subgroups or not. Ours.
    type Tuning;

    /// Chooses a tuning, or says why this kernel cannot run here.
    fn tune(problem: &Self::Problem, limits: &Limits) -> Result<Self::Tuning>;
    /// Values for the constants block; also the cache key.
    fn constants(problem: &Self::Problem, tuning: &Self::Tuning) -> Constants;
}

/// A registered kernel: what tests and the program's listing go through.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Registered {
    /// File stem in `shaders/`.
    pub(crate) name: &'static str,
    /// The operator whose reference and goldens judge it.
    pub(crate) operator: &'static str,
    /// Family: `S` needs a known subgroup size, `W` nothing.
    pub(crate) family: char,
}

/// One line a kernel.
pub(crate) const REGISTRY: &[Registered] = &[
    Registered { name: AttentionSubgroup::NAME, operator: "attention", family: 'S' },
    Registered { name: AttentionTiled::NAME, operator: "attention", family: 'W' },
    Registered { name: delta_chunk::GATHER, operator: "delta_rule", family: 'W' },
    Registered { name: delta_chunk::SCORES, operator: "delta_rule", family: 'W' },
    Registered { name: delta_chunk::SOLVE, operator: "delta_rule", family: 'W' },
    Registered { name: delta_chunk::STATE, operator: "delta_rule", family: 'W' },
    Registered { name: delta_chunk::OUTPUT, operator: "delta_rule", family: 'W' },
    Registered { name: DeltaStepSubgroup::NAME, operator: "delta_rule", family: 'S' },
    Registered { name: DeltaStep::NAME, operator: "delta_rule", family: 'W' },
    Registered { name: merge_partials::NAME, operator: "merge", family: 'W' },
    Registered { name: pack_words::NAME, operator: "attention", family: 'W' },
    Registered { name: rope::NAME, operator: "rope", family: 'W' },
    Registered { name: project_heads::NAME, operator: "mla", family: 'W' },
    Registered { name: indexer::SUBGROUP, operator: "indexed_attention", family: 'S' },
    Registered { name: indexer::NAME, operator: "indexed_attention", family: 'W' },
    Registered { name: indexed_attention::SUBGROUP, operator: "indexed_attention", family: 'S' },
    Registered { name: indexed_attention::NAME, operator: "indexed_attention", family: 'W' },
    Registered { name: top_k::COUNT, operator: "topk", family: 'W' },
    Registered { name: top_k::PICK, operator: "topk", family: 'W' },
    Registered { name: top_k::GATHER, operator: "topk", family: 'W' },
    Registered { name: nsa::WEIGHTS, operator: "nsa", family: 'W' },
    Registered { name: nsa::BLOCKS, operator: "nsa", family: 'W' },
    Registered { name: nsa::GATE, operator: "nsa", family: 'W' },
    Registered { name: nsa::MEAN, operator: "nsa", family: 'W' },
    Registered { name: cache_append::APPEND, operator: "cache", family: 'W' },
    Registered { name: cache_append::QUANTISE, operator: "cache", family: 'W' },
    Registered { name: causal_conv1d::NAME, operator: "causal_conv1d", family: 'W' },
    Registered { name: causal_conv1d::TAIL, operator: "causal_conv1d", family: 'W' },
    Registered { name: linear_step::NAME, operator: "lightning_attention", family: 'W' },
    Registered { name: selective_scan::NAME, operator: "selective_scan", family: 'W' },
    Registered { name: gated_norm::NAME, operator: "gated_norm", family: 'W' },
    Registered { name: chunk_states::NAME, operator: "lightning_attention", family: 'W' },
    Registered { name: ceiling::COPY, operator: "ceiling", family: 'W' },
    Registered { name: ceiling::READ, operator: "ceiling", family: 'W' },
    Registered { name: ceiling::MULTIPLY_ADD, operator: "ceiling", family: 'W' },
];

/// One dispatch's share of independent items, an invocation each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// First item.
    pub(crate) first: u32,
    /// Items.
    pub(crate) count: u32,
    /// Items in a row of the grid.
    pub(crate) width: u32,
    /// Workgroups.
    pub(crate) groups: [u32; 3],
}

/// Spreads items over dispatches of a two-dimensional grid.
pub(crate) fn grid(items: usize, lanes: u32, max_groups: u32) -> impl Iterator<Item = Part> {
    // rows of the grid stay far from the limit, so that the second dimension takes the rest
    let width = (items as u32).min(max_groups.min(1024) * lanes).max(1);
    let most = width as usize * max_groups as usize;
    (0..items).step_by(most).map(move |first| {
        let count = (items - first).min(most);
        let groups = [width.div_ceil(lanes), count.div_ceil(width as usize) as u32, 1];
        Part { first: first as u32, count: count as u32, width, groups }
    })
}
