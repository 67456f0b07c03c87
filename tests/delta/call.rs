//! A delta rule's call with its data in main memory.

use wgpu_attention::linear::{DeltaInputs, DeltaOutput, DeltaRule};
use wgpu_attention::reference::{DeltaCase, DeltaDecay, DeltaResult, Rounding, delta_rule};
use wgpu_attention::{Gpu, Result, Tensor};

use crate::common::{compare, noise};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Gated,
    Kimi,
}

pub(crate) const KINDS: [Kind; 3] = [Kind::Plain, Kind::Gated, Kind::Kimi];

#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) kind: Kind,
    pub(crate) batch: usize,
    pub(crate) tokens: usize,
    pub(crate) heads_k: usize,
    pub(crate) heads: usize,
    pub(crate) dim_k: usize,
    pub(crate) dim_v: usize,
    pub(crate) q: Vec<f32>,
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
    pub(crate) g: Vec<f32>,
    pub(crate) beta: Vec<f32>,
    pub(crate) initial: Option<Vec<f32>>,
    pub(crate) sequences: Option<(Vec<i32>, Vec<i32>)>,
    pub(crate) l2norm: Option<f32>,
    pub(crate) gate: Option<(Vec<f32>, Vec<f32>)>,
    pub(crate) beta_factor: Option<f32>,
    pub(crate) tiled: bool,
    pub(crate) keep: bool,
    pub(crate) way: Option<&'static str>,
}

/// Ways to compute that fit the device.
pub(crate) fn ways(gpu: &Gpu) -> Vec<&'static str> {
    let mut ways = vec!["delta_step", "delta_chunk"];
    if gpu.limits().subgroup.is_some() {
        ways.push("delta_step_subgroup");
    }
    ways
}

impl Call {
    /// `[batch, tokens, heads_k, heads, dim_k, dim_v]` of noise: normalised keys, decays of 0 to -2, an incoming
    /// state.
    pub(crate) fn new(kind: Kind, n: [usize; 6]) -> Self {
        let [batch, tokens, heads_k, heads, dim_k, dim_v] = n;
        let places = batch * tokens;
        let gates = match kind {
            Kind::Plain => 0,
            Kind::Gated => places * heads,
            Kind::Kimi => places * heads * dim_k,
        };
        Self {
            kind,
            batch,
            tokens,
            heads_k,
            heads,
            dim_k,
            dim_v,
            q: noise(1, places * heads_k * dim_k),
            k: noise(2, places * heads_k * dim_k),
            v: noise(3, places * heads * dim_v),
            g: noise(4, gates).into_iter().map(|x| x - 1.0).collect(),
            beta: noise(5, places * heads).into_iter().map(|x| 0.5 + 0.5 * x).collect(),
            initial: Some(noise(6, batch * heads * dim_k * dim_v)),
            sequences: None,
            l2norm: Some(1e-6),
            gate: None,
            beta_factor: None,
            tiled: false,
            keep: false,
            way: None,
        }
    }

    pub(crate) fn sequences(&self) -> usize {
        self.sequences.as_ref().map_or(self.batch, |s| s.0.len())
    }

    /// Only tokens `range` of a call of one batch entry.
    pub(crate) fn part(&self, range: std::ops::Range<usize>, initial: Option<Vec<f32>>) -> Self {
        assert_eq!(self.batch, 1);
        let cut = |data: &[f32]| {
            let width = data.len() / self.tokens;
            data[range.start * width..range.end * width].to_vec()
        };
        Self {
            tokens: range.len(),
            q: cut(&self.q),
            k: cut(&self.k),
            v: cut(&self.v),
            g: cut(&self.g),
            beta: cut(&self.beta),
            initial,
            ..self.clone()
        }
    }

    pub(crate) fn rule(&self, gpu: &Gpu) -> DeltaRule {
        let one = |data: &[f32], shape: &[usize]| Tensor::from_slice(gpu, data, shape).unwrap();
        let mut rule = match self.kind {
            Kind::Plain => DeltaRule::plain(),
            Kind::Gated => DeltaRule::gated(),
            Kind::Kimi => DeltaRule::kimi(),
        };
        if let Some(eps) = self.l2norm {
            rule = rule.l2norm(eps);
        }
        if let Some(state) = &self.initial {
            rule = rule.initial_state(&one(state, &[self.sequences(), self.heads, self.dim_k, self.dim_v]));
        }
        if let Some((starts, lengths)) = &self.sequences {
            let n = [starts.len()];
            let starts = Tensor::from_slice(gpu, starts, n).unwrap();
            rule = rule.sequences(&starts, &Tensor::from_slice(gpu, lengths, n).unwrap());
        }
        if let Some((a_log, dt_bias)) = &self.gate {
            let channels: &[usize] = if self.kind == Kind::Kimi { &[self.dim_k] } else { &[] };
            let dt_bias = one(dt_bias, &[&[self.heads], channels].concat());
            rule = rule.gate_logits(&one(a_log, &[self.heads]), &dt_bias);
        }
        if let Some(factor) = self.beta_factor {
            rule = rule.beta_logits(factor);
        }
        if self.tiled {
            rule = rule.tiled_heads();
        }
        if self.keep {
            rule = rule.keep_states();
        }
        if let Some(way) = self.way {
            rule = rule.kernel(way);
        }
        rule
    }

