//! Named workloads: sizes and options that benches and the program share.

use super::prepared::{Inputs, Prepared, prepare_attention, prepare_merge};
use crate::limits::Limits;
use crate::{Attention, AttentionShape, DType, Gpu, Mask, Result};

/// An option whose cost is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extra {
    None,
    Bias,
    Softcap,
    Sinks,
    Alibi,
}

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
                prepare_attention(gpu, &Inputs { shape, mask, extra, strided, dtype: self.dtype })
            }
            Work::Merge { parts, heads, rows, dim } => prepare_merge(gpu, parts, [1, heads, rows, dim]),
        }
    }
}

/// Bytes of options that the plan does not count: one number of a bias to each visible pair.
pub(super) fn extra_bytes(extra: Extra, shape: &AttentionShape, mask: Mask) -> Result<u64> {
    if extra != Extra::Bias {
        return Ok(0);
    }
    let pairs = mask.resolve(shape.seq_q, shape.seq_kv)?.visible_pairs();
    Ok(4 * (shape.batch * shape.heads_q) as u64 * pairs)
}

/// Bytes and operations of a merge: every part once, the result once; a multiply-add to a part's number.
pub(super) fn merge_work(parts: usize, rows: usize, dim: usize) -> [u64; 2] {
    [4 * ((parts + 1) * rows * (dim + 1)) as u64, 2 * (parts * rows * dim) as u64]
}
