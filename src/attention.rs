//! Softmax attention: MHA, MQA and GQA, prefill and decode.

mod cached;
mod launch;
mod merge;

pub use cached::CachedKv;
pub(crate) use cached::{CachedRows, Kv, QueryPositions};
pub(crate) use launch::{check_output, check_shared};
pub(crate) use merge::merge_steps;
pub use merge::{Partial, merge_partials, record_merge};

use crate::gpu::{DType, Gpu, Tensor};
use crate::kernels::attention::{Cached, Operand, Problem};
use crate::limits::Limits;
use crate::mask::Mask;
use crate::plan::AttentionPlan;
use crate::{Error, Result};

/// Widest key or value that the kernels take: the latent form of MLA.
pub const MAX_DIM: usize = 576;

/// Sizes of an attention call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionShape {
    /// Sequences.
    pub batch: usize,
    /// Query heads, a multiple of `heads_kv`.
    pub heads_q: usize,
    /// Key-value heads.
    pub heads_kv: usize,
    /// New queries.
    pub seq_q: usize,
    /// Keys present.
    pub seq_kv: usize,
    /// Key width, 1 to 576.
    pub dim_k: usize,
    /// Value width, 1 to 576.
    pub dim_v: usize,
}

/// Softmax attention and its options.
///
/// `o = softmax(scale * q k^T, masked) v`, for every query head `h` with key-value head
/// `h / (heads_q / heads_kv)`. Source: *Attention Is All You Need*; grouped queries, `FlashAttention-2`.
///
/// | tensor | shape | storage |
/// |---|---|---|
/// | q | `[batch, heads_q, seq_q, dim_k]` | f32, f16, bf16 |
/// | k | `[batch, heads_kv, seq_kv, dim_k]` | f32, f16, bf16 |
/// | v | `[batch, heads_kv, seq_kv, dim_v]` | f32, f16, bf16 |
/// | o | `[batch, heads_q, seq_q, dim_v]` | f32 unless [`output`](Self::output) says otherwise |
/// | lse | `[batch, heads_q, seq_q]` | f32, natural logarithm |
///
/// Any strides between batches, heads and positions are read as they are; [`Tensor::permute`] turns
/// `[B, L, H, D]` into the order above. Sums are in f32. A row that sees no key gives 0 and minus infinity.
///
/// ```no_run
/// use wgpu_attention::{Attention, Gpu, Tensor};
/// let gpu = Gpu::new()?;
/// let q = Tensor::from_slice(&gpu, &vec![0.5_f32; 32 * 128], [1, 32, 1, 128])?;
/// let k = Tensor::from_slice(&gpu, &vec![0.5_f32; 8 * 4096 * 128], [1, 8, 4096, 128])?;
/// let out = Attention::causal().run(&gpu, &q, &k, &k)?;
/// let o: Vec<f32> = out.o.read(&gpu)?;
/// # Ok::<(), wgpu_attention::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Attention {
    mask: Mask,
    scale: Option<f32>,
    softcap: Option<f32>,
    sinks: Option<Tensor>,
    alibi: Option<Tensor>,
    kv_len: Option<Tensor>,
    q_starts: Option<Tensor>,
    bias: Option<Tensor>,
    output: Option<DType>,
    no_lse: bool,
    kernel: Option<String>,
    splits: Option<u32>,
}

/// Where the results of a call lie.
#[derive(Debug, Clone)]
pub struct AttentionOutput {
    /// `[batch, heads_q, seq_q, dim_v]`
    pub o: Tensor,
    /// `[batch, heads_q, seq_q]`, f32: the natural log-sum-exp, learned sinks included.
    pub lse: Option<Tensor>,
}

impl Attention {
    /// Each query sees the keys at or before its position.
    #[must_use]
    pub fn causal() -> Self {
        Self { mask: Mask::causal(), ..Self::default() }
    }

    /// Each query sees every key.
    #[must_use]
    pub fn bidirectional() -> Self {
        Self::default()
    }

    /// Visibility in all its options.
    #[must_use]
    pub fn mask(mut self, mask: Mask) -> Self {
        self.mask = mask;
        self
    }

    /// Sliding window: `window` keys, the query's own included (see [`Mask`]).
    #[must_use]
    pub fn window(mut self, window: u32) -> Self {
        self.mask.window = Some(window);
        self
    }

    /// Attention within absolute blocks of `chunk` positions.
    #[must_use]
    pub fn chunk(mut self, chunk: u32) -> Self {
        self.mask.chunk = Some(chunk);
        self
    }

