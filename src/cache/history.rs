//! Going back: truncation, checkpoints of states, forks.

use super::pages::Pages;
use super::snapshot::Snapshot;
use super::store::Place;
use super::{Cache, Sequence};
use crate::{Error, Result};

/// The states of a sequence at a position; never written again, so that forks may share it.
#[derive(Debug, Clone)]
pub(super) struct Checkpoint {
    position: u64,
    /// One for each state, layer by layer.
    states: Vec<wgpu::Buffer>,
}

impl Checkpoint {
    pub(super) fn bytes(&self) -> u64 {
        self.states.iter().map(wgpu::Buffer::size).sum()
    }
}

impl Cache {
    /// Keeps the states of a sequence as they are, so that [`truncate`](Self::truncate) can come back to this
    /// position; the oldest of more than [`CacheBuilder::checkpoints`](super::CacheBuilder::checkpoints) is
    /// dropped. Models without recurrent layers need none.
    ///
    /// # Errors
    /// A pending step, no such sequence, checkpoints switched off, or no memory.
    pub fn checkpoint(&mut self, sequence: usize) -> Result<()> {
        self.idle()?;
        let position = self.sequence(sequence)?.seen;
        if self.max_checkpoints == 0 {
            return Err(Error::OutOfRange {
                field: "checkpoints",
                value: "0".into(),
                bound: "at least 1".into(),
                remedy: "build the cache with room for checkpoints",
            });
        }
        let kept = self.states().map(|state| self.gpu.exact_buffer("checkpoint", state.each));
        let states: Vec<_> = kept.collect::<Result<_>>()?;
        self.copy(self.states().zip(&states).filter_map(|(state, kept)| {
            Some((state.buffer.clone()?, sequence as u64 * state.each, kept.clone(), 0, state.each))
        }))?;
        let checkpoints = &mut self.sequences[sequence].checkpoints;
        checkpoints.retain(|c| c.position != position);
        checkpoints.push(Checkpoint { position, states });
        let surplus = checkpoints.len().saturating_sub(self.max_checkpoints);
        checkpoints.drain(..surplus);
        Ok(())
    }

    /// Positions of a sequence's checkpoints, oldest first.
    ///
    /// # Errors
    /// No such sequence.
    pub fn checkpoints(&self, sequence: usize) -> Result<Vec<u64>> {
        Ok(self.sequence(sequence)?.checkpoints.iter().map(|c| c.position).collect())
    }

    /// Drops the tokens of a sequence from position `to` on, in every layer or in none.
    ///
    /// Full layers can always; a ring while it still holds the window of the new end; a recurrent layer at its
    /// checkpoints. 0 always works, and the sequence's own length changes nothing.
    ///
    /// # Errors
    /// A pending step, or a layer that cannot: the message names it and the nearest position at which all can.
    pub fn truncate(&mut self, sequence: usize, to: u64) -> Result<()> {
        self.idle()?;
        self.check_truncate(sequence, to)?;
        if to == self.sequences[sequence].seen {
            return Ok(());
        }
        self.set_states(sequence, to)?;
        let s = &mut self.sequences[sequence];
        s.seen = to;
        s.checkpoints.retain(|c| c.position <= to);
        s.firsts.values_mut().for_each(|first| *first = (*first).min(to));
        if to == 0 {
            *s = Sequence::default();
        }
        if let Some(pages) = &mut self.pages {
            pages.truncate(sequence, to);
        }
        Ok(())
    }

    /// Ends a sequence: its pages are free, and the next step begins it anew at position 0.
    ///
    /// # Errors
    /// A pending step, no such sequence, or the device's own words.
    pub fn reset(&mut self, sequence: usize) -> Result<()> {
        self.truncate(sequence, 0)
    }

