//! Families with state-space layers, alone, among or beside attention.

use serde_json::Value;

use super::super::config::{Fields, Given, MAX_LAYERS, MAX_SIZE};
use super::super::layers::{Attention, Design, SelectiveScan, Ssd};
use super::super::rope_config::{ROPE, RopeKind, RopeRules, Ropes};
use super::dense::{self, HeadRules, Heads};
use super::hybrid::{MAX_TAPS, channels};
use super::patterns::{self, Kind};
use super::{Stack, numbered};
use crate::{Error, Result};

/// The inner width: `expand` times the hidden size.
fn inner(fields: &Fields, expand: &'static str, hidden: u32) -> Result<u32> {
    let expand = fields.count(expand, 1, 1024, 2)?;
    let wide = u64::from(expand) * u64::from(hidden);
    channels(fields, "hidden_size", wide)?;
    u32::try_from(wide).map_err(|_| fields.bad("hidden_size", "smaller", "correct the file"))
}

/// A size that may be the word `auto`.
fn auto(fields: &Fields, name: &'static str, derived: u32) -> Result<u32> {
    match fields.get(name) {
        Given::Is(Value::String(word)) if word == "auto" => Ok(derived),
        _ => Ok(fields.int(name, 1, MAX_SIZE)?.or(None).unwrap_or(derived)),
    }
}

/// Jamba: attention without rotation every so many layers, Mamba-1 between.
pub(super) fn jamba(fields: &Fields) -> Result<Stack> {
    let n_layers = patterns::n_layers(fields, &["num_hidden_layers"], 32)?;
    let rules = HeadRules { hidden: 4096, heads: 32, heads_kv: Some(8), head_dim: None };
    let heads = dense::heads(fields, rules, n_layers)?;
    let hidden = fields.size("hidden_size", rules.hidden)?;
    let period = fields.count("attn_layer_period", 1, MAX_LAYERS, 8)?;
    let offset = fields.count("attn_layer_offset", 0, MAX_LAYERS, 4)?;
    if offset >= period {
        let bound = format!("less than attn_layer_period ({period})");
        return Err(fields.bad("attn_layer_offset", bound, "correct one of the two"));
    }
    let scan = SelectiveScan {
        channels: inner(fields, "mamba_expand", hidden)?,
        state: fields.size("mamba_d_state", 16)?,
        conv: fields.count("mamba_d_conv", 1, MAX_TAPS, 4)?,
        dt_rank: auto(fields, "mamba_dt_rank", hidden.div_ceil(16))?,
    };
    let design = |i: u32| match heads.kv[i as usize] {
        _ if i % period != offset => Design::SelectiveScan(scan),
        0 => Design::None,
        kv => Design::Full(dense::plain(heads.q[i as usize], kv, heads.dim, None)),
    };
    Ok(numbered((0..n_layers).map(design).collect()).into())
}

/// Mamba-1 throughout.
pub(super) fn mamba(fields: &Fields) -> Result<Stack> {
    let n_layers = patterns::n_layers(fields, &["num_hidden_layers", "n_layer"], 32)?;
    let hidden = fields.size(fields.any(&["hidden_size", "d_model"]), 768)?;
    let scan = SelectiveScan {
        channels: inner(fields, "expand", hidden)?,
        state: fields.size("state_size", 16)?,
        conv: fields.count("conv_kernel", 1, MAX_TAPS, 4)?,
        dt_rank: auto(fields, "time_step_rank", hidden.div_ceil(16))?,
    };
    Ok(numbered(vec![Design::SelectiveScan(scan); n_layers as usize]).into())
}

/// Refuses heads that do not make up the inner width, and convolutions too wide to count.
fn checked(fields: &Fields, name: &'static str, ssd: Ssd, inner: Option<u32>) -> Result<Ssd> {
    let heads = u64::from(ssd.heads) * u64::from(ssd.dim);
    channels(fields, name, heads + 2 * u64::from(ssd.groups) * u64::from(ssd.state))?;
    match inner.filter(|inner| u64::from(*inner) != heads) {
        None => Ok(ssd),
        Some(inner) => Err(Error::ConfigField {
            field: fields.path(name),
            value: format!("{} heads of {}", ssd.heads, ssd.dim),
            bound: format!("heads that make up the inner width {inner}"),
            remedy: "correct the head count, the head width or the expansion".into(),
        }),
    }
}

