//! `realizar bench`: tokens per second for prompts and for generation, laid out as llama-bench
//! lays it out, so that the two tables can be held side by side.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use realizar_runtime::backend::Phase;
use realizar_runtime::metrics::{DispatchSnapshot, LatencySnapshot};
use realizar_runtime::{BenchTest, ByteSize};
use serde_json::json;

use crate::engine::{Engine, Needs};
use crate::options::{GlobalArgs, List, LoadArgs, list, positive};
use crate::source::progress::Progress;
use crate::ui;

/// ppN processes a prompt of N tokens, tgN generates N tokens; each is run -r times after one
/// run that is not counted. Every length is measured at every depth and with every number of
/// sequences.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model: a path, an alias, or hf:, https:// or pip: source
    model: String,
    /// Prompt lengths, e.g. 128,512; 0 for none
    #[arg(short = 'p', long, value_name = "N", default_value = "512", value_parser = list::<usize>)]
    #[arg(allow_hyphen_values = true)]
    n_prompt: List<usize>,
    /// Generation lengths, e.g. 32,128; 0 for none
    #[arg(short = 'n', long, value_name = "N", default_value = "128", value_parser = list::<usize>)]
    #[arg(allow_hyphen_values = true)]
    n_gen: List<usize>,
    /// Tokens in the context of every sequence before a test, e.g. 0,2048
    #[arg(short = 'd', long, value_name = "N", default_value = "0", value_parser = list::<usize>)]
    #[arg(allow_hyphen_values = true)]
    n_depth: List<usize>,
    /// Concurrent sequences, e.g. 1,8,16; the speed is their total
    #[arg(short = 'b', long, value_name = "N", default_value = "1", value_parser = list::<usize>)]
    #[arg(allow_hyphen_values = true)]
    batch: List<usize>,
    /// Tests by their names, e.g. "pp512, tg128 x8, tg64 @ d2048", instead of every combination of
    /// lengths, depths and sequences
    #[arg(long, value_name = "NAMES", value_parser = named_tests)]
    #[arg(conflicts_with_all = ["n_prompt", "n_gen", "n_depth", "batch"])]
    tests: Option<Named>,
    /// Runs of each test
    #[arg(short, long, value_name = "N", default_value = "5", value_parser = positive)]
    #[arg(allow_negative_numbers = true)]
    repetitions: usize,
    /// Skip the warm-up run of each test
    #[arg(long)]
    no_warmup: bool,
    /// Time each class of operations on the device; this slows GPUs down
    #[arg(long)]
    profile: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: LoadArgs,
}

/// `pp512`, `tg128 @ d2048` or `tg32 x16`.
fn test_name(test: &BenchTest) -> String {
    let kind = if test.phase == Phase::Prefill { "pp" } else { "tg" };
    let mut name = format!("{kind}{}", test.n_tokens);
    if test.batch > 1 {
        name.push_str(&format!(" x{}", test.batch));
    }
    if test.depth > 0 {
        name.push_str(&format!(" @ d{}", test.depth));
    }
    name
}

/// Tests that were requested by their names.
#[derive(Debug, Clone)]
struct Named(Vec<BenchTest>);

fn named_tests(text: &str) -> Result<Named, String> {
    let test = |name: &str| {
        named_test(name).ok_or_else(|| {
            format!("`{}` must be a test such as pp512, tg128 x8 or tg64 @ d2048", name.trim())
        })
    };
    text.split(',').map(test).collect::<Result<_, _>>().map(Named)
}

/// The test of a name as [`test_name`] writes it.
fn named_test(name: &str) -> Option<BenchTest> {
    let mut words = name.split_whitespace();
    let first = words.next()?;
    let (phase, n_tokens) = match (first.strip_prefix("pp"), first.strip_prefix("tg")) {
        (Some(n), _) => (Phase::Prefill, n),
        (_, Some(n)) => (Phase::Decode, n),
        _ => return None,
    };
    let number = |text: &str| text.parse::<usize>().ok();
    let mut test = BenchTest { phase, n_tokens: number(n_tokens)?, depth: 0, batch: 1 };
    let mut next = words.next();
    if let Some(batch) = next.and_then(|word| word.strip_prefix('x')) {
        test.batch = number(batch)?;
        next = words.next();
    }
    if next == Some("@") {
        test.depth = number(words.next()?.strip_prefix('d')?)?;
        next = words.next();
    }
    (next.is_none() && test.n_tokens > 0 && test.batch > 0).then_some(test)
}

