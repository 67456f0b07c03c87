//! What a device can do, as plain numbers: kernel choice depends on nothing else.

/// Loop iterations one invocation may run in all its loops together.
///
/// Mesa 22.3's llvmpipe silently ends every loop of an invocation after 65,535 of them, so no plan goes
/// beyond that, on any device.
pub const LOOP_ITERATIONS: u32 = 65_535;

/// Subgroup sizes for which kernels are generated.
pub const SUBGROUP_SIZES: [u32; 5] = [4, 8, 16, 32, 64];

/// Device limits and features that decide which kernel runs and how it is tuned.
///
/// A plan is a pure function of a problem and these numbers, so tests invent devices that nobody has.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Subgroup size, where the device has subgroup operations and only one size, one of
    /// [`SUBGROUP_SIZES`].
    pub subgroup: Option<u32>,
    /// 16-bit floats in shaders.
    pub f16: bool,
    /// Timestamp queries.
    pub timestamps: bool,
    /// The device is a processor pretending to be a GPU (lavapipe, `SwiftShader`, WARP).
    pub software: bool,
    /// Workgroup memory in bytes.
    pub workgroup_memory: u32,
    /// Invocations in a workgroup.
    pub invocations: u32,
    /// Workgroups in one dimension of a dispatch.
    pub workgroups: u32,
    /// Storage buffers that one shader can bind.
    pub storage_buffers: u32,
    /// Bytes of one storage binding.
    pub binding_bytes: u64,
    /// Bytes of one buffer.
    pub buffer_bytes: u64,
    /// Alignment of binding offsets in bytes.
    pub offset_alignment: u32,
    /// Floating-point operations that one dispatch may hold, so that no watchdog ends it.
    pub dispatch_flops: u64,
}

impl Limits {
    /// WebGPU's default limits without any optional feature: every operator works within these.
    #[must_use]
    pub const fn webgpu() -> Self {
        Self {
            subgroup: None,
            f16: false,
            timestamps: false,
            software: false,
            workgroup_memory: 16 << 10,
            invocations: 256,
            workgroups: 65_535,
            storage_buffers: 8,
            binding_bytes: 128 << 20,
            buffer_bytes: 256 << 20,
            offset_alignment: 256,
            // about 50 ms on two processor cores, under 5 ms on a laptop's GPU
            dispatch_flops: 2_000_000_000,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::webgpu()
    }
}
