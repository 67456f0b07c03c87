//! The short causal convolution in front of linear attention and state-space layers.

use super::common::{
    Sequences, Target, absent, axes, check_f32, check_float, check_groups, check_packed, check_shape,
    check_shared, check_size, copy_state, sequence_options, whole,
};
use crate::Result;
use crate::gpu::{Copy, DType, Gpu, Step, Table, Tensor};
use crate::kernels::attention::element_loader;
use crate::kernels::causal_conv1d::{Params, Problem, TailParams, steps, tail_steps};

/// Most taps of a convolution.
const MAX_TAPS: usize = 64;

/// Outputs of a convolution.
///
/// | tensor | shape | storage |
/// |---|---|---|
/// | y | `[batch, tokens, channels]`, packed | f32, or as [`CausalConv1d::output`] says |
/// | state | `[sequences, channels, taps - 1]`, or `[tokens + 1, …]` with [`CausalConv1d::keep_states`] | f32 |
#[derive(Debug, Clone)]
pub struct ConvOutput {
    /// What came of each token. At tokens of no sequence it is not defined.
    pub y: Tensor,
    /// The last inputs, oldest first. It may be the very tensor given as initial state: then it is updated in place.
    pub state: Tensor,
}

/// A short depthwise convolution over the tokens of each sequence, with the inputs before the first as its state.
///
/// `y_t = act(bias + sum_j w[j] x_{t - (taps - 1) + j})`: the last tap multiplies the current token. Any number of
/// tokens, none included; splitting a call anywhere changes nothing.
///
/// ```no_run
/// # use wgpu_attention::{Gpu, Tensor, linear::CausalConv1d};
/// # fn f(gpu: &Gpu, x: &Tensor, w: &Tensor, next: &Tensor) -> wgpu_attention::Result<()> {
/// let prompt = CausalConv1d::silu().run(gpu, x, w)?;
/// let token = CausalConv1d::silu().initial_state(&prompt.state).run(gpu, next, w)?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct CausalConv1d {
    silu: bool,
    bias: Option<Tensor>,
    initial: Option<Tensor>,
    sequences: Sequences,
    keep: bool,
    output: DType,
}

impl CausalConv1d {
    fn new(silu: bool) -> Self {
        let sequences = Sequences::default();
        Self { silu, bias: None, initial: None, sequences, keep: false, output: DType::F32 }
    }

    /// With `SiLU` after the sum (Gated `DeltaNet`, Kimi, Mamba).
    #[must_use]
    pub fn silu() -> Self {
        Self::new(true)
    }

    /// The sum itself.
    #[must_use]
    pub fn linear() -> Self {
        Self::new(false)
    }

    /// A number added to each channel (Mamba), `[channels]` in f32, f16 or bf16.
    #[must_use]
    pub fn bias(mut self, bias: &Tensor) -> Self {
        self.bias = Some(bias.clone());
        self
    }

    /// The inputs before the first token, `[sequences, channels, taps - 1]` in f32, packed; zeros by default.
    #[must_use]
    pub fn initial_state(mut self, state: &Tensor) -> Self {
        self.initial = Some(state.clone());
        self
    }

    sequence_options!();

    /// Computes into new tensors. `x` is `[batch, tokens, channels]`, `w` `[channels, taps]`; both f32, f16 or bf16,
    /// views in any layout.
    ///
    /// # Errors
    /// Tensors of unfitting shapes, strides or storage, more than 64 taps, tensors beyond what the device binds at
    /// once, or what the device itself refuses.
    pub fn run(&self, gpu: &Gpu, x: &Tensor, w: &Tensor) -> Result<ConvOutput> {
        check_float("output", self.output)?;
        let out = ConvOutput {
            y: Tensor::uninitialised(gpu, self.output, x.shape())?,
            state: Tensor::uninitialised(gpu, DType::F32, self.state_shape(x, w)?)?,
        };
        let (copies, steps) = self.launch(gpu, x, w, &out)?;
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
        x: &Tensor,
        w: &Tensor,
        out: &ConvOutput,
    ) -> Result<()> {
        let (copies, steps) = self.launch(gpu, x, w, out)?;
        gpu.record(encoder, &copies, &steps)
    }

    fn state_shape(&self, x: &Tensor, w: &Tensor) -> Result<Vec<usize>> {
        let [batch, tokens, channels] = axes("x", x, "[batch, tokens, channels]")?;
        let [_, taps] = axes("w", w, "[channels, taps]")?;
        check_size("taps", taps, MAX_TAPS)?;
        let mut shape = vec![self.sequences.count(batch)?, channels, taps - 1];
        if self.keep {
            shape.insert(0, tokens + 1);
        }
        Ok(shape)
    }

