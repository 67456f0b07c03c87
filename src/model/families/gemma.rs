//! Gemma 3n and Gemma 4: late layers read the keys and values of an earlier one.

use super::super::config::{Fields, MAX_LAYERS, MAX_SIZE};
use super::super::layers::{Attention, Design};
use super::super::rope_config::{Absent, RopeKind, RopeRules, Ropes};
use super::dense::{self, HeadRules, Heads};
use super::patterns::{self, Pattern};
use super::table::{Dense, GEMMA_ROPE, GEMMA3, Scale, Softcap};
use super::{Stack, numbered};
use crate::{Error, Result};

const GEMMA3N: Dense = Dense {
    name: "gemma3n_text",
    layers: 35,
    hidden: 2048,
    heads_kv: Some(2),
    pattern: Pattern::Every { period: 5, window: 512 },
    scale: Scale::One,
    softcap: Softcap::Unknown,
    ..GEMMA3
};

pub(super) fn gemma3n(fields: &Fields) -> Result<Stack> {
    let n_layers = patterns::n_layers(fields, &["num_hidden_layers"], GEMMA3N.layers)?;
    let rules = HeadRules {
        hidden: GEMMA3N.hidden,
        heads: GEMMA3N.heads,
        heads_kv: GEMMA3N.heads_kv,
        head_dim: GEMMA3N.head_dim,
    };
    let heads = dense::heads(fields, rules, n_layers)?;
    let layers = dense::attention_layers(fields, &GEMMA3N, &heads)?;
    let designs = layers.into_iter().map(|layer| layer.design).collect();
    Ok(numbered(share(fields, designs, 15)?).into())
}

const GEMMA4_ROPE: RopeRules = RopeRules { absent: Absent::ProportionalFull, ..GEMMA_ROPE };

pub(super) fn gemma4(fields: &Fields) -> Result<Stack> {
    gemma4_with(fields, 512)
}

pub(super) fn gemma4_unified(fields: &Fields) -> Result<Stack> {
    gemma4_with(fields, 1024)
}

/// Gemma 4: full layers have heads of another width, and other key-value heads.
fn gemma4_with(fields: &Fields, window: u32) -> Result<Stack> {
    dense::causal(fields)?;
    let n_layers = patterns::n_layers(fields, &["num_hidden_layers"], 30)?;
    let rules = HeadRules { hidden: 2304, heads: 8, heads_kv: Some(4), head_dim: Some(256) };
    let heads = dense::heads(fields, rules, n_layers)?;
    let pattern = Pattern::Every { period: 6, window };
    let mut windows = patterns::windows(fields, pattern, n_layers, &[])?;
    if let Some(last) = windows.last_mut() {
        *last = None; // the class makes the last layer full whatever the list says
    }
    let sizes = gemma4_sizes(fields, &heads, &windows)?;
    let mut ropes: Vec<(u32, Ropes)> = Vec::new();
    let mut designs = Vec::with_capacity(sizes.len());
    for ((&window, &(heads_kv, dim)), &heads_q) in windows.iter().zip(&sizes).zip(&heads.q) {
        let place = ropes.iter().position(|(width, _)| *width == dim).unwrap_or_else(|| {
            ropes.push((dim, Ropes::new(fields, GEMMA4_ROPE, dim)));
            ropes.len() - 1
        });
        let kind = if window.is_some() { RopeKind::Sliding } else { RopeKind::Full };
        let rope = Some(ropes[place].1.get(kind)?);
        let attention = Attention { scale: 1.0, ..dense::plain(heads_q, heads_kv, dim, rope) };
        designs.push(match window {
            Some(window) => Design::Window { attention, window },
            None => Design::Full(attention),
        });
    }
    Ok(numbered(share(fields, designs, 0)?).into())
}

/// Key-value heads and head width of each layer.
fn gemma4_sizes(fields: &Fields, heads: &Heads, windows: &[Option<u32>]) -> Result<Vec<(u32, u32)>> {
    let mut sizes: Vec<(u32, u32)> = heads.kv.iter().map(|&kv| (kv, heads.dim)).collect();
    if let Some(overrides) = fields.object("per_layer_config")? {
        for (key, _) in overrides.entries() {
            let place = key.parse::<usize>().ok().filter(|place| *place < sizes.len());
            let (Some(place), Some(own)) = (place, overrides.entry(key)?) else {
                return Err(overrides.bad(key, "an entry for one of the layers", "correct the file"));
            };
            let (kv, dim) = sizes[place];
            sizes[place] = (own.size("num_key_value_heads", kv)?, own.size("head_dim", dim)?);
        }
    } else {
        let dim = fields.size("global_head_dim", 512)?;
        // keys that serve as values too come with key-value heads of their own
        let shared = fields.flag("attention_k_eq_v", false)?;
        let kv = fields.int("num_global_key_value_heads", 1, MAX_SIZE)?.or(None).filter(|_| shared);
        for (size, _) in sizes.iter_mut().zip(windows).filter(|(_, window)| window.is_none()) {
            *size = (kv.unwrap_or(size.0), dim);
        }
    }
    for (&(kv, _), &q) in sizes.iter().zip(&heads.q) {
        dense::grouped(fields, q, kv)?;
    }
    Ok(sizes)
}

/// Makes the last `num_kv_shared_layers` layers read the cache of the last earlier layer of their kind.
fn share(fields: &Fields, mut designs: Vec<Design>, default: u32) -> Result<Vec<Design>> {
    const NAME: &str = "num_kv_shared_layers";
    let shared = fields.count(NAME, 0, MAX_LAYERS, default)? as usize;
    let Some(first) = designs.len().checked_sub(shared).filter(|first| *first > 0) else {
        return Err(Error::ConfigField {
            field: fields.path(NAME),
            value: shared.to_string(),
            bound: format!("less than num_hidden_layers ({})", designs.len()),
            remedy: "some layer must own the keys and values that the others read".into(),
        });
    };
    for i in first..designs.len() {
        let slides = matches!(designs[i], Design::Window { .. });
        let owner = (0..first).rev().find(|&j| matches!(designs[j], Design::Window { .. }) == slides);
        let Some(of) = owner.and_then(|owner| u32::try_from(owner).ok()) else {
            return Err(fields.unsupported(NAME, "no earlier layer of the same kind owns a cache to share"));
        };
        designs[i] = match designs[i].clone() {
            Design::Window { attention, window } => {
                Design::CrossShared { of, attention, window: Some(window) }
            }
            Design::Full(attention) => Design::CrossShared { of, attention, window: None },
            other => other,
        };
    }
    Ok(designs)
}
