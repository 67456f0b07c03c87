//! The only folder that names wgpu: devices, buffers, shader sources, pipelines, recording, reading back.

mod builder;
mod device;
mod record;
pub(crate) mod shader;
mod tensor;
mod timer;

pub use builder::{AdapterSummary, Backend, GpuBuilder, adapters};
pub use device::Gpu;
pub(crate) use record::{Binding, Copy, Step, Table};
pub use tensor::{DType, Element, Tensor};
pub use timer::{Clock, Timing};
