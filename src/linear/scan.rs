//! The selective scan (Mamba-1, Jamba).

use super::common::{
    Sequences, Target, absent, axes, check_f32, check_float, check_groups, check_packed, check_shape,
    check_shared, check_size, copy_state, sequence_options, whole,
};
use super::drive::{Cut, Pass, Recurrence};
use crate::Result;
use crate::attention::row_stride;
use crate::gpu::{Binding, Copy, DType, Gpu, Step, Table, Tensor};
use crate::kernels::attention::element_loader;
use crate::kernels::chunk_states;
use crate::kernels::selective_scan::{LANES, MAX_DIM, NAME, Params, Problem};

/// Ways to compute.
const PATHS: [&str; 2] = [NAME, "selective_scan_chunk"];

/// Inputs of a selective scan; views in any layout, the last axis of b and c packed.
///
/// | tensor | shape | storage |
/// |---|---|---|
/// | x | `[batch, tokens, channels]` | f32, f16, bf16 |
/// | dt | `[batch, tokens, channels]` | f32 |
/// | b, c | `[batch, tokens, dim_state]` | f32, f16, bf16 |
#[derive(Debug, Clone, Copy)]
pub struct ScanInputs<'a> {
    /// What is written (`u` in published code).
    pub x: &'a Tensor,
    /// Step size of each token and channel, or what it is made from ([`SelectiveScan::dt_bias`]).
    pub dt: &'a Tensor,
    /// How each token is written.
    pub b: &'a Tensor,
    /// How each token reads.
    pub c: &'a Tensor,
}

/// Outputs of a selective scan.
///
/// | tensor | shape | storage |
/// |---|---|---|
/// | y | `[batch, tokens, channels]`, packed | f32, or as [`SelectiveScan::output`] says |
/// | state | `[sequences, channels, dim_state]`, or `[tokens + 1, …]` with [`SelectiveScan::keep_states`] | f32 |
#[derive(Debug, Clone)]
pub struct ScanOutput {
    /// What each token reads. At tokens of no sequence it is not defined.
    pub y: Tensor,
    /// The state after the last token. It may be the very tensor given as initial state: then it is updated in place.
    pub state: Tensor,
}

/// Mamba-1's recurrence, with a decay for each token, channel and row of its state.
///
/// For each token and channel, with a state `h` of `dim_state` numbers: `h_n <- exp(dt a_n) h_n + dt b_n x`,
/// `y = sum_n c_n h_n + skip x`. Any number of tokens, none included; splitting a call anywhere changes rounding only.
///
/// ```no_run
/// # use wgpu_attention::{Gpu, Tensor, linear::{ScanInputs, SelectiveScan}};
/// # fn f(gpu: &Gpu, i: &ScanInputs<'_>, a: &Tensor, skip: &Tensor) -> wgpu_attention::Result<()> {
/// let prompt = SelectiveScan::new(a, skip).run(gpu, i)?;
/// let next = SelectiveScan::new(a, skip).initial_state(&prompt.state);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct SelectiveScan {
    a: Tensor,
    skip: Tensor,
    dt_bias: Option<Tensor>,
    initial: Option<Tensor>,
    sequences: Sequences,
    keep: bool,
    output: DType,
    kernel: Option<String>,
}

/// A call whose tensors are bound.
struct Bound {
    problem: Problem,
    params: Params,
    bindings: Vec<Binding>,
    rates: (Binding, u32),
    token_flops: u64,
    max_groups: u32,
}

impl Bound {
    fn channels(&self) -> u32 {
        self.params.channels
    }
}

impl Recurrence for Bound {
    fn pass(&self, pass: &Pass) -> Step {
        let mut params = Params {
            token_base: pass.token_base,
            token_count: pass.token_count,
            chunks: pass.chunks,
            fresh: u32::from(pass.fresh),
            slot_base: if self.problem.keep { pass.token_base } else { 0 },
            ..self.params
        };
        let mut bindings = self.bindings.clone();
        if let Some([states, sums]) = &pass.scratch {
            bindings[5] = states.0.clone();
            params.state_base = states.1;
            if !pass.output {
                bindings[6] = sums.0.clone();
                params.y = [sums.1, 0, 0];
            }
        }
        Step {
            kernel: NAME,
            constants: self.problem.constants(pass.output, pass.store),
            params: bytemuck::bytes_of(&params).to_vec(),
            bindings,
            groups: [self.channels().div_ceil(LANES), 1, self.params.sequences * pass.chunks],
            flops: self.token_flops * u64::from(pass.token_count) * u64::from(pass.chunks),
        }
    }

