//! Measuring: device time, the adapter's ceilings, and the named workloads that benches and the program share.

mod attention;
mod cache;
mod delta;
mod latent;
mod recurrent;
mod sparse;
mod workload;

pub use crate::gpu::{Clock, Timing};
pub use workload::{Check, Prepared, Workload, workloads};

use crate::gpu::{Binding, Step};
use crate::kernels::ceiling::{MultiplyAdds, Walk};
use crate::{Gpu, Result};

/// Records, submits and waits `reps` times, and says what each repetition took; blocks.
///
/// # Errors
/// What `record` returns, or the device's own words.
pub fn time(
    gpu: &Gpu,
    reps: usize,
    record: impl FnMut(&mut wgpu::CommandEncoder) -> Result<()>,
) -> Result<Timing> {
    gpu.time(reps, record)
}

/// A rate and the variant that reached it.
#[derive(Debug, Clone)]
pub struct Rate {
    /// Bytes or operations in a second.
    pub per_second: f64,
    /// How the work was laid out.
    pub variant: String,
}

/// What the adapter reaches at best with plain kernels.
#[derive(Debug, Clone)]
pub struct Ceilings {
    /// Bytes read and written in a second by a copy.
    pub copy: Rate,
    /// Bytes in a second of a streaming read: what memory-bound kernels are measured against.
    pub read: Rate,
    /// Bytes in a second of reads that stay in a cache (1 MiB over and over).
    pub cached_read: Rate,
    /// Floating-point operations in a second of f32 multiply-adds in registers, two each.
    pub multiply_add: Rate,
    /// What told the time.
    pub clock: Clock,
}

/// Repetitions, of which the best counts.
const REPS: usize = 5;
/// Variants that go from the small trial to the full measurement.
const FINALISTS: usize = 3;

impl Ceilings {
    /// Measures, blocking for a second or three.
    ///
    /// # Errors
    /// No memory for two buffers of 32 MiB, or the device's own words.
    pub fn measure(gpu: &Gpu) -> Result<Self> {
        let limits = gpu.limits();
        // beyond any cache: GPUs have caches of up to 50 MB and more, software adapters are slow
        let wanted: u64 = if limits.software { 32 << 20 } else { 512 << 20 };
        let bytes = wanted.min(limits.binding_bytes).min(limits.buffer_bytes);
        let vectors = 1u32 << (bytes / 16).ilog2();
        let whole = |what| -> Result<Binding> {
            let size = u64::from(vectors) * 16;
            Ok(Binding { buffer: gpu.buffer(what, size)?, offset: 0, size })
        };
        let [source, target] = [whole("ceiling source")?, whole("ceiling target")?];
        let pair = [source, target];
        let copy = best(gpu, &Walk::all(limits, &[1]), vectors, |walk, vectors| {
            (walk.copy(vectors, limits, &pair), 32.0 * f64::from(vectors), 1)
        })?;
        let reads = Walk::all(limits, &[1, 4]);
        let read = best(gpu, &reads, vectors, |walk, vectors| {
            (walk.read(vectors, limits, &pair), 16.0 * f64::from(vectors), 1)
        })?;
        let cached_read = best(gpu, &reads, 1 << 16, |walk, _| {
            let (vectors, times) = (1 << 16, 16);
            (walk.read(vectors, limits, &pair), 16.0 * f64::from(vectors) * f64::from(times), times)
        })?;
        let invocations = if limits.software { 1 << 12 } else { 1 << 18 };
        let steps = steps(gpu, invocations, &pair[1])?;
        let (multiply_add, clock) = best(gpu, &MultiplyAdds::all(limits), steps, |chains, steps| {
            let step = chains.step(invocations, steps, pair[1].clone());
            (step, chains.flops(invocations, steps) as f64, 1)
        })?;
        Ok(Self { copy: copy.0, read: read.0, cached_read: cached_read.0, multiply_add, clock })
    }

    /// The higher of two measurements each: on a machine shared with others, either may be disturbed.
    #[must_use]
    pub fn highest(self, other: Self) -> Self {
        let higher = |a: Rate, b: Rate| if b.per_second > a.per_second { b } else { a };
        Self {
            copy: higher(self.copy, other.copy),
            read: higher(self.read, other.read),
            cached_read: higher(self.cached_read, other.cached_read),
            multiply_add: higher(self.multiply_add, other.multiply_add),
            clock: self.clock,
        }
    }

    /// Shortest time in seconds for `bytes` and `flops`, and whether memory decides it.
    #[must_use]
    pub fn shortest(&self, bytes: u64, flops: u64) -> (f64, bool) {
        let memory = bytes as f64 / self.read.per_second;
        let compute = flops as f64 / self.multiply_add.per_second;
        (memory.max(compute), memory >= compute)
    }
}

/// Steps of multiply-adds that last some milliseconds, found from below.
fn steps(gpu: &Gpu, invocations: u32, sums: &Binding) -> Result<u32> {
    let chains = MultiplyAdds { lanes: 64, chains: 16, repeat: 8 };
    let mut steps = 16;
    loop {
        let step = chains.step(invocations, steps, sums.clone());
        let timing = gpu.time(2, |encoder| gpu.record(encoder, &[], std::slice::from_ref(&step)))?;
        // far from the 65,535 iterations that some drivers allow, and from any watchdog
        if timing.median() > 4e-3 || steps >= 1 << 14 {
            return Ok(steps);
        }
        steps *= 2;
    }
}

/// The best rate over all variants: a trial at an eighth of the size picks those that are measured in full.
fn best<V: Copy + std::fmt::Debug>(
    gpu: &Gpu,
    variants: &[V],
    size: u32,
    work: impl Fn(V, u32) -> (Step, f64, u32),
) -> Result<(Rate, Clock)> {
    let rate = |variant: V, size: u32, reps: usize| -> Result<(f64, Clock)> {
        let (step, amount, times) = work(variant, size);
        let steps = vec![step; times as usize];
        let record = |encoder: &mut wgpu::CommandEncoder| gpu.record(encoder, &[], &steps);
        gpu.time(1, record)?;
        let timing = gpu.time(reps, record)?;
        // a ceiling is what the adapter reaches when nothing else disturbs it
        Ok((amount / timing.best().max(1e-9), timing.clock))
    };
    let mut trials = Vec::new();
    for &variant in variants {
        trials.push((rate(variant, size / 8, 2)?.0, variant));
    }
    trials.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut found = (Rate { per_second: 0.0, variant: String::new() }, Clock::Wall);
    for &(_, variant) in trials.iter().take(FINALISTS) {
        let (per_second, clock) = rate(variant, size, REPS)?;
        if per_second > found.0.per_second {
            found = (Rate { per_second, variant: format!("{variant:?}") }, clock);
        }
    }
    Ok(found)
}
