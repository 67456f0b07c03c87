//! From a delta rule's tensors to dispatches: sequences and tokens that fit the device's limits.

use super::common::{check_f32, check_float, check_packed, check_shape};
use std::ops::Range;

use super::delta::{DeltaInputs, DeltaOutput, DeltaRule, DeltaShape};
use super::delta_plan::DeltaPlan;
use crate::gpu::{Binding, Copy, DType, Gpu, Step, Table, Tensor};
use crate::kernels::delta_step::{DeltaStep, Params, Problem};
use crate::kernels::{Kernel, delta_chunk, pack_words};
use crate::{Error, Result};

/// Sequences and tokens of one series of dispatches.
#[derive(Debug, Clone)]
struct Slab {
    sequences: Range<usize>,
    tokens: Range<usize>,
}

/// Scratch memory may take this much.
const SCRATCH_BYTES: u64 = 64 << 20;

struct Launch<'a> {
    gpu: &'a Gpu,
    problem: Problem,
    plan: DeltaPlan,
    inputs: &'a DeltaInputs<'a>,
    /// Where kernels write: the caller's tensor, or f32 scratch that `pack_words` then packs.
    o: Tensor,
    state: &'a Tensor,
    table: Binding,
    /// Parameters that all dispatches share.
    params: Params,
    /// Stand-ins for tensors that are absent, one to read and one to write.
    absent: [Binding; 2],
    /// States start at zero.
    fresh: bool,
}

impl DeltaRule {
    /// Copies and dispatches of a call; everything is refused here or not at all.
    pub(super) fn launch(
        &self,
        gpu: &Gpu,
        inputs: &DeltaInputs<'_>,
        out: &DeltaOutput,
    ) -> Result<(Vec<Copy>, Vec<Step>)> {
        let shape = self.shape(inputs)?;
        let problem = self.problem(inputs)?;
        let mut plan = DeltaPlan::choose(&problem, gpu.limits(), self.forced())?;
        if problem.tokens == 0 && plan.kernel == delta_chunk::NAME {
            // there is no chunk, but the state is still written
            plan = DeltaPlan::choose(&problem, gpu.limits(), Some(DeltaStep::NAME))?;
        }
        self.check_outputs(inputs, out, &shape)?;
        if shape.sequences == 0 || shape.heads == 0 {
            return Ok((Vec::new(), Vec::new()));
        }
        let mut params = self.params(&shape, inputs);
        let mut table = Table::default();
        params.beta_at = table.add("beta", inputs.beta)?;
        [params.starts_at, params.lengths_at] = self.sequences.add(&mut table)?;
        if let Some((a_log, dt_bias)) = &self.gate {
            params.a_log_at = table.add("a_log", a_log)?;
            params.dt_bias_at = table.add("dt_bias", dt_bias)?;
        }
        let (table, mut copies) = table.build(gpu)?;
        fits(gpu, "beta", table.size, "tokens")?;
        copies.extend(self.copy_state(out)?);
        let dummy = |what| gpu.buffer(what, 16).map(|buffer| Binding { buffer, offset: 0, size: 16 });
        let absent = [dummy("absent input")?, dummy("absent output")?];
        let fresh = self.initial.is_none();
        let mut o = out.o.clone();
        if o.dtype() != DType::F32 {
            let bytes = o.len() as u64 * 4;
            fits(gpu, "o as f32", bytes, "tokens")?;
            o = Tensor::uninitialised(gpu, DType::F32, o.shape())?;
        }
        let launch =
            Launch { gpu, problem, plan, inputs, o, state: &out.state, table, params, absent, fresh };
        let mut steps =
            if launch.plan.kernel == delta_chunk::NAME { launch.chunk_steps()? } else { launch.steps()? };
        if out.o.dtype() != DType::F32 && !out.o.is_empty() {
            let limit = gpu.limits().workgroups;
            let source = launch.o.bind(gpu, 0, launch.o.len());
            let packed = out.o.bind(gpu, 0, out.o.len());
            steps.push(pack_words::step(out.o.dtype(), source, packed, out.o.len(), limit));
        }
        Ok((copies, steps))
    }

    fn params(&self, shape: &DeltaShape, inputs: &DeltaInputs<'_>) -> Params {
        let [eps, beta_factor] = self.numbers();
        let one = inputs.v.shape()[0] == 1;
        Params {
            tokens: shape.tokens as u32,
            heads: shape.heads as u32,
            heads_k: shape.heads_k as u32,
            groups: (shape.heads / shape.heads_k) as u32,
            tiled: u32::from(self.tiled()),
            beta_batch: if one { 0 } else { (shape.tokens * shape.heads) as u32 },
            scale: self.scale_of(shape),
            eps,
            beta_factor,
            ..Params::default()
        }
    }

