//! Workloads of caches: decoding from them as they lie, and appending to them.

use super::attention::{output, sampled, tuning};
use super::workload::{Call, Check, Comparison, Prepared, Work, Workload, numbers};
use crate::attention::CachedKv;
use crate::cache::Format;
use crate::kernels::cache_append;
use crate::limits::Limits;
use crate::model::{CacheSpec, Held, LayerCache, RowKind, Rows, Storage};
use crate::reference::{self, AttentionCase, Rounding, quantised};
use crate::{Attention, AttentionOutput, AttentionShape, Cache, DType, Gpu, Mask, Result, Tensor};

const HEADS_Q: usize = 32;
const HEADS: usize = 8;
const DIM: usize = 128;
/// Keys that a query sees.
const KEYS: usize = 4096;
/// Tokens that one call appends.
const CALL: usize = 1024;

#[derive(Debug, Clone, Copy)]
enum Lie {
    Linear,
    /// A ring that has turned.
    Ring,
    /// Pages of this many tokens, in an order of their own.
    Paged(u32),
}

/// One query to each of 32 heads against 4096 keys of 8 heads.
#[derive(Debug, Clone, Copy)]
struct Decode {
    lie: Lie,
    storage: Storage,
}

/// 1024 tokens' keys.
#[derive(Debug, Clone, Copy)]
struct Append {
    lie: Lie,
    storage: Storage,
}

pub(super) fn workloads() -> Vec<Workload> {
    let decode = |name: &str, lie, storage| {
        Workload::new(format!("cache_decode_{name}_32_8_4096x128"), Decode { lie, storage })
    };
    let append = |name: &str, lie, storage| {
        Workload::new(format!("cache_append_{name}_1024x8x128"), Append { lie, storage })
    };
    vec![
        decode("linear_f16", Lie::Linear, Storage::F16),
        decode("ring_f16", Lie::Ring, Storage::F16),
        decode("paged_16_f16", Lie::Paged(16), Storage::F16),
        decode("paged_64_f16", Lie::Paged(64), Storage::F16),
        decode("linear_q8_0", Lie::Linear, Storage::Q8_0),
        decode("linear_q4_0", Lie::Linear, Storage::Q4_0),
        decode("linear_fp8", Lie::Linear, Storage::Fp8),
        decode("linear_int8", Lie::Linear, Storage::Int8),
        append("f32", Lie::Linear, Storage::F32),
        append("f16", Lie::Linear, Storage::F16),
        append("ring_f16", Lie::Ring, Storage::F16),
        append("paged_16_f16", Lie::Paged(16), Storage::F16),
        append("q8_0", Lie::Linear, Storage::Q8_0),
        append("q4_0", Lie::Linear, Storage::Q4_0),
    ]
}

impl Lie {
    fn mask(self) -> Mask {
        match self {
            Self::Ring => Mask { window: Some(KEYS as u32), ..Mask::causal() },
            _ => Mask::causal(),
        }
    }

    /// A cache of one layer.
    fn cache(self, gpu: &Gpu, storage: Storage) -> Result<Cache> {
        let held = match self {
            Self::Ring => Held::Window { window: KEYS as u32, call_tokens: CALL as u32 },
            _ => Held::All,
        };
        let row = |kind| Rows { kind, heads: HEADS as u32, width: DIM as u32, storage, held };
        let layer = LayerCache {
            index: 0,
            design: "full",
            rows: vec![row(RowKind::Key), row(RowKind::Value)],
            states: Vec::new(),
            shares_cache_of: None,
        };
        let builder = Cache::builder(&CacheSpec { layers: vec![layer] }).tokens(4 * KEYS as u64);
        match self {
            Self::Paged(page) => builder.pages(page, 2 * KEYS as u32 / page).sequences(2).build(gpu),
            _ => builder.build(gpu),
        }
    }

    /// Tokens before the query's own.
    fn before(self) -> usize {
        match self {
            // most of a turn and a half
            Self::Ring => 7 * CALL + CALL / 2 - 1,
            _ => KEYS - 1,
        }
    }
}