/// Mamba-2 throughout.
pub(super) fn mamba2(fields: &Fields) -> Result<Stack> {
    let n_layers = patterns::n_layers(fields, &["num_hidden_layers"], 64)?;
    let hidden = fields.size("hidden_size", 4096)?;
    let ssd = Ssd {
        heads: fields.size("num_heads", 128)?,
        dim: fields.size("head_dim", 64)?,
        state: fields.size("state_size", 128)?,
        groups: fields.size("n_groups", 8)?,
        conv: fields.count("conv_kernel", 1, MAX_TAPS, 4)?,
    };
    let inner = inner(fields, "expand", hidden)?;
    let ssd = checked(fields, "num_heads", ssd, Some(inner))?;
    Ok(numbered(vec![Design::Ssd(ssd); n_layers as usize]).into())
}

/// The Mamba-2 half of Bamba, Falcon-H1 and Granite 4, whose inner width is given or derived.
fn mamba2_half(fields: &Fields, inner: u32) -> Result<Ssd> {
    let heads = fields.size("mamba_n_heads", 128)?;
    let ssd = Ssd {
        heads,
        dim: auto(fields, "mamba_d_head", (inner / heads).max(1))?,
        state: fields.size("mamba_d_state", 256)?,
        groups: fields.size("mamba_n_groups", 1)?,
        conv: fields.count("mamba_d_conv", 1, MAX_TAPS, 4)?,
    };
    checked(fields, "mamba_n_heads", ssd, Some(inner))
}

fn full(
    fields: &Fields,
    heads: &Heads,
    i: usize,
    scale: Option<f64>,
    ropes: Option<&Ropes>,
) -> Result<Attention> {
    if heads.kv[i] == 0 {
        let bound = "at least 1 in every attention layer";
        return Err(fields.bad("num_key_value_heads", bound, "correct the list"));
    }
    let rope = match ropes {
        Some(ropes) => Some(ropes.get(RopeKind::Full)?),
        None => None,
    };
    let mut attention = dense::plain(heads.q[i], heads.kv[i], heads.dim, rope);
    attention.scale = scale.unwrap_or(attention.scale);
    Ok(attention)
}

/// Bamba: attention in the layers listed, Mamba-2 in the others.
pub(super) fn bamba(fields: &Fields) -> Result<Stack> {
    let n_layers = patterns::n_layers(fields, &["num_hidden_layers"], 32)?;
    let rules = HeadRules { hidden: 4096, heads: 32, heads_kv: Some(8), head_dim: None };
    let heads = dense::heads(fields, rules, n_layers)?;
    let hidden = fields.size("hidden_size", rules.hidden)?;
    let ssd = mamba2_half(fields, inner(fields, "mamba_expand", hidden)?)?;
    let listed = fields.ints("attn_layer_indices", 0, n_layers - 1)?.unwrap_or_default();
    // the class fixes the share whatever the file says
    let ropes = Ropes::new(fields, RopeRules { partial: 0.5, ..ROPE }, heads.dim);
    let design = |i: u32| {
        if !listed.contains(&i) {
            return Ok(Design::Ssd(ssd));
        }
        full(fields, &heads, i as usize, None, Some(&ropes)).map(Design::Full)
    };
    Ok(numbered((0..n_layers).map(design).collect::<Result<_>>()?).into())
}

/// Falcon-H1: attention and Mamba-2 side by side in every layer.
pub(super) fn falcon_h1(fields: &Fields) -> Result<Stack> {
    let n_layers = patterns::n_layers(fields, &["num_hidden_layers"], 32)?;
    let rules = HeadRules { hidden: 4096, heads: 32, heads_kv: Some(8), head_dim: None };
    let heads = dense::heads(fields, rules, n_layers)?;
    let hidden = fields.size("hidden_size", rules.hidden)?;
    let width = match fields.int("mamba_d_ssm", 1, MAX_SIZE)?.or(Some(1024)) {
        Some(width) => width,
        None => inner(fields, "mamba_expand", hidden)?,
    };
    let ssd = mamba2_half(fields, width)?;
    let ropes = Ropes::new(fields, ROPE, heads.dim);
    let design =
        |i: usize| Ok(Design::FullAndSsd { attention: full(fields, &heads, i, None, Some(&ropes))?, ssd });
    Ok(numbered((0..n_layers as usize).map(design).collect::<Result<_>>()?).into())
}

