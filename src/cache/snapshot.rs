//! One sequence outside the cache: on the device, as bytes, in a file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::store::{Place, Store};
use super::{Cache, Sequence};
use crate::gpu::Gpu;
use crate::model::RowKind;
use crate::reference::quantised;
use crate::{Error, Result};

const MAGIC: &[u8; 8] = b"WGPUATTN";
/// Version of the bytes: another one is refused.
const VERSION: u32 = 1;

/// What a cache holds for one sequence: rows in the order of their positions, and states.
///
/// It fits any cache of the same model and storage, whatever its tokens, pages or slack.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub(super) head: Head,
    /// One for each part.
    pub(super) buffers: Vec<wgpu::Buffer>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Head {
    pub(super) position: u64,
    pub(super) parts: Vec<Part>,
}

/// Rows of one kind, values before scales, or a state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    layer: u32,
    /// Kind, heads, width and storage; or kind, shape and storage.
    what: String,
    /// Positions (or block rows) held.
    rows: Range<u64>,
    bytes: u64,
}

fn describe(store: &Store) -> String {
    let format = store.format;
    format!("{:?} {}x{} {}", store.kind, format.heads, format.width, format.storage)
}

fn describe_state(state: &super::StateStore) -> String {
    format!("{:?} state {:?} {}", state.state.kind, state.state.shape, state.state.storage)
}

/// Ranges of a store's buffer that hold `rows` of a sequence, and where they lie in a part that holds `of`.
fn places(
    store: &Store,
    sequence: usize,
    rows: &Range<u64>,
    of: &Range<u64>,
    table: &[u32],
) -> Vec<(Range<u64>, u64)> {
    let (values, scales) = (store.format.token_values(), store.format.token_scales());
    let mut row = rows.start - of.start;
    let mut out = Vec::new();
    for run in store.runs(rows.clone(), table) {
        let [in_values, in_scales] = store.ranges(sequence as u64, &run);
        out.push((in_values, row * values));
        out.push((in_scales, (of.end - of.start) * values + row * scales));
        row += run.end - run.start;
    }
    out
}

impl Cache {
    /// Copies what the cache holds for a sequence, on the device.
    ///
    /// # Errors
    /// A pending step, no such sequence, or no memory.
    pub fn snapshot(&self, sequence: usize) -> Result<Snapshot> {
        self.idle()?;
        Snapshot::take(self, sequence, |_| true)
    }

    /// Makes a sequence what a snapshot holds; what it held is gone. Checkpoints begin anew.
    ///
    /// # Errors
    /// A pending step, a snapshot of another model or storage, more tokens than the cache (or its pages) has room
    /// for, or rings that hold too little for this cache's windows: nothing has changed then. If the device
    /// fails in between, the sequence is empty.
    pub fn restore(&mut self, sequence: usize, snapshot: &Snapshot) -> Result<()> {
        self.idle()?;
        self.sequence(sequence)?;
        self.check_fits(snapshot)?;
        let position = snapshot.head.position;
        let mut pages = self.pages.clone();
        if let Some(pages) = &mut pages {
            pages.truncate(sequence, 0);
            let mut counts = vec![0; self.sequences.len()];
            counts[sequence] = position;
            let change = pages.prepare(&vec![0; counts.len()], &counts)?;
            pages.reserve(&change);
            pages.commit(change);
        }
        self.pages = pages;
        match self.put(sequence, snapshot, |_| true) {
            Ok(firsts) => {
                self.sequences[sequence] = Sequence { seen: position, firsts, checkpoints: Vec::new() };
                Ok(())
            }
            Err(error) => {
                self.sequences[sequence] = Sequence::default();
                if let Some(pages) = &mut self.pages {
                    pages.truncate(sequence, 0);
                }
                Err(error)
            }
        }
    }

    /// Reads rows of one kind back, decoded: the positions (or block rows) that the cache holds for a sequence,
    /// and their values, `[positions, heads, width]`.
    ///
    /// # Errors
    /// A pending step, no such sequence, layer or kind, or a storage that has no decoder.
    pub fn read_rows(&self, sequence: usize, layer: u32, kind: RowKind) -> Result<(Range<u64>, Vec<f32>)> {
        self.idle()?;
        let s = self.sequence(sequence)?;
        let (at, store) = self.store(layer, kind)?;
        let which = self.layers[at].stores.iter().position(|store| store.kind == kind).unwrap_or(0);
        let rows = store.present(s.seen, s.first(at, which));
        let values = self.decoded(sequence, store, &rows, self.table(sequence))?;
        Ok((rows, values))
    }

    /// The pending step's rows of one kind, decoded.
    pub(crate) fn read_pending(&self, sequence: usize, layer: u32, kind: RowKind) -> Result<Vec<f32>> {
        let pending = self.pending()?;
        let (_, store) = self.store(layer, kind)?;
        let seen = self.sequence(sequence)?.seen;
        let table = pending.table(sequence).unwrap_or_else(|| self.table(sequence));
        self.decoded(sequence, store, &(seen..seen + pending.counts[sequence]), table)
    }

