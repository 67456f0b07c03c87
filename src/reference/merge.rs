//! Merging partial results by definition. Spec: softmax-attention.md, section 7.

/// Merges partial results `(o, lse)` over disjoint keys, each `rows` rows of `dim_v` columns.
#[must_use]
pub fn merge(parts: &[(&[f32], &[f32])], rows: usize, dim_v: usize) -> (Vec<f64>, Vec<f64>) {
    let mut o = vec![0.0; rows * dim_v];
    let mut lse = vec![f64::NEG_INFINITY; rows];
    for row in 0..rows {
        let seen: Vec<_> = parts
            .iter()
            .filter(|(_, l)| l[row] != f32::NEG_INFINITY)
            .map(|(o, l)| (o, f64::from(l[row])))
            .collect();
        let top = seen.iter().map(|&(_, l)| l).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = seen.iter().map(|&(_, l)| (l - top).exp()).sum();
        if seen.is_empty() {
            continue;
        }
        for (part, l) in seen {
            let weight = (l - top).exp() / sum;
            for d in 0..dim_v {
                o[row * dim_v + d] += weight * f64::from(part[row * dim_v + d]);
            }
        }
        lse[row] = top + sum.ln();
    }
    (o, lse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merging_parts_equals_the_whole() {
        let (o, lse) =
            merge(&[(&[1.0], &[2.313_261_7]), (&[0.0], &[3.0]), (&[f32::NAN], &[f32::NEG_INFINITY])], 1, 1);
        assert!((o[0] - 0.334_759_044_2).abs() < 1e-7 && (lse[0] - 3.407_605_964_4).abs() < 1e-7);
        let (o, lse) = merge(&[(&[f32::NAN], &[f32::NEG_INFINITY])], 1, 1);
        assert_eq!((o[0], lse[0]), (0.0, f64::NEG_INFINITY));
    }
}