/// Keys or values of tokens `first..first + count`, `[1, heads, count, dim]`.
fn rows(kind: RowKind, first: usize, count: usize) -> Vec<f32> {
    let seed = kind as u32 + 2 * first as u32 + 10;
    numbers(seed, count * HEADS * DIM)
}

/// Feeds a cache up to its query's own token, which stays pending; returns all keys and values as stored,
/// `[heads, tokens, dim]`.
fn filled(gpu: &Gpu, work: Decode) -> Result<(Cache, [Vec<f32>; 2])> {
    let mut cache = work.lie.cache(gpu, work.storage)?;
    let all = work.lie.before() + 1;
    let mut held = [vec![0.0; HEADS * all * DIM], vec![0.0; HEADS * all * DIM]];
    let mut first = 0;
    while first < all {
        let step = if matches!(work.lie, Lie::Paged(_)) { CALL / 8 } else { CALL };
        let count = if first == all - 1 { 1 } else { step.min(all - 1 - first) };
        if first > 0 {
            cache.commit()?;
        }
        // a second sequence takes every other page; it pauses while the query is measured
        let counts = [count, if first == all - 1 { 0 } else { count }];
        cache.begin(&counts[..cache.sequences()])?;
        for (kind, held) in [RowKind::Key, RowKind::Value].into_iter().zip(&mut held) {
            let data = rows(kind, first, count);
            for (ix, row) in data.chunks(DIM).enumerate() {
                let at = (ix / count * all + first + ix % count) * DIM;
                held[at..at + DIM].copy_from_slice(&quantised::round_trip(work.storage, row)?);
            }
            let repeated = data.repeat(cache.sequences());
            cache.write(
                0,
                kind,
                &Tensor::from_slice(gpu, &repeated, [cache.sequences(), HEADS, count, DIM])?,
            )?;
        }
        first += count;
    }
    Ok((cache, held))
}

fn bytes_of(storage: Storage, tokens: usize) -> u64 {
    (tokens * HEADS) as u64 * storage.row_bytes(DIM as u32)
}

impl Work for Decode {
    fn takes_dtype(&self) -> bool {
        false
    }

    fn kernel(&self, _: DType, limits: &Limits) -> Result<&'static str> {
        let shape = AttentionShape {
            batch: 1,
            heads_q: HEADS_Q,
            heads_kv: HEADS,
            seq_q: 1,
            seq_kv: KEYS,
            dim_k: DIM,
            dim_v: DIM,
        };
        Ok(Attention::causal().plan(&shape, DType::F16, limits)?.kernel())
    }

    fn work(&self, _: DType, _: &Limits) -> Result<[u64; 2]> {
        let kv = 2 * bytes_of(self.storage, KEYS);
        let q = (HEADS_Q * (2 * DIM + 1) * 4) as u64;
        Ok([kv + q, (HEADS_Q * KEYS * 4 * DIM) as u64])
    }

    fn prepare(&self, gpu: &Gpu, dtype: DType) -> Result<Prepared> {
        let (cache, held) = filled(gpu, *self)?;
        let sequences = cache.sequences();
        let kv = cache.kv(0)?;
        let q = numbers(1, sequences * HEADS_Q * DIM);
        let tensor = Tensor::from_slice(gpu, &q, [sequences, HEADS_Q, 1, DIM])?;
        let attention = Attention::bidirectional().mask(self.lie.mask());
        let plan = attention.plan_cached(gpu, &tensor, &kv)?;
        let [bytes, flops] = self.work(dtype, gpu.limits())?;
        let out = output(gpu, [sequences, HEADS_Q, 1, DIM])?;
        let call = Decoding { attention, kv, q: tensor, out, q_data: q, held, work: *self };
        Ok(Prepared { kernel: plan.kernel(), tuning: tuning(&plan), flops, bytes, call: Box::new(call) })
    }
}

#[derive(Debug)]
struct Decoding {
    attention: Attention,
    kv: CachedKv,
    q: Tensor,
    out: AttentionOutput,
    q_data: Vec<f32>,
    held: [Vec<f32>; 2],
    work: Decode,
}

