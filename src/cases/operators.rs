//! The operators that a case can name, one file a family.

mod attention;
mod delta;
mod latent;
mod recurrent;
mod sparse;

use std::collections::BTreeMap;

use super::{Case, HostTensor, Outcome};
use crate::reference::Rounding;
use crate::{DType, Gpu, Result};

/// An operator as cases name it.
pub(super) struct Operator {
    /// `op` in case files.
    pub(super) name: &'static str,
    /// Kernels, or ways of computing; those that end in `_subgroup` need a known subgroup size.
    pub(super) paths: &'static [&'static str],
    /// Storage types that `run` takes.
    pub(super) dtypes: &'static [DType],
    /// The outputs by definition, from inputs rounded to a storage type.
    pub(super) reference: fn(&Case, DType, Rounding) -> Result<BTreeMap<String, HostTensor>>,
    /// The outputs of a device, with one path or the plan's.
    pub(super) run: fn(&Gpu, &Case, DType, Option<&str>) -> Result<Outcome>,
}

/// One line an operator.
pub(super) const OPERATORS: &[Operator] = &[
    attention::ATTENTION,
    delta::DELTA_RULE,
    delta::GATED_DELTA_RULE,
    delta::KDA,
    latent::MLA,
    latent::ROPE,
    recurrent::CAUSAL_CONV1D,
    recurrent::LIGHTNING,
    recurrent::SELECTIVE_SCAN,
    sparse::INDEXED_ATTENTION,
    sparse::NSA,
    sparse::TOP_K,
];

pub(super) fn named(name: &str) -> Option<&'static Operator> {
    OPERATORS.iter().find(|o| o.name == name)
}
