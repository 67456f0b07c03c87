//! Families that mix softmax or latent attention with delta-rule, lightning or convolution layers.

use super::super::config::{Fields, Given, MAX_LAYERS};
use super::super::layers::{Delta, Design, Lightning};
use super::super::rope_config::{ROPE, RopeKind, RopeRules, Ropes};
use super::dense::{self, HeadRules, with_rotary_dim};
use super::latent::{self, Rules};
use super::patterns::{self, Kind};
use super::{Stack, numbered};
use crate::{Error, Result};

/// Most taps of a short convolution.
pub(super) const MAX_TAPS: u32 = 4096;
/// Most channels of a short convolution.
const MAX_CHANNELS: u64 = 1 << 31;

/// Refuses a convolution too wide to count.
pub(super) fn channels(fields: &Fields, name: &str, channels: u64) -> Result<()> {
    if channels <= MAX_CHANNELS {
        return Ok(());
    }
    Err(Error::ConfigField {
        field: fields.path(name),
        value: format!("a size that makes {channels} channels"),
        bound: format!("at most {MAX_CHANNELS} channels"),
        remedy: "correct the head counts and widths".into(),
    })
}

fn delta(fields: &Fields, name: &str, delta: Delta) -> Result<Delta> {
    let keys = u64::from(delta.heads_k) * u64::from(delta.dim_k);
    channels(fields, name, 2 * keys + u64::from(delta.heads_v) * u64::from(delta.dim_v))?;
    if delta.heads_v.is_multiple_of(delta.heads_k) {
        return Ok(delta);
    }
    let bound = format!("a multiple of linear_num_key_heads ({})", delta.heads_k);
    Err(fields.bad("linear_num_value_heads", bound, "correct one of the two"))
}

/// Full attention and gated delta nets, class defaults given.
fn gated_delta(fields: &Fields, layers: u32, rules: HeadRules) -> Result<Stack> {
    let n_layers = patterns::n_layers(fields, &["num_hidden_layers"], layers)?;
    let heads = dense::heads(fields, rules, n_layers)?;
    let linear = Delta {
        heads_k: fields.size("linear_num_key_heads", 16)?,
        heads_v: fields.size("linear_num_value_heads", 32)?,
        dim_k: fields.size("linear_key_head_dim", 128)?,
        dim_v: fields.size("linear_value_head_dim", 128)?,
        conv: fields.count("linear_conv_kernel_dim", 1, MAX_TAPS, 4)?,
    };
    let linear = delta(fields, "linear_num_value_heads", linear)?;
    let interval = fields.count("full_attention_interval", 1, MAX_LAYERS, 4)?;
    let kinds = patterns::listed(fields, n_layers, &[Kind::Full, Kind::Linear])?;
    let ropes = Ropes::new(fields, RopeRules { partial: 0.25, ..ROPE }, heads.dim);
    let design = |i: u32| {
        let at = i as usize;
        let full = kinds.as_ref().map_or((i + 1).is_multiple_of(interval), |kinds| kinds[at] == Kind::Full);
        if !full {
            return Ok(Design::GatedDelta(linear));
        }
        if heads.kv[at] == 0 {
            return Ok(Design::None);
        }
        let rope = Some(ropes.get(RopeKind::Full)?);
        Ok(Design::Full(dense::plain(heads.q[at], heads.kv[at], heads.dim, rope)))
    };
    Ok(numbered((0..n_layers).map(design).collect::<Result<_>>()?).into())
}

pub(super) fn qwen3_next(fields: &Fields) -> Result<Stack> {
    gated_delta(fields, 48, HeadRules { hidden: 2048, heads: 16, heads_kv: Some(2), head_dim: Some(256) })
}

pub(super) fn qwen3_5(fields: &Fields) -> Result<Stack> {
    gated_delta(fields, 32, HeadRules { hidden: 4096, heads: 16, heads_kv: Some(4), head_dim: Some(256) })
}

pub(super) fn qwen3_5_moe(fields: &Fields) -> Result<Stack> {
    gated_delta(fields, 40, HeadRules { hidden: 2048, heads: 16, heads_kv: Some(2), head_dim: Some(256) })
}

