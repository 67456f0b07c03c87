//! What a plan's cache holds, to the byte, before anything is allocated.
//!
//! A layer's cache is *rows* (vectors held for tokens: how many tokens is the design's affair) and *states*
//! (tensors of fixed size). A [`CacheSpec`] lists them; its sums are exact and checked in 64 bits.

use super::layers::{Design, LayerPlan};
use super::storage::{CacheOptions, Storage};
use crate::{Error, Result};

/// How many tokens a kind of row is held for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Held {
    /// All of them.
    All,
    /// The last `window - 1 + call_tokens`: a ring.
    Window {
        /// Keys visible to a query.
        window: u32,
        /// Most tokens one call appends.
        call_tokens: u32,
    },
    /// One row a complete block: block i covers tokens `i * stride .. i * stride + block`.
    Blocks {
        /// Tokens a row stands for.
        block: u32,
        /// Tokens between two rows.
        stride: u32,
    },
}

impl Held {
    /// Rows held once `tokens` tokens have been seen.
    #[must_use]
    pub fn rows(self, tokens: u64) -> u64 {
        match self {
            Self::All => tokens,
            Self::Window { window, call_tokens } => {
                tokens.min(u64::from(window.max(1)) - 1 + u64::from(call_tokens))
            }
            Self::Blocks { block, stride } => match tokens.checked_sub(u64::from(block)) {
                Some(past) => past / u64::from(stride.max(1)) + 1,
                None => 0,
            },
        }
    }
}

/// What a row holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RowKind {
    /// Keys, normalised and rotated as the layer sees them.
    Key,
    /// Values.
    Value,
    /// The normalised latent.
    Latent,
    /// The shared rotated key part of a latent layer.
    RopeKey,
    /// The indexer's keys.
    IndexKey,
    /// Compressed keys.
    CompressedKey,
    /// Compressed values.
    CompressedValue,
}

/// Rows of one kind in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// What they hold.
    pub kind: RowKind,
    /// Rows a token (or a block) has.
    pub heads: u32,
    /// Values a row has.
    pub width: u32,
    /// How values are stored.
    pub storage: Storage,
    /// For how many tokens.
    pub held: Held,
}

impl Rows {
    /// Bytes of one token's (or one block's) rows.
    #[must_use]
    pub fn token_bytes(&self) -> u64 {
        // both factors are under 2^35 by the bounds on sizes
        u64::from(self.heads) * self.storage.row_bytes(self.width)
    }
}

/// What a state holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StateKind {
    /// The recurrence.
    Recurrent,
    /// The last inputs of the short convolution.
    Conv,
}

/// A tensor of fixed size in one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// What it holds.
    pub kind: StateKind,
    /// Extents for one sequence, outermost first: heads, key width, value width; or channels, taps - 1, 1.
    pub shape: [u32; 3],
    /// How values are stored.
    pub storage: Storage,
}

impl State {
    fn bytes(&self) -> Result<u64> {
        let [a, b, c] = self.shape.map(u128::from);
        small(a * b * c * u128::from(self.storage.row_bytes(1)))
    }
}

/// The cache of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerCache {
    /// The layer's place in the model.
    pub index: u32,
    /// The design's name.
    pub design: &'static str,
    /// What grows with the tokens, if only up to a window.
    pub rows: Vec<Rows>,
    /// What does not.
    pub states: Vec<State>,
    /// The layer whose cache this one reads instead of having its own.
    pub shares_cache_of: Option<u32>,
}

/// One allocation: a layer's rows of one kind, or one state, for a whole batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// The layer's place in the model.
    pub layer: u32,
    /// Its size.
    pub bytes: u64,
}

/// What a whole cache holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSpec {
    /// One entry a layer, in order; prediction layers last, if asked for.
    pub layers: Vec<LayerCache>,
}

fn small(bytes: u128) -> Result<u64> {
    u64::try_from(bytes).map_err(|_| Error::MemoryOverflow { what: "the cache" })
}

impl LayerCache {
    pub(super) fn new(layer: &LayerPlan, options: &CacheOptions) -> Self {
        let mut cache = Self {
            index: layer.index,
            design: layer.design.name(),
            rows: Vec::new(),
            states: Vec::new(),
            shares_cache_of: None,
        };
        cache.fill(&layer.design, options);
        cache
    }

