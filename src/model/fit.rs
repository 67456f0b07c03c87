//! Whether a cache fits an adapter.

use super::memory::CacheSpec;
use crate::{Error, Result};

/// What an adapter allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterFit {
    /// The adapter's name.
    pub name: String,
    /// Largest buffer it creates.
    pub max_buffer_bytes: u64,
    /// Largest part of a buffer a shader may bind at once.
    pub max_binding_bytes: u64,
    /// Memory it has, if known.
    pub memory_bytes: Option<u64>,
}

/// Whether and how a cache fits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FitVerdict {
    /// Every allocation is one buffer and one binding.
    Fits,
    /// An allocation must be split into this many buffers or bindings.
    FitsSplit {
        /// Parts of the largest allocation.
        parts: u64,
    },
    /// The whole cache is larger than the memory.
    TooLarge {
        /// Bytes over.
        over_bytes: u64,
    },
}

/// How one cache fits one adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    /// The adapter's name.
    pub adapter: String,
    /// Bytes of the whole cache.
    pub total_bytes: u64,
    /// Bytes of the largest allocation: one layer's rows of one kind.
    pub largest_bytes: u64,
    /// The layer that allocation belongs to.
    pub largest_layer: u32,
    /// The verdict.
    pub verdict: FitVerdict,
    /// Most tokens for which the cache stays within the memory, if the memory is known and the cache grows.
    pub max_tokens: Option<u64>,
}

/// Longest context that a fit looks for.
const TOKEN_LIMIT: u64 = 1 << 40;

impl CacheSpec {
    /// How the cache of `batch` sequences of `tokens` tokens fits each adapter.
    ///
    /// # Errors
    /// [`Error::MemoryOverflow`] if a size needs more than 64 bits.
    pub fn fit(&self, adapters: &[AdapterFit], tokens: u64, batch: u64) -> Result<Vec<Fit>> {
        let total_bytes = self.bytes(tokens, batch)?;
        let allocations = self.allocations(tokens, batch)?;
        let largest = allocations.iter().rev().max_by_key(|allocation| allocation.bytes);
        let (largest_bytes, largest_layer) = largest.map_or((0, 0), |a| (a.bytes, a.layer));
        let each = |adapter: &AdapterFit| {
            let bound = adapter.max_buffer_bytes.min(adapter.max_binding_bytes);
            if bound == 0 {
                return Err(Error::OutOfRange {
                    field: "max_binding_bytes",
                    value: "0".into(),
                    bound: "positive".into(),
                    remedy: "ask the adapter for its limits",
                });
            }
            let over = adapter.memory_bytes.and_then(|memory| total_bytes.checked_sub(memory));
            let verdict = match over {
                Some(over_bytes) if over_bytes > 0 => FitVerdict::TooLarge { over_bytes },
                _ if largest_bytes > bound => FitVerdict::FitsSplit { parts: largest_bytes.div_ceil(bound) },
                _ => FitVerdict::Fits,
            };
            let max_tokens = adapter
                .memory_bytes
                .and_then(|memory| self.max_tokens(memory, batch, TOKEN_LIMIT))
                .filter(|tokens| *tokens < TOKEN_LIMIT);
            Ok(Fit {
                adapter: adapter.name.clone(),
                total_bytes,
                largest_bytes,
                largest_layer,
                verdict,
                max_tokens,
            })
        };
        adapters.iter().map(each).collect()
    }
}