/// Kimi Linear: latent layers without rotation among delta layers.
pub(super) fn kimi_linear(fields: &Fields) -> Result<Stack> {
    let n_layers = patterns::n_layers(fields, &["num_hidden_layers"], 27)?;
    if !fields.flag("mla_use_nope", true)? {
        let reason = "public sources only have this family's latent layers without rotation";
        return Err(fields.unsupported("mla_use_nope", reason));
    }
    let rules = Rules {
        layers: 27,
        heads: 32,
        q_rank: None,
        kv_rank: 512,
        dim_nope: 128,
        dim_rope: 64,
        dim_v: 128,
        rope: None,
    };
    let latent = latent::latent(fields, rules)?;
    let linear = fields.object("linear_attn_config")?;
    let size = |inner: &'static str, outer: &'static str, default: u32, high: u32| {
        let inner = match &linear {
            Some(linear) => linear.int(inner, 1, high)?,
            None => Given::Absent,
        };
        match inner {
            Given::Is(size) => Ok(size),
            _ => fields.count(outer, 1, high, default),
        }
    };
    let heads = size("num_heads", "linear_num_heads", 32, super::super::config::MAX_SIZE)?;
    let dim = size("head_dim", "linear_head_dim", 128, super::super::config::MAX_SIZE)?;
    let conv = size("short_conv_kernel_size", "linear_conv_kernel_dim", 4, MAX_TAPS)?;
    let linear_layer = Delta { heads_k: heads, heads_v: heads, dim_k: dim, dim_v: dim, conv };
    let linear_layer = delta(fields, "linear_attn_config", linear_layer)?;
    let full = match patterns::listed(fields, n_layers, &[Kind::Full, Kind::Linear])? {
        Some(kinds) => kinds.into_iter().map(|kind| kind == Kind::Full).collect(),
        None => kimi_lists(fields, linear.as_ref(), n_layers)?,
    };
    let designs = full
        .into_iter()
        .map(|full| if full { Design::Latent(latent.clone()) } else { Design::KimiDelta(linear_layer) });
    Ok(numbered(designs.collect()).into())
}

/// Which layers are full by the checkpoint's two lists, which count from 1; else by the class's rule.
fn kimi_lists(fields: &Fields, linear: Option<&Fields>, n_layers: u32) -> Result<Vec<bool>> {
    let lists = match linear {
        Some(linear) => {
            linear.ints("full_attn_layers", 1, n_layers)?.zip(linear.ints("kda_layers", 1, n_layers)?)
        }
        None => None,
    };
    let Some((full, delta)) = lists else {
        return Ok((0..n_layers).map(|i| i > 0 && i % 4 == 0).collect());
    };
    let mut kinds = vec![None; n_layers as usize];
    for (list, is_full) in [(full, true), (delta, false)] {
        for layer in list {
            let kind = &mut kinds[layer as usize - 1];
            if kind.replace(is_full).is_some() {
                return Err(lists_disagree(fields, format!("layer {layer} twice")));
            }
        }
    }
    let missing = kinds.iter().position(Option::is_none).map(|i| format!("no layer {}", i + 1));
    match missing {
        Some(missing) => Err(lists_disagree(fields, missing)),
        None => Ok(kinds.into_iter().flatten().collect()),
    }
}

fn lists_disagree(fields: &Fields, value: String) -> Error {
    Error::ConfigField {
        field: fields.path("linear_attn_config"),
        value,
        bound: "full_attn_layers and kda_layers that name every layer once, counting from 1".into(),
        remedy: "correct the lists".into(),
    }
}

/// `MiniMax` as converted for the reference library: the class has a pattern of its own.
pub(super) fn minimax(fields: &Fields) -> Result<Stack> {
    lightning(fields, 32, HeadRules { hidden: 4096, heads: 32, heads_kv: Some(8), head_dim: None }, false)
}

/// `MiniMax` as its publisher writes it: the list decides.
pub(super) fn minimax_text(fields: &Fields) -> Result<Stack> {
    lightning(fields, 80, HeadRules { hidden: 6144, heads: 64, heads_kv: Some(8), head_dim: None }, true)
}

