//! What each layer of a model does: its design, head counts, widths, scale and positions.

use super::rope::Rope;

/// Learned-temperature factor of the queries: `1 + scale * ln(floor((p + offset) / floor) + 1)` at position `p`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature {
    /// Factor of the logarithm.
    pub scale: f64,
    /// Positions a step takes.
    pub floor: u32,
    /// Added to the position before dividing: 1 for Llama 4, 0 for Ministral 3 and Mistral 4.
    pub offset: u32,
}

impl Temperature {
    /// Factor of a query at `position`, counted from 0.
    #[must_use]
    pub fn factor(&self, position: i64) -> f64 {
        let steps = (position + i64::from(self.offset)).div_euclid(i64::from(self.floor.max(1)));
        1.0 + self.scale * (steps.max(0) as f64 + 1.0).ln()
    }
}

/// Softmax attention of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads_q: u32,
    /// Key and value heads; query head h reads head `h * heads_kv / heads_q`.
    pub heads_kv: u32,
    /// Width of a query and a key.
    pub dim_k: u32,
    /// Width of a value.
    pub dim_v: u32,
    /// Factor of the scores.
    pub scale: f64,
    /// Soft cap of the scaled scores.
    pub softcap: Option<f64>,
    /// Whether the layer has one learned sink logit a query head.
    pub sinks: bool,
    /// Rotation of queries and keys; `None` for layers without positions.
    pub rope: Option<Rope>,
    /// Position-dependent factor of the queries.
    pub temperature: Option<Temperature>,
}

/// Multi-head latent attention of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Latent {
    /// Query heads.
    pub heads_q: u32,
    /// Rank of the query's low-rank projection; `None` for a direct one.
    pub q_rank: Option<u32>,
    /// Rank of the cached latent.
    pub kv_rank: u32,
    /// Width of a head's part without position.
    pub dim_nope: u32,
    /// Width of the shared part with position.
    pub dim_rope: u32,
    /// Width of a value.
    pub dim_v: u32,
    /// Factor of the scores, with the correction that a stretched context asks for.
    pub scale: f64,
    /// Rotation of the shared part; `None` where it is not rotated.
    pub rope: Option<Rope>,
    /// Position-dependent factor of the queries.
    pub temperature: Option<Temperature>,
}

/// The indexer that picks the keys of a sparse latent layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Indexer {
    /// Indexer query heads.
    pub heads: u32,
    /// Width of an indexer query and of the one indexer key.
    pub dim: u32,
    /// Keys picked for a query.
    pub topk: u32,
    /// Rotation of the first dimensions of indexer queries and keys.
    pub rope: Rope,
}

/// Blocks of a natively sparse layer (compressed, selected and window branch).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SparseBlocks {
    /// Tokens a compressed entry stands for.
    pub block: u32,
    /// Tokens between two compressed entries.
    pub stride: u32,
    /// Blocks selected for a query.
    pub selected: u32,
    /// Window of the third branch.
    pub window: u32,
}

/// A recurrent layer that writes by the delta rule (gated delta net, Kimi delta attention).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delta {
    /// Query and key heads.
    pub heads_k: u32,
    /// Value heads; value head j reads key head `j * heads_k / heads_v`.
    pub heads_v: u32,
    /// Width of a key.
    pub dim_k: u32,
    /// Width of a value.
    pub dim_v: u32,
    /// Taps of the short convolution over queries, keys and values.
    pub conv: u32,
}

/// Linear attention with one constant decay a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lightning {
    /// Heads.
    pub heads: u32,
    /// Width of a head.
    pub dim: u32,
    /// Layers of the whole model: the decay depends on the layer's place among them.
    pub n_layers: u32,
}

/// Mamba-1's selective scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SelectiveScan {
    /// Channels.
    pub channels: u32,
    /// State values a channel.
    pub state: u32,
    /// Taps of the short convolution.
    pub conv: u32,
    /// Rank of the step size's projection.
    pub dt_rank: u32,
}

/// Mamba-2's state-space dual.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ssd {
    /// Heads.
    pub heads: u32,
    /// Width of a head.
    pub dim: u32,
    /// State values a channel.
    pub state: u32,
    /// Groups that share the input and output maps.
    pub groups: u32,
    /// Taps of the short convolution.
    pub conv: u32,
}