/// Granite 4: Mamba-2 with a few attention layers, rotated only if the file says so.
pub(super) fn granite_hybrid(fields: &Fields) -> Result<Stack> {
    let n_layers = patterns::n_layers(fields, &["num_hidden_layers"], 32)?;
    let rules = HeadRules { hidden: 4096, heads: 32, heads_kv: None, head_dim: None };
    let heads = dense::heads(fields, rules, n_layers)?;
    let hidden = fields.size("hidden_size", rules.hidden)?;
    let kinds = patterns::listed(fields, n_layers, &[Kind::Full, Kind::Linear])?
        .unwrap_or_else(|| vec![Kind::Linear; n_layers as usize]);
    let scale = fields.real("attention_multiplier", 1e-9, 1e6)?.or(Some(1.0)).unwrap_or(1.0);
    let ropes = Ropes::new(fields, ROPE, heads.dim);
    let ropes = match fields.text("position_embedding_type")? {
        None | Some("nope") => None,
        Some("rope") => Some(&ropes),
        Some(_) => {
            return Err(fields.bad("position_embedding_type", "rope, nope or null", "no other is known"));
        }
    };
    // a model without state-space layers may leave their sizes out
    let any_linear = kinds.contains(&Kind::Linear);
    let ssd =
        if any_linear { Some(mamba2_half(fields, inner(fields, "mamba_expand", hidden)?)?) } else { None };
    let design = |(i, kind): (usize, Kind)| match ssd {
        Some(ssd) if kind == Kind::Linear => Ok(Design::Ssd(ssd)),
        _ => full(fields, &heads, i, Some(scale), ropes).map(Design::Full),
    };
    let designs = kinds.into_iter().enumerate().map(design).collect::<Result<_>>()?;
    Ok(numbered(designs).into())
}

/// Nemotron-H: every block, feed-forward ones included, counts as a layer; attention is not rotated.
pub(super) fn nemotron_h(fields: &Fields) -> Result<Stack> {
    let kinds = nemotron_kinds(fields)?;
    let n_layers = u32::try_from(kinds.len()).unwrap_or(u32::MAX);
    let rules = HeadRules { hidden: 4096, heads: 32, heads_kv: Some(8), head_dim: Some(128) };
    let heads = dense::heads(fields, rules, n_layers)?;
    let taps = fields.any(&["conv_kernel", "mamba_d_conv"]);
    let ssd = Ssd {
        heads: fields.size("mamba_num_heads", 128)?,
        dim: fields.size("mamba_head_dim", 64)?,
        state: fields.size("ssm_state_size", 128)?,
        groups: fields.size(fields.any(&["n_groups", "mamba_n_groups"]), 8)?,
        conv: fields.count(taps, 1, MAX_TAPS, 4)?,
    };
    let ssd = checked(fields, "mamba_num_heads", ssd, None)?;
    let design = |(i, kind): (usize, Kind)| match kind {
        Kind::Linear => Ok(Design::Ssd(ssd)),
        Kind::Full => full(fields, &heads, i, None, None).map(Design::Full),
        _ => Ok(Design::None),
    };
    let designs = kinds.into_iter().enumerate().map(design).collect::<Result<_>>()?;
    Ok(numbered(designs).into())
}

fn nemotron_kinds(fields: &Fields) -> Result<Vec<Kind>> {
    const PATTERN: &str = "hybrid_override_pattern";
    let stated = fields.int("num_hidden_layers", 1, MAX_LAYERS)?.or(None);
    let name = fields.any(&["layer_types", "layers_block_type"]);
    if let Some(list) = fields.list(name)? {
        let n_layers = stated.unwrap_or(u32::try_from(list.len()).unwrap_or(MAX_LAYERS));
        let allowed = [Kind::Full, Kind::Linear, Kind::Feed];
        return Ok(patterns::listed(fields, n_layers, &allowed)?.unwrap_or_default());
    }
    let Some(pattern) = fields.text(PATTERN)? else {
        return Err(fields.bad(PATTERN, "a string of M, *, - and E", "the family has no default: add it"));
    };
    let kinds: Option<Vec<Kind>> = pattern
        .chars()
        .take(MAX_LAYERS as usize + 1)
        .map(|letter| match letter {
            'M' => Some(Kind::Linear),
            '*' => Some(Kind::Full),
            '-' | 'E' => Some(Kind::Feed),
            _ => None,
        })
        .collect();
    let bound = || match stated {
        Some(n_layers) => format!("a string of {n_layers} letters M, *, - and E"),
        None => format!("a string of 1 to {MAX_LAYERS} letters M, *, - and E"),
    };
    let fits = |kinds: &Vec<Kind>| match stated {
        Some(n_layers) => kinds.len() == n_layers as usize,
        None => (1..=MAX_LAYERS as usize).contains(&kinds.len()),
    };
    kinds.filter(fits).ok_or_else(|| fields.bad(PATTERN, bound(), "correct the pattern"))
}
