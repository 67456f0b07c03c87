//! The command-line program.

mod bench;
mod plan;

use std::process::ExitCode;

use clap::Parser;

/// LLM attention on any GPU.
#[derive(Debug, Parser)]
#[command(version)]
enum Cli {
    /// How fast each kernel is, next to what the adapter can do at best.
    Bench(bench::Args),
    /// What a model's layers do and what their cache costs.
    Plan(plan::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse() {
        Cli::Bench(args) => bench::run(&args),
        Cli::Plan(args) => plan::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
