//! `realizar logits`: token ids in, logits out. Needs no tokenizer, so that any model can be held
//! against another implementation.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::num::NonZeroUsize;
use std::ops::Range;

use anyhow::{Context, Result};
use realizar_runtime::backend::Phase;
use realizar_runtime::{Chunk, Outputs, Runner};
use serde::Serialize;

use crate::engine::{Engine, Needs};
use crate::options::{GlobalArgs, List, LoadArgs, list};
use crate::ui;

/// Tokens shown per position without --json.
const SHOWN: usize = 10;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model: a path, an alias, or hf:, https:// or pip: source
    model: String,
    /// Token ids of the prompt, e.g. 5,17,42
    #[arg(long, value_name = "IDS", value_parser = list::<u32>, allow_hyphen_values = true)]
    ids: List<u32>,
    /// Positions whose logits are printed, counted from 0 [default: the last]
    #[arg(long, value_name = "POSITIONS", value_parser = list::<usize>)]
    #[arg(allow_hyphen_values = true)]
    positions: Option<List<usize>>,
    /// Print all logits as one JSON object: {"values": {"0": […]}}
    #[arg(long)]
    json: bool,
    /// With --json, add "chunks": the same logits for each of these --chunk sizes
    #[arg(long, value_name = "SIZES", value_parser = list::<NonZeroUsize>, requires = "json")]
    #[arg(allow_hyphen_values = true)]
    also_chunks: Option<List<NonZeroUsize>>,
    /// With --json, add "generated" and "batched": the same logits of a sequence whose tokens come one
    /// by one, and of another beside it, whose prompt comes in pieces; needs --chunk of at least 24
    #[arg(long, requires = "json")]
    also_mixed: bool,
    #[command(flatten)]
    load: LoadArgs,
}

/// The prompt tokens of a step that every device takes by default.
const LEAST_CHUNK: usize = 256;

/// Logits by position.
type Values = BTreeMap<usize, Vec<f32>>; // [vocab_size] each

/// The object of --json.
#[derive(Serialize)]
struct Output {
    values: Values,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunks: Option<BTreeMap<usize, Values>>, // by chunk size
    #[serde(flatten)]
    mixed: Option<Mixed>,
}

/// Logits of sequences that run together.
#[derive(Serialize, Default)]
struct Mixed {
    generated: Values,
    batched: Values,
}

/// Tokens per step of the sequences that run together: one of generated tokens, two of prompts.
const PACES: [usize; 3] = [1, 7, 16];

/// What a run computes.
struct Computed {
    positions: Vec<usize>,
    rows: Vec<Vec<f32>>, // [positions][vocab_size]
    chunks: Option<BTreeMap<usize, Values>>,
    mixed: Option<Mixed>,
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    let computed = compute(args, global)?;
    if args.json {
        return ui::json(&computed.output());
    }
    let mut out = ui::out();
    for (position, row) in computed.positions.iter().zip(&computed.rows) {
        writeln!(out, "position {position}")?;
        for (id, logit) in best(row, SHOWN) {
            writeln!(out, "{id:>7}  {logit:.5}")?;
        }
    }
    out.flush()?;
    Ok(())
}

/// Answers requests until standard input ends. A request is a JSON list of arguments in one line, which `parse`
/// reads; its answer is the object of --json in one line, or an object with the `error`.
pub(crate) fn answer_lines(
    parse: impl Fn(Vec<String>) -> Result<(Args, GlobalArgs)>,
) -> Result<()> {
    let answer = |line: io::Result<String>| -> Result<Output> {
        let line = line.context("cannot read standard input")?;
        let (args, global) =
            parse(serde_json::from_str(&line).context("not a list of arguments")?)?;
        Ok(compute(&args, &global)?.output())
    };
    for line in io::stdin().lock().lines() {
        match answer(line) {
            Ok(output) => ui::json(&output)?,
            Err(error) => ui::json(&serde_json::json!({"error": ui::one_line(&error)}))?,
        }
    }
    Ok(())
}

