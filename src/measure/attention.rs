//! Workloads of softmax attention, and of merging its partial results.

use super::workload::{Call, Check, Comparison, Prepared, Work, Workload, numbers};
use crate::cases::{REL_MAX, round, upload};
use crate::limits::Limits;
use crate::reference::{self, AttentionCase, Rounding};
use crate::{
    Attention, AttentionOutput, AttentionPlan, AttentionShape, DType, Gpu, Mask, Partial, Result, Tensor,
    record_merge,
};

const SOFTCAP: f32 = 30.0;

/// An option whose cost is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extra {
    None,
    Bias,
    Softcap,
    Sinks,
    Alibi,
}

/// An attention call.
#[derive(Debug, Clone, Copy)]
struct Softmax {
    shape: AttentionShape,
    mask: Mask,
    extra: Extra,
    /// `[B, L, H, D]` in memory, seen through permuted views.
    strided: bool,
}

/// Partial results of `[1, heads, rows, dim]`.
#[derive(Debug, Clone, Copy)]
struct Merge {
    parts: usize,
    heads: usize,
    rows: usize,
    dim: usize,
}

pub(super) fn workloads() -> Vec<Workload> {
    let shape = |heads_q, heads_kv, seq_q, seq_kv, dim| AttentionShape {
        batch: 1,
        heads_q,
        heads_kv,
        seq_q,
        seq_kv,
        dim_k: dim,
        dim_v: dim,
    };
    let causal = Mask::causal();
    let window = Mask { window: Some(128), ..causal };
    let attention = |name: &str, shape, mask| {
        Workload::new(name, Softmax { shape, mask, extra: Extra::None, strided: false })
    };
    let decode = shape(32, 8, 1, 4096, 128);
    let (long, slice) = (shape(32, 8, 1, 8192, 128), shape(8, 2, 64, 8192, 128));
    let medium = shape(8, 8, 512, 512, 64);
    let mut all = vec![
        attention("prefill_8x1024x1024x128_causal", shape(8, 8, 1024, 1024, 128), causal),
        attention("prefill_8x512x512x64_causal", medium, causal),
        Workload::new(
            "prefill_8x512x512x64_causal_strided",
            Softmax { shape: medium, mask: causal, extra: Extra::None, strided: true },
        ),
        attention("prefill_gqa_32_8_512x512x128", shape(32, 8, 512, 512, 128), Mask::bidirectional()),
        attention("decode_32_8_4096x128", decode, causal),
        attention("decode_32_8_4096x128", decode, causal).with_dtype(DType::F16),
        attention("decode_32_8_4096x128", decode, causal).with_dtype(DType::Bf16),
        attention("decode_mqa_71_1_2048x64", shape(71, 1, 1, 2048, 64), causal),
        attention("decode_window_128_of_8192", long, window),
        attention("decode_full_8192", long, causal),
        attention("prefill_64_window_128_of_8192", slice, window),
        attention("prefill_64_full_8192", slice, causal),
    ];
    for (name, extra) in [
        ("options_none", Extra::None),
        ("options_bias", Extra::Bias),
        ("options_softcap", Extra::Softcap),
        ("options_sinks", Extra::Sinks),
        ("options_alibi", Extra::Alibi),
    ] {
        let shape = shape(8, 8, 256, 256, 64);
        let work = Softmax { shape, mask: causal, extra, strided: false };
        all.push(Workload::new(format!("{name}_8x256x256x64"), work));
    }
    all.push(Workload::new("merge_16_parts", Merge { parts: 16, heads: 32, rows: 64, dim: 128 }));
    all
}

pub(super) fn smallest() -> Workload {
    let shape =
        AttentionShape { batch: 1, heads_q: 1, heads_kv: 1, seq_q: 1, seq_kv: 1, dim_k: 64, dim_v: 64 };
    let work = Softmax { shape, mask: Mask::causal(), extra: Extra::None, strided: false };
    Workload::new("decode_1_1_1x64", work)
}

impl Work for Softmax {
    fn kernel(&self, dtype: DType, limits: &Limits) -> Result<&'static str> {
        Ok(Attention::bidirectional().mask(self.mask).plan(&self.shape, dtype, limits)?.kernel())
    }

    fn work(&self, dtype: DType, limits: &Limits) -> Result<[u64; 2]> {
        let plan = Attention::bidirectional().mask(self.mask).plan(&self.shape, dtype, limits)?;
        Ok([plan.bytes() + extra_bytes(self.extra, &self.shape, self.mask)?, plan.flops()])
    }

    fn prepare(&self, gpu: &Gpu, dtype: DType) -> Result<Prepared> {
        prepare_attention(gpu, self, dtype)
    }
}

impl Work for Merge {
    fn takes_dtype(&self) -> bool {
        false
    }

    fn kernel(&self, _: DType, _: &Limits) -> Result<&'static str> {
        Ok(crate::kernels::merge_partials::NAME)
    }

    fn work(&self, _: DType, _: &Limits) -> Result<[u64; 2]> {
        Ok(merge_work(self.parts, self.heads * self.rows, self.dim))
    }

    fn prepare(&self, gpu: &Gpu, _: DType) -> Result<Prepared> {
        prepare_merge(gpu, self.parts, [1, self.heads, self.rows, self.dim])
    }
}

