//! Which families are known, and who reads each.

mod dense;
mod gemma;
mod hybrid;
mod latent;
mod patterns;
mod state_space;
mod table;

use super::config::Fields;
use super::layers::{Design, LayerPlan};
use crate::{Error, Result};

/// The layers a family's reader found.
pub(super) struct Stack {
    pub(super) layers: Vec<LayerPlan>,
    /// Multi-token-prediction layers, which repeat the last layer's design.
    pub(super) prediction_layers: Vec<LayerPlan>,
}

impl From<Vec<LayerPlan>> for Stack {
    fn from(layers: Vec<LayerPlan>) -> Self {
        Self { layers, prediction_layers: Vec::new() }
    }
}

type Reader = fn(&Fields) -> Result<Stack>;

/// Families that need more than the dense table, in alphabetical order.
const READERS: &[(&str, Reader)] = &[
    ("bamba", state_space::bamba),
    ("deepseek_v2", latent::deepseek_v2),
    ("deepseek_v3", latent::deepseek_v3),
    ("deepseek_v32", latent::deepseek_v32),
    ("falcon", dense::falcon),
    ("falcon_h1", state_space::falcon_h1),
    ("falcon_mamba", state_space::mamba),
    ("gemma3n_text", gemma::gemma3n),
    ("gemma4_text", gemma::gemma4),
    ("gemma4_unified_text", gemma::gemma4_unified),
    ("glm4_moe_lite", latent::glm4_moe_lite),
    ("glm_moe_dsa", latent::glm_moe_dsa),
    ("granitemoehybrid", state_space::granite_hybrid),
    ("jamba", state_space::jamba),
    ("kimi_k2", latent::deepseek_v3),
    ("kimi_linear", hybrid::kimi_linear),
    ("lfm2", hybrid::lfm2),
    ("lfm2_moe", hybrid::lfm2_moe),
    ("llama4_text", dense::llama4),
    ("mamba", state_space::mamba),
    ("mamba2", state_space::mamba2),
    ("minimax", hybrid::minimax),
    ("minimax_m1", hybrid::minimax_text),
    ("minimax_text_01", hybrid::minimax_text),
    ("mistral4", latent::mistral4),
    ("nemotron_h", state_space::nemotron_h),
    ("nsa", dense::nsa),
    ("openelm", dense::openelm),
    ("qwen3_5_moe_text", hybrid::qwen3_5_moe),
    ("qwen3_5_text", hybrid::qwen3_5),
    ("qwen3_next", hybrid::qwen3_next),
];

/// Other spellings of a family's name, and wrappers whose text half is one.
const ALIASES: &[(&str, &str)] = &[
    ("MiniMaxM1", "minimax_m1"),
    ("MiniMaxText01", "minimax_text_01"),
    ("gemma3", "gemma3_text"),
    ("gemma3n", "gemma3n_text"),
    ("gemma4", "gemma4_text"),
    ("gemma4_unified", "gemma4_unified_text"),
    ("kimi_k25", "deepseek_v3"),
    ("llama4", "llama4_text"),
    ("mistral3", "mistral"),
    ("qwen2_5_vl", "qwen2"),
    ("qwen2_5_vl_text", "qwen2"),
    ("qwen2_vl", "qwen2"),
    ("qwen2_vl_text", "qwen2"),
    ("qwen3_5", "qwen3_5_text"),
    ("qwen3_5_moe", "qwen3_5_moe_text"),
    ("qwen3_vl", "qwen3"),
    ("qwen3_vl_moe", "qwen3_moe"),
    ("qwen3_vl_moe_text", "qwen3_moe"),
    ("qwen3_vl_text", "qwen3"),
    ("smollm", "llama"),
];

/// Families refused by name: what they do that no design here expresses, and the nearest that is known.
const REFUSED: &[(&str, &str, &str)] = &[
    ("bloom", "alibi", "its positions are a bias on the scores"),
    ("deepseek_v4", "compress_ratios", "its layers attend to learned compressions of 4 and of 128 tokens"),
    ("gpt2", "n_positions", "its positions are learned embeddings"),
    ("minimax_m3_vl", "layer_types", "its sparse layers pick blocks by a rule that is not settled in public"),
    ("mpt", "alibi", "its positions are a bias on the scores"),
    ("qwen4_exp", "layer_types", "its indexer works on compressed keys"),
    ("recurrentgemma", "block_types", "its recurrence is a gated linear unit"),
    ("recurrent_gemma", "block_types", "its recurrence is a gated linear unit"),
    ("rwkv", "attention_hidden_size", "its recurrence is none of the designs known here"),
    ("zamba2", "hybrid_layer_ids", "its attention blocks share weights and see two inputs"),
];

/// Fields that change the cache; a family that has no such field is not the one the file means.
const TELLING: &[&str] = &[
    "attention_chunk_size",
    "attn_layer_indices",
    "attn_layer_period",
    "attn_type_list",
    "compress_ratios",
    "conv_L_cache",
    "full_attention_interval",
    "hybrid_override_pattern",
    "index_topk",
    "kv_lora_rank",
    "linear_attn_config",
    "linear_num_value_heads",
    "mamba_d_state",
    "no_rope_layers",
    "num_kv_shared_layers",
    "per_layer_config",
];

/// The family that a `model_type` names.
pub(super) fn canonical(model_type: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == model_type).map_or(model_type, |(_, family)| family)
}

/// Every family name that is read, aliases included, sorted.
pub(super) fn known() -> Vec<&'static str> {
    let mut names: Vec<&str> = READERS.iter().map(|(name, _)| *name).collect();
    names.extend(table::DENSE.iter().map(|dense| dense.name));
    names.extend(ALIASES.iter().map(|(alias, _)| *alias));
    names.sort_unstable();
    names
}

/// Reads the layers of the family that the fields are for.
pub(super) fn read(fields: &Fields) -> Result<Stack> {
    let family = fields.family;
    let stack = if let Some((_, reader)) = READERS.iter().find(|(name, _)| *name == family) {
        reader(fields)?
    } else if let Some(dense) = table::DENSE.iter().find(|dense| dense.name == family) {
        dense::read(fields, dense)?
    } else {
        return Err(unknown(fields));
    };
    fields.refuse_unread(TELLING)?;
    Ok(stack)
}

fn unknown(fields: &Fields) -> Error {
    let family = fields.family;
    match REFUSED.iter().find(|(name, ..)| *name == family) {
        Some((_, field, reason)) => fields.unsupported(field, reason),
        None => Error::UnknownFamily {
            model_type: family.chars().take(60).collect(),
            nearest: nearest_other(family),
        },
    }
}

/// The known family whose name is nearest to `family`'s but not the same.
pub(super) fn nearest_other(family: &str) -> &'static str {
    if family == "deepseek_v4" {
        return "deepseek_v32";
    }
    let shared = |name: &str| name.chars().zip(family.chars()).take_while(|(a, b)| a == b).count();
    let others = known().into_iter().filter(|name| *name != family);
    others.min_by_key(|name| (edits(name, family), usize::MAX - shared(name))).unwrap_or("llama")
}

/// Edit distance of two names, the second cut to 60 characters.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(60).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// Numbers the layers.
fn numbered(designs: Vec<Design>) -> Vec<LayerPlan> {
    let layers = (0..).zip(designs);
    layers.map(|(index, design)| LayerPlan { index, design }).collect()
}