    /// The first `count` keys stay visible outside the window.
    #[must_use]
    pub fn sink_tokens(mut self, count: u32) -> Self {
        self.mask.sink_tokens = count;
        self
    }

    /// Position of query row 0; by default the last query stands at the last key.
    #[must_use]
    pub fn q_start(mut self, position: i64) -> Self {
        self.mask.q_start = Some(position);
        self
    }

    /// Position of key 0, by default 0.
    #[must_use]
    pub fn k_start(mut self, position: u32) -> Self {
        self.mask.k_start = position;
        self
    }

    /// Positions of query row 0 for each batch entry: i32 `[batch]`, taken to the nearest within
    /// ±[`MAX_POSITION`](crate::MAX_POSITION).
    #[must_use]
    pub fn q_starts(mut self, positions: &Tensor) -> Self {
        self.q_starts = Some(positions.clone());
        self
    }

    /// Valid keys of each batch entry, u32 or i32 `[batch]`: keys from there on are hidden and never read.
    /// Below 0 (or from 2^31 on) counts as 0.
    #[must_use]
    pub fn kv_len(mut self, lengths: &Tensor) -> Self {
        self.kv_len = Some(lengths.clone());
        self
    }

    /// Factor of the scores, by default `dim_k^-0.5`.
    #[must_use]
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Scores become `cap * tanh(score / cap)`, after the scale and before bias and mask (Gemma 2).
    #[must_use]
    pub fn softcap(mut self, cap: f32) -> Self {
        self.softcap = Some(cap);
        self
    }

    /// Learned sinks, f32 `[heads_q]`: raw logits that join the softmax's denominator (gpt-oss).
    #[must_use]
    pub fn sinks(mut self, sinks: &Tensor) -> Self {
        self.sinks = Some(sinks.clone());
        self
    }

    /// `ALiBi` slopes, f32 `[heads_q]`: the scores lose `slope * |q - k|`.
    #[must_use]
    pub fn alibi(mut self, slopes: &Tensor) -> Self {
        self.alibi = Some(slopes.clone());
        self
    }

    /// Additive bias `[1 or batch, 1 or heads_q, seq_q, seq_kv]`, added after the cap. Values at or below
    /// -1e30 (f16: at or below -65504) hide their key.
    #[must_use]
    pub fn bias(mut self, bias: &Tensor) -> Self {
        self.bias = Some(bias.clone());
        self
    }

    /// Storage type of `o` in [`run`](Self::run), by default f32.
    #[must_use]
    pub fn output(mut self, dtype: DType) -> Self {
        self.output = Some(dtype);
        self
    }

    /// Leaves the log-sum-exp out of [`run`](Self::run)'s results.
    #[must_use]
    pub fn without_lse(mut self) -> Self {
        self.no_lse = true;
        self
    }

    /// Insists on one kernel by its name in `shaders/`; for tests and measurements.
    #[must_use]
    pub fn kernel(mut self, name: impl Into<String>) -> Self {
        self.kernel = Some(name.into());
        self
    }

    /// Insists on a number of splits of the keys; for tests and measurements.
    #[must_use]
    pub fn splits(mut self, splits: u32) -> Self {
        self.splits = Some(splits);
        self
    }

    /// How a call on packed tensors of storage type `dtype` would run on a device with `limits`.
    ///
    /// # Errors
    /// A refused option or shape, or no kernel that fits.
    pub fn plan(&self, shape: &AttentionShape, dtype: DType, limits: &Limits) -> Result<AttentionPlan> {
        AttentionPlan::choose(&self.problem_of(shape, dtype)?, limits, self.kernel.as_deref())
    }

    /// The problem of a call on packed tensors of storage type `dtype`.
    pub(crate) fn problem_of(&self, shape: &AttentionShape, dtype: DType) -> Result<Problem> {
        let operand = |dim: usize, dtype| Operand { dtype, quads: dim.is_multiple_of(4) };
        let (q, v) = (operand(shape.dim_k, dtype), operand(shape.dim_v, dtype));
        let o = operand(shape.dim_v, self.output.unwrap_or(DType::F32));
        self.problem(shape, [q, q, v, o], !self.no_lse)
    }

