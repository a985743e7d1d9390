//! `cargo xtask`: the workspace's own commands.
//!
//! One file (or folder) per command. Nothing here is part of what a user of the crates gets.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod apt;
mod bench;
mod clients;
mod deny;
mod documents;
mod fixtures;
mod fuzz;
mod gpu;
mod kernels;
mod lavapipe;
mod licences;
mod load;
mod loom;
mod machine;
mod manifests;
mod models;
mod packages;
mod parity;
mod platforms;
mod release;
mod setup;
mod shell;
mod synth;
mod table;
mod test;
mod tidy;
mod totals;
mod web;

/// The names under which `cargo xtask gpu pack` packs one program.
pub use gpu::PROGRAMS as GPU_PROGRAMS;
/// Kernels' tests that `cargo xtask gpu second` runs under compute-sanitizer.
pub use gpu::SANITIZED as GPU_SANITIZED;

/// The workspace's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check the house rules: layers, file headers and lengths, links, crate files.
    Tidy,
    /// Check the licences and sources of the dependencies, and with cargo-deny their advisories.
    Deny,
    /// Run every check and print the totals.
    Test(test::Args),
    /// Fetch what the tests need into `.cache/`.
    Setup(setup::Args),
    /// Check every GPU shader for Vulkan, Metal and DX12, and write its text for reading; compile the
    /// CUDA kernels (needs pip and gcc).
    Kernels(kernels::Args),
    /// Compare the engine with reference outputs, on the CPU or on a GPU.
    Parity(parity::Args),
    /// Make the fixture files again (needs Python with torch and transformers).
    Fixtures(fixtures::Args),
    /// Measure the engine's speed, side by side with other engines, or the machine's limits.
    Bench(Box<bench::Args>),
    /// Load the server: measure it beside peers, check answers, faults and memory.
    Load(Box<load::Args>),
    /// Run the thread team's models in every order of its threads' accesses.
    Loom,
    /// Look for inputs that break a parser or a request handler, guided by coverage (needs a C++
    /// compiler).
    Fuzz(fuzz::Args),
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
pub fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            println!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    match Args::parse().command {
        Command::Tidy => tidy::run()?,
        Command::Deny => deny::run()?,
        Command::Test(args) => return test::run(&args),
        Command::Setup(args) => setup::run(&args)?,
        Command::Kernels(args) => kernels::run(&args)?,
        Command::Parity(args) => parity::run(&args)?.into_result()?,
        Command::Fixtures(args) => fixtures::run(&args)?,
        Command::Bench(args) => bench::run(&args)?,
        Command::Load(args) => return load::run(&args),
        Command::Loom => loom::run()?,
        Command::Fuzz(args) => fuzz::run(&args)?,
        Command::Clients(args) => return clients::run(&args),
        Command::Gpu(args) => return gpu::run(&args),
        Command::Release(args) => release::run(&args)?,
        Command::Synth(args) => synth::run(&args)?,
        Command::Web(args) => web::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}
