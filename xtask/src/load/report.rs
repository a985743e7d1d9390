//! What a measured run leaves: the tables in `README.md`, and a line for every request in
//! `results.json`.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Args;
use super::case::Case;
use super::server::Contender;
use super::stats::{Better, Group, Measure, Sample, percentile};
use crate::machine::{self, Machine};
use crate::table::{self, shown};

/// The samples of all rounds, or why there are none.
pub(super) type Outcome = Result<Vec<Sample>, String>;

/// A case that was measured.
pub(super) struct Cell {
    pub(super) case: Case,
    /// How each contender was started.
    pub(super) commands: Vec<Option<String>>,
    /// One per contender.
    pub(super) outcomes: Vec<Outcome>,
}

/// A run so far.
pub(super) struct Run<'a> {
    contenders: &'a [Contender],
    versions: Vec<String>,
    machine: Machine,
    about: About,
    folder: PathBuf,
    cells: Vec<Cell>,
}

/// What all cells have in common.
struct About {
    model: String,
    threads: usize,
    rounds: usize,
    note: String,
    /// The requests, in words.
    requests: String,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        contenders: &'a [Contender],
        args: &Args,
        model: &str,
        threads: usize,
    ) -> Result<Self> {
        let lengths = args.prompts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let number =
            args.requests.map_or("3 per stream and at least 16".to_owned(), |n| n.to_string());
        let requests = format!(
            "Requests per case and round: {number}, to `{}`, streamed and greedy, with prompts of \
             about {lengths} tokens in turn and exactly {} generated tokens each; seed {}.",
            args.api().path(),
            args.max_tokens,
            args.seed
        );
        Ok(Self {
            contenders,
            versions: contenders.iter().map(Contender::version).collect(),
            machine: Machine::here()?,
            about: About {
                model: model.to_owned(),
                threads,
                rounds: args.rounds,
                note: args.note.clone(),
                requests,
            },
            folder: machine::run_folder(args.out.clone(), "-serving")?,
            cells: Vec::new(),
        })
    }

    /// Adds a cell, prints it and saves what there is, so that a run that is broken off leaves its
    /// values.
    pub(super) fn add(&mut self, cell: Cell) -> Result<()> {
        println!("\n{}", cell.case);
        let groups = cell.case.groups();
        self.cells.push(cell);
        let last = &self.cells[self.cells.len() - 1..];
        println!("{}", self.table(last, groups.iter().flat_map(|g| g.measures)));
        for text in reasons(self.contenders, last) {
            println!("{text}");
        }
        self.save()
    }

    pub(super) fn finish(&self) -> Result<()> {
        println!("saved in {}", self.folder.display());
        Ok(())
    }

    fn save(&self) -> Result<()> {
        fs::create_dir_all(&self.folder)?;
        for (name, text) in [("results.json", self.json()?), ("README.md", self.readme())] {
            let path = self.folder.join(name);
            fs::write(&path, text).with_context(|| path.display().to_string())?;
        }
        Ok(())
    }

    /// Medians over the rounds, and the ratio of the engine to the best peer.
    fn table<'m>(&self, cells: &[Cell], measures: impl Iterator<Item = &'m Measure>) -> String {
        let mut header = vec!["case", "measure"];
        header.extend(self.contenders.iter().map(|c| c.label.as_str()));
        let ours = self.contenders.iter().position(Contender::is_ours);
        let compares = ours.is_some() && self.contenders.len() > 1;
        if compares {
            header.push("ours / best peer");
        }
        let mut rows = Vec::new();
        for measure in measures {
            for cell in cells {
                let median = |outcome: &Outcome| {
                    let values = outcome.iter().flatten().map(measure.of);
                    table::median(&values.collect::<Vec<_>>())
                };
                let medians: Vec<f64> = cell.outcomes.iter().map(median).collect();
                let mut row = vec![cell.case.to_string(), measure.name.to_owned()];
                row.extend(medians.iter().map(|&value| shown(value)));
                if let Some(ours) = ours.filter(|_| compares) {
                    let peers = medians.iter().enumerate().filter(|&(idx, _)| idx != ours);
                    let better = match measure.better {
                        Better::Higher => f64::max,
                        Better::Lower => f64::min,
                    };
                    let best = peers.fold(f64::NAN, |best, (_, &value)| better(best, value));
                    let ratio = medians[ours] / best;
                    row.push(if ratio.is_finite() {
                        format!("{ratio:.2}")
                    } else {
                        "-".to_owned()
                    });
                }
                rows.push(row);
            }
        }
        table::render(&header, &rows)
    }

    /// A table per group of measures.
    fn tables(&self) -> String {
        let mut titles: Vec<&Group> = Vec::new();
        for group in self.cells.iter().flat_map(|cell| cell.case.groups()) {
            if !titles.iter().any(|seen| seen.title == group.title) {
                titles.push(group);
            }
        }
        let mut text = String::new();
        for group in titles {
            let has = |cell: &&[Cell]| {
                cell[0].case.groups().iter().any(|other| other.title == group.title)
            };
            // Cells of one kind follow one another.
            let title = |cell: &Cell| cell.case.groups()[0].title;
            let kinds = self.cells.chunk_by(|a, b| title(a) == title(b));
            for cells in kinds.filter(has) {
                let table = self.table(cells, group.measures.iter());
                let _ = write!(text, "## {}\n\n{table}\n", group.title);
            }
        }
        text
    }

    fn readme(&self) -> String {
        let Machine { cpu, date, about, load } = &self.machine;
        let About { model, threads, rounds, note, requests } = &self.about;
        let mut text = format!(
            "# Serving on {cpu}, {date}\n\n{about}; load averages before the run: {load}.\n\n\
             {model}, {threads} threads. Medians of {rounds} rounds, in which the servers take turns, \
             each with a fresh\nprocess per case and round. Every request is in \
             [results.json](results.json).\n\n{requests}\n\n"
        );
        if !note.is_empty() {
            let _ = writeln!(text, "{note}\n");
        }
        let _ = write!(
            text,
            "`N shared` means that all prompts of a case begin with the same N tokens. `TTFT` is the \
             time from sending\na request to the first chunk with text, `ITL` the time between \
             chunks with text. `generated t/s` is\nall generated tokens over the time from the first \
             request to the end of the last answer; `all t/s`\nadds the tokens of prompts, from a \
             cache or not. `twice` sends the same prompt two times to an\nidle server.\n\n{}",
            self.tables()
        );
        let reasons = reasons(self.contenders, &self.cells);
        if !reasons.is_empty() {
            let _ = writeln!(text, "## Failures\n\n{}\n", reasons.join("\n"));
        }
        text.push_str("## Commands\n\n");
        for (contender, version) in self.contenders.iter().zip(&self.versions) {
            let version = if version.is_empty() { "version unknown" } else { version };
            let _ = writeln!(text, "- {}: {version}", contender.label);
        }
        text.push_str("\n```sh\n");
        for idx in 0..self.contenders.len() {
            for cell in &self.cells {
                if let Some(line) = &cell.commands[idx] {
                    let _ = writeln!(text, "{line}  # {}", cell.case);
                }
            }
        }
        text.push_str("```\n");
        text
    }

    /// All values; a line per request.
    fn json(&self) -> Result<String> {
        let Machine { cpu, date, about, load } = &self.machine;
        let About { model, threads, rounds, note, requests } = &self.about;
        let labels = || self.contenders.iter().map(|c| c.label.clone());
        let versions: Value = labels().zip(self.versions.iter().map(|v| json!(v))).collect();
        let mut text = String::from("{\n");
        for (key, value) in [
            ("cpu", json!(cpu)),
            ("machine", json!(about)),
            ("date", json!(date)),
            ("load_before", json!(load)),
            ("note", json!(note)),
            ("model", json!(model)),
            ("threads", json!(threads)),
            ("rounds", json!(rounds)),
            ("requests", json!(requests)),
            ("versions", versions),
            ("columns", json!(COLUMNS)),
        ] {
            let _ = writeln!(text, "\"{key}\": {value},");
        }
        text.push_str("\"results\": [\n");
        let mut entries = Vec::new();
        for cell in &self.cells {
            for (contender, outcome) in self.contenders.iter().zip(&cell.outcomes) {
                let head = json!({"case": cell.case.to_string(), "contender": contender.label});
                let head = head.to_string();
                let head = head.trim_end_matches('}');
                match outcome {
                    Err(error) => entries.push(format!("{head}, \"error\": {}}}", json!(error))),
                    Ok(samples) => {
                        let rounds = samples.iter().map(|s| sample_json(cell.case, s));
                        let rounds = rounds.collect::<Vec<_>>().join(",\n");
                        entries.push(format!("{head}, \"rounds\": [\n{rounds}\n]}}"));
                    }
                }
            }
        }
        text += &entries.join(",\n");
        text.push_str("\n]}\n");
        serde_json::from_str::<Value>(&text).context("the run's own JSON")?;
        Ok(text)
    }
}