    /// How a call on these tensors would run.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn plan_for(&self, gpu: &Gpu, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<AttentionPlan> {
        let shape = shape_of(q, k, v)?;
        let o = Operand { dtype: self.output.unwrap_or(DType::F32), quads: shape.dim_v % 4 == 0 };
        let operands = [operand("q", q)?, operand("k", k)?, operand("v", v)?, o];
        let problem = self.problem(&shape, operands, !self.no_lse)?;
        AttentionPlan::choose(&problem, gpu.limits(), self.kernel.as_deref())
    }

    /// Allocates the results, runs, and returns once the work is submitted; reading back waits.
    ///
    /// # Errors
    /// A refused option, shape, stride or limit, by name; or the device's own words.
    pub fn run(&self, gpu: &Gpu, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<AttentionOutput> {
        let out = self.outputs(gpu, &shape_of(q, k, v)?)?;
        let (copies, steps) = self.launch(gpu, q, &Kv::Tensors(k, v), &out)?;
        gpu.run_steps(&copies, &steps)?;
        Ok(out)
    }

    /// Results of a call, allocated.
    fn outputs(&self, gpu: &Gpu, shape: &AttentionShape) -> Result<AttentionOutput> {
        let rows = [shape.batch, shape.heads_q, shape.seq_q];
        // refused before anything is allocated
        self.check_options(shape)?;
        let dtype = self.output.unwrap_or(DType::F32);
        let o = Tensor::uninitialised(gpu, dtype, [rows[0], rows[1], rows[2], shape.dim_v])?;
        let lse = if self.no_lse { None } else { Some(Tensor::uninitialised(gpu, DType::F32, rows)?) };
        Ok(AttentionOutput { o, lse })
    }

    /// Records the call into the caller's own encoder, writing to the caller's own tensors; submits nothing.
    ///
    /// `out.o` may be strided; its storage type decides what is written. Scratch memory belongs to `gpu`, so
    /// the commands must go to `gpu`'s queue.
    ///
    /// # Errors
    /// As [`run`](Self::run), and outputs that share a buffer with an input.
    pub fn record(
        &self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        out: &AttentionOutput,
    ) -> Result<()> {
        let (copies, steps) = self.launch(gpu, q, &Kv::Tensors(k, v), out)?;
        gpu.record(encoder, &copies, &steps)
    }

    fn check_options(&self, shape: &AttentionShape) -> Result<()> {
        let AttentionShape { batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v } = *shape;
        if heads_kv == 0 || heads_q % heads_kv != 0 || heads_q == 0 {
            return Err(Error::Heads { heads_q, heads_kv });
        }
        for (field, dim) in [("dim_k", dim_k), ("dim_v", dim_v)] {
            if dim == 0 || dim > MAX_DIM {
                return Err(Error::OutOfRange {
                    field,
                    value: dim.to_string(),
                    bound: format!("between 1 and {MAX_DIM}"),
                    remedy: "split wider heads",
                });
            }
        }
        let elements = |n: &[usize]| n.iter().try_fold(1usize, |a, &b| a.checked_mul(b));
        for (field, count) in [
            ("q", elements(&[batch, heads_q, seq_q, dim_k.max(dim_v)])),
            ("k", elements(&[batch, heads_kv, seq_kv, dim_k.max(dim_v)])),
        ] {
            if count.is_none_or(|n| n > 1 << 40) {
                return Err(Error::OutOfRange {
                    field,
                    value: format!("{shape:?}"),
                    bound: "at most 2^40 elements".into(),
                    remedy: "split the batch",
                });
            }
        }
        if let Some(scale) = self.scale.filter(|s| !s.is_finite()) {
            return Err(Error::OutOfRange {
                field: "scale",
                value: scale.to_string(),
                bound: "finite".into(),
                remedy: "leave it out for dim_k^-0.5",
            });
        }
        if let Some(cap) = self.softcap.filter(|c| !c.is_finite() || *c <= 0.0) {
            return Err(Error::OutOfRange {
                field: "softcap",
                value: cap.to_string(),
                bound: "finite and above 0".into(),
                remedy: "leave it out for no cap",
            });
        }
        if self.splits == Some(0) {
            return Err(Error::OutOfRange {
                field: "splits",
                value: "0".into(),
                bound: "at least 1".into(),
                remedy: "leave it out for the plan's own choice",
            });
        }
        let per = |field, tensor: &Option<Tensor>, count: usize, allowed: &[DType], names| match tensor {
            Some(t) if !allowed.contains(&t.dtype()) => {
                Err(Error::DType { field, dtype: t.dtype().name(), allowed: names })
            }
            Some(t) if t.shape() != [count] => Err(Error::Shape {
                field,
                shape: t.shape().to_vec(),
                expected: format!("[{count}]"),
                remedy: "give one value for each query head, or batch entry",
            }),
            _ => Ok(()),
        };
        per("sinks", &self.sinks, heads_q, &[DType::F32], "f32")?;
        per("alibi", &self.alibi, heads_q, &[DType::F32], "f32")?;
        per("kv_len", &self.kv_len, batch, &[DType::U32, DType::I32], "u32 or i32")?;
        per("q_starts", &self.q_starts, batch, &[DType::I32], "i32")?;
        if let Some(bias) = &self.bias {
            let fits = match *bias.shape() {
                [b, h, q, k] => {
                    (b == 1 || b == batch) && (h == 1 || h == heads_q) && q == seq_q && k == seq_kv
                }
                _ => false,
            };
            if !fits {
                return Err(Error::Shape {
                    field: "bias",
                    shape: bias.shape().to_vec(),
                    expected: format!("[1 or {batch}, 1 or {heads_q}, {seq_q}, {seq_kv}]"),
                    remedy: "give one value for each pair of query and key",
                });
            }
            if !bias.dtype().is_float() {
                let dtype = bias.dtype().name();
                return Err(Error::DType { field: "bias", dtype, allowed: "f32, f16 or bf16" });
            }
            row_stride("bias", bias)?;
        }
        self.mask.resolve(seq_q, seq_kv).map(|_| ())
    }

    fn problem(&self, shape: &AttentionShape, operands: [Operand; 4], lse: bool) -> Result<Problem> {
        self.check_options(shape)?;
        let AttentionShape { batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v } = *shape;
        let [q, k, v, o] = operands;
        Ok(Problem {
            batch,
            heads_q,
            heads_kv,
            seq_q,
            seq_kv,
            dim_k,
            dim_v,
            q,
            k,
            v,
            o,
            mask: self.mask,
            positions: self.mask.resolve(seq_q, seq_kv)?,
            kv_len: self.kv_len.is_some(),
            q_starts: self.q_starts.is_some(),
            softcap: self.softcap,
            sinks: self.sinks.is_some(),
            alibi: self.alibi.is_some(),
            bias: self.bias.as_ref().map(Tensor::dtype),
            lse,
            scale: self.scale.unwrap_or_else(|| (dim_k as f32).powf(-0.5)),
            splits: self.splits,
            cached: Cached::default(),
        })
    }
}

