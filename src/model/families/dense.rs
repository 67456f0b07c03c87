//! Layers of softmax attention over heads.

use serde_json::Value;

use super::super::config::{Fields, Given, MAX_POSITION, MAX_SIZE};
use super::super::layers::{Attention, Design, LayerPlan, SparseBlocks, Temperature};
use super::super::rope::{RopeLayout, RopeScaling};
use super::super::rope_config::{ROPE, RopeKind, RopeRules, Ropes};
use super::patterns::{self, Kind};
use super::table::{Dense, Positions, Scale, Softcap};
use super::{Stack, numbered};
use crate::{Error, Result};

/// Head counts and widths of every layer.
#[derive(Debug, Clone)]
pub(super) struct Heads {
    pub(super) q: Vec<u32>,
    /// Zero where a layer has no attention.
    pub(super) kv: Vec<u32>,
    pub(super) dim: u32,
}

/// Class defaults of head counts and widths.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadRules {
    pub(super) hidden: u32,
    pub(super) heads: u32,
    pub(super) heads_kv: Option<u32>,
    pub(super) head_dim: Option<u32>,
}

/// Reads head counts and the head width.
pub(super) fn heads(fields: &Fields, rules: HeadRules, n_layers: u32) -> Result<Heads> {
    let q = fields.size("num_attention_heads", rules.heads)?;
    let kv = match fields.get("num_key_value_heads") {
        Given::Is(value) if value.is_array() => {
            let list = fields.ints("num_key_value_heads", 0, MAX_SIZE)?.unwrap_or_default();
            fields.per_layer("num_key_value_heads", list, n_layers)?
        }
        _ => {
            // absent takes the class default, null as many as there are query heads
            let kv = match fields.int("num_key_value_heads", 1, MAX_SIZE)? {
                Given::Absent => rules.heads_kv.unwrap_or(q),
                Given::Null => q,
                Given::Is(kv) => kv,
            };
            vec![kv; n_layers as usize]
        }
    };
    let dim = head_dim(fields, rules, q)?;
    for &kv in &kv {
        grouped(fields, q, kv)?;
    }
    Ok(Heads { q: vec![q; n_layers as usize], kv, dim })
}

/// The head width: the file's, the class default, or hidden size over heads.
pub(super) fn head_dim(fields: &Fields, rules: HeadRules, heads_q: u32) -> Result<u32> {
    let hidden = fields.size("hidden_size", rules.hidden)?;
    if let Some(dim) =
        fields.int(fields.any(&["head_dim", "attention_head_dim"]), 1, MAX_SIZE)?.or(rules.head_dim)
    {
        return Ok(dim);
    }
    if hidden.is_multiple_of(heads_q) {
        return Ok(hidden / heads_q);
    }
    Err(Error::ConfigField {
        field: fields.path("hidden_size"),
        value: hidden.to_string(),
        bound: format!("a multiple of num_attention_heads ({heads_q}), as head_dim is not given"),
        remedy: "give head_dim, or correct hidden_size or num_attention_heads".into(),
    })
}

/// Refuses query heads that key-value heads do not divide.
pub(super) fn grouped(fields: &Fields, q: u32, kv: u32) -> Result<()> {
    if kv == 0 || q.is_multiple_of(kv) {
        return Ok(());
    }
    Err(Error::ConfigField {
        field: fields.path("num_attention_heads"),
        value: q.to_string(),
        bound: format!("a multiple of num_key_value_heads ({kv})"),
        remedy: "correct one of the two".into(),
    })
}

/// Reads a family of the table.
pub(super) fn read(fields: &Fields, family: &Dense) -> Result<Stack> {
    let n_layers = patterns::n_layers(fields, &["num_hidden_layers"], family.layers)?;
    let rules = HeadRules {
        hidden: family.hidden,
        heads: family.heads,
        heads_kv: family.heads_kv,
        head_dim: family.head_dim,
    };
    let heads = heads(fields, rules, n_layers)?;
    if family.name == "minimax_m2"
        && fields.ints("attn_type_list", 0, 1)?.is_some_and(|list| list.contains(&0))
    {
        return Err(fields.unsupported("attn_type_list", "this family has softmax layers only"));
    }
    let mut stack = Stack::from(attention_layers(fields, family, &heads)?);
    if family.name == "glm4_moe" {
        stack.prediction_layers = prediction_layers(fields, &stack.layers)?;
    }
    Ok(stack)
}

