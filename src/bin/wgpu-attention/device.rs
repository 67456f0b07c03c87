//! Options that choose an adapter, and what several commands say of it.

use wgpu_attention::{Backend, DType, Gpu};

/// Which adapter to use.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DeviceArgs {
    /// First adapter whose name contains this
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
    /// Adapter by its number in `info`
    #[arg(long, conflicts_with = "adapter")]
    index: Option<usize>,
    /// Only adapters of one backend
    #[arg(long, value_enum)]
    backend: Option<BackendName>,
    /// Only software adapters
    #[arg(long)]
    software: bool,
    /// `WebGPU`'s default limits and no optional feature
    #[arg(long)]
    portable: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum BackendName {
    Vulkan,
    Metal,
    Dx12,
}

/// Storage of queries, keys and values.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Storage {
    F32,
    F16,
    Bf16,
}

impl From<Storage> for DType {
    fn from(storage: Storage) -> Self {
        match storage {
            Storage::F32 => Self::F32,
            Storage::F16 => Self::F16,
            Storage::Bf16 => Self::Bf16,
        }
    }
}

impl DeviceArgs {
    /// Opens the device.
    pub(crate) fn open(&self) -> wgpu_attention::Result<Gpu> {
        let mut builder = Gpu::builder();
        if let Some(name) = &self.adapter {
            builder = builder.adapter(name);
        }
        if let Some(index) = self.index {
            builder = builder.index(index);
        }
        if let Some(backend) = self.backend {
            builder = builder.backend(match backend {
                BackendName::Vulkan => Backend::Vulkan,
                BackendName::Metal => Backend::Metal,
                BackendName::Dx12 => Backend::Dx12,
            });
        }
        if self.software {
            builder = builder.software();
        }
        if self.portable {
            builder = builder.portable();
        }
        builder.build()
    }
}

/// `NAME (kind, backend; driver)`
pub(crate) fn describe(gpu: &Gpu) -> String {
    format!("{} ({}; {})", gpu.name(), gpu.kind(), gpu.driver())
}
