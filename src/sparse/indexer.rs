//! The lightning indexer: a score for each pair of query and visible key.

use std::ops::Range;

use super::{
    Prefix, Resolved, axes, bind, check_dtype, check_shape, check_shared, operand, parameter_scale,
    row_stride, stand_in, strides, wrong_shape,
};
use crate::attention::MAX_DIM;
use crate::gpu::{Binding, DType, Gpu, Step, Tensor};
use crate::kernels::indexer::{self as kernel, Params, Problem, Tuning};
use crate::{Error, Result};

/// Scores every visible key for each query with a few small heads (DeepSeek-V3.2's lightning indexer).
///
/// `score[t, s] = sum_h w[t, h] * max(0, scale * dot(q[t, h], k[s]))`, and 0 for keys that the query does not
/// see. Weights may be negative.
///
/// | tensor | shape | storage |
/// |---|---|---|
/// | q | `[batch, seq_q, heads, dim]` | f32, f16, bf16 |
/// | k | `[batch, seq_kv, dim]` | f32, f16, bf16; or 8-bit floats, see [`IndexKeys`] |
/// | w | `[batch, seq_q, heads]` | f32 |
/// | scores | `[batch, seq_q, seq_kv]` | f32 |
///
/// [`SparseAttention`](super::SparseAttention) runs it a slab of queries at a time, so that long contexts need
/// no more memory than top-k reads at once.
#[derive(Debug, Clone)]
pub struct Indexer {
    pub(super) scale: Option<f32>,
    pub(super) visible: Prefix,
    pub(super) kernel: Option<String>,
}

/// Keys of the indexer.
#[derive(Debug, Clone)]
pub enum IndexKeys {
    /// `[batch, seq_kv, dim]`, f32, f16 or bf16.
    Float(Tensor),
    /// 8-bit floats (e4m3: no infinities), four to a word, and a factor for each key.
    E4m3 {
        /// `[batch, seq_kv, dim / 4]`, u32; the first element is the lowest byte.
        words: Tensor,
        /// `[batch, seq_kv]`, f32, above 0.
        scale: Tensor,
    },
}

impl From<&Tensor> for IndexKeys {
    fn from(keys: &Tensor) -> Self {
        Self::Float(keys.clone())
    }
}

impl IndexKeys {
    fn tensor(&self) -> &Tensor {
        match self {
            Self::Float(t) => t,
            Self::E4m3 { words, .. } => words,
        }
    }

    /// Elements of the key's storage that one element of its tensor holds.
    fn packed(&self) -> usize {
        match self {
            Self::Float(_) => 1,
            Self::E4m3 { .. } => 4,
        }
    }

    pub(super) fn shape(&self) -> Result<[usize; 3]> {
        let [batch, seq_kv, dim] = axes("k", self.tensor(), "[batch, seq_kv, dim]")?;
        Ok([batch, seq_kv, dim * self.packed()])
    }
}

/// A checked call.
pub(super) struct Launch<'a> {
    q: &'a Tensor,
    k: &'a IndexKeys,
    w: &'a Tensor,
    heads: usize,
    seq_kv: usize,
    dim: usize,
    scale: f32,
    tuning: Tuning,
    dummy: Binding,
}

impl Indexer {
    /// Each query sees the keys at or before its position.
    #[must_use]
    pub fn causal() -> Self {
        Self::new(Prefix::causal())
    }

    /// Which keys each query sees.
    #[must_use]
    pub fn new(visible: Prefix) -> Self {
        Self { scale: None, visible, kernel: None }
    }

    /// Factor of the dot products, above 0, by default `dim^-0.5`. What a model multiplies by the number of heads
    /// belongs into the weights.
    #[must_use]
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Insists on one kernel by its name in `shaders/`; for tests and measurements.
    #[must_use]
    pub fn kernel(mut self, name: impl Into<String>) -> Self {
        self.kernel = Some(name.into());
        self
    }

    /// Allocates the scores, runs, and returns once the work is submitted; reading back waits.
    ///
    /// # Errors
    /// A refused option, shape, storage type, stride or limit, by name; or the device's own words.
    pub fn run(&self, gpu: &Gpu, q: &Tensor, k: impl Into<IndexKeys>, w: &Tensor) -> Result<Tensor> {
        let k = k.into();
        let [batch, seq_q, ..] = axes::<4>("q", q, "[batch, seq_q, heads, dim]")?;
        let launch = self.check(gpu, q, &k, w)?;
        let scores = Tensor::uninitialised(gpu, DType::F32, [batch, seq_q, k.shape()?[1]])?;
        let resolved = self.visible.resolve(gpu, batch, seq_q, k.shape()?[1])?;
        gpu.run_steps(&resolved.copies, &launch.steps(gpu, &resolved, 0..batch, 0..seq_q, &scores)?)?;
        Ok(scores)
    }