    fn join(&self, chunks: u32, fresh: bool, [states, sums]: &[(Binding, u32); 2]) -> Step {
        let params = chunk_states::Params {
            elements: self.params.state_slot,
            chunks,
            fresh: u32::from(fresh),
            per_sum: self.problem.dim,
            rates_count: self.channels() * self.problem.dim,
            sums: self.params.sequences * self.channels(),
            state_base: self.params.state_base,
            chunk_base: states.1,
            sums_base: sums.1,
            rates_base: self.rates.1,
            ..chunk_states::Params::default()
        };
        let bindings = [sums.0.clone(), self.rates.0.clone(), states.0.clone(), self.bindings[5].clone()];
        chunk_states::step(params, true, &bindings, self.max_groups)
    }
}

impl SelectiveScan {
    /// With the rates of each channel, `[channels, dim_state]`, at most 0 (`-exp(a_log)` in published models), and what
    /// of `x` goes straight to the output, `[channels]` (`D`); both f32, packed.
    #[must_use]
    pub fn new(a: &Tensor, skip: &Tensor) -> Self {
        Self {
            a: a.clone(),
            skip: skip.clone(),
            dt_bias: None,
            initial: None,
            sequences: Sequences::default(),
            keep: false,
            output: DType::F32,
            kernel: None,
        }
    }

    /// Step sizes are `softplus(dt + bias)`; `[channels]` in f32, packed.
    #[must_use]
    pub fn dt_bias(mut self, bias: &Tensor) -> Self {
        self.dt_bias = Some(bias.clone());
        self
    }

    /// The state to start from, `[sequences, channels, dim_state]` in f32, packed; zeros by default.
    #[must_use]
    pub fn initial_state(mut self, state: &Tensor) -> Self {
        self.initial = Some(state.clone());
        self
    }

    sequence_options!();

    /// Insists on one way to compute: `selective_scan`, a token after another, or `selective_scan_chunk`, chunks side by side.
    #[must_use]
    pub fn kernel(mut self, name: &str) -> Self {
        self.kernel = Some(name.to_owned());
        self
    }

