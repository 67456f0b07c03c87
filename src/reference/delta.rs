//! Delta rules by definition, a token after another. Spec: linear.md, sections 2 and 3.

use super::Rounding;
use crate::DType;

/// Decay of the state before each write.
#[derive(Debug, Clone, Copy)]
pub enum DeltaDecay<'a> {
    /// None: the plain delta rule.
    None,
    /// `[batch, tokens, heads]` logarithms, one a value head.
    Head(&'a [f32]),
    /// `[batch, tokens, heads, dim_k]` logarithms, one a row of the state.
    Channel(&'a [f32]),
}

/// Inputs of a delta rule, packed in row-major order.
#[derive(Debug, Clone, Copy)]
pub struct DeltaCase<'a> {
    /// Batch entries of the tensors.
    pub batch: usize,
    /// Tokens of each.
    pub tokens: usize,
    /// Heads of q and k.
    pub heads_k: usize,
    /// Heads of v, the state and the output.
    pub heads: usize,
    /// Width of q and k, rows of the state.
    pub dim_k: usize,
    /// Width of v, columns of the state.
    pub dim_v: usize,
    /// `[batch, tokens, heads_k, dim_k]`
    pub q: &'a [f32],
    /// `[batch, tokens, heads_k, dim_k]`
    pub k: &'a [f32],
    /// `[batch, tokens, heads, dim_v]`
    pub v: &'a [f32],
    /// Decay, or the numbers that it is made from.
    pub decay: DeltaDecay<'a>,
    /// `[batch, tokens, heads]` strength of each write, or its logit.
    pub beta: &'a [f32],
    /// `[sequences, heads, dim_k, dim_v]`
    pub initial: Option<&'a [f32]>,
    /// First token and tokens of each sequence; one sequence a batch entry without.
    pub sequences: Option<(&'a [i32], &'a [i32])>,
    /// Factor of q.
    pub scale: f64,
    /// Divide q and k by the root of their sum of squares and this.
    pub l2norm: Option<f64>,
    /// `a_log [heads]` and `dt_bias` (`[heads]`, or `[heads, dim_k]` for channels): the decay's logarithm is
    /// `-exp(a_log) softplus(decay + dt_bias)`.
    pub gate: Option<(&'a [f32], &'a [f32])>,
    /// The strength is this times the sigmoid of beta.
    pub beta_sigmoid: Option<f64>,
    /// Value heads `0, heads_k, 2 heads_k, …` share a key head, instead of neighbours.
    pub tiled_heads: bool,
    /// Return the state before and after each token too.
    pub keep_states: bool,
}

/// What the definition gives.
#[derive(Debug, Clone)]
pub struct DeltaResult {
    /// `[batch, tokens, heads, dim_v]`; NaN at tokens of no sequence.
    pub o: Vec<f64>,
    /// `[sequences, heads, dim_k, dim_v]` after the last token.
    pub state: Vec<f64>,
    /// If kept, the state before the first token and after each; past a sequence's end it stays.
    pub states: Vec<Vec<f64>>,
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl DeltaCase<'_> {
    /// Logarithm of the decay of row `row` at a token (`at`: batch, token and head as one number).
    fn log_decay(&self, at: usize, head: usize, row: usize) -> f64 {
        let (raw, channel) = match self.decay {
            DeltaDecay::None => return 0.0,
            DeltaDecay::Head(g) => (g[at], head),
            DeltaDecay::Channel(g) => (g[at * self.dim_k + row], head * self.dim_k + row),
        };
        match self.gate {
            None => f64::from(raw),
            Some((a_log, dt_bias)) => {
                -f64::from(a_log[head]).exp() * softplus(f64::from(raw) + f64::from(dt_bias[channel]))
            }
        }
    }

    fn key(&self, data: &[f32], place: usize, head: usize) -> Vec<f64> {
        let shared = if self.tiled_heads { head % self.heads_k } else { head / (self.heads / self.heads_k) };
        let row = &data[(place * self.heads_k + shared) * self.dim_k..][..self.dim_k];
        let sum: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let factor = self.l2norm.map_or(1.0, |eps| (sum + eps).sqrt().recip());
        row.iter().map(|&x| f64::from(x) * factor).collect()
    }
}

