//! Workloads of sparse attention: indexer, top-k, and the pipeline beside dense attention over the same latents.

use super::workload::{Call, Check, Comparison, Prepared, Work, Workload, numbers};
use crate::cases::{round, upload};
use crate::kernels::{indexed_attention, indexer, top_k};
use crate::limits::Limits;
use crate::reference::{self, IndexCase, IndexedCase, Rounding};
use crate::{
    Attention, AttentionOutput, DType, Gpu, IndexInputs, Indexer, Partial, Result, SparseAttention,
    SparseOutput, Tensor, TopK, TopKOutput, record_merge,
};

/// Heads and width of DeepSeek-V3.2's indexer, and the keys it chooses.
const INDEX: [usize; 2] = [64, 128];
const CHOSEN: usize = 2048;
/// Heads of its attention, and widths of its latents.
const HEADS: usize = 128;
const LATENT: [usize; 2] = [576, 512];

/// The last `seq_q` of `seq_kv` tokens are scored.
#[derive(Debug, Clone, Copy)]
struct Scores {
    seq_q: usize,
    seq_kv: usize,
}

/// The best of one row of `seq_kv` scores.
#[derive(Debug, Clone, Copy)]
struct Choice {
    seq_kv: usize,
}

/// The last `seq_q` of `seq_kv` tokens attend to latents: to those that an indexer chooses, or to all.
#[derive(Debug, Clone, Copy)]
struct Latents {
    seq_q: usize,
    seq_kv: usize,
    dense: bool,
}

pub(super) fn workloads() -> Vec<Workload> {
    let latents = |name: &str, seq_q, seq_kv, dense| {
        Workload::new(name, Latents { seq_q, seq_kv, dense }).with_dtype(DType::F16)
    };
    vec![
        Workload::new("indexer_64x128_16x2048", Scores { seq_q: 16, seq_kv: 2048 }),
        Workload::new("indexer_64x128_1x131072", Scores { seq_q: 1, seq_kv: 131_072 }),
        Workload::new("top_k_2048_of_131072", Choice { seq_kv: 131_072 }),
        latents("sparse_decode_131072", 1, 131_072, false),
        latents("sparse_decode_131072_dense", 1, 131_072, true),
        latents("sparse_prefill_16_of_8192", 16, 8192, false),
        latents("sparse_prefill_16_of_8192_dense", 16, 8192, true),
    ]
}

fn nan(gpu: &Gpu, shape: &[usize]) -> Result<Tensor> {
    Tensor::from_slice(gpu, &vec![f32::NAN; shape.iter().product()], shape)
}

/// Pairs of a query and a key that it sees.
fn pairs(seq_q: usize, seq_kv: usize) -> u64 {
    (0..seq_q).map(|i| (seq_kv - i) as u64).sum()
}

fn index_work(seq_q: usize, seq_kv: usize, dtype: DType) -> [u64; 2] {
    let [heads, dim] = INDEX;
    let bytes = dtype.bytes() * dim * (seq_kv + seq_q * heads) + 4 * seq_q * (heads + seq_kv);
    [bytes as u64, pairs(seq_q, seq_kv) * (2 * heads * dim) as u64]
}

/// Inputs of the indexer, as the device holds them.
#[derive(Debug)]
struct Indexed {
    inputs: IndexInputs,
    q: Vec<f32>,
    k: Vec<f32>,
    w: Vec<f32>,
    seq_q: usize,
    seq_kv: usize,
}

impl Indexed {
    fn new(gpu: &Gpu, seq_q: usize, seq_kv: usize, dtype: DType) -> Result<Self> {
        let [heads, dim] = INDEX;
        let (q, k) = (numbers(11, seq_q * heads * dim), numbers(12, seq_kv * dim));
        let w = numbers(13, seq_q * heads);
        let inputs = IndexInputs {
            q: upload(gpu, &q, &[1, seq_q, heads, dim], dtype)?,
            k: (&upload(gpu, &k, &[1, seq_kv, dim], dtype)?).into(),
            w: Tensor::from_slice(gpu, &w, [1, seq_q, heads])?,
        };
        Ok(Self { inputs, q: round(&q, dtype), k: round(&k, dtype), w, seq_q, seq_kv })
    }

