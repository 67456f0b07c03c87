//! `indexed_attention`, `indexed_attention_subgroup`: attention over a list of keys for each query.

use bytemuck::{Pod, Zeroable};

use super::attention::Operand;
use super::merge_partials::f32_operand;
use crate::gpu::shader::Constants;
use crate::limits::{LOOP_ITERATIONS, Limits};
use crate::sparse::Seen;
use crate::{Error, Result};

pub(crate) const NAME: &str = "indexed_attention";
pub(crate) const SUBGROUP: &str = "indexed_attention_subgroup";
/// Groups of four columns to a stage of the kernel without subgroups.
const CHUNK_QUADS: u32 = 8;

/// Everything that a tuning depends on.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) batch: usize,
    pub(crate) heads_q: usize,
    pub(crate) heads_kv: usize,
    pub(crate) seq_q: usize,
    pub(crate) dim_k: usize,
    pub(crate) dim_v: usize,
    /// Slots to a query: entries of a list times keys to an entry.
    pub(crate) slots: usize,
    pub(crate) q: Operand,
    pub(crate) k: Operand,
    pub(crate) v: Operand,
    pub(crate) o: Operand,
    pub(crate) list: bool,
    pub(crate) compact: bool,
    pub(crate) lse: bool,
    pub(crate) seen: Constants,
    /// Parts into which the keys are cut because a binding does not hold them.
    pub(crate) windows: usize,
    /// Splits of the list that the caller insists on.
    pub(crate) splits: Option<u32>,
}

impl Problem {
    /// Query heads to a key-value head.
    pub(crate) fn groups(&self) -> usize {
        self.heads_q / self.heads_kv
    }
}

/// `Params` of `shaders/common/indexed.wgsl`.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    pub(crate) rows: u32,
    pub(crate) heads: u32,
    pub(crate) seq_kv: u32,
    pub(crate) slots: u32,
    pub(crate) block: u32,
    pub(crate) batch_base: u32,
    pub(crate) query_base: u32,
    pub(crate) row_tiles: u32,
    pub(crate) split_base: u32,
    pub(crate) split_slots: u32,
    pub(crate) key_first: u32,
    pub(crate) key_end: u32,
    /// Base and batch, head and row strides.
    pub(crate) q: [u32; 4],
    pub(crate) k: [u32; 4],
    pub(crate) v: [u32; 4],
    pub(crate) list: [u32; 4],
    /// Base, batch, head, row, split.
    pub(crate) o: [u32; 5],
    pub(crate) lse: [u32; 5],
    pub(crate) scale: f32,
    /// `quads_k`, `lanes`, `stages`, `chunk_quads`, `stage_q`, `stage_k`, `stage_v`, `tile`.
    pub(crate) bounds: [u32; 8],
    pub(crate) seen: Seen,
}

/// How a problem is cut.
#[derive(Debug, Clone)]
pub(crate) struct Tuning {
    pub(crate) kernel: &'static str,
    pub(crate) constants: Constants,
    /// Query heads to a workgroup.
    pub(crate) rows: u32,
    pub(crate) splits: u32,
    pub(crate) split_slots: u32,
    pub(crate) bounds: [u32; 8],
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
            Ok(tuning) => return Ok(tuning),
            Err(why) => declined.push(format!("{name}: {why}")),
        }
    }
    Err(Error::NoKernel { operator: "indexed attention", declined })
}

fn subgroup(problem: &Problem, limits: &Limits) -> Result<Tuning> {
    let Some(lanes) = limits.subgroup else {
        return Err(Error::Unsupported {
            kernel: SUBGROUP,
            needs: "subgroup operations and one subgroup size of 4, 8, 16, 32 or 64".into(),
            has: "none, or a range of sizes".into(),
        });
    };
    let quads_k = problem.dim_k.div_ceil(4) as u32;
    let quads_v = problem.dim_v.div_ceil(4) as u32;
    // a row keeps its share of the output in registers, and its sums
    let narrow = limits.software && lanes <= 4;
    let (budget, keys) = match (limits.software, narrow) {
        (true, false) => (640, 4),
        (true, true) => (256, 2),
        (false, _) => (128, if lanes >= 64 { 1 } else { 2 }),
    };
    let fitting = (budget / (4 * quads_v.div_ceil(lanes) + 4 + keys)).max(1);
    let wanted = (problem.groups() as u32).next_power_of_two();
    let rows = 1u32 << fitting.min(wanted).min(if narrow { 4 } else { 16 }).ilog2();
    let stages = quads_k.div_ceil(lanes);
    let tile = lanes * keys;
    let per_tile = (quads_k + stages) + (stages + 1) + (tile + 1) + 1;
    let own = Constants::default()
        .set("LANES", lanes)
        .set("LANES_LOG2", lanes.ilog2())
        .set("ROWS", rows)
        .set("KEYS", keys);
    let mut tuning = Tuning {
        kernel: SUBGROUP,
        constants: own,
        rows,
        splits: 1,
        split_slots: tile,
        bounds: [quads_k, lanes, stages, 0, 0, 0, 0, tile],
        workgroup_bytes: 0,
        iterations: 0,
    };
    split(problem, limits, &mut tuning, per_tile)?;
    Ok(tuning)
}

