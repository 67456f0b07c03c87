//! Named workloads: sizes and options that benches and the program share.

use half::{bf16, f16};

use crate::cases::{REL_L2, REL_MAX};
use crate::limits::Limits;
use crate::reference::{self, AttentionCase, Rounding};
use crate::{
    Attention, AttentionOutput, AttentionPlan, AttentionShape, DType, Error, Gpu, Mask, Partial, Result,
    Tensor, record_merge,
};

/// An option whose cost is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extra {
    None,
    Bias,
    Softcap,
    Sinks,
    Alibi,
}

const SOFTCAP: f32 = 30.0;

#[derive(Debug, Clone, Copy)]
enum Work {
    Attention {
        shape: AttentionShape,
        mask: Mask,
        extra: Extra,
        /// `[B, L, H, D]` in memory, seen through permuted views.
        strided: bool,
    },
    /// Partial results of `[1, heads, rows, dim]`.
    Merge { parts: usize, heads: usize, rows: usize, dim: usize },
}

/// A named piece of work.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Name, the same in benches, program and tables.
    pub name: String,
    /// Storage of queries, keys and values.
    pub dtype: DType,
    work: Work,
}

/// Every workload, in the order of tables.
#[must_use]
pub fn workloads() -> Vec<Workload> {
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
    let attention = |name: &str, shape, mask| Workload {
        name: name.to_owned(),
        dtype: DType::F32,
        work: Work::Attention { shape, mask, extra: Extra::None, strided: false },
    };
    let decode = shape(32, 8, 1, 4096, 128);
    let (long, slice) = (shape(32, 8, 1, 8192, 128), shape(8, 2, 64, 8192, 128));
    let medium = shape(8, 8, 512, 512, 64);
    let mut all = vec![
        attention("prefill_8x1024x1024x128_causal", shape(8, 8, 1024, 1024, 128), causal),
        attention("prefill_8x512x512x64_causal", medium, causal),
        Workload {
            name: "prefill_8x512x512x64_causal_strided".into(),
            dtype: DType::F32,
            work: Work::Attention { shape: medium, mask: causal, extra: Extra::None, strided: true },
        },
        attention("prefill_gqa_32_8_512x512x128", shape(32, 8, 512, 512, 128), Mask::bidirectional()),
        attention("decode_32_8_4096x128", decode, causal),
        attention("decode_32_8_4096x128_f16", decode, causal).stored(DType::F16),
        attention("decode_32_8_4096x128_bf16", decode, causal).stored(DType::Bf16),
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
        let work = Work::Attention { shape, mask: causal, extra, strided: false };
        all.push(Workload { name: format!("{name}_8x256x256x64"), dtype: DType::F32, work });
    }
    let work = Work::Merge { parts: 16, heads: 32, rows: 64, dim: 128 };
    all.push(Workload { name: "merge_16_parts".into(), dtype: DType::F32, work });
    all
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

fn upload(gpu: &Gpu, data: &[f32], shape: &[usize], dtype: DType) -> Result<Tensor> {
    match dtype {
        DType::F16 => {
            let data: Vec<_> = data.iter().map(|&x| f16::from_f32(x)).collect();
            Tensor::from_slice(gpu, &data, shape)
        }
        DType::Bf16 => {
            let data: Vec<_> = data.iter().map(|&x| bf16::from_f32(x)).collect();
            Tensor::from_slice(gpu, &data, shape)
        }
        _ => Tensor::from_slice(gpu, data, shape),
    }
}

/// What the device holds of `data`.
fn stored(mut data: Vec<f32>, dtype: DType) -> Vec<f32> {
    for x in &mut data {
        *x = match dtype {
            DType::F16 => f16::from_f32(*x).to_f32(),
            DType::Bf16 => bf16::from_f32(*x).to_f32(),
            _ => *x,
        };
    }
    data
}

/// A tensor of `shape` whose memory lies as `[B, L, H, D]` when `strided`.
fn laid_out(
    gpu: &Gpu,
    data: Vec<f32>,
    shape: [usize; 4],
    dtype: DType,
    strided: bool,
) -> Result<(Tensor, Vec<f32>)> {
    if !strided {
        return Ok((upload(gpu, &data, &shape, dtype)?, stored(data, dtype)));
    }
    let [b, h, l, d] = shape;
    let mut moved = Vec::with_capacity(data.len());
    for row in 0..b * l * h {
        let (batch, position, head) = (row / (l * h), row / h % l, row % h);
        moved.extend_from_slice(&data[((batch * h + head) * l + position) * d..][..d]);
    }
    let tensor = upload(gpu, &moved, &[b, l, h, d], dtype)?;
    Ok((tensor.permute(&[0, 2, 1, 3]), stored(data, dtype)))
}

impl Workload {
    /// The same work on inputs stored as `dtype`; its name says so.
    #[must_use]
    pub fn with_dtype(&self, dtype: DType) -> Self {
        let plain = self.name.trim_end_matches("_f16").trim_end_matches("_bf16");
        let name = if dtype == DType::F32 { plain.to_owned() } else { format!("{plain}_{}", dtype.name()) };
        Self { name, ..self.clone() }.stored(dtype)
    }

    fn stored(self, dtype: DType) -> Self {
        match self.work {
            Work::Attention { .. } => Self { dtype, ..self },
            Work::Merge { .. } => self,
        }
    }

    /// Whether storage is a choice: partial results are always f32.
    #[must_use]
    pub fn takes_dtype(&self) -> bool {
        matches!(self.work, Work::Attention { .. })
    }

    /// Kernel that would run on a device with `limits`.
    ///
    /// # Errors
    /// No kernel fits.
    pub fn kernel(&self, limits: &Limits) -> Result<&'static str> {
        match self.work {
            Work::Attention { shape, mask, .. } => {
                Ok(Attention::bidirectional().mask(mask).plan(&shape, self.dtype, limits)?.kernel())
            }
            Work::Merge { .. } => Ok(crate::kernels::merge_partials::NAME),
        }
    }

    /// Bytes that must move and operations that must be done, on a device with `limits`.
    ///
    /// # Errors
    /// No kernel fits.
    pub fn work(&self, limits: &Limits) -> Result<[u64; 2]> {
        match self.work {
            Work::Attention { shape, mask, extra, .. } => {
                let plan = Attention::bidirectional().mask(mask).plan(&shape, self.dtype, limits)?;
                Ok([plan.bytes() + extra_bytes(extra, &shape, mask)?, plan.flops()])
            }
            Work::Merge { parts, heads, rows, dim } => Ok(merge_work(parts, heads * rows, dim)),
        }
    }

    /// One query against one key: what remains is the cost of a call.
    #[must_use]
    pub fn smallest() -> Self {
        let shape =
            AttentionShape { batch: 1, heads_q: 1, heads_kv: 1, seq_q: 1, seq_kv: 1, dim_k: 64, dim_v: 64 };
        let work = Work::Attention { shape, mask: Mask::causal(), extra: Extra::None, strided: false };
        Self { name: "decode_1_1_1x64".into(), dtype: DType::F32, work }
    }

    /// Uploads inputs and allocates outputs.
    ///
    /// # Errors
    /// No memory, or no kernel that fits.
    pub fn prepare(&self, gpu: &Gpu) -> Result<Prepared> {
        match self.work {
            Work::Attention { shape, mask, extra, strided } => {
                self.prepare_attention(gpu, &shape, mask, extra, strided)
            }
            Work::Merge { parts, heads, rows, dim } => prepare_merge(gpu, parts, [1, heads, rows, dim]),
        }
    }

    fn prepare_attention(
        &self,
        gpu: &Gpu,
        shape: &AttentionShape,
        mask: Mask,
        extra: Extra,
        strided: bool,
    ) -> Result<Prepared> {
        let AttentionShape { batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v } = *shape;
        let tensor = |seed, shape: [usize; 4]| {
            laid_out(gpu, numbers(seed, shape.iter().product()), shape, self.dtype, strided)
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
                extra_data = (1..=heads_q as u32).map(|h| (-(h as f32)).exp2()).collect();
                attention = attention.alibi(&Tensor::from_slice(gpu, &extra_data, [heads_q])?);
            }
        }
        let out = output(gpu, [batch, heads_q, seq_q, dim_v])?;
        let plan = attention.plan_for(gpu, &q, &k, &v)?;
        Ok(Prepared {
            kernel: plan.kernel(),
            tuning: tuning(&plan),
            flops: plan.flops(),
            bytes: plan.bytes() + extra_bytes(extra, shape, mask)?,
            call: Call::Attention { attention: Box::new(attention), inputs: [q, k, v] },
            out,
            oracle: Oracle::Attention {
                shape: *shape,
                mask,
                extra,
                data: [q_data, k_data, v_data],
                extra_data,
            },
        })
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

fn prepare_merge(gpu: &Gpu, parts: usize, shape: [usize; 4]) -> Result<Prepared> {
    let count: usize = shape.iter().product();
    let rows = count / shape[3];
    let mut data = Vec::new();
    let mut tensors = Vec::new();
    for part in 0..parts as u32 {
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
    Attention { attention: Box<Attention>, inputs: [Tensor; 3] },
    Merge(Vec<Partial>),
}

/// Inputs as the device holds them, for the definition.
#[derive(Debug)]
enum Oracle {
    Attention { shape: AttentionShape, mask: Mask, extra: Extra, data: [Vec<f32>; 3], extra_data: Vec<f32> },
    Merge { data: Vec<(Vec<f32>, Vec<f32>)>, dim: usize },
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
            Call::Attention { attention, inputs: [q, k, v] } => {
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
            Oracle::Attention { shape, mask, extra, data: [q, k, v], extra_data } => {
                let AttentionShape { heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v, .. } = *shape;
                let (batch, head, query) = (row / (heads_q * seq_q), row / seq_q % heads_q, row % seq_q);
                let kv = (batch * heads_kv + head / (heads_q / heads_kv)) * seq_kv;
                let start = mask.resolve(seq_q, seq_kv)?.q_start() + query as i64;
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