/// What a request's line holds.
const COLUMNS: &[&str] = &[
    "prompt_tokens",
    "cached_tokens",
    "tokens",
    "ttft_ms",
    "itl_p50_ms",
    "itl_p99_ms",
    "itl_max_ms",
    "total_ms",
];

fn sample_json(case: Case, sample: &Sample) -> String {
    let tenths = |value: f64| (value * 10.0).round() / 10.0;
    let measures = case.groups().iter().flat_map(|group| group.measures);
    let measures: Value =
        measures.map(|m| (m.name.to_owned(), json!(tenths((m.of)(sample))))).collect();
    let requests = sample.timings.iter().map(|t| {
        let gap = |fraction| tenths(percentile(&t.gaps, fraction));
        let counts = [t.prompt_tokens, t.cached_tokens, t.tokens].map(|n| json!(n));
        let times = [tenths(t.ttft), gap(0.5), gap(0.99), gap(1.0), tenths(t.total)];
        let line = counts.into_iter().chain(times.map(|time| json!(time)));
        Value::Array(line.collect()).to_string()
    });
    let requests = requests.collect::<Vec<_>>().join(",\n");
    let head = json!({
        "wall_s": (sample.wall * 1e3).round() / 1e3,
        "measures": measures,
        "failures": sample.failures,
    });
    format!("{}, \"requests\": [\n{requests}\n]}}", head.to_string().trim_end_matches('}'))
}

