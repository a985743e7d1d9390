//! `cargo xtask test`: every check, with a table of steps and the totals at the end.
//!
//! Each step is a process of its own, which reports its counts and its processor time. Steps that compile or
//! measure run alone, the others two at a time; meanwhile what later steps need is fetched.

#[cfg(feature = "all")]
mod all;
mod built;
mod count;
mod light;
mod step;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::setup::Need;
use crate::totals::Totals;
use crate::{platforms, processor, shell, table};
use built::Built;
use step::{Beside, Step};

/// Steps that run at the same time.
const WORKERS: usize = 2;

/// `cargo xtask test`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Leave these steps out (may be given more than once, or comma-separated).
    #[arg(long, value_enum, value_delimiter = ',')]
    skip: Vec<Step>,
    /// Run these steps alone.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Step>,
}

/// `cargo xtask step`, which `test` starts.
#[derive(clap::Args)]
pub(crate) struct StepArgs {
    #[arg(value_enum)]
    step: Step,
    /// A file with the programs of the step `build`.
    #[arg(long)]
    built: Option<PathBuf>,
    /// Where the report goes.
    #[arg(long)]
    report: PathBuf,
}

/// What the process of a step tells.
#[derive(Serialize, Deserialize, Default)]
struct Report {
    totals: Totals,
    processor_seconds: Option<f64>,
}

/// A step that is over.
struct Done {
    step: Step,
    report: Report,
    seconds: f64,
}

/// Run one step, in the process that `test` started for it.
pub(crate) fn run_step(args: &StepArgs) -> Result<()> {
    let built = args.built.as_deref().map(Built::read).transpose()?;
    let outcome = if args.step.is_of_all() {
        built
            .context("the step needs what `build` makes")
            .and_then(|built| of_all(args.step, &built))
    } else {
        light::run(args.step, built.as_ref())
    };
    let totals = outcome.unwrap_or_else(|error| failed(args.step, &error));
    let report = Report { totals, processor_seconds: processor::seconds() };
    fs::write(&args.report, serde_json::to_string(&report)?)?;
    Ok(())
}

#[cfg(feature = "all")]
fn of_all(step: Step, built: &Built) -> Result<Totals> {
    all::run(step, built)
}

#[cfg(not(feature = "all"))]
fn of_all(step: Step, _: &Built) -> Result<Totals> {
    bail!("{} needs the crate feature `all`", step.name())
}

fn failed(step: Step, error: &anyhow::Error) -> Totals {
    let mut none = Totals::default();
    none.fail(format!("{}: {error:#}", step.name()));
    none
}

/// Fetch what the chosen steps need, and run them all, also after one that failed; the totals are
/// the last line in any case.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let is_chosen = |step: &&Step| {
        (args.only.is_empty() || args.only.contains(step)) && !args.skip.contains(step)
    };
    let chosen: Vec<Step> = Step::value_variants().iter().filter(is_chosen).copied().collect();
    let start = Instant::now();
    let done = Place::new()?.run(&chosen);
    Ok(summary(&done, start.elapsed().as_secs_f64()))
}