    fn fill(&mut self, design: &Design, options: &CacheOptions) {
        let kv = options.kv;
        let call_tokens = options.call_tokens.max(1);
        match design {
            Design::Full(a) => self.keys_and_values(a.heads_kv, a.dim_k, a.dim_v, kv, Held::All),
            Design::Window { attention: a, window: span } | Design::Chunked { attention: a, chunk: span } => {
                let held = Held::Window { window: *span, call_tokens };
                self.keys_and_values(a.heads_kv, a.dim_k, a.dim_v, kv, held);
            }
            Design::Latent(l) => self.latent(l.kv_rank, l.dim_rope, kv),
            Design::LatentIndexed { latent, indexer, shares_indices_of } => {
                self.latent(latent.kv_rank, latent.dim_rope, kv);
                if shares_indices_of.is_none() {
                    let storage =
                        options.index.unwrap_or(if kv == Storage::Fp8Tensor { Storage::Fp8 } else { kv });
                    self.push(RowKind::IndexKey, 1, indexer.dim, storage, Held::All);
                }
            }
            Design::Nsa { attention: a, blocks } => {
                self.keys_and_values(a.heads_kv, a.dim_k, a.dim_v, kv, Held::All);
                let held = Held::Blocks { block: blocks.block, stride: blocks.stride };
                self.push(RowKind::CompressedKey, a.heads_kv, a.dim_k, kv, held);
                self.push(RowKind::CompressedValue, a.heads_kv, a.dim_v, kv, held);
            }
            Design::GatedDelta(d) | Design::KimiDelta(d) => {
                let channels =
                    u64::from(d.heads_k) * u64::from(d.dim_k) * 2 + u64::from(d.heads_v) * u64::from(d.dim_v);
                self.recurrent([d.heads_v, d.dim_k, d.dim_v], options);
                self.conv(channels, d.conv, options);
            }
            Design::Lightning(l) => self.recurrent([l.heads, l.dim, l.dim], options),
            Design::SelectiveScan(s) => {
                self.recurrent([s.channels, s.state, 1], options);
                self.conv(u64::from(s.channels), s.conv, options);
            }
            Design::Ssd(s) | Design::FullAndSsd { ssd: s, .. } => {
                if let Design::FullAndSsd { attention: a, .. } = design {
                    self.keys_and_values(a.heads_kv, a.dim_k, a.dim_v, kv, Held::All);
                }
                let inner = u64::from(s.heads) * u64::from(s.dim);
                self.recurrent([s.heads, s.dim, s.state], options);
                self.conv(inner + 2 * u64::from(s.groups) * u64::from(s.state), s.conv, options);
            }
            Design::ShortConv { channels, conv } => self.conv(u64::from(*channels), *conv, options),
            Design::CrossShared { of, .. } => self.shares_cache_of = Some(*of),
            Design::None => {}
        }
    }

    fn push(&mut self, kind: RowKind, heads: u32, width: u32, storage: Storage, held: Held) {
        self.rows.push(Rows { kind, heads, width, storage, held });
    }

    fn keys_and_values(&mut self, heads: u32, dim_k: u32, dim_v: u32, storage: Storage, held: Held) {
        self.push(RowKind::Key, heads, dim_k, storage, held);
        self.push(RowKind::Value, heads, dim_v, storage, held);
    }

    fn latent(&mut self, rank: u32, dim_rope: u32, kv: Storage) {
        self.push(RowKind::Latent, 1, rank, kv.latent(), Held::All);
        self.push(RowKind::RopeKey, 1, dim_rope, kv.rope_key(), Held::All);
    }

    fn recurrent(&mut self, shape: [u32; 3], options: &CacheOptions) {
        self.states.push(State { kind: StateKind::Recurrent, shape, storage: options.state });
    }

    /// The last `taps - 1` inputs of each channel.
    fn conv(&mut self, channels: u64, taps: u32, options: &CacheOptions) {
        // the families bound the channel count when they read it
        let channels = u32::try_from(channels).unwrap_or(u32::MAX);
        let shape = [channels, taps.saturating_sub(1), 1];
        self.states.push(State { kind: StateKind::Conv, shape, storage: options.conv });
    }

    /// Bytes of this layer's cache once each of `batch` sequences has seen `tokens` tokens.
    ///
    /// # Errors
    /// [`Error::MemoryOverflow`] if the number needs more than 64 bits.
    pub fn bytes(&self, tokens: u64, batch: u64) -> Result<u64> {
        let mut sum = 0u64;
        for part in self.allocations(tokens, batch) {
            sum = sum.checked_add(part?.bytes).ok_or(Error::MemoryOverflow { what: "the cache" })?;
        }
        Ok(sum)
    }

