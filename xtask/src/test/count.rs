//! Counting the tests that `cargo test` or a test program runs.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::shell;
use crate::totals::Totals;

/// Run `cargo test`, pass its output through and add up its `test result:` lines.
pub(super) fn count_tests(command: &mut Command) -> Result<Totals> {
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