    /// Records the call into the caller's own encoder, writing to the caller's own tensor; submits nothing.
    ///
    /// # Errors
    /// As [`run`](Self::run), and scores of another shape or type, or in the buffer of an input.
    pub fn record(
        &self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        q: &Tensor,
        k: impl Into<IndexKeys>,
        w: &Tensor,
        scores: &Tensor,
    ) -> Result<()> {
        let k = k.into();
        let launch = self.check(gpu, q, &k, w)?;
        let [batch, seq_q, ..] = axes::<4>("q", q, "[batch, seq_q, heads, dim]")?;
        check_dtype("scores", scores, DType::F32)?;
        check_shape("scores", scores, &[batch, seq_q, launch.seq_kv])?;
        row_stride("scores", scores)?;
        check_shared(&[("scores", scores)], &[("q", q), ("k", k.tensor()), ("w", w)])?;
        if let IndexKeys::E4m3 { scale, .. } = &k {
            check_shared(&[("scores", scores)], &[("key scale", scale)])?;
        }
        let resolved = self.visible.resolve(gpu, batch, seq_q, launch.seq_kv)?;
        let steps = launch.steps(gpu, &resolved, 0..batch, 0..seq_q, scores)?;
        gpu.record(encoder, &resolved.copies, &steps)
    }

    /// Refuses what cannot run, before anything is allocated for results.
    pub(super) fn check<'a>(
        &self,
        gpu: &Gpu,
        q: &'a Tensor,
        k: &'a IndexKeys,
        w: &'a Tensor,
    ) -> Result<Launch<'a>> {
        let [batch, seq_q, heads, dim] = axes("q", q, "[batch, seq_q, heads, dim]")?;
        let [kb, seq_kv, kd] = k.shape()?;
        if [kb, kd] != [batch, dim] {
            let expected = format!("[{batch}, seq_kv, {}], like q,", dim / k.packed());
            return Err(wrong_shape("k", k.tensor(), expected, "give q and k the same batch and width"));
        }
        for (field, value, most) in [("dim", dim, MAX_DIM), ("heads", heads, 1 << 12)] {
            if value == 0 || value > most {
                return Err(Error::OutOfRange {
                    field,
                    value: value.to_string(),
                    bound: format!("between 1 and {most}"),
                    remedy: "split wider heads, or add the scores of fewer heads at a time",
                });
            }
        }
        check_dtype("w", w, DType::F32)?;
        check_shape("w", w, &[batch, seq_q, heads])?;
        row_stride("w", w)?;
        if let IndexKeys::E4m3 { words, scale } = k {
            check_dtype("k", words, DType::U32)?;
            row_stride("k", words)?;
            check_dtype("key scale", scale, DType::F32)?;
            check_shape("key scale", scale, &[batch, seq_kv])?;
            row_stride("key scale", scale)?;
        }
        let floats = match k {
            IndexKeys::Float(t) => Some(operand("k", t)?),
            IndexKeys::E4m3 { .. } => None,
        };
        let scale = parameter_scale("scale", self.scale.unwrap_or((dim as f32).powf(-0.5)), true)?;
        let problem = Problem {
            heads,
            dim,
            q: operand("q", q)?,
            k: floats,
            key_scale: floats.is_none(),
            seen: self.visible.constants(),
        };
        let tuning = kernel::tune(&problem, gpu.limits(), self.kernel.as_deref())?;
        Ok(Launch { q, k, w, heads, seq_kv, dim, scale, tuning, dummy: stand_in(gpu, "absent input")? })
    }
}

