//! Linear attention with decay, as lightning attention and SSD call it: heads before tokens in every view.

use super::common::{
    Sequences, Target, absent, check_f32, check_float, check_groups, check_packed, check_shape, check_shared,
    check_size, copy_state, whole,
};
use super::drive::{Cut, Pass, Recurrence};
use crate::Result;
use crate::attention::row_stride;
use crate::gpu::{Binding, Copy, Gpu, Step, Table, Tensor};
use crate::kernels::attention::element_loader;
use crate::kernels::chunk_states;
use crate::kernels::linear_step::{NAME, Params, Problem};

/// Widest key or value.
const MAX_WIDTH: usize = 256;

/// Ways to compute.
const PATHS: [&str; 2] = [NAME, "linear_chunk"];

/// A call. Names are what the caller's interface calls each tensor.
#[derive(Debug)]
pub(super) struct Decayed<'a> {
    pub(super) names: [&'static str; 3],
    /// `[batch, heads or groups, tokens, dim_k]`
    pub(super) q: Tensor,
    pub(super) k: Tensor,
    /// `[batch, heads, tokens, dim_v]`
    pub(super) v: Tensor,
    /// `[batch, tokens, heads]`
    pub(super) dt: Option<&'a Tensor>,
    /// Slopes, or rates where there is a dt: `[heads]`.
    pub(super) decay: (&'static str, &'a Tensor),
    pub(super) skip: Option<&'a Tensor>,
    pub(super) dt_bias: Option<&'a Tensor>,
    pub(super) dt_limit: [f32; 2],
    pub(super) initial: Option<&'a Tensor>,
    pub(super) sequences: &'a Sequences,
    pub(super) keep: bool,
    pub(super) kernel: Option<&'a str>,
    /// The output's name; whether it and the state have tokens before heads and columns before rows.
    pub(super) output: &'static str,
    pub(super) tokens_first: bool,
}

/// A call whose tensors are bound.
struct Bound {
    problem: Problem,
    params: Params,
    bindings: Vec<Binding>,
    groups: [u32; 2],
    elements: u32,
    sums: u32,
    absent: Binding,
    token_flops: u64,
    max_groups: u32,
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
                params.o = [sums.1, 0, 0, self.sums / self.params.sequences];
            }
        }
        Step {
            kernel: NAME,
            constants: self.problem.constants(pass.output, pass.store),
            params: bytemuck::bytes_of(&params).to_vec(),
            bindings,
            groups: [self.groups[0], self.groups[1], self.params.sequences * pass.chunks],
            flops: self.token_flops * u64::from(pass.token_count) * u64::from(pass.chunks),
        }
    }

    fn join(&self, chunks: u32, fresh: bool, [states, sums]: &[(Binding, u32); 2]) -> Step {
        let params = chunk_states::Params {
            elements: self.elements,
            chunks,
            fresh: u32::from(fresh),
            per_sum: self.problem.dim_k * self.problem.dim_v,
            rates_count: 1,
            sums: self.sums,
            state_base: self.params.state_base,
            chunk_base: states.1,
            sums_base: sums.1,
            ..chunk_states::Params::default()
        };
        let bindings = [sums.0.clone(), self.absent.clone(), states.0.clone(), self.bindings[5].clone()];
        chunk_states::step(params, false, &bindings, self.max_groups)
    }
}

