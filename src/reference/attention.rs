//! Softmax attention by definition. Spec: softmax-attention.md, section 2.

use crate::attention::AttentionShape;
use crate::mask::Mask;
use crate::{DType, Result};

/// Inputs of an attention call, packed in row-major order.
#[derive(Debug, Clone)]
pub struct AttentionCase<'a> {
    /// Sizes.
    pub shape: AttentionShape,
    /// Visibility.
    pub mask: Mask,
    /// `[batch, heads_q, seq_q, dim_k]`
    pub q: &'a [f32],
    /// `[batch, heads_kv, seq_kv, dim_k]`
    pub k: &'a [f32],
    /// `[batch, heads_kv, seq_kv, dim_v]`
    pub v: &'a [f32],
    /// Factor of the scores.
    pub scale: f64,
    /// Soft cap of the scores.
    pub softcap: Option<f64>,
    /// `[heads_q]` learned sinks.
    pub sinks: Option<&'a [f32]>,
    /// `[heads_q]` slopes.
    pub alibi: Option<&'a [f32]>,
    /// `[batch]` valid keys.
    pub kv_len: Option<&'a [i32]>,
    /// `[batch]` positions of query row 0.
    pub q_starts: Option<&'a [i32]>,
    /// Additive bias and its shape `[1 or batch, 1 or heads_q, seq_q, seq_kv]`.
    pub bias: Option<(&'a [f32], [usize; 4])>,
    /// A bias at or below this hides its key.
    pub bias_hidden: f32,
}

/// Where the definition is rounded, for bounds of 16-bit storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// Nowhere: f64 throughout.
    None,
    /// Scores and sums in f32; the output rounded to this type.
    Output(DType),
}

fn to_f32(x: f64) -> f64 {
    f64::from(x as f32)
}

/// `(o, lse)` of `[batch, heads_q, seq_q, dim_v]` and `[batch, heads_q, seq_q]`.
///
/// A row that sees no key gives 0 and minus infinity, or its sink.
///
/// # Errors
/// The mask is refused.
pub fn attention(case: &AttentionCase<'_>, rounding: Rounding) -> Result<(Vec<f64>, Vec<f64>)> {
    match rounding {
        Rounding::None => rows(case, |x| x, |x| x),
        Rounding::Output(DType::F16) => rows(case, to_f32, |x| half::f16::from_f64(x).to_f64()),
        Rounding::Output(DType::Bf16) => rows(case, to_f32, |x| half::bf16::from_f64(x).to_f64()),
        Rounding::Output(_) => rows(case, to_f32, to_f32),
    }
}

/// The loop, with `round` after every step and `output` at the end.
fn rows(
    case: &AttentionCase<'_>,
    round: impl Fn(f64) -> f64,
    output: impl Fn(f64) -> f64,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let AttentionShape { batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v } = case.shape;
    let positions = case.mask.resolve(seq_q, seq_kv)?;
    let groups = heads_q / heads_kv;
    let mut o = vec![0.0; batch * heads_q * seq_q * dim_v];
    let mut lse = vec![f64::NEG_INFINITY; batch * heads_q * seq_q];
    for b in 0..batch {
        let positions = case.q_starts.map_or(positions, |starts| positions.at(i64::from(starts[b])));
        let limit = case.kv_len.map_or(seq_kv, |n| seq_kv.min(n[b].max(0) as usize));
        for h in 0..heads_q {
            let kv = (b * heads_kv + h / groups) * seq_kv;
            for i in 0..seq_q {
                let row = (b * heads_q + h) * seq_q + i;
                let query = &case.q[row * dim_k..][..dim_k];
                let mut scores = Vec::new();
                for j in (0..limit).filter(|&j| positions.visible(i, j)) {
                    let key = &case.k[(kv + j) * dim_k..][..dim_k];
                    let dot = query
                        .iter()
                        .zip(key)
                        .fold(0.0, |sum, (&a, &b)| round(sum + f64::from(a) * f64::from(b)));
                    let mut s = round(dot * case.scale);
                    if let Some(cap) = case.softcap {
                        s = round(cap * (s / cap).tanh());
                    }
                    if let Some(slopes) = case.alibi {
                        let q_pos = positions.q_start() + i as i64;
                        let distance = (q_pos - positions.k_start() - j as i64).abs();
                        s = round(s - f64::from(slopes[h]) * distance as f64);
                    }
                    if let Some((bias, [bb, bh, _, _])) = &case.bias {
                        let head = (b % bb) * bh + h % bh;
                        let added = bias[(head * seq_q + i) * seq_kv + j];
                        if added <= case.bias_hidden {
                            continue;
                        }
                        s = round(s + f64::from(added));
                    }
                    scores.push((j, s));
                }
                let sink = case.sinks.map(|sinks| f64::from(sinks[h]));
                let top = scores.iter().map(|&(_, s)| s).chain(sink).fold(f64::NEG_INFINITY, f64::max);
                if top == f64::NEG_INFINITY {
                    continue;
                }
                let mut sum = sink.map_or(0.0, |s| (s - top).exp());
                let o = &mut o[row * dim_v..][..dim_v];
                for (j, s) in scores {
                    let p = round((s - top).exp());
                    sum = round(sum + p);
                    for (o, &x) in o.iter_mut().zip(&case.v[(kv + j) * dim_v..][..dim_v]) {
                        *o = round(*o + p * f64::from(x));
                    }
                }
                for x in o {
                    *x = output(*x / sum);
                }
                lse[row] = round(top + sum.ln());
            }
        }
    }
    Ok((o, lse))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny<'a>(scores: &'a [f32], sinks: Option<&'a [f32]>, softcap: Option<f64>) -> (Vec<f64>, Vec<f64>) {
        let n = scores.len();
        let identity: Vec<f32> = (0..n * n).map(|i| f32::from(u8::from(i / n == i % n))).collect();
        let shape =
            AttentionShape { batch: 1, heads_q: 1, heads_kv: 1, seq_q: 1, seq_kv: n, dim_k: 1, dim_v: n };
        let case = AttentionCase {
            shape,
            mask: Mask::causal(),
            q: &[1.0],
            k: scores,
            v: &identity,
            scale: 1.0,
            softcap,
            sinks,
            alibi: None,
            kv_len: None,
            q_starts: None,
            bias: None,
            bias_hidden: -1e30,
        };
        attention(&case, Rounding::None).unwrap()
    }

    /// Values of softmax-attention.md, section 12.
    #[test]
    fn published_values_are_reproduced() {
        let (p, lse) = tiny(&[1.0, 2.0, 3.0], None, None);
        for (got, want) in p.iter().zip([0.090_030_573_2, 0.244_728_471_1, 0.665_240_955_8]) {
            assert!((got - want).abs() < 1e-10);
        }
        assert!((lse[0] - 3.407_605_964_4).abs() < 1e-10);
        let (p, lse) = tiny(&[1.0, 2.0, 3.0], Some(&[0.5]), None);
        for (got, want) in p.iter().zip([0.085_368_893_5, 0.232_056_711_9, 0.630_795_543_2]) {
            assert!((got - want).abs() < 1e-10);
        }
        assert!((lse[0] - 3.460_773_489_2).abs() < 1e-10);
        let (_, lse) = tiny(&[100.0], None, Some(50.0));
        assert!((lse[0] - 48.201_379_003_8).abs() < 1e-9);
        let (p, _) = tiny(&[500.0, 499.0], None, None);
        assert!((p[0] - 0.731_058_578_6).abs() < 1e-10);
    }
}