fn shape_of(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<AttentionShape> {
    let four = |field, t: &Tensor| {
        <[usize; 4]>::try_from(t.shape()).map_err(|_| Error::Shape {
            field,
            shape: t.shape().to_vec(),
            expected: "[batch, heads, seq, dim]".into(),
            remedy: "give four axes; a single head or sequence is an axis of 1",
        })
    };
    let [batch, heads_q, seq_q, dim_k] = four("q", q)?;
    let [kb, heads_kv, seq_kv, kd] = four("k", k)?;
    let [vb, vh, vs, dim_v] = four("v", v)?;
    if [kb, kd] != [batch, dim_k] {
        return Err(Error::Shape {
            field: "k",
            shape: k.shape().to_vec(),
            expected: format!("[{batch}, heads_kv, seq_kv, {dim_k}], like q,"),
            remedy: "give q and k the same batch and width",
        });
    }
    if [vb, vh, vs] != [batch, heads_kv, seq_kv] {
        return Err(Error::Shape {
            field: "v",
            shape: v.shape().to_vec(),
            expected: format!("[{batch}, {heads_kv}, {seq_kv}, dim_v], like k,"),
            remedy: "give k and v the same batch, heads and length",
        });
    }
    Ok(AttentionShape { batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v })
}

/// Elements of the last axis must be neighbours.
pub(crate) fn row_stride(field: &'static str, t: &Tensor) -> Result<()> {
    let last = t.shape().len() - 1;
    if t.shape()[last] > 1 && t.strides()[last] != 1 {
        return Err(Error::Strides {
            field,
            strides: t.strides().to_vec(),
            bound: "the last must be 1",
            remedy: "copy the tensor so that a row's elements are neighbours",
        });
    }
    Ok(())
}

pub(crate) fn operand(field: &'static str, t: &Tensor) -> Result<Operand> {
    if !t.dtype().is_float() {
        return Err(Error::DType { field, dtype: t.dtype().name(), allowed: "f32, f16 or bf16" });
    }
    row_stride(field, t)?;
    let start = t.offset_bytes() / t.dtype().bytes() as u64;
    let last = t.shape().len() - 1;
    let aligned = t.shape()[last].is_multiple_of(4)
        && start.is_multiple_of(4)
        && t.offset_bytes().is_multiple_of(t.dtype().bytes() as u64)
        && t.shape().iter().zip(t.strides()).take(last).all(|(&n, &s)| n <= 1 || s % 4 == 0);
    Ok(Operand { dtype: t.dtype(), quads: aligned })
}