impl Decayed<'_> {
    fn sizes(&self) -> Result<[usize; 6]> {
        let (q, v) = (self.q.shape(), self.v.shape());
        let sizes = [q[0], q[2], q[1], v[1], q[3], v[3]];
        let [batch, tokens, shared, heads, dim_k, dim_v] = sizes;
        let [q_name, k_name, v_name] = self.names;
        check_shape(k_name, &self.k, &[batch, shared, tokens, dim_k])?;
        check_shape(v_name, &self.v, &[batch, heads, tokens, dim_v])?;
        check_size("dim_k", dim_k, MAX_WIDTH)?;
        check_size("dim_v", dim_v, MAX_WIDTH)?;
        for (name, t) in [(q_name, &self.q), (k_name, &self.k), (v_name, &self.v)] {
            check_float(name, t.dtype())?;
            row_stride(name, t)?;
        }
        if shared == 0 || heads % shared != 0 {
            return Err(crate::Error::OutOfRange {
                field: "heads",
                value: heads.to_string(),
                bound: format!("a multiple of the {shared} heads of {k_name}"),
                remedy: "give each of these the same number of heads",
            });
        }
        Ok(sizes)
    }

    /// Shape of the output, and of the state.
    pub(super) fn output_shapes(&self) -> Result<[Vec<usize>; 2]> {
        let [batch, tokens, _, heads, dim_k, dim_v] = self.sizes()?;
        let sequences = self.sequences.count(batch)?;
        let (o, mut state) = if self.tokens_first {
            (vec![batch, tokens, heads, dim_v], vec![sequences, heads, dim_v, dim_k])
        } else {
            (vec![batch, heads, tokens, dim_v], vec![sequences, heads, dim_k, dim_v])
        };
        if self.keep {
            state.insert(0, tokens + 1);
        }
        Ok([o, state])
    }

    fn check(&self, gpu: &Gpu, o: &Tensor, state: &Tensor) -> Result<()> {
        let [batch, tokens, _, heads, ..] = self.sizes()?;
        let [_, state_shape] = self.output_shapes()?;
        let sequences = self.sequences.count(batch)?;
        let [q_name, k_name, v_name] = self.names;
        let mut inputs = vec![(q_name, &self.q), (k_name, &self.k), (v_name, &self.v), self.decay];
        let per_head =
            [Some(self.decay), self.skip.map(|t| ("skip", t)), self.dt_bias.map(|t| ("dt_bias", t))];
        for (name, t) in per_head.into_iter().flatten() {
            check_shape(name, t, &[heads])?;
            check_f32(name, t)?;
        }
        if let Some(dt) = self.dt {
            check_shape("dt", dt, &[batch, tokens, heads])?;
            check_f32("dt", dt)?;
            inputs.push(("dt", dt));
        }
        check_shape("state", state, &state_shape)?;
        check_f32("state", state)?;
        check_packed("state", state)?;
        if let Some(initial) = self.initial {
            check_shape("initial_state", initial, &state_shape[usize::from(self.keep)..])?;
            check_f32("initial_state", initial)?;
            check_packed("initial_state", initial)?;
        }
        check_shared(&[(self.output, o), ("state", state)], &inputs)?;
        let mut states = vec![("state", state)];
        states.extend(self.initial.map(|t| ("initial_state", t)));
        check_shared(&[(self.output, o)], &states)?;
        check_groups(gpu, "heads", heads)?;
        check_groups(gpu, "sequences", sequences)
    }

    /// Copies and dispatches; everything is refused here or not at all.
    pub(super) fn launch(&self, gpu: &Gpu, o: &Tensor, state: &Tensor) -> Result<(Vec<Copy>, Vec<Step>)> {
        let [batch, tokens, shared, heads, dim_k, dim_v] = self.sizes()?;
        let sequences = self.sequences.count(batch)?;
        self.check(gpu, o, state)?;
        let problem = Problem {
            dim_k: dim_k as u32,
            dim_v: dim_v as u32,
            q: element_loader(self.q.dtype()),
            k: element_loader(self.k.dtype()),
            v: element_loader(self.v.dtype()),
            dt: self.dt.is_some(),
            dt_bias: self.dt_bias.is_some(),
            skip: self.skip.is_some(),
            ragged: self.sequences.ragged(),
            keep: self.keep,
        };
        let tiles = dim_v.div_ceil(problem.columns() as usize);
        let elements = sequences * heads * dim_k * dim_v;
        let token_flops = problem.token_flops() * (heads * sequences) as u64;
        let cut = Cut {
            tokens,
            sequences,
            elements,
            sums: sequences * heads,
            groups: heads * tiles,
            most_tokens: problem.most_tokens(),
            token_flops,
        };
        let chunked = cut.chunked(gpu, PATHS, self.kernel, self.keep)?;
        let target = Target::new(gpu, self.output, o, &self.output_shapes()?[0])?;
        if elements == 0 {
            return Ok((Vec::new(), Vec::new()));
        }
        let mut table = Table::default();
        let mut params = Params {
            tokens: tokens as u32,
            sequences: sequences as u32,
            groups: (heads / shared) as u32,
            sequences_at: self.sequences.add(&mut table)?,
            decay_at: table.add(self.decay.0, self.decay.1)?,
            dt_limit: self.dt_limit,
            ..Params::default()
        };
        if let Some(skip) = self.skip {
            params.skip_at = table.add("skip", skip)?;
        }
        if let Some(bias) = self.dt_bias {
            params.dt_bias_at = table.add("dt_bias", bias)?;
        }
        let (table, mut copies) = table.build(gpu)?;
        copies.extend(copy_state(self.initial, state)?);
        let read = |name, t: &Tensor| {
            let (binding, base) = whole(gpu, name, t)?;
            let s = t.strides();
            Ok::<_, crate::Error>((
                binding,
                [base, self.sequences.step(batch, s[0]), s[2] as u32, s[1] as u32],
            ))
        };
        let (q, k, v);
        (q, params.q) = read(self.names[0], &self.q)?;
        (k, params.k) = read(self.names[1], &self.k)?;
        (v, params.v) = read(self.names[2], &self.v)?;
        let dt = if let Some(t) = self.dt {
            let (binding, base) = whole(gpu, "dt", t)?;
            let s = t.strides();
            params.dt = [base, self.sequences.step(batch, s[0]), s[1] as u32, s[2] as u32];
            binding
        } else {
            absent(gpu, "absent dt")?
        };
        let (state_binding, state_base) = whole(gpu, "state", state)?;
        params.state_base = state_base;
        let matrix = dim_k * dim_v;
        let (row, column, token, head) = if self.tokens_first {
            (1, dim_k, heads * dim_v, dim_v)
        } else {
            (dim_v, 1, dim_v, tokens * dim_v)
        };
        params.state = [elements, heads * matrix, matrix, row, column].map(|n| n as u32);
        let sequence = self.sequences.step(batch, heads * tokens * dim_v);
        params.o = [target.base, sequence, token as u32, head as u32];
        let bound = Bound {
            problem,
            params,
            bindings: vec![q, k, v, dt, table, state_binding, target.binding.clone()],
            groups: [tiles as u32, heads as u32],
            elements: elements as u32,
            sums: (sequences * heads) as u32,
            absent: absent(gpu, "absent rates")?,
            token_flops,
            max_groups: gpu.limits().workgroups,
        };
        let mut steps = cut.steps(gpu, &bound, chunked, self.initial.is_none())?;
        target.finish(gpu, &mut steps);
        Ok((copies, steps))
    }
}