fn lightning(fields: &Fields, layers: u32, rules: HeadRules, list_needed: bool) -> Result<Stack> {
    let n_layers = patterns::n_layers(fields, &["num_hidden_layers"], layers)?;
    let heads = dense::heads(fields, rules, n_layers)?;
    let listed = fields.ints("attn_type_list", 0, 1)?;
    let kinds = patterns::listed(fields, n_layers, &[Kind::Full, Kind::Linear])?;
    let full: Vec<bool> = match (listed, kinds) {
        (Some(list), _) => {
            let list = fields.per_layer("attn_type_list", list, n_layers)?;
            list.into_iter().map(|kind| kind == 1).collect()
        }
        (None, Some(kinds)) => kinds.into_iter().map(|kind| kind == Kind::Full).collect(),
        (None, None) if list_needed => {
            let bound = "a list of 0 (lightning) and 1 (softmax), one a layer";
            return Err(fields.bad(
                "attn_type_list",
                bound,
                "the family has no default pattern: add the list",
            ));
        }
        (None, None) => (0..n_layers).map(|i| i % 2 == 0).collect(),
    };
    let ropes =
        Ropes::new(fields, with_rotary_dim(fields, RopeRules { theta: 1e6, ..ROPE }, heads.dim)?, heads.dim);
    let design = |(at, full): (usize, bool)| {
        if !full {
            return Ok(Design::Lightning(Lightning { heads: heads.q[at], dim: heads.dim, n_layers }));
        }
        if heads.kv[at] == 0 {
            return Ok(Design::None);
        }
        let rope = Some(ropes.get(RopeKind::Full)?);
        Ok(Design::Full(dense::plain(heads.q[at], heads.kv[at], heads.dim, rope)))
    };
    let designs = full.into_iter().enumerate().map(design).collect::<Result<_>>()?;
    Ok(numbered(designs).into())
}

pub(super) fn lfm2(fields: &Fields) -> Result<Stack> {
    short_conv(fields, HeadRules { hidden: 2560, heads: 32, heads_kv: Some(8), head_dim: None }, true)
}

pub(super) fn lfm2_moe(fields: &Fields) -> Result<Stack> {
    short_conv(fields, HeadRules { hidden: 2048, heads: 32, heads_kv: Some(8), head_dim: None }, false)
}

/// Full attention and short convolutions over the hidden width.
fn short_conv(fields: &Fields, rules: HeadRules, default_full: bool) -> Result<Stack> {
    let n_layers = patterns::n_layers(fields, &["num_hidden_layers"], 32)?;
    let heads = dense::heads(fields, rules, n_layers)?;
    let hidden = fields.size("hidden_size", rules.hidden)?;
    let taps = fields.count("conv_L_cache", 1, MAX_TAPS, 3)?;
    let kinds = patterns::listed(fields, n_layers, &[Kind::Full, Kind::Conv])?;
    let full: Vec<bool> = match (kinds, fields.ints("full_attn_idxs", 0, n_layers - 1)?) {
        (Some(kinds), _) => kinds.into_iter().map(|kind| kind == Kind::Full).collect(),
        (None, Some(full)) => (0..n_layers).map(|i| full.contains(&i)).collect(),
        (None, None) if default_full => vec![true; n_layers as usize],
        (None, None) => {
            let bound = "a list of full_attention and conv, one a layer";
            return Err(fields.bad("layer_types", bound, "the family has no default pattern: add the list"));
        }
    };
    let ropes = Ropes::new(fields, RopeRules { theta: 1e6, ..ROPE }, heads.dim);
    let design = |(at, full): (usize, bool)| {
        if !full {
            return Ok(Design::ShortConv { channels: hidden, conv: taps });
        }
        if heads.kv[at] == 0 {
            return Ok(Design::None);
        }
        let rope = Some(ropes.get(RopeKind::Full)?);
        Ok(Design::Full(dense::plain(heads.q[at], heads.kv[at], heads.dim, rope)))
    };
    let designs = full.into_iter().enumerate().map(design).collect::<Result<_>>()?;
    Ok(numbered(designs).into())
}
