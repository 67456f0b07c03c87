//! Workloads with their tensors on the device, and what judges their results.

use super::workload::{Extra, extra_bytes, merge_work};
use crate::cases::{REL_L2, REL_MAX, round, upload};
use crate::reference::{self, AttentionCase, Rounding};
use crate::{
    Attention, AttentionOutput, AttentionPlan, AttentionShape, DType, Error, Gpu, Mask, Partial, Result,
    Tensor, record_merge,
};

const SOFTCAP: f32 = 30.0;

/// What an attention workload is made of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inputs {
    pub(super) shape: AttentionShape,
    pub(super) mask: Mask,
    pub(super) extra: Extra,
    /// `[B, L, H, D]` in memory, seen through permuted views.
    pub(super) strided: bool,
    pub(super) dtype: DType,
}

/// Numbers of about unit variance, the same for the same seed.
fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let mut state = u64::from(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let scale = 2.0 * 3f32.sqrt() / (1u32 << 24) as f32;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 * scale - 3f32.sqrt()
        })
        .collect()
}

/// A tensor of `shape` whose memory lies as `[B, L, H, D]` when `strided`.
fn laid_out(
    gpu: &Gpu,
    data: &[f32],
    shape: [usize; 4],
    dtype: DType,
    strided: bool,
) -> Result<(Tensor, Vec<f32>)> {
    if !strided {
        return Ok((upload(gpu, data, &shape, dtype)?, round(data, dtype)));
    }
    let [b, h, l, d] = shape;
    let mut moved = Vec::with_capacity(data.len());
    for row in 0..b * l * h {
        let (batch, position, head) = (row / (l * h), row / h % l, row % h);
        moved.extend_from_slice(&data[((batch * h + head) * l + position) * d..][..d]);
    }
    let tensor = upload(gpu, &moved, &[b, l, h, d], dtype)?;
    Ok((tensor.permute(&[0, 2, 1, 3]), round(data, dtype)))
}

pub(super) fn prepare_attention(gpu: &Gpu, inputs: &Inputs) -> Result<Prepared> {
    let Inputs { shape, mask, extra, strided, dtype } = *inputs;
    let AttentionShape { batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v } = shape;
    let tensor = |seed, shape: [usize; 4]| {
        laid_out(gpu, &numbers(seed, shape.iter().product()), shape, dtype, strided)
    };
    let (q, q_data) = tensor(1, [batch, heads_q, seq_q, dim_k])?;
    let (k, k_data) = tensor(2, [batch, heads_kv, seq_kv, dim_k])?;
    let (v, v_data) = tensor(3, [batch, heads_kv, seq_kv, dim_v])?;
    let mut attention = Attention::bidirectional().mask(mask);
    let mut extra_data = Vec::new();
    match extra {
        Extra::None => {}
        Extra::Softcap => attention = attention.softcap(SOFTCAP),
        Extra::Bias => {
            extra_data = numbers(4, heads_q * seq_q * seq_kv);
            let bias = Tensor::from_slice(gpu, &extra_data, [1, heads_q, seq_q, seq_kv])?;
            attention = attention.bias(&bias);
        }
        Extra::Sinks => {
            extra_data = numbers(5, heads_q);
            attention = attention.sinks(&Tensor::from_slice(gpu, &extra_data, [heads_q])?);
        }
        Extra::Alibi => {
            extra_data = (1u8..).take(heads_q).map(|h| (-f32::from(h)).exp2()).collect();
            attention = attention.alibi(&Tensor::from_slice(gpu, &extra_data, [heads_q])?);
        }
    }
    let out = output(gpu, [batch, heads_q, seq_q, dim_v])?;
    let plan = attention.plan_for(gpu, &q, &k, &v)?;
    Ok(Prepared {
        kernel: plan.kernel(),
        tuning: tuning(&plan),
        flops: plan.flops(),
        bytes: plan.bytes() + extra_bytes(extra, &shape, mask)?,
        call: Call::Attention(Box::new((attention, [q, k, v]))),
        out,
        oracle: Oracle::Attention(Box::new(Held {
            inputs: *inputs,
            q: q_data,
            k: k_data,
            v: v_data,
            extra: extra_data,
        })),
    })
}

