//! Layers that keep a state instead of tokens: linear attention and state-space layers.

mod delta;
mod delta_launch;
mod delta_plan;

pub use delta::{DeltaInputs, DeltaOutput, DeltaRule, DeltaShape};
pub use delta_plan::DeltaPlan;
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
