//! `cargo xtask bench`: prompt and generation speed of the cached models, committed as a run.
//!
//! Contenders alternate on the same files with the same number of threads: the engine on each
//! `--device`, and llama-bench when it is on the path (or `--peer`). The table has their medians and
//! the ratio of the first to each other.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::{setup, shell, table};

/// `cargo xtask bench`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// llama-bench, when it is not on the path.
    #[arg(long)]
    peer: Option<PathBuf>,
    /// Devices of the engine, as `realizar devices` names them.
    #[arg(long, value_delimiter = ',', default_value = "cpu")]
    device: Vec<String>,
    /// Models: files, or names that `xtask setup` fetched; all of those by default.
    #[arg(long)]
    model: Vec<String>,
    /// Prompt lengths.
    #[arg(short = 'p', long, value_delimiter = ',', default_value = "512")]
    prompt: Vec<u32>,
    /// Numbers of generated tokens.
    #[arg(short = 'n', long, value_delimiter = ',', default_value = "128")]
    generate: Vec<u32>,
    /// Threads of both programs; all cores by default.
    #[arg(short = 't', long)]
    threads: Option<usize>,
    /// How often each program runs.
    #[arg(short = 'r', long, default_value_t = 3)]
    runs: usize,
    /// An engine to use instead of building one.
    #[arg(long)]
    bin: Option<PathBuf>,
    /// Where the results go; `benches/runs/<date>-<cpu>` by default.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// Tokens per second by test (`pp512`, `tg128`), one value per run.
type Speeds = BTreeMap<String, Vec<f64>>;

/// A program on a device.
struct Contender {
    label: String,
    program: PathBuf,
    /// Arguments before and after the model's path.
    before: Vec<String>,
    after: Vec<String>,
}

fn contenders(args: &Args, engine: &Path) -> Vec<Contender> {
    let strings = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<String>>();
    let mut all: Vec<Contender> = Vec::new();
    for device in &args.device {
        all.push(Contender {
            label: format!("realizar {device}"),
            program: engine.to_path_buf(),
            before: strings(&["bench"]),
            after: strings(&["-r", "1", "--json", "--device", device]),
        });
    }
    if let Some(program) = args.peer.clone().or_else(|| on_path("llama-bench")) {
        all.push(Contender {
            label: "llama-bench".to_owned(),
            program,
            before: strings(&["-m"]),
            after: strings(&["-r", "1", "-o", "json"]),
        });
    }
    all
}

