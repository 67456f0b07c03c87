//! The command-line program.

mod plan;

use std::process::ExitCode;

use clap::Parser;

/// LLM attention on any GPU.
#[derive(Debug, Parser)]
#[command(version)]
enum Cli {
    /// What a model's layers do and what their cache costs.
    Plan(plan::Args),
}

fn main() -> ExitCode {
    let Cli::Plan(args) = Cli::parse();
    match plan::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
