//! Dense families: what their class says where a file is silent. Sources: `docs/models.md`.

use super::super::rope::RopeLayout;
use super::super::rope_config::{Absent, Local, ROPE, RopeRules};
use super::patterns::Pattern;

/// Which layers rotate queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Positions {
    Every,
    /// Only sliding layers.
    Sliding,
    /// Only sliding layers, or every layer if the model has no window.
    SlidingIfAny,
    /// `no_rope_layers` (1: rotated), else every layer but each fourth.
    Listed,
}

/// Factor of the scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scale {
    /// One over the root of the head width.
    HeadDim,
    /// One over the root of `query_pre_attn_scalar`.
    QueryPreAttn(f64),
    /// `attention_multiplier`, as it is.
    Multiplier(f64),
    One,
}

/// Default of `attn_logit_softcapping`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Softcap {
    /// The family has no such field.
    Unknown,
    Off,
    At(f64),
}

/// One dense family.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dense {
    pub(super) name: &'static str,
    pub(super) layers: u32,
    pub(super) hidden: u32,
    pub(super) heads: u32,
    /// Key-value heads where the file has no such field; `None`: as many as query heads.
    pub(super) heads_kv: Option<u32>,
    /// Head width where the file has none; `None`: hidden size over heads.
    pub(super) head_dim: Option<u32>,
    pub(super) pattern: Pattern,
    pub(super) rope: RopeRules,
    pub(super) positions: Positions,
    pub(super) scale: Scale,
    pub(super) softcap: Softcap,
    pub(super) sinks: bool,
}

const LLAMA: Dense = Dense {
    name: "llama",
    layers: 32,
    hidden: 4096,
    heads: 32,
    heads_kv: None,
    head_dim: None,
    pattern: Pattern::Full,
    rope: ROPE,
    positions: Positions::Every,
    scale: Scale::HeadDim,
    softcap: Softcap::Unknown,
    sinks: false,
};

const fn theta(theta: f64) -> RopeRules {
    RopeRules { theta, ..ROPE }
}

const fn partial(partial: f64) -> RopeRules {
    RopeRules { partial, ..ROPE }
}

const fn interleaved(theta: f64, partial: f64) -> RopeRules {
    RopeRules { theta, partial, layout: RopeLayout::Interleaved, ..ROPE }
}

/// Rotation of families whose sliding layers have a base of their own and are never stretched.
pub(super) const GEMMA_ROPE: RopeRules = RopeRules { theta: 1e6, local: Some(Local::Own(1e4)), ..ROPE };

const fn yarn(theta: f64, factor: f64, original: u32, truncate: bool, mscale: Option<f64>) -> RopeRules {
    RopeRules { theta, absent: Absent::Yarn { factor, original, truncate, mscale }, ..ROPE }
}

pub(super) const GEMMA3: Dense = Dense {
    name: "gemma3_text",
    layers: 26,
    hidden: 2304,
    heads: 8,
    heads_kv: Some(4),
    head_dim: Some(256),
    pattern: Pattern::Every { period: 6, window: 4096 },
    rope: GEMMA_ROPE,
    scale: Scale::QueryPreAttn(256.0),
    softcap: Softcap::Off,
    ..LLAMA
};

const MISTRAL: Dense =
    Dense { name: "mistral", heads_kv: Some(8), pattern: Pattern::AllSliding(Some(4096)), ..LLAMA };

