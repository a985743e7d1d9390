//! The program `realizar` as a function: argument parsing, logging, exit codes.
//!
//! A command is one file in `commands` and one row in `commands::Command`. Exit codes: 0 success, 1 error, 2 usage, 130
//! interrupted. The modules are floors: each uses only those before it.
//!
//! | floor | what it holds |
//! |---|---|
//! | `screen` | standard output and standard error; signs in place of characters that a terminal would obey |
//! | `status` | the progress line |
//! | `interrupt`, `log`, `program` | Ctrl-C, logging, the one place that starts other programs |
//! | `ui` | everything that is printed besides results |
//! | `flags`, `grammar`, `otel`, `source`, `terminal` | parsers of values; trace export; from a model argument to a path; Markdown as it is streamed |
//! | `config`, `mcp` | the config file, as further arguments; MCP servers and their tools |
//! | `options`, `engine` | options that commands share; models loaded for them |
//! | `commands` | the command line |
//!
//! An option is defined once, for the parser; the config file and `realizar config` read the same definitions.
#![forbid(unsafe_code)]

// The floors, the lowest first.
mod screen;

mod status;

mod interrupt;
mod log;
mod program;

mod ui;

mod flags;
mod grammar;
mod otel;
mod source;
mod terminal;

mod config;
mod mcp;

mod options;

mod engine;

mod commands;

use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches};

use commands::Cli;

/// Runs the command that the process's arguments name, and returns its exit code.
pub fn main() -> ExitCode {
    log::panics();
    let args: Vec<_> = std::env::args_os().collect();
    let color = ui::requested_color(args.iter().skip(1).cloned());
    match config::names(&args) {
        Ok(names) => source::own::set(names),
        Err(text) => {
            ui::init(color);
            return ui::report(&ui::usage(text));
        }
    }
    let args = commands::with_run(args);
    if let Some(text) = commands::unknown_command(&args) {
        ui::init(color);
        return ui::report(&ui::usage(text));
    }
    let args = flags::spell_out(args, Cli::command());
    let args = match args.and_then(|args| config::apply(args, Cli::command())) {
        Ok(args) => args,
        Err(text) => {
            ui::init(color);
            return ui::report(&ui::usage(text));
        }
    };
    let command = Cli::command().color(color.for_clap());
    ui::init(color);
    let matches = command.try_get_matches_from(args);
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return ui::report_usage(&error),
    };
    ui::init_logging(cli.global.verbose);
    let result = install_handlers().and_then(|()| commands::execute(cli));
    log::flush();
    match result {
        Ok(code) => code,
        Err(error) => ui::report(&error),
    }
}

/// Handles what the process is told by signals: an interrupt, pages of a model file that are lost,
/// and files that may not grow.
fn install_handlers() -> anyhow::Result<()> {
    realizar_formats::survive_lost_pages().context("the handler of bus errors")?;
    realizar_formats::survive_file_size_limit().context("the limit on the size of files")?;
    interrupt::install()
}