fn compute(args: &Args, global: &GlobalArgs) -> Result<Computed> {
    let ids = &args.ids.0;
    let last = ids.len() - 1; // the parser asks for at least one id
    let positions = args.positions.as_ref().map_or_else(|| vec![last], |list| list.0.clone());
    if let Some(position) = positions.iter().find(|&&position| position > last) {
        return Err(ui::usage(format!(
            "--positions {position}: for {} ids the last position is {last}",
            ids.len()
        )));
    }
    let most = args.load.chunk.unwrap_or(LEAST_CHUNK);
    let sizes = args.also_chunks.iter().flat_map(|list| &list.0);
    if let Some(chunk) = sizes.copied().find(|chunk| chunk.get() > most) {
        return Err(ui::usage(format!("--also-chunks {chunk}: the maximum is --chunk, {most}")));
    }
    let path = global.sources().resolve(&args.model)?;
    let rows: usize = PACES.iter().sum();
    if args.also_mixed && most < rows {
        return Err(ui::usage(format!("--also-mixed needs a --chunk of at least {rows}")));
    }
    // A context of the prompt's length: with LongRoPE, a longer one has other angles.
    let (n_rows, seqs) = if args.also_mixed { (rows, Some(PACES.len())) } else { (0, None) };
    let outputs = Some(positions.len().min(64).max(n_rows));
    let needs = Needs { ctx: Some(ids.len()), outputs, seqs, ..Needs::default() };
    let mut engine = Engine::load(&path, &args.load, global, needs)?;
    let rows = engine.model.logits(ids, &positions, args.load.chunk.unwrap_or(usize::MAX))?;
    let mut again = |chunk: &NonZeroUsize| -> Result<(usize, Values)> {
        let rows = engine.model.logits(ids, &positions, chunk.get())?;
        Ok((chunk.get(), by_position(&positions, rows)))
    };
    let sizes = args.also_chunks.as_ref().map(|list| list.0.iter());
    let chunks = sizes.map(|sizes| sizes.map(&mut again).collect::<Result<_>>()).transpose()?;
    let mixed = args.also_mixed.then(|| mixed(engine.model.runner(), ids, &positions));
    Ok(Computed { rows, chunks, mixed: mixed.transpose()?, positions })
}

fn by_position(positions: &[usize], rows: Vec<Vec<f32>>) -> Values {
    positions.iter().copied().zip(rows).collect()
}

impl Computed {
    fn output(self) -> Output {
        let Self { positions, rows, chunks, mixed } = self;
        Output { values: by_position(&positions, rows), chunks, mixed }
    }
}

/// The logits of three sequences of the same tokens in common steps. The first gets one token a step, as
/// generated ones come, the others their prompt in pieces; the last begins later.
fn mixed(runner: &mut Runner, ids: &[u32], positions: &[usize]) -> Result<Mixed> {
    let sequences = PACES.map(|pace| (runner.new_sequence(), pace));
    let mut found = PACES.map(|_| Values::new());
    let mut done = [0; PACES.len()];
    for step in 0.. {
        let mut wanted: Vec<(usize, Range<usize>, Vec<usize>)> = Vec::new();
        for (at, (_, pace)) in sequences.iter().enumerate() {
            let waits = at + 1 == sequences.len() && step < 3;
            let range = done[at]..(done[at] + pace).min(ids.len());
            if !waits && !range.is_empty() {
                let inside = range.clone().filter(|position| positions.contains(position));
                let inside = inside.map(|position| position - range.start).collect();
                wanted.push((at, range, inside));
            }
        }
        if wanted.is_empty() {
            break;
        }
        let mut chunks = Vec::new();
        for (at, range, inside) in &wanted {
            chunks.push(Chunk {
                seq: &sequences[*at].0,
                rows: ids[range.clone()].into(),
                phase: if *at == 0 && step > 0 { Phase::Decode } else { Phase::Prefill },
                outputs: if inside.is_empty() { Outputs::None } else { Outputs::At(inside) },
            });
        }
        let rows = runner.step(&chunks)?;
        for (chunk, (at, range, inside)) in wanted.iter().enumerate() {
            for (row, position) in inside.iter().enumerate() {
                found[*at].insert(range.start + position, rows.row(chunk, row).to_vec());
            }
            done[*at] = range.end;
        }
    }
    for (sequence, _) in sequences {
        runner.remove(sequence);
    }
    let [generated, batched, late] = found;
    anyhow::ensure!(batched == late, "two sequences of one step differ in their logits");
    Ok(Mixed { generated, batched })
}

/// The `n` largest values with their indices; ties go to the lower index.
fn best(row: &[f32], n: usize) -> Vec<(usize, f32)> {
    let mut order: Vec<(usize, f32)> = row.iter().copied().enumerate().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    order.truncate(n);
    order
}

#[cfg(test)]
mod tests {
    use super::best;

    #[test]
    fn best_first() {
        assert_eq!(best(&[1.0, 3.0, 2.0, 3.0], 3), [(1, 3.0), (3, 3.0), (2, 2.0)]);
        assert_eq!(best(&[], 3), []);
    }
}
