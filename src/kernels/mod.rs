//! The kernels: what each needs, how it is tuned, and the registry.

pub(crate) mod attention;
mod attention_subgroup;
mod attention_tiled;
pub(crate) mod causal_conv1d;
pub(crate) mod ceiling;
pub(crate) mod chunk_states;
pub(crate) mod gated_norm;
pub(crate) mod linear_step;
pub(crate) mod merge_partials;
pub(crate) mod pack_words;
pub(crate) mod selective_scan;

pub(crate) use attention_subgroup::AttentionSubgroup;
pub(crate) use attention_tiled::AttentionTiled;

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
    Registered { name: merge_partials::NAME, operator: "merge", family: 'W' },
    Registered { name: pack_words::NAME, operator: "attention", family: 'W' },
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
