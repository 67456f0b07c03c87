//! The k best scores of each row.

use std::ops::Range;

use super::{Prefix, Resolved, axes, bind, check_dtype, check_shape, check_shared, row_stride, strides};
use crate::gpu::{DType, Gpu, Step, Tensor};
use crate::kernels::top_k::{self as kernel, Params};
use crate::{Error, Result};

/// Chooses the `k` largest scores of each row, exactly and in the same way each time.
///
/// | tensor | shape | storage |
/// |---|---|---|
/// | scores | `[batch, seq_q, seq_kv]` | f32 |
/// | indices | `[batch, seq_q, k]`, ascending, -1 from `counts` on | i32 |
/// | counts | `[batch, seq_q]`: the lesser of k and the keys that the query sees | u32 |
///
/// Of equal scores the earlier key wins; -0 equals 0. NaN comes last of all, whatever its sign: it is chosen
/// only where fewer than k visible scores are numbers. Hidden scores are not read. Rows may be 2^24 long, and
/// `k` up to 2^20.
///
/// ```no_run
/// use wgpu_attention::{Gpu, Tensor, TopK};
/// let gpu = Gpu::new()?;
/// let scores = Tensor::from_slice(&gpu, &[0.5_f32, 2.0, -1.0, 2.0], [1, 1, 4])?;
/// let chosen = TopK::new(2).run(&gpu, &scores)?;
/// let indices: Vec<i32> = chosen.indices.read(&gpu)?; // 1, 3
/// # Ok::<(), wgpu_attention::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct TopK {
    pub(super) k: usize,
    pub(super) visible: Prefix,
}

/// Where the results of [`TopK`] lie.
#[derive(Debug, Clone)]
pub struct TopKOutput {
    /// `[batch, seq_q, k]`, i32.
    pub indices: Tensor,
    /// `[batch, seq_q]`, u32.
    pub counts: Tensor,
}

impl TopKOutput {
    pub(super) fn allocate(gpu: &Gpu, batch: usize, seq_q: usize, k: usize) -> Result<Self> {
        Ok(Self {
            indices: Tensor::uninitialised(gpu, DType::I32, [batch, seq_q, k])?,
            counts: Tensor::uninitialised(gpu, DType::U32, [batch, seq_q])?,
        })
    }
}

/// Scores of some queries of some batch entries: all of a caller's, or scratch that holds a slab.
pub(super) struct Slab<'a> {
    pub(super) scores: &'a Tensor,
    /// Batch entries and queries that `scores` holds.
    pub(super) batch: Range<usize>,
    pub(super) queries: Range<usize>,
}

impl TopK {
    /// The `k` best of every row; every key is visible.
    #[must_use]
    pub fn new(k: usize) -> Self {
        Self { k, visible: Prefix::all() }
    }

    /// Which scores a row has; by default all.
    #[must_use]
    pub fn visible(mut self, visible: Prefix) -> Self {
        self.visible = visible;
        self
    }

    /// Allocates the results, runs, and returns once the work is submitted; reading back waits.
    ///
    /// # Errors
    /// Scores that are not f32 `[batch, seq_q, seq_kv]`, a `k` of 0 or beyond 2^20, a refused limit, or the
    /// device's own words.
    pub fn run(&self, gpu: &Gpu, scores: &Tensor) -> Result<TopKOutput> {
        let [batch, seq_q, seq_kv] = axes("scores", scores, "[batch, seq_q, seq_kv]")?;
        self.check(seq_kv)?;
        let out = TopKOutput::allocate(gpu, batch, seq_q, self.k)?;
        let (resolved, steps) = self.launch(gpu, scores, &out)?;
        gpu.run_steps(&resolved.copies, &steps)?;
        Ok(out)
    }

    /// Records the call into the caller's own encoder, writing to the caller's own tensors; submits nothing.
    ///
    /// # Errors
    /// As [`run`](Self::run), and outputs of another shape or type, or in the buffer of `scores` or of each other.
    pub fn record(
        &self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        scores: &Tensor,
        out: &TopKOutput,
    ) -> Result<()> {
        let (resolved, steps) = self.launch(gpu, scores, out)?;
        gpu.record(encoder, &resolved.copies, &steps)
    }

