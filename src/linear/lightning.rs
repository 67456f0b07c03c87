//! Lightning attention (`MiniMax`).

use super::common::{Sequences, axes, check_float, sequence_options};
use super::decayed::Decayed;
use crate::Result;
use crate::gpu::{DType, Gpu, Tensor};

/// Outputs of lightning attention.
///
/// | tensor | shape | storage |
/// |---|---|---|
/// | o | `[batch, heads, tokens, dim_v]`, packed | f32, or as [`LightningAttention::output`] says |
/// | state | `[sequences, heads, dim_k, dim_v]`, or `[tokens + 1, …]` with [`LightningAttention::keep_states`] | f32 |
#[derive(Debug, Clone)]
pub struct LightningOutput {
    /// What each token reads. At tokens of no sequence it is not defined.
    pub o: Tensor,
    /// The state after the last token. It may be the very tensor given as initial state: then it is updated in place.
    pub state: Tensor,
}

/// Lightning attention: linear attention whose state decays by a constant factor a head.
///
/// For each token, with a state `S` of `dim_k` rows and `dim_v` columns: `S <- exp(-slope) S + k v^T`, `o = S^T q`.
/// No scale, no normaliser. Any number of tokens, none included; splitting a call anywhere changes rounding only.
///
/// ```no_run
/// # use wgpu_attention::{Gpu, Tensor, linear::LightningAttention};
/// # fn f(gpu: &Gpu, q: &Tensor, k: &Tensor, v: &Tensor, slope: &Tensor) -> wgpu_attention::Result<()> {
/// let prompt = LightningAttention::new(slope).run(gpu, q, k, v)?;
/// let next = LightningAttention::new(slope).initial_state(&prompt.state);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct LightningAttention {
    slope: Tensor,
    initial: Option<Tensor>,
    sequences: Sequences,
    keep: bool,
    output: DType,
    kernel: Option<String>,
}

impl LightningAttention {
    /// With the slope of each head, `[heads]` in f32, packed, at least 0: decays are `exp(-slope)`.
    #[must_use]
    pub fn new(slope: &Tensor) -> Self {
        Self {
            slope: slope.clone(),
            initial: None,
            sequences: Sequences::default(),
            keep: false,
            output: DType::F32,
            kernel: None,
        }
    }

    /// The state to start from, `[sequences, heads, dim_k, dim_v]` in f32, packed; zeros by default.
    #[must_use]
    pub fn initial_state(mut self, state: &Tensor) -> Self {
        self.initial = Some(state.clone());
        self
    }

    sequence_options!();

    /// Insists on one way to compute: `linear_step`, a token after another, or `linear_chunk`, chunks side by side.
    #[must_use]
    pub fn kernel(mut self, name: &str) -> Self {
        self.kernel = Some(name.to_owned());
        self
    }

    /// Computes into new tensors. `q`, `k` are `[batch, heads, tokens, dim_k]`, `v` `[batch, heads, tokens, dim_v]`; f32,
    /// f16 or bf16, views in any layout whose last axis is packed; widths from 1 to 256.
    ///
    /// # Errors
    /// Tensors of unfitting shapes, strides or storage, options that clash, tensors beyond what the device binds at
    /// once, or what the device itself refuses.
    pub fn run(&self, gpu: &Gpu, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<LightningOutput> {
        check_float("output", self.output)?;
        let call = self.call(q, k, v)?;
        let [o, state] = call.output_shapes()?;
        let out = LightningOutput {
            o: Tensor::uninitialised(gpu, self.output, o)?,
            state: Tensor::uninitialised(gpu, DType::F32, state)?,
        };
        let (copies, steps) = call.launch(gpu, &out.o, &out.state)?;
        gpu.run_steps(&copies, &steps)?;
        Ok(out)
    }

    /// Records the call into the caller's own encoder; submits nothing.
    ///
    /// # Errors
    /// As [`run`](Self::run), and outputs that are strided, of another shape, or in an input's buffer.
    pub fn record(
        &self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        [q, k, v]: [&Tensor; 3],
        out: &LightningOutput,
    ) -> Result<()> {
        let (copies, steps) = self.call(q, k, v)?.launch(gpu, &out.o, &out.state)?;
        gpu.record(encoder, &copies, &steps)
    }

    fn call(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Decayed<'_>> {
        for (field, t) in [("q", q), ("k", k), ("v", v)] {
            axes::<4>(field, t, "[batch, heads, tokens, dim]")?;
        }
        Ok(Decayed {
            names: ["q", "k", "v"],
            q: q.clone(),
            k: k.clone(),
            v: v.clone(),
            dt: None,
            decay: ("slope", &self.slope),
            skip: None,
            dt_bias: None,
            dt_limit: [f32::MIN, f32::MAX],
            initial: self.initial.as_ref(),
            sequences: &self.sequences,
            keep: self.keep,
            kernel: self.kernel.as_deref(),
            output: "o",
            tokens_first: false,
        })
    }
}