/// Builds the layers of a family of the table from its head counts.
pub(super) fn attention_layers(fields: &Fields, family: &Dense, heads: &Heads) -> Result<Vec<LayerPlan>> {
    let n_layers = u32::try_from(heads.q.len()).unwrap_or(u32::MAX);
    causal(fields)?;
    let listed = match family.positions {
        Positions::Listed => no_rope_layers(fields, n_layers)?,
        _ => vec![true; n_layers as usize],
    };
    let windows = patterns::windows(fields, family.pattern, n_layers, &listed)?;
    let has_window = patterns::has_window(fields, family.pattern);
    let scale = scale(fields, family.scale, heads.dim)?;
    let softcap = match family.softcap {
        Softcap::Unknown => None,
        Softcap::Off => softcap(fields, None)?,
        Softcap::At(default) => softcap(fields, Some(default))?,
    };
    let ropes = Ropes::new(fields, rotary_rules(fields, family, heads.dim)?, heads.dim);
    let layer = |i: usize| {
        let window = windows[i];
        let rotated = match family.positions {
            Positions::Every => true,
            Positions::Sliding => window.is_some(),
            Positions::SlidingIfAny => window.is_some() || !has_window,
            Positions::Listed => listed[i],
        };
        let kind = if window.is_some() { RopeKind::Sliding } else { RopeKind::Full };
        let rope = if rotated { Some(ropes.get(kind)?) } else { None };
        if heads.kv[i] == 0 {
            return Ok(Design::None);
        }
        let temperature = match (&rope, family.name) {
            (Some(rope), "ministral3") => llama4_beta(fields, &rope.scaling)?,
            _ => None,
        };
        let attention = Attention {
            heads_q: heads.q[i],
            heads_kv: heads.kv[i],
            dim_k: heads.dim,
            dim_v: heads.dim,
            scale,
            softcap,
            sinks: family.sinks,
            rope,
            temperature,
        };
        Ok(match window {
            Some(window) => Design::Window { attention, window },
            None => Design::Full(attention),
        })
    };
    (0..heads.q.len()).map(layer).collect::<Result<_>>().map(numbered)
}

/// Refuses embedding models, whose tokens see later ones.
pub(super) fn causal(fields: &Fields) -> Result<()> {
    const NAME: &str = "use_bidirectional_attention";
    match fields.get(NAME) {
        // within an image only: text is causal
        Given::Absent | Given::Null | Given::Is(Value::Bool(false)) => Ok(()),
        Given::Is(value) if value == "vision" => Ok(()),
        Given::Is(_) => Err(fields.unsupported(NAME, "only causal attention is planned")),
    }
}

/// The family's rotation, with `rotary_dim` where the file states the share in dimensions.
fn rotary_rules(fields: &Fields, family: &Dense, head_dim: u32) -> Result<RopeRules> {
    match family.name {
        "minimax_m2" => with_rotary_dim(fields, family.rope, head_dim),
        _ => Ok(family.rope),
    }
}

/// Rules with the share that `rotary_dim` states.
pub(super) fn with_rotary_dim(fields: &Fields, rules: RopeRules, head_dim: u32) -> Result<RopeRules> {
    let dim = fields.int("rotary_dim", 2, head_dim)?.or(None);
    Ok(dim.map_or(rules, |dim| RopeRules { partial: f64::from(dim) / f64::from(head_dim), ..rules }))
}

/// Layers that repeat the last one's design, as many as the file says the model predicts ahead with.
pub(super) fn prediction_layers(fields: &Fields, layers: &[LayerPlan]) -> Result<Vec<LayerPlan>> {
    let name = fields.any(&["num_nextn_predict_layers", "num_mtp_layers"]);
    let count = fields.int(name, 0, super::super::config::MAX_LAYERS)?.or(None).unwrap_or(0);
    let Some(last) = layers.last() else { return Ok(Vec::new()) };
    let extra = (last.index + 1..).take(count as usize);
    Ok(extra.map(|index| LayerPlan { index, design: last.design.clone() }).collect())
}