    fn launch(&self, gpu: &Gpu, scores: &Tensor, out: &TopKOutput) -> Result<(Resolved, Vec<Step>)> {
        let [batch, seq_q, seq_kv] = axes("scores", scores, "[batch, seq_q, seq_kv]")?;
        self.check(seq_kv)?;
        check_dtype("scores", scores, DType::F32)?;
        row_stride("scores", scores)?;
        self.check_outputs(out, batch, seq_q)?;
        check_shared(&[("indices", &out.indices), ("counts", &out.counts)], &[("scores", scores)])?;
        let resolved = self.visible.resolve(gpu, batch, seq_q, seq_kv)?;
        let slab = Slab { scores, batch: 0..batch, queries: 0..seq_q };
        let steps = self.steps(gpu, &resolved, &slab, out)?;
        Ok((resolved, steps))
    }

    pub(super) fn check(&self, seq_kv: usize) -> Result<()> {
        if self.k == 0 {
            return Err(Error::OutOfRange {
                field: "k",
                value: "0".into(),
                bound: format!("between 1 and {}", kernel::MAX_K),
                remedy: "choose at least one",
            });
        }
        kernel::tune(1, seq_kv, self.k, &crate::Limits::webgpu()).map(|_| ())
    }

    pub(super) fn check_outputs(&self, out: &TopKOutput, batch: usize, seq_q: usize) -> Result<()> {
        check_dtype("indices", &out.indices, DType::I32)?;
        check_shape("indices", &out.indices, &[batch, seq_q, self.k])?;
        row_stride("indices", &out.indices)?;
        check_dtype("counts", &out.counts, DType::U32)?;
        check_shape("counts", &out.counts, &[batch, seq_q])?;
        check_shared(&[("counts", &out.counts)], &[("indices", &out.indices)])
    }

    /// Dispatches for the rows of a slab.
    pub(super) fn steps(
        &self,
        gpu: &Gpu,
        resolved: &Resolved,
        slab: &Slab<'_>,
        out: &TopKOutput,
    ) -> Result<Vec<Step>> {
        let limits = gpu.limits();
        let seq_kv = slab.scores.shape()[2];
        let (all, queries) = (slab.batch.len(), slab.queries.len());
        if all * queries == 0 {
            return Ok(Vec::new());
        }
        let tuning = kernel::tune(all * queries, seq_kv, self.k, limits)?;
        let at_once = tuning.rows_at_once(seq_kv, limits);
        // as many whole batch entries as fit, or else a part of one
        let held = |t: &Tensor| t.strides()[0].max(1) as u64 * 4;
        let widest = held(slab.scores).max(held(&out.indices));
        let fitting = ((limits.binding_bytes / 2) / widest).max(1) as usize;
        let entries = (at_once / queries).clamp(1, all).min(fitting);
        let rows = (at_once / entries).clamp(1, queries);
        let work = gpu.buffer("top-k counters", tuning.work_bytes(entries * rows))?;
        let work = crate::gpu::Binding { size: work.size(), buffer: work, offset: 0 };
        let mut steps = Vec::new();
        for b in slab.batch.clone().step_by(entries) {
            for i in slab.queries.clone().step_by(rows) {
                let batch = b..(b + entries).min(slab.batch.end);
                let queries = i..(i + rows).min(slab.queries.end);
                let local = [
                    batch.start - slab.batch.start..batch.end - slab.batch.start,
                    queries.start - slab.queries.start..queries.end - slab.queries.start,
                ];
                let (scores, base) = bind(gpu, "scores", slab.scores, &local)?;
                let [sb, sq] = strides(slab.scores);
                // the kernel counts batch entries and queries from 0
                let skipped = (slab.batch.start as u32)
                    .wrapping_mul(sb)
                    .wrapping_add((slab.queries.start as u32).wrapping_mul(sq));
                let whole = [batch.clone(), queries.clone()];
                let (indices, indices_base) = bind(gpu, "indices", &out.indices, &whole)?;
                let (counts, counts_base) = bind(gpu, "counts", &out.counts, &whole)?;
                let [ob, oq] = strides(&out.indices);
                let [cb, cq] = strides(&out.counts);
                let params = Params {
                    batch_base: batch.start as u32,
                    query_base: queries.start as u32,
                    queries: queries.len() as u32,
                    seq_kv: seq_kv as u32,
                    k: self.k as u32,
                    scores: [base.wrapping_sub(skipped), sb, sq],
                    out: [indices_base, ob, oq],
                    counts: [counts_base, cb, cq],
                    seen: resolved.seen,
                    ..Params::default()
                };
                let bindings = [scores, resolved.table.clone(), work.clone(), indices, counts];
                steps.extend(kernel::steps(
                    &tuning,
                    &resolved.constants,
                    params,
                    batch.len() as u32,
                    &bindings,
                ));
            }
        }
        Ok(steps)
    }
}
