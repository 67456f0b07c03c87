//! State-space duality (Mamba-2).

use super::common::{Sequences, axes, check_float, sequence_options};
use super::decayed::Decayed;
use crate::gpu::{DType, Gpu, Tensor};
use crate::{Error, Result};

/// Inputs of SSD; views in any layout whose last axis is packed.
///
/// | tensor | shape | storage |
/// |---|---|---|
/// | x | `[batch, tokens, heads, dim]` | f32, f16, bf16 |
/// | dt | `[batch, tokens, heads]`, any strides | f32 |
/// | b, c | `[batch, tokens, groups, dim_state]` | f32, f16, bf16 |
#[derive(Debug, Clone, Copy)]
pub struct SsdInputs<'a> {
    /// What is written.
    pub x: &'a Tensor,
    /// Step size of each token, or what it is made from ([`Ssd::dt_bias`]).
    pub dt: &'a Tensor,
    /// How each token is written; head `h` uses group `h / (heads / groups)`.
    pub b: &'a Tensor,
    /// How each token reads.
    pub c: &'a Tensor,
}

/// Outputs of SSD.
///
/// | tensor | shape | storage |
/// |---|---|---|
/// | y | `[batch, tokens, heads, dim]`, packed | f32, or as [`Ssd::output`] says |
/// | state | `[sequences, heads, dim, dim_state]`, or `[tokens + 1, …]` with [`Ssd::keep_states`] | f32 |
#[derive(Debug, Clone)]
pub struct SsdOutput {
    /// What each token reads. At tokens of no sequence it is not defined.
    pub y: Tensor,
    /// The state after the last token. It may be the very tensor given as initial state: then it is updated in place.
    pub state: Tensor,
}

/// Mamba-2's recurrence, with one decay a token and head.
///
/// For each token, with a state `h` of `dim` rows and `dim_state` columns:
/// `h <- exp(dt a) h + dt x b^T`, `y = h c + skip x`. Any number of tokens, none included; splitting a call anywhere
/// changes rounding only.
///
/// ```no_run
/// # use wgpu_attention::{Gpu, Tensor, linear::{Ssd, SsdInputs}};
/// # fn f(gpu: &Gpu, x: &Tensor, dt: &Tensor, b: &Tensor, c: &Tensor, a: &Tensor) -> wgpu_attention::Result<()> {
/// let prompt = Ssd::new(a).run(gpu, &SsdInputs { x, dt, b, c })?;
/// let next = Ssd::new(a).initial_state(&prompt.state);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Ssd {
    a: Tensor,
    skip: Option<Tensor>,
    dt_bias: Option<Tensor>,
    dt_limit: [f32; 2],
    initial: Option<Tensor>,
    sequences: Sequences,
    keep: bool,
    output: DType,
    kernel: Option<String>,
}

impl Ssd {
    /// With the rate of each head, `[heads]` in f32, packed, at most 0 (`-exp(a_log)` in published models).
    #[must_use]
    pub fn new(a: &Tensor) -> Self {
        Self {
            a: a.clone(),
            skip: None,
            dt_bias: None,
            dt_limit: [f32::MIN, f32::MAX],
            initial: None,
            sequences: Sequences::default(),
            keep: false,
            output: DType::F32,
            kernel: None,
        }
    }

    /// What of `x` goes straight to the output, `[heads]` in f32, packed (`D` in published models).
    #[must_use]
    pub fn skip(mut self, skip: &Tensor) -> Self {
        self.skip = Some(skip.clone());
        self
    }

    /// Step sizes are `softplus(dt + bias)`; `[heads]` in f32, packed.
    #[must_use]
    pub fn dt_bias(mut self, bias: &Tensor) -> Self {
        self.dt_bias = Some(bias.clone());
        self
    }

    /// Step sizes are clamped to these (`time_step_limit`), after the softplus.
    #[must_use]
    pub fn dt_limit(mut self, low: f32, high: f32) -> Self {
        self.dt_limit = [low.max(f32::MIN), high.min(f32::MAX)];
        self
    }

    /// The state to start from, `[sequences, heads, dim, dim_state]` in f32, packed; zeros by default.
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

    /// Computes into new tensors; widths from 1 to 256.
    ///
    /// # Errors
    /// Tensors of unfitting shapes, strides or storage, options that clash, tensors beyond what the device binds at
    /// once, or what the device itself refuses.
    pub fn run(&self, gpu: &Gpu, inputs: &SsdInputs<'_>) -> Result<SsdOutput> {
        check_float("output", self.output)?;
        let call = self.call(inputs)?;
        let [y, state] = call.output_shapes()?;
        let out = SsdOutput {
            y: Tensor::uninitialised(gpu, self.output, y)?,
            state: Tensor::uninitialised(gpu, DType::F32, state)?,
        };
        let (copies, steps) = call.launch(gpu, &out.y, &out.state)?;
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
        inputs: &SsdInputs<'_>,
        out: &SsdOutput,
    ) -> Result<()> {
        let (copies, steps) = self.call(inputs)?.launch(gpu, &out.y, &out.state)?;
        gpu.record(encoder, &copies, &steps)
    }

    fn call<'a>(&'a self, inputs: &SsdInputs<'a>) -> Result<Decayed<'a>> {
        for (field, t) in [("x", inputs.x), ("b", inputs.b), ("c", inputs.c)] {
            axes::<4>(field, t, "[batch, tokens, heads or groups, dim]")?;
        }
        let [low, high] = self.dt_limit;
        if low.is_nan() || high.is_nan() || low > high {
            return Err(Error::OutOfRange {
                field: "dt_limit",
                value: format!("{low} to {high}"),
                bound: "two numbers in rising order".into(),
                remedy: "give the model's own time_step_limit",
            });
        }
        let heads_first = |t: &Tensor| t.permute(&[0, 2, 1, 3]);
        Ok(Decayed {
            names: ["c", "b", "x"],
            q: heads_first(inputs.c),
            k: heads_first(inputs.b),
            v: heads_first(inputs.x),
            dt: Some(inputs.dt),
            decay: ("a", &self.a),
            skip: self.skip.as_ref(),
            dt_bias: self.dt_bias.as_ref(),
            dt_limit: self.dt_limit,
            initial: self.initial.as_ref(),
            sequences: &self.sequences,
            keep: self.keep,
            kernel: self.kernel.as_deref(),
            output: "y",
            tokens_first: true,
        })
    }
}
