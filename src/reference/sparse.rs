//! Sparse attention by definition. Spec: sparse.md.
//!
//! Which keys a query sees comes as `seen`: how many of the first, for each batch entry and query.

use super::Rounding;
use crate::DType;

/// Inputs of the indexer, packed in row-major order.
#[derive(Debug, Clone)]
pub struct IndexCase<'a> {
    /// `[batch, seq_q, heads, dim]` and `seq_kv`.
    pub shape: [usize; 5],
    /// `[batch, seq_q, heads, dim]`
    pub q: &'a [f32],
    /// `[batch, seq_kv, dim]`
    pub k: &'a [f32],
    /// `[batch, seq_q, heads]`
    pub w: &'a [f32],
    /// Factor of the dot products.
    pub scale: f64,
    /// `[batch, seq_q]`
    pub seen: &'a [usize],
}

/// Scores `[batch, seq_q, seq_kv]`, 0 where hidden.
#[must_use]
pub fn index_scores(case: &IndexCase<'_>) -> Vec<f64> {
    let [batch, seq_q, heads, dim, seq_kv] = case.shape;
    let mut scores = vec![0.0; batch * seq_q * seq_kv];
    for row in 0..batch * seq_q {
        for j in 0..case.seen[row] {
            let key = &case.k[(row / seq_q * seq_kv + j) * dim..][..dim];
            for h in 0..heads {
                let query = &case.q[(row * heads + h) * dim..][..dim];
                let dot: f64 = query.iter().zip(key).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                scores[row * seq_kv + j] += f64::from(case.w[row * heads + h]) * (case.scale * dot).max(0.0);
            }
        }
    }
    scores
}

/// Indices `[rows, k]` of each row's largest scores among its first `seen`: ascending, -1 where there are no
/// more. The earlier wins a tie, -0 equals 0, NaN comes last.
#[must_use]
pub fn top_k(scores: &[f32], seq_kv: usize, k: usize, seen: &[usize]) -> Vec<i32> {
    let mut indices = Vec::with_capacity(seen.len() * k);
    for (row, &n) in seen.iter().enumerate() {
        let score = |j: usize| scores[row * seq_kv + j];
        let mut order: Vec<usize> = (0..n).collect();
        // stable, so that equal scores stay in their order
        order.sort_by(|&a, &b| match (score(a).is_nan(), score(b).is_nan()) {
            (false, false) => score(b).partial_cmp(&score(a)).unwrap_or(std::cmp::Ordering::Equal),
            (a, b) => a.cmp(&b),
        });
        order.truncate(k);
        order.sort_unstable();
        let padded = order.into_iter().map(|j| j as i32).chain(std::iter::repeat(-1));
        indices.extend(padded.take(k));
    }
    indices
}

/// Inputs of attention over lists, packed in row-major order.
#[derive(Debug, Clone)]
pub struct IndexedCase<'a> {
    /// `[batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v]`
    pub shape: [usize; 7],
    /// `[batch, heads_q, seq_q, dim_k]`
    pub q: &'a [f32],
    /// `[batch, heads_kv, seq_kv, dim_k]`
    pub k: &'a [f32],
    /// `[batch, heads_kv, seq_kv, dim_v]`
    pub v: &'a [f32],
    /// Factor of the scores.
    pub scale: f64,
    /// `[batch, heads_kv, seq_q, entries]`: a negative entry, or one past what is seen, is a hole; one that
    /// repeats its predecessor does not count.
    pub indices: &'a [i32],
    /// Keys to an entry.
    pub block: usize,
    /// `[batch, seq_q]`
    pub seen: &'a [usize],
}