    /// Copies and dispatches of a call; everything is refused here or not at all.
    fn launch(&self, gpu: &Gpu, x: &Tensor, w: &Tensor, out: &ConvOutput) -> Result<(Vec<Copy>, Vec<Step>)> {
        let state_shape = self.state_shape(x, w)?;
        let [batch, tokens, channels] = axes("x", x, "[batch, tokens, channels]")?;
        let [_, taps] = axes("w", w, "[channels, taps]")?;
        let sequences = self.sequences.count(batch)?;
        check_float("x", x.dtype())?;
        check_float("w", w.dtype())?;
        check_shape("w", w, &[channels, taps])?;
        check_shape("state", &out.state, &state_shape)?;
        check_f32("state", &out.state)?;
        check_packed("state", &out.state)?;
        let mut inputs = vec![("x", x), ("w", w)];
        if let Some(bias) = &self.bias {
            check_shape("bias", bias, &[channels])?;
            check_float("bias", bias.dtype())?;
            inputs.push(("bias", bias));
        }
        if let Some(initial) = &self.initial {
            check_shape("initial_state", initial, &[sequences, channels, taps - 1])?;
            check_f32("initial_state", initial)?;
            check_packed("initial_state", initial)?;
        }
        check_shared(&[("y", &out.y), ("state", &out.state)], &inputs)?;
        inputs = vec![("state", &out.state)];
        inputs.extend(self.initial.iter().map(|t| ("initial_state", t)));
        check_shared(&[("y", &out.y)], &inputs)?;
        check_groups(gpu, "sequences", sequences)?;
        let target = Target::new(gpu, "y", &out.y, &[batch, tokens, channels])?;
        let mut table = Table::default();
        let sequences_at = self.sequences.add(&mut table)?;
        let (table, mut copies) = table.build(gpu)?;
        copies.extend(copy_state(self.initial.as_ref(), &out.state)?);
        let (x_binding, x_base) = whole(gpu, "x", x)?;
        let (w_binding, w_base) = whole(gpu, "w", w)?;
        let (bias, bias_base) = match &self.bias {
            Some(bias) => whole(gpu, "bias", bias)?,
            None => (absent(gpu, "absent bias")?, 0),
        };
        let (state, state_base) = whole(gpu, "state", &out.state)?;
        let mut all = Vec::new();
        if sequences == 0 || channels == 0 {
            return Ok((Vec::new(), all));
        }
        let s = x.strides();
        let params = Params {
            tokens: tokens as u32,
            channels: channels as u32,
            taps: taps as u32,
            fresh: u32::from(self.initial.is_none()),
            sequences_at,
            x: [x_base, self.sequences.step(batch, s[0]), s[1] as u32, s[2] as u32],
            w: [w_base, w.strides()[0] as u32, w.strides()[1] as u32],
            bias: [bias_base, self.bias.as_ref().map_or(0, |b| b.strides()[0] as u32)],
            state_base,
            y: [target.base, self.sequences.step(batch, tokens * channels)],
            ..Params::default()
        };
        let problem = Problem {
            x: element_loader(x.dtype()),
            w: element_loader(w.dtype()),
            bias: self.bias.as_ref().map(|b| element_loader(b.dtype())),
            silu: self.silu,
            ragged: self.sequences.ragged(),
            keep: self.keep,
        };
        let bindings =
            [x_binding.clone(), w_binding, bias, table.clone(), state.clone(), target.binding.clone()];
        all.extend(steps(problem, params, &bindings, sequences as u32, gpu.limits()));
        if taps > 1 {
            let Params { tokens, channels, taps, fresh, sequences_at, x, state_base, .. } = params;
            let state_slot = sequences as u32 * channels * (taps - 1);
            let tail = TailParams {
                tokens,
                channels,
                taps,
                fresh,
                slot_base: 0,
                sequences_at,
                x,
                state_base,
                state_slot: if self.keep { state_slot } else { 0 },
            };
            let slots = if self.keep { tokens + 1 } else { 1 };
            let bindings = [x_binding, table, state];
            all.extend(tail_steps(
                problem,
                tail,
                &bindings,
                [sequences as u32, slots],
                gpu.limits().workgroups,
            ));
        }
        target.finish(gpu, &mut all);
        Ok((copies, all))
    }
}
