//! `top_k_count`, `top_k_pick`, `top_k_gather`: the k best scores of each row.

use bytemuck::{Pod, Zeroable};

use crate::gpu::shader::Constants;
use crate::gpu::{Binding, Step};
use crate::limits::Limits;
use crate::sparse::Seen;
use crate::{Error, Result};

pub(crate) const COUNT: &str = "top_k_count";
pub(crate) const PICK: &str = "top_k_pick";
pub(crate) const GATHER: &str = "top_k_gather";

/// Values of a digit: 11 bits, so that three digits make 32.
const BINS: u32 = 2048;
/// Lowest bit of each digit.
const SHIFTS: [u32; 3] = [21, 10, 0];
/// Longest row: segments stay few and short enough for the bound on loop iterations.
pub(crate) const MAX_ROW: usize = 1 << 24;
/// Most indices to a row, for the same reason.
pub(crate) const MAX_K: usize = 1 << 20;
/// Memory for the counters of the rows that one series of dispatches covers.
const WORK_BYTES: u64 = 64 << 20;

/// `Params` of `shaders/common/top_k.wgsl`.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    pub(crate) batch_base: u32,
    pub(crate) query_base: u32,
    pub(crate) queries: u32,
    pub(crate) seq_kv: u32,
    pub(crate) k: u32,
    pub(crate) segment: u32,
    pub(crate) segments: u32,
    pub(crate) shift: u32,
    pub(crate) first: u32,
    /// Base, batch, row.
    pub(crate) scores: [u32; 3],
    pub(crate) out: [u32; 3],
    pub(crate) counts: [u32; 3],
    pub(crate) tally_at: u32,
    pub(crate) counters_at: u32,
    /// `bins`, `lanes`, `lane_bins`, `lane_scores`.
    pub(crate) bounds: [u32; 4],
    pub(crate) seen: Seen,
}

/// How rows are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tuning {
    pub(crate) lanes: u32,
    /// Scores to a workgroup.
    pub(crate) segment: u32,
    /// Workgroups to a row.
    pub(crate) segments: u32,
    /// Loop iterations that an invocation runs at most.
    pub(crate) iterations: u32,
}

/// Cuts `rows` rows of `seq_kv` scores.
pub(crate) fn tune(rows: usize, seq_kv: usize, k: usize, limits: &Limits) -> Result<Tuning> {
    let bounded = |field, value: usize, most: usize, remedy| {
        if value <= most {
            return Ok(());
        }
        Err(Error::OutOfRange { field, value: value.to_string(), bound: format!("at most {most}"), remedy })
    };
    bounded("seq_kv", seq_kv, MAX_ROW, "choose from parts of the row, then among the chosen")?;
    bounded("k", k, MAX_K, "choose fewer")?;
    let lanes = if limits.software { 64 } else { limits.invocations.min(256) };
    // a row alone is cut finely, to busy the device; of many rows each is cut as little as it may be
    let shortest = if rows < 64 { 4096 } else { 32_768 };
    let segment =
        seq_kv.div_ceil(256).max(shortest).min(seq_kv.max(1)).next_multiple_of(lanes as usize) as u32;
    let segments = seq_kv.max(1).div_ceil(segment as usize) as u32;
    let (lane_bins, lane_scores) = (BINS / lanes, segment / lanes);
    let count = 2 * (lane_bins + 1) + lane_scores + 1;
    let pick =
        lane_bins * (segments + 2) + 2 * (lane_bins + 1) + lanes + segments.div_ceil(lanes) * (BINS + 2);
    let gather =
        2 * (lane_scores + 1) + segments + lanes + k.div_ceil((segments * lanes) as usize) as u32 + 3;
    let iterations = count.max(pick).max(gather);
    Ok(Tuning { lanes, segment, segments, iterations })
}

impl Tuning {
    /// Workgroup memory of a kernel in bytes.
    pub(crate) fn workgroup_bytes(&self, kernel: &str) -> u32 {
        match kernel {
            COUNT => 4 * BINS,
            PICK => 4 * (BINS + self.lanes + 3),
            _ => 8 * self.lanes,
        }
    }

    /// Words of working memory for each row: state, tallies, counters.
    fn words(&self) -> [u64; 3] {
        [4, 2 * u64::from(self.segments), u64::from(self.segments * BINS)]
    }

    /// Bytes of working memory for `rows` rows.
    pub(crate) fn work_bytes(&self, rows: usize) -> u64 {
        4 * rows as u64 * self.words().iter().sum::<u64>()
    }

    /// Rows that one series of dispatches may cover.
    pub(crate) fn rows_at_once(&self, seq_kv: usize, limits: &Limits) -> usize {
        let memory = WORK_BYTES.min(limits.binding_bytes) / self.work_bytes(1);
        let time = limits.dispatch_flops / self.flops(seq_kv);
        memory.min(time).clamp(1, u64::from(limits.workgroups)) as usize
    }

    /// Work of a row in one dispatch: counting a score costs as much as a hundred operations.
    #[expect(clippy::unused_self, reason = "other cuts may cost more")]
    fn flops(&self, seq_kv: usize) -> u64 {
        100 * seq_kv.max(1) as u64
    }
}

pub(crate) fn constants(tuning: &Tuning, seen: Constants) -> Constants {
    seen.set("LANES", tuning.lanes).set("BINS", BINS)
}

/// Dispatches for `batch` batch entries of `params.queries` rows. Bindings: scores, table, work, indices, counts.
pub(crate) fn steps(
    tuning: &Tuning,
    seen: &Constants,
    params: Params,
    batch: u32,
    bindings: &[Binding; 5],
) -> Vec<Step> {
    let [scores, table, work, indices, counts] = bindings.clone();
    let rows = batch * params.queries;
    let [state, tally, _] = tuning.words();
    let params = Params {
        segment: tuning.segment,
        segments: tuning.segments,
        tally_at: (u64::from(rows) * state) as u32,
        counters_at: (u64::from(rows) * (state + tally)) as u32,
        bounds: [BINS, tuning.lanes, BINS / tuning.lanes, tuning.segment / tuning.lanes],
        ..params
    };
    let constants = constants(tuning, seen.clone());
    let step = |kernel, params: Params, bindings: Vec<Binding>, groups| Step {
        kernel,
        constants: constants.clone(),
        params: bytemuck::bytes_of(&params).to_vec(),
        bindings,
        groups,
        flops: u64::from(rows) * tuning.flops(params.seq_kv as usize),
    };
    let over_rows = [tuning.segments, params.queries, batch];
    let mut steps = Vec::new();
    for (pass, shift) in SHIFTS.into_iter().enumerate() {
        let params = Params { shift, first: u32::from(pass == 0), ..params };
        let inputs = vec![scores.clone(), table.clone(), work.clone()];
        steps.push(step(COUNT, params, inputs, over_rows));
        steps.push(step(PICK, params, vec![table.clone(), work.clone()], [params.queries, batch, 1]));
    }
    steps.push(step(GATHER, params, vec![scores, table, work, indices, counts], over_rows));
    steps
}
