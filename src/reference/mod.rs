//! The definitions, in f64 and in plain loops: what kernels are judged by.
//!
//! Nothing here names a device, a tile or an online softmax: a reference that repeats the kernel's method
//! would share its mistakes.

mod attention;
mod conv;
mod delta;
mod lightning;
mod merge;
mod mla;
mod norm;
pub mod quantised;
mod rope;
mod scan;
mod sparse;

pub use attention::{AttentionCase, Rounding, attention};
pub use conv::{ConvCase, causal_conv1d};
pub use delta::{DeltaCase, DeltaDecay, DeltaResult, delta_rule};
pub use lightning::{LightningCase, lightning_attention};
pub use merge::merge;
pub use mla::{MlaCase, mla};
pub use norm::{NormCase, gated_norm};
pub use rope::rope;
pub use scan::{ScanCase, SsdCase, selective_scan, ssd};
pub use sparse::{IndexCase, IndexedCase, NsaCase, NsaResult, index_scores, indexed_attention, nsa, top_k};
