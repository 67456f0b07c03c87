//! Indexer, top-k and attention over the chosen keys as one recorded sequence.

use super::indexed::IndexedAttention;
use super::{IndexKeys, Indexer, Prefix, TopK, TopKOutput, axes, check_shape, check_shared, top_k};
use crate::attention::AttentionOutput;
use crate::gpu::{Copy, DType, Gpu, Step, Tensor};
use crate::{Error, Result};

/// `DeepSeek` sparse attention: each query attends to the `k` keys that its indexer scores highest.
///
/// One sequence of dispatches without reading back. Scores exist only for a slab of queries at a time. Where at
/// most `k` keys are visible the result is that of dense attention over them.
///
/// Queries and keys are those of [`IndexedAttention`]: latents (`k` 576 wide, `v` a view of its first 512
/// columns, one key-value head) or ordinary keys and values.
///
/// ```no_run
/// use wgpu_attention::{Gpu, IndexInputs, SparseAttention, Tensor};
/// let gpu = Gpu::new()?;
/// let latents = Tensor::from_slice(&gpu, &vec![0.5_f32; 4096 * 576], [1, 1, 4096, 576])?;
/// let v = latents.narrow(3, 0, 512)?;
/// let q = Tensor::from_slice(&gpu, &vec![0.5_f32; 16 * 576], [1, 16, 1, 576])?;
/// let index = IndexInputs {
///     q: Tensor::from_slice(&gpu, &vec![0.5_f32; 64 * 128], [1, 1, 64, 128])?,
///     k: (&Tensor::from_slice(&gpu, &vec![0.5_f32; 4096 * 128], [1, 4096, 128])?).into(),
///     w: Tensor::from_slice(&gpu, &vec![0.1_f32; 64], [1, 1, 64])?,
/// };
/// let out = SparseAttention::causal(2048).run(&gpu, &q, &latents, &v, &index)?;
/// let o: Vec<f32> = out.attention.o.read(&gpu)?;
/// # Ok::<(), wgpu_attention::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct SparseAttention {
    indexer: Indexer,
    top_k: TopK,
    attention: IndexedAttention,
}

/// Inputs of the indexer, as in [`Indexer`].
#[derive(Debug, Clone)]
pub struct IndexInputs {
    /// `[batch, seq_q, heads, dim]`
    pub q: Tensor,
    /// `[batch, seq_kv, dim]`
    pub k: IndexKeys,
    /// `[batch, seq_q, heads]`, f32.
    pub w: Tensor,
}

/// Where the results of [`SparseAttention`] lie.
#[derive(Debug, Clone)]
pub struct SparseOutput {
    /// Attention over the chosen keys.
    pub attention: AttentionOutput,
    /// The chosen keys.
    pub chosen: TopKOutput,
}

/// Scores of this many bytes exist at once.
const SLAB_BYTES: u64 = 32 << 20;

impl SparseAttention {
    /// Chooses among the keys at or before each query's position.
    #[must_use]
    pub fn causal(k: usize) -> Self {
        Self::new(k, &Prefix::causal())
    }

    /// Chooses among the keys that each query sees.
    #[must_use]
    pub fn new(k: usize, visible: &Prefix) -> Self {
        Self {
            indexer: Indexer::new(visible.clone()),
            top_k: TopK::new(k).visible(visible.clone()),
            attention: IndexedAttention::new(visible.clone()).compact(),
        }
    }

    /// Factor of the attention's scores, by default `dim_k^-0.5`.
    #[must_use]
    pub fn scale(mut self, scale: f32) -> Self {
        self.attention = self.attention.scale(scale);
        self
    }

    /// Factor of the indexer's dot products, by default its `dim^-0.5`.
    #[must_use]
    pub fn index_scale(mut self, scale: f32) -> Self {
        self.indexer = self.indexer.scale(scale);
        self
    }

    /// Storage type of `o` in [`run`](Self::run), by default f32.
    #[must_use]
    pub fn output(mut self, dtype: DType) -> Self {
        self.attention = self.attention.output(dtype);
        self
    }

    /// Insists on kernels with (`true`) or without subgroups; for tests and measurements.
    #[must_use]
    pub fn subgroups(mut self, wanted: bool) -> Self {
        use crate::kernels::{indexed_attention, indexer};
        let pick = |with, without| if wanted { with } else { without };
        self.indexer = self.indexer.kernel(pick(indexer::SUBGROUP, indexer::NAME));
        self.attention = self.attention.kernel(pick(indexed_attention::SUBGROUP, indexed_attention::NAME));
        self
    }