    /// The definition's scores of one query.
    fn want(&self, query: usize) -> Vec<f64> {
        let [heads, dim] = INDEX;
        let seen = [self.seq_kv - self.seq_q + query + 1];
        reference::index_scores(&IndexCase {
            shape: [1, 1, heads, dim, self.seq_kv],
            q: &self.q[query * heads * dim..][..heads * dim],
            k: &self.k,
            w: &self.w[query * heads..][..heads],
            scale: (dim as f64).powf(-0.5),
            seen: &seen,
        })
    }
}

#[derive(Debug)]
struct Scoring {
    index: Indexed,
    scores: Tensor,
}

impl Work for Scores {
    fn kernel(&self, dtype: DType, limits: &Limits) -> Result<&'static str> {
        let [heads, dim] = INDEX;
        let operand = crate::kernels::attention::Operand { dtype, quads: true };
        let seen = crate::Prefix::causal().constants();
        let problem = indexer::Problem { heads, dim, q: operand, k: Some(operand), key_scale: false, seen };
        Ok(indexer::tune(&problem, limits, None)?.kernel)
    }

    fn work(&self, dtype: DType, _: &Limits) -> Result<[u64; 2]> {
        Ok(index_work(self.seq_q, self.seq_kv, dtype))
    }

    fn prepare(&self, gpu: &Gpu, dtype: DType) -> Result<Prepared> {
        let index = Indexed::new(gpu, self.seq_q, self.seq_kv, dtype)?;
        let [bytes, flops] = index_work(self.seq_q, self.seq_kv, dtype);
        Ok(Prepared {
            kernel: self.kernel(dtype, gpu.limits())?,
            tuning: format!("{} heads of {}", INDEX[0], INDEX[1]),
            flops,
            bytes,
            call: Box::new(Scoring { index, scores: nan(gpu, &[1, self.seq_q, self.seq_kv])? }),
        })
    }
}

impl Call for Scoring {
    fn record(&self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder) -> Result<()> {
        let IndexInputs { q, k, w } = &self.index.inputs;
        Indexer::causal().record(gpu, encoder, q, k.clone(), w, &self.scores)
    }

    fn check(&self, gpu: &Gpu) -> Result<Check> {
        let got: Vec<f32> = self.scores.read(gpu)?;
        let mut comparison = Comparison::default();
        for query in [0, self.index.seq_q - 1] {
            comparison.add(&got[query * self.index.seq_kv..][..self.index.seq_kv], &self.index.want(query));
        }
        Ok(comparison.check())
    }
}

#[derive(Debug)]
struct Choosing {
    scores: Tensor,
    data: Vec<f32>,
    out: TopKOutput,
}

impl Work for Choice {
    fn takes_dtype(&self) -> bool {
        false
    }

    fn kernel(&self, _: DType, _: &Limits) -> Result<&'static str> {
        Ok(top_k::COUNT)
    }

    fn work(&self, _: DType, _: &Limits) -> Result<[u64; 2]> {
        // the row twice: no score is known to be chosen before all have been seen
        Ok([4 * (2 * self.seq_kv + CHOSEN) as u64, 2 * self.seq_kv as u64])
    }

    fn prepare(&self, gpu: &Gpu, dtype: DType) -> Result<Prepared> {
        let data = numbers(21, self.seq_kv);
        let [bytes, flops] = self.work(dtype, gpu.limits())?;
        let out = TopKOutput {
            indices: Tensor::from_slice(gpu, &vec![-7; CHOSEN], [1, 1, CHOSEN])?,
            counts: Tensor::uninitialised(gpu, DType::U32, [1, 1])?,
        };
        let scores = Tensor::from_slice(gpu, &data, [1, 1, self.seq_kv])?;
        Ok(Prepared {
            kernel: top_k::COUNT,
            tuning: "3 digits".into(),
            flops,
            bytes,
            call: Box::new(Choosing { scores, data, out }),
        })
    }
}