fn scale(fields: &Fields, rule: Scale, dim: u32) -> Result<f64> {
    Ok(match rule {
        Scale::HeadDim => 1.0 / f64::from(dim).sqrt(),
        Scale::QueryPreAttn(default) => {
            let scalar = fields.real("query_pre_attn_scalar", 1e-6, 1e9)?.or(Some(default));
            1.0 / scalar.unwrap_or(default).sqrt()
        }
        Scale::Multiplier(default) => {
            fields.real("attention_multiplier", 1e-9, 1e6)?.or(Some(default)).unwrap_or(default)
        }
        Scale::One => 1.0,
    })
}

/// A positive cap; zero means none, as null does.
fn softcap(fields: &Fields, default: Option<f64>) -> Result<Option<f64>> {
    Ok(fields.real("attn_logit_softcapping", 0.0, 1e6)?.or(default).filter(|cap| *cap > 0.0))
}

/// Which layers rotate: 1 in `no_rope_layers` means that the layer does.
fn no_rope_layers(fields: &Fields, n_layers: u32) -> Result<Vec<bool>> {
    let interval = fields.size("no_rope_layer_interval", 4)?;
    match fields.ints("no_rope_layers", 0, 1)? {
        Some(list) => {
            let list = fields.per_layer("no_rope_layers", list, n_layers)?;
            Ok(list.into_iter().map(|flag| flag == 1).collect())
        }
        None => Ok((0..n_layers).map(|i| (i + 1) % interval != 0).collect()),
    }
}

/// The temperature that Ministral 3 and Mistral 4 keep among their rotary parameters.
pub(super) fn llama4_beta(fields: &Fields, scaling: &RopeScaling) -> Result<Option<Temperature>> {
    let RopeScaling::Yarn { original, .. } = *scaling else { return Ok(None) };
    let outer = fields.any(&["rope_parameters", "rope_scaling"]);
    let beta = match fields.object(outer)? {
        None => Some(0.1),
        Some(object) => object.real("llama_4_scaling_beta", 0.0, 1e3)?.or(None),
    };
    Ok(beta.map(|scale| Temperature { scale, floor: original, offset: 0 }))
}

/// Llama 4: chunks with rotation, and full layers without.
pub(super) fn llama4(fields: &Fields) -> Result<Stack> {
    let n_layers = patterns::n_layers(fields, &["num_hidden_layers"], 48)?;
    let rules = HeadRules { hidden: 5120, heads: 40, heads_kv: Some(8), head_dim: Some(128) };
    let heads = heads(fields, rules, n_layers)?;
    let rotated = no_rope_layers(fields, n_layers)?;
    let chunk = fields.span("attention_chunk_size", Some(8192))?;
    let listed = patterns::listed(fields, n_layers, &[Kind::Full, Kind::Chunked])?;
    let floor = fields.count("floor_scale", 1, MAX_POSITION, 8192)?;
    let attn_scale = fields.real("attn_scale", 0.0, 1e3)?.or(None).unwrap_or(0.1);
    let tuned = fields.flag("attn_temperature_tuning", true)?;
    let tuning = tuned.then_some(Temperature { scale: attn_scale, floor, offset: 1 });
    let rope = RopeRules { theta: 5e5, layout: RopeLayout::Interleaved, ..ROPE };
    let ropes = Ropes::new(fields, rope, heads.dim);
    let layer = |i: usize| {
        let chunked = match &listed {
            Some(kinds) => kinds[i] == Kind::Chunked,
            None => rotated[i] && chunk.is_some(),
        };
        let kind = if chunked { RopeKind::Chunked } else { RopeKind::Full };
        let attention = Attention {
            heads_q: heads.q[i],
            heads_kv: heads.kv[i],
            dim_k: heads.dim,
            dim_v: heads.dim,
            scale: 1.0 / f64::from(heads.dim).sqrt(),
            softcap: None,
            sinks: false,
            rope: if rotated[i] { Some(ropes.get(kind)?) } else { None },
            temperature: tuning.filter(|_| !rotated[i]),
        };
        match (heads.kv[i], chunked, chunk) {
            (0, ..) => Ok(Design::None),
            (_, false, _) => Ok(Design::Full(attention)),
            (_, true, Some(chunk)) => Ok(Design::Chunked { attention, chunk }),
            (_, true, None) => Err(fields.bad(
                "attention_chunk_size",
                "a positive size, since layer_types has chunked_attention",
                "set attention_chunk_size, or make those layers full_attention",
            )),
        }
    };
    let designs = (0..n_layers as usize).map(layer).collect::<Result<_>>()?;
    Ok(numbered(designs).into())
}

