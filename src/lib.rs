//! Modern LLM attention on any GPU: WGSL compute kernels and a Rust dispatcher on wgpu.
//!
//! Start at [`Attention`] and [`Gpu`]; `docs/architecture.md` draws the way of a call.

mod attention;
mod cache;
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
mod mla;
pub mod model;
mod plan;
pub mod reference;
mod rope;
#[doc(hidden)]
pub mod shaders;
mod sparse;

pub use attention::{
    Attention, AttentionOutput, AttentionShape, CachedKv, MAX_DIM, Partial, merge_partials, record_merge,
};
pub use cache::{Cache, CacheBuilder, Prefill, Prefilled, Snapshot};
pub use error::{Error, Result};
pub use gpu::{AdapterSummary, Backend, DType, Element, Gpu, GpuBuilder, Tensor, adapters};
pub use limits::{LOOP_ITERATIONS, Limits, SUBGROUP_SIZES};
pub use mask::{MAX_POSITION, Mask, Positions};
pub use mla::{Mla, MlaOutput, MlaPath, MlaPlan, MlaShape, MlaTensors};
pub use plan::AttentionPlan;
pub use rope::{Angles, Rotary, RotaryTable};
pub use sparse::{
    IndexInputs, IndexKeys, IndexedAttention, Indexer, NativeSparseAttention, NsaInputs, NsaOutput, Prefix,
    SparseAttention, SparseOutput, TopK, TopKOutput, compress_blocks,
};

/// The README's code compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
