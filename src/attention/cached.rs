//! Keys and values where a cache keeps them: linear, in rings or in pages, as floats or quantised.

use super::{Attention, AttentionOutput, AttentionShape, operand, shape_of};
use crate::gpu::{Binding, DType, Gpu, Tensor};
use crate::kernels::attention::{Cached, KeyPlace, Operand};
use crate::plan::AttentionPlan;
use crate::{Error, Result};

/// Keys and values of one layer as its cache keeps them, tokens of the pending step included.
///
/// Made by [`Cache::kv`](crate::Cache::kv), read by [`Attention::run_cached`] without a copy. It describes the
/// cache at the moment it is made: after the next step it is out of date.
#[derive(Debug, Clone)]
pub struct CachedKv {
    pub(crate) k: CachedRows,
    pub(crate) v: CachedRows,
    pub(crate) batch: usize,
    pub(crate) heads: usize,
    /// Queries that the step has for a sequence, at most.
    pub(crate) seq_q: usize,
    /// Tokens that a sequence has, at most.
    pub(crate) seq_kv: usize,
    pub(crate) place: KeyPlace,
    /// Keys that a ring is sure to hold for a query.
    pub(crate) window: Option<u32>,
    /// Pages of each sequence, `[batch, pages]`.
    pub(crate) pages: Option<Tensor>,
    /// Where all queries start, or where each sequence's start and how many keys it has.
    pub(crate) positions: QueryPositions,
}

/// Where a step's queries stand.
#[derive(Debug, Clone)]
pub(crate) enum QueryPositions {
    /// All sequences alike: the position of query row 0.
    Alike(i64),
    /// For each sequence the position of query row 0, i32, and its keys, u32.
    Each([Tensor; 2]),
}

/// Rows of one kind.
#[derive(Debug, Clone)]
pub(crate) struct CachedRows {
    pub(crate) buffer: wgpu::Buffer,
    pub(crate) storage: crate::model::Storage,
    /// Storage type of plain numbers.
    pub(crate) dtype: Option<DType>,
    pub(crate) width: usize,
    /// Elements from one sequence, head and slot to the next.
    pub(crate) strides: [u32; 3],
    /// Word at which the scales start.
    pub(crate) scales: u32,
}

/// Where a call's keys and values are.
pub(crate) enum Kv<'a> {
    Tensors(&'a Tensor, &'a Tensor),
    Cached(&'a CachedKv),
}

/// What a kernel reads q, k or v from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Input<'a> {
    Tensor(&'a Tensor),
    /// A cache's rows, bound as a whole: their places are not known here.
    Whole(&'a CachedRows),
}

impl Input<'_> {
    pub(super) fn buffer(&self) -> &wgpu::Buffer {
        match self {
            Self::Tensor(tensor) => tensor.buffer(),
            Self::Whole(rows) => &rows.buffer,
        }
    }

    pub(super) fn scales(&self) -> u32 {
        match self {
            Self::Tensor(_) => 0,
            Self::Whole(rows) => rows.scales,
        }
    }
}

impl CachedRows {
    /// The binding; base of a sequence and head, and the strides.
    pub(super) fn bind(&self, batch: usize, head: usize) -> (Binding, [u32; 4]) {
        let [b, h, row] = self.strides;
        let binding = Binding { buffer: self.buffer.clone(), offset: 0, size: self.buffer.size() };
        (binding, [batch as u32 * b + head as u32 * h, b, h, row])
    }

    fn operand(&self) -> Operand {
        Operand { dtype: self.dtype.unwrap_or(DType::F32), quads: self.width.is_multiple_of(4) }
    }

    fn quantised(&self) -> Option<crate::model::Storage> {
        self.dtype.is_none().then_some(self.storage)
    }
}

impl<'a> Kv<'a> {
    pub(super) fn shape(&self, q: &Tensor) -> Result<AttentionShape> {
        match self {
            Self::Tensors(k, v) => shape_of(q, k, v),
            Self::Cached(kv) => kv.shape(q),
        }
    }

    pub(super) fn operands(&self) -> Result<[Operand; 2]> {
        match self {
            Self::Tensors(k, v) => Ok([operand("k", k)?, operand("v", v)?]),
            Self::Cached(kv) => Ok([kv.k.operand(), kv.v.operand()]),
        }
    }

    pub(super) fn cached(&self) -> Cached {
        match self {
            Self::Tensors(..) => Cached::default(),
            Self::Cached(kv) => Cached { place: kv.place, quantised: [kv.k.quantised(), kv.v.quantised()] },
        }
    }

    pub(super) fn inputs(&self) -> [Input<'a>; 2] {
        match *self {
            Self::Tensors(k, v) => [Input::Tensor(k), Input::Tensor(v)],
            Self::Cached(kv) => [Input::Whole(&kv.k), Input::Whole(&kv.v)],
        }
    }