/// `(o, lse)` of `[batch, heads_q, seq_q, dim_v]` and `[batch, heads_q, seq_q]`.
#[must_use]
pub fn indexed_attention(case: &IndexedCase<'_>, rounding: Rounding) -> (Vec<f64>, Vec<f64>) {
    let step = |x: f64| if rounding == Rounding::None { x } else { f64::from(x as f32) };
    let output = |x: f64| match rounding {
        Rounding::None => x,
        Rounding::Output(DType::F16) => half::f16::from_f64(x).to_f64(),
        Rounding::Output(DType::Bf16) => half::bf16::from_f64(x).to_f64(),
        Rounding::Output(_) => f64::from(x as f32),
    };
    let [batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v] = case.shape;
    let entries = case.indices.len() / (batch * heads_kv * seq_q).max(1);
    let mut o = vec![0.0; batch * heads_q * seq_q * dim_v];
    let mut lse = vec![f64::NEG_INFINITY; batch * heads_q * seq_q];
    for row in 0..batch * heads_q * seq_q {
        let (b, h, i) = (row / seq_q / heads_q, row / seq_q % heads_q, row % seq_q);
        let head_kv = b * heads_kv + h / (heads_q / heads_kv);
        let list = &case.indices[(head_kv * seq_q + i) * entries..][..entries];
        let query = &case.q[row * dim_k..][..dim_k];
        let mut scores = Vec::new();
        for (at, &entry) in list.iter().enumerate() {
            if entry < 0 || (at > 0 && list[at - 1] == entry) {
                continue;
            }
            for j in (0..case.block).map(|j| entry as usize * case.block + j) {
                if j < case.seen[b * seq_q + i] {
                    let key = &case.k[(head_kv * seq_kv + j) * dim_k..][..dim_k];
                    let products = query.iter().zip(key);
                    let dot = products.fold(0.0, |sum, (&a, &b)| step(sum + f64::from(a) * f64::from(b)));
                    scores.push((j, step(dot * case.scale)));
                }
            }
        }
        let top = scores.iter().map(|&(_, s)| s).fold(f64::NEG_INFINITY, f64::max);
        if top == f64::NEG_INFINITY {
            continue;
        }
        let mut sum = 0.0;
        let o = &mut o[row * dim_v..][..dim_v];
        for (j, s) in scores {
            let p = step((s - top).exp());
            sum = step(sum + p);
            for (o, &x) in o.iter_mut().zip(&case.v[(head_kv * seq_kv + j) * dim_v..][..dim_v]) {
                *o = step(*o + p * f64::from(x));
            }
        }
        for x in o {
            *x = output(*x / sum);
        }
        lse[row] = step(top + sum.ln());
    }
    (o, lse)
}

