//! From a description to memory.

use super::pages::Pages;
use super::store::{Extent, StateStore, Store};
use super::{Cache, Layer, Sequence};
use crate::gpu::Gpu;
use crate::mask::MAX_POSITION;
use crate::model::CacheSpec;
use crate::{Error, Result};

/// What a cache is to hold; [`build`](Self::build) allocates it.
#[derive(Debug, Clone)]
pub struct CacheBuilder {
    spec: CacheSpec,
    sequences: usize,
    tokens: u64,
    paged: Option<(u32, u32)>,
    checkpoints: usize,
}

impl CacheBuilder {
    pub(super) fn new(spec: &CacheSpec) -> Self {
        Self { spec: spec.clone(), sequences: 1, tokens: 1024, paged: None, checkpoints: 1 }
    }

    /// Sequences that run side by side, by default 1.
    #[must_use]
    pub fn sequences(mut self, sequences: usize) -> Self {
        self.sequences = sequences;
        self
    }

    /// Most tokens of a sequence, by default 1024.
    #[must_use]
    pub fn tokens(mut self, tokens: u64) -> Self {
        self.tokens = tokens;
        self
    }

    /// Keeps the rows of full layers in `count` pages of `page` tokens (16, 32, 64, 128 or 256) that the
    /// sequences share out among themselves; the same page holds a token's rows in every full layer.
    #[must_use]
    pub fn pages(mut self, page: u32, count: u32) -> Self {
        self.paged = Some((page, count));
        self
    }

    /// Most checkpoints that a sequence keeps, by default 1.
    #[must_use]
    pub fn checkpoints(mut self, checkpoints: usize) -> Self {
        self.checkpoints = checkpoints;
        self
    }

    /// Bytes that [`build`](Self::build) will allocate.
    ///
    /// # Errors
    /// As [`build`](Self::build), the device's own refusals aside.
    pub fn bytes(&self) -> Result<u64> {
        let overflow = Error::MemoryOverflow { what: "the cache" };
        let layers = self.layers()?;
        let rows = layers.iter().flat_map(|layer| &layer.stores).map(Store::bytes);
        let sequences = self.sequences as u64;
        let states = layers.iter().flat_map(|layer| &layer.states);
        let states = states.map(|state| state.each.checked_mul(sequences));
        rows.chain(states).try_fold(0u64, |sum, bytes| sum.checked_add(bytes?)).ok_or(overflow)
    }

    fn extent(&self) -> Result<Extent> {
        let refused =
            |field, value: String, bound: String, remedy| Error::OutOfRange { field, value, bound, remedy };
        if self.sequences == 0 || self.sequences > 1 << 20 {
            let value = self.sequences.to_string();
            return Err(refused("sequences", value, "between 1 and 1048576".into(), "split the batch"));
        }
        if self.tokens == 0 || self.tokens > u64::from(MAX_POSITION) {
            let bound = format!("between 1 and {MAX_POSITION}");
            return Err(refused("tokens", self.tokens.to_string(), bound, "give the longest context"));
        }
        if let Some((_, pages)) = self.paged
            && (pages == 0 || pages > 1 << 24)
        {
            let bound = "between 1 and 16777216".into();
            return Err(refused(
                "pages",
                pages.to_string(),
                bound,
                "give the pages that memory has room for",
            ));
        }
        Ok(Extent { sequences: self.sequences as u64, tokens: self.tokens, paged: self.paged })
    }

    /// Every layer's layout, without memory.
    fn layers(&self) -> Result<Vec<Layer>> {
        let extent = self.extent()?;
        let layer = |layer: &crate::model::LayerCache| {
            Ok(Layer {
                index: layer.index,
                design: layer.design,
                stores: layer
                    .rows
                    .iter()
                    .map(|rows| Store::plan(layer, rows, &extent))
                    .collect::<Result<_>>()?,
                states: layer
                    .states
                    .iter()
                    .map(|state| StateStore::plan(layer, state))
                    .collect::<Result<_>>()?,
                shares_cache_of: layer.shares_cache_of,
            })
        };
        self.spec.layers.iter().map(layer).collect()
    }

    /// Allocates every layer; states begin as zeros.
    ///
    /// # Errors
    /// Sizes outside their bounds, a layer that needs a larger buffer than the device has, or no memory.
    pub fn build(&self, gpu: &Gpu) -> Result<Cache> {
        let extent = self.extent()?;
        let pages = self.paged.map(|(page, count)| Pages::new(page, count, self.sequences)).transpose()?;
        let mut layers = self.layers()?;
        for layer in &mut layers {
            for store in &mut layer.stores {
                store.allocate(gpu, layer.index)?;
            }
            for state in &mut layer.states {
                state.allocate(gpu, layer.index, extent.sequences)?;
            }
        }
        Ok(Cache {
            gpu: gpu.clone(),
            extent,
            max_checkpoints: self.checkpoints,
            layers,
            pages,
            sequences: vec![Sequence::default(); self.sequences],
            pending: None,
        })
    }
}