/// Prints the table, the failures and the totals.
fn summary(done: &[Done], seconds: f64) -> ExitCode {
    let time = |seconds: f64| format!("{seconds:.1} s");
    let mut totals = Totals::default();
    let mut failed = Vec::new();
    let mut rows = Vec::new();
    for step in Step::value_variants() {
        let Some(Done { report, seconds, .. }) = done.iter().find(|done| done.step == *step) else {
            let cells = [&step.name(), "skipped", "", "", ""];
            rows.push(cells.map(str::to_owned).to_vec());
            continue;
        };
        let counted = &report.totals;
        let result = if counted.failed == 0 { "ok" } else { "FAILED" };
        let count = if *counted == Totals::default() { String::new() } else { counted.to_string() };
        let processor = report.processor_seconds.map_or_else(String::new, time);
        rows.push(vec![step.name(), result.to_owned(), count, time(*seconds), processor]);
        failed.extend((counted.failed > 0).then(|| step.name()));
        totals.add(counted.clone());
    }
    let processor = done.iter().map(|done| done.report.processor_seconds).sum::<Option<f64>>();
    let processor = processor.map_or_else(String::new, time);
    let all = ["all".to_owned(), String::new(), String::new(), time(seconds), processor];
    rows.push(all.to_vec());
    println!("\n{}", table::render(&["step", "result", "tests", "time", "processor"], &rows));
    println!("{}", about());
    totals.failures.iter().for_each(|line| println!("{line}"));
    if !failed.is_empty() {
        println!("failed: {}", failed.join(", "));
    }
    println!("{totals}");
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The machine, and how many crates of others are compiled.
fn about() -> String {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let of = |args: &[&str]| n_crates(args).map_or_else(|_| "?".to_owned(), |n| n.to_string());
    let checks = of(&["--workspace", "--all-features"]);
    let engine = of(&["--package", "realizar", "--edges", "normal,build"]);
    let cpu = processor::name();
    format!(
        "{cores} cores of {cpu}; crates of others: {checks} in the checks, {engine} in the engine\n"
    )
}

/// Crates of others in the tree that `cargo tree` shows with these arguments.
fn n_crates(args: &[&str]) -> Result<usize> {
    let mut tree = shell::cargo();
    tree.args(["tree", "--locked", "--prefix", "none", "--format", "{p}"]).args(args);
    Ok(names(&shell::output(&mut tree)?).len())
}

/// Names and versions of a tree, without those that have a folder in the workspace.
fn names(tree: &str) -> BTreeSet<&str> {
    let lines = tree.lines().map(|line| line.trim_end_matches(" (*)"));
    let names = lines.map(|line| line.trim_end_matches(" (proc-macro)"));
    names.filter(|name| !name.is_empty() && !name.contains('(')).collect()
}

/// Where steps leave their reports, and the program that they are commands of.
struct Place {
    folder: tempfile::TempDir,
    program: PathBuf,
    early: Fetched,
    models: Fetched,
}

/// Steps that run at the same time as far as there are workers, in their order.
fn groups(chosen: &[Step]) -> Vec<&[Step]> {
    let is_shared = |step: &Step| step.beside() == Beside::Another;
    chosen.chunk_by(|a, b| is_shared(a) && is_shared(b)).collect()
}

impl Place {
    fn new() -> Result<Self> {
        let program = std::env::current_exe()?;
        let (early, models) = (Fetched::default(), Fetched::default());
        Ok(Self { folder: tempfile::tempdir()?, program, early, models })
    }

    fn run(&self, chosen: &[Step]) -> Vec<Done> {
        let is_needed = |need: &Need| chosen.iter().any(|step| step.needs().contains(need));
        let mut early: Vec<Need> = Need::EARLY.iter().copied().filter(is_needed).collect();
        early.retain(|need| *need != Need::Compiler || !platforms::are_recorded());
        let mut built = None;
        let mut done: Vec<Done> = Vec::new();
        thread::scope(|scope| {
            scope.spawn(move || self.early.set(early.iter().try_for_each(|need| need.fetch())));
            for steps in groups(chosen) {
                let is_compiled = done.iter().any(|done| done.step == Step::Build);
                if built.is_none() && (is_compiled || steps.iter().any(|step| step.runs_built())) {
                    built = Some(Built::now());
                    if is_needed(&Need::Models) {
                        scope.spawn(|| self.models.set(Need::Models.fetch()));
                    }
                }
                done.extend(self.run_group(steps, built.as_ref()));
            }
        });
        done
    }

    fn run_group(&self, steps: &[Step], built: Option<&Result<Built>>) -> Vec<Done> {
        if let [step] = steps {
            return vec![self.run_step(*step, built, None)];
        }
        let queue = Mutex::new(steps.iter());
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        let done = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for worker in 0..WORKERS {
                let output = self.folder.path().join(format!("output-{worker}"));
                let (next, done) = (&next, &done);
                scope.spawn(move || {
                    while let Some(step) = next() {
                        let over = self.run_step(*step, built, Some(&output));
                        done.lock().unwrap_or_else(PoisonError::into_inner).push(over);
                    }
                });
            }
        });
        done.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a step. One that runs beside another writes to a file, which is shown when it is over.
    fn run_step(&self, step: Step, built: Option<&Result<Built>>, output: Option<&Path>) -> Done {
        println!("== {} =={}", step.name(), if output.is_some() { " begins" } else { "" });
        let start = Instant::now();
        let report = self.report(step, built, output).unwrap_or_else(|error| Report {
            totals: failed(step, &error),
            processor_seconds: Some(0.0),
        });
        if let Some(text) = output.and_then(|path| fs::read(path).ok()) {
            println!("== {} ==\n{}", step.name(), String::from_utf8_lossy(&text));
        }
        Done { step, report, seconds: start.elapsed().as_secs_f64() }
    }

    fn report(
        &self,
        step: Step,
        built: Option<&Result<Built>>,
        output: Option<&Path>,
    ) -> Result<Report> {
        let needs = step.needs();
        if needs.iter().any(|need| *need != Need::Models) {
            self.early.wait()?;
        }
        if needs.contains(&Need::Models) {
            self.models.wait()?;
        }
        let built = match built {
            Some(Err(error)) if step.runs_built() => bail!("{error:#}"),
            built => built.and_then(|built| built.as_ref().ok()),
        };
        let program = built.filter(|_| step.is_of_all()).map(|built| &built.commands);
        let mut command = shell::command(program.unwrap_or(&self.program));
        let report = self.folder.path().join(format!("{}.json", step.name()));
        command.args(["step", &step.name(), "--report"]).arg(&report);
        if let Some(built) = built {
            let file = self.folder.path().join(format!("{}-built.json", step.name()));
            built.write(&file)?;
            command.arg("--built").arg(file);
        }
        if let Some(output) = output {
            let file = File::create(output)?;
            command.stdout(file.try_clone()?).stderr(file);
        }
        shell::check(&mut command)?;
        Ok(serde_json::from_str(&fs::read_to_string(report)?)?)
    }
}

