//! The short causal convolution by definition. Spec: linear.md, section 1.

/// Inputs of a convolution, packed in row-major order.
#[derive(Debug, Clone, Copy)]
pub struct ConvCase<'a> {
    /// Tokens of each batch entry.
    pub tokens: usize,
    /// Channels.
    pub channels: usize,
    /// `[batch, tokens, channels]`
    pub x: &'a [f32],
    /// `[channels, taps]`; the last multiplies the current token.
    pub w: &'a [f32],
    /// `[channels]`
    pub bias: Option<&'a [f32]>,
    /// Apply `SiLU`.
    pub silu: bool,
    /// `[sequences, channels, taps - 1]`
    pub initial: Option<&'a [f32]>,
    /// First token and tokens of each sequence; one sequence a batch entry without.
    pub sequences: Option<(&'a [i32], &'a [i32])>,
}

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Batch entry, first token and tokens of each sequence; values beyond the token axis are cut.
pub(super) fn ranges(
    batch: usize,
    tokens: usize,
    sequences: Option<(&[i32], &[i32])>,
) -> Vec<(usize, usize, usize)> {
    let Some((starts, lengths)) = sequences else { return (0..batch).map(|b| (b, 0, tokens)).collect() };
    let cut = |(ix, (&start, &length)): (usize, (&i32, &i32))| {
        let start = (start.max(0) as usize).min(tokens);
        (if batch == 1 { 0 } else { ix }, start, (length.max(0) as usize).min(tokens - start))
    };
    starts.iter().zip(lengths).enumerate().map(cut).collect()
}

/// `(y, state)` of `[batch, tokens, channels]` and `[sequences, channels, taps - 1]`; `y` is NaN at tokens of no
/// sequence.
#[must_use]
pub fn causal_conv1d(case: &ConvCase<'_>) -> (Vec<f64>, Vec<f64>) {
    let &ConvCase { tokens, channels, .. } = case;
    let taps = case.w.len() / channels.max(1);
    let batch = case.x.len() / (tokens * channels).max(1);
    let batch = if case.x.is_empty() {
        case.initial.map_or(1, |s| s.len() / (channels * (taps - 1)).max(1))
    } else {
        batch
    };
    let mut y = vec![f64::NAN; case.x.len()];
    let mut state = Vec::new();
    for (ix, (b, start, length)) in ranges(batch, tokens, case.sequences).into_iter().enumerate() {
        for c in 0..channels {
            let held =
                (0..taps - 1).map(|j| case.initial.map_or(0.0, |s| s[(ix * channels + c) * (taps - 1) + j]));
            let new = (start..start + length).map(|t| case.x[(b * tokens + t) * channels + c]);
            let line: Vec<f64> = held.chain(new).map(f64::from).collect();
            for t in 0..length {
                let mut sum = case.bias.map_or(0.0, |bias| f64::from(bias[c]));
                for j in 0..taps {
                    sum += f64::from(case.w[c * taps + j]) * line[t + j];
                }
                y[(b * tokens + start + t) * channels + c] = if case.silu { sum * sigmoid(sum) } else { sum };
            }
            state.extend_from_slice(&line[length..]);
        }
    }
    (y, state)
}
