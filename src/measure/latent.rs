//! Workloads of latent attention and rotary embedding.

use super::workload::{Call, Check, Comparison, Prepared, Work, Workload, numbers};
use crate::cases::{round, upload};
use crate::kernels::rope;
use crate::limits::Limits;
use crate::mla::{Mla, MlaOutput, MlaPath, MlaShape, MlaTensors};
use crate::model::{Rope, RopeLayout};
use crate::{Attention, AttentionShape, DType, Gpu, Mask, Result, Rotary, RotaryTable, Tensor, reference};

/// A latent attention call of `DeepSeek`'s widths.
#[derive(Debug, Clone, Copy)]
struct Latent {
    shape: MlaShape,
    path: Option<MlaPath>,
}

/// Rows of `[1, heads, rows, dim]`, turned whole.
#[derive(Debug, Clone, Copy)]
struct Turn {
    heads: usize,
    rows: usize,
    dim: usize,
}

pub(super) fn workloads() -> Vec<Workload> {
    let shape = |heads, seq_q, seq_kv| MlaShape {
        batch: 1,
        heads,
        seq_q,
        seq_kv,
        nope: 128,
        rope: 64,
        rank: 512,
        dim_v: 128,
    };
    let decode = |heads| {
        let work = Latent { shape: shape(heads, 1, 4096), path: None };
        Workload::new(format!("mla_decode_{heads}_4096"), work)
    };
    let mut all =
        vec![decode(16), decode(16).with_dtype(DType::F16), decode(128), decode(128).with_dtype(DType::F16)];
    // on either side of where the two paths cost as many operations
    for queries in [64, 160, 384] {
        for (name, path) in [("absorbed", MlaPath::Absorbed), ("expanded", MlaPath::Expanded)] {
            let work = Latent { shape: shape(4, queries, 1024), path: Some(path) };
            all.push(Workload::new(format!("mla_chunk_4_{queries}_of_1024_{name}"), work));
        }
    }
    all.push(Workload::new("rope_8x1024x128", Turn { heads: 8, rows: 1024, dim: 128 }));
    all
}

impl Latent {
    fn mla(&self) -> Mla {
        let mla = Mla::causal();
        self.path.map_or_else(|| mla.clone(), |path| mla.clone().path(path))
    }
}

impl Work for Latent {
    fn kernel(&self, dtype: DType, limits: &Limits) -> Result<&'static str> {
        let MlaShape { batch, heads, seq_q, seq_kv, nope, rope, rank, dim_v } = self.shape;
        let absorbed = self.mla().plan(&self.shape)?.path != MlaPath::Expanded;
        let (heads_kv, dim_k, dim_v) =
            if absorbed { (1, rank + rope, rank) } else { (heads, nope + rope, dim_v) };
        let shape = AttentionShape { batch, heads_q: heads, heads_kv, seq_q, seq_kv, dim_k, dim_v };
        Ok(Attention::causal().plan(&shape, dtype, limits)?.kernel())
    }

    /// Each cached token once, each matrix once, each query and result once.
    fn work(&self, dtype: DType, _: &Limits) -> Result<[u64; 2]> {
        let MlaShape { batch, heads, seq_q, seq_kv, nope, rope, rank, dim_v } = self.shape;
        let stored = batch * seq_kv * (rank + rope)
            + heads * rank * (nope + dim_v)
            + batch * heads * seq_q * (nope + rope);
        let bytes = stored * dtype.bytes() + batch * heads * seq_q * (dim_v + 1) * 4;
        Ok([bytes as u64, self.mla().plan(&self.shape)?.flops()])
    }

    fn prepare(&self, gpu: &Gpu, dtype: DType) -> Result<Prepared> {
        let MlaShape { batch, heads, seq_q, seq_kv, nope, rope, rank, dim_v } = self.shape;
        let make = |seed, shape: &[usize], size: f32| -> Result<(Tensor, Vec<f32>)> {
            let data: Vec<_> = numbers(seed, shape.iter().product()).into_iter().map(|x| x * size).collect();
            Ok((upload(gpu, &data, shape, dtype)?, round(&data, dtype)))
        };
        // matrices that keep the size of what they map, as trained ones do
        let (from_nope, from_rank) = ((nope as f32).powf(-0.5), (rank as f32).powf(-0.5));
        let pairs = [
            make(1, &[batch, heads, seq_q, nope], 1.0)?,
            make(2, &[batch, heads, seq_q, rope], 1.0)?,
            make(3, &[batch, seq_kv, rank + rope], 1.0)?,
            make(4, &[heads, nope, rank], from_nope)?,
            make(5, &[heads, dim_v, rank], from_rank)?,
        ];
        let (tensors, data): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let poison =
            |shape: &[usize]| Tensor::from_slice(gpu, &vec![f32::NAN; shape.iter().product()], shape);
        let out = MlaOutput {
            o: poison(&[batch, heads, seq_q, dim_v])?,
            lse: Some(poison(&[batch, heads, seq_q])?),
        };
        let [bytes, flops] = self.work(dtype, gpu.limits())?;
        Ok(Prepared {
            kernel: self.kernel(dtype, gpu.limits())?,
            tuning: self.mla().plan(&self.shape)?.to_string(),
            flops,
            bytes,
            call: Box::new(Attending { work: *self, tensors, data, out }),
        })
    }
}