impl Call for Decoding {
    fn record(&self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder) -> Result<()> {
        self.attention.record_cached(gpu, encoder, &self.q, &self.kv, &self.out)
    }

    fn check(&self, gpu: &Gpu) -> Result<Check> {
        let all = self.work.lie.before() + 1;
        // the first sequence's heads; a second one pauses
        let first = AttentionOutput {
            o: self.out.o.narrow(0, 0, 1)?,
            lse: self.out.lse.as_ref().map(|lse| lse.narrow(0, 0, 1)).transpose()?,
        };
        sampled(gpu, &first, |head| {
            let at = head / (HEADS_Q / HEADS) * all * DIM;
            let case = AttentionCase {
                shape: AttentionShape {
                    batch: 1,
                    heads_q: 1,
                    heads_kv: 1,
                    seq_q: 1,
                    seq_kv: all,
                    dim_k: DIM,
                    dim_v: DIM,
                },
                mask: self.work.lie.mask(),
                q: &self.q_data[head * DIM..][..DIM],
                k: &self.held[0][at..][..all * DIM],
                v: &self.held[1][at..][..all * DIM],
                scale: (DIM as f64).powf(-0.5),
                softcap: None,
                sinks: None,
                alibi: None,
                kv_len: None,
                q_starts: None,
                bias: None,
                bias_hidden: -1e30,
            };
            reference::attention(&case, Rounding::None)
        })
    }
}

impl Work for Append {
    fn takes_dtype(&self) -> bool {
        false
    }

    fn kernel(&self, _: DType, limits: &Limits) -> Result<&'static str> {
        let source = crate::kernels::attention::Operand { dtype: DType::F32, quads: true };
        let format = Format { storage: self.storage, heads: HEADS as u32, width: DIM as u32 };
        let problem = cache_append::Problem { source, format, place: crate::cache::Place::Linear };
        Ok(problem.text(limits)?.0)
    }

    fn work(&self, _: DType, _: &Limits) -> Result<[u64; 2]> {
        let values = (CALL * HEADS * DIM) as u64;
        Ok([values * 4 + bytes_of(self.storage, CALL), values])
    }

    fn prepare(&self, gpu: &Gpu, dtype: DType) -> Result<Prepared> {
        let mut cache = self.lie.cache(gpu, self.storage)?;
        let data = rows(RowKind::Key, 0, CALL);
        let sequences = cache.sequences();
        let source = Tensor::from_slice(gpu, &data.repeat(sequences), [sequences, HEADS, CALL, DIM])?;
        cache.begin(&if sequences == 2 { vec![CALL, 0] } else { vec![CALL] })?;
        let [bytes, flops] = self.work(dtype, gpu.limits())?;
        let kernel = self.kernel(dtype, gpu.limits())?;
        let tuning = format!("{:?}", self.lie);
        Ok(Prepared {
            kernel,
            tuning,
            flops,
            bytes,
            call: Box::new(Appending { cache, source, data, storage: self.storage }),
        })
    }
}

#[derive(Debug)]
struct Appending {
    cache: Cache,
    source: Tensor,
    data: Vec<f32>,
    storage: Storage,
}

impl Call for Appending {
    fn record(&self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder) -> Result<()> {
        let (_, steps) = self.cache.launch(0, RowKind::Key, &self.source)?;
        gpu.record(encoder, &[], &steps)
    }

    fn check(&self, _: &Gpu) -> Result<Check> {
        let got = self.cache.read_pending(0, 0, RowKind::Key)?;
        let mut comparison = Comparison::default();
        for (ix, row) in self.data.chunks(DIM).enumerate() {
            let want = quantised::round_trip(self.storage, row)?;
            let want: Vec<f64> = want.into_iter().map(f64::from).collect();
            comparison.add(&got[(ix % CALL * HEADS + ix / CALL) * DIM..][..DIM], &want);
        }
        Ok(comparison.check())
    }
}
