//! Lightning attention by definition. Spec: linear.md, section 4.

use super::conv::ranges;

/// Inputs of lightning attention, packed in row-major order.
#[derive(Debug, Clone, Copy)]
pub struct LightningCase<'a> {
    /// Batch, heads, tokens, width of q and k, width of v.
    pub sizes: [usize; 5],
    /// `[batch, heads, tokens, dim_k]`
    pub q: &'a [f32],
    /// `[batch, heads, tokens, dim_k]`
    pub k: &'a [f32],
    /// `[batch, heads, tokens, dim_v]`
    pub v: &'a [f32],
    /// `[heads]`
    pub slope: &'a [f32],
    /// `[sequences, heads, dim_k, dim_v]`
    pub initial: Option<&'a [f32]>,
    /// First token and tokens of each sequence; one sequence a batch entry without.
    pub sequences: Option<(&'a [i32], &'a [i32])>,
}

/// `(o, state)` of `[batch, heads, tokens, dim_v]` and `[sequences, heads, dim_k, dim_v]`; `o` is NaN at tokens of
/// no sequence.
#[must_use]
pub fn lightning_attention(case: &LightningCase<'_>) -> (Vec<f64>, Vec<f64>) {
    let [batch, heads, tokens, dim_k, dim_v] = case.sizes;
    let mut o = vec![f64::NAN; batch * heads * tokens * dim_v];
    let mut states = Vec::new();
    for (ix, (b, start, length)) in ranges(batch, tokens, case.sequences).into_iter().enumerate() {
        for h in 0..heads {
            let matrix = dim_k * dim_v;
            let mut s: Vec<f64> = (0..matrix)
                .map(|i| case.initial.map_or(0.0, |s| f64::from(s[(ix * heads + h) * matrix + i])))
                .collect();
            let decay = (-f64::from(case.slope[h])).exp();
            for t in start..start + length {
                let row = (b * heads + h) * tokens + t;
                for j in 0..dim_v {
                    let value = f64::from(case.v[row * dim_v + j]);
                    let mut sum = 0.0;
                    for i in 0..dim_k {
                        let held = &mut s[i * dim_v + j];
                        *held = decay * *held + f64::from(case.k[row * dim_k + i]) * value;
                        sum += *held * f64::from(case.q[row * dim_k + i]);
                    }
                    o[row * dim_v + j] = sum;
                }
            }
            states.extend(s);
        }
    }
    (o, states)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of linear.md, section 4.
    #[test]
    fn published_values_are_reproduced() {
        let (o, _) = lightning_attention(&LightningCase {
            sizes: [1, 1, 3, 2, 2],
            q: &[1.0, 0.0, 0.0, 1.0, 0.6, 0.8],
            k: &[0.6, 0.8, 0.8, -0.6, 0.0, 1.0],
            v: &[1.0, 2.0, 3.0, 4.0, -1.0, 1.0],
            slope: &[0.5],
            initial: None,
            sequences: None,
        });
        let want = [0.6, 1.2, -1.314_775_472_2, -1.429_550_944_5, -0.432_120_558_8, 1.535_758_882_3];
        for (got, want) in o.iter().zip(want) {
            assert!((got - want).abs() < 1e-6, "{got} {want}");
        }
    }
}