fn tuning(plan: &AttentionPlan) -> String {
    let t = &plan.tuning;
    format!(
        "{}: {} rows x {} keys, {}x{} lanes, {} split{}",
        plan.path(),
        t.q_tile,
        t.kv_tile,
        t.lanes[0],
        t.lanes[1],
        t.splits,
        if t.splits == 1 { "" } else { "s" }
    )
}

/// Outputs that hold NaN until they are written.
fn output(gpu: &Gpu, shape: [usize; 4]) -> Result<AttentionOutput> {
    let rows = [shape[0], shape[1], shape[2]];
    let poison = |shape: &[usize]| {
        let data = vec![f32::NAN; shape.iter().product()];
        Tensor::from_slice(gpu, &data, shape)
    };
    Ok(AttentionOutput { o: poison(&shape)?, lse: Some(poison(&rows)?) })
}

pub(super) fn prepare_merge(gpu: &Gpu, parts: usize, shape: [usize; 4]) -> Result<Prepared> {
    let count: usize = shape.iter().product();
    let rows = count / shape[3];
    let mut data = Vec::new();
    let mut tensors = Vec::new();
    for part in (0u32..).take(parts) {
        let (o, lse) = (numbers(2 * part, count), numbers(2 * part + 1, rows));
        tensors.push(Partial {
            o: Tensor::from_slice(gpu, &o, shape)?,
            lse: Tensor::from_slice(gpu, &lse, [shape[0], shape[1], shape[2]])?,
        });
        data.push((o, lse));
    }
    let [bytes, flops] = merge_work(parts, rows, shape[3]);
    Ok(Prepared {
        kernel: crate::kernels::merge_partials::NAME,
        tuning: format!("{} rounds of two", parts.max(2) - 1),
        flops,
        bytes,
        call: Call::Merge(tensors),
        out: output(gpu, shape)?,
        oracle: Oracle::Merge { data, dim: shape[3] },
    })
}

#[derive(Debug)]
enum Call {
    Attention(Box<(Attention, [Tensor; 3])>),
    Merge(Vec<Partial>),
}

/// Inputs as the device holds them, for the definition.
#[derive(Debug)]
enum Oracle {
    Attention(Box<Held>),
    Merge { data: Vec<(Vec<f32>, Vec<f32>)>, dim: usize },
}

/// An attention call's inputs.
#[derive(Debug)]
struct Held {
    inputs: Inputs,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// Bias, sinks or slopes.
    extra: Vec<f32>,
}

/// A workload with its tensors on the device.
#[derive(Debug)]
pub struct Prepared {
    /// Kernel that runs.
    pub kernel: &'static str,
    /// How it is tuned.
    pub tuning: String,
    /// Floating-point operations that it must do.
    pub flops: u64,
    /// Bytes that it must move.
    pub bytes: u64,
    call: Call,
    out: AttentionOutput,
    oracle: Oracle,
}

/// Sampled rows against the definition in f64.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// Relative L2 error over the sampled rows.
    pub rel_l2: f64,
    /// Largest error, as a share of the largest element.
    pub rel_max: f64,
    /// Both, and the log-sum-exps, are within the bounds.
    pub passed: bool,
}

/// Rows that are checked.
const SAMPLES: usize = 12;

impl Prepared {
    /// Records the work.
    ///
    /// # Errors
    /// What the operator refuses, or the device's own words.
    pub fn record(&self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder) -> Result<()> {
        match &self.call {
            Call::Attention(call) => {
                let (attention, [q, k, v]) = &**call;
                attention.record(gpu, encoder, q, k, v, &self.out)
            }
            Call::Merge(parts) => record_merge(gpu, encoder, parts, &self.out),
        }
    }

