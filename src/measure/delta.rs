//! Workloads of the delta rules.

use super::workload::{Call, Check, Comparison, Prepared, Work, Workload, numbers};
use crate::cases::{round, upload};
use crate::kernels::attention::Operand;
use crate::kernels::delta_step::{Decay, Problem};
use crate::limits::Limits;
use crate::linear::{DeltaInputs, DeltaOutput, DeltaPlan, DeltaRule};
use crate::reference::{DeltaCase, DeltaDecay, Rounding, delta_rule};
use crate::{DType, Gpu, Result, Tensor};

/// One sequence of normalised keys, with an incoming state.
#[derive(Debug, Clone, Copy)]
struct Delta {
    channels: bool,
    tokens: usize,
    heads: usize,
    dim: usize,
    /// A way that is insisted on.
    way: Option<&'static str>,
}

/// Columns of the state that the definition is asked for.
const SAMPLED: usize = 4;

pub(super) fn workloads() -> Vec<Workload> {
    let mut all = Vec::new();
    for (rule, channels) in [("gdn", false), ("kda", true)] {
        let work = Delta { channels, tokens: 512, heads: 8, dim: 128, way: None };
        let mut add = |name: String, work| all.push(Workload::new(name, work));
        add(format!("{rule}_prefill_8x512x128"), work);
        add(format!("{rule}_prefill_8x4096x128"), Delta { tokens: 4096, ..work });
        add(format!("{rule}_step_32x128"), Delta { tokens: 1, heads: 32, ..work });
        // the other ways, at a size that a processor without subgroups gets through
        let small = Delta { tokens: 256, heads: 2, ..work };
        for way in ["delta_step", "delta_chunk"] {
            add(format!("{rule}_prefill_2x256x128_{way}"), Delta { way: Some(way), ..small });
        }
        add(format!("{rule}_prefill_2x256x128"), small);
    }
    all
}

impl Delta {
    fn rule(&self) -> DeltaRule {
        let rule = if self.channels { DeltaRule::kimi() } else { DeltaRule::gated() };
        let rule = rule.l2norm(1e-6);
        match self.way {
            Some(way) => rule.kernel(way),
            None => rule,
        }
    }

    fn plan(&self, dtype: DType, limits: &Limits) -> Result<DeltaPlan> {
        let operand = Operand { dtype, quads: self.dim.is_multiple_of(4) };
        let problem = Problem {
            sequences: 1,
            tokens: self.tokens,
            heads_k: self.heads,
            heads: self.heads,
            dim_k: self.dim,
            dim_v: self.dim,
            q: operand,
            k: operand,
            v: dtype,
            g: DType::F32,
            decay: if self.channels { Decay::Channel } else { Decay::Head },
            gate_logits: false,
            beta_logits: false,
            l2norm: true,
            ragged: false,
            keep: false,
        };
        DeltaPlan::choose(&problem, limits, self.way)
    }
}