    /// Allocates the results, runs, and returns once the work is submitted; reading back waits.
    ///
    /// # Errors
    /// A refused option, shape, storage type, stride or limit, by name; or the device's own words.
    pub fn run(
        &self,
        gpu: &Gpu,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        index: &IndexInputs,
    ) -> Result<SparseOutput> {
        let [batch, _, seq_q, _] = axes("q", q, "[batch, heads, seq, dim]")?;
        self.top_k.check(index.k.shape()?[1])?;
        let attention = self.attention.allocate(gpu, q, k, v)?;
        let chosen = TopKOutput::allocate(gpu, batch, seq_q, self.top_k.k)?;
        let out = SparseOutput { attention, chosen };
        let (copies, steps) = self.launch(gpu, q, k, v, index, &out)?;
        gpu.run_steps(&copies, &steps)?;
        Ok(out)
    }

    /// Records the call into the caller's own encoder, writing to the caller's own tensors; submits nothing.
    ///
    /// # Errors
    /// As [`run`](Self::run), and outputs that share a buffer with an input or with each other.
    #[expect(
        clippy::too_many_arguments,
        reason = "four inputs and an output, as `Attention::record` plus the index"
    )]
    pub fn record(
        &self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        index: &IndexInputs,
        out: &SparseOutput,
    ) -> Result<()> {
        let (copies, steps) = self.launch(gpu, q, k, v, index, out)?;
        gpu.record(encoder, &copies, &steps)
    }

    fn launch(
        &self,
        gpu: &Gpu,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        index: &IndexInputs,
        out: &SparseOutput,
    ) -> Result<(Vec<Copy>, Vec<Step>)> {
        let [batch, heads, seq_q, _] = axes("q", q, "[batch, heads, seq, dim]")?;
        let [_, _, seq_kv, _] = axes("k", k, "[batch, heads, seq, dim]")?;
        let [index_batch, index_seq, ..] = axes::<4>("index q", &index.q, "[batch, seq_q, heads, dim]")?;
        for (field, got, wanted) in [
            ("index q", [index_batch, index_seq], [batch, seq_q]),
            ("index k", [index.k.shape()?[0], index.k.shape()?[1]], [batch, seq_kv]),
        ] {
            if got != wanted {
                return Err(Error::Shape {
                    field,
                    shape: got.to_vec(),
                    expected: format!("the batch and length {wanted:?} of the attention's"),
                    remedy: "index the queries and keys that are attended",
                });
            }
        }
        self.top_k.check(seq_kv)?;
        self.top_k.check_outputs(&out.chosen, batch, seq_q)?;
        check_shape("indices", &out.chosen.indices, &[batch, seq_q, self.top_k.k])?;
        let indexer = self.indexer.check(gpu, &index.q, &index.k, &index.w)?;
        let chosen = [("indices", &out.chosen.indices), ("counts", &out.chosen.counts)];
        let inputs = [("q", q), ("k", k), ("v", v), ("index q", &index.q), ("index w", &index.w)];
        check_shared(&chosen, &inputs)?;
        let attention = self.attention.check(gpu, q, k, v, Some(&out.chosen.indices), &out.attention)?;
        if batch * heads * seq_q == 0 {
            return Ok((Vec::new(), Vec::new()));
        }
        let resolved = attention.resolve(gpu, self.attention.visible())?;

        // as many queries of one batch entry as the slab holds; all entries where they fit whole
        let row = seq_kv.max(1) as u64 * 4;
        let rows = (SLAB_BYTES.min(gpu.limits().binding_bytes / 2) / row).max(1) as usize;
        let entries = (rows / seq_q).clamp(1, batch);
        let queries = rows.clamp(1, seq_q);
        let scores = Tensor::uninitialised(gpu, DType::F32, [entries, queries, seq_kv])?;
        let mut steps = Vec::new();
        for b in (0..batch).step_by(entries) {
            for i in (0..seq_q).step_by(queries) {
                let batch = b..(b + entries).min(batch);
                let queries = i..(i + queries).min(seq_q);
                steps.extend(indexer.steps(gpu, &resolved, batch.clone(), queries.clone(), &scores)?);
                let slab = top_k::Slab { scores: &scores, batch, queries };
                steps.extend(self.top_k.steps(gpu, &resolved, &slab, &out.chosen)?);
            }
        }
        steps.extend(attention.steps(gpu, &resolved)?);
        Ok((resolved.copies, steps))
    }
}
