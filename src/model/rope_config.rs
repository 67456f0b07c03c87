//! Rotary positions as a configuration states them, in the old and the new spelling.

use std::cell::OnceCell;
use std::sync::Arc;

use serde_json::Value;

use super::config::{Fields, Given, MAX_POSITION};
use super::rope::{Rope, RopeLayout, RopeScaling};
use crate::Result;

/// Which of two sets of parameters a layer takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RopeKind {
    Full,
    Sliding,
    Chunked,
}

impl RopeKind {
    fn key(self) -> &'static str {
        match self {
            Self::Full => "full_attention",
            Self::Sliding => "sliding_attention",
            Self::Chunked => "chunked_attention",
        }
    }
}

/// What a family says of rotation where the file is silent.
#[derive(Debug, Clone, Copy)]
pub(super) struct RopeRules {
    pub(super) theta: f64,
    /// The sliding layers' own base, for families that scale only their full layers.
    pub(super) local: Option<Local>,
    /// Share of the head width that turns.
    pub(super) partial: f64,
    pub(super) layout: RopeLayout,
    /// Scaling of the class default, when the file has no rotary object at all.
    pub(super) absent: Absent,
    /// Names that mean `longrope` in this family.
    pub(super) yarn_is_longrope: bool,
}

/// Base of the sliding layers and whether the file may override it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Local {
    /// `rope_local_base_freq`, with a default.
    Own(f64),
    /// The full layers' base.
    Same,
}

/// Class default of the rotary object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Absent {
    Default,
    /// Yarn with this factor and original length; beta 32 and 1.
    Yarn {
        factor: f64,
        original: u32,
        truncate: bool,
        mscale: Option<f64>,
    },
    /// A quarter of the width turns in full layers.
    ProportionalFull,
}

pub(super) const ROPE: RopeRules = RopeRules {
    theta: 1e4,
    local: None,
    partial: 1.0,
    layout: RopeLayout::Half,
    absent: Absent::Default,
    yarn_is_longrope: false,
};

const THETA: (f64, f64) = (1.000_001, 1e15);
const FACTOR: (f64, f64) = (1.0, 1e6);

/// Reads the rotation of layers of `kind` whose queries are `width` wide.
fn read(fields: &Fields, rules: &RopeRules, kind: RopeKind, width: u32, whole: bool) -> Result<Rope> {
    let sliding_apart = rules.local.is_some() && kind == RopeKind::Sliding;
    let outer = match fields.object("rope_scaling")? {
        Some(object) => Some((object, "rope_scaling")),
        None => fields.object("rope_parameters")?.map(|object| (object, "rope_parameters")),
    };
    // new spelling, nested: one object a layer type
    let nested = outer
        .as_ref()
        .filter(|(o, _)| o.entries().any(|(key, value)| key.ends_with("_attention") && value.is_object()));
    let (object, is_nested) = match nested {
        Some((object, name)) => match object.object(kind.key())? {
            Some(inner) => (Some(inner), true),
            None if rules.local.is_some() => (None, true),
            None => {
                let path = format!("{name}.{}", kind.key());
                return Err(fields.bad(&path, "an object", "add the parameters of this layer type"));
            }
        },
        // old spelling: the sliding layers of such families are never stretched
        None if sliding_apart => (None, false),
        None => (outer.map(|(object, _)| object), false),
    };
    let theta = theta(fields, rules, object.as_ref(), is_nested, sliding_apart)?;
    let partial = if whole { 1.0 } else { partial(fields, rules, object.as_ref())? };
    let rotary_dim = rotary_dim(fields, width, partial)?;
    let scaling = match &object {
        Some(object) => scaling(fields, object, rules, width, rotary_dim, partial)?,
        None => absent(rules.absent, kind, width),
    };
    let rotary_dim = if matches!(scaling, RopeScaling::Proportional { .. }) { width } else { rotary_dim };
    Ok(Rope { theta, rotary_dim, layout: rules.layout, scaling })
}