    fn check_outputs(&self, inputs: &DeltaInputs<'_>, out: &DeltaOutput, shape: &DeltaShape) -> Result<()> {
        check_shape("o", &out.o, inputs.v.shape())?;
        check_float("o", out.o.dtype())?;
        check_packed("o", &out.o)?;
        check_shape("state", &out.state, &self.state_shape(shape))?;
        check_f32("state", &out.state)?;
        check_packed("state", &out.state)?;
        let read = [("q", Some(inputs.q)), ("k", Some(inputs.k)), ("v", Some(inputs.v)), ("g", inputs.g)];
        for (field, output) in [("o", &out.o), ("state", &out.state)] {
            for (other, input) in read {
                if input.is_some_and(|t| t.buffer() == output.buffer()) {
                    return Err(Error::SharedBuffer { field, other });
                }
            }
        }
        if out.o.buffer() == out.state.buffer() {
            return Err(Error::SharedBuffer { field: "o", other: "state" });
        }
        Ok(())
    }

    /// The copy of the initial state to where it is updated; none where it lies there already.
    fn copy_state(&self, out: &DeltaOutput) -> Result<Option<Copy>> {
        let Some(initial) = self.initial.as_ref().filter(|t| !t.is_empty()) else { return Ok(None) };
        let state = &out.state;
        if initial.buffer() == state.buffer() {
            if initial.offset_bytes() == state.offset_bytes() {
                return Ok(None);
            }
            return Err(Error::SharedBuffer { field: "state", other: "initial_state" });
        }
        for (field, tensor, usage, remedy) in [
            ("initial_state", initial, wgpu::BufferUsages::COPY_SRC, "add COPY_SRC to the buffer's usage"),
            (
                "state",
                state,
                wgpu::BufferUsages::COPY_DST,
                "add COPY_DST, or update the initial state in place",
            ),
        ] {
            if !tensor.buffer().usage().contains(usage) {
                let value = format!("{:?}", tensor.buffer().usage());
                let bound = format!("in a buffer made with {usage:?}");
                return Err(Error::OutOfRange { field, value, bound, remedy });
            }
        }
        Ok(Some(Copy { from: initial.clone(), to: state.buffer().clone(), to_bytes: state.offset_bytes() }))
    }
}

/// Whether one binding holds `bytes`.
fn fits(gpu: &Gpu, field: &'static str, needed: u64, split: &'static str) -> Result<()> {
    let allowed = gpu.limits().binding_bytes;
    if needed <= allowed {
        return Ok(());
    }
    Err(Error::Binding { field, needed, limit: "max_storage_buffer_binding_size", allowed, split })
}

