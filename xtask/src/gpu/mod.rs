//! `cargo xtask gpu`: checks and measurements on a machine with an NVIDIA GPU that has neither Rust nor a network.
//!
//! [`pack`] puts programs into an archive that travels beside the tree. There, [`command`] runs plans: [`quick`] is what a
//! quarter of an hour decides, [`plan`] what takes longer. A plan has steps of items ([`item`]), each a process with a time limit
//! on the machine that [`place`] describes; [`call`] runs them and keeps their outcomes ([`outcome`]). [`results`] makes tables
//! of these, [`verdict`] the defaults of options, and [`record`] a committed run.

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

mod archive;
mod call;
mod child;
mod command;
mod item;
mod outcome;
mod pack;
mod place;
mod plan;
mod quick;
mod reading;
mod record;
mod results;
#[cfg(all(test, unix))]
mod testing;
mod verdict;

pub use pack::PROGRAMS;
pub use quick::SANITIZED;

/// `cargo xtask gpu`
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Put programs for a machine with a GPU into a folder, as an archive that fits beside the tree.
    Pack(pack::Args),
    /// There: what one call of 8 minutes decides, and which options are to be on by default.
    Quick(command::OneCallArgs),
    /// There: a call of 3.5 minutes beside llama.cpp, and some tests under compute-sanitizer.
    Second(command::OneCallArgs),
    /// There: all that takes longer, over as many calls as it needs.
    Run(command::RunArgs),
    /// Put the results of a call into `benches/runs`.
    Record(record::Args),
}

/// Packs, runs or records.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.command {
        Command::Pack(args) => pack::run(args).map(|()| ExitCode::SUCCESS),
        Command::Quick(args) => command::quick(args),
        Command::Second(args) => command::second(args),
        Command::Run(args) => command::run(args),
        Command::Record(args) => record::run(args).map(|()| ExitCode::SUCCESS),
    }
}
