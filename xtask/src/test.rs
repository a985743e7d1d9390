//! `cargo xtask test`: every check in order, with a table of steps and the totals at the end.

use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::parity::{self, Totals};
use crate::{shell, table, tidy};

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
    /// Lints.
    Clippy,
    /// House rules.
    Tidy,
    /// Documentation builds without a warning.
    Doc,
    /// Unit, integration and doc tests.
    Tests,
    /// Tiny models against transformers, and bit-identity.
    Parity,
    /// Real models against the F32 reference.
    Real,
}

impl Step {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
    }

    /// The step's work; only some steps count tests.
    fn run(self) -> Result<Totals> {
        match self {
            Self::Fmt => shell::check(shell::cargo().args(["fmt", "--all", "--check"]))?,
            Self::Clippy => shell::check(
                shell::cargo()
                    .args(["clippy", "--workspace", "--all-targets", "--quiet", "--"])
                    .args(["-D", "warnings"]),
            )?,
            Self::Tidy => tidy::run()?,
            Self::Doc => shell::check(
                shell::cargo()
                    .args(["doc", "--workspace", "--no-deps", "--quiet"])
                    .env("RUSTDOCFLAGS", "-D warnings"),
            )?,
            Self::Tests => {
                let mut tests = shell::cargo();
                tests.args(["test", "--workspace", "--no-fail-fast"]);
                tests.env("REALIZAR_VOCAB_DIR", shell::vocab_dir());
                tests.env("REALIZAR_TEMPLATE_DIR", shell::template_dir());
                return count_tests(&mut tests);
            }
            Self::Parity => return parity::run(&parity::Args::tiny()),
            Self::Real => return parity::run(&parity::Args::real()),
        }
        Ok(Totals::default())
    }
}

/// Run the chosen steps up to the first that fails; the totals are the last line in any case.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut rows = Vec::new();
    let mut totals = Totals::default();
    let mut failed = None;
    for &step in Step::value_variants() {
        let chosen = args.only.is_empty() || args.only.contains(&step);
        if !chosen || args.skip.contains(&step) {
            rows.push(vec![step.name(), "skipped".to_owned(), String::new(), String::new()]);
            continue;
        }
        if failed.is_some() {
            rows.push(vec![step.name(), "not run".to_owned(), String::new(), String::new()]);
            continue;
        }
        println!("== {} ==", step.name());
        let start = Instant::now();
        let outcome = step.run();
        let seconds = format!("{:.1} s", start.elapsed().as_secs_f64());
        let counted = outcome.as_ref().copied().unwrap_or_default();
        totals.add(counted);
        let error = match outcome {
            Ok(t) if t.failed > 0 => Some(format!("{} failed", t.failed)),
            Ok(_) => None,
            Err(error) => Some(format!("{error:#}")),
        };
        let result = if error.is_none() { "ok" } else { "FAILED" };
        let count = if counted == Totals::default() { String::new() } else { counted.to_string() };
        rows.push(vec![step.name(), result.to_owned(), count, seconds]);
        if let Some(error) = error {
            println!("{}: {error}", step.name());
            failed = Some(step);
        }
    }
    println!("\n{}", table::render(&["step", "result", "tests", "time"], &rows));
    if let Some(step) = failed {
        println!("the step `{}` failed", step.name());
    }
    println!("{totals}");
    Ok(if failed.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
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
        totals.add(result_line(&line).unwrap_or_default());
    }
    let status = child.wait()?;
    if !status.success() && totals.failed == 0 {
        bail!("{} ended with {status}", shell::show(command));
    }
    Ok(totals)
}

/// The counts of a line such as `test result: ok. 12 passed; 0 failed; …`.
fn result_line(line: &str) -> Option<Totals> {
    let (_, rest) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = rest.split("; ");
    let mut count = |word: &str| counts.next()?.strip_suffix(word)?.trim().parse().ok();
    Some(Totals { passed: count("passed")?, failed: count("failed")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_parsed() {
        let cases = [
            (
                "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out",
                Some(Totals { passed: 12, failed: 0 }),
            ),
            (
                "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; finished in 1s",
                Some(Totals { passed: 3, failed: 2 }),
            ),
            ("running 3 tests", None),
            ("test result: odd", None),
        ];
        for (line, expected) in cases {
            assert_eq!(result_line(line), expected, "{line}");
        }
    }
}
