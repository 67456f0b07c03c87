//! `run`: one case file in, its results out.

use std::path::PathBuf;
use std::process::ExitCode;

use wgpu_attention::cases::{self, Case};

use super::Outcome;
use super::device::{DeviceArgs, Storage, describe, known_kernel};

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  wgpu-attention run case.safetensors -o result.safetensors --dtype f16")]
pub(crate) struct Args {
    /// Case file: safetensors whose metadata holds `op` and `params`, with `in.*` tensors
    case: PathBuf,
    /// Where the `out.*` tensors go
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Storage of queries, keys, values and results on the device
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Storage,
    /// Insist on one kernel (`shader --list` names them)
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    #[command(flatten)]
    device: DeviceArgs,
}

pub(crate) fn run(args: &Args) -> Outcome {
    known_kernel(args.kernel.as_deref())?;
    let case = Case::load(&args.case)?;
    let gpu = args.device.open()?;
    let outcome = cases::run(&gpu, &case, args.dtype.into(), args.kernel.as_deref())?;
    Case::save(&args.output, &case, &outcome.tensors)?;
    let shapes: Vec<_> =
        outcome.tensors.iter().map(|(name, t)| format!("out.{name} {:?}", t.shape)).collect();
    eprintln!(
        "{}: {} by {} on {}, written to {}",
        case.name,
        shapes.join(", "),
        outcome.kernel,
        describe(&gpu),
        args.output.display()
    );
    Ok(ExitCode::SUCCESS)
}
