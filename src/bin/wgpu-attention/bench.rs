//! `bench`: how fast each kernel is, next to what the adapter can do at best.

mod chart;
mod table;

use std::error::Error;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use wgpu_attention::measure::{Ceilings, Workload, time, workloads};
use wgpu_attention::{DType, Gpu};

use super::Outcome;
use super::device::{DeviceArgs, Storage};

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  wgpu-attention bench decode --svg roofline.svg")]
pub(crate) struct Args {
    /// Only cases whose name contains this
    filter: Option<String>,
    /// Print a JSON array, one object a case
    #[arg(long)]
    json: bool,
    /// Draw a roofline into an SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Storage of queries, keys and values in every case [default: the case's own]
    #[arg(long, value_enum)]
    dtype: Option<Storage>,
    /// Few repetitions: rough numbers, sooner
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

/// A case with its numbers; times in seconds.
#[derive(Debug)]
struct Measured {
    name: String,
    dtype: DType,
    kernel: &'static str,
    tuning: String,
    /// The first call, compilation included, on the host's clock.
    first: f64,
    /// Median on the device.
    median: f64,
    /// Least on the device.
    best: f64,
    /// Median of the whole call on the host's clock: recording, submission, waiting.
    call: f64,
    bytes: u64,
    flops: u64,
    /// Of the shortest time that the ceilings allow; known once they have been measured a second time.
    share: f64,
    memory_bound: bool,
    clock: &'static str,
}

impl Measured {
    fn bound(&self) -> &'static str {
        if self.memory_bound { "memory" } else { "compute" }
    }

    fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.median
    }

    fn flops_per_second(&self) -> f64 {
        self.flops as f64 / self.median
    }

    fn json(&self, gpu: &Gpu, ceilings: &Ceilings) -> Value {
        json!({
            "case": self.name,
            "dtype": self.dtype.name(),
            "kernel": self.kernel,
            "tuning": self.tuning,
            "adapter": gpu.name(),
            "driver": gpu.driver(),
            "clock": self.clock,
            "first_ms": self.first * 1e3,
            "median_ms": self.median * 1e3,
            "best_ms": self.best * 1e3,
            "call_ms": self.call * 1e3,
            "bytes": self.bytes,
            "flops": self.flops,
            "gb_per_s": self.bytes_per_second() / 1e9,
            "gflop_per_s": self.flops_per_second() / 1e9,
            "share": self.share,
            "bound": self.bound(),
            "ceilings": {
                "copy_gb_per_s": ceilings.copy.per_second / 1e9,
                "read_gb_per_s": ceilings.read.per_second / 1e9,
                "cached_read_gb_per_s": ceilings.cached_read.per_second / 1e9,
                "multiply_add_gflop_per_s": ceilings.multiply_add.per_second / 1e9,
            },
        })
    }
}

/// Cases that the arguments select, none twice.
fn selected(args: &Args) -> Result<Vec<Workload>, Box<dyn Error>> {
    let mut cases: Vec<Workload> = Vec::new();
    for case in workloads() {
        let case = match args.dtype {
            Some(dtype) if case.takes_dtype() => case.with_dtype(dtype.into()),
            _ => case,
        };
        let wanted = args.filter.as_ref().is_none_or(|filter| case.name.contains(filter.as_str()));
        if wanted && cases.iter().all(|other| other.name != case.name) {
            cases.push(case);
        }
    }
    if cases.is_empty() {
        let names: Vec<_> = workloads().into_iter().map(|case| case.name).collect();
        let filter = args.filter.as_deref().unwrap_or_default();
        return Err(format!("filter is {filter:?}, but must be part of one of {}", names.join(", ")).into());
    }
    Ok(cases)
}

/// Checks a case, then times it.
fn measure(gpu: &Gpu, case: &Workload, quick: bool) -> Result<Measured, Box<dyn Error>> {
    // the same device without compiled kernels, so that the first call compiles them
    let gpu = &Gpu::from_wgpu(gpu.device(), gpu.queue());
    let prepared = case.prepare(gpu)?;
    let start = Instant::now();
    time(gpu, 1, |encoder| prepared.record(gpu, encoder))?;
    let first = start.elapsed().as_secs_f64();
    let check = prepared.check(gpu)?;
    if !check.passed {
        return Err(format!(
            "{} is wrong by {:.1e} (relative L2), {:.1e} of the largest element at worst: {} is not timed; \
             run `wgpu-attention check` and report what it prints",
            case.name, check.rel_l2, check.rel_max, prepared.kernel
        )
        .into());
    }
    let start = Instant::now();
    time(gpu, 1, |encoder| prepared.record(gpu, encoder))?;
    let warm = start.elapsed();
    let (least, most, budget) =
        if quick { (3, 9, Duration::from_millis(100)) } else { (9, 99, Duration::from_secs(1)) };
    let reps = budget.as_nanos() / warm.as_nanos().max(1);
    let reps = usize::try_from(reps).unwrap_or(most).clamp(least, most);
    let timing = time(gpu, reps, |encoder| prepared.record(gpu, encoder))?;
    Ok(Measured {
        name: case.name.clone(),
        dtype: case.dtype,
        kernel: prepared.kernel,
        tuning: prepared.tuning.clone(),
        first,
        median: timing.median(),
        best: timing.best(),
        call: timing.call_median(),
        bytes: prepared.bytes,
        flops: prepared.flops,
        share: f64::NAN,
        memory_bound: false,
        clock: timing.clock.name(),
    })
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Outcome {
    let cases = selected(args)?;
    let gpu = args.device.open()?;
    let bar = if std::io::stderr().is_terminal() {
        ProgressBar::new(cases.len() as u64)
    } else {
        ProgressBar::hidden()
    };
    bar.set_style(ProgressStyle::with_template("{bar:24} {pos}/{len} {msg}")?);
    bar.set_message("what the adapter can do at best");
    bar.tick();
    let ceilings = Ceilings::measure(&gpu)?;
    let mut measured = Vec::new();
    for case in &cases {
        bar.set_message(case.name.clone());
        measured.push(measure(&gpu, case, args.quick)?);
        bar.inc(1);
    }
    bar.set_message("what the adapter can do at best, again");
    let ceilings = ceilings.highest(Ceilings::measure(&gpu)?);
    for case in &mut measured {
        let (shortest, memory_bound) = ceilings.shortest(case.bytes, case.flops);
        (case.share, case.memory_bound) = (shortest / case.median, memory_bound);
    }
    bar.finish_and_clear();
    if let Some(file) = &args.svg {
        let svg = chart::roofline(&gpu, &ceilings, &measured)?;
        std::fs::write(file, svg)
            .map_err(|error| format!("svg: {} cannot be written ({error})", file.display()))?;
    }
    let text = if args.json {
        let objects: Vec<_> = measured.iter().map(|case| case.json(&gpu, &ceilings)).collect();
        serde_json::to_string_pretty(&objects)? + "\n"
    } else {
        table::text(&gpu, &ceilings, &measured)
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