/// The tests that are requested, prompts first.
fn tests(args: &Args) -> Result<Vec<BenchTest>> {
    if let Some(Named(tests)) = &args.tests {
        return Ok(tests.clone());
    }
    let mut tests = Vec::new();
    for &depth in &args.n_depth.0 {
        for &batch in &args.batch.0 {
            if batch == 0 {
                return Err(ui::usage("--batch: must be at least 1"));
            }
            for (phase, lengths) in [(Phase::Prefill, &args.n_prompt), (Phase::Decode, &args.n_gen)]
            {
                let lengths = lengths.0.iter().filter(|&&n| n > 0);
                tests.extend(lengths.map(|&n_tokens| BenchTest { phase, n_tokens, depth, batch }));
            }
        }
    }
    if tests.is_empty() {
        return Err(ui::usage("nothing to measure: both -p and -n are 0"));
    }
    Ok(tests)
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    let tests = tests(args)?;
    let path = global.sources().resolve(&args.model)?;
    let batch = tests.iter().map(|test| test.batch).max();
    let needs = Needs {
        ctx: tests.iter().map(|test| test.n_tokens.saturating_add(test.depth)).max(),
        outputs: batch,
        seqs: batch,
        profile: args.profile,
        ..Needs::default()
    };
    let mut engine = Engine::load(&path, &args.load, global, needs)?;
    let n_threads = engine.n_threads;
    let model = &mut engine.model;
    let progress = Progress::steps("bench", (tests.len() * args.repetitions) as u64);
    let mut results = Vec::new(); // (test, tokens per second of each run)
    let mut dispatch = Vec::new(); // (test, what the devices ran for it)
    for test in tests {
        progress.note(&test_name(&test));
        let n_warmup = usize::from(!args.no_warmup);
        let times = model.bench(&test, n_warmup, args.repetitions, &mut || progress.add(1))?;
        let rate = |time: &Duration| test.timed_tokens() as f64 / time.as_secs_f64().max(1e-9);
        dispatch.push((test_name(&test), model.metrics()));
        results.push((test, times.iter().map(rate).collect::<Vec<f64>>()));
    }
    progress.done();

    let name = path.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
    if args.json {
        let results: Vec<_> = results
            .iter()
            .map(|(test, rates)| {
                let (mean, std) = mean_std(rates);
                json!({
                    "test": test_name(test),
                    "n_tokens": test.n_tokens,
                    "depth": test.depth,
                    "batch": test.batch,
                    "tokens_per_second": mean,
                    "std": std,
                    "runs": rates,
                })
            })
            .collect();
        let dispatch: Vec<_> =
            dispatch.iter().map(|(test, metrics)| TestDispatch { test, metrics }).collect();
        return ui::json(&json!({
            "model": name,
            "architecture": model.architecture(),
            "bytes": model.weight_bytes(),
            "bytes_per_token": model.bytes_per_token(),
            "n_params": model.n_params(),
            "backend": model.backend(),
            "threads": n_threads,
            "results": results,
            "dispatch": dispatch,
        }));
    }
    let mut out = ui::out();
    writeln!(out, "| model | size | params | backend | threads | test | t/s |")?;
    writeln!(out, "| --- | ---: | ---: | --- | ---: | ---: | ---: |")?;
    for (test, rates) in &results {
        let (mean, std) = mean_std(rates);
        writeln!(
            out,
            "| {} {name} | {} | {} | {} | {} | {} | {mean:.2} ± {std:.2} |",
            model.architecture(),
            ByteSize::from(model.weight_bytes()),
            ui::count(model.n_params() as u64),
            model.backend(),
            n_threads.map_or_else(|| "-".to_owned(), |n| n.to_string()),
            test_name(test),
        )?;
    }
    if let Some((test, rates)) = results.iter().find(|(test, _)| reads_once_per_token(test)) {
        // The table is llama-bench's, so this has a line of its own.
        let (rate, _) = mean_std(rates);
        let read = model.bytes_per_token();
        let (speed, name) = (rate * read as f64 / 1e9, test_name(test));
        let read = ByteSize::from(read);
        writeln!(
            out,
            "\nA decode step of one sequence reads {read} of weights: {speed:.1} GB/s in {name}."
        )?;
    }
    if args.profile {
        writeln!(out)?;
        ui::table(&mut out, &profile_rows(&dispatch), &[3, 4, 5, 6, 7, 8])?;
    }
    out.flush()?;
    Ok(())
}

