//! The delta-rule operators.

use super::common::{Sequences, check_f32, check_packed, check_shape, sequence_options};
use super::delta_plan::DeltaPlan;
use crate::attention::operand;
use crate::gpu::{DType, Gpu, Tensor};
use crate::kernels::delta_step::{Decay, Problem};
use crate::{Error, Result};

/// Widest key or value.
const MAX_WIDTH: usize = 256;

/// Sizes of a delta rule's call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaShape {
    /// Sequences, each with a state of its own.
    pub sequences: usize,
    /// Tokens on the token axis.
    pub tokens: usize,
    /// Heads of q and k.
    pub heads_k: usize,
    /// Heads of v, the state and the output.
    pub heads: usize,
    /// Width of q and k: rows of the state.
    pub dim_k: usize,
    /// Width of v: columns of the state.
    pub dim_v: usize,
}

/// Inputs of a delta rule; views in any layout whose last axis is packed.
///
/// | tensor | shape | storage |
/// |---|---|---|
/// | q, k | `[batch, tokens, heads_k, dim_k]` | f32, f16, bf16 |
/// | v | `[batch, tokens, heads, dim_v]` | f32, f16, bf16 |
/// | beta | `[batch, tokens, heads]`, packed | f32 |
/// | g | none; `[batch, tokens, heads]`; or `[batch, tokens, heads, dim_k]` | f32, f16, bf16 |
#[derive(Debug, Clone, Copy)]
pub struct DeltaInputs<'a> {
    /// Queries.
    pub q: &'a Tensor,
    /// Keys.
    pub k: &'a Tensor,
    /// Values.
    pub v: &'a Tensor,
    /// Strength of each write, or its logit ([`DeltaRule::beta_logits`]).
    pub beta: &'a Tensor,
    /// Natural logarithm of the decay before each write (at most 0; minus infinity forgets all), or its logit
    /// ([`DeltaRule::gate_logits`]). The plain delta rule has none.
    pub g: Option<&'a Tensor>,
}

/// Outputs of a delta rule.
///
/// | tensor | shape | storage |
/// |---|---|---|
/// | o | `[batch, tokens, heads, dim_v]`, packed | f32, or as [`DeltaRule::output`] says |
/// | state | `[sequences, heads, dim_k, dim_v]`, or `[tokens + 1, …]` with [`DeltaRule::keep_states`] | f32 |
#[derive(Debug, Clone)]
pub struct DeltaOutput {
    /// What each token reads. Tokens of no sequence are not written.
    pub o: Tensor,
    /// The state after the last token. It may be the very tensor given as initial state: then it is updated in
    /// place, without a copy.
    pub state: Tensor,
}

/// The delta rule, gated delta rule (Gated `DeltaNet`) and Kimi delta attention.
///
/// For each token, with a state `S` of `dim_k` rows and `dim_v` columns:
///
/// ```text
/// S <- diag(exp(g)) S     u = beta (v - S^T k)     S <- S + k u^T     o = scale S^T q
/// ```
///
/// Any number of tokens, none included; splitting a call anywhere changes rounding only. Value head `j` uses key
/// head `j / (heads / heads_k)` unless [`tiled_heads`](Self::tiled_heads) says otherwise.
///
/// ```no_run
/// # use wgpu_attention::{Gpu, Tensor, linear::{DeltaInputs, DeltaRule}};
/// # fn f(gpu: &Gpu, q: &Tensor, k: &Tensor, v: &Tensor, g: &Tensor, beta: &Tensor) -> wgpu_attention::Result<()> {
/// let prompt = DeltaRule::gated().l2norm(1e-6).run(gpu, &DeltaInputs { q, k, v, beta, g: Some(g) })?;
/// let next = DeltaRule::gated().l2norm(1e-6).initial_state(&prompt.state);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct DeltaRule {
    decay: Decay,
    scale: Option<f32>,
    l2norm: Option<f32>,
    pub(super) initial: Option<Tensor>,
    pub(super) gate: Option<(Tensor, Tensor)>,
    beta_factor: Option<f32>,
    pub(super) sequences: Sequences,
    tiled: bool,
    keep: bool,
    output: DType,
    kernel: Option<String>,
}

impl DeltaRule {
    fn new(decay: Decay) -> Self {
        Self {
            decay,
            scale: None,
            l2norm: None,
            initial: None,
            gate: None,
            beta_factor: None,
            sequences: Sequences::default(),
            tiled: false,
            keep: false,
            output: DType::F32,
            kernel: None,
        }
    }

    /// The plain delta rule: the state does not decay.
    #[must_use]
    pub fn plain() -> Self {
        Self::new(Decay::None)
    }

    /// The gated delta rule (Qwen3-Next, Qwen3.5): one decay a token and value head.
    #[must_use]
    pub fn gated() -> Self {
        Self::new(Decay::Head)
    }

