//! `cargo xtask bench`: the engine's speed beside that of its peers, committed as a run.
//!
//! Every measurement is a process of its own. Contenders take turns on the same files with the same
//! number of threads; tables have their medians and the ratio of the engine to the best peer.
//! `--ceilings` measures the machine instead.

mod case;
mod ceilings;
mod child;
mod contender;
mod report;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::{models, setup, shell};
use case::Case;
use contender::{Contender, Kind};
use report::{Cell, Outcome, Run};

/// `cargo xtask bench`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare with the peers given and with those of llama.cpp on the path; none is an error.
    #[arg(long)]
    peer: bool,
    /// llama.cpp's llama-bench.
    #[arg(long, value_name = "PATH")]
    llama_bench: Option<PathBuf>,
    /// llama.cpp's llama-batched-bench, for batches.
    #[arg(long, value_name = "PATH")]
    llama_batched_bench: Option<PathBuf>,
    /// More arguments for llama-bench, in one text.
    #[arg(long, value_name = "ARGS", default_value = "", allow_hyphen_values = true)]
    llama_args: String,
    /// ik_llama.cpp's llama-bench.
    #[arg(long, value_name = "PATH")]
    ik_llama_bench: Option<PathBuf>,
    /// ik_llama.cpp's llama-batched-bench, for batches.
    #[arg(long, value_name = "PATH")]
    ik_llama_batched_bench: Option<PathBuf>,
    /// More arguments for ik_llama.cpp's llama-bench, in one text.
    #[arg(long, value_name = "ARGS", default_value = "", allow_hyphen_values = true)]
    ik_llama_args: String,
    /// A Python that has the package openvino-genai.
    #[arg(long, value_name = "PYTHON")]
    openvino: Option<PathBuf>,
    /// Devices of the engine, as `realizar devices` names them.
    #[arg(long, value_delimiter = ',', default_value = "cpu")]
    device: Vec<String>,
    /// More arguments for `realizar bench`, in one text.
    #[arg(long, value_name = "ARGS", default_value = "", allow_hyphen_values = true)]
    args: String,
    /// Models: files, or names that `xtask setup` fetched; all of those by default.
    #[arg(long)]
    model: Vec<String>,
    /// Cases: ppN and tgN, after DEPTH tokens with @DEPTH; batchN for N sequences; start.
    #[arg(long, value_delimiter = ',', default_value = case::ALL)]
    cases: Vec<Case>,
    /// A few short cases in two rounds, to see that everything runs.
    #[arg(long, conflicts_with_all = ["cases", "rounds"])]
    quick: bool,
    /// Numbers of threads; 1 and all cores by default.
    #[arg(short = 't', long, value_delimiter = ',')]
    threads: Vec<usize>,
    /// How often each contender runs each case.
    #[arg(short = 'r', long, default_value_t = 5)]
    rounds: usize,
    /// An engine to use instead of building one.
    #[arg(long)]
    bin: Option<PathBuf>,
    /// Where the results go; `benches/runs/<date>-<cpu>` by default.
    #[arg(long)]
    out: Option<PathBuf>,
    /// What a reader should know: how peers were built, what else the machine did.
    #[arg(long, default_value = "")]
    note: String,
    /// Measure what the machine can do at best instead: memory, caches, multiply-adds.
    #[arg(long)]
    ceilings: bool,
}

/// Measure, print and save.
pub(crate) fn run(args: &Args) -> Result<()> {
    let threads = threads(args)?;
    let out = args.out.clone();
    if args.ceilings {
        return ceilings::run(&threads, args.quick, out);
    }
    ensure!(args.rounds > 0, "--rounds: at least one");
    let engine = match &args.bin {
        Some(bin) => bin.canonicalize().with_context(|| format!("open {}", bin.display()))?,
        None => shell::build_engine()?,
    };
    let contenders = contenders(args, &engine)?;
    let (cases, rounds) = if args.quick {
        let quick: Result<_, String> = case::QUICK.split(',').map(str::parse).collect();
        (quick.map_err(anyhow::Error::msg)?, 2)
    } else {
        (args.cases.clone(), args.rounds)
    };
    let models: Vec<&str> = match &args.model[..] {
        [] => setup::MODELS.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    let mut run = Run::new(&contenders, rounds, &args.note, out)?;
    for model in models {
        let file = models::find(&engine, model)?;
        let name = Path::new(model).file_name().unwrap_or_default().to_string_lossy();
        for &case in &cases {
            for &threads in &threads {
                let outcomes = measure(&contenders, &file, threads, case, rounds)?;
                run.add(Cell { model: name.clone().into_owned(), case, threads, outcomes })?;
            }
        }
    }
    run.finish()
}

/// The given ones, or 1 and all cores.
fn threads(args: &Args) -> Result<Vec<usize>> {
    let all = std::thread::available_parallelism()?.get();
    let mut threads = if args.threads.is_empty() { vec![1, all] } else { args.threads.clone() };
    ensure!(!threads.contains(&0), "--threads: at least one");
    threads.dedup();
    Ok(threads)
}

/// The engine on every device, then the peers.
fn contenders(args: &Args, engine: &Path) -> Result<Vec<Contender>> {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut all: Vec<Contender> = Vec::new();
    for device in &args.device {
        let label = if args.device.len() == 1 {
            "realizar".to_owned()
        } else {
            format!("realizar {device}")
        };
        let kind = Kind::Realizar { device: device.clone() };
        all.push(Contender { label, kind, program: engine.into(), extra: words(&args.args) });
    }
    let found = |given: &Option<PathBuf>, name: &str| {
        given.clone().or_else(|| shell::on_path(name).filter(|_| args.peer))
    };
    if let Some(program) = found(&args.llama_bench, "llama-bench") {
        let batched = found(&args.llama_batched_bench, "llama-batched-bench");
        let (kind, extra) = (Kind::Llama { batched }, words(&args.llama_args));
        all.push(Contender { label: "llama.cpp".to_owned(), kind, program, extra });
    }
    if let Some(program) = args.ik_llama_bench.clone() {
        let batched = args.ik_llama_batched_bench.clone();
        let (kind, extra) = (Kind::IkLlama { batched }, words(&args.ik_llama_args));
        all.push(Contender { label: "ik_llama.cpp".to_owned(), kind, program, extra });
    }
    if let Some(program) = args.openvino.clone() {
        let (label, kind) = ("OpenVINO".to_owned(), Kind::OpenVino);
        all.push(Contender { label, kind, program, extra: Vec::new() });
    }
    ensure!(
        !args.peer || all.iter().any(|contender| !contender.is_ours()),
        "--peer: no llama-bench on the path, and no other peer given"
    );
    Ok(all)
}

/// All rounds of a case. A peer that fails is left out of the rounds that follow; the engine must
/// not fail.
fn measure(
    contenders: &[Contender],
    model: &Path,
    threads: usize,
    case: Case,
    rounds: usize,
) -> Result<Vec<Outcome>> {
    let mut outcomes: Vec<Outcome> = contenders.iter().map(|_| Ok(Vec::new())).collect();
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..contenders.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for i in order {
            let Ok(samples) = &mut outcomes[i] else { continue };
            match contenders[i].measure(model, threads, case) {
                Ok(sample) => samples.push(sample),
                Err(error) if contenders[i].is_ours() => return Err(error),
                Err(error) => outcomes[i] = Err(format!("{error:#}")),
            }
        }
    }
    Ok(outcomes)
}