/// Inputs of native sparse attention, packed in row-major order.
#[derive(Debug, Clone)]
pub struct NsaCase<'a> {
    /// `[batch, heads_q, heads_kv, seq, dim_k, dim_v]`; queries and keys are the same tokens.
    pub shape: [usize; 6],
    /// `[batch, heads_q, seq, dim_k]`
    pub q: &'a [f32],
    /// Keys and values `[batch, heads_kv, seq, dim]` of the selected and of the window branch.
    pub selected: [&'a [f32]; 2],
    /// As `selected`.
    pub window: [&'a [f32]; 2],
    /// Keys and values of compressed blocks `[batch, heads_kv, blocks, dim]`.
    pub compressed: [&'a [f32]; 2],
    /// `[batch, heads_q, seq, 3]`: compressed, selected, window.
    pub gates: &'a [f32],
    /// Factor of the scores.
    pub scale: f64,
    /// Length and stride of a compressed block, length of a selected block, blocks selected, width of the window.
    pub sizes: [usize; 5],
    /// Only whole blocks of the given keys can be selected.
    pub whole_blocks: bool,
}

/// What [`nsa`] gives.
#[derive(Debug, Clone)]
pub struct NsaResult {
    /// Compressed, selected and window branch, each `[batch, heads_q, seq, dim_v]`.
    pub branches: [Vec<f64>; 3],
    /// The gated sum.
    pub o: Vec<f64>,
    /// `[batch, heads_kv, seq, blocks]`
    pub blocks: Vec<i32>,
}

/// Native sparse attention: three branches over the same queries, added by their gates.
#[must_use]
pub fn nsa(case: &NsaCase<'_>) -> NsaResult {
    let [batch, heads_q, heads_kv, seq, dim_k, dim_v] = case.shape;
    let [length, stride, block, count, window] = case.sizes;
    let n_compressed = case.compressed[0].len() / (batch * heads_kv * dim_k);
    let n_blocks = if case.whole_blocks { seq / block } else { seq.div_ceil(block) };
    let complete =
        |t: usize| if t + 1 < length { 0 } else { ((t + 1 - length) / stride + 1).min(n_compressed) };
    let attend = |keys: [&[f32]; 2], seq_kv: usize, indices: &[i32], block: usize, seen: &[usize]| {
        let case = IndexedCase {
            shape: [batch, heads_q, heads_kv, seq, seq_kv, dim_k, dim_v],
            q: case.q,
            k: keys[0],
            v: keys[1],
            scale: case.scale,
            indices,
            block,
            seen,
        };
        indexed_attention(&case, Rounding::None)
    };
    let rows = batch * heads_kv * seq;
    let all: Vec<i32> = (0..rows).flat_map(|_| 0..n_compressed as i32).collect();
    let seen: Vec<usize> = (0..batch * seq).map(|row| complete(row % seq)).collect();
    let (o_compressed, lse) = attend(case.compressed, n_compressed, &all, 1, &seen);

    let groups = heads_q / heads_kv;
    let mut chosen = Vec::new();
    for row in 0..rows {
        let (b, g, t) = (row / seq / heads_kv, row / seq % heads_kv, row % seq);
        // weight of each compressed block, summed over the heads that share it
        let mut weight = vec![0.0; n_compressed];
        for h in g * groups..(g + 1) * groups {
            let query = (b * heads_q + h) * seq + t;
            for (i, weight) in weight.iter_mut().enumerate().take(complete(t)) {
                let q = &case.q[query * dim_k..][..dim_k];
                let k = &case.compressed[0][((b * heads_kv + g) * n_compressed + i) * dim_k..][..dim_k];
                let dot: f64 = q.iter().zip(k).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                *weight += (case.scale * dot - lse[query]).exp();
            }
        }
        let current = t / block;
        let scores: Vec<f32> = (0..n_blocks)
            .map(|j| {
                if j == 0 || j == current || j + 1 == current {
                    return f32::INFINITY;
                }
                let mut sum = 0.0;
                for m in 0..block / stride {
                    for n in 0..length / stride {
                        let at = (j * (block / stride) + m).checked_sub(n);
                        sum += at.and_then(|at| weight.get(at)).unwrap_or(&0.0);
                    }
                }
                sum as f32
            })
            .collect();
        chosen.extend(top_k(&scores, n_blocks, count, &[n_blocks.min(current + 1)]));
    }
    let causal: Vec<usize> = (0..batch * seq).map(|row| row % seq + 1).collect();
    let (o_selected, _) = attend(case.selected, seq, &chosen, block, &causal);
    let near: Vec<i32> =
        (0..rows).flat_map(|row| (0..window).map(move |w| (row % seq) as i32 - w as i32)).collect();
    let (o_window, _) = attend(case.window, seq, &near, 1, &causal);
    let o = (0..o_window.len())
        .map(|at| {
            let gates = &case.gates[at / dim_v * 3..][..3];
            let branches = [o_compressed[at], o_selected[at], o_window[at]];
            gates.iter().zip(branches).map(|(&g, x)| f64::from(g) * x).sum()
        })
        .collect();
    NsaResult { branches: [o_compressed, o_selected, o_window], o, blocks: chosen }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mini case of sparse.md, A8.
    #[test]
    fn published_scores_are_reproduced() {
        let case = IndexCase {
            shape: [1, 1, 2, 2, 4],
            q: &[1.0, 0.0, 0.0, -1.0],
            k: &[1.0, 1.0, -1.0, -2.0, 0.5, 0.0, 2.0, -1.0],
            w: &[1.0, 0.5],
            scale: 1.0,
            seen: &[4],
        };
        let scores: Vec<f32> = index_scores(&case).iter().map(|&x| x as f32).collect();
        assert_eq!(scores, [1.0, 1.0, 0.5, 2.5]);
        assert_eq!(top_k(&scores, 4, 1, &[4]), [3]);
        assert_eq!(top_k(&scores, 4, 2, &[4]), [0, 3]);
        assert_eq!(top_k(&scores, 4, 6, &[4]), [0, 1, 2, 3, -1, -1]);
        assert_eq!(top_k(&[f32::NAN, -0.0, 0.0, f32::NEG_INFINITY], 4, 3, &[4]), [1, 2, 3]);
    }
}
