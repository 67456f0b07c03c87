//! Steps: tokens enter all layers, or none.

use super::format::Format;
use super::pages::Change;
use super::store::{Place, Store, copy_pages};
use super::{Cache, no_layer};
use crate::attention::operand;
use crate::gpu::{Binding, DType, Step, Tensor};
use crate::kernels::cache_append::{Params, Problem};
use crate::model::{Held, RowKind, StateKind};
use crate::{Error, Result};

/// A step that has begun.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) counts: Vec<u64>,
    /// Positions of each sequence's first new token, new tokens, tokens after the step, then page tables.
    pub(super) words: Tensor,
    /// Pages that a sequence's table has room for.
    pub(super) pages_batch: usize,
    change: Option<Change>,
    /// Places of the layers and stores that have been written.
    written: Vec<(usize, usize)>,
    /// Places of layers and states, and the states after the step.
    states: Vec<(usize, usize, Tensor)>,
}

impl Pending {
    /// A sequence's pages after the step.
    pub(super) fn table(&self, sequence: usize) -> Option<&[u32]> {
        self.change.as_ref().map(|change| change.tables[sequence].as_slice())
    }

    pub(super) fn longest(&self) -> u64 {
        self.counts.iter().copied().max().unwrap_or(0)
    }
}

impl Cache {
    /// Begins a step that appends `counts[s]` tokens to sequence `s`; 0 leaves a sequence out.
    ///
    /// Pages are reserved, and shared ones that the step would write into are copied.
    ///
    /// # Errors
    /// A step that is pending, another number of counts than sequences, or tokens beyond the cache's own bound, the
    /// tokens a call that its rings were described with, or the free pages. Nothing has changed then.
    pub fn begin(&mut self, counts: &[usize]) -> Result<()> {
        self.idle()?;
        let counts: Vec<u64> = counts.iter().map(|&n| n as u64).collect();
        self.check_counts(&counts)?;
        let seen: Vec<u64> = self.sequences.iter().map(|s| s.seen).collect();
        let change = self.pages.as_ref().map(|pages| pages.prepare(&seen, &counts)).transpose()?;
        let tables = change.iter().flat_map(|change| &change.tables);
        let pages_batch = tables.map(Vec::len).max().unwrap_or(0);
        let mut words: Vec<u32> = seen.iter().map(|&n| n as u32).collect();
        words.extend(counts.iter().map(|&n| n as u32));
        // sequences that pause see no key
        words.extend(seen.iter().zip(&counts).map(|(&a, &b)| if b == 0 { 0 } else { (a + b) as u32 }));
        for table in change.iter().flat_map(|change| &change.tables) {
            words.extend(table);
            words.resize(words.len() + pages_batch - table.len(), 0);
        }
        let words = Tensor::from_slice(&self.gpu, &words, [words.len()])?;
        if let (Some(pages), Some(change)) = (&mut self.pages, &change) {
            let page = u64::from(pages.page);
            copy_pages(&self.gpu, self.layers.iter().flat_map(|l| &l.stores), &change.copies, page)?;
            pages.reserve(change);
        }
        self.pending =
            Some(Pending { counts, words, pages_batch, change, written: Vec::new(), states: Vec::new() });
        Ok(())
    }

