//! The definitions, in f64 and in plain loops: what kernels are judged by.
//!
//! Nothing here names a device, a tile or an online softmax: a reference that repeats the kernel's method
//! would share its mistakes.

mod attention;
mod merge;
pub mod quantised;

pub use attention::{AttentionCase, Rounding, attention};
pub use merge::merge;
