//! `cargo xtask test`: every check in order, with a table of steps and the totals at the end.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde_json::Value;

use crate::lavapipe::{self, Width};
use crate::parity;
use crate::setup::Need;
use crate::totals::Totals;
use crate::{deny, documents, load, manifests, packages, platforms, shell, table, tidy, web};

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

/// The steps, in the order they run.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    /// Formatting.
    Fmt,
    /// Lints, and the engine built without its optional features.
    Clippy,
    /// Lints for Windows and macOS, by a C compiler for them (needs rustup and pip).
    Platforms,
    /// House rules.
    Tidy,
    /// Licences and sources of the dependencies, and their advisories where cargo-deny is installed.
    Deny,
    /// Documentation builds without a warning.
    Doc,
    /// Unit, integration and doc tests; GPU tests on lavapipe where that is installed.
    Tests,
    /// Tiny models against transformers, and bit-identity; the former also on every tier.
    Parity,
    /// Real models against the F32 reference.
    Real,
    /// The console blocks of the documents, with a published model.
    Documents,
    /// The files in `deploy`, by what reads them: published schemas, linters, the server (needs pip).
    Manifests,
    /// Programs outside of the workspace that use each library crate as it is packaged.
    Packages,
    /// The server under hostile requests, beside a stream whose times are bounded (Linux alone).
    Hostile,
    /// The page of the server: its types, its unit tests, and what it does in a browser.
    Web,
    /// Tests of GPU code with lavapipe's other vector widths (Linux alone).
    GpuTests,
    /// Tiny models on wgpu, on lavapipe with three vector widths.
    GpuParity,
    /// Real models on wgpu.
    GpuReal,
    /// Tiny models on the CUDA backend, on the interpreter of its kernels.
    CudaParity,
}

/// The tests that a GPU runs: (package, test target).
const GPU_TESTS: &[(&str, &str)] = &[("realizar-kernels-wgpu", "realizar_kernels_wgpu")];

impl Step {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
    }

    /// What the step needs beside the repository.
    fn needs(self) -> &'static [Need] {
        match self {
            Self::Fmt | Self::Clippy | Self::Tidy | Self::Deny | Self::Doc => &[],
            Self::Parity | Self::CudaParity => &[],
            Self::Tests => &[Need::Vocabularies, Need::Driver],
            Self::Packages => &[Need::Driver],
            Self::Real | Self::Documents | Self::Hostile => &[Need::Models],
            Self::Manifests => &[Need::Schemas],
            Self::Platforms => &[Need::Compiler],
            Self::Web => &[Need::Browser],
            Self::GpuTests | Self::GpuParity => &[Need::Driver],
            Self::GpuReal => &[Need::Driver, Need::Models],
        }
    }

    /// Fetches the models, if the step needs them: late, as the engine that pulls them is built
    /// by the steps before.
    fn models(self) -> Result<()> {
        if self.needs().contains(&Need::Models) { Need::Models.fetch() } else { Ok(()) }
    }

    /// The step's work; only some steps count tests.
    fn run(self) -> Result<Totals> {
        match self {
            Self::Fmt => shell::check(shell::cargo().args(["fmt", "--all", "--check"]))?,
            Self::Clippy => {
                shell::check(
                    shell::cargo()
                        .args(["clippy", "--workspace", "--all-targets", "--all-features"])
                        .args(["--quiet", "--", "-D", "warnings"]),
                )?;
                // The engine without its optional features; dependencies keep those that they have
                // in the whole workspace, so that they are not built again.
                shell::check(
                    shell::cargo()
                        .args(["clippy", "--workspace", "--all-targets", "--no-default-features"])
                        .args(["--quiet", "--", "-D", "warnings"]),
                )?;
            }
            Self::Platforms => return platforms::run(),
            Self::Tidy => tidy::run()?,
            Self::Deny => deny::run()?,
            Self::Doc => shell::check(
                shell::cargo()
                    .args(["doc", "--workspace", "--all-features", "--no-deps", "--quiet"])
                    .env("RUSTDOCFLAGS", "-D warnings"),
            )?,
            Self::Tests => {
                let mut tests = shell::cargo();
                if cfg!(target_os = "linux") {
                    tests.envs(lavapipe::environment(Some(Width::W256))?);
                }
                tests.args(shell::TESTS).arg("--no-fail-fast");
                tests.env("REALIZAR_VOCAB_DIR", shell::vocab_dir());
                tests.env("REALIZAR_TEMPLATE_DIR", shell::template_dir());
                return count_tests(&mut tests);
            }
            Self::Parity => {
                let mut totals = parity_of(parity::Args::tiny())?;
                totals.add(parity_of(parity::Args::archs().in_one_format().in_plain_rust())?);
                totals.add(parity_of(parity::Args::tiers())?);
                return Ok(totals);
            }
            Self::Real => return parity_of(parity::Args::real()),
            Self::Documents => return documents(),
            Self::Manifests => return manifests::run(&shell::build_tested_engine()?),
            Self::Packages => return packages::run(),
            Self::Hostile => return hostile(),
            Self::Web => return web::test(),
            Self::GpuTests => return gpu_tests(),
            Self::GpuParity => return gpu_parity(),
            Self::CudaParity => return parity_of(parity::Args::tiny().of_distinct().interpreted()),
            Self::GpuReal => {
                return parity_of(if cfg!(target_os = "linux") {
                    parity::Args::first_prompts().on_lavapipe(Width::W256)
                } else {
                    parity::Args::published().on_wgpu()
                });
            }
        }
        Ok(Totals::default())
    }
}