impl Call for Choosing {
    fn record(&self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder) -> Result<()> {
        TopK::new(CHOSEN).record(gpu, encoder, &self.scores, &self.out)
    }

    fn check(&self, gpu: &Gpu) -> Result<Check> {
        let got: Vec<i32> = self.out.indices.read(gpu)?;
        let want = reference::top_k(&self.data, self.data.len(), CHOSEN, &[self.data.len()]);
        let wrong = if got == want { 0.0 } else { f64::INFINITY };
        Ok(Check { rel_l2: wrong, rel_max: wrong, passed: got == want })
    }
}

#[derive(Debug)]
struct Attending {
    work: Latents,
    q: Tensor,
    k: Tensor,
    index: Option<Indexed>,
    out: SparseOutput,
    /// Results over parts of the keys, where a binding does not hold all.
    parts: Vec<AttentionOutput>,
    q_data: Vec<f32>,
    k_data: Vec<f32>,
}

impl Latents {
    /// Parts of the keys that a binding holds each.
    fn parts(&self, dtype: DType, limits: &Limits) -> usize {
        let bytes = (self.seq_kv * LATENT[0] * dtype.bytes()) as u64 + 4096;
        bytes.div_ceil(limits.binding_bytes) as usize
    }
}

impl Work for Latents {
    fn kernel(&self, _: DType, limits: &Limits) -> Result<&'static str> {
        Ok(match (self.dense, limits.subgroup) {
            (true, Some(_)) => "attention_subgroup",
            (true, None) => "attention_tiled",
            (false, Some(_)) => indexed_attention::SUBGROUP,
            (false, None) => indexed_attention::NAME,
        })
    }

    fn work(&self, dtype: DType, _: &Limits) -> Result<[u64; 2]> {
        let Self { seq_q, seq_kv, dense } = *self;
        let keys = if dense { pairs(seq_q, seq_kv) } else { (seq_q * CHOSEN.min(seq_kv)) as u64 };
        let read = if dense { seq_kv } else { (seq_q * CHOSEN).min(seq_kv) };
        let bytes =
            (dtype.bytes() * LATENT[0] * (read + seq_q * HEADS) + 4 * seq_q * HEADS * LATENT[1]) as u64;
        let flops = keys * (2 * HEADS * (LATENT[0] + LATENT[1])) as u64;
        let [index_bytes, index_flops] = if dense { [0; 2] } else { index_work(seq_q, seq_kv, dtype) };
        Ok([bytes + index_bytes, flops + index_flops])
    }

    fn prepare(&self, gpu: &Gpu, dtype: DType) -> Result<Prepared> {
        let Self { seq_q, seq_kv, dense } = *self;
        let (q_data, k_data) = (numbers(1, HEADS * seq_q * LATENT[0]), numbers(2, seq_kv * LATENT[0]));
        let q = upload(gpu, &q_data, &[1, HEADS, seq_q, LATENT[0]], dtype)?;
        let k = upload(gpu, &k_data, &[1, 1, seq_kv, LATENT[0]], dtype)?;
        let index = if dense { None } else { Some(Indexed::new(gpu, seq_q, seq_kv, dtype)?) };
        let output = || -> Result<AttentionOutput> {
            Ok(AttentionOutput {
                o: nan(gpu, &[1, HEADS, seq_q, LATENT[1]])?,
                lse: Some(nan(gpu, &[1, HEADS, seq_q])?),
            })
        };
        let chosen = TopKOutput {
            indices: Tensor::uninitialised(gpu, DType::I32, [1, seq_q, CHOSEN])?,
            counts: Tensor::uninitialised(gpu, DType::U32, [1, seq_q])?,
        };
        let parts = if dense { self.parts(dtype, gpu.limits()) } else { 0 };
        let parts = (0..if parts > 1 { parts } else { 0 }).map(|_| output()).collect::<Result<_>>()?;
        let [bytes, flops] = self.work(dtype, gpu.limits())?;
        let out = SparseOutput { attention: output()?, chosen };
        let (q_data, k_data) = (round(&q_data, dtype), round(&k_data, dtype));
        Ok(Prepared {
            kernel: self.kernel(dtype, gpu.limits())?,
            tuning: format!("{HEADS} heads, {}", if dense { "all keys" } else { "2048 chosen" }),
            flops,
            bytes,
            call: Box::new(Attending { work: *self, q, k, index, out, parts, q_data, k_data }),
        })
    }
}

