//! What a run leaves: the tables in `README.md`, and every value in `results.json` and
//! `results.csv`.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::case::{BATCH_DEPTH, BATCH_TOKENS, Case, START_PROMPT};
use super::contender::{Contender, Sample};
use crate::machine::{self, Machine};
use crate::table::{self, shown};

/// The samples of all rounds, or why there are none.
pub(super) type Outcome = Result<Vec<Sample>, String>;

/// A case on a model.
pub(super) struct Cell {
    pub(super) model: String,
    pub(super) case: Case,
    pub(super) threads: usize,
    /// One per contender.
    pub(super) outcomes: Vec<Outcome>,
}

/// A run so far.
pub(super) struct Run<'a> {
    contenders: &'a [Contender],
    versions: Vec<String>,
    machine: Machine,
    rounds: usize,
    note: &'a str,
    folder: PathBuf,
    cells: Vec<Cell>,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        contenders: &'a [Contender],
        rounds: usize,
        note: &'a str,
        out: Option<PathBuf>,
    ) -> Result<Self> {
        Ok(Self {
            contenders,
            versions: contenders.iter().map(Contender::version).collect(),
            machine: Machine::here()?,
            rounds,
            note,
            folder: machine::run_folder(out, "")?,
            cells: Vec::new(),
        })
    }

    /// Adds a cell, prints it and saves what there is, so that a run that is broken off leaves its
    /// values.
    pub(super) fn add(&mut self, cell: Cell) -> Result<()> {
        let Cell { model, case, threads, .. } = &cell;
        let mut line = format!("{model} {case}, {threads} threads:");
        for (contender, outcome) in self.contenders.iter().zip(&cell.outcomes) {
            let value = outcome.as_ref().map(|samples| shown(median(samples, |s| s.value)));
            let value = value.unwrap_or_else(|reason| reason.clone());
            let _ = write!(line, " {} {value};", contender.label);
        }
        println!("{}", line.trim_end_matches(';'));
        self.cells.push(cell);
        self.save()
    }

    pub(super) fn finish(&self) -> Result<()> {
        println!("\n{}\n{}", self.speeds(), self.memory());
        println!("saved in {}", self.folder.display());
        Ok(())
    }

    fn save(&self) -> Result<()> {
        fs::create_dir_all(&self.folder)?;
        let json = serde_json::to_string_pretty(&self.json())? + "\n";
        for (name, text) in
            [("results.json", json), ("results.csv", self.csv()), ("README.md", self.readme())]
        {
            let path = self.folder.join(name);
            fs::write(&path, text).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    /// Medians, and the ratio of the engine to the best peer.
    fn speeds(&self) -> String {
        self.table("ours / best peer", |case| case.unit().to_owned(), |s| s.value, Case::best)
    }

    /// Medians of the most resident memory.
    fn memory(&self) -> String {
        let mib = |s: &Sample| s.peak_bytes as f64 / f64::from(1 << 20);
        self.table("ours / best peer", |_| "MiB".to_owned(), mib, |_, all| all.reduce(f64::min))
    }

    fn table(
        &self,
        ratio: &str,
        unit: impl Fn(Case) -> String,
        value: impl Fn(&Sample) -> f64 + Copy,
        best: impl Fn(Case, std::vec::IntoIter<f64>) -> Option<f64>,
    ) -> String {
        let labels = self.contenders.iter().map(|c| c.label.as_str());
        let mut header: Vec<&str> = ["model", "case", "threads", "unit"].into_iter().collect();
        header.extend(labels);
        let peers = self.contenders.iter().any(|c| !c.is_ours());
        if peers {
            header.push(ratio);
        }
        let rows = self.cells.iter().map(|cell| {
            let medians: Vec<Option<f64>> =
                cell.outcomes.iter().map(|o| median(o.as_ref().ok()?, value).into()).collect();
            let (case, threads) = (cell.case.to_string(), cell.threads.to_string());
            let mut row = vec![cell.model.clone(), case, threads, unit(cell.case)];
            row.extend(medians.iter().map(|m| m.map_or_else(|| "-".to_owned(), shown)));
            if peers {
                let others = self.contenders.iter().zip(&medians).filter(|(c, _)| !c.is_ours());
                let others: Vec<f64> = others.filter_map(|(_, m)| *m).collect();
                let ratio = best(cell.case, others.into_iter()).zip(medians[0]);
                let ratio = ratio.map(|(theirs, ours)| format!("{:.2}", ours / theirs));
                row.push(ratio.unwrap_or_else(|| "-".to_owned()));
            }
            row
        });
        table::render(&header, &rows.collect::<Vec<_>>())
    }

    /// The cells that a peer could not run, with its reason.
    fn missing(&self) -> String {
        let mut text = String::new();
        for cell in &self.cells {
            for (contender, outcome) in self.contenders.iter().zip(&cell.outcomes) {
                if let Err(reason) = outcome {
                    let Cell { model, case, threads, .. } = cell;
                    let label = &contender.label;
                    let _ = writeln!(text, "- {label}, {model}, {case}, {threads}: {reason}");
                }
            }
        }
        text
    }

    fn readme(&self) -> String {
        let Machine { cpu, date, about, load } = &self.machine;
        let mut text = format!(
            "# {cpu}, {date}\n\n{about}; load averages before the run: {load}.\n\n\
             Medians of {} rounds, in which the contenders take turns, each measurement in a process \
             of its own.\nEvery value is in [results.json](results.json) and \
             [results.csv](results.csv).\n\n",
            self.rounds
        );
        if !self.note.is_empty() {
            let _ = writeln!(text, "{}\n", self.note);
        }
        let _ = write!(
            text,
            "`ppN` is a prompt of N tokens, `tgN` N generated tokens, both after D tokens with \
             `@D`. `batchN`\nis N sequences that generate {BATCH_TOKENS} tokens each after \
             {BATCH_DEPTH}, together. `start` is the time of a whole\nprocess that loads the model \
             and computes the first token after a prompt of {START_PROMPT}: lower is\nbetter.\n\n\
             ## Speed\n\n{}\n## Peak memory of the process\n\n{}",
            self.speeds(),
            self.memory()
        );
        let missing = self.missing();
        if !missing.is_empty() {
            let _ = write!(text, "\n## What peers did not run\n\n{missing}");
        }
        text.push_str("\n## Commands\n\n");
        for (contender, version) in self.contenders.iter().zip(&self.versions) {
            let version = if version.is_empty() { "version unknown" } else { version };
            let _ = writeln!(text, "- {}: {version}", contender.label);
        }
        text.push_str("\n```sh\n");
        for line in self.commands() {
            let _ = writeln!(text, "{line}");
        }
        text.push_str("```\n");
        text
    }

    /// The command of every contender and case, for the first model and thread count. Programs and
    /// models are named without their folders.
    fn commands(&self) -> Vec<String> {
        let Some(first) = self.cells.first() else { return Vec::new() };
        let mut lines = Vec::new();
        for contender in self.contenders {
            let cells = self.cells.iter();
            for cell in cells.filter(|c| c.model == first.model && c.threads == first.threads) {
                let model = PathBuf::from(&cell.model);
                if let Ok(command) = contender.command(&model, cell.threads, cell.case) {
                    let program = PathBuf::from(command.get_program());
                    let name = program.file_name().unwrap_or_default().to_string_lossy();
                    let args = command.get_args().map(|arg| arg.to_string_lossy().into_owned());
                    lines.push(std::iter::once(name.into_owned()).chain(args).collect::<Vec<_>>());
                }
            }
        }
        lines.iter().map(|words| words.join(" ")).collect()
    }

    fn json(&self) -> Value {
        let Machine { cpu, date, about, load } = &self.machine;
        let labels = || self.contenders.iter().map(|c| c.label.clone());
        let versions = labels().zip(self.versions.iter().map(|v| json!(v)));
        let results = self.cells.iter().map(|cell| {
            let outcomes = cell.outcomes.iter().map(|outcome| match outcome {
                Ok(samples) => json!({
                    "values": samples.iter().map(|s| s.value).collect::<Vec<_>>(),
                    "peak_bytes": samples.iter().map(|s| s.peak_bytes).collect::<Vec<_>>(),
                }),
                Err(reason) => json!({ "error": reason }),
            });
            json!({
                "model": cell.model,
                "case": cell.case.to_string(),
                "threads": cell.threads,
                "unit": cell.case.unit(),
                "contenders": Value::Object(labels().zip(outcomes).collect()),
            })
        });
        json!({
            "cpu": cpu,
            "machine": about,
            "date": date,
            "load_before": load,
            "note": self.note,
            "rounds": self.rounds,
            "versions": Value::Object(versions.collect()),
            "commands": self.commands(),
            "results": results.collect::<Vec<_>>(),
        })
    }

    fn csv(&self) -> String {
        let mut text = "model,case,threads,contender,round,value,unit,peak_bytes\n".to_owned();
        for Cell { model, case, threads, outcomes } in &self.cells {
            for (contender, outcome) in self.contenders.iter().zip(outcomes) {
                for (round, sample) in outcome.iter().flatten().enumerate() {
                    let (label, round) = (&contender.label, round + 1);
                    let (value, unit, peak) = (sample.value, case.unit(), sample.peak_bytes);
                    let _ = writeln!(
                        text,
                        "{model},{case},{threads},{label},{round},{value},{unit},{peak}"
                    );
                }
            }
        }
        text
    }
}

fn median(samples: &[Sample], value: impl Fn(&Sample) -> f64) -> f64 {
    table::median(&samples.iter().map(value).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::contender::Kind;

    #[test]
    fn tables_have_medians_ratios_and_reasons() {
        let contender = |label: &str, kind| Contender {
            label: label.to_owned(),
            kind,
            program: "folder/program".into(),
            extra: Vec::new(),
        };
        let contenders = [
            contender("realizar", Kind::Realizar { device: "cpu".to_owned() }),
            contender("llama.cpp", Kind::Llama { batched: None }),
            contender("OpenVINO", Kind::OpenVino),
        ];
        let samples = |values: &[f64]| -> Outcome {
            let peak_bytes = 64 << 20;
            Ok(values.iter().map(|&value| Sample { value, peak_bytes }).collect())
        };
        let cell = |case: &str, outcomes| Cell {
            model: "m.gguf".to_owned(),
            case: case.parse().unwrap(),
            threads: 2,
            outcomes,
        };
        let run = Run {
            contenders: &contenders,
            versions: vec!["1.0".to_owned(), String::new(), "2.0".to_owned()],
            machine: Machine {
                cpu: "Chip".to_owned(),
                date: "2026-01-02".to_owned(),
                about: "2 cores".to_owned(),
                load: "0 0 0".to_owned(),
            },
            rounds: 3,
            note: "Quiet.",
            folder: PathBuf::new(),
            cells: vec![
                cell(
                    "pp512",
                    vec![samples(&[300.0, 100.0, 200.0]), samples(&[50.0]), samples(&[80.0])],
                ),
                cell("start", vec![samples(&[0.5]), samples(&[2.0]), Err("it cannot".to_owned())]),
            ],
        };
        let speeds = run.speeds();
        let rows: Vec<Vec<&str>> = speeds
            .lines()
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        assert_eq!(rows[2], ["m.gguf", "pp512", "2", "t/s", "200", "50.0", "80.0", "2.50"]);
        assert_eq!(rows[3], ["m.gguf", "start", "2", "s", "0.50", "2.00", "-", "0.25"]);
        assert!(run.memory().contains("| 64.0 "), "{}", run.memory());
        let readme = run.readme();
        assert!(readme.contains("- OpenVINO, m.gguf, start, 2: it cannot"), "{readme}");
        assert!(readme.contains("\nprogram -m m.gguf -r 1 -o json -p 512 -n 0 -d 0 -t 2\n"));
        assert_eq!(run.csv().lines().count(), 1 + 3 + 1 + 1 + 1 + 1);
        assert_eq!(run.json()["results"][1]["contenders"]["OpenVINO"]["error"], "it cannot");
    }
}
