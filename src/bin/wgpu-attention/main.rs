//! The command-line program.

mod bench;
mod check;
mod device;
mod info;
mod mask;
mod plan;
mod run;
mod shader;

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;

/// LLM attention on any GPU: run it, check it, look at it.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Example:\n  wgpu-attention check    # the built-in cases, two layers of a real model among them"
)]
enum Cli {
    /// Adapters, their drivers and limits, and the kernels they get.
    Info(info::Args),
    /// Compute what a case file describes and write the results.
    Run(run::Args),
    /// Compute cases and compare with their expected results.
    Check(check::Args),
    /// How fast each kernel is, next to what the adapter can do at best.
    Bench(bench::Args),
    /// Print a kernel's text, in WGSL or translated.
    Shader(shader::Args),
    /// Draw which query sees which key.
    Mask(mask::Args),
    /// What a model's layers do and what their cache costs.
    Plan(plan::Args),
}

/// What a command ends with: done, done but something is wrong, or refused.
type Outcome = Result<ExitCode, Box<dyn Error>>;

fn main() -> ExitCode {
    let outcome = match Cli::parse() {
        Cli::Info(args) => info::run(&args),
        Cli::Run(args) => run::run(&args),
        Cli::Check(args) => check::run(&args),
        Cli::Bench(args) => bench::run(&args),
        Cli::Shader(args) => shader::run(&args),
        Cli::Mask(args) => mask::run(&args),
        Cli::Plan(args) => plan::run(&args).map(|()| ExitCode::SUCCESS),
    };
    match outcome {
        Ok(code) => code,
        // whoever reads us has seen enough
        Err(error) if is_broken_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
