//! What two public runtimes reserve for the same model, by their published rules.
//!
//! Both reserve more than the architecture needs: llama.cpp keeps a prompt batch beside each window, vLLM pads
//! groups of layers to equal size. Sources: `docs/models.md`.

use std::collections::{BTreeMap, BTreeSet};

use super::ModelPlan;
use super::layers::Design;
use super::memory::Held;
use super::storage::{CacheOptions, Storage};
use crate::{Error, Result};

/// One part of a reservation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedPart {
    /// What the layers do.
    pub design: &'static str,
    /// Layers reserved for, padding included.
    pub layers: u64,
    /// Tokens each of them has room for; 0 for states.
    pub tokens: u64,
    /// Bytes of the part.
    pub bytes: u64,
}

/// What a runtime reserves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// The parts.
    pub parts: Vec<ReservedPart>,
    /// Their sum.
    pub total_bytes: u64,
}

impl Reservation {
    fn of(parts: Vec<ReservedPart>) -> Result<Self> {
        let sum = parts.iter().try_fold(0u64, |sum, part| sum.checked_add(part.bytes));
        Ok(Self { total_bytes: sum.ok_or(OVERFLOW)?, parts })
    }
}

const OVERFLOW: Error = Error::MemoryOverflow { what: "the reservation" };

fn product(factors: [u64; 3]) -> Result<u64> {
    factors.into_iter().try_fold(1u64, u64::checked_mul).ok_or(OVERFLOW)
}

/// llama.cpp's rule: full layers hold the context, window layers the windows and one prompt batch, both
/// rounded up to 256 cells; recurrent states are f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LlamaCpp {
    /// Tokens of a sequence.
    pub tokens: u64,
    /// Sequences.
    pub sequences: u64,
    /// Tokens of a prompt batch (`--ubatch-size`).
    pub ubatch: u64,
    /// Whether window layers hold the whole context (`--swa-full`).
    pub swa_full: bool,
    /// Storage of keys and values.
    pub kv: Storage,
}

impl LlamaCpp {
    /// One sequence, prompt batches of 512, f16.
    #[must_use]
    pub fn new(tokens: u64) -> Self {
        Self { tokens, sequences: 1, ubatch: 512, swa_full: false, kv: Storage::F16 }
    }

    /// What it reserves.
    ///
    /// # Errors
    /// [`Error::NoRuntimeRule`] for designs or storages without a published rule, [`Error::MemoryOverflow`].
    pub fn reserve(&self, plan: &ModelPlan) -> Result<Reservation> {
        if !matches!(self.kv, Storage::F32 | Storage::F16 | Storage::Bf16 | Storage::Q8_0 | Storage::Q4_0) {
            return Err(no_rule("llama.cpp", self.kv.name()));
        }
        let context = self.tokens.checked_mul(self.sequences).ok_or(OVERFLOW)?;
        let cells = |tokens: u64| tokens.checked_next_multiple_of(256).ok_or(OVERFLOW);
        let mut parts = Parts::new();
        for layer in &plan.cache(&CacheOptions::new(self.kv))?.layers {
            if matches!(layer.design, "latent indexed" | "natively sparse" | "lightning") {
                return Err(no_rule("llama.cpp", layer.design));
            }
            for rows in &layer.rows {
                let tokens = match rows.held {
                    Held::Window { window, .. } if !self.swa_full => {
                        let windows = u64::from(window).checked_mul(self.sequences).ok_or(OVERFLOW)?;
                        context.min(windows.checked_add(self.ubatch).ok_or(OVERFLOW)?)
                    }
                    _ => context,
                };
                let tokens = cells(tokens)?;
                // latents: one tensor of keys in one storage, values are a view of it
                let token_bytes = u64::from(rows.heads) * self.kv.row_bytes(rows.width);
                add(&mut parts, (layer.design, tokens), layer.index, product([token_bytes, tokens, 1])?)?;
            }
            for state in layer.allocations(0, self.sequences).skip(layer.rows.len()) {
                add(&mut parts, (layer.design, 0), layer.index, state?.bytes)?;
            }
        }
        let parts = parts.into_iter().map(|((design, tokens), (bytes, layers))| ReservedPart {
            design,
            layers: layers.len() as u64,
            tokens,
            bytes,
        });
        Reservation::of(parts.collect())
    }
}