/// `S <- diag(e^g) S;  u = beta (v - S^T k);  S <- S + k u^T;  o = S^T q`, a token after another.
#[must_use]
pub fn delta_rule(case: &DeltaCase<'_>, rounding: Rounding) -> DeltaResult {
    let round = |x: f64| if rounding == Rounding::None { x } else { f64::from(x as f32) };
    let output = |x: f64| match rounding {
        Rounding::None => x,
        Rounding::Output(DType::F16) => half::f16::from_f64(x).to_f64(),
        Rounding::Output(DType::Bf16) => half::bf16::from_f64(x).to_f64(),
        Rounding::Output(_) => f64::from(x as f32),
    };
    let &DeltaCase { batch, tokens, heads, dim_k, dim_v, .. } = case;
    let sequences = case.sequences.map_or(batch, |(starts, _)| starts.len());
    let size = dim_k * dim_v;
    let mut state: Vec<f64> = match case.initial {
        Some(initial) => initial.iter().map(|&x| f64::from(x)).collect(),
        None => vec![0.0; sequences * heads * size],
    };
    let mut o = vec![f64::NAN; batch * tokens * heads * dim_v];
    let mut states = if case.keep_states { vec![state.clone()] } else { Vec::new() };
    for t in 0..tokens {
        for n in 0..sequences {
            let (start, length) = case.sequences.map_or((0, tokens), |(starts, lengths)| {
                let start = (starts[n].max(0) as usize).min(tokens);
                (start, (lengths[n].max(0) as usize).min(tokens - start))
            });
            if t >= length {
                continue;
            }
            let place = if batch == 1 { 0 } else { n } * tokens + start + t;
            for h in 0..heads {
                let at = place * heads + h;
                let s = &mut state[(n * heads + h) * size..][..size];
                let (q, k) = (case.key(case.q, place, h), case.key(case.k, place, h));
                for (row, cells) in s.chunks_mut(dim_v).enumerate() {
                    let decay = case.log_decay(at, h, row).exp();
                    for x in cells {
                        *x = round(*x * decay);
                    }
                }
                let beta = f64::from(case.beta[at]);
                let beta = case.beta_sigmoid.map_or(beta, |factor| factor * sigmoid(beta));
                for c in 0..dim_v {
                    let predicted: f64 = (0..dim_k).map(|i| s[i * dim_v + c] * k[i]).sum();
                    let u = round(beta * (f64::from(case.v[at * dim_v + c]) - round(predicted)));
                    for i in 0..dim_k {
                        s[i * dim_v + c] = round(s[i * dim_v + c] + k[i] * u);
                    }
                    let read: f64 = (0..dim_k).map(|i| s[i * dim_v + c] * q[i]).sum();
                    o[at * dim_v + c] = output(read * case.scale);
                }
            }
        }
        if case.keep_states {
            states.push(state.clone());
        }
    }
    DeltaResult { o, state, states }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked example of linear.md, sections 2 and 3.
    fn example(decay: DeltaDecay<'_>) -> DeltaResult {
        let case = DeltaCase {
            batch: 1,
            tokens: 3,
            heads_k: 1,
            heads: 1,
            dim_k: 2,
            dim_v: 2,
            q: &[1.0, 0.0, 0.0, 1.0, 0.6, 0.8],
            k: &[0.6, 0.8, 0.8, -0.6, 0.0, 1.0],
            v: &[1.0, 2.0, 3.0, 4.0, -1.0, 1.0],
            decay,
            beta: &[0.5, 1.0, 0.25],
            initial: None,
            sequences: None,
            scale: 0.5f64.sqrt(),
            l2norm: None,
            gate: None,
            beta_sigmoid: None,
            tiled_heads: false,
            keep_states: false,
        };
        delta_rule(&case, Rounding::None)
    }

    fn close(got: &[f64], want: &[f64]) {
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-6), "{got:?} is not {want:?}");
    }

    #[test]
    fn worked_examples() {
        let gated = example(DeltaDecay::Head(&[-0.1, -0.2, -0.7]));
        close(&gated.o[..4], &[0.212_132_034_4, 0.424_264_068_7, -1.041_220_179_1, -1.233_912_220_9]);
        close(&gated.o[4..], &[0.105_733_653_3, 0.551_458_054_7]);
        close(&gated.state, &[1.313_775_627, 1.833_014_768, -0.798_419_262_4, -0.399_911_751]);
        let kimi = example(DeltaDecay::Channel(&[-0.1, -0.3, -0.2, -0.05, -0.7, 0.0]));
        close(&kimi.o[2..], &[-1.017_235_357_6, -1.185_942_577_8, -0.189_015_048_5, 0.218_257_571_9]);
        close(&kimi.state, &[1.326_408_630_5, 1.858_280_774_9, -1.328_941_029_2, -1.007_882_058_3]);
    }
}
