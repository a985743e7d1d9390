//! The output: a table for people and one JSON object per line. Each row is written as soon as it is known, so that an
//! interrupted run keeps its results.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use super::case::{Case, Phase};
use crate::BenchError;

/// Times of a case in microseconds per launch of all its kernels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Time {
    pub(super) median: f64,
    pub(super) min: f64,
}

/// The result of a case.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row<'a> {
    pub(super) case: &'a Case,
    /// Names of the launched kernels.
    pub(super) kernels: &'a [String],
    /// The launch mode.
    pub(super) launch: &'static str,
    /// None if the device is not measured.
    pub(super) time: Option<Time>,
    /// The measured read rate of the GPU in bytes per second.
    pub(super) ceiling: Option<f64>,
}

impl Row<'_> {
    /// GB/s, TFLOP/s and the share of the ceiling, as far as they are known.
    fn rates(&self) -> [Option<f64>; 3] {
        let work = self.case.work();
        let per_second = |n: f64| self.time.map(|time| n / (time.median / 1e6));
        let bytes = per_second(work.bytes);
        let share = bytes.zip(self.ceiling).map(|(bytes, ceiling)| bytes / ceiling);
        let flops = per_second(work.flops).filter(|_| work.flops > 0.0);
        [bytes.map(|n| n / 1e9), flops.map(|n| n / 1e12), share]
    }

    /// Formats the row as a JSON object.
    pub(super) fn json(&self) -> String {
        let Case { shape, phase, op, form, batch, positions, .. } = self.case;
        let work = self.case.work();
        let (n_rows, n_cols) = match self.case.matrices().is_empty() {
            true => (None, None),
            false => (Some(self.case.n_rows()), Some(self.case.n_cols())),
        };
        let [gb, tflop, share] = self.rates();
        let mut object = Object::new("kernel");
        object.text("kernel", &self.kernels.join("+"));
        object.text("model", shape.name).text("step", phase_name(*phase)).text("op", op.name());
        object.text("form", form.name()).text("type", &types(self.case));
        object.number("rows", n_rows).number("cols", n_cols).number("batch", Some(*batch));
        object.number("positions", *positions).text("launch", self.launch);
        object.number("launches", Some(self.kernels.len()));
        object.float("bytes", Some(work.bytes)).float("flops", Some(work.flops));
        object.float("us", self.time.map(|time| time.median));
        object.float("us_min", self.time.map(|time| time.min));
        object.float("gb_per_s", gb).float("tflop_per_s", tflop).float("of_read", share);
        object.end()
    }

    /// Formats the row as a line of the table.
    fn line(&self) -> String {
        let or_dash = |x: Option<f64>, digits: usize| match x {
            Some(x) => format!("{x:.digits$}"),
            None => "-".to_owned(),
        };
        let [gb, tflop, share] = self.rates();
        format!(
            "{:<66} {:>9} us {:>7} GB/s {:>6} TFLOP/s {:>5} of read  {}",
            label(self.case, self.launch),
            or_dash(self.time.map(|time| time.median), 2),
            or_dash(gb, 0),
            or_dash(tflop, 1),
            or_dash(share, 2),
            self.kernels.join("+")
        )
    }
}

fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Decode => "decode",
        Phase::Prefill => "prefill",
    }
}

fn types(case: &Case) -> String {
    case.types.iter().map(|ty| ty.name()).collect::<Vec<_>>().join("+")
}

/// The description of a case that `--only` searches.
pub(super) fn label(case: &Case, launch: &str) -> String {
    let mut label = format!("{} {}", case.shape.name, phase_name(case.phase));
    let (op, form, types) = (case.op.name(), case.form.name(), types(case));
    for word in [op, form, &types].into_iter().filter(|word| !word.is_empty()) {
        label = label + " " + word;
    }
    let _ = write!(label, " batch={}", case.batch);
    if let Some(positions) = case.positions {
        let _ = write!(label, " positions={positions}");
    }
    label + " " + launch
}

/// A JSON object under construction.
pub(super) struct Object(String);

impl Object {
    /// Begins an object of a kind.
    pub(super) fn new(kind: &str) -> Self {
        let mut object = Self("{".to_owned());
        object.text("row", kind);
        object
    }

    fn name(&mut self, name: &str) -> &mut String {
        if self.0.len() > 1 {
            self.0.push_str(", ");
        }
        let _ = write!(self.0, "\"{name}\": ");
        &mut self.0
    }

