//! Sparse attention: an indexer scores the keys, top-k chooses among them, attention reads the chosen ones.
//!
//! `docs/sparse.md` says how the pieces fit. Sources: DeepSeek-V3.2 (lightning indexer), *Native Sparse
//! Attention*.

mod indexed;
mod indexer;
mod nsa;
mod pipeline;
mod top_k;

pub use indexed::IndexedAttention;
pub use indexer::{IndexKeys, Indexer};
pub use nsa::{NativeSparseAttention, NsaInputs, NsaOutput, compress_blocks};
pub use pipeline::{IndexInputs, SparseAttention, SparseOutput};
pub use top_k::{TopK, TopKOutput};

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use crate::attention::{check_shared, operand, row_stride};
use crate::gpu::shader::Constants;
use crate::gpu::{Binding, Copy, DType, Gpu, Table, Tensor};
use crate::mask::MAX_POSITION;
use crate::{Error, Result};

/// Which keys a query sees: always the first few.
///
/// Key `j` stands for `reach` tokens from `j * step` on and is seen once the last of them is at or before the
/// query's position; tokens themselves have `step = reach = 1`. The rule is that of
/// `shaders/common/visible.wgsl`.
#[derive(Debug, Clone)]
pub struct Prefix {
    causal: bool,
    q_start: Option<i64>,
    q_starts: Option<Tensor>,
    kv_len: Option<Tensor>,
    step: u32,
    reach: u32,
}

impl Prefix {
    /// Every query sees every key.
    #[must_use]
    pub fn all() -> Self {
        Self { causal: false, q_start: None, q_starts: None, kv_len: None, step: 1, reach: 1 }
    }

    /// Each query sees the keys at or before its position; the last query stands at the last key.
    #[must_use]
    pub fn causal() -> Self {
        Self { causal: true, ..Self::all() }
    }

    /// Position of query 0, by default such that the last query stands at the last key.
    #[must_use]
    pub fn q_start(mut self, position: i64) -> Self {
        self.q_start = Some(position);
        self
    }

    /// Positions of query 0 for each batch entry: i32 `[batch]`, taken to the nearest within ±[`MAX_POSITION`].
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

    /// Keys that stand for blocks of `reach` tokens, one every `step` tokens; positions count tokens, so
    /// [`q_start`](Self::q_start) must say where query 0 stands.
    #[must_use]
    pub fn blocks(mut self, step: u32, reach: u32) -> Self {
        (self.step, self.reach) = (step, reach);
        self
    }

    /// Constants of the kernels' text.
    pub(crate) fn constants(&self) -> Constants {
        Constants::default()
            .set("CAUSAL", self.causal)
            .set("KV_LEN", self.kv_len.is_some())
            .set("Q_STARTS", self.q_starts.is_some())
    }

    /// Checks the options, and gathers small tensors into a table; the copies must run before what reads it.
    pub(crate) fn resolve(&self, gpu: &Gpu, batch: usize, seq_q: usize, seq_kv: usize) -> Result<Resolved> {
        self.check(batch, seq_q, seq_kv)?;
        let mut table = Table::default();
        let mut add = |field, tensor: &Option<Tensor>| match tensor {
            Some(t) => table.add(field, t),
            None => Ok(0),
        };
        let kv_len_at = add("kv_len", &self.kv_len)?;
        let q_starts_at = add("q_starts", &self.q_starts)?;
        let (table, copies) = table.build(gpu)?;
        let q_start = self.q_start.unwrap_or(seq_kv as i64 - seq_q as i64) as i32;
        let seen = Seen { q_start, kv_len_at, q_starts_at, step: self.step, reach: self.reach };
        Ok(Resolved { constants: self.constants(), seen, table, copies })
    }