/// Bytes and layers of each design and token count.
type Parts = BTreeMap<(&'static str, u64), (u64, BTreeSet<u32>)>;

fn add(parts: &mut Parts, key: (&'static str, u64), layer: u32, bytes: u64) -> Result<()> {
    let (sum, layers) = parts.entry(key).or_default();
    *sum = sum.checked_add(bytes).ok_or(OVERFLOW)?;
    layers.insert(layer);
    Ok(())
}

fn no_rule(runtime: &'static str, what: &str) -> Error {
    Error::NoRuntimeRule { runtime, what: what.to_owned() }
}

/// vLLM's rule for models of softmax layers: blocks of 16 tokens; window and chunk layers hold a scheduled
/// batch beside their span, and one block more; layers of one kind form groups of equal size, padded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vllm {
    /// Tokens of a sequence (`max_model_len`).
    pub tokens: u64,
    /// Sequences.
    pub sequences: u64,
    /// Tokens scheduled at once (`max_num_batched_tokens`).
    pub batched_tokens: u64,
    /// Tokens of a block.
    pub block: u64,
    /// Storage of keys and values.
    pub kv: Storage,
}

impl Vllm {
    /// One sequence, 16,384 tokens scheduled at once, blocks of 16, bf16.
    #[must_use]
    pub fn new(tokens: u64) -> Self {
        Self { tokens, sequences: 1, batched_tokens: 16_384, block: 16, kv: Storage::Bf16 }
    }

    /// What it reserves.
    ///
    /// # Errors
    /// [`Error::NoRuntimeRule`] for designs or storages without a published rule, [`Error::MemoryOverflow`].
    pub fn reserve(&self, plan: &ModelPlan) -> Result<Reservation> {
        if !matches!(self.kv, Storage::F32 | Storage::F16 | Storage::Bf16 | Storage::Fp8Tensor) {
            return Err(no_rule("vllm", self.kv.name()));
        }
        // layers of one kind: same design, same span, same bytes a token
        let mut kinds: BTreeMap<(&'static str, u64, u64), u64> = BTreeMap::new();
        let cache = plan.cache(&CacheOptions::new(self.kv))?;
        for (layer, planned) in cache.layers.iter().zip(&plan.layers) {
            let span = match &planned.design {
                Design::Full(_) | Design::Latent(_) => 0,
                Design::Window { window: span, .. } | Design::Chunked { chunk: span, .. } => u64::from(*span),
                Design::CrossShared { .. } | Design::None => continue,
                other => return Err(no_rule("vllm", other.name())),
            };
            let token_bytes = layer.rows.iter().map(super::Rows::token_bytes).sum::<u64>();
            *kinds.entry((layer.design, span, token_bytes)).or_default() += 1;
        }
        let group = group_size(&kinds).unwrap_or(1);
        if kinds.keys().any(|kind| Some(kind.2) != kinds.keys().next().map(|first| first.2)) {
            return Err(no_rule("vllm", "layers of unequal bytes per token"));
        }
        let part = |((design, span, token_bytes), layers): ((&'static str, u64, u64), u64)| {
            let layers = layers.div_ceil(group) * group;
            let blocks = self.blocks(design, span)?;
            let tokens = blocks.checked_mul(self.block).ok_or(OVERFLOW)?;
            let layer_bytes = product([tokens, token_bytes, self.sequences])?;
            Ok(ReservedPart { design, layers, tokens, bytes: product([layers, layer_bytes, 1])? })
        };
        Reservation::of(kinds.into_iter().map(part).collect::<Result<_>>()?)
    }

    fn blocks(&self, design: &str, span: u64) -> Result<u64> {
        let block = self.block.max(1);
        if span == 0 {
            return Ok(self.tokens.div_ceil(block));
        }
        let old = if design == "window" { span - 1 } else { span };
        let tokens = old.checked_add(self.batched_tokens).ok_or(OVERFLOW)?.min(self.tokens);
        // a window may begin within a block
        Ok(tokens.div_ceil(block) + u64::from(design == "window"))
    }
}

/// Layers in a group: the fewest of any kind, or the most if that is less than a quarter above.
fn group_size(kinds: &BTreeMap<(&'static str, u64, u64), u64>) -> Option<u64> {
    let (fewest, most) = (*kinds.values().min()?, *kinds.values().max()?);
    Some(if most.checked_mul(4)? < fewest.checked_mul(5)? { most } else { fewest })
}