    /// q, k, v, beta, g on the device.
    pub(crate) fn tensors(&self, gpu: &Gpu) -> [Tensor; 5] {
        let (b, t) = (self.batch, self.tokens);
        let one = |data: &[f32], shape: &[usize]| Tensor::from_slice(gpu, data, shape).unwrap();
        let g: &[usize] = match self.kind {
            Kind::Plain => &[0],
            Kind::Gated => &[b, t, self.heads],
            Kind::Kimi => &[b, t, self.heads, self.dim_k],
        };
        [
            one(&self.q, &[b, t, self.heads_k, self.dim_k]),
            one(&self.k, &[b, t, self.heads_k, self.dim_k]),
            one(&self.v, &[b, t, self.heads, self.dim_v]),
            one(&self.beta, &[b, t, self.heads]),
            one(&self.g, g),
        ]
    }

    /// `(o, state)` of the device, written over NaN.
    pub(crate) fn try_run(&self, gpu: &Gpu) -> Result<(Vec<f32>, Vec<f32>)> {
        let [q, k, v, beta, g] = self.tensors(gpu);
        let g = (self.kind != Kind::Plain).then_some(&g);
        let inputs = DeltaInputs { q: &q, k: &k, v: &v, beta: &beta, g };
        let poison = |shape: &[usize]| {
            Tensor::from_slice(gpu, &vec![f32::NAN; shape.iter().product()], shape).unwrap()
        };
        let mut state = vec![self.sequences(), self.heads, self.dim_k, self.dim_v];
        if self.keep {
            state.insert(0, self.tokens + 1);
        }
        let out = DeltaOutput { o: poison(v.shape()), state: poison(&state) };
        let mut encoder = gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        self.rule(gpu).record(gpu, &mut encoder, &inputs, &out)?;
        gpu.submit(encoder)?;
        Ok((out.o.read(gpu)?, out.state.read(gpu)?))
    }

    pub(crate) fn run(&self, gpu: &Gpu) -> (Vec<f32>, Vec<f32>) {
        self.try_run(gpu).unwrap()
    }

    pub(crate) fn reference(&self) -> DeltaResult {
        let case = DeltaCase {
            batch: self.batch,
            tokens: self.tokens,
            heads_k: self.heads_k,
            heads: self.heads,
            dim_k: self.dim_k,
            dim_v: self.dim_v,
            q: &self.q,
            k: &self.k,
            v: &self.v,
            decay: match self.kind {
                Kind::Plain => DeltaDecay::None,
                Kind::Gated => DeltaDecay::Head(&self.g),
                Kind::Kimi => DeltaDecay::Channel(&self.g),
            },
            beta: &self.beta,
            initial: self.initial.as_deref(),
            sequences: self.sequences.as_ref().map(|(s, l)| (s.as_slice(), l.as_slice())),
            scale: f64::from((self.dim_k as f32).powf(-0.5)),
            l2norm: self.l2norm.map(f64::from),
            gate: self.gate.as_ref().map(|(a, d)| (a.as_slice(), d.as_slice())),
            beta_sigmoid: self.beta_factor.map(f64::from),
            tiled_heads: self.tiled,
            keep_states: self.keep,
        };
        delta_rule(&case, Rounding::None)
    }

    /// Runs on the device and compares with the definition; says what differs. Tokens of no sequence stay NaN.
    pub(crate) fn judged(&self, gpu: &Gpu) -> Result<(), String> {
        let (o, state) = self.run(gpu);
        let want = self.reference();
        assert!(want.state.iter().all(|x| x.is_finite()), "the definition itself overflows");
        let written: Vec<usize> = (0..o.len()).filter(|&i| !want.o[i].is_nan()).collect();
        if let Some(i) = (0..o.len()).find(|&i| want.o[i].is_nan() && !o[i].is_nan()) {
            return Err(format!("o: {i} belongs to no token, but holds {}", o[i]));
        }
        let got: Vec<f32> = written.iter().map(|&i| o[i]).collect();
        let due: Vec<f64> = written.iter().map(|&i| want.o[i]).collect();
        let states = if self.keep { want.states.concat() } else { want.state };
        compare("o", &got, &due, BOUND, 0.0)
            .and_then(|()| compare("state", &state, &states, BOUND, 0.0))
            .map_err(|why| {
                let sizes = [self.batch, self.tokens, self.heads_k, self.heads, self.dim_k, self.dim_v];
                format!("{why}; {:?} {:?} {sizes:?}", self.kind, self.way)
            })
    }

    pub(crate) fn check(&self, gpu: &Gpu) {
        self.judged(gpu).unwrap();
    }

    /// Checks the call in every way that fits.
    pub(crate) fn check_all(&self, gpu: &Gpu) {
        for way in ways(gpu) {
            if !(self.keep && way == "delta_chunk") {
                Self { way: Some(way), ..self.clone() }.check(gpu);
            }
        }
    }
}

/// Error of an element that f32 arithmetic may make, as a share of the larger of 1 and the largest element.
pub(crate) const BOUND: f64 = 2e-5;