/// A command with the names of its program and model, without their folders.
pub(super) fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let name = |word: &std::ffi::OsStr| {
        let path = PathBuf::from(word);
        let name = path.file_name().filter(|_| path.is_absolute()).unwrap_or(word);
        name.to_string_lossy().into_owned()
    };
    words.map(name).collect::<Vec<_>>().join(" ")
}

/// Why contenders or single requests failed: the first reason of each cell and contender.
fn reasons(contenders: &[Contender], cells: &[Cell]) -> Vec<String> {
    let mut lines = Vec::new();
    for cell in cells {
        for (contender, outcome) in contenders.iter().zip(&cell.outcomes) {
            let (label, case) = (&contender.label, cell.case);
            match outcome {
                Err(reason) => lines.push(format!("- {label}, {case}: {reason}")),
                Ok(samples) => {
                    let mut failures = samples.iter().flat_map(|sample| &sample.failures);
                    if let Some(first) = failures.next() {
                        let number = 1 + failures.count();
                        lines.push(format!("- {label}, {case}: {number} failed, first: {first}"));
                    }
                }
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::server::Kind;
    use crate::load::stats::Timing;

    #[test]
    fn a_run_has_medians_ratios_reasons_and_every_request() {
        let contender = |label: &str, kind| Contender {
            label: label.to_owned(),
            kind,
            program: "/folder/program".into(),
            extra: Vec::new(),
        };
        let contenders =
            [contender("realizar", Kind::Realizar), contender("llama.cpp", Kind::Llama)];
        let sample = |wall: f64, failed: usize| Sample {
            wall,
            timings: vec![Timing {
                prompt_tokens: 10,
                cached_tokens: 4,
                tokens: 3,
                ttft: 12.34,
                gaps: vec![1.0, 3.0],
                total: 20.0,
            }],
            failures: vec!["status 500: why".to_owned(); failed],
            peak_bytes: 64 << 20,
        };
        let cell =
            |case, outcomes| Cell { case, commands: vec![Some("x".to_owned()), None], outcomes };
        let streams = |n_streams| Case::Streams { n_streams, shared: 600 };
        let run = Run {
            contenders: &contenders,
            versions: vec!["1.0".to_owned(), String::new()],
            machine: Machine {
                cpu: "Chip".to_owned(),
                date: "2026-01-02".to_owned(),
                about: "2 cores".to_owned(),
                load: "0 0 0".to_owned(),
            },
            about: About {
                model: "m.gguf".to_owned(),
                threads: 2,
                rounds: 2,
                note: String::new(),
                requests: "Few.".to_owned(),
            },
            folder: PathBuf::new(),
            cells: vec![
                cell(
                    streams(1),
                    vec![Ok(vec![sample(1.0, 0), sample(3.0, 0)]), Ok(vec![sample(3.0, 2)])],
                ),
                cell(streams(4), vec![Ok(vec![sample(1.0, 0)]), Err("it cannot".to_owned())]),
                cell(Case::Twice { prompt: 9 }, vec![Ok(vec![sample(1.0, 0)]), Ok(Vec::new())]),
            ],
        };
        let readme = run.readme();
        let rows: Vec<Vec<&str>> = readme
            .lines()
            .filter(|line| line.starts_with('|'))
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        // The median of 3 and 1 tokens per second is twice the peer's one.
        let want = ["1 stream, 600 shared", "generated t/s", "2.00", "1.00", "2.00"];
        assert!(rows.iter().any(|row| row == &want), "{readme}");
        let want = ["4 streams, 600 shared", "TTFT p50 ms", "12.3", "-", "-"];
        assert!(rows.iter().any(|row| row == &want), "{readme}");
        assert!(rows.iter().any(|row| row[..3] == ["9 tokens twice", "TTFT cold ms", "12.3"]));
        assert!(readme.contains("- llama.cpp, 4 streams, 600 shared: it cannot\n"), "{readme}");
        assert!(readme.contains("shared: 2 failed, first: status 500: why\n"), "{readme}");
        let json: Value = serde_json::from_str(&run.json().unwrap()).unwrap();
        assert_eq!(
            json["results"][0]["rounds"][0]["requests"][0],
            json!([10, 4, 3, 12.3, 2.0, 3.0, 3.0, 20.0])
        );
        assert_eq!(json["results"][3]["error"], "it cannot");
    }

    #[test]
    fn commands_are_shown_without_folders() {
        let mut command = Command::new("/folder/program");
        command.args(["-m", "/models/m.gguf", "-c", "8"]);
        assert_eq!(command_line(&command), "program -m m.gguf -c 8");
    }
}