/// Every dense family, in alphabetical order.
pub(super) const DENSE: &[Dense] = &[
    Dense { name: "cohere", layers: 40, hidden: 8192, heads: 64, rope: interleaved(5e5, 1.0), ..LLAMA },
    Dense {
        name: "cohere2",
        layers: 40,
        hidden: 8192,
        heads: 64,
        pattern: Pattern::Every { period: 4, window: 4096 },
        positions: Positions::Sliding,
        rope: interleaved(1e4, 1.0),
        ..LLAMA
    },
    Dense {
        name: "exaone4",
        heads_kv: Some(32),
        pattern: Pattern::Every { period: 4, window: 4096 },
        positions: Positions::SlidingIfAny,
        ..LLAMA
    },
    Dense {
        name: "gemma",
        layers: 28,
        hidden: 3072,
        heads: 16,
        heads_kv: Some(16),
        head_dim: Some(256),
        ..LLAMA
    },
    Dense {
        name: "gemma2",
        pattern: Pattern::Every { period: 2, window: 4096 },
        rope: ROPE,
        softcap: Softcap::At(50.0),
        ..GEMMA3
    },
    GEMMA3,
    Dense {
        name: "glm",
        layers: 40,
        heads_kv: Some(2),
        head_dim: Some(128),
        rope: interleaved(1e4, 0.5),
        ..LLAMA
    },
    Dense {
        name: "glm4",
        layers: 40,
        heads_kv: Some(2),
        head_dim: Some(128),
        rope: interleaved(1e4, 0.5),
        ..LLAMA
    },
    Dense { name: "glm4_moe", layers: 46, heads: 96, heads_kv: Some(8), rope: partial(0.5), ..LLAMA },
    Dense {
        name: "gpt_oss",
        layers: 36,
        hidden: 2880,
        heads: 64,
        heads_kv: Some(8),
        head_dim: Some(64),
        pattern: Pattern::Every { period: 2, window: 128 },
        rope: yarn(1.5e5, 32.0, 4096, false, None),
        sinks: true,
        ..LLAMA
    },
    Dense { name: "granite", scale: Scale::Multiplier(1.0), ..LLAMA },
    Dense { name: "granitemoe", scale: Scale::Multiplier(1.0), ..LLAMA },
    LLAMA,
    Dense { name: "ministral", ..MISTRAL },
    Dense {
        name: "ministral3",
        layers: 34,
        head_dim: Some(128),
        pattern: Pattern::AllSliding(None),
        rope: yarn(1e6, 16.0, 16_384, true, Some(1.0)),
        ..MISTRAL
    },
    Dense {
        name: "minimax_m2",
        layers: 62,
        hidden: 3072,
        heads: 48,
        heads_kv: Some(8),
        head_dim: Some(128),
        rope: theta(5e6),
        ..LLAMA
    },
    MISTRAL,
    Dense { name: "mixtral", pattern: Pattern::AllSliding(None), rope: theta(1e6), ..MISTRAL },
    Dense { name: "olmo2", ..LLAMA },
    Dense {
        name: "olmo3",
        pattern: Pattern::Every { period: 4, window: 4096 },
        rope: RopeRules { theta: 5e5, local: Some(Local::Same), ..ROPE },
        ..LLAMA
    },
    Dense {
        name: "phi3",
        hidden: 3072,
        pattern: Pattern::AllSliding(None),
        rope: RopeRules { yarn_is_longrope: true, ..ROPE },
        ..LLAMA
    },
    Dense { name: "qwen2", heads_kv: Some(32), pattern: Pattern::From(28), ..LLAMA },
    Dense {
        name: "qwen2_moe",
        layers: 24,
        hidden: 2048,
        heads: 16,
        heads_kv: Some(16),
        pattern: Pattern::EvenBelow(28),
        ..LLAMA
    },
    Dense { name: "qwen3", heads_kv: Some(32), head_dim: Some(128), pattern: Pattern::From(28), ..LLAMA },
    Dense {
        name: "qwen3_moe",
        layers: 24,
        hidden: 2048,
        heads_kv: Some(4),
        pattern: Pattern::IfUsed,
        ..LLAMA
    },
    Dense { name: "seed_oss", layers: 64, heads: 80, heads_kv: Some(8), head_dim: Some(128), ..LLAMA },
    Dense {
        name: "smollm3",
        layers: 36,
        hidden: 2048,
        heads: 16,
        heads_kv: Some(4),
        pattern: Pattern::UnrotatedIfUsed,
        positions: Positions::Listed,
        rope: theta(2e6),
        ..LLAMA
    },
    Dense { name: "stablelm", hidden: 2560, heads_kv: Some(32), rope: partial(0.25), ..LLAMA },
    Dense {
        name: "starcoder2",
        layers: 30,
        hidden: 3072,
        heads: 24,
        heads_kv: Some(2),
        pattern: Pattern::AllSliding(None),
        ..LLAMA
    },
];
