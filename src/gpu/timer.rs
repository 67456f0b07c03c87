//! Timing work on the device.

use std::time::Instant;

use super::Gpu;
use crate::{Error, Result};

/// What told the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The device's own timestamps around the work: recording and submission are not in them.
    Timestamps,
    /// The host's clock around submission and waiting.
    Wall,
}

impl Clock {
    /// In words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Timestamps => "device timestamps",
            Self::Wall => "wall clock",
        }
    }
}

/// Seconds that repetitions of the same work took.
#[derive(Debug, Clone)]
pub struct Timing {
    /// What told `seconds`.
    pub clock: Clock,
    /// The work on the device.
    pub seconds: Vec<f64>,
    /// The whole call on the host: recording, submission, waiting.
    pub call_seconds: Vec<f64>,
}

impl Timing {
    /// Median of the work on the device, in seconds.
    #[must_use]
    pub fn median(&self) -> f64 {
        median(&self.seconds)
    }

    /// Least of the work on the device, in seconds: what a machine shared with others disturbs least.
    #[must_use]
    pub fn best(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// Median of the whole call, in seconds.
    #[must_use]
    pub fn call_median(&self) -> f64 {
        median(&self.call_seconds)
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Timestamps before and after.
struct Marks {
    set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
}

impl Gpu {
    fn marks(&self) -> Result<Option<Marks>> {
        let wanted = wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS;
        if !self.device().features().contains(wanted) {
            return Ok(None);
        }
        self.scoped("timestamps", || {
            let set = self.device().create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("timestamps"),
                ty: wgpu::QueryType::Timestamp,
                count: 2,
            });
            let resolved = self.device().create_buffer(&wgpu::BufferDescriptor {
                label: Some("timestamps"),
                size: 16,
                usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            });
            Some(Marks { set, resolved })
        })
    }

    fn wait(&self) -> Result<()> {
        // no time-out: wgpu 30 panics in timed waits that race
        let waited = self.device().poll(wgpu::PollType::wait_indefinitely());
        waited
            .map(|_| ())
            .map_err(|e| Error::Device { what: "waiting for the device".into(), message: e.to_string() })
    }

    /// Records, submits and waits `reps` times; blocks.
    pub(crate) fn time(
        &self,
        reps: usize,
        mut record: impl FnMut(&mut wgpu::CommandEncoder) -> Result<()>,
    ) -> Result<Timing> {
        let marks = self.marks()?;
        let clock = if marks.is_some() { Clock::Timestamps } else { Clock::Wall };
        let period = f64::from(self.queue().get_timestamp_period()) * 1e-9;
        let mut timing = Timing { clock, seconds: Vec::new(), call_seconds: Vec::new() };
        self.wait()?;
        for _ in 0..reps {
            let start = Instant::now();
            let desc = wgpu::CommandEncoderDescriptor::default();
            let mut encoder = self.device().create_command_encoder(&desc);
            if let Some(marks) = &marks {
                encoder.write_timestamp(&marks.set, 0);
            }
            record(&mut encoder)?;
            if let Some(marks) = &marks {
                encoder.write_timestamp(&marks.set, 1);
                encoder.resolve_query_set(&marks.set, 0..2, &marks.resolved, 0);
            }
            let recorded = Instant::now();
            self.submit(encoder)?;
            self.wait()?;
            timing.call_seconds.push(start.elapsed().as_secs_f64());
            let waited = recorded.elapsed().as_secs_f64();
            timing.seconds.push(match &marks {
                Some(marks) => {
                    let bytes = self.block_on(self.download(&marks.resolved, 0, 16))?;
                    let [from, to] = [0, 8].map(|at| bytemuck::pod_read_unaligned::<u64>(&bytes[at..at + 8]));
                    to.saturating_sub(from) as f64 * period
                }
                None => waited,
            });
        }
        Ok(timing)
    }
}
