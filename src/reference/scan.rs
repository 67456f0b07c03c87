//! State-space recurrences by definition. Spec: linear.md, sections 5 and 6.

use super::conv::ranges;

/// Inputs of a selective scan (Mamba-1), packed in row-major order.
#[derive(Debug, Clone, Copy)]
pub struct ScanCase<'a> {
    /// Batch, tokens, channels, width of a channel's state.
    pub sizes: [usize; 4],
    /// `[batch, tokens, channels]`
    pub x: &'a [f32],
    /// `[batch, tokens, channels]`
    pub dt: &'a [f32],
    /// `[channels, dim]`
    pub a: &'a [f32],
    /// `[batch, tokens, dim]`
    pub b: &'a [f32],
    /// `[batch, tokens, dim]`
    pub c: &'a [f32],
    /// `[channels]`
    pub skip: &'a [f32],
    /// `[channels]`: step sizes are `softplus(dt + bias)`.
    pub dt_bias: Option<&'a [f32]>,
    /// `[sequences, channels, dim]`
    pub initial: Option<&'a [f32]>,
    /// First token and tokens of each sequence; one sequence a batch entry without.
    pub sequences: Option<(&'a [i32], &'a [i32])>,
}

/// Inputs of SSD (Mamba-2), packed in row-major order.
#[derive(Debug, Clone, Copy)]
pub struct SsdCase<'a> {
    /// Batch, tokens, heads, groups, width of x, width of b and c.
    pub sizes: [usize; 6],
    /// `[batch, tokens, heads, dim]`
    pub x: &'a [f32],
    /// `[batch, tokens, heads]`
    pub dt: &'a [f32],
    /// `[heads]`
    pub a: &'a [f32],
    /// `[batch, tokens, groups, dim_state]`
    pub b: &'a [f32],
    /// `[batch, tokens, groups, dim_state]`
    pub c: &'a [f32],
    /// `[heads]`
    pub skip: Option<&'a [f32]>,
    /// `[heads]`: step sizes are `softplus(dt + bias)`.
    pub dt_bias: Option<&'a [f32]>,
    /// Step sizes are clamped to these.
    pub dt_limit: [f64; 2],
    /// `[sequences, heads, dim, dim_state]`
    pub initial: Option<&'a [f32]>,
    /// First token and tokens of each sequence; one sequence a batch entry without.
    pub sequences: Option<(&'a [i32], &'a [i32])>,
}

fn step_size(dt: f32, bias: Option<f32>) -> f64 {
    let dt = f64::from(dt);
    bias.map_or(dt, |bias| {
        let x = dt + f64::from(bias);
        x.max(0.0) + (-x.abs()).exp().ln_1p()
    })
}

/// `(y, state)` of `[batch, tokens, channels]` and `[sequences, channels, dim]`; `y` is NaN at tokens of no sequence.
#[must_use]
pub fn selective_scan(case: &ScanCase<'_>) -> (Vec<f64>, Vec<f64>) {
    let [batch, tokens, channels, dim] = case.sizes;
    let mut y = vec![f64::NAN; batch * tokens * channels];
    let mut states = Vec::new();
    for (ix, (b, start, length)) in ranges(batch, tokens, case.sequences).into_iter().enumerate() {
        for ch in 0..channels {
            let mut h: Vec<f64> = (0..dim)
                .map(|n| case.initial.map_or(0.0, |s| f64::from(s[(ix * channels + ch) * dim + n])))
                .collect();
            for t in start..start + length {
                let row = b * tokens + t;
                let dt = step_size(case.dt[row * channels + ch], case.dt_bias.map(|bias| bias[ch]));
                let x = f64::from(case.x[row * channels + ch]);
                let mut sum = f64::from(case.skip[ch]) * x;
                for (n, h) in h.iter_mut().enumerate() {
                    let decay = (dt * f64::from(case.a[ch * dim + n])).exp();
                    *h = decay * *h + dt * f64::from(case.b[row * dim + n]) * x;
                    sum += f64::from(case.c[row * dim + n]) * *h;
                }
                y[row * channels + ch] = sum;
            }
            states.extend(h);
        }
    }
    (y, states)
}

/// `(y, state)` of `[batch, tokens, heads, dim]` and `[sequences, heads, dim, dim_state]`; `y` is NaN at tokens of no
/// sequence.
#[must_use]
pub fn ssd(case: &SsdCase<'_>) -> (Vec<f64>, Vec<f64>) {
    let [batch, tokens, heads, groups, dim, dim_state] = case.sizes;
    let mut y = vec![f64::NAN; batch * tokens * heads * dim];
    let mut states = Vec::new();
    for (ix, (batch_ix, start, length)) in ranges(batch, tokens, case.sequences).into_iter().enumerate() {
        for head in 0..heads {
            let matrix = dim * dim_state;
            let mut h: Vec<f64> = (0..matrix)
                .map(|i| case.initial.map_or(0.0, |s| f64::from(s[(ix * heads + head) * matrix + i])))
                .collect();
            for t in start..start + length {
                let row = (batch_ix * tokens + t) * heads + head;
                let shared = (batch_ix * tokens + t) * groups + head / (heads / groups);
                let dt = step_size(case.dt[row], case.dt_bias.map(|bias| bias[head]));
                let dt = dt.clamp(case.dt_limit[0], case.dt_limit[1]);
                let decay = (dt * f64::from(case.a[head])).exp();
                for p in 0..dim {
                    let x = f64::from(case.x[row * dim + p]);
                    let mut sum = case.skip.map_or(0.0, |d| f64::from(d[head])) * x;
                    for n in 0..dim_state {
                        let held = &mut h[p * dim_state + n];
                        *held = decay * *held + dt * x * f64::from(case.b[shared * dim_state + n]);
                        sum += *held * f64::from(case.c[shared * dim_state + n]);
                    }
                    y[row * dim + p] = sum;
                }
            }
            states.extend(h);
        }
    }
    (y, states)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of linear.md, section 5.
    #[test]
    fn published_values_are_reproduced() {
        let (y, h) = selective_scan(&ScanCase {
            sizes: [1, 2, 1, 2],
            x: &[2.0, 1.0],
            dt: &[0.5, 0.25],
            a: &[-1.0, -2.0],
            b: &[1.0, 1.0, 0.5, 1.0],
            c: &[1.0, -1.0, 1.0, 1.0],
            skip: &[0.1],
            dt_bias: None,
            initial: None,
            sequences: None,
        });
        for (got, want) in y.iter().chain(&h).zip([0.2, 1.860_331_442_8, 0.903_800_783_1, 0.856_530_659_7]) {
            assert!((got - want).abs() < 1e-7, "{got} {want}");
        }
    }
}
