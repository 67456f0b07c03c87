//! The definitions, in f64 and in plain loops: what kernels are judged by.
//!
//! Nothing here names a device, a tile or an online softmax: a reference that repeats the kernel's method
//! would share its mistakes.

mod attention;
mod conv;
mod lightning;
mod merge;
mod norm;
mod scan;

pub use attention::{AttentionCase, Rounding, attention};
pub use conv::{ConvCase, causal_conv1d};
pub use lightning::{LightningCase, lightning_attention};
pub use merge::merge;
pub use norm::{NormCase, gated_norm};
pub use scan::{ScanCase, SsdCase, selective_scan, ssd};
