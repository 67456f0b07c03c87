//! The cache of a whole model: keys and values, rings, latents, compressed rows, recurrent states.

mod builder;
mod format;
mod history;
mod kv;
mod pages;
mod prefill;
mod snapshot;
mod step;
mod store;

pub use builder::CacheBuilder;
pub use prefill::{Prefill, Prefilled};
pub use snapshot::Snapshot;

pub(crate) use format::Format;
pub(crate) use store::Place;

use std::collections::BTreeMap;

use crate::gpu::{Gpu, Tensor};
use crate::model::{CacheSpec, RowKind, StateKind};
use crate::{Error, Result};
use history::Checkpoint;
use pages::Pages;
use step::Pending;
use store::{Extent, StateStore, Store};

/// Memory of one layer.
#[derive(Debug, Clone)]
struct Layer {
    index: u32,
    design: &'static str,
    stores: Vec<Store>,
    states: Vec<StateStore>,
    shares_cache_of: Option<u32>,
}

/// Where one sequence stands.
#[derive(Debug, Clone, Default)]
struct Sequence {
    /// Tokens seen.
    seen: u64,
    /// First position that each ring holds, by layer and store; 0 where there is no entry.
    firsts: BTreeMap<(usize, usize), u64>,
    /// States kept to go back to, oldest first.
    checkpoints: Vec<Checkpoint>,
}

/// The cache of a model for some sequences, made from its [`CacheSpec`].
///
/// Rows of full layers lie at their position, in pages if [`CacheBuilder::pages`] says so; window and chunked
/// layers are rings; states have their fixed size. Attention reads all of them as they lie ([`Cache::kv`]).
///
/// Tokens enter in steps: [`begin`](Self::begin) says how many for each sequence and refuses what does not
/// fit; each layer writes its rows with [`write`](Self::write) and its states with
/// [`write_state`](Self::write_state), and attends; [`commit`](Self::commit) makes it so in all layers,
/// [`abandon`](Self::abandon) leaves all of them as they were.
///
/// ```no_run
/// use wgpu_attention::model::{CacheOptions, ModelPlan, RowKind, Storage};
/// use wgpu_attention::{Attention, Cache, Gpu, Tensor};
///
/// let gpu = Gpu::new()?;
/// let plan = ModelPlan::from_config(r#"{"model_type": "mistral", "sliding_window": null}"#)?;
/// let spec = plan.cache(&CacheOptions::new(Storage::F16))?;
/// let mut cache = Cache::builder(&spec).tokens(4096).build(&gpu)?;
/// assert_eq!(cache.bytes(), spec.bytes(4096, 1)?);
///
/// cache.begin(&[16])?;
/// for layer in 0..32 {
///     let q = Tensor::from_slice(&gpu, &vec![0.5_f32; 32 * 16 * 128], [1, 32, 16, 128])?;
///     let k = Tensor::from_slice(&gpu, &vec![0.5_f32; 8 * 16 * 128], [1, 8, 16, 128])?;
///     cache.write(layer, RowKind::Key, &k)?;
///     cache.write(layer, RowKind::Value, &k)?;
///     let out = Attention::causal().run_cached(&gpu, &q, &cache.kv(layer)?)?;
/// }
/// cache.commit()?;
/// # Ok::<(), wgpu_attention::Error>(())
/// ```
#[derive(Debug)]
pub struct Cache {
    gpu: Gpu,
    extent: Extent,
    max_checkpoints: usize,
    layers: Vec<Layer>,
    pages: Option<Pages>,
    sequences: Vec<Sequence>,
    pending: Option<Pending>,
}

impl Cache {
    /// Describes a cache for `spec`.
    #[must_use]
    pub fn builder(spec: &CacheSpec) -> CacheBuilder {
        CacheBuilder::new(spec)
    }

