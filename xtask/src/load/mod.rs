//! `cargo xtask load`: the server under load. It measures throughput and latencies beside peers, or
//! checks answers under load, behaviour under faults and under hostile requests, and memory over many
//! requests.
//!
//! Clients are blocking threads in this process, so their number is bounded.

mod case;
pub(crate) mod client;
mod faults;
mod hostile;
pub(crate) mod metrics;
mod raw;
mod report;
pub(crate) mod server;
mod soak;
mod speed;
mod sse;
mod stats;
mod verify;
pub(crate) mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::totals::Totals;
use crate::{models, shell};
use server::{Contender, Kind};
use workload::Api;

/// The maximum number of streams at a time.
const MAX_STREAMS: usize = 64;

/// What is served where no other model is named.
const DEFAULT_MODEL: &str = "smollm2";

/// `cargo xtask load`
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("mode").args(["verify", "faults", "hostile", "soak"])))]
pub(crate) struct Args {
    /// An engine to use instead of building one.
    #[arg(long)]
    bin: Option<PathBuf>,
    /// llama.cpp's llama-server, to compare with.
    #[arg(long, value_name = "PATH")]
    llama_server: Option<PathBuf>,
    /// Servers that run already.
    #[arg(long, value_name = "NAME=URL", conflicts_with = "mode")]
    url: Vec<String>,
    /// Leave out the engine of this repository.
    #[arg(long)]
    peers_only: bool,
    /// More arguments for `realizar serve`, in one text.
    #[arg(long, value_name = "ARGS", default_value = "", allow_hyphen_values = true)]
    args: String,
    /// More arguments for llama-server, in one text.
    #[arg(long, value_name = "ARGS", default_value = "", allow_hyphen_values = true)]
    llama_args: String,
    /// A model: a file, or a name that `xtask setup` fetched.
    #[arg(long, default_value = DEFAULT_MODEL)]
    model: String,
    /// Threads of each server; all cores by default.
    #[arg(short = 't', long)]
    threads: Option<usize>,
    /// Numbers of streams, at most 64. The server runs as many requests at a time.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64")]
    streams: Vec<usize>,
    /// Requests per case and round; 3 per stream and at least 16 by default.
    #[arg(long)]
    requests: Option<usize>,
    /// Lengths of prompts in tokens, in turn.
    #[arg(long, value_delimiter = ',', default_value = "32,128,512")]
    prompts: Vec<usize>,
    /// Tokens that all prompts of a case begin with: one case for each value.
    #[arg(long, value_delimiter = ',', default_value = "0,600,1000")]
    shared: Vec<usize>,
    /// Prompts that are sent twice to an idle server, in tokens; 0 for none.
    #[arg(long, value_delimiter = ',', default_value = "1000")]
    twice: Vec<usize>,
    /// Tokens that each request generates.
    #[arg(long, default_value_t = 128)]
    max_tokens: usize,
    /// Chats instead of plain completions.
    #[arg(long)]
    chat: bool,
    /// How often each server runs each case.
    #[arg(short = 'r', long, default_value_t = 3)]
    rounds: usize,
    /// What texts and times are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the results go; `benches/runs/<date>-<cpu>-serving` by default.
    #[arg(long)]
    out: Option<PathBuf>,
    /// What a reader should know: how peers were built, what else the machine did.
    #[arg(long, default_value = "")]
    note: String,
    /// Send N requests in bursts, and compare each answer with that of a fresh idle server.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "200")]
    verify: Option<usize>,
    /// Disturb the server, and check that a well-behaved client does not notice.
    #[arg(long)]
    faults: bool,
    /// Attack the server, and bound what that costs another client's stream and the server's memory.
    #[arg(long)]
    hostile: bool,
    /// Send N short requests and watch the server's memory.
    #[arg(long, value_name = "N")]
    soak: Option<usize>,
    /// Requests that the server runs at a time, with --verify, --faults and --soak.
    #[arg(long, default_value_t = 16)]
    parallel: usize,
}

impl Args {
    fn threads(&self) -> Result<usize> {
        match self.threads {
            Some(threads) => Ok(threads),
            None => Ok(std::thread::available_parallelism()?.get()),
        }
    }

    fn api(&self) -> Api {
        if self.chat { Api::Chat } else { Api::Completions }
    }

    fn check(&self) -> Result<()> {
        ensure!(self.rounds > 0, "--rounds: at least one");
        ensure!(self.threads != Some(0), "--threads: at least one");
        ensure!(self.requests != Some(0), "--requests: at least one");
        ensure!(self.max_tokens > 0, "--max-tokens: at least one");
        ensure!(!self.prompts.contains(&0), "--prompts: at least one token");
        for n_streams in self.streams.iter().chain([&self.parallel]) {
            ensure!((1..=MAX_STREAMS).contains(n_streams), "streams: 1 to {MAX_STREAMS}");
        }
        Ok(())
    }
}

/// Measure or check, print and save.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    args.check()?;
    let engine = match &args.bin {
        Some(bin) => bin.canonicalize().with_context(|| format!("open {}", bin.display()))?,
        None if args.peers_only => PathBuf::new(),
        None => shell::build_engine()?,
    };
    let model = models::find(&engine, &args.model)?;
    let contenders = contenders(args, engine)?;
    // Checks of peers are told but decide nothing.
    let mut passed = true;
    let mut note = |contender: &Contender, ok: bool| passed &= ok || !contender.is_ours();
    for contender in &contenders {
        if let Some(n_requests) = args.verify {
            note(contender, verify::run(args, contender, &model, n_requests)?);
        } else if args.faults {
            note(contender, faults::run(args, contender, &model)?);
        } else if args.hostile {
            let totals = hostile::run(contender, &model, args.threads()?, args.seed)?;
            note(contender, totals.failed == 0);
        } else if let Some(n_requests) = args.soak {
            note(contender, soak::run(args, contender, &model, n_requests)?);
        } else {
            speed::run(args, &contenders, &model)?;
            break;
        }
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `cargo xtask load --hostile` with an engine that was built and the model of its own default.
pub(crate) fn hostile_checks(engine: PathBuf) -> Result<Totals> {
    let model = models::find(&engine, DEFAULT_MODEL)?;
    let threads = std::thread::available_parallelism()?.get();
    let (label, kind) = ("realizar".to_owned(), Kind::Realizar);
    let contender = Contender { label, kind, program: engine, extra: Vec::new() };
    hostile::run(&contender, &model, threads, 1)
}

/// The engine, then the peers.
fn contenders(args: &Args, engine: PathBuf) -> Result<Vec<Contender>> {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut all = Vec::new();
    let mut add = |label: &str, kind, program, extra: &str| {
        all.push(Contender { label: label.to_owned(), kind, program, extra: words(extra) });
    };
    if !args.peers_only {
        add("realizar", Kind::Realizar, engine, &args.args);
    }
    if let Some(program) = &args.llama_server {
        let program = program.canonicalize().with_context(|| program.display().to_string())?;
        add("llama.cpp", Kind::Llama, program, &args.llama_args);
    }
    for given in &args.url {
        let (name, url) = given.split_once('=').context("--url: NAME=URL")?;
        add(name, Kind::Running { url: url.to_owned() }, PathBuf::new(), "");
    }
    ensure!(!all.is_empty(), "--peers-only: no peer given");
    Ok(all)
}