    /// Kimi delta attention: one decay a token, value head and row of the state.
    #[must_use]
    pub fn kimi() -> Self {
        Self::new(Decay::Channel)
    }

    /// Factor of q; `dim_k^-1/2` by default.
    #[must_use]
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Divides each q and k by the root of its sum of squares and `eps` (1e-6 in published models).
    #[must_use]
    pub fn l2norm(mut self, eps: f32) -> Self {
        self.l2norm = Some(eps);
        self
    }

    /// The state to start from, `[sequences, heads, dim_k, dim_v]` in f32, packed; zeros by default.
    #[must_use]
    pub fn initial_state(mut self, state: &Tensor) -> Self {
        self.initial = Some(state.clone());
        self
    }

    /// g holds logits: the decay's logarithm is `-exp(a_log) softplus(g + dt_bias)`.
    ///
    /// `a_log` is `[heads]`, `dt_bias` `[heads]` (or `[heads, dim_k]` for Kimi), both f32 and packed.
    #[must_use]
    pub fn gate_logits(mut self, a_log: &Tensor, dt_bias: &Tensor) -> Self {
        self.gate = Some((a_log.clone(), dt_bias.clone()));
        self
    }

    /// beta holds logits: the strength is `factor` times their sigmoid (1, or 2 where negative eigenvalues are
    /// allowed).
    #[must_use]
    pub fn beta_logits(mut self, factor: f32) -> Self {
        self.beta_factor = Some(factor);
        self
    }

    /// Value heads `h, h + heads_k, h + 2 heads_k, …` share a key head (some GGUF files), instead of neighbours.
    #[must_use]
    pub fn tiled_heads(mut self) -> Self {
        self.tiled = true;
        self
    }

    sequence_options!();

    /// Insists on one way to compute: `delta_step_subgroup`, `delta_step` or `delta_chunk`.
    #[must_use]
    pub fn kernel(mut self, name: &str) -> Self {
        self.kernel = Some(name.to_owned());
        self
    }

