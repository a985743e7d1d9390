//! The same request gives the same bits on one thread or two, in one chunk or many.
//!
//! A GPU has no threads to choose; it runs all chunk sizes with the model loaded once.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::Value;

use super::archs;
use super::engine::{Engine, each, integers, same_bits};
use super::{Args, DEPENDENT_LAUNCH, GPU_CHUNKS};
use crate::totals::Totals;
use crate::{setup, table};

/// What each run is compared with: one thread, the prompt as a whole.
const BASE: &[&str] = &["--threads", "1"];

/// Runs that must give the same bits as [`BASE`].
const RUNS: &[(&str, &[&str])] = &[
    ("1 thread, chunks of 1", &["--threads", "1", "--chunk", "1"]),
    ("1 thread, chunks of 7", &["--threads", "1", "--chunk", "7"]),
    ("1 thread, chunks of 16", &["--threads", "1", "--chunk", "16"]),
    ("2 threads, whole", &["--threads", "2"]),
    ("2 threads, chunks of 1", &["--threads", "2", "--chunk", "1"]),
    ("2 threads, chunks of 7", &["--threads", "2", "--chunk", "7"]),
    ("2 threads, chunks of 16", &["--threads", "2", "--chunk", "16"]),
];

/// The text whose ids the real models get.
const TEXT: &str = "The engine reads the prompt in pieces, and each piece must leave the same \
    numbers behind as the whole text would: one thread or two, one piece or forty.";

/// A model with the prompt to run and the positions to look at.
struct Case {
    name: String,
    model: PathBuf,
    ids: Vec<usize>,
    positions: Vec<usize>,
}

/// Compare all runs of every model and print the table.
pub(super) fn run(engine: &Engine, dir: &Path, args: &Args) -> Result<Totals> {
    let mut totals = Totals::default();
    let mut rows = Vec::new();
    // On a GPU, the goldens' runs compare the bits of F32 arithmetic.
    let arithmetics: &[&str] = if args.on_gpu() { &["default"] } else { &["f32", "default"] };
    let cases = cases(engine, dir, args)?;
    let runs = cases.iter().flat_map(|case| arithmetics.iter().map(move |it| (case, *it)));
    let runs: Vec<_> = runs.collect();
    let found = each(engine, args.n_workers(), &runs, |engine, (case, arithmetic)| {
        differing(engine, case, arithmetic, args.on_gpu())
    });
    for ((case, arithmetic), found) in runs.into_iter().zip(found) {
        let different = match found {
            Ok(names) => names.join("; "),
            Err(error) => format!("{error:#}"),
        };
        let result = totals.count(different.is_empty());
        rows.push(vec![case.name.clone(), arithmetic.to_owned(), result, different]);
    }
    if args.on_gpu() {
        println!(
            "Same bits over chunks on {} ({} runs each)\n",
            args.place(),
            GPU_CHUNKS.len() + 1
        );
    } else {
        println!("Same bits over threads and chunks ({} runs each)\n", RUNS.len() + 1);
    }
    println!("{}", table::render(&["model", "arithmetic", "result", "differs in"], &rows));
    Ok(totals)
}

/// The tiny models, and the real ones when they are requested.
fn cases(engine: &Engine, dir: &Path, args: &Args) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    if args.real {
        for &model in setup::MODELS.iter().filter(|m| args.wants(m)) {
            let ids = tokenize(engine, model)?;
            let positions = vec![0, ids.len() / 2, ids.len() - 1];
            cases.push(Case { name: model.to_owned(), model: model.into(), ids, positions });
        }
        return Ok(cases);
    }
    for golden in archs::goldens(dir, args)? {
        let (ids, positions) = (golden.ids, golden.positions);
        for (format, model) in golden.files {
            let name = format!("{} ({format})", golden.name);
            cases.push(Case { name, model, ids: ids.clone(), positions: positions.clone() });
        }
    }
    Ok(cases)
}

/// The ids of [`TEXT`], as `run --json` reports them.
fn tokenize(engine: &Engine, model: &str) -> Result<Vec<usize>> {
    let json: Value = engine.json(&["run", model, "--raw", "--json", "-n", "1", TEXT])?;
    integers(&json["prompt_ids"], "prompt_ids")
}

/// The names of the runs whose bits differ from the first one's.
fn differing(engine: &Engine, case: &Case, arithmetic: &str, on_gpu: bool) -> Result<Vec<String>> {
    let Case { model, ids, positions, .. } = case;
    let exact: &[&str] = if arithmetic == "f32" { &["--arithmetic", "f32"] } else { &[] };
    let mut different = Vec::new();
    if on_gpu {
        let (base, runs) = engine.logits_in_chunks(model, ids, positions, GPU_CHUNKS, exact)?;
        let runs = GPU_CHUNKS.iter().zip(&runs).filter(|(_, run)| !same_bits(&base, run));
        different.extend(runs.map(|(chunk, _)| format!("chunks of {chunk}")));
        if let Some(waiting) = engine.without(DEPENDENT_LAUNCH) {
            let waited = waiting.logits(model, ids, positions, exact)?;
            different.extend((!same_bits(&base, &waited)).then(|| DEPENDENT_LAUNCH.to_owned()));
        }
        return Ok(different);
    }
    let logits =
        |options: &[&str]| engine.logits(model, ids, positions, &[options, exact].concat());
    let base = logits(BASE)?;
    for &(name, options) in RUNS {
        if !same_bits(&base, &logits(options)?) {
            different.push(name.to_owned());
        }
    }
    Ok(different)
}