    /// Rows of a store, read back and decoded.
    fn decoded(&self, sequence: usize, store: &Store, rows: &Range<u64>, table: &[u32]) -> Result<Vec<f32>> {
        let count = rows.end - rows.start;
        let Some(from) = store.buffer.as_ref().filter(|_| count > 0) else { return Ok(Vec::new()) };
        let to = self.gpu.exact_buffer("read rows", store.bytes_of(count))?;
        let places = places(store, sequence, rows, rows, table);
        self.copy(
            places
                .into_iter()
                .map(|(range, held)| (from.clone(), range.start, to.clone(), held, range.end - range.start)),
        )?;
        let bytes = self.gpu.block_on(self.gpu.download(&to, 0, store.bytes_of(count) as usize))?;
        let (values, scales) = bytes.split_at((count * store.format.token_values()) as usize);
        quantised::decode(store.format.storage, store.format.width as usize, values, scales)
    }

    fn check_fits(&self, snapshot: &Snapshot) -> Result<()> {
        let other = |value: String| Error::OutOfRange {
            field: "snapshot",
            value,
            bound: "of a cache with the same layers, heads, widths and storage".into(),
            remedy: "restore it into a cache of the model it was taken from",
        };
        let position = snapshot.head.position;
        if position > self.extent.tokens {
            return Err(Error::OutOfRange {
                field: "snapshot",
                value: format!("of {position} tokens"),
                bound: format!("within the cache's {} tokens", self.extent.tokens),
                remedy: "build the cache with more tokens",
            });
        }
        let mut parts = snapshot.head.parts.iter();
        for layer in &self.layers {
            for store in &layer.stores {
                let part = parts.next().ok_or_else(|| other("without all layers".into()))?;
                let fits = part.layer == layer.index && part.what == describe(store);
                let rows = &part.rows;
                let bytes = store.bytes_of(rows.end.saturating_sub(rows.start));
                let needed = store.needed(position);
                if !fits || part.bytes != bytes || rows.end != needed.end {
                    return Err(other(format!("of layer {} with {}", part.layer, part.what)));
                }
                if !needed.is_empty() && rows.start > needed.start {
                    return Err(Error::OutOfRange {
                        field: "snapshot",
                        value: format!("with rows {rows:?} of layer {} ({})", layer.index, layer.design),
                        bound: format!("with rows {needed:?}, which its window needs"),
                        remedy: "restore it into a cache with the same windows",
                    });
                }
            }
            for state in &layer.states {
                let part = parts.next().ok_or_else(|| other("without all states".into()))?;
                let fits = part.layer == layer.index && part.what == describe_state(state);
                if !fits || part.bytes != state.each {
                    return Err(other(format!("of layer {} with {}", part.layer, part.what)));
                }
            }
        }
        if parts.next().is_some() { Err(other("with more layers".into())) } else { Ok(()) }
    }

    /// Copies the parts of a checked snapshot whose stores are picked; returns where ring rows begin.
    pub(super) fn put(
        &self,
        sequence: usize,
        snapshot: &Snapshot,
        pick: impl Fn(&Store) -> bool,
    ) -> Result<BTreeMap<(usize, usize), u64>> {
        let mut firsts = BTreeMap::new();
        let mut copies = Vec::new();
        let mut parts = snapshot.head.parts.iter().zip(&snapshot.buffers);
        for (at, layer) in self.layers.iter().enumerate() {
            for (which, store) in layer.stores.iter().enumerate() {
                let Some((part, from)) = parts.next() else { continue };
                let Some(to) = store.buffer.as_ref().filter(|_| pick(store)) else { continue };
                // a smaller ring takes the last rows
                let start = part.rows.start.max(part.rows.end.saturating_sub(store.slots));
                let rows = start..part.rows.end;
                if store.place == Place::Ring {
                    firsts.insert((at, which), start);
                }
                for (range, held) in places(store, sequence, &rows, &part.rows, self.table(sequence)) {
                    copies.push((from.clone(), held, to.clone(), range.start, range.end - range.start));
                }
            }
            for state in &layer.states {
                let Some((_, from)) = parts.next() else { continue };
                let Some(to) = &state.buffer else { continue };
                copies.push((from.clone(), 0, to.clone(), sequence as u64 * state.each, state.each));
            }
        }
        self.copy(copies.into_iter())?;
        Ok(firsts)
    }
}