    pub(super) fn text(&mut self, name: &str, value: &str) -> &mut Self {
        let to = self.name(name);
        to.push('"');
        for c in value.chars() {
            match c {
                '"' | '\\' => to.extend(['\\', c]),
                c if u32::from(c) < 32 => {
                    let _ = write!(to, "\\u{:04x}", u32::from(c));
                }
                c => to.push(c),
            }
        }
        to.push('"');
        self
    }

    /// Adds an integer or null.
    pub(super) fn number(&mut self, name: &str, value: Option<usize>) -> &mut Self {
        let to = self.name(name);
        match value {
            Some(value) => to.push_str(&value.to_string()),
            None => to.push_str("null"),
        }
        self
    }

    /// Adds a number with six significant digits, or null. JSON has no infinities and no NaN.
    pub(super) fn float(&mut self, name: &str, value: Option<f64>) -> &mut Self {
        let to = self.name(name);
        match value.filter(|value| value.is_finite()) {
            Some(value) if value == value.trunc() && value.abs() < 1e15 => {
                let _ = write!(to, "{value:.0}");
            }
            Some(value) => {
                let digits = (5 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
                let _ = write!(to, "{value:.digits$}");
            }
            None => to.push_str("null"),
        }
        self
    }

    pub(super) fn flag(&mut self, name: &str, value: bool) -> &mut Self {
        self.name(name).push_str(if value { "true" } else { "false" });
        self
    }

    pub(super) fn end(&mut self) -> String {
        self.0.push('}');
        std::mem::take(&mut self.0)
    }
}

/// The destinations of the output, and the selection of cases.
pub(super) struct Report<'a> {
    out: &'a mut dyn Write,
    json: Option<(File, String)>,
    /// Alternatives, each a list of words that a label must all contain.
    only: Vec<Vec<String>>,
    end: Instant,
    /// The measured read rate in bytes per second.
    pub(super) ceiling: Option<f64>,
    n_rows: usize,
    n_failed: usize,
}

impl<'a> Report<'a> {
    pub(super) fn new(
        out: &'a mut dyn Write,
        json: Option<&Path>,
        only: &[String],
        seconds: f64,
    ) -> Result<Self, BenchError> {
        let failed = |path: &Path| {
            let path = path.display().to_string();
            move |error: std::io::Error| BenchError::File { path, reason: error.to_string() }
        };
        let open = |path: &Path| {
            let file = File::create(path).map_err(failed(path))?;
            Ok::<_, BenchError>((file, path.display().to_string()))
        };
        let words =
            |only: &String| only.to_lowercase().split_whitespace().map(str::to_owned).collect();
        Ok(Self {
            out,
            json: json.map(open).transpose()?,
            only: only.iter().map(words).collect(),
            end: Instant::now() + Duration::from_secs_f64(seconds),
            ceiling: None,
            n_rows: 0,
            n_failed: 0,
        })
    }

    /// Whether there is time left.
    pub(super) fn has_time(&self) -> bool {
        Instant::now() < self.end
    }

    /// Whether a case is selected; without a filter, all are.
    pub(super) fn wants(&self, case: &Case, launch: &str) -> bool {
        let label = label(case, launch).to_lowercase();
        let has = |words: &Vec<String>| words.iter().all(|word| label.contains(word.as_str()));
        self.only.is_empty() || self.only.iter().any(has)
    }

    /// Writes a line for people.
    pub(super) fn say(&mut self, line: &str) -> Result<(), BenchError> {
        let wrong = |e: std::io::Error| BenchError::File {
            path: "standard output".to_owned(),
            reason: e.to_string(),
        };
        writeln!(self.out, "{line}").and_then(|()| self.out.flush()).map_err(wrong)
    }

    /// Writes a JSON object.
    pub(super) fn record(&mut self, object: &str) -> Result<(), BenchError> {
        let Some((file, path)) = &mut self.json else { return Ok(()) };
        // Writes a whole line by one system call, so that a killed run leaves no partial lines.
        let written = file.write_all(format!("{object}\n").as_bytes());
        written.map_err(|e| BenchError::File { path: path.clone(), reason: e.to_string() })
    }

    pub(super) fn row(&mut self, row: &Row<'_>) -> Result<(), BenchError> {
        self.n_rows += 1;
        self.record(&row.json())?;
        self.say(&row.line())
    }

