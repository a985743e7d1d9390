//! The command line of the crate feature `all`: every command, and the help that lists them.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::{bench, clients, gpu, load, parity, release, synth, web};

/// The workspace's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    OfFewCrates(crate::Command),
    /// Compare the engine with reference outputs, on the CPU or on a GPU.
    Parity(parity::Args),
    /// Measure the engine's speed, side by side with other engines, or the machine's limits.
    Bench(Box<bench::Args>),
    /// Load the server: measure it beside peers, check answers, faults and memory.
    Load(Box<load::Args>),
    /// Try stock clients, a schema tester, routers and Ray Serve on the server (needs pip and npm).
    Clients(clients::Args),
    /// Check and measure on a machine with an NVIDIA GPU, which needs neither Rust nor a network.
    Gpu(gpu::Args),
    /// Pack the program for this platform or another: archive, Debian package, bill of materials,
    /// checksums.
    Release(release::Args),
    /// Write a GGUF file of a published shape with made-up weights, to measure speed with.
    Synth(synth::Args),
    /// Build the page of the server from its sources (needs Node, or pip to install it).
    Web(web::Args),
}

/// Runs the command that the process's arguments name.
pub(crate) fn run() -> Result<ExitCode> {
    match Args::parse().command {
        Command::OfFewCrates(command) => return command.run(),
        Command::Parity(args) => parity::run(&args)?.into_result()?,
        Command::Bench(args) => bench::run(&args)?,
        Command::Load(args) => return load::run(&args),
        Command::Clients(args) => return clients::run(&args),
        Command::Gpu(args) => return gpu::run(&args),
        Command::Release(args) => release::run(&args)?,
        Command::Synth(args) => synth::run(&args)?,
        Command::Web(args) => web::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}