impl Launch<'_> {
    /// Dispatches for some queries of some batch entries, whose scores `scores` holds.
    pub(super) fn steps(
        &self,
        gpu: &Gpu,
        resolved: &Resolved,
        batch: Range<usize>,
        queries: Range<usize>,
        scores: &Tensor,
    ) -> Result<Vec<Step>> {
        let (limits, tuning) = (gpu.limits(), &self.tuning);
        if batch.is_empty() || queries.is_empty() || self.seq_kv == 0 {
            return Ok(Vec::new());
        }
        let blocks = self.seq_kv.div_ceil(tuning.block as usize);
        let block_flops = (2 * self.heads * self.dim) as u64 * u64::from(tuning.block);
        // a dispatch takes some blocks of one query, or all blocks of some queries, or all of some batch entries
        let budget = (limits.dispatch_flops / block_flops).max(1) as usize;
        let most = limits.workgroups as usize;
        let held = |t: &Tensor, stride: usize| t.strides()[stride].max(1) * t.dtype().bytes();
        let room = (limits.binding_bytes / 2) as usize;
        let blocks_now = blocks
            .min(budget)
            .min(most)
            .min((room / held(self.k.tensor(), 1) / tuning.block as usize).max(1));
        let queries_now = (budget / blocks).clamp(1, queries.len()).min(most);
        let queries_now =
            queries_now.min((room / held(self.q, 1)).max(1)).min((room / held(scores, 1)).max(1));
        let widest = held(self.q, 0).max(held(self.k.tensor(), 0)).max(held(scores, 0));
        let entries =
            (budget / blocks / queries.len()).clamp(1, batch.len()).min(most).min((room / widest).max(1));
        let mut steps = Vec::new();
        for b in batch.clone().step_by(entries) {
            let entries = b..(b + entries).min(batch.end);
            for i in queries.clone().step_by(queries_now) {
                let rows = i..(i + queries_now).min(queries.end);
                for first in (0..blocks).step_by(blocks_now) {
                    let blocks = first..(first + blocks_now).min(blocks);
                    let local = [
                        entries.start - batch.start..entries.end - batch.start,
                        rows.start - queries.start..rows.end - queries.start,
                    ];
                    let [sb, sq] = strides(scores);
                    let skipped = (batch.start as u32)
                        .wrapping_mul(sb)
                        .wrapping_add((queries.start as u32).wrapping_mul(sq));
                    let (out, out_base) = bind(gpu, "scores", scores, &local)?;
                    let out_at = [out_base.wrapping_sub(skipped), sb, sq];
                    steps.push(self.step(
                        gpu,
                        resolved,
                        [entries.clone(), rows.clone(), blocks],
                        (out, out_at),
                    )?);
                }
            }
        }
        Ok(steps)
    }

    fn step(
        &self,
        gpu: &Gpu,
        resolved: &Resolved,
        [batch, rows, blocks]: [Range<usize>; 3],
        (scores, scores_at): (Binding, [u32; 3]),
    ) -> Result<Step> {
        let tuning = &self.tuning;
        let block = tuning.block as usize;
        let keys = blocks.start * block..(blocks.end * block).min(self.seq_kv);
        let (q, q_base) = bind(gpu, "q", self.q, &[batch.clone(), rows.clone()])?;
        let (k, k_base) = bind(gpu, "k", self.k.tensor(), &[batch.clone(), keys.clone()])?;
        let (w, w_base) = bind(gpu, "w", self.w, &[batch.clone(), rows.clone()])?;
        let packed = self.k.packed() as u32;
        let [kb, ks] = strides(self.k.tensor());
        let [qb, qs, qh] = strides(self.q);
        let [wb, ws] = strides(self.w);
        let (factor, key_scale) = match self.k {
            IndexKeys::Float(_) => (self.dummy.clone(), [0; 2]),
            IndexKeys::E4m3 { scale, .. } => {
                let (binding, base) = bind(gpu, "key scale", scale, &[batch.clone(), keys])?;
                (binding, [base, strides::<1>(scale)[0]])
            }
        };
        let params = Params {
            heads: self.heads as u32,
            seq_kv: self.seq_kv as u32,
            batch_base: batch.start as u32,
            query_base: rows.start as u32,
            block_base: blocks.start as u32,
            block: tuning.block,
            q: [q_base, qb, qs, qh],
            k: [k_base.wrapping_mul(packed), kb.wrapping_mul(packed), ks.wrapping_mul(packed)],
            w: [w_base, wb, ws],
            key_scale,
            scores: scores_at,
            scale: self.scale,
            bounds: tuning.bounds,
            seen: resolved.seen,
        };
        let flops = (2 * self.heads * self.dim * block) as u64;
        Ok(Step {
            kernel: tuning.kernel,
            constants: tuning.constants.clone(),
            params: bytemuck::bytes_of(&params).to_vec(),
            bindings: vec![q, k, w, factor, resolved.table.clone(), scores],
            groups: [blocks.len() as u32, rows.len() as u32, batch.len() as u32],
            flops: flops * (blocks.len() * rows.len() * batch.len()) as u64,
        })
    }
}