/// Fetch what the chosen steps need, and run them all, also after one that failed; the totals are
/// the last line in any case.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut rows = Vec::new();
    let mut totals = Totals::default();
    let mut failed = Vec::new();
    let is_chosen = |step: &Step| {
        (args.only.is_empty() || args.only.contains(step)) && !args.skip.contains(step)
    };
    let chosen = || Step::value_variants().iter().filter(|step| is_chosen(step));
    for need in Need::EARLY {
        if chosen().any(|step| step.needs().contains(need)) {
            need.fetch()?;
        }
    }
    for &step in Step::value_variants() {
        if !is_chosen(&step) {
            rows.push(vec![step.name(), "skipped".to_owned(), String::new(), String::new()]);
            continue;
        }
        println!("== {} ==", step.name());
        let start = Instant::now();
        let outcome = step.models().and_then(|()| step.run());
        let seconds = format!("{:.1} s", start.elapsed().as_secs_f64());
        let counted = outcome.unwrap_or_else(|error| {
            let mut none = Totals::default();
            none.fail(format!("{}: {error:#}", step.name()));
            none
        });
        let result = if counted.failed == 0 { "ok" } else { "FAILED" };
        let count = if counted == Totals::default() { String::new() } else { counted.to_string() };
        rows.push(vec![step.name(), result.to_owned(), count, seconds]);
        if counted.failed > 0 {
            failed.push(step.name());
        }
        totals.add(counted);
    }
    println!("\n{}", table::render(&["step", "result", "tests", "time"], &rows));
    totals.failures.iter().for_each(|line| println!("{line}"));
    if !failed.is_empty() {
        println!("failed: {}", failed.join(", "));
    }
    println!("{totals}");
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Comparisons with the engine as the tests build it: what panics in a debug build alone is found
/// here too, and nothing is built twice.
fn parity_of(args: parity::Args) -> Result<Totals> {
    parity::run(&args.with_engine(shell::build_tested_engine()?))
}

/// The engine as the tests build it, in a shell of Unix.
fn documents() -> Result<Totals> {
    if !cfg!(unix) {
        println!("the documents show commands of a Unix shell: skipped");
        return Ok(Totals::default());
    }
    documents::run(&shell::build_tested_engine()?)
}

/// The engine as the tests build it, as in the comparisons.
fn hostile() -> Result<Totals> {
    if !cfg!(target_os = "linux") {
        println!("memory and signals are those of Linux: skipped");
        return Ok(Totals::default());
    }
    load::hostile_checks(shell::build_tested_engine()?)
}

/// The GPU tests at the widths that the step `tests` leaves out.
fn gpu_tests() -> Result<Totals> {
    let mut totals = Totals::default();
    if !cfg!(target_os = "linux") {
        println!("lavapipe is tested on Linux alone: skipped");
        return Ok(totals);
    }
    let mut build = shell::cargo();
    build.args(shell::TESTS).args(["--no-run", "--quiet", "--message-format=json"]);
    let messages = shell::output(&mut build)?;
    for &(package, target) in GPU_TESTS {
        let (program, folder) = messages
            .lines()
            .find_map(|line| test_program(line, package, target))
            .with_context(|| format!("no test program {target} of {package}"))?;
        for width in [Width::W128, Width::W512] {
            println!("-- {package} {target}, vectors of {} bits", width.bits());
            let mut tests = shell::command(&program);
            tests.current_dir(&folder).envs(lavapipe::environment(Some(width))?);
            totals.add(count_tests(&mut tests)?);
        }
    }
    Ok(totals)
}

