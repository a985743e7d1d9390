//! The programs that are compared: how each is run on a case, and how its answer is read.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::case::{BATCH_DEPTH, BATCH_TOKENS, Case, START_PROMPT};
use super::child;
use crate::shell;

/// A family of programs with the same options and output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `realizar bench` on a device.
    Realizar { device: String },
    /// llama.cpp; `batched` is llama-batched-bench.
    Llama { batched: Option<PathBuf> },
    /// ik_llama.cpp, whose options differ in part.
    IkLlama { batched: Option<PathBuf> },
    /// OpenVINO GenAI; the program is a Python that has it.
    OpenVino,
}

/// A program with the arguments that it always gets.
#[derive(Clone, Debug)]
pub(super) struct Contender {
    pub(super) label: String,
    pub(super) kind: Kind,
    pub(super) program: PathBuf,
    pub(super) extra: Vec<String>,
}

/// What one process measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// In [`Case::unit`].
    pub(super) value: f64,
    pub(super) peak_bytes: u64,
}

/// The script that measures OpenVINO GenAI.
const OPENVINO_SCRIPT: &str = "xtask/src/bench/time_openvino.py";

impl Contender {
    /// Whether it is what this repository builds.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self.kind, Kind::Realizar { .. })
    }

    /// The command for a case, or why it cannot be measured.
    pub(super) fn command(&self, model: &Path, threads: usize, case: Case) -> Result<Command> {
        let mut program = &self.program;
        let mut args: Vec<String> = Vec::new();
        match &self.kind {
            Kind::Realizar { device } => {
                args.extend(words("bench MODEL -r 1 --json"));
                args.extend(["--device".to_owned(), device.clone()]);
                args.extend(words(&match case {
                    Case::Prompt { n, depth } => format!("-p {n} -n 0 -d {depth}"),
                    Case::Generate { n, depth } => format!("-p 0 -n {n} -d {depth}"),
                    Case::Batch { n_seqs } => {
                        format!("-p 0 -n {BATCH_TOKENS} -d {BATCH_DEPTH} -b {n_seqs}")
                    }
                    Case::Start => format!("-p {START_PROMPT} -n 0 --no-warmup"),
                }));
            }
            Kind::Llama { batched: Some(batched) } | Kind::IkLlama { batched: Some(batched) }
                if matches!(case, Case::Batch { .. }) =>
            {
                let Case::Batch { n_seqs } = case else { bail!("{case} is not a batch") };
                program = batched;
                // Contexts are multiples of 256 tokens.
                let ctx = n_seqs * (BATCH_DEPTH + BATCH_TOKENS).next_multiple_of(256);
                args.extend(words(&format!(
                    "-m MODEL -c {ctx} -b 2048 -ub 512 -npp {BATCH_DEPTH} -ntg {BATCH_TOKENS} \
                     -npl {n_seqs} -tb {threads}"
                )));
            }
            Kind::Llama { .. } => {
                args.extend(words("-m MODEL -r 1 -o json"));
                args.extend(words(&match case {
                    Case::Prompt { n, depth } => format!("-p {n} -n 0 -d {depth}"),
                    Case::Generate { n, depth } => format!("-p 0 -n {n} -d {depth}"),
                    Case::Batch { .. } => bail!("llama-batched-bench was not given"),
                    Case::Start => format!("-p {START_PROMPT} -n 0 --no-warmup"),
                }));
            }
            Kind::IkLlama { .. } => {
                args.extend(words("-m MODEL -r 1 -o json"));
                args.extend(words(&match case {
                    Case::Prompt { n, depth: 0 } => format!("-p {n} -n 0"),
                    Case::Prompt { .. } => bail!("it has no prompts at a depth"),
                    Case::Generate { n, depth: 0 } => format!("-p 0 -n {n}"),
                    Case::Generate { n, depth } => format!("-p 0 -n 0 -gp {depth},{n}"),
                    Case::Batch { .. } => bail!("its llama-batched-bench was not given"),
                    Case::Start => format!("-p {START_PROMPT} -n 0 -w 0"),
                }));
            }
            Kind::OpenVino => {
                args.extend([OPENVINO_SCRIPT.to_owned(), "MODEL".to_owned()]);
                args.extend(words(&match case {
                    Case::Prompt { n, depth: 0 } => format!("--prompt {n}"),
                    Case::Prompt { .. } => bail!("it has no prompts at a depth"),
                    Case::Generate { n, depth } => {
                        format!("--prompt {} --generate {n}", depth.max(1))
                    }
                    Case::Batch { n_seqs } => {
                        format!("--prompt {BATCH_DEPTH} --generate {BATCH_TOKENS} --batch {n_seqs}")
                    }
                    Case::Start => format!("--prompt {START_PROMPT} --no-warmup"),
                }));
            }
        }
        let mut command = shell::command(program);
        for arg in args {
            if arg == "MODEL" {
                command.arg(model)
            } else {
                command.arg(arg)
            };
        }
        command.args(["-t", &threads.to_string()]).args(&self.extra);
        Ok(command)
    }

    /// Runs the case once.
    pub(super) fn measure(&self, model: &Path, threads: usize, case: Case) -> Result<Sample> {
        let command = self.command(model, threads, case)?;
        let shown = shell::show(&command);
        let finished = child::run(command)?;
        let value = match case {
            Case::Start => Some(finished.wall.as_secs_f64()),
            _ => self.read(&finished.stdout, case),
        };
        let value = value.with_context(|| format!("no speed in the output of {shown}"))?;
        Ok(Sample { value, peak_bytes: finished.peak_bytes })
    }

    /// The speed in what the program printed.
    fn read(&self, stdout: &str, case: Case) -> Option<f64> {
        if !self.is_ours() && self.kind != Kind::OpenVino && matches!(case, Case::Batch { .. }) {
            return read_batched(stdout);
        }
        let json = serde_json::from_str(stdout).ok()?;
        read_json(&json)
    }

    /// What the program calls its version, as far as it tells.
    pub(super) fn version(&self) -> String {
        let mut command = shell::command(&self.program);
        let answer = match &self.kind {
            Kind::Realizar { .. } => shell::output(command.arg("--version")),
            Kind::OpenVino => shell::output(command.args([OPENVINO_SCRIPT, "--version"])),
            // llama-bench tells its build with results alone.
            Kind::Llama { .. } | Kind::IkLlama { .. } => return String::new(),
        };
        answer.map_or_else(|error| format!("{error:#}"), |text| text.trim().to_owned())
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The only speed in realizar's `results`, in llama-bench's list, or in the script's object.
fn read_json(json: &Value) -> Option<f64> {
    let entries = json["results"].as_array().or_else(|| json.as_array());
    let entry = match entries.map(Vec::as_slice) {
        Some([entry]) => entry,
        Some(_) => return None,
        None => json,
    };
    entry["tokens_per_second"].as_f64().or_else(|| entry["avg_ts"].as_f64())
}

/// `S_TG`, the eighth column of the last line of llama-batched-bench's table.
fn read_batched(stdout: &str) -> Option<f64> {
    let line = stdout.lines().rfind(|line| line.starts_with('|'))?;
    line.trim_matches('|').split('|').nth(7)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn speeds_of_all_programs_are_read() {
        let ours = json!({"results": [{"test": "pp512", "tokens_per_second": 100.5}]});
        let theirs = json!([{"n_prompt": 512, "n_gen": 0, "avg_ts": 100.5}]);
        for one in [ours, theirs, json!({"tokens_per_second": 100.5})] {
            assert_eq!(read_json(&one), Some(100.5), "{one}");
        }
        for odd in [json!([]), json!({}), json!([{"avg_ts": 1.0}, {"avg_ts": 2.0}])] {
            assert_eq!(read_json(&odd), None, "{odd}");
        }
        let table = "\
            |    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |\n\
            |-------|--------|------|--------|----------|----------|----------|----------|\n\
            |   128 |     32 |    8 |   1280 |    0.751 |  1363.27 |    7.344 |   139.43 |\n\ntimings\n";
        assert_eq!(read_batched(table), Some(139.43));
        assert_eq!(read_batched("main: error"), None);
    }

    #[test]
    fn every_program_has_a_command_or_a_reason() {
        let contender = |kind| Contender {
            label: String::new(),
            kind,
            program: "program".into(),
            extra: words("--more"),
        };
        let line = |kind: Kind, case: &str| -> Result<String, String> {
            let case = case.parse()?;
            let command = contender(kind).command(Path::new("m.gguf"), 2, case);
            let command = command.map_err(|e| e.to_string())?;
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            Ok(words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" "))
        };
        let ours = || Kind::Realizar { device: "cpu".to_owned() };
        let llama = || Kind::Llama { batched: Some("batched".into()) };
        let ik = || Kind::IkLlama { batched: None };
        for (kind, case, want) in [
            (
                ours(),
                "batch8",
                "program bench m.gguf -r 1 --json --device cpu -p 0 -n 32 -d 128 -b 8 -t 2 --more",
            ),
            (
                llama(),
                "tg128@2048",
                "program -m m.gguf -r 1 -o json -p 0 -n 128 -d 2048 -t 2 --more",
            ),
            (
                llama(),
                "batch8",
                "batched -m m.gguf -c 2048 -b 2048 -ub 512 -npp 128 -ntg 32 -npl 8 -tb 2 -t 2 --more",
            ),
            (
                ik(),
                "tg128@2048",
                "program -m m.gguf -r 1 -o json -p 0 -n 0 -gp 2048,128 -t 2 --more",
            ),
            (
                Kind::OpenVino,
                "tg128",
                "program xtask/src/bench/time_openvino.py m.gguf --prompt 1 --generate 128 -t 2 --more",
            ),
        ] {
            assert_eq!(line(kind, case).as_deref(), Ok(want));
        }
        assert!(line(ik(), "batch8").is_err_and(|reason| reason.contains("not given")));
        assert!(line(Kind::OpenVino, "pp8@8").is_err_and(|reason| reason.contains("depth")));
    }
}