#[derive(Debug)]
struct Attending {
    work: Latent,
    tensors: Vec<Tensor>,
    data: Vec<Vec<f32>>,
    out: MlaOutput,
}

impl Call for Attending {
    fn record(&self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder) -> Result<()> {
        let [q_nope, q_rope, latents, w_uk, w_uv] = [0, 1, 2, 3, 4].map(|i| &self.tensors[i]);
        let tensors = MlaTensors { q_nope, q_rope, latents, w_uk, w_uv };
        self.work.mla().record(gpu, encoder, &tensors, &self.out)
    }

    /// A few rows by definition, from the first head to the last.
    fn check(&self, gpu: &Gpu) -> Result<Check> {
        let MlaShape { heads, seq_q, seq_kv, nope, rope, rank, dim_v, .. } = self.work.shape;
        let o: Vec<f32> = self.out.o.read(gpu)?;
        let mut comparison = Comparison::default();
        for sample in 0..3 {
            let (h, i) = (sample * (heads - 1) / 2, sample * (seq_q - 1) / 2);
            let row = h * seq_q + i;
            let latents = self.data[2].chunks_exact(rank + rope);
            let (c_kv, k_rope): (Vec<_>, Vec<_>) = latents.map(|t| t.split_at(rank)).unzip();
            let case = reference::MlaCase {
                shape: MlaShape { batch: 1, heads: 1, seq_q: 1, ..self.work.shape },
                mask: Mask { q_start: Some((seq_kv - seq_q + i) as i64), ..Mask::causal() },
                q_nope: &self.data[0][row * nope..][..nope],
                q_rope: &self.data[1][row * rope..][..rope],
                c_kv: &c_kv.concat(),
                k_rope: &k_rope.concat(),
                w_uk: &self.data[3][h * nope * rank..][..nope * rank],
                w_uv: &self.data[4][h * dim_v * rank..][..dim_v * rank],
                scale: ((nope + rope) as f64).powf(-0.5),
                kv_len: None,
            };
            comparison.add(&o[row * dim_v..][..dim_v], &reference::mla(&case)?.0);
        }
        Ok(comparison.check())
    }
}

impl Turn {
    fn rope(&self) -> Rope {
        Rope::new(1e4, self.dim as u32, RopeLayout::Half)
    }
}

impl Work for Turn {
    fn kernel(&self, _: DType, _: &Limits) -> Result<&'static str> {
        Ok(rope::NAME)
    }

    /// Each element read and written once, the table read once.
    fn work(&self, dtype: DType, _: &Limits) -> Result<[u64; 2]> {
        let count = self.heads * self.rows * self.dim;
        let table = self.rows * (self.dim + 1) * 4;
        Ok([(count * 2 * dtype.bytes() + table) as u64, 3 * count as u64])
    }

    fn prepare(&self, gpu: &Gpu, dtype: DType) -> Result<Prepared> {
        let shape = [1, self.heads, self.rows, self.dim];
        let data = numbers(1, shape.iter().product());
        let positions: Vec<_> = (0..self.rows as i64).collect();
        let table = Rotary::new(&self.rope()).angles(crate::Angles::Exact).table(gpu, &positions)?;
        let [bytes, flops] = self.work(dtype, gpu.limits())?;
        let call = Turning {
            work: *self,
            table,
            x: upload(gpu, &data, &shape, dtype)?,
            data: round(&data, dtype),
            y: Tensor::from_slice(gpu, &vec![f32::NAN; data.len()], shape)?,
        };
        let tuning = "four elements to an invocation".into();
        Ok(Prepared { kernel: rope::NAME, tuning, flops, bytes, call: Box::new(call) })
    }
}

#[derive(Debug)]
struct Turning {
    work: Turn,
    table: RotaryTable,
    x: Tensor,
    data: Vec<f32>,
    y: Tensor,
}

impl Call for Turning {
    fn record(&self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder) -> Result<()> {
        self.table.record(gpu, encoder, &self.x, &self.y)
    }

    fn check(&self, gpu: &Gpu) -> Result<Check> {
        let Turn { heads, rows, dim } = self.work;
        let y: Vec<f32> = self.y.read(gpu)?;
        let inverse = self.work.rope().inverse_frequencies(0);
        let mut comparison = Comparison::default();
        for row in (0..heads * rows).step_by(97) {
            let position = (row % rows) as i64;
            let want = reference::rope(&self.data[row * dim..][..dim], position, &inverse, 1.0, false);
            comparison.add(&y[row * dim..][..dim], &want);
        }
        Ok(comparison.check())
    }
}