/// The program and the package's folder, if a line of cargo's messages tells of this test target.
fn test_program(line: &str, package: &str, target: &str) -> Option<(PathBuf, PathBuf)> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_wanted = message["reason"] == "compiler-artifact"
        && message["profile"]["test"] == true
        && message["target"]["name"] == *target;
    let manifest = Path::new(message["manifest_path"].as_str().filter(|_| is_wanted)?);
    let program = message["executable"].as_str()?;
    let is_of_package = message["package_id"].as_str()?.contains(&format!("#{package}@"));
    is_of_package.then(|| Some((program.into(), manifest.parent()?.to_path_buf())))?
}

/// Tiny models on every kind of GPU that this machine can pretend to have.
fn gpu_parity() -> Result<Totals> {
    let mut totals = Totals::default();
    if cfg!(target_os = "linux") {
        // Bits are compared at one width; the goldens compare them too, in F32.
        let tiny = parity::Args::tiny().of_distinct();
        totals.add(parity_of(tiny.on_lavapipe(Width::W256))?);
        for width in [Width::W128, Width::W512] {
            let few = parity::Args::archs().of_few().in_one_format();
            totals.add(parity_of(few.on_lavapipe(width))?);
        }
        totals.add(parity_of(parity::Args::archs().split().on_lavapipe(Width::W256))?);
    } else {
        totals.add(parity_of(parity::Args::tiny().on_wgpu())?);
        totals.add(parity_of(parity::Args::archs().on_wgpu().plainly())?);
        totals.add(parity_of(parity::Args::archs().split().on_wgpu())?);
    }
    Ok(totals)
}

/// Run `cargo test`, pass its output through and add up its `test result:` lines.
fn count_tests(command: &mut Command) -> Result<Totals> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", shell::show(command)))?;
    let stdout = child.stdout.take().context("no standard output")?;
    let mut totals = Totals::default();
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        if let Some(name) = failed_test(&line) {
            totals.failures.push(name.to_owned());
        }
        totals.add(result_line(&line).unwrap_or_default());
    }
    let status = child.wait()?;
    if !status.success() && totals.failed == 0 {
        bail!("{} exited with {status}", shell::show(command));
    }
    Ok(totals)
}

/// The counts of a line such as `test result: ok. 12 passed; 0 failed; …`.
fn result_line(line: &str) -> Option<Totals> {
    let (_, rest) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = rest.split("; ");
    let mut count = |word: &str| counts.next()?.strip_suffix(word)?.trim().parse().ok();
    Some(Totals { passed: count("passed")?, failed: count("failed")?, failures: Vec::new() })
}

/// The name of a test that a line such as `test names::find ... FAILED` tells of.
fn failed_test(line: &str) -> Option<&str> {
    let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
    outcome.ends_with("FAILED").then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found() {
        let line = |name: &str, test: bool| {
            let message = serde_json::json!({
                "reason": "compiler-artifact",
                "package_id": "path+file:///a/crates/runtime#realizar-runtime@0.1.0",
                "manifest_path": "/a/crates/runtime/Cargo.toml",
                "target": {"name": name},
                "profile": {"test": test},
                "executable": "/a/target/debug/deps/wgpu-1",
            });
            message.to_string()
        };
        let find = |line: &str| test_program(line, "realizar-runtime", "wgpu");
        let expected = (PathBuf::from("/a/target/debug/deps/wgpu-1"), "/a/crates/runtime".into());
        assert_eq!(find(&line("wgpu", true)), Some(expected));
        assert_eq!(find(&line("wgpu", false)), None);
        assert_eq!(find(&line("bits", true)), None);
        assert_eq!(find("not JSON"), None);
        assert_eq!(test_program(&line("wgpu", true), "realizar-kernels-wgpu", "wgpu"), None);
    }

    #[test]
    fn totals_are_parsed() {
        let totals = |passed, failed| Some(Totals { passed, failed, failures: Vec::new() });
        let cases = [
            (
                "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out",
                totals(12, 0),
            ),
            (
                "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; finished in 1s",
                totals(3, 2),
            ),
            ("running 3 tests", None),
            ("test result: odd", None),
        ];
        for (line, expected) in cases {
            assert_eq!(result_line(line), expected, "{line}");
        }
    }

    #[test]
    fn failed_tests_are_named() {
        assert_eq!(failed_test("test names::find ... FAILED"), Some("names::find"));
        assert_eq!(failed_test("test names::find ... ok"), None);
        assert_eq!(failed_test("test result: FAILED. 3 passed; 2 failed"), None);
    }
}