    fn check(&self, batch: usize, seq_q: usize, seq_kv: usize) -> Result<()> {
        let most = i64::from(MAX_POSITION);
        let out = |field, value: String, bound: String, remedy| {
            Err(Error::OutOfRange { field, value, bound, remedy })
        };
        if let Some(q) = self.q_start.filter(|q| q.abs() > most) {
            let bound = format!("between -{most} and {most}");
            return out("q_start", q.to_string(), bound, "count positions from the start of the sequence");
        }
        for (field, n) in [("seq_q", seq_q), ("seq_kv", seq_kv)] {
            if n as i64 > most {
                return out(field, n.to_string(), format!("at most {most}"), "split the sequence");
            }
        }
        for (field, n) in [("step", self.step), ("reach", self.reach)] {
            if n == 0 || n > MAX_POSITION {
                return out(field, n.to_string(), format!("between 1 and {most}"), "give the blocks a size");
            }
        }
        if self.causal
            && [self.step, self.reach] != [1, 1]
            && self.q_start.is_none()
            && self.q_starts.is_none()
        {
            return Err(Error::Options {
                field: "blocks",
                value: format!("({}, {})", self.step, self.reach),
                conflict: "needs q_start, since the number of keys does not tell that of tokens",
                remedy: "give the position of query 0",
            });
        }
        for (field, t, allowed, names) in [
            ("kv_len", &self.kv_len, &[DType::U32, DType::I32][..], "u32 or i32"),
            ("q_starts", &self.q_starts, &[DType::I32][..], "i32"),
        ] {
            let Some(t) = t else { continue };
            if !allowed.contains(&t.dtype()) {
                return Err(Error::DType { field, dtype: t.dtype().name(), allowed: names });
            }
            if t.shape() != [batch] {
                return Err(wrong_shape(
                    field,
                    t,
                    format!("[{batch}]"),
                    "give one value for each batch entry",
                ));
            }
        }
        Ok(())
    }
}

/// The words at the end of every sparse kernel's `Params`: which keys a query sees.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Seen {
    pub(crate) q_start: i32,
    pub(crate) kv_len_at: u32,
    pub(crate) q_starts_at: u32,
    pub(crate) step: u32,
    pub(crate) reach: u32,
}

/// A [`Prefix`] on a device.
#[derive(Debug, Clone)]
pub(crate) struct Resolved {
    pub(crate) constants: Constants,
    pub(crate) seen: Seen,
    pub(crate) table: Binding,
    pub(crate) copies: Vec<Copy>,
}

fn wrong_shape(field: &'static str, t: &Tensor, expected: String, remedy: &'static str) -> Error {
    Error::Shape { field, shape: t.shape().to_vec(), expected, remedy }
}

/// The axes of a tensor that must have `N`, named in `expected`.
fn axes<const N: usize>(field: &'static str, t: &Tensor, expected: &str) -> Result<[usize; N]> {
    <[usize; N]>::try_from(t.shape()).map_err(|_| {
        wrong_shape(field, t, expected.to_owned(), "give every axis; a single one is an axis of 1")
    })
}

fn check_shape(field: &'static str, t: &Tensor, shape: &[usize]) -> Result<()> {
    if t.shape() == shape {
        return Ok(());
    }
    Err(wrong_shape(field, t, format!("{shape:?}"), "give the tensors of one call matching shapes"))
}

fn check_dtype(field: &'static str, t: &Tensor, allowed: DType) -> Result<()> {
    if t.dtype() == allowed {
        return Ok(());
    }
    Err(Error::DType { field, dtype: t.dtype().name(), allowed: allowed.name() })
}

/// A range of each axis, the whole of those not given: what a dispatch binds of a tensor.
///
/// The base is such that kernels count elements from the tensor's own start, modulo 2^32.
fn bind(gpu: &Gpu, field: &'static str, t: &Tensor, ranges: &[Range<usize>]) -> Result<(Binding, u32)> {
    let (mut first, mut last) = (0, 0);
    for (axis, (&n, &stride)) in t.shape().iter().zip(t.strides()).enumerate() {
        let range = ranges.get(axis).cloned().unwrap_or(0..n);
        first += range.start * stride;
        last += range.end.saturating_sub(1).max(range.start) * stride;
    }
    let count = last + 1 - first;
    let needed = count as u64 * t.dtype().bytes() as u64;
    let limits = gpu.limits();
    let allowed = limits.binding_bytes;
    if needed + u64::from(limits.offset_alignment) > allowed.max(1 << 10) {
        let limit = "max_storage_buffer_binding_size";
        return Err(Error::Binding { field, needed, limit, allowed, split: "batch or queries" });
    }
    let (binding, base) = t.bind(gpu, first, count);
    Ok((binding, base.wrapping_sub(first as u32)))
}

/// Strides of the leading axes, as kernels take them.
fn strides<const N: usize>(t: &Tensor) -> [u32; N] {
    std::array::from_fn(|axis| t.strides()[axis] as u32)
}

/// A stand-in for a tensor that is absent.
fn stand_in(gpu: &Gpu, what: &'static str) -> Result<Binding> {
    Ok(Binding { buffer: gpu.buffer(what, 16)?, offset: 0, size: 16 })
}

fn parameter_scale(field: &'static str, scale: f32, positive: bool) -> Result<f32> {
    if scale.is_finite() && (scale > 0.0 || !positive) {
        return Ok(scale);
    }
    Err(Error::OutOfRange {
        field,
        value: scale.to_string(),
        bound: if positive { "finite and above 0".into() } else { "finite".into() },
        remedy: "leave it out for dim^-0.5",
    })
}