    /// Computes into new tensors; `dim_state` from 1 to 64.
    ///
    /// # Errors
    /// Tensors of unfitting shapes, strides or storage, options that clash, tensors beyond what the device binds at
    /// once, or what the device itself refuses.
    pub fn run(&self, gpu: &Gpu, inputs: &ScanInputs<'_>) -> Result<ScanOutput> {
        check_float("output", self.output)?;
        let out = ScanOutput {
            y: Tensor::uninitialised(gpu, self.output, inputs.x.shape())?,
            state: Tensor::uninitialised(gpu, DType::F32, self.state_shape(inputs)?)?,
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
        inputs: &ScanInputs<'_>,
        out: &ScanOutput,
    ) -> Result<()> {
        let (copies, steps) = self.launch(gpu, inputs, out)?;
        gpu.record(encoder, &copies, &steps)
    }

    fn state_shape(&self, inputs: &ScanInputs<'_>) -> Result<Vec<usize>> {
        let [batch, tokens, channels] = axes("x", inputs.x, "[batch, tokens, channels]")?;
        let [.., dim] = axes::<3>("b", inputs.b, "[batch, tokens, dim_state]")?;
        let mut shape = vec![self.sequences.count(batch)?, channels, dim];
        if self.keep {
            shape.insert(0, tokens + 1);
        }
        Ok(shape)
    }

    fn check(&self, gpu: &Gpu, inputs: &ScanInputs<'_>, out: &ScanOutput) -> Result<()> {
        let ScanInputs { x, dt, b, c } = *inputs;
        let [batch, tokens, channels] = axes("x", x, "[batch, tokens, channels]")?;
        let state_shape = self.state_shape(inputs)?;
        let dim = b.shape()[2];
        check_size("dim_state", dim, MAX_DIM)?;
        check_float("x", x.dtype())?;
        check_shape("dt", dt, &[batch, tokens, channels])?;
        for (field, t) in [("b", b), ("c", c)] {
            check_shape(field, t, &[batch, tokens, dim])?;
            check_float(field, t.dtype())?;
            row_stride(field, t)?;
        }
        check_shape("a", &self.a, &[channels, dim])?;
        check_shape("skip", &self.skip, &[channels])?;
        check_shape("state", &out.state, &state_shape)?;
        let mut f32s = vec![("a", &self.a), ("skip", &self.skip), ("state", &out.state)];
        if let Some(bias) = &self.dt_bias {
            check_shape("dt_bias", bias, &[channels])?;
            f32s.push(("dt_bias", bias));
        }
        let mut states = vec![("state", &out.state)];
        if let Some(initial) = &self.initial {
            check_shape("initial_state", initial, &state_shape[usize::from(self.keep)..])?;
            f32s.push(("initial_state", initial));
            states.push(("initial_state", initial));
        }
        check_f32("dt", dt)?;
        for (field, t) in f32s {
            check_f32(field, t)?;
            check_packed(field, t)?;
        }
        let read = [("x", x), ("dt", dt), ("b", b), ("c", c), ("a", &self.a)];
        check_shared(&[("y", &out.y), ("state", &out.state)], &read)?;
        check_shared(&[("y", &out.y)], &states)?;
        check_groups(gpu, "sequences", state_shape[usize::from(self.keep)])
    }

    /// Copies and dispatches of a call; everything is refused here or not at all.
    fn launch(&self, gpu: &Gpu, inputs: &ScanInputs<'_>, out: &ScanOutput) -> Result<(Vec<Copy>, Vec<Step>)> {
        self.check(gpu, inputs, out)?;
        let ScanInputs { x, dt, b, c } = *inputs;
        let [batch, tokens, channels] = axes("x", x, "[batch, tokens, channels]")?;
        let dim = b.shape()[2];
        let sequences = self.sequences.count(batch)?;
        let problem = Problem {
            dim: dim as u32,
            x: element_loader(x.dtype()),
            b: element_loader(b.dtype()),
            c: element_loader(c.dtype()),
            dt_bias: self.dt_bias.is_some(),
            ragged: self.sequences.ragged(),
            keep: self.keep,
        };
        let elements = sequences * channels * dim;
        let token_flops = problem.token_flops() * (channels * sequences) as u64;
        let cut = Cut {
            tokens,
            sequences,
            elements,
            sums: sequences * channels,
            groups: channels.div_ceil(LANES as usize),
            most_tokens: problem.most_tokens(),
            token_flops,
        };
        let chunked = cut.chunked(gpu, PATHS, self.kernel.as_deref(), self.keep)?;
        let target = Target::new(gpu, "y", &out.y, &[batch, tokens, channels])?;
        if elements == 0 {
            return Ok((Vec::new(), Vec::new()));
        }
        let mut table = Table::default();
        let mut params = Params {
            tokens: tokens as u32,
            sequences: sequences as u32,
            channels: channels as u32,
            sequences_at: self.sequences.add(&mut table)?,
            a_at: table.add("a", &self.a)?,
            skip_at: table.add("skip", &self.skip)?,
            state_slot: elements as u32,
            ..Params::default()
        };
        if let Some(bias) = &self.dt_bias {
            params.dt_bias_at = table.add("dt_bias", bias)?;
        }
        let (table, mut copies) = table.build(gpu)?;
        copies.extend(copy_state(self.initial.as_ref(), &out.state)?);
        let read = |name, t: &Tensor| {
            let (binding, base) = whole(gpu, name, t)?;
            let s = t.strides();
            Ok::<_, crate::Error>((
                binding,
                [base, self.sequences.step(batch, s[0]), s[1] as u32, s[2] as u32],
            ))
        };
        let (x_binding, dt_binding, b_binding, c_binding, at);
        (x_binding, params.x) = read("x", x)?;
        (dt_binding, params.dt) = read("dt", dt)?;
        (b_binding, at) = read("b", b)?;
        params.b = [at[0], at[1], at[2]];
        let (binding, at) = read("c", c)?;
        c_binding = binding;
        params.c = [at[0], at[1], at[2]];
        params.y = [target.base, self.sequences.step(batch, tokens * channels), channels as u32];
        let (state, state_base) = whole(gpu, "state", &out.state)?;
        params.state_base = state_base;
        let rates = if chunked { whole(gpu, "a", &self.a)? } else { (absent(gpu, "absent rates")?, 0) };
        let bindings =
            vec![x_binding, dt_binding, b_binding, c_binding, table, state, target.binding.clone()];
        let max_groups = gpu.limits().workgroups;
        let bound = Bound { problem, params, bindings, rates, token_flops, max_groups };
        let mut steps = cut.steps(gpu, &bound, chunked, self.initial.is_none())?;
        target.finish(gpu, &mut steps);
        Ok((copies, steps))
    }
}
