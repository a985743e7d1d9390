//! `realizar completions`: a completion script for a shell, on standard output.

use std::io::Write;

use anyhow::Result;
use clap::Command;
use clap_complete::Shell;

use crate::ui;

/// For bash, for example: realizar completions bash > ~/.local/share/bash-completion/completions/realizar
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Writes the script for the command line `program`.
pub(crate) fn execute(args: &Args, mut program: Command) -> Result<()> {
    // The generator panics when its output fails, so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "realizar", &mut script);
    let mut out = ui::out();
    out.write_all(&script)?;
    out.flush()?;
    Ok(())
}
