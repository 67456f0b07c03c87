//! The memory of one kind of row, or of one state, for all sequences.

use std::ops::Range;

use super::format::{Format, float};
use crate::gpu::{DType, Gpu, Tensor};
use crate::model::{Held, LayerCache, RowKind, Rows, State};
use crate::{Error, Result};

/// Where the row of a position lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// At the position.
    Linear,
    /// At the position modulo the slots.
    Ring,
    /// In the page that the sequence's table names; pages have this many slots.
    Paged(u32),
}

/// Rows of one kind: `[sequences, slots, heads, width]`, or `[slots, heads, width]` where pages share a pool.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    pub(crate) kind: RowKind,
    pub(crate) held: Held,
    /// Its window is a chunk: a new one needs nothing of the last.
    pub(crate) chunked: bool,
    pub(crate) format: Format,
    pub(crate) place: Place,
    /// Slots of a sequence, or of the pool.
    pub(crate) slots: u64,
    /// 1 for a pool.
    pub(crate) sequences: u64,
    /// Absent where there is nothing to hold.
    pub(crate) buffer: Option<wgpu::Buffer>,
}

/// A byte range of a buffer.
pub(crate) type Bytes = Range<u64>;

/// How much of what a cache may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) sequences: u64,
    /// Most tokens of a sequence.
    pub(crate) tokens: u64,
    /// Slots of a page, and pages.
    pub(crate) paged: Option<(u32, u32)>,
}

impl Store {
    /// The layout, without memory.
    pub(crate) fn plan(layer: &LayerCache, rows: &Rows, extent: &Extent) -> Result<Self> {
        let format = Format::new(layer, rows)?;
        let (place, slots, sequences) = match (rows.held, extent.paged) {
            (Held::All, Some((page, pages))) => (Place::Paged(page), u64::from(page) * u64::from(pages), 1),
            (Held::Window { .. }, _) => (Place::Ring, rows.held.rows(extent.tokens), extent.sequences),
            _ => (Place::Linear, rows.held.rows(extent.tokens), extent.sequences),
        };
        let chunked = layer.design == "chunked";
        Ok(Self { kind: rows.kind, held: rows.held, chunked, format, place, slots, sequences, buffer: None })
    }

    /// Bytes as the planner counts them; `None` beyond 64 bits.
    pub(crate) fn bytes(&self) -> Option<u64> {
        let token = self.format.token_values() + self.format.token_scales();
        self.slots.checked_mul(self.sequences)?.checked_mul(token)
    }

    pub(crate) fn allocate(&mut self, gpu: &Gpu, layer: u32) -> Result<()> {
        let bytes = self.bytes().ok_or(Error::MemoryOverflow { what: "the cache" })?;
        self.buffer = memory(gpu, "cache rows", layer, bytes)?;
        // shaders count elements in 32 bits
        let elements = self.slots * self.sequences * u64::from(self.format.heads * self.format.padded());
        if elements >= 1 << 32 {
            return Err(too_large(layer, bytes, "2^32 values in a layer's rows of one kind"));
        }
        Ok(())
    }

    /// First byte of a slot's values, and of its scales.
    fn at(&self, sequence: u64, slot: u64) -> [u64; 2] {
        let slot = sequence * self.slots + slot;
        [slot * self.format.token_values(), self.scales_base() + slot * self.format.token_scales()]
    }

    /// First byte of the scales.
    pub(crate) fn scales_base(&self) -> u64 {
        self.slots * self.sequences * self.format.token_values()
    }

    /// Runs of neighbouring slots that hold `positions` (or block rows) of a sequence, in order.
    pub(crate) fn runs(&self, positions: Range<u64>, table: &[u32]) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut position = positions.start;
        while position < positions.end {
            let (slot, end) = match self.place {
                Place::Linear => (position, positions.end),
                Place::Ring => (position % self.slots, position - position % self.slots + self.slots),
                Place::Paged(page) => {
                    let page = u64::from(page);
                    let at = u64::from(table[(position / page) as usize]) * page + position % page;
                    (at, position - position % page + page)
                }
            };
            let count = end.min(positions.end) - position;
            match runs.last_mut() {
                Some(run) if run.end == slot => run.end += count,
                _ => runs.push(slot..slot + count),
            }
            position += count;
        }
        runs
    }

    /// Byte ranges of a run of slots: values, then scales.
    pub(crate) fn ranges(&self, sequence: u64, run: &Range<u64>) -> [Bytes; 2] {
        // a pool belongs to no sequence
        let sequence = if self.sequences == 1 { 0 } else { sequence };
        let (first, last) = (self.at(sequence, run.start), self.at(sequence, run.end));
        [first[0]..last[0], first[1]..last[1]]
    }

    /// Bytes of `count` slots.
    pub(crate) fn bytes_of(&self, count: u64) -> u64 {
        count * (self.format.token_values() + self.format.token_scales())
    }

    /// Rows that a sequence of `n` tokens needs from here on, as positions (or block rows).
    pub(crate) fn needed(&self, n: u64) -> Range<u64> {
        match self.held {
            Held::All => 0..n,
            Held::Window { window, .. } if self.chunked => n - n % u64::from(window.max(1))..n,
            Held::Window { window, .. } => (n + 1).saturating_sub(u64::from(window.max(1))).min(n)..n,
            Held::Blocks { .. } => 0..self.held.rows(n),
        }
    }

    /// Rows that lie here for a sequence of `n` tokens, if a ring's begin at `first`.
    pub(crate) fn present(&self, n: u64, first: u64) -> Range<u64> {
        match self.held {
            Held::All => 0..n,
            Held::Window { .. } => first.min(n)..n,
            Held::Blocks { .. } => 0..self.held.rows(n),
        }
    }

    /// The plain numbers as a tensor `[sequences, heads, slots, width]`.
    pub(crate) fn tensor(&self) -> Option<Result<Tensor>> {
        let (buffer, dtype) = (self.buffer.as_ref()?, self.format.dtype()?);
        let [n, slots, heads, width] =
            [self.sequences, self.slots, self.format.heads.into(), self.format.width.into()]
                .map(|x| x as usize);
        let whole = Tensor::from_buffer(buffer, 0, buffer.size(), dtype, [n, slots, heads, width]);
        Some(whole.map(|tensor| tensor.permute(&[0, 2, 1, 3])))
    }
}

