//! Choosing an adapter and opening a device on it.

use super::Gpu;
use crate::limits::{Limits, SUBGROUP_SIZES};
use crate::{Error, Result};

/// A graphics interface to reach adapters through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// Vulkan.
    Vulkan,
    /// Metal.
    Metal,
    /// Direct3D 12.
    Dx12,
}

impl Backend {
    fn flags(self) -> wgpu::Backends {
        match self {
            Self::Vulkan => wgpu::Backends::VULKAN,
            Self::Metal => wgpu::Backends::METAL,
            Self::Dx12 => wgpu::Backends::DX12,
        }
    }
}

/// An adapter that is present, and what a device on it can do.
#[derive(Debug, Clone)]
pub struct AdapterSummary {
    /// Adapter name.
    pub name: String,
    /// Backend that shows it.
    pub backend: String,
    /// Kind: discrete, integrated, virtual, software or other.
    pub kind: &'static str,
    /// Driver and its version.
    pub driver: String,
    /// Subgroup sizes, smallest and largest; zeros without subgroup operations.
    pub subgroups: [u32; 2],
    /// What plans are made from.
    pub limits: Limits,
}

/// How to open a [`Gpu`]; see [`Gpu::builder`].
#[derive(Debug, Clone, Default)]
pub struct GpuBuilder {
    backend: Option<Backend>,
    adapter: Option<String>,
    index: Option<usize>,
    software: bool,
    portable: bool,
    workgroup_memory: Option<u32>,
    dispatch_flops: Option<u64>,
}

const ALL: wgpu::Backends = wgpu::Backends::VULKAN.union(wgpu::Backends::METAL).union(wgpu::Backends::DX12);

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

impl GpuBuilder {
    /// Only adapters of this backend; otherwise `WGPU_BACKEND`, otherwise Vulkan, Metal and Direct3D 12.
    #[must_use]
    pub fn backend(mut self, backend: Backend) -> Self {
        self.backend = Some(backend);
        self
    }

    /// The first adapter whose name contains this, in any case; otherwise `WGPU_ADAPTER_NAME`.
    #[must_use]
    pub fn adapter(mut self, name: impl Into<String>) -> Self {
        self.adapter = Some(name.into());
        self
    }

    /// The adapter with this index in [`adapters`]' list.
    #[must_use]
    pub fn index(mut self, index: usize) -> Self {
        self.index = Some(index);
        self
    }

    /// Only software adapters.
    #[must_use]
    pub fn software(mut self) -> Self {
        self.software = true;
        self
    }

    /// WebGPU's default limits and no optional feature, whatever the adapter offers.
    #[must_use]
    pub fn portable(mut self) -> Self {
        self.portable = true;
        self
    }

    /// Bytes of workgroup memory the device must have (and plans may use).
    #[must_use]
    pub fn workgroup_memory(mut self, bytes: u32) -> Self {
        self.workgroup_memory = Some(bytes);
        self
    }

    /// Floating-point operations one dispatch may hold; longer work is cut. For slow adapters with a
    /// strict watchdog, and for tests.
    #[must_use]
    pub fn dispatch_flops(mut self, flops: u64) -> Self {
        self.dispatch_flops = Some(flops);
        self
    }

    fn wanted(&self) -> (String, &'static str) {
        if let Some(index) = self.index {
            (format!("index {index}"), "Gpu::builder().index")
        } else if let Some(name) = &self.adapter {
            (format!("name {name:?}"), "Gpu::builder().adapter")
        } else if let Some(name) = variable("WGPU_ADAPTER_NAME") {
            (format!("WGPU_ADAPTER_NAME {name:?}"), "WGPU_ADAPTER_NAME")
        } else if self.software {
            ("software only".into(), "Gpu::builder().software")
        } else if let Some(backend) = self.backend {
            (format!("backend {backend:?}"), "Gpu::builder().backend")
        } else {
            ("any backend".into(), "WGPU_BACKEND")
        }
    }

    /// Opens the device, blocking.
    ///
    /// # Errors
    /// No adapter matches, or the driver does not open a device with the limits wanted.
    pub fn build(self) -> Result<Gpu> {
        pollster::block_on(self.build_async())
    }