/// Falcon: one key-value head unless the file says otherwise in one of three ways.
pub(super) fn falcon(fields: &Fields) -> Result<Stack> {
    if fields.flag("alibi", false)? {
        return Err(fields.unsupported("alibi", "a bias on the scores is none of the positions known here"));
    }
    let n_layers = patterns::n_layers(fields, &["num_hidden_layers", "n_layer"], 32)?;
    let hidden = fields.size(fields.any(&["hidden_size", "n_embed"]), 4544)?;
    let q = fields.size(fields.any(&["num_attention_heads", "n_head"]), 71)?;
    let stated = fields.int(fields.any(&["num_kv_heads", "n_head_kv"]), 1, MAX_SIZE)?.or(None).unwrap_or(q);
    let new = fields.flag("new_decoder_architecture", false)?;
    // the old architecture writes num_kv_heads without meaning it
    let kv = match (new, fields.flag("multi_query", true)?) {
        (true, _) => stated,
        (false, true) => 1,
        (false, false) => q,
    };
    grouped(fields, q, kv)?;
    if !hidden.is_multiple_of(q) {
        let bound = format!("a multiple of num_attention_heads ({q})");
        return Err(fields.bad("hidden_size", bound, "correct one of the two"));
    }
    let dim = hidden / q;
    let rope = Ropes::new(fields, ROPE, dim).get(RopeKind::Full)?;
    let attention = plain(q, kv, dim, Some(rope));
    Ok(numbered(vec![Design::Full(attention); n_layers as usize]).into())
}

/// Attention without caps, sinks or temperature, scaled by its width.
pub(super) fn plain(
    heads_q: u32,
    heads_kv: u32,
    dim: u32,
    rope: Option<super::super::rope::Rope>,
) -> Attention {
    Attention {
        heads_q,
        heads_kv,
        dim_k: dim,
        dim_v: dim,
        scale: 1.0 / f64::from(dim).sqrt(),
        softcap: None,
        sinks: false,
        rope,
        temperature: None,
    }
}

/// `OpenELM`: head counts that differ from layer to layer.
pub(super) fn openelm(fields: &Fields) -> Result<Stack> {
    let n_layers = patterns::n_layers(fields, &["num_transformer_layers"], 12)?;
    let list = |name: &'static str| {
        let list = fields.ints(name, 1, MAX_SIZE)?.ok_or_else(|| {
            fields.bad(name, format!("a list of {n_layers} head counts"), "the family has no default: add it")
        })?;
        fields.per_layer(name, list, n_layers)
    };
    let (q, kv) = (list("num_query_heads")?, list("num_kv_heads")?);
    let dim = fields.size("head_dim", 128)?;
    let theta = fields.real("rope_freq_constant", 1.000_001, 1e15)?.or(None).unwrap_or(1e4);
    let rope = Ropes::new(fields, RopeRules { theta, ..ROPE }, dim).get(RopeKind::Full)?;
    let designs = q.iter().zip(&kv).map(|(&q, &kv)| {
        grouped(fields, q, kv)?;
        Ok(Design::Full(plain(q, kv, dim, Some(rope.clone()))))
    });
    Ok(numbered(designs.collect::<Result<_>>()?).into())
}

/// Natively sparse attention as the public training library configures it: blocks that do not overlap.
pub(super) fn nsa(fields: &Fields) -> Result<Stack> {
    let n_layers = patterns::n_layers(fields, &["num_hidden_layers"], 24)?;
    let q = fields.size(fields.any(&["num_heads", "num_attention_heads"]), 64)?;
    let kv = fields.size(fields.any(&["num_kv_heads", "num_key_value_heads"]), 4)?;
    grouped(fields, q, kv)?;
    let dim = fields.size("head_dim", 32)?;
    let block = fields.count("block_size", 1, MAX_POSITION, 64)?;
    let blocks = SparseBlocks {
        block,
        stride: block,
        selected: fields.count("block_counts", 1, MAX_POSITION, 16)?,
        window: fields.count("window_size", 1, MAX_POSITION, 512)?,
    };
    let rope = Ropes::new(fields, ROPE, dim).get(RopeKind::Full)?;
    let attention = plain(q, kv, dim, Some(rope));
    Ok(numbered(vec![Design::Nsa { attention, blocks }; n_layers as usize]).into())
}