fn tiled(problem: &Problem, limits: &Limits) -> Result<Tuning> {
    let quads_k = problem.dim_k.div_ceil(4) as u32;
    let quads_v = problem.dim_v.div_ceil(4) as u32;
    let (x, y, keys) = (16, 4, 2);
    let rows = match problem.groups() {
        0..=4 => 1,
        5..=8 => 2,
        _ => 4,
    };
    let threads = x * y;
    if threads > limits.invocations {
        return Err(Error::Unsupported {
            kernel: NAME,
            needs: format!("{threads} invocations to a workgroup"),
            has: limits.invocations.to_string(),
        });
    }
    let (q_tile, tile) = (y * rows, x * keys);
    let pitch = (CHUNK_QUADS + 1).max(x + 1);
    let workgroup_bytes =
        16 * (q_tile * (CHUNK_QUADS + 1) + tile * pitch) + 4 * q_tile * (tile + 1) + 4 * tile;
    if workgroup_bytes > limits.workgroup_memory {
        return Err(Error::WorkgroupMemory {
            kernel: NAME,
            field: "kv_tile",
            value: tile,
            needed: workgroup_bytes,
            allowed: limits.workgroup_memory,
        });
    }
    let stages = quads_v.div_ceil(x);
    let bounds = [quads_k, x, stages, CHUNK_QUADS, q_tile * CHUNK_QUADS, tile * CHUNK_QUADS, tile * x, tile];
    let staged = |words: u32| words.div_ceil(threads);
    let k_stage = staged(bounds[4]) + staged(bounds[5]) + CHUNK_QUADS + 4;
    let v_stage = staged(bounds[6]) + tile + 3;
    let per_tile =
        quads_k.div_ceil(CHUNK_QUADS) * k_stage + stages * v_stage + rows * (x + 1) + staged(tile) + 4;
    let own = Constants::default()
        .set("LANES_X", x)
        .set("LANES_Y", y)
        .set("ROWS", rows)
        .set("KEYS", keys)
        .set("CHUNK_QUADS", CHUNK_QUADS);
    let mut tuning = Tuning {
        kernel: NAME,
        constants: own,
        rows: q_tile,
        splits: 1,
        split_slots: tile,
        bounds,
        workgroup_bytes,
        iterations: 0,
    };
    split(problem, limits, &mut tuning, per_tile)?;
    Ok(tuning)
}

/// Cuts the list so that the device is busy and no invocation loops too long; sets the constants that follow.
fn split(problem: &Problem, limits: &Limits, tuning: &mut Tuning, per_tile: u32) -> Result<()> {
    let tile = tuning.bounds[7];
    let tiles = (problem.slots as u32).div_ceil(tile).max(1);
    let longest = (LOOP_ITERATIONS / 4 * 3 / per_tile).max(1);
    let row_tiles = problem.groups().div_ceil(tuning.rows as usize);
    let groups = (problem.batch * problem.heads_kv * problem.seq_q * row_tiles) as u64;
    let (busy, fewest) = if limits.software { (16, 256) } else { (1024, 128) };
    let wanted = if let Some(splits) = problem.splits {
        splits.clamp(1, tiles)
    } else {
        let useful = tiles.div_ceil(u32::div_ceil(fewest, tile));
        (busy / groups.max(1)).clamp(1, u64::from(useful)) as u32
    };
    let split_tiles = tiles.div_ceil(wanted.max(tiles.div_ceil(longest)));
    tuning.splits = tiles.div_ceil(split_tiles);
    tuning.split_slots = split_tiles * tile;
    tuning.iterations = split_tiles * per_tile + 128;
    if tuning.splits > limits.workgroups {
        return Err(Error::OutOfRange {
            field: "indices",
            value: problem.slots.to_string(),
            bound: format!("cut into at most {} splits", limits.workgroups),
            remedy: "attend to parts of the list and merge the partial results",
        });
    }
    let partial = tuning.splits as usize * problem.windows > 1;
    let o = if partial { f32_operand(problem.dim_v) } else { problem.o };
    let own = std::mem::take(&mut tuning.constants);
    tuning.constants = problem
        .seen
        .clone()
        .set("DIM_K", problem.dim_k as u32)
        .set("DIM_V", problem.dim_v as u32)
        .set("LIST", problem.list)
        .set("COMPACT", problem.compact)
        .set("LSE", problem.lse || partial)
        .set("q", problem.q.loader(limits))
        .set("k", problem.k.loader(limits))
        .set("v", problem.v.loader(limits))
        .set("o", o.storer())
        .with(own);
    Ok(())
}
