//! Which kind of mixer each layer has: from the file's list, or from the family's rule.

use serde_json::Value;

use super::super::config::{Fields, MAX_LAYERS, MAX_POSITION, show, whole};
use crate::{Error, Result};

/// Kind of a layer's mixer, as `layer_types` names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Full,
    Sliding,
    Chunked,
    Linear,
    Indexed,
    Conv,
    /// A feed-forward block that counts as a layer of its own.
    Feed,
}

/// A dense family's rule for windows where the file has no list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Pattern {
    /// All full; the family knows no window.
    Full,
    /// All sliding if the window is set; the default window.
    AllSliding(Option<u32>),
    /// Full every `period`-th layer, else sliding with this default window; the file may name the period.
    Every { period: u32, window: u32 },
    /// `use_sliding_window`, then sliding from `max_window_layers` on.
    From(u32),
    /// `use_sliding_window`, then sliding in even layers below `max_window_layers`.
    EvenBelow(u32),
    /// `use_sliding_window`, then sliding in every layer.
    IfUsed,
    /// `use_sliding_window`, then sliding in the layers without positions.
    UnrotatedIfUsed,
}

/// The number of layers.
pub(super) fn n_layers(fields: &Fields, names: &[&'static str], default: u32) -> Result<u32> {
    fields.count(fields.any(names), 1, MAX_LAYERS, default)
}

/// Reads the file's list of layer kinds, if it has one.
pub(super) fn listed(fields: &Fields, n_layers: u32, allowed: &[Kind]) -> Result<Option<Vec<Kind>>> {
    let name = fields.any(&["layer_types", "layers_block_type"]);
    let Some(list) = fields.list(name)? else { return Ok(None) };
    let each = |value: &Value| {
        let kind = value.as_str().and_then(kind).filter(|kind| allowed.contains(kind));
        kind.ok_or_else(|| Error::UnsupportedModel {
            family: fields.family.to_owned(),
            field: fields.path(name),
            value: show(value),
            reason: "the family has no such layers".into(),
            nearest: super::nearest_other(fields.family),
        })
    };
    let kinds = list.iter().map(each).collect::<Result<Vec<_>>>()?;
    fields.per_layer(name, kinds, n_layers).map(Some)
}

fn kind(name: &str) -> Option<Kind> {
    Some(match name {
        "full_attention" | "attention" => Kind::Full,
        "sliding_attention" => Kind::Sliding,
        "chunked_attention" => Kind::Chunked,
        "linear_attention" | "mamba" => Kind::Linear,
        "indexed_attention" | "deepseek_sparse_attention" => Kind::Indexed,
        "conv" => Kind::Conv,
        "moe" | "mlp" => Kind::Feed,
        _ => return None,
    })
}

/// Window of each layer (`None`: full), from the list or the family's rule.
pub(super) fn windows(
    fields: &Fields,
    pattern: Pattern,
    n_layers: u32,
    rotated: &[bool],
) -> Result<Vec<Option<u32>>> {
    let rule = rule(fields, pattern, n_layers, rotated)?;
    let listed = listed(fields, n_layers, &[Kind::Full, Kind::Sliding])?;
    let Some(kinds) = listed else {
        return Ok(rule.sliding.iter().zip(&rule.windows).map(|(s, w)| w.filter(|_| *s)).collect());
    };
    let with_window = kinds.iter().zip(&rule.windows).map(|(kind, window)| match kind {
        Kind::Sliding if window.is_none() => Err(fields.bad(
            "sliding_window",
            "a positive window, since layer_types has sliding_attention",
            "set sliding_window, or make those layers full_attention",
        )),
        Kind::Sliding => Ok(*window),
        _ => Ok(None),
    });
    with_window.collect()
}

fn default_window(pattern: Pattern) -> Option<u32> {
    match pattern {
        Pattern::AllSliding(window) => window,
        Pattern::Every { window, .. } => Some(window),
        Pattern::From(_) | Pattern::EvenBelow(_) | Pattern::IfUsed => Some(4096),
        Pattern::Full | Pattern::UnrotatedIfUsed => None,
    }
}

/// Whether the model has a window at all, whichever layers use it.
pub(super) fn has_window(fields: &Fields, pattern: Pattern) -> bool {
    // a list, which one layer is too few for, counts as a window
    spans(fields, 1, default_window(pattern)).map_or(true, |windows| windows[0].is_some())
}

/// The family's rule: which layers slide, and the window they would have.
struct Rule {
    sliding: Vec<bool>,
    windows: Vec<Option<u32>>,
}

fn rule(fields: &Fields, pattern: Pattern, n_layers: u32, rotated: &[bool]) -> Result<Rule> {
    let mut windows = spans(fields, n_layers, default_window(pattern))?;
    let gated = matches!(
        pattern,
        Pattern::From(_) | Pattern::EvenBelow(_) | Pattern::IfUsed | Pattern::UnrotatedIfUsed
    );
    if gated && !fields.flag("use_sliding_window", false)? {
        windows = vec![None; n_layers as usize];
    }
    let sliding: Vec<bool> = match pattern {
        Pattern::Full => vec![false; n_layers as usize],
        Pattern::AllSliding(_) | Pattern::IfUsed => vec![true; n_layers as usize],
        Pattern::UnrotatedIfUsed => rotated.iter().map(|rotated| !rotated).collect(),
        Pattern::From(default) => {
            let first = fields.count("max_window_layers", 0, MAX_LAYERS, default)?;
            (0..n_layers).map(|i| i >= first).collect()
        }
        Pattern::EvenBelow(default) => {
            let end = fields.count("max_window_layers", 0, MAX_LAYERS, default)?;
            (0..n_layers).map(|i| i % 2 == 0 && i < end).collect()
        }
        Pattern::Every { period, .. } => {
            let period = every(fields, period)?;
            (0..n_layers).map(|i| (i + 1) % period != 0).collect()
        }
    };
    Ok(Rule { sliding, windows })
}

fn every(fields: &Fields, period: u32) -> Result<u32> {
    let name = fields.any(&["sliding_window_pattern", "_sliding_window_pattern"]);
    let has_list = fields.list(fields.any(&["layer_types", "layers_block_type"]))?.is_some();
    if has_list {
        return Ok(period); // the list decides, whatever the pattern says
    }
    Ok(fields.int(name, 1, MAX_LAYERS)?.or(Some(period)).unwrap_or(period))
}

/// `sliding_window` as one number for all layers, or as a list that repeats over them.
fn spans(fields: &Fields, n_layers: u32, default: Option<u32>) -> Result<Vec<Option<u32>>> {
    const NAME: &str = "sliding_window";
    let super::super::config::Given::Is(Value::Array(_)) = fields.get(NAME) else {
        return Ok(vec![fields.span(NAME, default)?; n_layers as usize]);
    };
    let list = fields.list(NAME)?.unwrap_or_default();
    let each = |value: &Value| match value {
        Value::Null => Ok(None),
        value => whole(value, 0, MAX_POSITION)
            .map(|w| Some(w).filter(|w| *w > 0))
            .ok_or_else(|| fields.bad(NAME, "a list of windows and nulls", "correct the list")),
    };
    let list = list.iter().map(each).collect::<Result<Vec<_>>>()?;
    if list.is_empty() || list.len() > n_layers as usize {
        return Err(fields.bad(NAME, format!("a list of 1 to {n_layers} windows"), "correct the list"));
    }
    Ok(list.into_iter().cycle().take(n_layers as usize).collect())
}
