//! `indexer`, `indexer_subgroup`: scores of every visible key for each query.

use bytemuck::{Pod, Zeroable};

use super::attention::Operand;
use crate::gpu::shader::Constants;
use crate::limits::{LOOP_ITERATIONS, Limits};
use crate::sparse::Seen;
use crate::{Error, Result};

pub(crate) const NAME: &str = "indexer";
pub(crate) const SUBGROUP: &str = "indexer_subgroup";
/// Groups of four columns to a stage of the kernel without subgroups.
const CHUNK_QUADS: u32 = 8;

/// What the text depends on, and the sizes that a tuning needs.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) heads: usize,
    pub(crate) dim: usize,
    pub(crate) q: Operand,
    /// None: 8-bit floats in words.
    pub(crate) k: Option<Operand>,
    pub(crate) key_scale: bool,
    pub(crate) seen: Constants,
}

/// `Params` of `shaders/common/indexer.wgsl`.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    pub(crate) heads: u32,
    pub(crate) seq_kv: u32,
    pub(crate) batch_base: u32,
    pub(crate) query_base: u32,
    pub(crate) block_base: u32,
    pub(crate) block: u32,
    /// Base, batch, row, head.
    pub(crate) q: [u32; 4],
    /// Base, batch, row.
    pub(crate) k: [u32; 3],
    pub(crate) w: [u32; 3],
    /// Base, batch.
    pub(crate) key_scale: [u32; 2],
    /// Base, batch, row.
    pub(crate) scores: [u32; 3],
    pub(crate) scale: f32,
    /// `quads`, `chunks`, `lanes`, `rows`, `stage_q`, `stage_k`, `stage_quads`.
    pub(crate) bounds: [u32; 7],
    pub(crate) seen: Seen,
}

/// How a problem is cut.
#[derive(Debug, Clone)]
pub(crate) struct Tuning {
    pub(crate) kernel: &'static str,
    pub(crate) constants: Constants,
    /// Keys to a workgroup.
    pub(crate) block: u32,
    pub(crate) bounds: [u32; 7],
    pub(crate) workgroup_bytes: u32,
    pub(crate) iterations: u32,
}

/// The first kernel that fits, or the one asked for.
pub(crate) fn tune(problem: &Problem, limits: &Limits, forced: Option<&str>) -> Result<Tuning> {
    type Tune = fn(&Problem, &Limits) -> Result<Tuning>;
    let mut declined = Vec::new();
    for (name, tune) in [(SUBGROUP, subgroup as Tune), (NAME, tiled as Tune)] {
        if forced.is_some_and(|f| f != name) {
            declined.push(format!("{name}: another kernel was asked for"));
            continue;
        }
        match tune(problem, limits) {
            Ok(tuning) if tuning.iterations <= LOOP_ITERATIONS / 4 * 3 => return Ok(tuning),
            Ok(tuning) => declined.push(format!("{name}: {} loop iterations", tuning.iterations)),
            Err(why) => declined.push(format!("{name}: {why}")),
        }
    }
    Err(Error::NoKernel { operator: "indexer", declined })
}

fn subgroup(problem: &Problem, limits: &Limits) -> Result<Tuning> {
    let Some(lanes) = limits.subgroup else {
        return Err(Error::Unsupported {
            kernel: SUBGROUP,
            needs: "subgroup operations and one subgroup size of 4, 8, 16, 32 or 64".into(),
            has: "none, or a range of sizes".into(),
        });
    };
    let quads = problem.dim.div_ceil(4) as u32;
    let chunks = quads.div_ceil(lanes);
    // a row keeps its share of q and its sums in registers; processors spill to their first cache cheaply
    let narrow = limits.software && lanes <= 4;
    let (budget, keys) = match (limits.software, narrow) {
        (true, false) => (768, 4),
        (true, true) => (128, 2),
        (false, _) => (96, if lanes >= 64 { 2 } else { 4 }),
    };
    let fitting = (budget / (4 * chunks + keys)).max(1);
    let most = if narrow { 4 } else { 32 };
    let rows = 1u32 << fitting.min((problem.heads as u32).next_power_of_two()).min(most).ilog2();
    let block = (lanes * keys * 4).max(if limits.software { 1024 } else { 256 });
    let steps = block / (lanes * keys);
    let per_step = (quads + chunks) + (chunks + 1) + (keys + 1) + 1;
    let iterations =
        (problem.heads as u32).div_ceil(rows) * (rows + 1 + steps * per_step + 2) + block / lanes + 2;
    Ok(Tuning {
        kernel: SUBGROUP,
        constants: constants(problem, limits).set("LANES", lanes).set("ROWS", rows).set("KEYS", keys),
        block,
        bounds: [quads, chunks, lanes, rows, 0, 0, 0],
        workgroup_bytes: 0,
        iterations,
    })
}

fn tiled(problem: &Problem, limits: &Limits) -> Result<Tuning> {
    let quads = problem.dim.div_ceil(4) as u32;
    let (x, y, keys) = (8, 8, 4);
    let rows = if problem.heads <= 8 { 1 } else { 4 };
    let (q_tile, kv_tile) = (y * rows, x * keys);
    let threads = x * y;
    if threads > limits.invocations {
        return Err(Error::Unsupported {
            kernel: NAME,
            needs: format!("{threads} invocations to a workgroup"),
            has: limits.invocations.to_string(),
        });
    }
    let workgroup_bytes = 16 * (q_tile + kv_tile) * (CHUNK_QUADS + 1) + 4 * threads * keys;
    if workgroup_bytes > limits.workgroup_memory {
        return Err(Error::WorkgroupMemory {
            kernel: NAME,
            field: "kv_tile",
            value: kv_tile,
            needed: workgroup_bytes,
            allowed: limits.workgroup_memory,
        });
    }
    let (stage_q, stage_k) = (q_tile * CHUNK_QUADS, kv_tile * CHUNK_QUADS);
    let stage = stage_q.div_ceil(threads) + stage_k.div_ceil(threads) + CHUNK_QUADS + 4;
    let iterations =
        (problem.heads as u32).div_ceil(q_tile) * (quads.div_ceil(CHUNK_QUADS) * stage + 2) + 2 * (y + 2);
    let own = Constants::default().set("LANES_X", x).set("LANES_Y", y).set("ROWS", rows).set("KEYS", keys);
    Ok(Tuning {
        kernel: NAME,
        constants: constants(problem, limits).with(own).set("CHUNK_QUADS", CHUNK_QUADS),
        block: kv_tile,
        bounds: [quads, 0, y, 0, stage_q, stage_k, CHUNK_QUADS],
        workgroup_bytes,
        iterations,
    })
}

fn constants(problem: &Problem, limits: &Limits) -> Constants {
    problem
        .seen
        .clone()
        .set("DIM", problem.dim as u32)
        .set("KEY_SCALE", problem.key_scale)
        .set("q", problem.q.loader(limits))
        .set("k", problem.k.map_or("load_e4m3", |k| k.loader(limits)))
}
