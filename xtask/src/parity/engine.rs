//! The engine as a program: command lines in, JSON out. Requests for logits share one process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::shell;

/// Logits by position: position -> values over the vocabulary.
pub(super) type Logits = BTreeMap<usize, Vec<f64>>;

/// The binary under test, and where it runs models.
pub(super) struct Engine {
    /// The path of `realizar`.
    pub(super) bin: PathBuf,
    /// What every command that runs a model gets, such as `--device cpu`.
    pub(super) options: Vec<String>,
    /// What its environment has in addition.
    pub(super) environment: Vec<(&'static str, OsString)>,
    /// The process that computes logits; the first request starts it.
    lines: Mutex<Option<Lines>>,
}

impl Engine {
    pub(super) fn new(
        bin: PathBuf,
        options: Vec<String>,
        environment: Vec<(&'static str, OsString)>,
    ) -> Self {
        Self { bin, options, environment, lines: Mutex::default() }
    }

    /// The same with a process of its own.
    pub(super) fn again(&self) -> Self {
        Self::new(self.bin.clone(), self.options.clone(), self.environment.clone())
    }

    /// Run `realizar ARGS` and parse what it prints. Models come from the cache of `xtask setup`.
    pub(super) fn json(&self, args: &[&str]) -> Result<Value> {
        shell::json(&mut self.command(args))
    }

    /// `realizar ARGS`, not yet started, with the models of `xtask setup` on the device.
    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = shell::command(&self.bin);
        command.args(self.on_device(args)).env("REALIZAR_CACHE", shell::model_dir());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Arguments with the options of the device, where the subcommand takes them.
    fn on_device<'a>(&'a self, args: &[&'a str]) -> Vec<&'a str> {
        // The first is the subcommand; a `--` may follow anywhere after it.
        let takes_device = !["inspect", LINES].contains(&args[0]);
        let own = self.options.iter().filter(|_| takes_device).map(String::as_str);
        let words = args[..1].iter().copied().chain(own);
        words.chain(args[1..].iter().copied()).collect()
    }

    /// The same without one of its options; `None` if it has not got it.
    pub(super) fn without(&self, option: &str) -> Option<Self> {
        let options: Vec<String> =
            self.options.iter().filter(|own| *own != option).cloned().collect();
        let is_shorter = options.len() < self.options.len();
        is_shorter.then(|| Self::new(self.bin.clone(), options, self.environment.clone()))
    }

    /// `realizar logits` for some positions of a prompt.
    pub(super) fn logits(
        &self,
        model: &Path,
        ids: &[usize],
        positions: &[usize],
        extra: &[&str],
    ) -> Result<Logits> {
        Ok(self.logits_in_chunks(model, ids, positions, &[], extra)?.0)
    }

    /// The same, and once more for each chunk size, all with the model loaded once. A GPU is
    /// opened and its kernels are compiled at every load.
    pub(super) fn logits_in_chunks(
        &self,
        model: &Path,
        ids: &[usize],
        positions: &[usize],
        chunks: &[usize],
        extra: &[&str],
    ) -> Result<(Logits, Vec<Logits>)> {
        let json = self.logits_json(model, ids, positions, chunks, extra)?;
        Ok((logits_from(&json)?, chunks_from(&json, chunks)?))
    }

    /// The same, and as generated tokens and in a batch.
    pub(super) fn logits_in_all_ways(
        &self,
        model: &Path,
        ids: &[usize],
        positions: &[usize],
        chunks: &[usize],
        extra: &[&str],
    ) -> Result<AllWays> {
        let extra = [&["--also-mixed"], extra].concat();
        let json = self.logits_json(model, ids, positions, chunks, &extra)?;
        let of = |key: &str| logits_from(&json!({"values": json[key]})).context(key.to_owned());
        Ok(AllWays {
            whole: logits_from(&json)?,
            chunks: chunks_from(&json, chunks)?,
            generated: of("generated")?,
            batched: of("batched")?,
        })
    }

    fn logits_json(
        &self,
        model: &Path,
        ids: &[usize],
        positions: &[usize],
        chunks: &[usize],
        extra: &[&str],
    ) -> Result<Value> {
        let (ids, positions, sizes) = (join(ids), join(positions), join(chunks));
        let model = model.to_string_lossy();
        let mut args = vec!["logits", &model, "--ids", &ids, "--positions", &positions, "--json"];
        if !chunks.is_empty() {
            args.extend(["--also-chunks", &sizes]);
        }
        args.extend(extra);
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let process = match lines.take() {
            Some(process) => process,
            None => Lines::start(&mut self.command(&[LINES]))?,
        };
        let (answer, process) = process.ask(&json!(self.on_device(&args)))?;
        *lines = Some(process);
        match answer.get("error") {
            Some(error) => bail!("{}", error.as_str().unwrap_or_default()),
            None => Ok(answer),
        }
    }
}

/// Calls `f` with each item and returns the results in order. Each of `n_workers` threads has an engine of its own.
pub(super) fn each<T: Sync, R: Send>(
    engine: &Engine,
    n_workers: usize,
    items: &[T],
    f: impl Fn(&Engine, &T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let engine = engine.again();
        let mut found = Vec::new();
        while let Some((idx, item)) = pick(&next, items) {
            found.push((idx, f(&engine, item)));
        }
        found
    };
    let mut found = thread::scope(|scope| {
        let workers: Vec<_> = (0..n_workers).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(|worker| match worker.join() {
            Ok(found) => found,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.flatten().collect::<Vec<_>>()
    });
    found.sort_by_key(|(idx, _)| *idx);
    found.into_iter().map(|(_, result)| result).collect()
}

/// The next item that no worker has taken.
fn pick<'a, T>(next: &AtomicUsize, items: &'a [T]) -> Option<(usize, &'a T)> {
    let idx = next.fetch_add(1, Ordering::Relaxed);
    Some((idx, items.get(idx)?))
}

/// The subcommand that answers lines.
const LINES: &str = "logits-lines";

/// A process that answers each line of `logits` arguments with a line.
struct Lines {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Lines {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", shell::show(command)))?;
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("no standard output")?);
        Ok(Self { child, requests, answers })
    }

    /// The answer, and the process, unless it ended instead.
    fn ask(mut self, request: &Value) -> Result<(Value, Self)> {
        let mut requests = self.requests.as_ref().context("no standard input")?;
        let sent = requests.write_all(format!("{request}\n").as_bytes());
        let mut line = String::new();
        if sent.is_ok() && self.answers.read_line(&mut line)? > 0 {
            let answer = serde_json::from_str(&line).context("the answer is not JSON")?;
            return Ok((answer, self));
        }
        let status = self.child.wait()?;
        bail!("the engine ended ({status}) at {request}")
    }
}

impl Drop for Lines {
    /// The process ends with its standard input.
    fn drop(&mut self) {
        drop(self.requests.take());
        // One that failed was told of where it was asked.
        let _ = self.child.wait();
    }
}

/// The logits of one prompt in all ways to them.
pub(super) struct AllWays {
    /// The prompt in one chunk.
    pub(super) whole: Logits,
    /// In chunks of each size.
    pub(super) chunks: Vec<Logits>,
    /// Token by token.
    pub(super) generated: Logits,
    /// Beside other sequences.
    pub(super) batched: Logits,
}

/// The logits in chunks of each of these sizes.
fn chunks_from(json: &Value, chunks: &[usize]) -> Result<Vec<Logits>> {
    let again = chunks.iter().map(|chunk| {
        let again = json!({"values": json["chunks"][chunk.to_string()]});
        logits_from(&again).with_context(|| format!("chunks of {chunk}"))
    });
    again.collect()
}

/// Read `{"values": {"0": […], …}}`.
pub(super) fn logits_from(json: &Value) -> Result<Logits> {
    let values = json["values"].as_object().context("no `values` object")?;
    let mut logits = Logits::new();
    for (position, row) in values {
        let row = row.as_array().with_context(|| format!("values of {position} are no list"))?;
        let numbers: Option<Vec<f64>> = row.iter().map(Value::as_f64).collect();
        let numbers = numbers.with_context(|| format!("values of {position} are no numbers"))?;
        ensure!(!numbers.is_empty(), "values of {position} are empty");
        logits.insert(position.parse()?, numbers);
    }
    ensure!(!logits.is_empty(), "`values` is empty");
    Ok(logits)
}

/// A JSON list of whole numbers.
pub(super) fn integers(json: &Value, what: &str) -> Result<Vec<usize>> {
    let list = json.as_array().with_context(|| format!("`{what}` is not a list"))?;
    let numbers = list.iter().map(|v| v.as_u64().and_then(|n| usize::try_from(n).ok()));
    numbers.collect::<Option<_>>().with_context(|| format!("`{what}` has other than integers"))
}

/// Largest difference over largest reference value, over all positions of the reference.
///
/// More values than the reference has are allowed: a GGUF vocabulary may be padded.
pub(super) fn relative_error(found: &Logits, reference: &Logits) -> Result<f64> {
    let mut worst = 0.0f64;
    for (position, wanted) in reference {
        let row = found.get(position).with_context(|| format!("no logits at {position}"))?;
        ensure!(
            row.len() >= wanted.len(),
            "expected {} logits at {position}, found {}",
            wanted.len(),
            row.len()
        );
        let scale = wanted.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        let apart = row.iter().zip(wanted).fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
        worst = worst.max(apart / scale);
        ensure!(apart.is_finite(), "logits at {position} are not finite");
    }
    Ok(worst)
}

/// Are both the same, to the last bit?
pub(super) fn same_bits(a: &Logits, b: &Logits) -> bool {
    let bits = |l: &Logits| -> Vec<(usize, Vec<u64>)> {
        l.iter().map(|(&p, row)| (p, row.iter().map(|x| x.to_bits()).collect())).collect()
    };
    bits(a) == bits(b)
}

fn join(numbers: &[usize]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_loses_an_option_that_it_has() {
        let options = ["--device", "cuda", "--cuda-wgmma"].map(str::to_owned).to_vec();
        let engine = Engine::new(PathBuf::new(), options, Vec::new());
        assert_eq!(engine.without("--cuda-wgmma").unwrap().options, ["--device", "cuda"]);
        assert!(engine.without("--cuda-dependent-launch").is_none());
        let words = engine.on_device(&["logits", "m"]);
        assert_eq!(words, ["logits", "--device", "cuda", "--cuda-wgmma", "m"]);
        assert_eq!(engine.on_device(&["inspect", "m"]), ["inspect", "m"]);
    }

    #[test]
    fn results_have_the_order_of_items() {
        let engine = Engine::new(PathBuf::new(), Vec::new(), Vec::new());
        let items: Vec<usize> = (0..50).collect();
        for n_workers in [1, 3] {
            assert_eq!(each(&engine, n_workers, &items, |_, item| *item), items);
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_process_that_ends_is_told_of() {
        let script = "read a; echo \"{\\\"asked\\\": $a}\"; read a; exit 3";
        let process = Lines::start(Command::new("sh").args(["-c", script])).unwrap();
        let (answer, process) = process.ask(&json!(["logits"])).unwrap();
        assert_eq!(answer, json!({"asked": ["logits"]}));
        let ended = process.ask(&json!(["logits"])).err().unwrap().to_string();
        assert_eq!(ended, "the engine ended (exit status: 3) at [\"logits\"]");
    }

    #[test]
    fn logits_are_read_and_compared() {
        let a = logits_from(&json!({"values": {"0": [1.0, -4.0], "5": [2.0, 0.0]}})).unwrap();
        let b = logits_from(&json!({"values": {"0": [1.0, -4.0], "5": [2.0, 0.002]}})).unwrap();
        let padded = logits_from(&json!({"values": {"0": [1.0, -4.0, 9.0], "5": [2.0, 0.0, 9.0]}}));
        assert_eq!(relative_error(&b, &a).unwrap(), 0.001);
        assert_eq!(relative_error(&padded.unwrap(), &a).unwrap(), 0.0);
        assert!(same_bits(&a, &a.clone()) && !same_bits(&a, &b));
    }

    #[test]
    fn what_is_missing_is_an_error() {
        let cases = [
            json!({}),
            json!({"values": {}}),
            json!({"values": {"0": []}}),
            json!({"values": {"0": [null]}}),
            json!({"values": {"x": [1.0]}}),
        ];
        for case in cases {
            assert!(logits_from(&case).is_err(), "{case}");
        }
        let reference = logits_from(&json!({"values": {"3": [1.0, 2.0]}})).unwrap();
        let short = logits_from(&json!({"values": {"3": [1.0]}})).unwrap();
        let other = logits_from(&json!({"values": {"4": [1.0, 2.0]}})).unwrap();
        assert!(relative_error(&short, &reference).is_err());
        assert!(relative_error(&other, &reference).is_err());
    }
}
