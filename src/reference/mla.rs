//! Multi-head latent attention by definition: every head's keys and values expanded. Spec: mla.md, section 3.

use crate::Result;
use crate::mask::Mask;
use crate::mla::MlaShape;

/// Inputs of a latent attention call, packed in row-major order.
#[derive(Debug, Clone)]
pub struct MlaCase<'a> {
    /// Sizes.
    pub shape: MlaShape,
    /// Visibility.
    pub mask: Mask,
    /// `[batch, heads, seq_q, nope]`
    pub q_nope: &'a [f32],
    /// `[batch, heads, seq_q, rope]`, rotated.
    pub q_rope: &'a [f32],
    /// `[batch, seq_kv, rank]`, normalised.
    pub c_kv: &'a [f32],
    /// `[batch, seq_kv, rope]`, rotated.
    pub k_rope: &'a [f32],
    /// `[heads, nope, rank]`
    pub w_uk: &'a [f32],
    /// `[heads, dim_v, rank]`
    pub w_uv: &'a [f32],
    /// Factor of the scores.
    pub scale: f64,
    /// `[batch]` valid keys.
    pub kv_len: Option<&'a [i32]>,
}

/// `(o, lse)`: `[batch, heads, seq_q, dim_v]` and `[batch, heads, seq_q]`.
///
/// Each score is `scale * (q_nope . W_UK c + q_rope . k_rope)`, each value `W_UV c`.
///
/// # Errors
/// A mask beyond the bounds of positions.
pub fn mla(case: &MlaCase<'_>) -> Result<(Vec<f64>, Vec<f64>)> {
    let MlaShape { batch, heads, seq_q, seq_kv, nope, rope, rank, dim_v } = case.shape;
    let positions = case.mask.resolve(seq_q, seq_kv)?;
    let dot = |a: &[f32], b: &[f64]| a.iter().zip(b).map(|(&a, b)| f64::from(a) * b).sum::<f64>();
    let wide = |row: &[f32]| row.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let mut o = vec![0.0; batch * heads * seq_q * dim_v];
    let mut lse = vec![f64::NEG_INFINITY; batch * heads * seq_q];
    for b in 0..batch {
        let limit = case.kv_len.map_or(seq_kv, |n| seq_kv.min(n[b].max(0) as usize));
        for h in 0..heads {
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for j in 0..limit {
                let c = wide(&case.c_kv[(b * seq_kv + j) * rank..][..rank]);
                let up = |w: &[f32], row: usize| dot(&w[row * rank..][..rank], &c);
                let mut key: Vec<_> = (0..nope).map(|a| up(case.w_uk, h * nope + a)).collect();
                key.extend(wide(&case.k_rope[(b * seq_kv + j) * rope..][..rope]));
                keys.push(key);
                values.push((0..dim_v).map(|a| up(case.w_uv, h * dim_v + a)).collect::<Vec<_>>());
            }
            for i in 0..seq_q {
                let row = (b * heads + h) * seq_q + i;
                let (q, q_rope) = (&case.q_nope[row * nope..][..nope], &case.q_rope[row * rope..][..rope]);
                let score = |key: &[f64]| case.scale * (dot(q, &key[..nope]) + dot(q_rope, &key[nope..]));
                let seen: Vec<_> =
                    (0..limit).filter(|&j| positions.visible(i, j)).map(|j| (j, score(&keys[j]))).collect();
                let top = seen.iter().map(|s| s.1).fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = seen.iter().map(|s| (s.1 - top).exp()).sum();
                for (j, s) in &seen {
                    let p = (s - top).exp() / sum;
                    for d in 0..dim_v {
                        o[row * dim_v + d] += p * values[*j][d];
                    }
                }
                if !seen.is_empty() {
                    lse[row] = top + sum.ln();
                }
            }
        }
    }
    Ok((o, lse))
}