/// What a layer does with its tokens.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Design {
    /// Sees every earlier token.
    Full(Attention),
    /// Sees the last `window` tokens, its own included.
    Window {
        /// The layer's attention.
        attention: Attention,
        /// Keys visible to a query.
        window: u32,
    },
    /// Sees the tokens of its own chunk, counted from position 0.
    Chunked {
        /// The layer's attention.
        attention: Attention,
        /// Tokens of a chunk.
        chunk: u32,
    },
    /// Caches one latent for all heads.
    Latent(Latent),
    /// Latent attention over the keys that an indexer picks.
    LatentIndexed {
        /// The layer's attention.
        latent: Latent,
        /// The indexer.
        indexer: Indexer,
        /// The earlier layer whose picks this one takes; such a layer keeps no indexer keys.
        shares_indices_of: Option<u32>,
    },
    /// Natively sparse attention with compressed, selected and window branches.
    Nsa {
        /// The layer's attention.
        attention: Attention,
        /// Its blocks.
        blocks: SparseBlocks,
    },
    /// Gated delta net.
    GatedDelta(Delta),
    /// Kimi delta attention.
    KimiDelta(Delta),
    /// Lightning attention.
    Lightning(Lightning),
    /// Mamba-1.
    SelectiveScan(SelectiveScan),
    /// Mamba-2.
    Ssd(Ssd),
    /// Full attention and Mamba-2 side by side on the same input.
    FullAndSsd {
        /// The attention half.
        attention: Attention,
        /// The state-space half.
        ssd: Ssd,
    },
    /// A short causal convolution.
    ShortConv {
        /// Channels.
        channels: u32,
        /// Taps.
        conv: u32,
    },
    /// Reads the keys and values of an earlier layer.
    CrossShared {
        /// The layer that owns them.
        of: u32,
        /// The layer's attention.
        attention: Attention,
        /// Keys visible to a query, if limited.
        window: Option<u32>,
    },
    /// No attention and no state.
    None,
}

impl Design {
    /// The design's name in tables and JSON.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Full(_) => "full",
            Self::Window { .. } => "window",
            Self::Chunked { .. } => "chunked",
            Self::Latent(_) => "latent",
            Self::LatentIndexed { .. } => "latent indexed",
            Self::Nsa { .. } => "natively sparse",
            Self::GatedDelta(_) => "gated delta",
            Self::KimiDelta(_) => "kimi delta",
            Self::Lightning(_) => "lightning",
            Self::SelectiveScan(_) => "selective scan",
            Self::Ssd(_) => "state space dual",
            Self::FullAndSsd { .. } => "full + state space dual",
            Self::ShortConv { .. } => "short convolution",
            Self::CrossShared { .. } => "shared",
            Self::None => "none",
        }
    }

    /// The softmax attention of the layer, if it has one over heads.
    #[must_use]
    pub fn attention(&self) -> Option<&Attention> {
        match self {
            Self::Full(attention)
            | Self::Window { attention, .. }
            | Self::Chunked { attention, .. }
            | Self::Nsa { attention, .. }
            | Self::FullAndSsd { attention, .. }
            | Self::CrossShared { attention, .. } => Some(attention),
            _ => None,
        }
    }

    /// The latent attention of the layer, if it has one.
    #[must_use]
    pub fn latent(&self) -> Option<&Latent> {
        match self {
            Self::Latent(latent) | Self::LatentIndexed { latent, .. } => Some(latent),
            _ => None,
        }
    }

    /// The layer's rotation.
    #[must_use]
    pub fn rope(&self) -> Option<&Rope> {
        self.attention()
            .and_then(|a| a.rope.as_ref())
            .or_else(|| self.latent().and_then(|latent| latent.rope.as_ref()))
    }

    /// Name and sizes in one line, the same for layers that do the same.
    #[must_use]
    pub fn describe(&self) -> String {
        let heads = |a: &Attention| format!("{}/{} heads x {}", a.heads_q, a.heads_kv, a.dim_k);
        let name = self.name();
        match self {
            Self::Full(a) => format!("{name}, {}", heads(a)),
            Self::Window { attention, window } => format!("{name} {window}, {}", heads(attention)),
            Self::Chunked { attention, chunk } => format!("{name} {chunk}, {}", heads(attention)),
            Self::Latent(l) => format!("{name} {} + {}, {} heads", l.kv_rank, l.dim_rope, l.heads_q),
            Self::LatentIndexed { latent: l, indexer, shares_indices_of } => {
                let picks = if shares_indices_of.is_some() { "shared top" } else { "top" };
                format!(
                    "{name} {} + {}, {} heads, {picks} {}",
                    l.kv_rank, l.dim_rope, l.heads_q, indexer.topk
                )
            }
            Self::Nsa { attention, blocks } => format!(
                "{name} {} x {} + window {}, {}",
                blocks.selected,
                blocks.block,
                blocks.window,
                heads(attention)
            ),
            Self::GatedDelta(d) | Self::KimiDelta(d) => {
                format!("{name}, {}/{} heads, state {} x {}", d.heads_k, d.heads_v, d.dim_k, d.dim_v)
            }
            Self::Lightning(l) => format!("{name}, {} heads, state {} x {}", l.heads, l.dim, l.dim),
            Self::SelectiveScan(s) => format!("{name}, {} channels x {}", s.channels, s.state),
            Self::Ssd(s) => format!("{name}, {} heads, state {} x {}", s.heads, s.dim, s.state),
            Self::FullAndSsd { attention, ssd } => {
                format!("{name}, {}, state {} x {} x {}", heads(attention), ssd.heads, ssd.dim, ssd.state)
            }
            Self::ShortConv { channels, conv } => format!("{name}, {channels} channels, {conv} taps"),
            Self::CrossShared { of, attention, .. } => {
                format!("{name} with layer {of}, {}", heads(attention))
            }
            Self::None => name.to_owned(),
        }
    }
}

/// One layer of the plan.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerPlan {
    /// Place in the model, counted from 0.
    pub index: u32,
    /// What the layer does.
    pub design: Design,
}
