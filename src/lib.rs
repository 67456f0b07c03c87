//! Modern LLM attention on any GPU: WGSL compute kernels and a Rust dispatcher on wgpu.
//!
//! Start at [`Attention`] and [`Gpu`]; `docs/architecture.md` draws the way of a call.

mod attention;
#[doc(hidden)]
pub mod cases;
mod error;
mod gpu;
mod kernels;
mod limits;
pub mod linear;
mod mask;
#[doc(hidden)]
pub mod measure;
pub mod model;
mod plan;
pub mod reference;
#[doc(hidden)]
pub mod shaders;

pub use attention::{
    Attention, AttentionOutput, AttentionShape, MAX_DIM, Partial, merge_partials, record_merge,
};
pub use error::{Error, Result};
pub use gpu::{AdapterSummary, Backend, DType, Element, Gpu, GpuBuilder, Tensor, adapters};
pub use limits::{LOOP_ITERATIONS, Limits, SUBGROUP_SIZES};
pub use mask::{MAX_POSITION, Mask, Positions};
pub use plan::AttentionPlan;

/// The README's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
