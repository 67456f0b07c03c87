//! Named workloads: sizes and options that benches and the program share; one file a family.

use std::fmt;
use std::sync::Arc;

use super::{attention, cache, delta, latent, recurrent, sparse};
use crate::cases::{REL_L2, REL_MAX};
use crate::limits::Limits;
use crate::{DType, Gpu, Result};

/// What a workload computes. One type a family of operators.
pub(super) trait Work: fmt::Debug + Send + Sync {
    /// Whether storage is a choice.
    fn takes_dtype(&self) -> bool {
        true
    }
    /// Kernel that would run on a device with `limits`.
    fn kernel(&self, dtype: DType, limits: &Limits) -> Result<&'static str>;
    /// Bytes that must move and operations that must be done, on a device with `limits`.
    fn work(&self, dtype: DType, limits: &Limits) -> Result<[u64; 2]>;
    /// Uploads inputs and allocates outputs that hold NaN until they are written.
    fn prepare(&self, gpu: &Gpu, dtype: DType) -> Result<Prepared>;
}

/// A workload with its tensors on the device.
pub(super) trait Call: fmt::Debug {
    /// Records the work.
    fn record(&self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder) -> Result<()>;
    /// Compares the last result, or a sample of it, with the definition.
    fn check(&self, gpu: &Gpu) -> Result<Check>;
}

/// A named piece of work.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Name, the same in benches, program and tables.
    pub name: String,
    /// Storage of the inputs.
    pub dtype: DType,
    work: Arc<dyn Work>,
}

/// A workload whose tensors lie on the device.
#[derive(Debug)]
pub struct Prepared {
    /// Kernel that runs.
    pub kernel: &'static str,
    /// How it is tuned.
    pub tuning: String,
    /// Floating-point operations that it must do.
    pub flops: u64,
    /// Bytes that it must move.
    pub bytes: u64,
    pub(super) call: Box<dyn Call>,
}

/// Sampled results against the definition in f64.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// Relative L2 error over the sample.
    pub rel_l2: f64,
    /// Largest error, as a share of the largest element.
    pub rel_max: f64,
    /// Both are within the bounds.
    pub passed: bool,
}

/// Sums up differences between results and a definition.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    error: f64,
    norm: f64,
    worst: f64,
    largest: f64,
}

impl Comparison {
    /// Adds a stretch of results.
    pub(super) fn add(&mut self, got: &[f32], want: &[f64]) {
        for (&got, want) in got.iter().zip(want) {
            let difference = f64::from(got) - want;
            self.error += difference * difference;
            self.norm += want * want;
            // a NaN must not get lost in a maximum
            self.worst = if difference.is_nan() { f64::INFINITY } else { self.worst.max(difference.abs()) };
            self.largest = self.largest.max(want.abs());
        }
    }

    /// Within the bounds that judge the tests' f32 results.
    pub(super) fn check(&self) -> Check {
        let rel_l2 = (self.error / self.norm.max(1e-300)).sqrt();
        let rel_max = self.worst / self.largest.max(1e-300);
        Check { rel_l2, rel_max, passed: rel_l2 <= REL_L2 && rel_max <= REL_MAX }
    }
}

/// Every workload, in the order of tables.
#[must_use]
pub fn workloads() -> Vec<Workload> {
    [
        attention::workloads(),
        latent::workloads(),
        sparse::workloads(),
        delta::workloads(),
        recurrent::workloads(),
        cache::workloads(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

impl Workload {
    pub(super) fn new(name: impl Into<String>, work: impl Work + 'static) -> Self {
        Self { name: name.into(), dtype: DType::F32, work: Arc::new(work) }
    }

    /// The same work on inputs stored as `dtype`; its name says so.
    #[must_use]
    pub fn with_dtype(&self, dtype: DType) -> Self {
        let plain = self.name.trim_end_matches("_f16").trim_end_matches("_bf16");
        let name = if dtype == DType::F32 { plain.to_owned() } else { format!("{plain}_{}", dtype.name()) };
        if self.takes_dtype() { Self { name, dtype, work: Arc::clone(&self.work) } } else { self.clone() }
    }

    /// Whether storage is a choice: partial results are always f32.
    #[must_use]
    pub fn takes_dtype(&self) -> bool {
        self.work.takes_dtype()
    }

    /// Kernel that would run on a device with `limits`.
    ///
    /// # Errors
    /// No kernel fits.
    pub fn kernel(&self, limits: &Limits) -> Result<&'static str> {
        self.work.kernel(self.dtype, limits)
    }

    /// Bytes that must move and operations that must be done, on a device with `limits`.
    ///
    /// # Errors
    /// No kernel fits.
    pub fn work(&self, limits: &Limits) -> Result<[u64; 2]> {
        self.work.work(self.dtype, limits)
    }

    /// One query against one key: what remains is the cost of a call.
    #[must_use]
    pub fn smallest() -> Self {
        attention::smallest()
    }

    /// Uploads inputs and allocates outputs.
    ///
    /// # Errors
    /// No memory, or no kernel that fits.
    pub fn prepare(&self, gpu: &Gpu) -> Result<Prepared> {
        self.work.prepare(gpu, self.dtype)
    }
}

impl Prepared {
    /// Records the work.
    ///
    /// # Errors
    /// What the operator refuses, or the device's own words.
    pub fn record(&self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder) -> Result<()> {
        self.call.record(gpu, encoder)
    }

    /// Compares the last result, or a sample of it, with the definition.
    ///
    /// # Errors
    /// The device's own words.
    pub fn check(&self, gpu: &Gpu) -> Result<Check> {
        self.call.check(gpu)
    }
}

/// Numbers of about unit variance, the same for the same seed.
pub(super) fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let mut state = u64::from(seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let scale = 2.0 * 3f32.sqrt() / (1u32 << 24) as f32;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 * scale - 3f32.sqrt()
        })
        .collect()
}