fn theta(
    fields: &Fields,
    rules: &RopeRules,
    object: Option<&Fields>,
    nested: bool,
    sliding_apart: bool,
) -> Result<f64> {
    if let Some(object) = object
        && let Some(theta) = object.real("rope_theta", THETA.0, THETA.1)?.or(None)
    {
        return Ok(theta);
    }
    let global = fields.real("rope_theta", THETA.0, THETA.1)?.or(None);
    Ok(match rules.local {
        Some(Local::Own(default)) if sliding_apart => {
            fields.real("rope_local_base_freq", THETA.0, THETA.1)?.or(None).unwrap_or(default)
        }
        Some(Local::Same) if nested && sliding_apart => rules.theta,
        _ => global.unwrap_or(rules.theta),
    })
}

fn partial(fields: &Fields, rules: &RopeRules, object: Option<&Fields>) -> Result<f64> {
    if let Some(object) = object
        && let Some(partial) = object.real("partial_rotary_factor", 0.0, 1.0)?.or(None)
    {
        return Ok(partial);
    }
    if rules.absent == Absent::ProportionalFull {
        return Ok(1.0); // its share belongs to the default object, not to the family
    }
    Ok(fields.real("partial_rotary_factor", 0.0, 1.0)?.or(None).unwrap_or(rules.partial))
}

/// The even number of dimensions that a share of `width` leaves to turn.
pub(super) fn rotary_dim(fields: &Fields, width: u32, partial: f64) -> Result<u32> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "partial is within 0..=1")]
    let dim = (f64::from(width) * partial) as u32;
    if dim >= 2 && dim.is_multiple_of(2) {
        return Ok(dim);
    }
    let bound = format!("a share that leaves an even number of the {width} dimensions to rotate, not {dim}");
    Err(fields.bad("partial_rotary_factor", bound, "correct the file"))
}

fn absent(absent: Absent, kind: RopeKind, width: u32) -> RopeScaling {
    match absent {
        Absent::Yarn { factor, original, truncate, mscale } => RopeScaling::Yarn {
            factor,
            original,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate,
            attention_factor: None,
            mscale,
            mscale_all_dim: mscale,
        },
        Absent::ProportionalFull if kind == RopeKind::Full => {
            RopeScaling::Proportional { rotated: width / 8 * 2, factor: 1.0 }
        }
        _ => RopeScaling::Default,
    }
}

fn scaling(
    fields: &Fields,
    object: &Fields,
    rules: &RopeRules,
    width: u32,
    rotary_dim: u32,
    partial: f64,
) -> Result<RopeScaling> {
    let spelling = object.any(&["rope_type", "type"]);
    let name = object.text(spelling)?.unwrap_or("default");
    let name = if rules.yarn_is_longrope && name == "yarn" { "longrope" } else { name };
    let factor = || match object.real("factor", FACTOR.0, FACTOR.1)? {
        Given::Is(factor) => Ok(factor),
        _ => Err(object.bad("factor", "a number of at least 1", "give the scaling its factor")),
    };
    match name {
        // the three axes of an image model's positions are equal for text
        "default" | "mrope" => Ok(RopeScaling::Default),
        "linear" => Ok(RopeScaling::Linear { factor: factor()? }),
        "dynamic" => Ok(RopeScaling::Dynamic { factor: factor()?, max_position: max_position(fields)? }),
        "yarn" => yarn(fields, object),
        "llama3" => {
            let low_freq_factor = required(object, "low_freq_factor")?;
            let high_freq_factor = required(object, "high_freq_factor")?;
            Ok(RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor,
                high_freq_factor,
                original: original(fields, object)?,
            })
        }
        "longrope" | "su" => longrope(fields, object, rotary_dim),
        "proportional" if rules.absent == Absent::ProportionalFull => {
            let factor = object.real("factor", FACTOR.0, FACTOR.1)?.or(None).unwrap_or(1.0);
            Ok(RopeScaling::Proportional { rotated: self::rotary_dim(fields, width, partial)?, factor })
        }
        _ => Err(object.bad(
            spelling,
            "one of default, linear, dynamic, yarn, llama3, longrope, su, mrope (and proportional for gemma4)",
            "only these rotations are known",
        )),
    }
}

fn required(object: &Fields, name: &'static str) -> Result<f64> {
    object
        .real(name, 1e-6, 1e6)?
        .or(None)
        .ok_or_else(|| object.bad(name, "a positive number", "give the scaling this parameter"))
}