impl Call for Attending {
    fn record(&self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder) -> Result<()> {
        let v = self.k.narrow(3, 0, LATENT[1])?;
        if let Some(index) = &self.index {
            let op = SparseAttention::causal(CHOSEN);
            return op.record(gpu, encoder, &self.q, &self.k, &v, &index.inputs, &self.out);
        }
        let Latents { seq_q, seq_kv, .. } = self.work;
        let q_start = (seq_kv - seq_q) as i64;
        if self.parts.is_empty() {
            return Attention::causal().record(gpu, encoder, &self.q, &self.k, &v, &self.out.attention);
        }
        let each = seq_kv.div_ceil(self.parts.len());
        let mut done = Vec::new();
        for (at, part) in self.parts.iter().enumerate() {
            let (first, count) = (at * each, each.min(seq_kv - at * each));
            let (k, v) = (self.k.narrow(2, first, count)?, v.narrow(2, first, count)?);
            let attention = Attention::causal().q_start(q_start).k_start(first as u32);
            attention.record(gpu, encoder, &self.q, &k, &v, part)?;
            done.extend(part.lse.iter().map(|lse| Partial { o: part.o.clone(), lse: lse.clone() }));
        }
        record_merge(gpu, encoder, &done, &self.out.attention)
    }

    fn check(&self, gpu: &Gpu) -> Result<Check> {
        let Latents { seq_q, seq_kv, .. } = self.work;
        let o: Vec<f32> = self.out.attention.o.read(gpu)?;
        let query = seq_q - 1;
        let all: Vec<i32> = (0..seq_kv as i32).collect();
        let mut chosen_right = true;
        let list = match &self.index {
            None => all,
            Some(index) => {
                let chosen: Vec<i32> = self.out.chosen.indices.read(gpu)?;
                let list = chosen[query * CHOSEN..][..CHOSEN].to_vec();
                chosen_right = best(&index.want(query), &list);
                list
            }
        };
        let v: Vec<f32> = self.k_data.chunks(LATENT[0]).flat_map(|row| row[..LATENT[1]].to_vec()).collect();
        let mut comparison = Comparison::default();
        for head in [0, HEADS - 1] {
            let row = head * seq_q + query;
            let case = IndexedCase {
                shape: [1, 1, 1, 1, seq_kv, LATENT[0], LATENT[1]],
                q: &self.q_data[row * LATENT[0]..][..LATENT[0]],
                k: &self.k_data,
                v: &v,
                scale: (LATENT[0] as f64).powf(-0.5),
                indices: &list,
                block: 1,
                seen: &[seq_kv],
            };
            let (want, _) = reference::indexed_attention(&case, Rounding::None);
            comparison.add(&o[row * LATENT[1]..][..LATENT[1]], &want);
        }
        let check = comparison.check();
        Ok(Check { passed: check.passed && chosen_right, ..check })
    }
}

/// Whether `list` holds the best of `scores`, but for what rounding decides.
fn best(scores: &[f64], list: &[i32]) -> bool {
    let mut chosen = vec![false; scores.len()];
    for &at in list {
        match chosen.get_mut(at as usize) {
            Some(new) if !*new => *new = true,
            _ => return false,
        }
    }
    let worst_in = scores.iter().zip(&chosen).filter(|(_, c)| **c).fold(f64::INFINITY, |m, (&s, _)| m.min(s));
    let best_out =
        scores.iter().zip(&chosen).filter(|(_, c)| !**c).fold(f64::NEG_INFINITY, |m, (&s, _)| m.max(s));
    best_out <= worst_in + 1e-4
}