    /// Compares sampled rows of the last result with the definition.
    ///
    /// # Errors
    /// The device's own words.
    pub fn check(&self, gpu: &Gpu) -> Result<Check> {
        let o: Vec<f32> = self.out.o.read(gpu)?;
        let lse: Vec<f32> = match &self.out.lse {
            Some(lse) => lse.read(gpu)?,
            None => Vec::new(),
        };
        let rows = lse.len();
        let width = o.len() / rows.max(1);
        let (mut error, mut norm, mut worst, mut largest, mut lse_right) = (0.0, 0.0, 0.0f64, 0.0f64, true);
        for sample in 0..SAMPLES.min(rows) {
            // the first, the last, and some between
            let row = sample * (rows - 1) / (SAMPLES.min(rows) - 1).max(1);
            let (want, want_lse) = self.want(row)?;
            for (&got, want) in o[row * width..].iter().zip(want) {
                let difference = f64::from(got) - want;
                error += difference * difference;
                norm += want * want;
                // a NaN must not get lost in a maximum
                worst = if difference.is_nan() { f64::INFINITY } else { worst.max(difference.abs()) };
                largest = largest.max(want.abs());
            }
            let near = (f64::from(lse[row]) - want_lse).abs() <= REL_MAX * want_lse.abs().max(1.0);
            lse_right &= near || (want_lse == f64::NEG_INFINITY && lse[row] == f32::NEG_INFINITY);
        }
        let (rel_l2, rel_max) = ((error / f64::max(norm, 1e-300)).sqrt(), worst / largest.max(1e-300));
        Ok(Check { rel_l2, rel_max, passed: rel_l2 <= REL_L2 && rel_max <= REL_MAX && lse_right })
    }

    /// The definition's output and log-sum-exp of one row.
    fn want(&self, row: usize) -> Result<(Vec<f64>, f64)> {
        let (o, lse) = match &self.oracle {
            Oracle::Merge { data, dim } => {
                let parts: Vec<_> =
                    data.iter().map(|(o, lse)| (&o[row * dim..][..*dim], &lse[row..][..1])).collect();
                reference::merge(&parts, 1, *dim)
            }
            Oracle::Attention(held) => {
                let Held { inputs: Inputs { shape, mask, extra, .. }, q, k, v, extra: extra_data } = &**held;
                let AttentionShape { heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v, .. } = *shape;
                let (batch, head, query) = (row / (heads_q * seq_q), row / seq_q % heads_q, row % seq_q);
                let kv = (batch * heads_kv + head / (heads_q / heads_kv)) * seq_kv;
                let start = mask.resolve(seq_q, seq_kv)?.q_start() + i64::try_from(query).unwrap_or(i64::MAX);
                let bias = (head * seq_q + query) * seq_kv;
                let per_head = |wanted| (*extra == wanted).then(|| &extra_data[head..][..1]);
                let case = AttentionCase {
                    shape: AttentionShape { batch: 1, heads_q: 1, heads_kv: 1, seq_q: 1, ..*shape },
                    mask: Mask { q_start: Some(start), ..*mask },
                    q: &q[row * dim_k..][..dim_k],
                    k: &k[kv * dim_k..][..seq_kv * dim_k],
                    v: &v[kv * dim_v..][..seq_kv * dim_v],
                    scale: (dim_k as f64).powf(-0.5),
                    softcap: (*extra == Extra::Softcap).then_some(f64::from(SOFTCAP)),
                    sinks: per_head(Extra::Sinks),
                    alibi: per_head(Extra::Alibi),
                    kv_len: None,
                    q_starts: None,
                    bias: (*extra == Extra::Bias).then(|| (&extra_data[bias..][..seq_kv], [1, 1, 1, seq_kv])),
                    bias_hidden: -1e30,
                };
                reference::attention(&case, Rounding::None)?
            }
        };
        let missing = || Error::OutOfRange {
            field: "row",
            value: row.to_string(),
            bound: "a row of the result".into(),
            remedy: "sample rows that exist",
        };
        Ok((o, *lse.first().ok_or_else(missing)?))
    }
}