impl Launch<'_> {
    /// Elements of a tensor `[batch, tokens, …]` that a slab reads: where they start and how many they span.
    fn span(&self, t: &Tensor, slab: &Slab) -> (usize, usize) {
        let (n, s) = (t.shape(), t.strides());
        let batch = if n[0] == 1 { 0..1 } else { slab.sequences.clone() };
        // where each sequence starts is known to the device alone
        let tokens = if self.problem.ragged { 0..n[1] } else { slab.tokens.clone() };
        if t.is_empty() || tokens.is_empty() {
            return (0, 0);
        }
        let inner: usize = n.iter().zip(s).skip(2).map(|(&n, &s)| (n - 1) * s).sum();
        let first = batch.start * s[0] + tokens.start * s[1];
        (first, (batch.len() - 1) * s[0] + (tokens.len() - 1) * s[1] + inner + 1)
    }

    /// Elements of the states that a slab reads and writes.
    fn state_span(&self, slab: &Slab) -> (usize, usize) {
        let p = &self.problem;
        let each = p.heads * p.dim_k * p.dim_v;
        let slot = if p.keep { p.sequences * each } else { 0 };
        let first = slab.tokens.start * slot + slab.sequences.start * each;
        (first, slab.tokens.len() * slot + slab.sequences.len() * each)
    }

    /// What of a slab one binding does not hold, if anything.
    fn misfit(&self, slab: &Slab) -> Option<Error> {
        let limits = self.gpu.limits();
        let tensors = [
            ("q", Some(self.inputs.q)),
            ("k", Some(self.inputs.k)),
            ("v", Some(self.inputs.v)),
            ("g", self.inputs.g),
            ("o", Some(&self.o)),
        ];
        let spans = tensors.into_iter().filter_map(|(field, t)| {
            let t = t?;
            Some((field, self.span(t, slab).1 as u64 * t.dtype().bytes() as u64))
        });
        let state = ("state", self.state_span(slab).1 as u64 * 4);
        for (field, bytes) in spans.chain([state]) {
            let needed = bytes + u64::from(limits.offset_alignment);
            if let Err(error) = fits(self.gpu, field, needed, "sequences, heads or tokens") {
                return Some(error);
            }
        }
        None
    }

    /// Dispatches in order: all tokens of some sequences, then of the next.
    fn steps(&self) -> Result<Vec<Step>> {
        let (p, limits) = (&self.problem, self.gpu.limits());
        let token_flops = p.heads as u64 * p.token_flops();
        let within = |flops: u64, most: usize| {
            (limits.dispatch_flops / flops.max(1)).clamp(1, most.max(1) as u64) as usize
        };
        let mut n_sequences = within(token_flops, p.sequences.min(limits.workgroups as usize));
        let mut n_tokens =
            within(token_flops * n_sequences as u64, p.tokens.min(self.plan.tuning.most_tokens() as usize));
        loop {
            let first = Slab { sequences: 0..n_sequences, tokens: 0..n_tokens.min(p.tokens) };
            match self.misfit(&first) {
                None => break,
                Some(_) if n_sequences > 1 => n_sequences = n_sequences.div_ceil(2),
                Some(_) if n_tokens > 1 => n_tokens = n_tokens.div_ceil(2),
                Some(error) => return Err(error),
            }
        }
        let constants = self.plan.constants(limits);
        let cut = |n: usize, by: usize| (0..n).step_by(by).map(move |a| a..(a + by).min(n));
        let mut steps = Vec::new();
        for sequences in cut(p.sequences, n_sequences) {
            // without a token the state is still written
            let none = (p.tokens == 0).then_some(0..0);
            for tokens in cut(p.tokens, n_tokens).chain(none) {
                let slab = Slab { sequences: sequences.clone(), tokens };
                let (params, bindings) = self.bound(&slab);
                steps.push(Step {
                    kernel: self.plan.kernel,
                    constants: constants.clone(),
                    params: bytemuck::bytes_of(&params).to_vec(),
                    bindings: bindings.to_vec(),
                    groups: [
                        (p.dim_v as u32).div_ceil(self.plan.tuning.columns),
                        p.heads as u32,
                        slab.sequences.len() as u32,
                    ],
                    flops: token_flops * (slab.sequences.len() * slab.tokens.len().max(1)) as u64,
                });
            }
        }
        Ok(steps)
    }

    /// Dispatches of the chunk-parallel form: of each slab its chunks, then the states, then the outputs.
    fn chunk_steps(&self) -> Result<Vec<Step>> {
        let (p, limits) = (&self.problem, self.gpu.limits());
        let stride = delta_chunk::stride(p);
        let chunk = delta_chunk::CHUNK;
        let flops = delta_chunk::flops(p);
        let allowed = limits.binding_bytes.min(limits.buffer_bytes).min(SCRATCH_BYTES);
        let scratch_bytes = |s: usize, c: usize| (s * p.heads * c * stride * 4) as u64;
        // a workgroup's number holds its chunk and, at most, this many blocks
        let blocks = delta_chunk::blocks(p) as usize;
        let mut n_sequences = p.sequences.min(limits.workgroups as usize);
        let mut n_chunks = p
            .tokens
            .div_ceil(chunk)
            .min(self.plan.tuning.most_tokens() as usize / chunk)
            .min(limits.workgroups as usize / blocks)
            .max(1);
        loop {
            let first = Slab { sequences: 0..n_sequences, tokens: 0..(n_chunks * chunk).min(p.tokens) };
            let needed = scratch_bytes(n_sequences, n_chunks);
            let largest = flops.iter().max().copied().unwrap_or(0);
            let heavy = largest * (n_sequences * p.heads * n_chunks) as u64 > limits.dispatch_flops;
            match self.misfit(&first) {
                None if needed <= allowed && !heavy => break,
                _ if n_chunks > 8 => n_chunks = n_chunks.div_ceil(2),
                _ if n_sequences > 1 => n_sequences = n_sequences.div_ceil(2),
                _ if n_chunks > 1 => n_chunks = n_chunks.div_ceil(2),
                None if needed <= allowed => break,
                Some(error) => return Err(error),
                None => {
                    return Err(Error::Binding {
                        field: "scratch",
                        needed,
                        limit: "max_storage_buffer_binding_size",
                        allowed,
                        split: "heads",
                    });
                }
            }
        }
        let bytes = scratch_bytes(n_sequences, n_chunks);
        let scratch = Binding { buffer: self.gpu.buffer("scratch", bytes)?, offset: 0, size: bytes };
        let cut = |n: usize, by: usize| (0..n).step_by(by).map(move |a| a..(a + by).min(n));
        let mut steps = Vec::new();
        for sequences in cut(p.sequences, n_sequences) {
            for tokens in cut(p.tokens, n_chunks * chunk) {
                let chunks = tokens.len().div_ceil(chunk);
                let slab = Slab { sequences: sequences.clone(), tokens };
                let (params, bound) = self.bound(&slab);
                let params = Params {
                    chunks: chunks as u32,
                    stride: stride as u32,
                    width: delta_chunk::width(p) as u32,
                    chunk: chunk as u32,
                    block: delta_chunk::BLOCK as u32,
                    staged: self.plan.tuning.staged,
                    dim_k: p.dim_k as u32,
                    ..params
                };
                let [q, k, v, g, table, state, o] = bound;
                let each = [
                    vec![q, k, v, g, table.clone(), scratch.clone()],
                    vec![scratch.clone()],
                    vec![scratch.clone()],
                    vec![scratch.clone(), state],
                    vec![table, scratch.clone(), o],
                ];
                let groups = delta_chunk::groups(p, &self.plan.tuning, chunks as u32);
                for (part, bindings) in each.into_iter().enumerate() {
                    let kernel = delta_chunk::KERNELS[part];
                    steps.push(Step {
                        kernel,
                        constants: delta_chunk::constants(kernel, p, &self.plan.tuning),
                        params: bytemuck::bytes_of(&params).to_vec(),
                        bindings,
                        groups: [groups[part], p.heads as u32, slab.sequences.len() as u32],
                        flops: flops[part] * (slab.sequences.len() * p.heads * chunks) as u64,
                    });
                }
            }
        }
        Ok(steps)
    }

    /// Parameters and bindings of a slab.
    fn bound(&self, slab: &Slab) -> (Params, [Binding; 7]) {
        let p = &self.problem;
        // kernels count sequences and tokens from the call's first, a binding from the slab's: the difference is
        // taken off the base, and comes back as they add up in 32 bits
        let bind = |t: &Tensor| {
            let (first, count) = self.span(t, slab);
            if count == 0 {
                return (self.absent[0].clone(), [0; 4]);
            }
            let (binding, base) = t.bind(self.gpu, first, count);
            let s = t.strides();
            let batch = if t.shape()[0] == 1 { 0 } else { s[0] as u32 };
            (binding, [base.wrapping_sub(first as u32), batch, s[1] as u32, s[2] as u32])
        };
        let (q_binding, q) = bind(self.inputs.q);
        let (k_binding, k) = bind(self.inputs.k);
        let (v_binding, v) = bind(self.inputs.v);
        let (g_binding, g) = self.inputs.g.map_or_else(|| (self.absent[0].clone(), [0; 4]), bind);
        let (o_binding, o) = match self.span(&self.o, slab) {
            (_, 0) => (self.absent[1].clone(), [0; 4]),
            _ => bind(&self.o),
        };
        let (first, count) = self.state_span(slab);
        let (state_binding, base) = self.state.bind(self.gpu, first, count);
        let slot = if p.keep { p.sequences * p.heads * p.dim_k * p.dim_v } else { 0 };
        let params = Params {
            token_base: slab.tokens.start as u32,
            token_count: slab.tokens.len() as u32,
            sequence_base: slab.sequences.start as u32,
            fresh: u32::from(self.fresh && slab.tokens.start == 0),
            q,
            k,
            v,
            g,
            o,
            state_base: base.wrapping_sub(first as u32),
            state_slot: slot as u32,
            rows: self.plan.tuning.row_split,
            stages: if p.keep { slab.tokens.len() as u32 + 1 } else { 1 },
            row_blocks: self.plan.tuning.row_blocks(p.dim_k),
            ..self.params
        };
        let bindings =
            [q_binding, k_binding, v_binding, g_binding, self.table.clone(), state_binding, o_binding];
        (params, bindings)
    }
}
