//! `delta_step`, `delta_step_subgroup`: the recurrence, a token after another.

use super::attention::element_loader;
use bytemuck::{Pod, Zeroable};

use super::Kernel;
use super::attention::Operand;
use crate::gpu::DType;
use crate::gpu::shader::Constants;
use crate::limits::{LOOP_ITERATIONS, Limits};
use crate::{Error, Result};

/// `Params` of `common/delta.wgsl`.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    pub(crate) tokens: u32,
    pub(crate) token_base: u32,
    pub(crate) token_count: u32,
    pub(crate) sequence_base: u32,
    pub(crate) fresh: u32,
    pub(crate) heads: u32,
    pub(crate) heads_k: u32,
    pub(crate) groups: u32,
    pub(crate) tiled: u32,
    /// Base, batch, token, head.
    pub(crate) q: [u32; 4],
    pub(crate) k: [u32; 4],
    pub(crate) v: [u32; 4],
    pub(crate) g: [u32; 4],
    pub(crate) o: [u32; 4],
    pub(crate) state_base: u32,
    pub(crate) state_slot: u32,
    pub(crate) beta_at: u32,
    pub(crate) beta_batch: u32,
    pub(crate) starts_at: u32,
    pub(crate) lengths_at: u32,
    pub(crate) a_log_at: u32,
    pub(crate) dt_bias_at: u32,
    pub(crate) scale: f32,
    pub(crate) eps: f32,
    pub(crate) beta_factor: f32,
    pub(crate) rows: u32,
    pub(crate) stages: u32,
    pub(crate) row_blocks: u32,
    pub(crate) chunks: u32,
    pub(crate) stride: u32,
    pub(crate) width: u32,
    pub(crate) chunk: u32,
    pub(crate) block: u32,
    pub(crate) staged: u32,
    pub(crate) dim_k: u32,
}

/// How the state decays before each write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Decay {
    None,
    Head,
    Channel,
}

/// A delta rule's call: everything that a plan depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the kernel's text, and they combine freely"
)]
pub(crate) struct Problem {
    pub(crate) sequences: usize,
    pub(crate) tokens: usize,
    pub(crate) heads_k: usize,
    pub(crate) heads: usize,
    pub(crate) dim_k: usize,
    pub(crate) dim_v: usize,
    pub(crate) q: Operand,
    pub(crate) k: Operand,
    pub(crate) v: DType,
    pub(crate) g: DType,
    pub(crate) decay: Decay,
    pub(crate) gate_logits: bool,
    pub(crate) beta_logits: bool,
    pub(crate) l2norm: bool,
    pub(crate) ragged: bool,
    pub(crate) keep: bool,
}

impl Problem {
    /// Floating-point operations of one token of one head in the recurrence: decay, prediction, write, read.
    pub(crate) fn token_flops(&self) -> u64 {
        let passes = if self.decay == Decay::None { 6 } else { 7 };
        passes * (self.dim_k * self.dim_v) as u64
    }
}

/// How a problem is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tuning {
    pub(crate) lanes: u32,
    pub(crate) row_split: u32,
    /// Columns of the state to a workgroup.
    pub(crate) columns: u32,
    /// Tokens staged in workgroup memory at a time.
    pub(crate) staged: u32,
    pub(crate) workgroup_bytes: u32,
    /// Loop iterations a token costs an invocation at most, and once a dispatch.
    pub(crate) per_token: u32,
}

impl Tuning {
    /// Blocks of 16 rows of the state to a lane.
    pub(crate) fn row_blocks(&self, dim_k: usize) -> u32 {
        (dim_k.div_ceil(4) as u32).div_ceil(self.row_split).div_ceil(4)
    }

    /// Tokens that one dispatch can take.
    pub(crate) fn most_tokens(&self) -> u32 {
        (LOOP_ITERATIONS / 4 * 3 - 256) / self.per_token
    }
}

/// Constants that the delta rule's kernels share.
pub(crate) fn switches(p: &Problem) -> Constants {
    Constants::default()
        .set("DIM_K", p.dim_k as u32)
        .set("DIM_V", p.dim_v as u32)
        .set("DECAY", p.decay != Decay::None)
        .set("CHANNELS", p.decay == Decay::Channel)
        .set("GATE_LOGITS", p.gate_logits)
        .set("BETA_LOGITS", p.beta_logits)
        .set("L2NORM", p.l2norm)
        .set("RAGGED", p.ragged)
        .set("v", element_loader(p.v))
        .set("g", element_loader(p.g))
}

/// Family S.
#[derive(Debug)]
pub(crate) struct DeltaStepSubgroup;