    /// Whether [`truncate`](Self::truncate) to `to`, or reuse of the first `to` tokens, would work.
    ///
    /// # Errors
    /// As [`truncate`](Self::truncate).
    pub fn check_truncate(&self, sequence: usize, to: u64) -> Result<()> {
        let s = self.sequence(sequence)?;
        if to > s.seen {
            return Err(Error::OutOfRange {
                field: "to",
                value: to.to_string(),
                bound: format!("at most the {} tokens that sequence {sequence} has seen", s.seen),
                remedy: "truncation only goes back",
            });
        }
        let Some((layer, what)) = self.obstacle(s, to) else { return Ok(()) };
        let nearest = (0..=s.seen)
            .flat_map(|d| [to.checked_add(d), to.checked_sub(d)])
            .flatten()
            .find(|&p| p <= s.seen && self.obstacle(s, p).is_none());
        let layer = &self.layers[layer];
        Err(Error::OutOfRange {
            field: "to",
            value: to.to_string(),
            bound: format!(
                "{}, the nearest position that works, since layer {} ({}) {what}",
                nearest.unwrap_or(s.seen),
                layer.index,
                layer.design,
            ),
            remedy: "go there and feed the tokens in between again",
        })
    }

    /// The first layer that cannot go back to `to`, and why.
    fn obstacle(&self, s: &Sequence, to: u64) -> Option<(usize, &'static str)> {
        if to == s.seen || to == 0 {
            return None;
        }
        let known = s.checkpoints.iter().any(|c| c.position == to);
        self.layers.iter().enumerate().find_map(|(at, layer)| {
            let lost = |(which, store): (usize, &super::Store)| {
                let needed = store.needed(to);
                !needed.is_empty() && store.present(to, s.first(at, which)).start > needed.start
            };
            if layer.stores.iter().enumerate().any(lost) {
                return Some((at, "has overwritten the keys that the window there needs"));
            }
            (!layer.states.is_empty() && !known).then_some((at, "keeps no state of it"))
        })
    }

    /// Puts the states of a sequence to a checkpoint's, or to zero.
    fn set_states(&self, sequence: usize, to: u64) -> Result<()> {
        if to > 0 {
            let checkpoint = self.sequences[sequence].checkpoints.iter().find(|c| c.position == to);
            let Some(checkpoint) = checkpoint else { return Ok(()) };
            return self.copy(self.states().zip(&checkpoint.states).filter_map(|(state, kept)| {
                Some((kept.clone(), 0, state.buffer.clone()?, sequence as u64 * state.each, state.each))
            }));
        }
        let mut encoder =
            self.gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        self.gpu.scoped("reset", || {
            for state in self.states() {
                if let Some(buffer) = &state.buffer {
                    encoder.clear_buffer(buffer, sequence as u64 * state.each, Some(state.each));
                }
            }
        })?;
        self.gpu.submit(encoder)
    }

    fn states(&self) -> impl Iterator<Item = &super::StateStore> {
        self.layers.iter().flat_map(|layer| &layer.states)
    }

    /// Makes sequence `to` start as the first `position` tokens of sequence `from`: pages are shared until one
    /// of the two writes into them, rings and states are copied. What `to` held is gone.
    ///
    /// # Errors
    /// A pending step, no such sequence, a layer that has nothing left of that position (as
    /// [`truncate`](Self::truncate)), or no memory. Nothing has changed then.
    pub fn fork(&mut self, from: usize, to: usize, position: u64) -> Result<()> {
        self.idle()?;
        self.sequence(to)?;
        self.check_truncate(from, position)?;
        if from == to {
            return self.truncate(from, position);
        }
        let unpaged = |store: &super::Store| !matches!(store.place, Place::Paged(_));
        let source = self.sequences[from].clone();
        let copied = Snapshot::take(self, from, unpaged)?;
        self.put(to, &copied, unpaged)?;
        if let Some(pages) = &mut self.pages {
            Pages::share(pages, from, to);
        }
        self.sequences[to] = source;
        self.truncate(to, position)
    }

    /// Copies byte ranges: from, at, to, at, bytes.
    pub(super) fn copy(
        &self,
        ranges: impl Iterator<Item = (wgpu::Buffer, u64, wgpu::Buffer, u64, u64)>,
    ) -> Result<()> {
        let mut encoder =
            self.gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        self.gpu.scoped("cache copy", || {
            for (from, at, to, to_at, bytes) in ranges.filter(|range| range.4 > 0) {
                encoder.copy_buffer_to_buffer(&from, at, &to, to_at, bytes);
            }
        })?;
        self.gpu.submit(encoder)
    }
}
