//! Named cases: a file with inputs, expected outputs and what computes one from the other.
//!
//! Tests, benches and the program share them, so a name means the same everywhere.

mod file;
mod judge;
mod operators;
mod run;

use std::collections::BTreeMap;

pub use judge::{Cell, Verdict, judge};
pub(crate) use judge::{REL_L2, REL_MAX};
pub use run::{Outcome, paths, run};
pub(crate) use run::{round, upload};

/// A tensor in main memory, packed in row-major order.
#[derive(Debug, Clone, PartialEq)]
pub struct HostTensor {
    /// Entries on each axis.
    pub shape: Vec<usize>,
    /// Elements.
    pub data: HostData,
}

/// Elements of a [`HostTensor`].
#[derive(Debug, Clone, PartialEq)]
pub enum HostData {
    /// Floats; 16-bit files are widened.
    F32(Vec<f32>),
    /// Integers.
    I32(Vec<i32>),
}

/// An operator, its inputs and its expected outputs.
#[derive(Debug, Clone)]
pub struct Case {
    /// File name without its ending.
    pub name: String,
    /// Operator.
    pub op: String,
    /// Its options.
    pub params: serde_json::Value,
    /// Where the expected values come from.
    pub source: String,
    /// `in.*` tensors.
    pub inputs: BTreeMap<String, HostTensor>,
    /// `out.*` tensors.
    pub expected: BTreeMap<String, HostTensor>,
}

macro_rules! embedded {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/", $path, ".safetensors")))),*]
    };
}

/// The cases that the program carries: a spread of options, and two layers of a real model.
#[cfg(feature = "cli")]
const BUILTIN: &[(&str, &[u8])] = embedded![
    "ops/attention_mha_bidirectional",
    "ops/attention_mha_causal",
    "ops/attention_gqa_12_to_4",
    "ops/attention_decode_gqa",
    "ops/attention_window_and_sink_tokens",
    "ops/attention_chunk_32_decode",
    "ops/attention_learned_sinks_window",
    "ops/attention_kv_len_ragged",
    "ops/attention_head_dim_80",
    "ops/attention_more_queries_than_keys",
    "real/gemma3_270m_layer0_sliding",
    "real/gemma3_270m_layer5_full",
];

impl Case {
    /// The cases that the program carries, two layers of Gemma 3 270M among them.
    ///
    /// # Errors
    /// None in a sound build.
    #[cfg(feature = "cli")]
    pub fn builtin() -> crate::Result<Vec<Self>> {
        BUILTIN
            .iter()
            .map(|(path, bytes)| Self::from_bytes(path.rsplit('/').next().unwrap_or(path), bytes))
            .collect()
    }
}

impl HostTensor {
    /// The floats.
    #[must_use]
    pub fn floats(&self) -> Option<&[f32]> {
        match &self.data {
            HostData::F32(data) => Some(data),
            HostData::I32(_) => None,
        }
    }

    /// The integers.
    #[must_use]
    pub fn integers(&self) -> Option<&[i32]> {
        match &self.data {
            HostData::I32(data) => Some(data),
            HostData::F32(_) => None,
        }
    }
}