impl Snapshot {
    pub(super) fn take(cache: &Cache, sequence: usize, pick: impl Fn(&Store) -> bool) -> Result<Self> {
        let s = cache.sequence(sequence)?;
        let (mut parts, mut buffers, mut copies) = (Vec::new(), Vec::new(), Vec::new());
        for (at, layer) in cache.layers.iter().enumerate() {
            for (which, store) in layer.stores.iter().enumerate() {
                let rows = store.present(s.seen, s.first(at, which));
                let bytes = if pick(store) { store.bytes_of(rows.end - rows.start) } else { 0 };
                let to = cache.gpu.exact_buffer("snapshot", bytes)?;
                if let Some(from) = store.buffer.as_ref().filter(|_| bytes > 0) {
                    for (range, held) in places(store, sequence, &rows, &rows, cache.table(sequence)) {
                        copies.push((from.clone(), range.start, to.clone(), held, range.end - range.start));
                    }
                }
                parts.push(Part { layer: layer.index, what: describe(store), rows, bytes });
                buffers.push(to);
            }
            for state in &layer.states {
                let to = cache.gpu.exact_buffer("snapshot", state.each)?;
                if let Some(from) = &state.buffer {
                    copies.push((from.clone(), sequence as u64 * state.each, to.clone(), 0, state.each));
                }
                let what = describe_state(state);
                parts.push(Part { layer: layer.index, what, rows: 0..0, bytes: state.each });
                buffers.push(to);
            }
        }
        cache.copy(copies.into_iter())?;
        Ok(Self { head: Head { position: s.seen, parts }, buffers })
    }

    /// Tokens that the sequence had seen.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.head.position
    }

    /// Bytes that it takes up on the device.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.head.parts.iter().map(|part| part.bytes).sum()
    }

    /// Reads the snapshot back: a header with version and checksum, then each part.
    ///
    /// # Errors
    /// The device's own words.
    pub fn to_bytes(&self, gpu: &Gpu) -> Result<Vec<u8>> {
        let json = serde_json::to_vec(&self.head).map_err(|e| damaged("header", e.to_string()))?;
        let mut body = Vec::with_capacity(self.bytes() as usize + json.len() + 64);
        body.extend((json.len() as u64).to_le_bytes());
        body.extend(json);
        for (part, buffer) in self.head.parts.iter().zip(&self.buffers) {
            if part.bytes > 0 {
                body.extend(gpu.block_on(gpu.download(buffer, 0, part.bytes as usize))?);
            }
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(checksum(&body).to_le_bytes());
        bytes.extend(body);
        Ok(bytes)
    }

    /// Uploads what [`to_bytes`](Self::to_bytes) wrote.
    ///
    /// # Errors
    /// Bytes of something else, of another version, or damaged; or no memory.
    pub fn from_bytes(gpu: &Gpu, bytes: &[u8]) -> Result<Self> {
        let word = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
        if bytes.get(..8) != Some(MAGIC) {
            return Err(damaged("magic", "this is no snapshot of a cache".into()));
        }
        let version = bytes.get(8..12).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
        if version != VERSION {
            let message = format!("version {version} is not {VERSION}: write it anew with this release");
            return Err(damaged("version", message));
        }
        let body = bytes.get(20..).unwrap_or_default();
        if word(12) != Some(checksum(body)) {
            return Err(damaged("checksum", "the bytes are damaged or cut off: write them anew".into()));
        }
        let cut = || damaged("length", "the bytes are cut off: write them anew".into());
        let length = word(20).and_then(|n| usize::try_from(n).ok()).ok_or_else(cut)?;
        let end = length.checked_add(8).ok_or_else(cut)?;
        let json = body.get(8..end).ok_or_else(cut)?;
        let head: Head = serde_json::from_slice(json).map_err(|e| damaged("header", e.to_string()))?;
        let mut rest = &body[end..];
        let mut buffers = Vec::with_capacity(head.parts.len());
        for part in &head.parts {
            let count = usize::try_from(part.bytes).map_err(|_| cut())?;
            let (now, later) = rest.split_at_checked(count).ok_or_else(cut)?;
            buffers.push(gpu.buffer_with("snapshot", now)?);
            rest = later;
        }
        if !rest.is_empty() {
            return Err(damaged("length", "there are more bytes than parts: write them anew".into()));
        }
        Ok(Self { head, buffers })
    }

    /// Writes [`to_bytes`](Self::to_bytes) to a file.
    ///
    /// # Errors
    /// The device's own words, or the file system's.
    pub fn save(&self, gpu: &Gpu, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        std::fs::write(path, self.to_bytes(gpu)?).map_err(|e| at(path, "file", e.to_string()))
    }

    /// Reads a file that [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// As [`from_bytes`](Self::from_bytes), or a file that cannot be read.
    pub fn load(gpu: &Gpu, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|e| at(path, "file", e.to_string()))?;
        Self::from_bytes(gpu, &bytes).map_err(|error| match error {
            Error::CaseFile { field, message, .. } => at(path, &field, message),
            other => other,
        })
    }
}

fn damaged(field: &str, message: String) -> Error {
    at(Path::new("snapshot"), field, message)
}

fn at(path: &Path, field: &str, message: String) -> Error {
    Error::CaseFile { path: path.display().to_string(), field: field.into(), message }
}

/// FNV-1a, 64 bits: each step is one-to-one, so that no single damaged byte goes unseen.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}