fn max_position(fields: &Fields) -> Result<u32> {
    let name = fields.any(&["max_position_embeddings", "model_max_length"]);
    match fields.int(name, 1, MAX_POSITION)? {
        Given::Is(length) => Ok(length),
        _ => Err(fields.bad(name, "the trained length", "the scaling is relative to it: add the field")),
    }
}

/// Length before stretching: the top level's word first, then the object's, then the trained length.
fn original(fields: &Fields, object: &Fields) -> Result<u32> {
    const NAME: &str = "original_max_position_embeddings";
    for place in [fields, object] {
        if let Given::Is(length) = place.int(NAME, 1, MAX_POSITION)? {
            return Ok(length);
        }
    }
    max_position(fields)
}

fn yarn(fields: &Fields, object: &Fields) -> Result<RopeScaling> {
    let original = original(fields, object)?;
    let factor = match object.real("factor", FACTOR.0, FACTOR.1)? {
        Given::Is(factor) => factor,
        _ => (f64::from(max_position(fields)?) / f64::from(original)).max(1.0),
    };
    let optional = |name| Ok(object.real(name, 0.0, 1e3)?.or(None));
    Ok(RopeScaling::Yarn {
        factor,
        original,
        beta_fast: optional("beta_fast")?.unwrap_or(32.0),
        beta_slow: optional("beta_slow")?.unwrap_or(1.0),
        truncate: object.flag("truncate", true)?,
        attention_factor: optional("attention_factor")?,
        mscale: optional("mscale")?,
        mscale_all_dim: optional("mscale_all_dim")?,
    })
}

fn longrope(fields: &Fields, object: &Fields, rotary_dim: u32) -> Result<RopeScaling> {
    let factors = |name: &'static str| -> Result<Arc<[f64]>> {
        let list = object.list(name)?.unwrap_or_default();
        let numbers: Option<Arc<[f64]>> =
            list.iter().map(Value::as_f64).map(|x| x.filter(|x| x.is_finite() && *x > 0.0)).collect();
        numbers.filter(|numbers| numbers.len() == rotary_dim as usize / 2).ok_or_else(|| {
            let bound = format!("{} positive numbers, one a rotated pair", rotary_dim / 2);
            object.bad(name, bound, "correct the list")
        })
    };
    let original = original(fields, object)?;
    let stretch = match object.real("factor", FACTOR.0, FACTOR.1)? {
        Given::Is(factor) => factor,
        _ => f64::from(max_position(fields)?) / f64::from(original),
    };
    let derived = if stretch <= 1.0 || original < 2 {
        1.0
    } else {
        (1.0 + stretch.ln() / f64::from(original).ln()).sqrt()
    };
    let attention_factor = object.real("attention_factor", 1e-3, 1e3)?.or(None).unwrap_or(derived);
    Ok(RopeScaling::LongRope {
        short: factors("short_factor")?,
        long: factors("long_factor")?,
        original,
        attention_factor,
    })
}

/// The rotations of a model's layers, each read once and only if a layer has it.
pub(super) struct Ropes<'a, 'f> {
    fields: &'a Fields<'f>,
    rules: RopeRules,
    width: u32,
    whole: bool,
    read: [OnceCell<Rope>; 3],
}

impl<'a, 'f> Ropes<'a, 'f> {
    pub(super) fn new(fields: &'a Fields<'f>, rules: RopeRules, width: u32) -> Self {
        Self { fields, rules, width, whole: false, read: Default::default() }
    }

    /// Rotations of the whole width, whatever share the file states.
    pub(super) fn whole(fields: &'a Fields<'f>, rules: RopeRules, width: u32) -> Self {
        Self { whole: true, ..Self::new(fields, rules, width) }
    }

    pub(super) fn get(&self, kind: RopeKind) -> Result<Rope> {
        let cell = &self.read[kind as usize];
        if let Some(rope) = cell.get() {
            return Ok(rope.clone());
        }
        let rope = read(self.fields, &self.rules, kind, self.width, self.whole)?;
        Ok(cell.get_or_init(|| rope).clone())
    }
}
