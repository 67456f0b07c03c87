//! `delta_chunk_*`: the chunk-parallel form in five kernels, of which one walks from chunk to chunk.

use super::attention::element_loader;
use super::delta_step::{Decay, Problem, Tuning, switches};
use crate::gpu::shader::Constants;
use crate::limits::Limits;
use crate::{Error, Result};

/// The way to compute, as options and cases name it.
pub(crate) const NAME: &str = "delta_chunk";
pub(crate) const GATHER: &str = "delta_chunk_gather";
pub(crate) const SCORES: &str = "delta_chunk_scores";
pub(crate) const SOLVE: &str = "delta_chunk_solve";
pub(crate) const STATE: &str = "delta_chunk_state";
pub(crate) const OUTPUT: &str = "delta_chunk_output";
/// In the order in which they run.
pub(crate) const KERNELS: [&str; 5] = [GATHER, SCORES, SOLVE, STATE, OUTPUT];
/// Tokens to a chunk.
pub(crate) const CHUNK: usize = 64;
/// Rows of a chunk that are solved at a time.
pub(crate) const BLOCK: usize = 16;
const LANES: u32 = 64;
/// Tokens that the state's kernel stages at a time.
const STAGED: u32 = 8;

/// Width of keys in scratch.
pub(crate) fn width(p: &Problem) -> usize {
    p.dim_k.next_multiple_of(BLOCK)
}

/// Elements of scratch for one chunk of one head; `common/delta_chunk.wgsl` lays them out.
pub(crate) fn stride(p: &Problem) -> usize {
    let width = width(p);
    let gates = if p.decay == Decay::Channel { width } else { 1 };
    let tokens = 4 * width + gates + 1 + p.dim_v + width + 2 * CHUNK;
    CHUNK * tokens + width + p.dim_k * p.dim_v
}

/// Operations on one chunk of one head, by kernel.
pub(crate) fn flops(p: &Problem) -> [u64; 5] {
    let (c, k, v) = (CHUNK as u64, width(p) as u64, p.dim_v as u64);
    [c * (8 * k + v), c * c * 5 * k, c * c * (k + v), 4 * c * k * v + k * v, 2 * c * k * v + c * c * v]
}

/// Tunes, or says why this form cannot run here.
pub(crate) fn tune(p: &Problem, limits: &Limits) -> Result<Tuning> {
    let decline = |needs: &str, has: &str| {
        Err(Error::Unsupported { kernel: NAME, needs: needs.into(), has: has.into() })
    };
    if p.keep {
        return decline(
            "to pass over the states within a chunk",
            "a call that keeps the state after each token",
        );
    }
    if limits.invocations < LANES {
        return decline("workgroups of 64 invocations", "less");
    }
    let quads = width(p) as u32 / 4;
    // a column of V' for each of a workgroup's columns stands in its memory: no more than 32 of them
    let row_split = quads.div_ceil(8).next_power_of_two().max(2);
    let mut tuning = Tuning {
        lanes: LANES,
        row_split,
        columns: LANES / row_split,
        staged: STAGED,
        workgroup_bytes: 0,
        per_token: 0,
    };
    tuning.workgroup_bytes =
        KERNELS.iter().map(|kernel| workgroup_bytes(kernel, p, &tuning)).max().unwrap_or(0);
    if tuning.workgroup_bytes > limits.workgroup_memory {
        return Err(Error::WorkgroupMemory {
            kernel: NAME,
            field: "dim_k",
            value: p.dim_k as u32,
            needed: tuning.workgroup_bytes,
            allowed: limits.workgroup_memory,
        });
    }
    // the state's kernel is the only one that runs through all chunks: twice a stage of rows and its tokens, once
    // the sums; each loop once more to leave it
    let stage = STAGED * staged_rows(p, row_split) / LANES + 2 + STAGED + 1;
    let sums = (STAGED.div_ceil(row_split) + 1) * (row_split + 2);
    tuning.per_token = (2 * stage + sums).div_ceil(STAGED) + 1;
    Ok(tuning)
}

/// Why the recurrence is the better way, if it is.
pub(crate) fn not_worth_it(p: &Problem, limits: &Limits) -> Option<String> {
    if limits.software {
        return Some("the recurrence does fewer operations, and a processor has few lanes to fill".into());
    }
    (p.tokens < 2 * CHUNK).then(|| format!("{} tokens are less than two chunks", p.tokens))
}

fn staged_rows(p: &Problem, row_split: u32) -> u32 {
    (width(p) as u32 / 4).div_ceil(row_split) * 4 * row_split
}

/// Workgroup memory of one of the kernels.
pub(crate) fn workgroup_bytes(kernel: &str, p: &Problem, tuning: &Tuning) -> u32 {
    match kernel {
        GATHER => CHUNK as u32 * 16,
        SCORES => 3 * (CHUNK * BLOCK * 4) as u32,
        STATE => {
            let staged = tuning.staged * (staged_rows(p, tuning.row_split) + LANES);
            4 * (staged + CHUNK as u32 * tuning.columns)
        }
        _ => 0,
    }
}

pub(crate) fn constants(kernel: &str, p: &Problem, tuning: &Tuning) -> Constants {
    let sizes = Constants::default()
        .set("LANES", LANES)
        .set("DIM_K", p.dim_k as u32)
        .set("DIM_V", p.dim_v as u32)
        .set("CHANNELS", p.decay == Decay::Channel);
    match kernel {
        GATHER => {
            let (q, k) = (element_loader(p.q.dtype), element_loader(p.k.dtype));
            sizes.with(switches(p)).set("q", q).set("k", k)
        }
        STATE => sizes.set("ROW_SPLIT", tuning.row_split).set("TOKENS", tuning.staged),
        OUTPUT => sizes.set("RAGGED", p.ragged),
        _ => sizes,
    }
}

/// Workgroups on the first axis, by kernel.
pub(crate) fn groups(p: &Problem, tuning: &Tuning, chunks: u32) -> [u32; 5] {
    let of_x = ((p.dim_v + width(p)) as u32).div_ceil(LANES);
    let of_v = (p.dim_v as u32).div_ceil(LANES);
    [
        chunks,
        chunks,
        chunks * of_x,
        (p.dim_v as u32).div_ceil(tuning.columns),
        chunks * (CHUNK / BLOCK) as u32 * of_v,
    ]
}

/// The most workgroups that one chunk takes on the first axis.
pub(crate) fn blocks(p: &Problem) -> u32 {
    ((p.dim_v + width(p)) as u32)
        .div_ceil(LANES)
        .max((CHUNK / BLOCK) as u32 * (p.dim_v as u32).div_ceil(LANES))
}