    fn check_counts(&self, counts: &[u64]) -> Result<()> {
        if counts.len() != self.sequences.len() {
            return Err(Error::Shape {
                field: "counts",
                shape: vec![counts.len()],
                expected: format!("[{}]", self.sequences.len()),
                remedy: "give one count for each sequence, 0 for those that pause",
            });
        }
        for (sequence, (s, &count)) in self.sequences.iter().zip(counts).enumerate() {
            if s.seen + count > self.extent.tokens {
                return Err(Error::OutOfRange {
                    field: "counts",
                    value: format!("{count} after {} of sequence {sequence}", s.seen),
                    bound: format!("within the cache's {} tokens a sequence", self.extent.tokens),
                    remedy: "grow the cache, or end the sequence",
                });
            }
            for layer in &self.layers {
                for store in &layer.stores {
                    if let Held::Window { call_tokens, .. } = store.held
                        && count > u64::from(call_tokens)
                        && store.slots < self.extent.tokens
                    {
                        return Err(Error::OutOfRange {
                            field: "counts",
                            value: format!("{count} of sequence {sequence}"),
                            bound: format!(
                                "at most the {call_tokens} tokens a call that the ring of layer {} ({}) has slots for",
                                layer.index, layer.design
                            ),
                            remedy: "append in several steps, or describe the cache with more call_tokens",
                        });
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn pending(&self) -> Result<&Pending> {
        self.pending.as_ref().ok_or(Error::Options {
            field: "begin",
            value: "missing".into(),
            conflict: "must come before rows are written, read or committed",
            remedy: "call begin with the step's counts",
        })
    }

    /// Writes the step's rows of one kind: `[sequences, heads, longest count, width]`, f32, f16 or bf16, stored
    /// (and quantised) as the layer stores them. Compressed rows are those of the blocks that the step completes.
    ///
    /// # Errors
    /// No step, no such layer or kind, another shape, or a storage that no kernel writes.
    pub fn write(&mut self, layer: u32, kind: RowKind, rows: &Tensor) -> Result<()> {
        let (at, steps) = self.launch(layer, kind, rows)?;
        self.gpu.run_steps(&[], &steps)?;
        self.note(at);
        Ok(())
    }

    /// [`write`](Self::write) into the caller's own encoder; submits nothing.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn record_write(
        &mut self,
        encoder: &mut wgpu::CommandEncoder,
        layer: u32,
        kind: RowKind,
        rows: &Tensor,
    ) -> Result<()> {
        let (at, steps) = self.launch(layer, kind, rows)?;
        self.gpu.record(encoder, &[], &steps)?;
        self.note(at);
        Ok(())
    }

    fn note(&mut self, at: (usize, usize)) {
        if let Some(pending) = &mut self.pending
            && !pending.written.contains(&at)
        {
            pending.written.push(at);
        }
    }

    /// Longest run of rows of a store that the step adds to a sequence.
    fn added(&self, store: &Store, pending: &Pending) -> u64 {
        let each = self.sequences.iter().zip(&pending.counts);
        let each = each.map(|(s, &n)| match store.held {
            Held::Blocks { .. } => store.held.rows(s.seen + n) - store.held.rows(s.seen),
            _ => n,
        });
        each.max().unwrap_or(0)
    }

    /// The store's place, and the dispatches that write the step's rows.
    pub(crate) fn launch(
        &self,
        layer: u32,
        kind: RowKind,
        rows: &Tensor,
    ) -> Result<((usize, usize), Vec<Step>)> {
        let pending = self.pending()?;
        let (at, store) = self.store(layer, kind)?;
        let place = self.layers[at].stores.iter().position(|s| s.kind == kind);
        let place = (at, place.ok_or_else(|| no_layer(layer, "one that holds rows of this kind"))?);
        let Format { heads, width, .. } = store.format;
        let longest = self.added(store, pending);
        let expected = [self.sequences.len(), heads as usize, longest as usize, width as usize];
        if rows.shape() != expected {
            return Err(Error::Shape {
                field: "rows",
                shape: rows.shape().to_vec(),
                expected: format!("{expected:?} (sequences, heads, longest count, width)"),
                remedy: "give every sequence the step's longest count of rows",
            });
        }
        let Some(buffer) = store.buffer.as_ref().filter(|_| longest > 0) else {
            return Ok((place, Vec::new()));
        };
        if buffer == rows.buffer() {
            return Err(Error::SharedBuffer { field: "the cache", other: "rows" });
        }
        let source = operand("rows", rows)?;
        let sequences = self.sequences.len() as u32;
        // blocks have starts and counts of their own
        let words = match store.held {
            Held::Blocks { .. } => {
                let first = |s: &super::Sequence, more| store.held.rows(s.seen + more) as u32;
                let starts: Vec<u32> = self.sequences.iter().map(|s| first(s, 0)).collect();
                let ends = self.sequences.iter().zip(&pending.counts).map(|(s, &n)| first(s, n));
                let counts: Vec<u32> = ends.zip(&starts).map(|(end, start)| end - start).collect();
                &Tensor::from_slice(&self.gpu, &[starts, counts].concat(), [2 * sequences as usize])?
            }
            _ => &pending.words,
        };
        let (x, base) = rows.bind(&self.gpu, 0, 1 + last(rows));
        if x.size > self.gpu.limits().binding_bytes {
            return Err(Error::Binding {
                field: "rows",
                needed: x.size,
                limit: "max_storage_buffer_binding_size",
                allowed: self.gpu.limits().binding_bytes,
                split: "tokens, in several steps",
            });
        }
        let strides = rows.strides();
        let params = Params {
            source: [base, strides[0] as u32, strides[1] as u32, strides[2] as u32],
            slots: if matches!(store.place, Place::Paged(_)) { 0 } else { store.slots as u32 },
            place: match store.place {
                Place::Paged(page) => page.ilog2(),
                _ => store.slots as u32,
            },
            starts_at: 0,
            counts_at: sequences,
            pages_at: 3 * sequences,
            pages_batch: pending.pages_batch as u32,
            scales: (store.scales_base() / 4) as u32,
            ..Params::default()
        };
        let whole =
            |buffer: &wgpu::Buffer| Binding { buffer: buffer.clone(), offset: 0, size: buffer.size() };
        let bindings = [x, whole(words.buffer()), whole(buffer)];
        let problem = Problem { source, format: store.format, place: store.place };
        let steps = problem.steps(params, &bindings, [sequences, longest as u32], self.gpu.limits())?;
        Ok((place, steps))
    }

    /// Gives the state of a layer after the step, `[sequences, shape]`, packed and stored as the cache stores it;
    /// [`commit`](Self::commit) copies it for the sequences that take part.
    ///
    /// # Errors
    /// No step, no such layer or state, another shape or storage type.
    pub fn write_state(&mut self, layer: u32, kind: StateKind, state: &Tensor) -> Result<()> {
        self.pending()?;
        let (layer, at) = self.state_at(layer, kind)?;
        let store = &self.layers[layer].states[at];
        let shape = store.shape(self.sequences.len());
        if state.shape() != shape {
            return Err(Error::Shape {
                field: "state",
                shape: state.shape().to_vec(),
                expected: format!("{shape:?}"),
                remedy: "give the state of every sequence",
            });
        }
        if state.dtype() != store.dtype {
            let (dtype, allowed) = (state.dtype().name(), store.dtype.name());
            return Err(Error::DType { field: "state", dtype, allowed });
        }
        if !state.is_packed() {
            return Err(Error::Strides {
                field: "state",
                strides: state.strides().to_vec(),
                bound: "it must be packed",
                remedy: "copy it into a packed tensor",
            });
        }
        if store.buffer.as_ref() == Some(state.buffer()) {
            return Err(Error::SharedBuffer { field: "the cache", other: "state" });
        }
        if let Some(pending) = &mut self.pending {
            pending.states.retain(|&(l, s, _)| (l, s) != (layer, at));
            pending.states.push((layer, at, state.clone()));
        }
        Ok(())
    }

    /// Makes the step part of the cache, in every layer at once.
    ///
    /// # Errors
    /// No step, or a layer whose rows or states were not written: the step stays pending. The device's own words:
    /// the step has been abandoned.
    pub fn commit(&mut self) -> Result<()> {
        let pending = self.pending()?;
        if pending.longest() > 0 {
            self.check_complete(pending)?;
        }
        let copied = self.copy_states(pending);
        let Some(pending) = self.pending.take() else { return Ok(()) };
        if let Err(error) = copied {
            self.pending = Some(pending);
            self.abandon();
            return Err(error);
        }
        for (s, n) in self.sequences.iter_mut().zip(&pending.counts) {
            s.seen += n;
            s.wrote(&self.layers, s.seen);
        }
        if let (Some(pages), Some(change)) = (&mut self.pages, pending.change) {
            pages.commit(change);
        }
        Ok(())
    }

    fn check_complete(&self, pending: &Pending) -> Result<()> {
        let missing = |index: u32, design: &str, remedy| {
            Err(Error::Options {
                field: "commit",
                value: format!("layer {index} ({design})"),
                conflict: "has not been written in this step",
                remedy,
            })
        };
        for (at, layer) in self.layers.iter().enumerate() {
            for (which, store) in layer.stores.iter().enumerate() {
                if self.added(store, pending) > 0 && !pending.written.contains(&(at, which)) {
                    return missing(layer.index, layer.design, "write every kind of row of every layer");
                }
            }
            for which in 0..layer.states.len() {
                if !pending.states.iter().any(|&(l, s, _)| (l, s) == (at, which)) {
                    return missing(layer.index, layer.design, "write_state every state of every layer");
                }
            }
        }
        Ok(())
    }

    fn copy_states(&self, pending: &Pending) -> Result<()> {
        let mut encoder =
            self.gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        self.gpu.scoped("commit", || {
            for (layer, at, state) in &pending.states {
                let store = &self.layers[*layer].states[*at];
                let Some(buffer) = &store.buffer else { continue };
                for (s, _) in pending.counts.iter().enumerate().filter(|&(_, &n)| n > 0) {
                    let at = s as u64 * store.each;
                    let from = state.offset_bytes() + at;
                    encoder.copy_buffer_to_buffer(state.buffer(), from, buffer, at, store.each);
                }
            }
        })?;
        self.gpu.submit(encoder)
    }

    /// Drops the step: every layer is as it was before [`begin`](Self::begin).
    pub fn abandon(&mut self) {
        let Some(pending) = self.pending.take() else { return };
        // what was written lies beyond every sequence's end, but rings have lost the rows under it
        for (s, n) in self.sequences.iter_mut().zip(&pending.counts) {
            s.wrote(&self.layers, s.seen + n);
        }
        if let (Some(pages), Some(change)) = (&mut self.pages, &pending.change) {
            pages.abandon(change);
        }
    }

    /// A view of the step's words.
    pub(super) fn words(pending: &Pending, first: usize, dtype: DType, shape: Vec<usize>) -> Result<Tensor> {
        let buffer = pending.words.buffer();
        let bytes = shape.iter().product::<usize>() as u64 * 4;
        Tensor::from_buffer(buffer, first as u64 * 4, bytes, dtype, shape)
    }
}

/// Offset of a tensor's last element.
fn last(tensor: &Tensor) -> usize {
    tensor.shape().iter().zip(tensor.strides()).map(|(&n, &s)| n.saturating_sub(1) * s).sum()
}
