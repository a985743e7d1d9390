//! `cargo xtask`: the workspace's own commands.
//!
//! One file (or folder) per command. Nothing here is part of what a user of the crates gets.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[cfg(feature = "all")]
mod all;
mod apt;
mod deny;
mod documents;
mod faults;
mod fixtures;
mod fuzz;
mod install;
mod kernels;
mod lavapipe;
mod licences;
mod loom;
mod manifests;
mod models;
mod packages;
mod platforms;
mod processor;
mod setup;
mod shell;
mod table;
mod test;
mod tidy;
mod totals;
mod web;

#[cfg(feature = "all")]
mod bench;
#[cfg(feature = "all")]
mod clients;
#[cfg(feature = "all")]
mod gpu;
#[cfg(feature = "all")]
mod load;
#[cfg(feature = "all")]
mod machine;
#[cfg(feature = "all")]
mod parity;
#[cfg(feature = "all")]
mod release;
#[cfg(feature = "all")]
mod synth;

/// The names under which `cargo xtask gpu pack` packs one program.
#[cfg(feature = "all")]
pub use gpu::PROGRAMS as GPU_PROGRAMS;
/// Kernels' tests that `cargo xtask gpu second` runs under compute-sanitizer.
#[cfg(feature = "all")]
pub use gpu::SANITIZED as GPU_SANITIZED;

/// The commands that few crates suffice for.
#[derive(Subcommand)]
enum Command {
    /// Check the house rules: layers, file headers and lengths, links, crate files.
    Tidy,
    /// Check the licences and sources of the dependencies, and with cargo-deny their advisories.
    Deny,
    /// Run every check and print the totals.
    Test(test::Args),
    /// Run one step of `test` and write its report.
    #[command(hide = true)]
    Step(test::StepArgs),
    /// Make deliberate faults in a copy of the tree, and tell whether the checks find them.
    Faults(faults::Args),
    /// Fetch what the tests need into `.cache/`.
    Setup(setup::Args),
    /// Check every GPU shader for Vulkan, Metal and DX12, and write its text for reading; compile the
    /// CUDA kernels (needs pip and gcc).
    Kernels(kernels::Args),
    /// Make the fixture files again (needs Python with torch and transformers).
    Fixtures(fixtures::Args),
    /// Run the thread team's models in every order of its threads' accesses.
    Loom,
    /// Look for inputs that break a parser or a request handler, guided by coverage (needs a C++
    /// compiler).
    Fuzz(fuzz::Args),
}

/// The command line where few crates suffice.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
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
    match std::env::args().nth(1) {
        Some(name) if Command::has_subcommand(&name) => Args::parse().command.run(),
        _ => run_all(),
    }
}

#[cfg(feature = "all")]
fn run_all() -> Result<ExitCode> {
    all::run()
}

/// Builds the program with all commands and hands the arguments to it.
#[cfg(not(feature = "all"))]
fn run_all() -> Result<ExitCode> {
    let mut all = shell::cargo();
    all.args(["run", "--quiet", "--package", "xtask", "--features", "all", "--bin", "xtask-all"]);
    // Paths among them are relative to where the command was given.
    all.current_dir(std::env::current_dir()?).arg("--").args(std::env::args_os().skip(1));
    let code = all.status()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}

impl Command {
    fn run(self) -> Result<ExitCode> {
        match self {
            Self::Tidy => tidy::run()?,
            Self::Deny => deny::run()?,
            Self::Test(args) => return test::run(&args),
            Self::Step(args) => test::run_step(&args)?,
            Self::Faults(args) => faults::run(&args)?,
            Self::Setup(args) => setup::run(&args)?,
            Self::Kernels(args) => kernels::run(&args)?,
            Self::Fixtures(args) => fixtures::run(&args)?,
            Self::Loom => loom::run()?,
            Self::Fuzz(args) => fuzz::run(&args)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
