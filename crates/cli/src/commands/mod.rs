//! The command line: its commands, one file each with its arguments and what it does. A new command
//! is one file and one row in the table below.

mod bench;
mod chat;
mod completions;
mod devices;
mod doctor;
mod embed;
mod inspect;
mod kl_divergence;
mod list;
mod logits;
mod perplexity;
mod pull;
mod run;
mod serve;
mod tokenize;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};

use crate::options::GlobalArgs;

const EXAMPLES: &str = "\
Examples:
  realizar run smollm2 \"Why is the sky blue?\"     answer one prompt
  realizar chat smollm2                           talk, with line editing
  cat notes.txt | realizar run model.gguf \"Sum it up\"   a pipe comes before the prompt
  realizar run hf:owner/repo/model-Q4_K_M.gguf Hi
  realizar serve smollm2 --port 8080              OpenAI's API over HTTP
  realizar inspect model.gguf                     metadata, tensors, sizes by type
  realizar bench smollm2 -p 512 -n 128            measure prompt and generation speed
  realizar devices                                what --device can name on this machine
  realizar doctor                                 what this machine has and what of it is used

A MODEL is a path (a GGUF file or a Hugging Face directory), an alias (`realizar list` shows
them), hf:owner/repo[:quantization | /file][@revision], an https:// URL, or
pip:package==version[/member].";

/// Run GGUF and safetensors language models
#[derive(Debug, Parser)]
#[command(name = "realizar", version, about, after_help = EXAMPLES, max_term_width = 100)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands, in the order in which help lists them: use, models, measure, machine, shell.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer one prompt
    Run(run::Args),
    /// Talk with a model
    Chat(chat::Args),
    /// Serve models over HTTP, by OpenAI's API
    Serve(Box<serve::Args>),
    /// Print the embedding of each text
    Embed(embed::Args),
    /// Fetch a model into the cache
    Pull(pull::Args),
    /// List pulled models and aliases
    List(list::Args),
    /// Show metadata, tensors and sizes of a model
    Inspect(inspect::Args),
    /// Show the token ids of a text, or the text of token ids
    Tokenize(tokenize::Args),
    /// Print the logits after given token ids
    Logits(logits::Args),
    /// Measure the perplexity of a text
    Perplexity(perplexity::Args),
    /// Measure how far a model is from a base, or from itself in F32
    KlDivergence(kl_divergence::Args),
    /// Measure prompt and generation speed
    Bench(bench::Args),
    /// List the devices of this machine
    Devices(devices::Args),
    /// Report what this machine has and what of it is used
    Doctor(doctor::Args),
    /// Print a shell completion script
    Completions(completions::Args),
}

/// Runs the command that was asked for.
pub(crate) fn execute(cli: Cli) -> Result<ExitCode> {
    let global = &cli.global;
    let done = |()| ExitCode::SUCCESS;
    match cli.command {
        Command::Run(args) => run::execute(&args, global),
        Command::Chat(args) => chat::execute(&args, global).map(done),
        Command::Serve(args) => serve::execute(&args, global).map(done),
        Command::Embed(args) => embed::execute(&args, global).map(done),
        Command::Pull(args) => pull::execute(&args, global).map(done),
        Command::List(args) => list::execute(&args, global).map(done),
        Command::Inspect(args) => inspect::execute(&args, global).map(done),
        Command::Tokenize(args) => tokenize::execute(&args, global).map(done),
        Command::Logits(args) => logits::execute(&args, global).map(done),
        Command::Perplexity(args) => perplexity::execute(&args, global).map(done),
        Command::KlDivergence(args) => kl_divergence::execute(&args, global).map(done),
        Command::Bench(args) => bench::execute(&args, global).map(done),
        Command::Devices(args) => devices::execute(&args).map(done),
        Command::Doctor(args) => doctor::execute(&args).map(done),
        Command::Completions(args) => completions::execute(&args, Cli::command()).map(done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