/// Whether a test generates tokens one by one.
fn reads_once_per_token(test: &BenchTest) -> bool {
    test.phase == Phase::Decode && test.batch == 1
}

/// An element of `dispatch` in the JSON output.
#[derive(serde::Serialize)]
struct TestDispatch<'a> {
    test: &'a str,
    #[serde(flatten)]
    metrics: &'a DispatchSnapshot,
}

/// The profile of each test: one line per device and op class, and the whole steps last.
fn profile_rows(dispatch: &[(String, DispatchSnapshot)]) -> Vec<Vec<String>> {
    let header = [
        "test",
        "device",
        "op class",
        "dispatches",
        "time",
        "mean us",
        "std us",
        "p50 us",
        "p99 us",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let none = || "-".to_owned();
    for (test, metrics) in dispatch {
        for device in &metrics.devices {
            for class in &device.op_classes {
                let us = |of: fn(&LatencySnapshot) -> f64| {
                    class
                        .latency
                        .as_ref()
                        .map_or_else(none, |latency| format!("{:.1}", of(latency)))
                };
                rows.push(vec![
                    test.clone(),
                    device.device.clone(),
                    class.op_class.name().to_owned(),
                    class.dispatches.to_string(),
                    class
                        .share_of_time
                        .map_or_else(none, |share| format!("{:.1} %", 100.0 * share)),
                    us(|latency| latency.mean_us),
                    us(|latency| latency.std_us),
                    us(|latency| latency.p50_us),
                    us(|latency| latency.p99_us),
                ]);
            }
        }
    }
    rows
}

/// Mean and sample standard deviation; the deviation of one value is 0.
fn mean_std(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    if values.len() < 2 {
        return (mean, 0.0);
    }
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, variance.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_runtime::metrics::{DeviceKind, DispatchMetrics, OpClass};

    #[test]
    fn a_profile_has_a_line_per_class_and_dashes_for_what_was_not_timed() {
        let metrics = DispatchMetrics::new("gpu 0".to_owned(), DeviceKind::Gpu);
        metrics.count(OpClass::Rope, 60);
        metrics.record(OpClass::Linear, Duration::from_micros(300));
        metrics.record(OpClass::Step, Duration::from_micros(400));
        let snapshot = DispatchSnapshot::new(vec![metrics.snapshot()]);
        let rows = profile_rows(&[("tg8".to_owned(), snapshot)]);
        let lines: Vec<_> = rows[1..].iter().map(|row| row.join(" ")).collect();
        assert_eq!(
            lines,
            [
                "tg8 gpu 0 linear 1 75.0 % 300.0 0.0 300.0 300.0",
                "tg8 gpu 0 rope 60 - - - - -",
                "tg8 gpu 0 step 1 100.0 % 400.0 0.0 400.0 400.0",
            ]
        );
        assert!(rows.iter().all(|row| row.len() == rows[0].len()));
    }

    #[test]
    fn tests_are_read_by_the_names_that_the_table_has() {
        for name in ["pp512", "tg128 x8", "tg64 @ d2048", "pp4096 x2 @ d1", "tg1"] {
            let test = named_test(name).unwrap();
            assert_eq!(test_name(&test), name);
        }
        let names = |text| {
            named_tests(text).map(|Named(tests)| tests.iter().map(test_name).collect::<Vec<_>>())
        };
        assert_eq!(names(" pp8 ,tg4  x2").unwrap(), ["pp8", "tg4 x2"]);
        for wrong in
            ["", "pp", "pp0", "xx5", "tg5 x0", "tg5 x", "tg5 @", "tg5 @ 7", "tg5 x2 x3", "tg5,"]
        {
            assert!(named_tests(wrong).unwrap_err().contains("must be a test"), "{wrong}");
        }
    }

    #[test]
    fn mean_and_deviation() {
        assert_eq!(mean_std(&[3.0]), (3.0, 0.0));
        assert_eq!(mean_std(&[1.0, 2.0, 3.0]), (2.0, 1.0));
    }
}