impl Kernel for DeltaStepSubgroup {
    const NAME: &'static str = "delta_step_subgroup";
    type Problem = Problem;
    type Tuning = Tuning;

    fn tune(problem: &Problem, limits: &Limits) -> Result<Tuning> {
        let Some(lanes) = limits.subgroup else {
            return Err(Error::Unsupported {
                kernel: Self::NAME,
                needs: "subgroup operations and one subgroup size of 4, 8, 16, 32 or 64".into(),
                has: "none, or a range of sizes".into(),
            });
        };
        let quads = problem.dim_k.div_ceil(4) as u32;
        let narrow = limits.software && lanes <= 4;
        // a processor broadcasts from a fixed lane at a fraction of the cost of a computed one; its state rows
        // stay whole.  A GPU, and SwiftShader's compiler, want few registers: rows are shared out
        let row_split = if limits.software && !narrow {
            1
        } else {
            let most = if narrow { 4 } else { lanes / 4 };
            quads.div_ceil(8).next_power_of_two().clamp(1, most)
        };
        let rows = quads.div_ceil(row_split) * 4;
        // broadcasts serve all columns of a lane; a single token only streams the state
        let columns = if limits.software && problem.tokens > 4 && rows <= 128 && !narrow { 2 } else { 1 };
        let mut tuning = Tuning {
            lanes,
            row_split,
            columns: lanes / row_split * columns,
            staged: 0,
            workgroup_bytes: 0,
            per_token: 1,
        };
        if problem.keep {
            // a stage, its block stores, and leaving both loops
            tuning.per_token += tuning.row_blocks(problem.dim_k) + 3;
        }
        Ok(tuning)
    }

    fn constants(problem: &Problem, tuning: &Tuning) -> Constants {
        let per_lane = tuning.columns * tuning.row_split / tuning.lanes;
        switches(problem)
            .set("LANES", tuning.lanes)
            .set("LANES_LOG2", tuning.lanes.ilog2())
            .set("ROW_SPLIT", tuning.row_split)
            .set("ROW_SPLIT_LOG2", tuning.row_split.ilog2())
            .set("COLUMNS", per_lane)
            .set("KEEP", problem.keep)
    }
}

/// Family W.
#[derive(Debug)]
pub(crate) struct DeltaStep;

impl Kernel for DeltaStep {
    const NAME: &'static str = "delta_step";
    type Problem = Problem;
    type Tuning = Tuning;

    fn tune(problem: &Problem, limits: &Limits) -> Result<Tuning> {
        let lanes = 64.min(limits.invocations);
        let quads = problem.dim_k.div_ceil(4) as u32;
        let row_split = quads.div_ceil(8).next_power_of_two().min(lanes);
        let padded = quads.div_ceil(row_split) * row_split;
        let tiles = if problem.decay == Decay::Channel { 3 } else { 2 };
        let fixed = 16 * lanes + 16;
        let token_bytes = tiles * padded * 16 + 16;
        let room = limits.workgroup_memory.min(16 << 10).saturating_sub(fixed) / token_bytes;
        if room == 0 {
            return Err(Error::WorkgroupMemory {
                kernel: Self::NAME,
                field: "dim_k",
                value: problem.dim_k as u32,
                needed: fixed + token_bytes,
                allowed: limits.workgroup_memory,
            });
        }
        let staged = room.min(8);
        // staging: loads, then sums of squares, shared by the tokens staged; a masked-off loop still runs once where
        // a processor pretends to be a GPU, and there are three of them a token
        let per_stage = (staged * padded).div_ceil(lanes) + 2 + 2 * (padded + 2);
        Ok(Tuning {
            lanes,
            row_split,
            columns: lanes / row_split,
            staged,
            workgroup_bytes: staged * token_bytes
                + 16 * lanes
                + if problem.decay == Decay::Channel { 0 } else { 16 },
            per_token: 6 + (row_split + 1) + per_stage.div_ceil(staged),
        })
    }

    fn constants(problem: &Problem, tuning: &Tuning) -> Constants {
        let quads = problem.dim_k.div_ceil(4) as u32;
        let padded = quads.div_ceil(tuning.row_split) * tuning.row_split;
        let decay = if problem.decay == Decay::Channel { tuning.staged * padded } else { 1 };
        switches(problem)
            .set("LANES", tuning.lanes)
            .set("ROW_SPLIT", tuning.row_split)
            .set("TOKENS", tuning.staged)
            .set("DECAY_QUADS", decay)
            .set("KEEP", problem.keep)
    }
}

/// Constants of q and k, which come in whole groups of four or not.
pub(crate) fn operands(problem: &Problem, limits: &Limits) -> Constants {
    Constants::default().set("q", problem.q.loader(limits)).set("k", problem.k.loader(limits))
}
