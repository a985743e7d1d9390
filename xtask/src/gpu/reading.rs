//! What the packed programs print, read: lines of the kernels' tests, and of the cases that the interpreter ran.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How the tests of one process ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TestRun {
    pub(super) passed: Vec<String>,
    /// With the reason.
    pub(super) skipped: BTreeMap<String, String>,
    /// With the message.
    pub(super) failed: BTreeMap<String, String>,
    /// What began and did not end.
    pub(super) unfinished: Vec<String>,
}

impl TestRun {
    /// Reads the lines that `kernel-tests` prints; others are left out.
    pub(super) fn read(text: &str) -> Self {
        let mut run = Self::default();
        for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            if let Some(name) = line["started"].as_str() {
                run.unfinished.push(name.to_owned());
            }
            let Some(name) = line["test"].as_str().map(str::to_owned) else { continue };
            run.unfinished.retain(|other| *other != name);
            let reason = line["reason"].as_str().unwrap_or_default().to_owned();
            match line["outcome"].as_str() {
                Some("passed") => run.passed.push(name),
                Some("skipped") => drop(run.skipped.insert(name, reason)),
                _ => drop(run.failed.insert(name, reason)),
            }
        }
        run.passed.sort();
        run
    }

    /// What the value of an outcome has.
    pub(super) fn from_value(value: &Value) -> Option<Self> {
        serde_json::from_value(value.clone()).ok()
    }

    /// What has to be run again in a process of its own: a GPU that one test stops fails those after it.
    pub(super) fn doubtful(&self) -> Vec<String> {
        self.failed.keys().chain(&self.unfinished).cloned().collect()
    }

    pub(super) fn line(&self) -> String {
        let (passed, skipped) = (self.passed.len(), self.skipped.len());
        let (failed, unfinished) = (self.failed.len(), self.unfinished.len());
        format!("{passed} passed, {skipped} skipped, {failed} failed, {unfinished} did not end")
    }
}

/// How the cases of the interpreter ended on a GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cases {
    pub(super) same: u64,
    /// Other bits of instructions that PTX leaves open.
    pub(super) near: u64,
    pub(super) different: Vec<String>,
    pub(super) failed: Vec<String>,
    /// Cases that no process came to.
    pub(super) left: u64,
}

impl Cases {
    /// Reads what `opcodes` prints: lines of cases, and one at the end of each process.
    pub(super) fn read(text: &str) -> Self {
        let mut cases = Self::default();
        for line in text.lines() {
            if line.contains(": DIFFERENT, ") {
                cases.different.push(line.to_owned());
            } else if line.contains(": FAILED: ") {
                cases.failed.push(line.to_owned());
            } else if line.contains(": near, ") {
                cases.near += 1;
            } else if let Some((same, rest)) = line.split_once(" the same, ") {
                cases.same += same.parse().unwrap_or(0);
                let left = rest.rsplit(", ").next().and_then(|left| left.strip_suffix(" left"));
                cases.left = left.and_then(|left| left.parse().ok()).unwrap_or(0);
            }
        }
        cases
    }

    pub(super) fn line(&self) -> String {
        let Self { same, near, left, .. } = self;
        let (different, failed) = (self.different.len(), self.failed.len());
        format!("{same} the same, {near} near, {different} DIFFERENT, {failed} failed, {left} left")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_read_by_how_they_ended() {
        let text = r#"{"started":"a"}
{"started":"b"}
{"test":"b","outcome":"failed","seconds":0.5,"reason":"panicked at x: off by one"}
{"test":"a","outcome":"passed","seconds":0.5,"reason":null}
not a line of a test
{"started":"c"}
{"test":"c","outcome":"skipped","seconds":0.1,"reason":"capability 8.0"}
{"started":"d"}
"#;
        let run = TestRun::read(text);
        assert_eq!(
            (run.passed.clone(), run.unfinished.clone()),
            (vec!["a".to_owned()], vec!["d".to_owned()])
        );
        assert_eq!(run.failed["b"], "panicked at x: off by one");
        assert_eq!(run.skipped["c"], "capability 8.0");
        assert_eq!(run.doubtful(), ["b", "d"]);
        assert_eq!(run.line(), "1 passed, 1 skipped, 1 failed, 1 did not end");
        assert_eq!(TestRun::from_value(&serde_json::to_value(&run).unwrap()), Some(run));
    }

    #[test]
    fn cases_are_counted_over_processes() {
        let text = "00a: near, 4 of 8 bytes differ; ex2.approx.f32 %f1, %f2\n\
                    00b: FAILED: refused; cvt.sat\n3 the same, 1 within what PTX leaves open, 1 failed, 5 left\n\
                    00c: DIFFERENT, 1 of 4 bytes differ, word 0 is 1 for 2; add.u32\n\
                    4 the same, 0 within what PTX leaves open, 1 failed, 0 left\n";
        let cases = Cases::read(text);
        assert_eq!((cases.same, cases.near, cases.left), (7, 1, 0));
        assert!(cases.different[0].starts_with("00c") && cases.failed[0].starts_with("00b"));
        assert_eq!(cases.line(), "7 the same, 1 near, 1 DIFFERENT, 1 failed, 0 left");
    }
}