    pub(super) fn pages(&self) -> Option<&'a Tensor> {
        match *self {
            Self::Tensors(..) => None,
            Self::Cached(kv) => kv.pages.as_ref(),
        }
    }
}

impl CachedKv {
    fn shape(&self, q: &Tensor) -> Result<AttentionShape> {
        let [n, heads_q, seq_q, dim_k] = <[usize; 4]>::try_from(q.shape()).unwrap_or_default();
        if [n, seq_q, dim_k] != [self.batch, self.seq_q, self.k.width] {
            return Err(Error::Shape {
                field: "q",
                shape: q.shape().to_vec(),
                expected: format!("[{}, heads_q, {}, {}]", self.batch, self.seq_q, self.k.width),
                remedy: "give every sequence of the cache the step's longest count of queries",
            });
        }
        Ok(AttentionShape {
            batch: n,
            heads_q,
            heads_kv: self.heads,
            seq_q,
            seq_kv: self.seq_kv,
            dim_k,
            dim_v: self.v.width,
        })
    }

    /// The operator with the cache's positions, or why it cannot read this cache.
    fn placed(&self, attention: &Attention) -> Result<Attention> {
        let mut placed = attention.clone();
        let set = attention.kv_len.is_some()
            || attention.q_starts.is_some()
            || attention.mask.q_start.is_some()
            || attention.mask.k_start != 0;
        if set {
            return Err(Error::Options {
                field: "q_start",
                value: "given (or k_start, q_starts, kv_len)".into(),
                conflict: "clashes with a cache, which knows the positions",
                remedy: "leave positions and lengths out",
            });
        }
        if let Some(held) = self.window {
            let mask = &attention.mask;
            let seen = mask.window.filter(|_| mask.sink_tokens == 0).into_iter().chain(mask.chunk).min();
            if !mask.causal || seen.is_none_or(|seen| seen > held) {
                return Err(Error::OutOfRange {
                    field: "window",
                    value: seen.map_or_else(|| "absent".into(), |seen| seen.to_string()),
                    bound: format!(
                        "causal, without sink tokens and at most the {held} keys that the layer's ring holds"
                    ),
                    remedy: "attend with the window or chunk that the cache was described with",
                });
            }
        }
        match &self.positions {
            QueryPositions::Alike(q_start) => placed.mask.q_start = Some(*q_start),
            QueryPositions::Each([starts, lengths]) => {
                placed.q_starts = Some(starts.clone());
                placed.kv_len = Some(lengths.clone());
            }
        }
        Ok(placed)
    }
}

impl Attention {
    /// [`run`](Self::run) on the keys and values of a cache, as they lie.
    ///
    /// q is `[sequences, heads_q, longest count of the step, dim_k]`; positions and lengths are the cache's. Rows
    /// of sequences with a lower count hold nothing of meaning from their count on.
    ///
    /// # Errors
    /// As [`run`](Self::run); also positions given here, or a mask that sees more than a ring holds.
    pub fn run_cached(&self, gpu: &Gpu, q: &Tensor, kv: &CachedKv) -> Result<AttentionOutput> {
        let placed = kv.placed(self)?;
        let out = placed.outputs(gpu, &kv.shape(q)?)?;
        let (copies, steps) = placed.launch(gpu, q, &Kv::Cached(kv), &out)?;
        gpu.run_steps(&copies, &steps)?;
        Ok(out)
    }

    /// [`record`](Self::record) on the keys and values of a cache, as they lie.
    ///
    /// # Errors
    /// As [`run_cached`](Self::run_cached).
    pub fn record_cached(
        &self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        q: &Tensor,
        kv: &CachedKv,
        out: &AttentionOutput,
    ) -> Result<()> {
        let (copies, steps) = kv.placed(self)?.launch(gpu, q, &Kv::Cached(kv), out)?;
        gpu.record(encoder, &copies, &steps)
    }

    /// How a call on a cache would run.
    ///
    /// # Errors
    /// As [`run_cached`](Self::run_cached).
    pub fn plan_cached(&self, gpu: &Gpu, q: &Tensor, kv: &CachedKv) -> Result<AttentionPlan> {
        let (call, shape) = (Kv::Cached(kv), kv.shape(q)?);
        let [k, v] = call.operands()?;
        let o = Operand { dtype: self.output.unwrap_or(DType::F32), quads: shape.dim_v % 4 == 0 };
        let mut problem = kv.placed(self)?.problem(&shape, [operand("q", q)?, k, v, o], !self.no_lse)?;
        problem.cached = call.cached();
        AttentionPlan::choose(&problem, gpu.limits(), self.kernel.as_deref())
    }
}