/// Measure, print and save.
pub(crate) fn run(args: &Args) -> Result<()> {
    let engine = match &args.bin {
        Some(bin) => bin.canonicalize().with_context(|| format!("open {}", bin.display()))?,
        None => shell::build_engine()?,
    };
    let contenders = contenders(args, &engine);
    let threads = match args.threads {
        Some(n) => n,
        None => std::thread::available_parallelism()?.get(),
    };
    let models: Vec<&str> = match &args.model[..] {
        [] => setup::MODELS.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    let (mut rows, mut results) = (Vec::new(), Vec::new());
    for model in models {
        let file = model_file(&engine, model)?;
        let mut speeds: Vec<Speeds> = contenders.iter().map(|_| Speeds::new()).collect();
        for run in 1..=args.runs {
            println!("bench: {model}, run {run} of {}", args.runs);
            for (contender, speeds) in contenders.iter().zip(&mut speeds) {
                measure(contender, &file, threads, args, speeds)?;
            }
        }
        for test in speeds[0].keys() {
            let of = |speeds: &Speeds| speeds.get(test).map(|values| table::median(values));
            let medians: Vec<Option<f64>> = speeds.iter().map(of).collect();
            let shown = |value: Option<f64>| value.map_or("-".to_owned(), |v| format!("{v:.2}"));
            let name = Path::new(model).file_name().unwrap_or_default().to_string_lossy();
            let mut row = vec![name.clone().into_owned(), test.clone()];
            row.extend(medians.iter().map(|&median| shown(median)));
            let ratio = |&other: &Option<f64>| Some(medians[0]? / other?);
            row.extend(medians[1..].iter().map(|other| shown(ratio(other))));
            rows.push(row);
            let values = contenders.iter().zip(&speeds);
            let values = values.map(|(c, s)| (c.label.clone(), json!(s.get(test))));
            let values = Value::Object(values.collect());
            results.push(json!({"model": name, "test": test, "threads": threads,
                "tokens_per_second": values}));
        }
    }
    let labels = || contenders.iter().map(|c| c.label.as_str());
    let columns = labels().map(|label| format!("{label} t/s"));
    let ratios = labels().skip(1).map(|label| format!("{} / {label}", contenders[0].label));
    let header: Vec<String> =
        ["model".to_owned(), "test".to_owned()].into_iter().chain(columns).chain(ratios).collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let rendered = table::render(&header, &rows);
    println!("\n{rendered}");
    save(args, threads, &rendered, &Value::from(results))
}

/// A file, or the path of a model that `xtask setup` pulled, as `realizar list --json` gives it.
fn model_file(engine: &Path, model: &str) -> Result<PathBuf> {
    if Path::new(model).exists() {
        return Ok(PathBuf::from(model));
    }
    let mut list = shell::command(engine);
    let list =
        shell::json(list.args(["list", "--json"]).env("REALIZAR_CACHE", shell::model_dir()))?;
    let entries = list.as_array().or_else(|| list["models"].as_array());
    let entry = entries.into_iter().flatten().find(|m| m["name"] == *model);
    let path = entry.and_then(|m| m["path"].as_str());
    path.map(PathBuf::from).with_context(|| format!("{model} is not cached; run `xtask setup`"))
}

/// Run a contender once and add its speeds.
fn measure(
    contender: &Contender,
    model: &Path,
    threads: usize,
    args: &Args,
    speeds: &mut Speeds,
) -> Result<()> {
    let mut command = shell::command(&contender.program);
    command.args(&contender.before).arg(model).args(["-t", &threads.to_string()]);
    command.args(["-p", &list(&args.prompt), "-n", &list(&args.generate)]).args(&contender.after);
    for (test, speed) in read_speeds(&shell::json(&mut command)?)? {
        speeds.entry(test).or_default().push(speed);
    }
    Ok(())
}

/// Read what either program prints: realizar's `results` of `{test, tokens_per_second}`, or
/// llama-bench's list of `{n_prompt, n_gen, avg_ts}`.
fn read_speeds(json: &Value) -> Result<Vec<(String, f64)>> {
    let entries = json["results"].as_array().or_else(|| json.as_array()).context("no results")?;
    let mut speeds = Vec::new();
    for entry in entries {
        let speed = entry["tokens_per_second"].as_f64().or_else(|| entry["avg_ts"].as_f64());
        speeds.push((test_name(entry)?, speed.context("a result without a speed")?));
    }
    ensure!(!speeds.is_empty(), "no results");
    Ok(speeds)
}

/// `pp512` or `tg128`.
fn test_name(entry: &Value) -> Result<String> {
    if let Some(name) = entry["test"].as_str() {
        return Ok(name.to_owned());
    }
    match (entry["n_prompt"].as_u64(), entry["n_gen"].as_u64()) {
        (Some(prompt), Some(0)) => Ok(format!("pp{prompt}")),
        (Some(0), Some(generated)) => Ok(format!("tg{generated}")),
        _ => bail!("a result that is neither a prompt nor a generation: {entry}"),
    }
}

/// Write `results.json` and `README.md`.
fn save(args: &Args, threads: usize, rendered: &str, results: &Value) -> Result<()> {
    let cpu = cpu_name();
    let date = shell::output(shell::command("date").arg("+%F"))?;
    let folder = args.out.clone().unwrap_or_else(|| {
        shell::root().join("benches/runs").join(format!("{}-{}", date.trim(), slug(&cpu)))
    });
    fs::create_dir_all(&folder)?;
    let json = json!({"cpu": cpu, "date": date.trim(), "results": results});
    fs::write(folder.join("results.json"), serde_json::to_string_pretty(&json)? + "\n")?;
    let (prompt, generate, runs) = (list(&args.prompt), list(&args.generate), args.runs);
    let text = format!(
        "# {cpu}, {threads} threads, {date}\n\nMade by `cargo xtask bench --device {devices} \
         -p {prompt} -n {generate} -t {threads} -r {runs}`: medians,\nthe contenders taking turns. \
         Each run's value is in [results.json](results.json).\n\n{rendered}",
        date = date.trim(),
        devices = args.device.join(","),
    );
    fs::write(folder.join("README.md"), text)?;
    println!("saved in {}", folder.display());
    Ok(())
}

fn list(numbers: &[u32]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|d| d.join(program)).find(|p| p.is_file())
}

/// The processor's name as the kernel gives it; the architecture where it gives none.
fn cpu_name() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find_map(|l| l.strip_prefix("model name"));
    let name = line.and_then(|l| l.split_once(':')).map(|(_, name)| name.trim().to_owned());
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Lower-case letters and digits with single dashes, for a folder's name.
fn slug(text: &str) -> String {
    let lower = text.to_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty());
    words.collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_of_both_programs_are_read() {
        let ours = json!({"model": "m", "results": [
            {"test": "pp512", "tokens_per_second": 100.5, "runs": [100.5]},
            {"test": "tg128", "tokens_per_second": 20.0, "runs": [20.0]},
        ]});
        let theirs = json!([
            {"n_prompt": 512, "n_gen": 0, "avg_ts": 100.5},
            {"n_prompt": 0, "n_gen": 128, "avg_ts": 20.0},
        ]);
        let expected = [("pp512".to_owned(), 100.5), ("tg128".to_owned(), 20.0)];
        assert_eq!(read_speeds(&ours).unwrap(), expected);
        assert_eq!(read_speeds(&theirs).unwrap(), expected);
        for odd in [json!([]), json!({}), json!([{"n_prompt": 1, "n_gen": 1, "avg_ts": 1.0}])] {
            assert!(read_speeds(&odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn folder_names_are_plain() {
        assert_eq!(slug("AMD EPYC 7B13 (Milan)"), "amd-epyc-7b13-milan");
    }
}