/// Bytes of options that the plan does not count: one number of a bias to each visible pair.
fn extra_bytes(extra: Extra, shape: &AttentionShape, mask: Mask) -> Result<u64> {
    if extra != Extra::Bias {
        return Ok(0);
    }
    let pairs = mask.resolve(shape.seq_q, shape.seq_kv)?.visible_pairs();
    Ok(4 * (shape.batch * shape.heads_q) as u64 * pairs)
}

/// Bytes and operations of a merge: every part once, the result once; a multiply-add to a part's number.
fn merge_work(parts: usize, rows: usize, dim: usize) -> [u64; 2] {
    [4 * ((parts + 1) * rows * (dim + 1)) as u64, 2 * (parts * rows * dim) as u64]
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

fn prepare_attention(gpu: &Gpu, inputs: &Softmax, dtype: DType) -> Result<Prepared> {
    let Softmax { shape, mask, extra, strided } = *inputs;
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
        call: Box::new(Attending {
            attention,
            tensors: [q, k, v],
            out,
            inputs: *inputs,
            q: q_data,
            k: k_data,
            v: v_data,
            extra: extra_data,
        }),
    })
}

pub(super) fn tuning(plan: &AttentionPlan) -> String {
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
pub(super) fn output(gpu: &Gpu, shape: [usize; 4]) -> Result<AttentionOutput> {
    let rows = [shape[0], shape[1], shape[2]];
    let poison = |shape: &[usize]| {
        let data = vec![f32::NAN; shape.iter().product()];
        Tensor::from_slice(gpu, &data, shape)
    };
    Ok(AttentionOutput { o: poison(&shape)?, lse: Some(poison(&rows)?) })
}

fn prepare_merge(gpu: &Gpu, parts: usize, shape: [usize; 4]) -> Result<Prepared> {
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
        call: Box::new(Merging { parts: tensors, out: output(gpu, shape)?, data, dim: shape[3] }),
    })
}

/// An attention call, and its inputs as the device holds them, for the definition.
#[derive(Debug)]
struct Attending {
    attention: Attention,
    tensors: [Tensor; 3],
    out: AttentionOutput,
    inputs: Softmax,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    /// Bias, sinks or slopes.
    extra: Vec<f32>,
}

impl Call for Attending {
    fn record(&self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder) -> Result<()> {
        let [q, k, v] = &self.tensors;
        self.attention.record(gpu, encoder, q, k, v, &self.out)
    }

    fn check(&self, gpu: &Gpu) -> Result<Check> {
        sampled(gpu, &self.out, |row| self.want(row))
    }
}

impl Attending {
    /// The definition's output and log-sum-exp of one row.
    fn want(&self, row: usize) -> Result<(Vec<f64>, Vec<f64>)> {
        let Self { inputs: Softmax { shape, mask, extra, .. }, q, k, v, extra: extra_data, .. } = self;
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
        reference::attention(&case, Rounding::None)
    }
}

/// Partial results and their numbers.
#[derive(Debug)]
struct Merging {
    parts: Vec<Partial>,
    out: AttentionOutput,
    data: Vec<(Vec<f32>, Vec<f32>)>,
    dim: usize,
}

impl Call for Merging {
    fn record(&self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder) -> Result<()> {
        record_merge(gpu, encoder, &self.parts, &self.out)
    }

    fn check(&self, gpu: &Gpu) -> Result<Check> {
        let dim = self.dim;
        sampled(gpu, &self.out, |row| {
            let slices = self.data.iter().map(|(o, lse)| (&o[row * dim..][..dim], &lse[row..][..1]));
            Ok(reference::merge(&slices.collect::<Vec<_>>(), 1, dim))
        })
    }
}

/// Rows that are checked.
const SAMPLES: usize = 12;

/// Compares sampled rows and their log-sum-exps with what `want` says of each.
pub(super) fn sampled(
    gpu: &Gpu,
    out: &AttentionOutput,
    want: impl Fn(usize) -> Result<(Vec<f64>, Vec<f64>)>,
) -> Result<Check> {
    let o: Vec<f32> = out.o.read(gpu)?;
    let lse: Vec<f32> = match &out.lse {
        Some(lse) => lse.read(gpu)?,
        None => Vec::new(),
    };
    let rows = lse.len();
    let width = o.len() / rows.max(1);
    let (mut comparison, mut lse_right) = (Comparison::default(), true);
    for sample in 0..SAMPLES.min(rows) {
        // the first, the last, and some between
        let row = sample * (rows - 1) / (SAMPLES.min(rows) - 1).max(1);
        let (o_row, lse_row) = want(row)?;
        comparison.add(&o[row * width..][..width], &o_row);
        for want in lse_row {
            let near = (f64::from(lse[row]) - want).abs() <= REL_MAX * want.abs().max(1.0);
            lse_right &= near || (want == f64::NEG_INFINITY && lse[row] == f32::NEG_INFINITY);
        }
    }
    let check = comparison.check();
    Ok(Check { passed: check.passed && lse_right, ..check })
}
