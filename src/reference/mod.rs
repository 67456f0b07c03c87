//! The definitions, in f64 and in plain loops: what kernels are judged by.
//!
//! Nothing here names a device, a tile or an online softmax: a reference that repeats the kernel's method
//! would share its mistakes.

mod attention;
mod delta;
mod merge;
mod mla;
pub mod quantised;
mod rope;
mod sparse;

pub use attention::{AttentionCase, Rounding, attention};
pub use delta::{DeltaCase, DeltaDecay, DeltaResult, delta_rule};
pub use merge::merge;
pub use mla::{MlaCase, mla};
pub use rope::rope;
pub use sparse::{IndexCase, IndexedCase, NsaCase, NsaResult, index_scores, indexed_attention, nsa, top_k};