/// How fetching ended, for the steps that wait for it.
#[derive(Default)]
struct Fetched {
    outcome: Mutex<Option<Result<(), String>>>,
    is_over: Condvar,
}

impl Fetched {
    fn set(&self, outcome: Result<()>) {
        let outcome = outcome.map_err(|error| format!("{error:#}"));
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.is_over.notify_all();
    }

    fn wait(&self) -> Result<()> {
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = self.is_over.wait_while(outcome, |outcome| outcome.is_none());
        match &*outcome.unwrap_or_else(PoisonError::into_inner) {
            Some(Err(error)) => bail!("{error}"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn steps_that_may_run_together_are_grouped() {
        use Step::{Build, Clippy, Parity, Real, Tests, Web};
        let groups = groups(&[Clippy, Build, Tests, Parity, Web, Real]);
        assert_eq!(groups, [&[Clippy][..], &[Build], &[Tests], &[Parity, Web, Real]]);
    }

    #[test]
    fn crates_of_others_are_counted_once() {
        let tree = "realizar v0.1.0 (/a/crates/cli)\nanyhow v1.0.1\nserde v1.0.2\n\
                    serde_derive v1.0.2 (proc-macro)\nserde v1.0.2 (*)\n\n";
        let expected = ["anyhow v1.0.1", "serde v1.0.2", "serde_derive v1.0.2"];
        assert_eq!(names(tree), BTreeSet::from(expected));
    }

    #[test]
    fn what_was_fetched_is_waited_for() {
        let fetched = Fetched::default();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| fetched.wait().unwrap_err().to_string());
            fetched.set(Err(anyhow!("no network")));
            assert_eq!(waiting.join().unwrap(), "no network");
        });
        assert!(fetched.wait().is_err());
        fetched.set(Ok(()));
        assert!(fetched.wait().is_ok());
    }

    #[test]
    fn programs_of_a_build_are_handed_on() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("built.json");
        let built = Built { engine: "e".into(), commands: "c".into(), gpu_tests: Vec::new() };
        built.write(&file).unwrap();
        let read = Built::read(&file).unwrap();
        assert_eq!((read.engine, read.commands), (built.engine, built.commands));
    }
}