/// A state of fixed size, `[sequences, shape]`.
#[derive(Debug, Clone)]
pub(crate) struct StateStore {
    pub(crate) state: State,
    pub(crate) dtype: DType,
    /// Bytes of a sequence.
    pub(crate) each: u64,
    pub(crate) buffer: Option<wgpu::Buffer>,
}

impl StateStore {
    pub(crate) fn plan(layer: &LayerCache, state: &State) -> Result<Self> {
        let dtype = float(state.storage).ok_or_else(|| Error::DType {
            field: "state",
            dtype: state.storage.name(),
            allowed: "f32, f16 or bf16",
        })?;
        let each = state.shape.iter().try_fold(dtype.bytes() as u64, |n, &x| n.checked_mul(x.into()));
        let each = each.ok_or(Error::MemoryOverflow { what: "the cache" })?;
        if each % 4 != 0 {
            return Err(Error::OutOfRange {
                field: "state",
                value: format!("{:?} {} in layer {}", state.shape, state.storage, layer.index),
                bound: "a whole number of 4-byte words".into(),
                remedy: "store this state as f32",
            });
        }
        Ok(Self { state: *state, dtype, each, buffer: None })
    }

    pub(crate) fn allocate(&mut self, gpu: &Gpu, layer: u32, sequences: u64) -> Result<()> {
        let bytes = self.each.checked_mul(sequences).ok_or(Error::MemoryOverflow { what: "the cache" })?;
        self.buffer = memory(gpu, "cache state", layer, bytes)?;
        Ok(())
    }

    pub(crate) fn shape(&self, sequences: usize) -> [usize; 4] {
        let [a, b, c] = self.state.shape.map(|n| n as usize);
        [sequences, a, b, c]
    }
}

fn too_large(layer: u32, bytes: u64, bound: &str) -> Error {
    Error::OutOfRange {
        field: "tokens",
        value: format!("so many that layer {layer} needs a buffer of {bytes} bytes"),
        bound: format!("few enough for {bound}"),
        remedy: "lower tokens or sequences, choose a smaller storage, or open the device with higher limits",
    }
}

/// Exactly `bytes` bytes, which one binding must hold.
fn memory(gpu: &Gpu, what: &'static str, layer: u32, bytes: u64) -> Result<Option<wgpu::Buffer>> {
    let allowed = gpu.limits().binding_bytes.min(gpu.limits().buffer_bytes);
    if bytes > allowed {
        return Err(too_large(
            layer,
            bytes,
            &format!("the device's {allowed} bytes of one buffer and binding"),
        ));
    }
    if bytes == 0 { Ok(None) } else { gpu.exact_buffer(what, bytes).map(Some) }
}

/// Copies pages within each paged store; a buffer is not copied to itself, so by way of another.
pub(super) fn copy_pages<'a>(
    gpu: &Gpu,
    stores: impl Iterator<Item = &'a Store>,
    copies: &[[u32; 2]],
    page: u64,
) -> Result<()> {
    if copies.is_empty() {
        return Ok(());
    }
    let stores: Vec<_> = stores.filter(|store| matches!(store.place, Place::Paged(_))).collect();
    let largest = stores.iter().map(|store| store.bytes_of(page)).max().unwrap_or(0);
    let between = gpu.buffer("page copy", largest)?;
    let mut encoder = gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    gpu.scoped("page copy", || {
        for store in stores {
            let Some(buffer) = &store.buffer else { continue };
            for pair in copies {
                let [from, to] =
                    pair.map(|p| store.ranges(0, &(u64::from(p) * page..u64::from(p + 1) * page)));
                let mut at = 0;
                for (from, to) in from.into_iter().zip(to) {
                    let bytes = from.end - from.start;
                    if bytes > 0 {
                        encoder.copy_buffer_to_buffer(buffer, from.start, &between, at, bytes);
                        encoder.copy_buffer_to_buffer(&between, at, buffer, to.start, bytes);
                    }
                    at += bytes;
                }
            }
        }
    })?;
    gpu.submit(encoder)
}