    /// Opens the device.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub async fn build_async(self) -> Result<Gpu> {
        let found = enumerate(self.backend).await;
        let (wanted, field) = self.wanted();
        let name = self.adapter.clone().or_else(|| variable("WGPU_ADAPTER_NAME")).map(|n| n.to_lowercase());
        let mut candidates: Vec<_> = found
            .iter()
            .enumerate()
            .filter(|(ix, a)| {
                let info = a.get_info();
                let named = name.as_ref().is_none_or(|n| info.name.to_lowercase().contains(n));
                match self.index {
                    Some(index) => *ix == index,
                    None => named && (!self.software || info.device_type == wgpu::DeviceType::Cpu),
                }
            })
            .map(|(_, a)| a)
            .collect();
        let low_power = variable("WGPU_POWER_PREF").is_some_and(|v| v.eq_ignore_ascii_case("low"));
        candidates.sort_by_key(|a| match a.get_info().device_type {
            wgpu::DeviceType::DiscreteGpu => u8::from(low_power),
            wgpu::DeviceType::IntegratedGpu => u8::from(!low_power),
            wgpu::DeviceType::VirtualGpu => 2,
            wgpu::DeviceType::Other => 3,
            wgpu::DeviceType::Cpu => 4,
        });
        let Some(adapter) = candidates.first() else {
            let names: Vec<_> = found.iter().map(|a| a.get_info().name).collect();
            let present = if names.is_empty() { "none".into() } else { names.join(", ") };
            return Err(Error::NoAdapter { wanted, present, field });
        };
        let (features, limits) = self.device_wants(adapter)?;
        let (device, queue) = adapter
            .request_device(&wgpu::DeviceDescriptor {
                label: Some("wgpu-attention"),
                required_features: features,
                required_limits: limits,
                ..Default::default()
            })
            .await
            .map_err(|e| Error::DeviceRequest { adapter: adapter.get_info().name, message: e.to_string() })?;
        Ok(Gpu::owned(device, queue, self.dispatch_flops))
    }

    fn device_wants(&self, adapter: &wgpu::Adapter) -> Result<(wgpu::Features, wgpu::Limits)> {
        let mut limits = if self.portable { wgpu::Limits::default() } else { adapter.limits() };
        if let Some(bytes) = self.workgroup_memory {
            let allowed = adapter.limits().max_compute_workgroup_storage_size;
            if bytes > allowed {
                return Err(Error::OutOfRange {
                    field: "workgroup_memory",
                    value: bytes.to_string(),
                    bound: format!("at most {allowed} on {}", adapter.get_info().name),
                    remedy: "ask for less, or choose another adapter",
                });
            }
            limits.max_compute_workgroup_storage_size = bytes;
        }
        let optional = wgpu::Features::SUBGROUP
            | wgpu::Features::SHADER_F16
            | wgpu::Features::TIMESTAMP_QUERY
            | wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS;
        let features = if self.portable { wgpu::Features::empty() } else { optional & adapter.features() };
        Ok((features, limits))
    }
}

async fn enumerate(backend: Option<Backend>) -> Vec<wgpu::Adapter> {
    let backends = match backend {
        Some(b) => b.flags(),
        // llvmpipe's OpenGL adapter takes minutes to compile a kernel: it is never a fallback
        None => wgpu::Backends::from_env().unwrap_or(ALL) & ALL,
    };
    let mut desc = wgpu::InstanceDescriptor::new_without_display_handle_from_env();
    desc.backends = backends;
    // debug builds would describe every line of a shader to the driver, which takes longer than compiling it
    desc.flags = (desc.flags - wgpu::InstanceFlags::DEBUG).with_env();
    wgpu::Instance::new(desc).enumerate_adapters(backends).await
}

/// The adapters that are present, in the order that [`GpuBuilder::index`] counts.
#[must_use]
pub fn adapters() -> Vec<AdapterSummary> {
    pollster::block_on(enumerate(None))
        .iter()
        .map(|a| {
            let info = a.get_info();
            let has_subgroups = a.features().contains(wgpu::Features::SUBGROUP);
            AdapterSummary {
                name: info.name.clone(),
                backend: info.backend.to_string(),
                kind: kind(&info),
                driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
                subgroups: if has_subgroups {
                    [info.subgroup_min_size, info.subgroup_max_size]
                } else {
                    [0, 0]
                },
                limits: limits_of(&info, a.features(), &a.limits()),
            }
        })
        .collect()
}

pub(super) fn kind(info: &wgpu::AdapterInfo) -> &'static str {
    match info.device_type {
        wgpu::DeviceType::DiscreteGpu => "discrete",
        wgpu::DeviceType::IntegratedGpu => "integrated",
        wgpu::DeviceType::VirtualGpu => "virtual",
        wgpu::DeviceType::Cpu => "software",
        wgpu::DeviceType::Other => "other",
    }
}

/// The subgroup size, where every shader gets the same one and kernels exist for it.
fn fixed_subgroup(backend: wgpu::Backend, [smallest, largest]: [u32; 2]) -> Option<u32> {
    // Metal's range is made up by wgpu, and a range means that the driver picks per shader
    let fixed = smallest == largest && backend != wgpu::Backend::Metal;
    (fixed && SUBGROUP_SIZES.contains(&smallest)).then_some(smallest)
}

/// The plain numbers that plans are made from.
pub(super) fn limits_of(info: &wgpu::AdapterInfo, features: wgpu::Features, l: &wgpu::Limits) -> Limits {
    let sizes = [info.subgroup_min_size, info.subgroup_max_size];
    Limits {
        subgroup: fixed_subgroup(info.backend, sizes).filter(|_| features.contains(wgpu::Features::SUBGROUP)),
        f16: features.contains(wgpu::Features::SHADER_F16),
        timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
        software: info.device_type == wgpu::DeviceType::Cpu,
        workgroup_memory: l.max_compute_workgroup_storage_size,
        invocations: l.max_compute_invocations_per_workgroup.min(l.max_compute_workgroup_size_x),
        workgroups: l.max_compute_workgroups_per_dimension,
        storage_buffers: l.max_storage_buffers_per_shader_stage,
        binding_bytes: l.max_storage_buffer_binding_size,
        buffer_bytes: l.max_buffer_size,
        offset_alignment: l.min_storage_buffer_offset_alignment,
        dispatch_flops: Limits::webgpu().dispatch_flops,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_known_subgroup_size_is_relied_on() {
        let vulkan = |sizes| fixed_subgroup(wgpu::Backend::Vulkan, sizes);
        for size in SUBGROUP_SIZES {
            assert_eq!(vulkan([size, size]), Some(size));
        }
        for sizes in [[8, 32], [32, 64], [128, 128], [1, 1], [0, 0], [4, 128]] {
            assert_eq!(vulkan(sizes), None, "{sizes:?}");
        }
        assert_eq!(fixed_subgroup(wgpu::Backend::Metal, [32, 32]), None);
    }
}