    /// Runs cases one by one while there is time. The failure of a case does not stop the others.
    pub(super) fn each(
        &mut self,
        cases: &[&Case],
        launch: &str,
        mut run: impl FnMut(&mut Self, &Case) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        for case in cases {
            if self.has_time() {
                let done = run(self, case);
                self.unless_fatal(&label(case, launch), done)?;
            }
        }
        Ok(())
    }

    /// Records the error of a case; returns it only if nothing can run after it.
    pub(super) fn unless_fatal(
        &mut self,
        label: &str,
        done: Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        match done {
            Err(error) if error.is_fatal() => Err(error),
            Err(error) => self.failed(label, &error.to_string()),
            Ok(()) => Ok(()),
        }
    }

    /// Records the end of the run and the number of cases that were left out.
    pub(super) fn end(&mut self, n_cases: usize, seconds: f64) -> Result<(), BenchError> {
        let n_left = n_cases.saturating_sub(self.n_rows + self.n_failed);
        let mut object = Object::new("end");
        object.number("rows", Some(self.n_rows)).number("failed", Some(self.n_failed));
        object.number("left", Some(n_left)).float("seconds", Some(seconds));
        let object = object.end();
        self.record(&object)?;
        self.say(&object)
    }

    /// Records a failed case and its error.
    fn failed(&mut self, label: &str, reason: &str) -> Result<(), BenchError> {
        self.n_failed += 1;
        self.record(&Object::new("failed").text("case", label).text("reason", reason).end())?;
        self.say(&format!("{label}: {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use realizar_quant::BlockType;

    use super::super::case::{Form, Op};
    use super::super::shape::DENSE;
    use super::*;

    fn case() -> Case {
        let types = vec![BlockType::Q4_K];
        let (phase, op, form) = (Phase::Decode, Op::Output, Form::Int8);
        Case { shape: DENSE, phase, op, form, types, batch: 1, positions: None }
    }

    #[test]
    fn a_row_has_rates_and_shares_of_the_ceiling() {
        let case = case();
        let kernels = ["matvec_int8_q4_k_1".to_owned()];
        let time = Some(Time { median: 10.0, min: 9.5 });
        // 4096 * 2304 bytes of weights, 5120 of activations, 32768 of residual and results: 9475072 in 10 us.
        let row =
            Row { case: &case, kernels: &kernels, launch: "plain", time, ceiling: Some(3.0e12) };
        let expected = r#"{"row": "kernel", "kernel": "matvec_int8_q4_k_1", "model": "8B", "step": "decode", "op": "output", "form": "int8", "type": "Q4_K", "rows": 4096, "cols": 4096, "batch": 1, "positions": null, "launch": "plain", "launches": 1, "bytes": 9475072, "flops": 33554432, "us": 10, "us_min": 9.50000, "gb_per_s": 947.507, "tflop_per_s": 3.35544, "of_read": 0.315836}"#;
        assert_eq!(row.json(), expected);
        let unmeasured = Row { time: None, ceiling: None, ..row };
        let rest = r#""us": null, "us_min": null, "gb_per_s": null, "tflop_per_s": null, "of_read": null}"#;
        assert!(unmeasured.json().ends_with(rest), "{}", unmeasured.json());
    }

    #[test]
    fn text_is_escaped_and_no_number_is_infinite() {
        let mut object = Object::new("gpu");
        object.text("name", "a \"b\" \\ \n").float("x", Some(f64::INFINITY)).flag("y", true);
        let expected = r#"{"row": "gpu", "name": "a \"b\" \\ \u000a", "x": null, "y": true}"#;
        assert_eq!(object.end(), expected);
        for (value, expected) in [(0.0, "0"), (0.00123456, "0.00123456"), (123456.7, "123457")] {
            let object = Object::new("x").float("x", Some(value)).end();
            assert_eq!(object, format!(r#"{{"row": "x", "x": {expected}}}"#));
        }
    }

    #[test]
    fn words_choose_cases() {
        let case = case();
        assert_eq!(label(&case, "plain"), "8B decode output int8 Q4_K batch=1 plain");
        let wants = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|&words| words.to_owned()).collect();
            let mut out = Vec::new();
            Report::new(&mut out, None, &only, 1.0).unwrap().wants(&case, "plain")
        };
        assert!(wants(&[]) && wants(&["q4_k plain"]) && wants(&["prefill", "batch=1 8b"]));
        assert!(!wants(&["q4_k dependent"]) && !wants(&["prefill"]));
    }
}