    /// The layer's allocations, one for each kind of row and each state.
    pub fn allocations(&self, tokens: u64, batch: u64) -> impl Iterator<Item = Result<Allocation>> + '_ {
        let batched = move |bytes: u128| {
            // what saturates here is over 64 bits and refused below
            let bytes = bytes.saturating_mul(u128::from(batch));
            Ok(Allocation { layer: self.index, bytes: small(bytes)? })
        };
        let rows = self
            .rows
            .iter()
            .map(move |rows| batched(u128::from(rows.held.rows(tokens)) * u128::from(rows.token_bytes())));
        let states = self.states.iter().map(move |state| batched(u128::from(state.bytes()?)));
        rows.chain(states)
    }
}

impl CacheSpec {
    pub(super) fn new<'a>(
        layers: impl Iterator<Item = &'a LayerPlan>,
        options: &CacheOptions,
    ) -> Result<Self> {
        for (field, storage) in [("state", options.state), ("conv", options.conv)] {
            if !storage.is_float() {
                return Err(Error::OutOfRange {
                    field,
                    value: storage.name().to_owned(),
                    bound: "f32, f16 or bf16".to_owned(),
                    remedy: "recurrent states lose what a block format rounds away: store them as floats",
                });
            }
        }
        Ok(Self { layers: layers.map(|layer| LayerCache::new(layer, options)).collect() })
    }

    /// Bytes of the whole cache once each of `batch` sequences has seen `tokens` tokens.
    ///
    /// # Errors
    /// [`Error::MemoryOverflow`] if the number needs more than 64 bits.
    pub fn bytes(&self, tokens: u64, batch: u64) -> Result<u64> {
        self.layers.iter().try_fold(0u64, |sum, layer| {
            sum.checked_add(layer.bytes(tokens, batch)?).ok_or(Error::MemoryOverflow { what: "the cache" })
        })
    }

    /// Bytes that one sequence needs whatever its length: recurrent states and convolution tails.
    ///
    /// # Errors
    /// [`Error::MemoryOverflow`] if the number needs more than 64 bits.
    pub fn fixed_bytes(&self) -> Result<u64> {
        self.bytes(0, 1)
    }

    /// Bytes one more token costs a sequence that has seen `tokens`.
    ///
    /// # Errors
    /// [`Error::MemoryOverflow`] if the number needs more than 64 bits.
    pub fn bytes_per_token_at(&self, tokens: u64) -> Result<u64> {
        let next = tokens.checked_add(1).ok_or(Error::MemoryOverflow { what: "the token count" })?;
        Ok(self.bytes(next, 1)? - self.bytes(tokens, 1)?)
    }

    /// Bytes one more token costs for ever: rows that every token adds, with block rows shared out and rounded up.
    #[must_use]
    pub fn bytes_per_token(&self) -> u64 {
        let rows = self.layers.iter().flat_map(|layer| &layer.rows);
        rows.map(|rows| match rows.held {
            Held::All => rows.token_bytes(),
            Held::Blocks { stride, .. } => rows.token_bytes().div_ceil(u64::from(stride.max(1))),
            Held::Window { .. } => 0,
        })
        .fold(0, u64::saturating_add)
    }

    /// Most tokens for which `batch` sequences stay within `budget` bytes; `None` if not even the states do.
    ///
    /// Exact: it searches [`CacheSpec::bytes`], and does not divide by the cost of one token. A cache that stops
    /// growing is given `limit`.
    #[must_use]
    pub fn max_tokens(&self, budget: u64, batch: u64, limit: u64) -> Option<u64> {
        let fits = |tokens: u64| self.bytes(tokens, batch).is_ok_and(|bytes| bytes <= budget);
        if !fits(0) {
            return None;
        }
        let (mut low, mut high) = (0, limit);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) { low = middle } else { high = middle - 1 }
        }
        Some(low)
    }

    /// Every allocation of the cache, layer by layer.
    ///
    /// # Errors
    /// [`Error::MemoryOverflow`] if a size needs more than 64 bits.
    pub fn allocations(&self, tokens: u64, batch: u64) -> Result<Vec<Allocation>> {
        self.layers.iter().flat_map(|layer| layer.allocations(tokens, batch)).collect()
    }
}
