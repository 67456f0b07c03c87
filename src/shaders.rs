//! Kernel texts without a device: for the program's `shader` command and for the compilers of other platforms.

mod attention;
mod cache;
mod delta;
mod latent;
mod recurrent;
mod sparse;

use std::collections::BTreeMap;

use crate::gpu::shader::{self, Constants, Value};
use crate::kernels::REGISTRY;
use crate::{Limits, Result};

/// A kernel text as some device would get it.
#[derive(Debug, Clone)]
pub struct Variant {
    /// File stem in `shaders/`.
    pub kernel: &'static str,
    /// `S` needs a known subgroup size, `W` nothing.
    pub family: char,
    /// Kernel and constants.
    pub label: String,
    /// WGSL.
    pub text: String,
    /// Workgroup memory that the host counts on, in bytes.
    pub workgroup_bytes: u32,
}

/// Kernels by name: file stem, operator and family of each.
#[must_use]
pub fn kernels() -> Vec<(&'static str, &'static str, char)> {
    REGISTRY.iter().map(|r| (r.name, r.operator, r.family)).collect()
}

/// Files in `shaders/` that hold an entry point.
#[must_use]
pub fn files() -> Vec<&'static str> {
    shader::kernels().collect()
}

fn constants_of(sets: &[(String, String)]) -> Constants {
    sets.iter().fold(Constants::default(), |constants, (name, value)| {
        let value = match (value.parse::<u32>(), value.parse::<bool>()) {
            (Ok(number), _) => Value::U32(number),
            (_, Ok(switch)) => Value::Bool(switch),
            _ => Value::Name(value.clone().into()),
        };
        constants.set(name.clone(), value)
    })
}

/// Text of a kernel with constants set by name; values are numbers, `true`, `false` or names.
///
/// # Errors
/// No such kernel, or a name that its file does not have.
pub fn source(kernel: &str, sets: &[(String, String)]) -> Result<String> {
    Ok(shader::source(kernel, &constants_of(sets))?.text)
}

/// How often `from` stands in a kernel's lines, before loops are written out.
///
/// # Errors
/// No such kernel.
pub fn occurrences(kernel: &str, from: &str) -> Result<usize> {
    shader::occurrences(kernel, from)
}

/// Place in `shaders/` that line `line` (from 1) of [`source`]'s text stems from.
///
/// # Errors
/// As [`source`].
pub fn origin(kernel: &str, sets: &[(String, String)], line: usize) -> Result<String> {
    let (file, at) = shader::source(kernel, &constants_of(sets))?.origin(line);
    Ok(format!("shaders/{file}:{at}"))
}

/// Bytes of the parameters that the host writes for each kernel with more than a few.
#[must_use]
pub fn params_bytes() -> Vec<(&'static str, usize)> {
    [
        attention::params_bytes(),
        cache::params_bytes(),
        delta::params_bytes(),
        latent::params_bytes(),
        recurrent::params_bytes(),
        sparse::params_bytes(),
    ]
    .concat()
}

/// Devices that nobody has, one for each way a kernel can be tuned.
#[must_use]
pub fn invented_devices() -> Vec<(&'static str, Limits)> {
    let portable = Limits::webgpu();
    let large = Limits { workgroup_memory: 32 << 10, f16: true, ..portable.clone() };
    vec![
        ("portable", portable.clone()),
        ("software, 8 wide", Limits { subgroup: Some(8), software: true, ..portable.clone() }),
        ("software, 4 wide", Limits { subgroup: Some(4), software: true, ..portable.clone() }),
        ("software, 16 wide", Limits { subgroup: Some(16), software: true, ..portable }),
        ("32 wide", Limits { subgroup: Some(32), ..large.clone() }),
        ("64 wide", Limits { subgroup: Some(64), ..large.clone() }),
        ("no fixed subgroup size", large),
    ]
}

/// Variants by label: one that several devices get is listed once.
#[derive(Debug, Default)]
struct Variants(BTreeMap<String, Variant>);

impl Variants {
    fn add(&mut self, kernel: &'static str, constants: &Constants, workgroup_bytes: u32) -> Result<()> {
        let label = constants.label(kernel);
        let family = REGISTRY.iter().find(|r| r.name == kernel).map_or('W', |r| r.family);
        let text = shader::source(kernel, constants)?.text;
        self.0.insert(label.clone(), Variant { kernel, family, label, text, workgroup_bytes });
        Ok(())
    }
}

/// A spread of variants that uses every kernel, option and storage type at least once.
///
/// # Errors
/// None in a sound build.
pub fn variants() -> Result<Vec<Variant>> {
    let mut found = Variants::default();
    attention::variants(&mut found)?;
    cache::variants(&mut found)?;
    delta::variants(&mut found)?;
    latent::variants(&mut found)?;
    recurrent::variants(&mut found)?;
    sparse::variants(&mut found)?;
    Ok(found.0.into_values().collect())
}
