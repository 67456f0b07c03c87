//! Layers that keep a state instead of tokens: linear attention and state-space layers.

mod delta;
mod delta_launch;
mod delta_plan;

pub use delta::{DeltaInputs, DeltaOutput, DeltaRule, DeltaShape};
pub use delta_plan::DeltaPlan;
