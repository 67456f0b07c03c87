//! Gated RMS normalisation by definition. Spec: linear.md, sections 2 to 7.

use super::conv::sigmoid;

/// Inputs of a gated normalisation, packed in row-major order.
#[derive(Debug, Clone, Copy)]
pub struct NormCase<'a> {
    /// `[rows, width]`
    pub x: &'a [f32],
    /// `[rows, width]`
    pub z: &'a [f32],
    /// `[width]`
    pub w: &'a [f32],
    /// Groups of a row.
    pub groups: usize,
    /// Added to the mean of squares.
    pub eps: f64,
    /// The gate comes before the norm.
    pub before: bool,
    /// The gate is `SiLU`; else the sigmoid.
    pub silu: bool,
}

/// The result, `[rows, width]`.
#[must_use]
pub fn gated_norm(case: &NormCase<'_>) -> Vec<f64> {
    let width = case.w.len();
    let group = width / case.groups;
    let gate = |z: f32| {
        let z = f64::from(z);
        if case.silu { z * sigmoid(z) } else { sigmoid(z) }
    };
    let mut y = Vec::new();
    for (ix, (x, z)) in case.x.chunks(group).zip(case.z.chunks(group)).enumerate() {
        let value = |i: usize| f64::from(x[i]) * if case.before { gate(z[i]) } else { 1.0 };
        let mean = (0..group).map(|i| value(i) * value(i)).sum::<f64>() / group as f64;
        let w = &case.w[ix % case.groups * group..][..group];
        y.extend((0..group).map(|i| {
            let normed = value(i) / (mean + case.eps).sqrt() * f64::from(w[i]);
            if case.before { normed } else { normed * gate(z[i]) }
        }));
    }
    y
}
