//! `realizar man`: manual pages of all commands, as files in a folder. Packages are made with it.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Command;

/// Writes realizar.1 and a page for each command.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder for the pages; it must exist
    dir: PathBuf,
}

/// Writes the pages of the command line `program`.
pub(crate) fn execute(args: &Args, program: Command) -> Result<()> {
    let program = program.disable_help_subcommand(true);
    clap_mangen::generate_to(program, &args.dir)
        .with_context(|| format!("cannot write manual pages to {}", args.dir.display()))
}
