//! `cargo xtask gpu`: checks and measurements on a machine with an NVIDIA card that has neither Rust nor a network.
//!
//! [`pack`] puts programs, models and a script into a folder. [`mod@run`] is what the script calls there: steps of items,
//! each a process with a time limit, whose outcomes are kept in one file, so that a run can be split over several
//! calls. [`plan`] says what the steps consist of.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

mod child;
mod outcome;
mod pack;
mod plan;
mod run;

/// `cargo xtask gpu`
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Put all that a run needs into a folder.
    Pack(pack::Args),
    /// Run in such a folder: the program there is called by its `run.sh`.
    Run(run::Args),
}

/// Packs or runs.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::Pack(args) => pack::run(args).map(|()| ExitCode::SUCCESS),
        Command::Run(args) => run::run(args),
    }
}
