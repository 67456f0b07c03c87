//! Layers that keep a state instead of tokens: linear attention and state-space layers.

mod common;
mod conv;
mod decayed;
mod drive;
mod lightning;
mod norm;
mod scan;
mod ssd;

pub use conv::{CausalConv1d, ConvOutput};
pub use lightning::{LightningAttention, LightningOutput};
pub use norm::GatedNorm;
pub use scan::{ScanInputs, ScanOutput, SelectiveScan};
pub use ssd::{Ssd, SsdInputs, SsdOutput};