    /// How a call with these inputs would run.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn plan_for(&self, gpu: &Gpu, inputs: &DeltaInputs<'_>) -> Result<DeltaPlan> {
        DeltaPlan::choose(&self.problem(inputs)?, gpu.limits(), self.kernel.as_deref())
    }

    /// Computes into new tensors.
    ///
    /// # Errors
    /// Tensors of unfitting shapes, strides or storage, options that clash, widths beyond 256, tensors beyond what
    /// the device binds at once, a kernel that does not fit, or what the device itself refuses.
    pub fn run(&self, gpu: &Gpu, inputs: &DeltaInputs<'_>) -> Result<DeltaOutput> {
        let shape = self.shape(inputs)?;
        if !self.output.is_float() {
            return Err(Error::DType {
                field: "output",
                dtype: self.output.name(),
                allowed: "f32, f16 or bf16",
            });
        }
        let out = DeltaOutput {
            o: Tensor::uninitialised(gpu, self.output, inputs.v.shape())?,
            state: Tensor::uninitialised(gpu, DType::F32, self.state_shape(&shape))?,
        };
        let (copies, steps) = self.launch(gpu, inputs, &out)?;
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
        inputs: &DeltaInputs<'_>,
        out: &DeltaOutput,
    ) -> Result<()> {
        let (copies, steps) = self.launch(gpu, inputs, out)?;
        gpu.record(encoder, &copies, &steps)
    }

    pub(super) fn state_shape(&self, shape: &DeltaShape) -> Vec<usize> {
        let mut state = vec![shape.sequences, shape.heads, shape.dim_k, shape.dim_v];
        if self.keep {
            state.insert(0, shape.tokens + 1);
        }
        state
    }

    pub(super) fn scale_of(&self, shape: &DeltaShape) -> f32 {
        self.scale.unwrap_or_else(|| (shape.dim_k as f32).powf(-0.5))
    }

    /// `eps` of the norm and factor of beta's sigmoid.
    pub(super) fn numbers(&self) -> [f32; 2] {
        [self.l2norm.unwrap_or(0.0), self.beta_factor.unwrap_or(1.0)]
    }

    pub(super) fn tiled(&self) -> bool {
        self.tiled
    }

    pub(super) fn forced(&self) -> Option<&str> {
        self.kernel.as_deref()
    }

    /// Sizes of a call; every disagreement between tensors is refused here.
    pub(super) fn shape(&self, inputs: &DeltaInputs<'_>) -> Result<DeltaShape> {
        let four = |field, t: &Tensor, expected: &str| {
            <[usize; 4]>::try_from(t.shape()).map_err(|_| Error::Shape {
                field,
                shape: t.shape().to_vec(),
                expected: expected.into(),
                remedy: "give four axes",
            })
        };
        let [batch, tokens, heads_k, dim_k] = four("q", inputs.q, "[batch, tokens, heads_k, dim_k]")?;
        let [.., heads, dim_v] = four("v", inputs.v, "[batch, tokens, heads, dim_v]")?;
        check_shape("k", inputs.k, &[batch, tokens, heads_k, dim_k])?;
        check_shape("v", inputs.v, &[batch, tokens, heads, dim_v])?;
        check_shape("beta", inputs.beta, &[batch, tokens, heads])?;
        check_f32("beta", inputs.beta)?;
        check_packed("beta", inputs.beta)?;
        for (field, width) in [("dim_k", dim_k), ("dim_v", dim_v)] {
            if width == 0 || width > MAX_WIDTH {
                return Err(Error::OutOfRange {
                    field,
                    value: width.to_string(),
                    bound: format!("1 to {MAX_WIDTH}"),
                    remedy: "give heads of that width",
                });
            }
        }
        if heads_k == 0 || heads % heads_k != 0 {
            return Err(Error::OutOfRange {
                field: "heads",
                value: heads.to_string(),
                bound: format!("a multiple of heads_k = {heads_k}"),
                remedy: "give each key head the same number of value heads",
            });
        }
        let sequences = self.sequences.count(batch)?;
        let shape = DeltaShape { sequences, tokens, heads_k, heads, dim_k, dim_v };
        self.check_gates(inputs, batch, &shape)?;
        if let Some(initial) = &self.initial {
            check_shape("initial_state", initial, &[sequences, heads, dim_k, dim_v])?;
            check_f32("initial_state", initial)?;
            check_packed("initial_state", initial)?;
        }
        let eps = self.l2norm.unwrap_or(0.0);
        for (field, value) in [("eps", eps), ("scale", self.scale_of(&shape)), ("factor", self.numbers()[1])]
        {
            if !value.is_finite() || (field == "eps" && value < 0.0) {
                return Err(Error::OutOfRange {
                    field,
                    value: value.to_string(),
                    bound: "finite, and eps not negative".into(),
                    remedy: "give the model's own number",
                });
            }
        }
        Ok(shape)
    }

    fn check_gates(&self, inputs: &DeltaInputs<'_>, batch: usize, shape: &DeltaShape) -> Result<()> {
        let &DeltaShape { tokens, heads, dim_k, .. } = shape;
        let channels: &[usize] = if self.decay == Decay::Channel { &[dim_k] } else { &[] };
        match (self.decay, inputs.g) {
            (Decay::None, None) => {}
            (Decay::None, Some(_)) => {
                return Err(Error::Options {
                    field: "g",
                    value: "given".into(),
                    conflict: "does not go with the plain delta rule",
                    remedy: "use DeltaRule::gated() or DeltaRule::kimi(), or leave g out",
                });
            }
            (_, None) => {
                return Err(Error::Options {
                    field: "g",
                    value: "none".into(),
                    conflict: "leaves a gated rule without its decay",
                    remedy: "give g, or use DeltaRule::plain()",
                });
            }
            (_, Some(g)) => {
                check_shape("g", g, &[&[batch, tokens, heads], channels].concat())?;
                if !g.dtype().is_float() {
                    return Err(Error::DType {
                        field: "g",
                        dtype: g.dtype().name(),
                        allowed: "f32, f16 or bf16",
                    });
                }
                if self.decay == Decay::Channel {
                    crate::attention::row_stride("g", g)?;
                }
            }
        }
        if let Some((a_log, dt_bias)) = &self.gate {
            if self.decay == Decay::None {
                return Err(Error::Options {
                    field: "gate_logits",
                    value: "given".into(),
                    conflict: "does not go with the plain delta rule",
                    remedy: "use DeltaRule::gated() or DeltaRule::kimi()",
                });
            }
            check_shape("a_log", a_log, &[heads])?;
            check_f32("a_log", a_log)?;
            check_packed("a_log", a_log)?;
            check_shape("dt_bias", dt_bias, &[&[heads], channels].concat())?;
            check_f32("dt_bias", dt_bias)?;
            check_packed("dt_bias", dt_bias)?;
        }
        Ok(())
    }

    pub(super) fn problem(&self, inputs: &DeltaInputs<'_>) -> Result<Problem> {
        let shape = self.shape(inputs)?;
        operand("v", inputs.v)?;
        Ok(Problem {
            sequences: shape.sequences,
            tokens: shape.tokens,
            heads_k: shape.heads_k,
            heads: shape.heads,
            dim_k: shape.dim_k,
            dim_v: shape.dim_v,
            q: operand("q", inputs.q)?,
            k: operand("k", inputs.k)?,
            v: inputs.v.dtype(),
            g: inputs.g.map_or(DType::F32, Tensor::dtype),
            decay: self.decay,
            gate_logits: self.gate.is_some(),
            beta_logits: self.beta_factor.is_some(),
            l2norm: self.l2norm.is_some(),
            ragged: self.sequences.ragged(),
            keep: self.keep,
        })
    }
}
