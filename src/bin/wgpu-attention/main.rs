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

use clap::{Parser, Subcommand};

/// LLM attention on any GPU: run it, check it, look at it.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Example:\n  wgpu-attention check    # the built-in cases, two layers of a real model among them\n\n\
                  Without a command it checks the built-in cases.\n\
                  Exit status: 0 right, 1 wrong or refused, 2 not understood."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
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
    device::spare_the_desktop();
    // plain `cargo run` does the main job
    let command = Cli::parse().command.unwrap_or_else(|| Command::Check(check::Args::builtin()));
    let outcome = match command {
        Command::Info(args) => info::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Shader(args) => shader::run(&args),
        Command::Mask(args) => mask::run(&args),
        Command::Plan(args) => plan::run(&args).map(|()| ExitCode::SUCCESS),
    };
    match outcome {
        Ok(code) => code,
        // whoever reads us has seen enough
        Err(error) if is_broken_pipe(error.as_ref()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", device::as_options(error.as_ref()));
            if let Some(hint) = device::hint(error.as_ref()) {
                eprintln!("{hint}");
            }
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