impl Work for Delta {
    fn kernel(&self, dtype: DType, limits: &Limits) -> Result<&'static str> {
        Ok(self.plan(dtype, limits)?.kernel())
    }

    fn work(&self, dtype: DType, limits: &Limits) -> Result<[u64; 2]> {
        let plan = self.plan(dtype, limits)?;
        Ok([plan.bytes(), plan.flops()])
    }

    fn prepare(&self, gpu: &Gpu, dtype: DType) -> Result<Prepared> {
        let &Self { tokens, heads, dim, channels, .. } = self;
        let rows = tokens * heads;
        let data = [1, 2, 3].map(|seed| numbers(seed, rows * dim));
        let gates = numbers(4, if channels { rows * dim } else { rows });
        let g: Vec<f32> = gates.into_iter().map(|x| -0.05 * x * x).collect();
        let beta: Vec<f32> = numbers(5, rows).into_iter().map(|x| 0.5 + 0.2 * x).collect();
        let state = numbers(6, heads * dim * dim);
        let shape = [1, tokens, heads, dim];
        let [q, k, v] = [&data[0], &data[1], &data[2]].map(|data| upload(gpu, data, &shape, dtype));
        let tensors = [
            q?,
            k?,
            v?,
            Tensor::from_slice(gpu, &beta, &shape[..3])?,
            Tensor::from_slice(gpu, &g, &shape[..if channels { 4 } else { 3 }])?,
        ];
        // in place, as a model's layer does it: the first call is checked, later ones go on from its state
        let held = Tensor::from_slice(gpu, &state, [1, heads, dim, dim])?;
        let rule = self.rule().initial_state(&held);
        let o = Tensor::from_slice(gpu, &vec![f32::NAN; rows * dim], shape)?;
        let out = DeltaOutput { o, state: held };
        let plan = self.plan(dtype, gpu.limits())?;
        Ok(Prepared {
            kernel: plan.kernel(),
            tuning: format!(
                "{} dependent steps, {} x {} lanes, {:.2} GFLOP of its own",
                plan.critical_path(),
                plan.tuning.row_split,
                plan.tuning.columns,
                plan.own_flops() as f64 / 1e9,
            ),
            flops: plan.flops(),
            bytes: plan.bytes(),
            call: Box::new(Running {
                rule,
                tensors,
                out,
                inputs: *self,
                data: data.map(|data| round(&data, dtype)),
                g,
                beta,
                state,
            }),
        })
    }
}

/// A call, and its inputs as the device holds them, for the definition.
#[derive(Debug)]
struct Running {
    rule: DeltaRule,
    tensors: [Tensor; 5],
    out: DeltaOutput,
    inputs: Delta,
    data: [Vec<f32>; 3],
    g: Vec<f32>,
    beta: Vec<f32>,
    state: Vec<f32>,
}

impl Call for Running {
    fn record(&self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder) -> Result<()> {
        let [q, k, v, beta, g] = &self.tensors;
        self.rule.record(gpu, encoder, &DeltaInputs { q, k, v, beta, g: Some(g) }, &self.out)
    }

    /// Columns of a state never meet: some of the last head's stand for all.
    fn check(&self, gpu: &Gpu) -> Result<Check> {
        let Delta { channels, tokens, heads, dim, .. } = self.inputs;
        let head = heads - 1;
        let of_head = |data: &[f32], width: usize, kept: usize| -> Vec<f32> {
            data.chunks(width).skip(head).step_by(heads).flat_map(|row| row[..kept].to_vec()).collect()
        };
        let rows = |data: &[f32]| -> Vec<f32> {
            data[head * dim * dim..].chunks(dim).take(dim).flat_map(|row| row[..SAMPLED].to_vec()).collect()
        };
        let [q, k, v] = &self.data;
        let gates = if channels { dim } else { 1 };
        let g = of_head(&self.g, gates, gates);
        let case = DeltaCase {
            batch: 1,
            tokens,
            heads_k: 1,
            heads: 1,
            dim_k: dim,
            dim_v: SAMPLED,
            q: &of_head(q, dim, dim),
            k: &of_head(k, dim, dim),
            v: &of_head(v, dim, SAMPLED),
            decay: if channels { DeltaDecay::Channel(&g) } else { DeltaDecay::Head(&g) },
            beta: &of_head(&self.beta, 1, 1),
            initial: Some(&rows(&self.state)),
            sequences: None,
            scale: f64::from((dim as f32).powf(-0.5)),
            l2norm: Some(1e-6),
            gate: None,
            beta_sigmoid: None,
            tiled_heads: false,
            keep_states: false,
        };
        let want = delta_rule(&case, Rounding::None);
        let mut comparison = Comparison::default();
        comparison.add(&of_head(&self.out.o.read::<f32>(gpu)?, dim, SAMPLED), &want.o);
        comparison.add(&rows(&self.out.state.read::<f32>(gpu)?), &want.state);
        Ok(comparison.check())
    }
}
