//! Latent attention, with and without an indexer.

use super::super::config::{Fields, Given, MAX_LAYERS, MAX_SIZE};
use super::super::layers::{Design, Indexer, Latent};
use super::super::rope::RopeLayout;
use super::super::rope_config::{Absent, ROPE, RopeKind, RopeRules, Ropes};
use super::dense::{llama4_beta, prediction_layers};
use super::patterns::{self, Kind};
use super::{Stack, numbered};
use crate::{Error, Result};

/// Class defaults of a latent family.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) layers: u32,
    pub(super) heads: u32,
    pub(super) q_rank: Option<u32>,
    pub(super) kv_rank: u32,
    pub(super) dim_nope: u32,
    pub(super) dim_rope: u32,
    pub(super) dim_v: u32,
    /// `None`: the shared part is not rotated.
    pub(super) rope: Option<RopeRules>,
}

const INTERLEAVED: RopeRules = RopeRules { layout: RopeLayout::Interleaved, ..ROPE };

const V3: Rules = Rules {
    layers: 61,
    heads: 128,
    q_rank: Some(1536),
    kv_rank: 512,
    dim_nope: 128,
    dim_rope: 64,
    dim_v: 128,
    rope: Some(INTERLEAVED),
};

/// Reads a layer of latent attention. `num_key_value_heads` and `head_dim` mean nothing here.
pub(super) fn latent(fields: &Fields, rules: Rules) -> Result<Latent> {
    let heads_q = fields.size("num_attention_heads", rules.heads)?;
    let q_rank = fields.int("q_lora_rank", 1, MAX_SIZE)?.or(rules.q_rank);
    let kv_rank = fields.size("kv_lora_rank", rules.kv_rank)?;
    let dim_nope = fields.size("qk_nope_head_dim", rules.dim_nope)?;
    let dim_rope = fields.size("qk_rope_head_dim", rules.dim_rope)?;
    let dim_v = fields.size("v_head_dim", rules.dim_v)?;
    let rope = match rules.rope {
        // the whole shared part turns; a share in the file is relative to the key
        Some(rope) => Some(Ropes::whole(fields, rope, dim_rope).get(RopeKind::Full)?),
        None => None,
    };
    let correction = rope.as_ref().map_or(1.0, |rope| rope.scaling.softmax_correction());
    let scale = correction / (f64::from(dim_nope) + f64::from(dim_rope)).sqrt();
    Ok(Latent { heads_q, q_rank, kv_rank, dim_nope, dim_rope, dim_v, scale, rope, temperature: None })
}

fn stack(fields: &Fields, rules: Rules) -> Result<Stack> {
    let n_layers = patterns::n_layers(fields, &["num_hidden_layers"], rules.layers)?;
    let design = Design::Latent(latent(fields, rules)?);
    let mut stack = Stack::from(numbered(vec![design; n_layers as usize]));
    stack.prediction_layers = prediction_layers(fields, &stack.layers)?;
    Ok(stack)
}

pub(super) fn deepseek_v2(fields: &Fields) -> Result<Stack> {
    stack(fields, Rules { layers: 32, heads: 32, ..V3 })
}

/// Rules whose layout the file chooses; the class default is interleaved.
fn laid_out(fields: &Fields, rules: Rules) -> Result<Rules> {
    let layout =
        if fields.flag("rope_interleave", true)? { RopeLayout::Interleaved } else { RopeLayout::Half };
    Ok(Rules { rope: rules.rope.map(|rope| RopeRules { layout, ..rope }), ..rules })
}

pub(super) fn deepseek_v3(fields: &Fields) -> Result<Stack> {
    stack(fields, laid_out(fields, V3)?)
}

pub(super) fn glm4_moe_lite(fields: &Fields) -> Result<Stack> {
    let rules = Rules { layers: 47, heads: 20, q_rank: Some(768), dim_nope: 192, dim_v: 256, ..V3 };
    stack(fields, laid_out(fields, rules)?)
}

pub(super) fn mistral4(fields: &Fields) -> Result<Stack> {
    let absent = Absent::Yarn { factor: 128.0, original: 8192, truncate: true, mscale: Some(1.0) };
    let rules = Rules {
        layers: 36,
        heads: 32,
        q_rank: Some(1024),
        kv_rank: 256,
        dim_nope: 64,
        rope: Some(RopeRules { absent, ..INTERLEAVED }),
        ..V3
    };
    let mut stack = stack(fields, laid_out(fields, rules)?)?;
    for layer in &mut stack.layers {
        if let Design::Latent(latent) = &mut layer.design
            && let Some(rope) = &latent.rope
        {
            latent.temperature = llama4_beta(fields, &rope.scaling)?;
        }
    }
    Ok(stack)
}