    /// Bytes that the cache has allocated, checkpoints not counted: exactly what
    /// [`CacheBuilder::bytes`] said before, and without pages what [`CacheSpec::bytes`] says for its tokens and sequences.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.layers.iter().map(Layer::bytes).sum()
    }

    /// Bytes that one layer has allocated.
    ///
    /// # Errors
    /// No such layer.
    pub fn layer_bytes(&self, layer: u32) -> Result<u64> {
        Ok(self.layers[self.layer(layer)?].bytes())
    }

    /// Bytes of kept checkpoints.
    #[must_use]
    pub fn checkpoint_bytes(&self) -> u64 {
        self.sequences.iter().flat_map(|s| &s.checkpoints).map(Checkpoint::bytes).sum()
    }

    /// Sequences that the cache has room for.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Most tokens of a sequence.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.extent.tokens
    }

    /// Tokens that a sequence has seen, a pending step not counted: the position of its next token.
    ///
    /// # Errors
    /// No such sequence.
    pub fn seen(&self, sequence: usize) -> Result<u64> {
        self.sequence(sequence).map(|s| s.seen)
    }

    /// Free pages, if the cache is paged.
    #[must_use]
    pub fn free_pages(&self) -> Option<usize> {
        self.pages.as_ref().map(Pages::free)
    }

    /// Pages that more than one sequence holds, if the cache is paged.
    #[must_use]
    pub fn shared_pages(&self) -> Option<usize> {
        self.pages.as_ref().map(Pages::shared)
    }

    /// Rows of one kind as they lie, `[sequences, heads, slots, width]`: slots are positions, positions modulo
    /// the slots in a ring, or those of the pool (with one sequence) where the layer is paged.
    ///
    /// # Errors
    /// No such layer or kind, nothing to hold, or a storage that is no plain number.
    pub fn rows(&self, layer: u32, kind: RowKind) -> Result<Tensor> {
        let (_, store) = self.store(layer, kind)?;
        store.tensor().unwrap_or_else(|| {
            Err(Error::DType {
                field: "rows",
                dtype: store.format.storage.name(),
                allowed: "f32, f16 or bf16",
            })
        })
    }

    /// A state as it lies, `[sequences, shape]`: the one before a pending step.
    ///
    /// # Errors
    /// No such layer or state.
    pub fn state(&self, layer: u32, kind: StateKind) -> Result<Tensor> {
        let (layer, at) = self.state_at(layer, kind)?;
        let store = &self.layers[layer].states[at];
        let buffer = store.buffer.as_ref().ok_or_else(|| no_layer(layer as u32, "a state of some size"))?;
        Tensor::from_buffer(buffer, 0, buffer.size(), store.dtype, store.shape(self.sequences.len()))
    }

    /// The place in `layers` of the layer whose cache this one uses.
    fn layer(&self, index: u32) -> Result<usize> {
        let found = |index| self.layers.iter().position(|layer| layer.index == index);
        let at = found(index).ok_or_else(|| no_layer(index, "a layer of this cache"))?;
        match self.layers[at].shares_cache_of {
            Some(of) => found(of).ok_or_else(|| no_layer(of, "a layer of this cache")),
            None => Ok(at),
        }
    }

    fn store(&self, layer: u32, kind: RowKind) -> Result<(usize, &Store)> {
        let at = self.layer(layer)?;
        let store = self.layers[at].stores.iter().find(|store| store.kind == kind);
        Ok((at, store.ok_or_else(|| no_layer(layer, "one that holds rows of this kind"))?))
    }

    fn state_at(&self, layer: u32, kind: StateKind) -> Result<(usize, usize)> {
        let at = self.layer(layer)?;
        let state = self.layers[at].states.iter().position(|state| state.state.kind == kind);
        Ok((at, state.ok_or_else(|| no_layer(layer, "one that holds a state of this kind"))?))
    }

    fn sequence(&self, sequence: usize) -> Result<&Sequence> {
        self.sequences.get(sequence).ok_or_else(|| Error::OutOfRange {
            field: "sequence",
            value: sequence.to_string(),
            bound: format!("below {}", self.sequences.len()),
            remedy: "build the cache with more sequences",
        })
    }

    /// Refuses while a step is pending.
    fn idle(&self) -> Result<()> {
        match &self.pending {
            None => Ok(()),
            Some(pending) => Err(Error::Options {
                field: "begin",
                value: format!("{:?}", pending.counts),
                conflict: "has begun a step that is neither committed nor abandoned",
                remedy: "end it first",
            }),
        }
    }

    fn table(&self, sequence: usize) -> &[u32] {
        self.pages.as_ref().map_or(&[], |pages| &pages.tables[sequence])
    }
}

impl Sequence {
    fn first(&self, layer: usize, store: usize) -> u64 {
        self.firsts.get(&(layer, store)).copied().unwrap_or(0)
    }

    /// Rings have lost what the writing of positions up to `end` took the place of.
    fn wrote(&mut self, layers: &[Layer], end: u64) {
        for (at, layer) in layers.iter().enumerate() {
            for (which, store) in layer.stores.iter().enumerate() {
                if store.place == Place::Ring {
                    let first = self.firsts.entry((at, which)).or_insert(0);
                    *first = end.saturating_sub(store.slots).max(*first);
                }
            }
        }
    }
}

impl Layer {
    fn bytes(&self) -> u64 {
        let rows = self.stores.iter().filter_map(|store| store.buffer.as_ref());
        rows.chain(self.states.iter().filter_map(|state| state.buffer.as_ref())).map(wgpu::Buffer::size).sum()
    }
}

fn no_layer(layer: u32, bound: &'static str) -> Error {
    Error::OutOfRange {
        field: "layer",
        value: layer.to_string(),
        bound: bound.into(),
        remedy: "look at the layers of the cache's description",
    }
}