pub(super) fn deepseek_v32(fields: &Fields) -> Result<Stack> {
    indexed(fields, V3, 64, RopeLayout::Half)
}

pub(super) fn glm_moe_dsa(fields: &Fields) -> Result<Stack> {
    let rules = Rules { layers: 78, heads: 64, q_rank: Some(2048), dim_nope: 192, dim_v: 256, ..V3 };
    indexed(fields, rules, 32, RopeLayout::Interleaved)
}

fn indexed(fields: &Fields, rules: Rules, heads: u32, layout: RopeLayout) -> Result<Stack> {
    let n_layers = patterns::n_layers(fields, &["num_hidden_layers"], rules.layers)?;
    let latent = latent(fields, rules)?;
    if latent.q_rank.is_none() {
        return Err(fields.unsupported("q_lora_rank", "the indexer reads the query's low-rank projection"));
    }
    let dim = fields.size("index_head_dim", 128)?;
    if dim < latent.dim_rope {
        let bound = format!("at least qk_rope_head_dim ({})", latent.dim_rope);
        return Err(fields.bad("index_head_dim", bound, "the rotated part lies within it"));
    }
    let mut rope = Ropes::whole(fields, rules.rope.unwrap_or(ROPE), latent.dim_rope).get(RopeKind::Full)?;
    rope.layout = layout;
    let heads = fields.size("index_n_heads", heads)?;
    let indexer = Indexer { heads, dim, topk: fields.size("index_topk", 2048)?, rope };
    let kinds = patterns::listed(fields, n_layers, &[Kind::Full, Kind::Indexed])?
        .unwrap_or_else(|| vec![Kind::Indexed; n_layers as usize]);
    let owns = owns_indices(fields, n_layers)?;
    let mut owner = None;
    let mut designs = Vec::with_capacity(kinds.len());
    for ((kind, owns), index) in kinds.into_iter().zip(owns).zip(0u32..) {
        if kind == Kind::Full {
            designs.push(Design::Latent(latent.clone()));
            continue;
        }
        if owns {
            owner = Some(index);
        } else if owner.is_none() {
            let reason = "the first indexed layer has no earlier one to share indices with";
            return Err(fields.unsupported("indexer_types", reason));
        }
        let shares_indices_of = owner.filter(|_| !owns);
        designs.push(Design::LatentIndexed {
            latent: latent.clone(),
            indexer: indexer.clone(),
            shares_indices_of,
        });
    }
    let mut stack = Stack::from(numbered(designs));
    stack.prediction_layers = prediction_layers(fields, &stack.layers)?;
    for layer in &mut stack.prediction_layers {
        // a prediction layer runs its own indexer, whatever the last layer does
        if let Design::LatentIndexed { shares_indices_of, .. } = &mut layer.design {
            *shares_indices_of = None;
        }
    }
    Ok(stack)
}

/// Which layers run their own indexer; the others take the indices of the last that did.
fn owns_indices(fields: &Fields, n_layers: u32) -> Result<Vec<bool>> {
    const NAMES: [(&str, bool); 4] = [("full", true), ("shared", false), ("F", true), ("S", false)];
    let owns = |text: &str| NAMES.iter().find(|(name, _)| *name == text).map(|(_, owns)| *owns);
    let name = fields.any(&["indexer_types", "index_topk_pattern"]);
    let letters: Vec<Option<bool>> = match fields.get(name) {
        Given::Is(value) => match (value.as_str(), value.as_array()) {
            (Some(text), _) => {
                let text = text.chars().take(MAX_LAYERS as usize + 1);
                text.map(|letter| owns(letter.encode_utf8(&mut [0; 4]))).collect()
            }
            (_, Some(list)) if list.len() <= MAX_LAYERS as usize => {
                list.iter().map(|value| value.as_str().and_then(owns)).collect()
            }
            _ => return Err(fields.bad(name, "a list of full and shared", "correct the file")),
        },
        _ => return every_so_often(fields, n_layers),
    };
    let list: Option<Vec<bool>> = letters.into_iter().collect();
    let list = list.ok_or_else(|| Error::ConfigField {
        field: fields.path(name),
        value: "a list with another word".into(),
        bound: "a list of full and shared (or F and S)".into(),
        remedy: "correct the list".into(),
    })?;
    fields.per_layer(name, list, n_layers)
}

fn every_so_often(fields: &Fields, n_layers: u32) -> Result<Vec<bool>> {
    let every = fields.int("index_topk_freq", 0, MAX_LAYERS)?.or(None).unwrap_or(1).max(1);
    let offset = fields.int("index_skip_topk_offset", 0, MAX_LAYERS)?.or(None).unwrap_or(2);
    Ok((0..n_layers).map(|i| (i + 1).saturating_sub(offset) % every == 0).collect())
}
