//! Runs the steps in a packed folder: items side by side or one after the other, within the time that a step and the
//! call have. What is done is not done again, so that the next call continues where this one ended.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use clap::ValueEnum;
use serde_json::Value;

use super::child;
use super::outcome::{Outcome, Outcomes};
use super::pack::{LIBRARIES, Packed};
use super::plan::{Item, PART, Place, Step};
use crate::{shell, table};

/// `cargo xtask gpu run`
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run these steps alone; all by default.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Step>,
    /// Seconds that this call has, whatever its steps have.
    #[arg(long, value_name = "SECONDS")]
    budget: Option<u64>,
    /// Do the steps again, instead of what is left of them.
    #[arg(long)]
    again: bool,
    /// Where the models run: on the card; or elsewhere, to try the script without one.
    #[arg(long, default_value = "cuda", value_parser = ["cuda", "cuda-interpreter", "cpu"])]
    device: String,
    /// Where results.json goes; `results` in the packed folder by default.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Where made-up models go (40 GB); `models` in the packed folder by default.
    #[arg(long)]
    models: Option<PathBuf>,
    /// Layers of made-up models, instead of those of their shapes.
    #[arg(long)]
    layers: Option<u32>,
    /// The packed folder, instead of the one that this program is in.
    #[arg(long)]
    root: Option<PathBuf>,
}

/// How much of what a program printed is kept: of one that failed, and of one that did not.
const KEPT: [usize; 2] = [4000, 1500];

/// Runs the steps and prints what came of them.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let here = std::env::current_exe().context("the path of this program")?;
    let here = here.parent().context("a folder of this program")?;
    let root = args.root.as_deref().unwrap_or(here);
    let root = root.canonicalize().with_context(|| format!("open {}", root.display()))?;
    let packed = Packed::read(&root)?;
    let place = place(args, &root)?;
    let out = args.out.clone().unwrap_or_else(|| root.join("results"));
    fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
    let mut outcomes = Outcomes::open(&out, &packed.commit, &args.device)?;
    let all: Vec<Step> = Step::value_variants().to_vec();
    let steps: Vec<Step> =
        all.iter().copied().filter(|s| args.only.is_empty() || args.only.contains(s)).collect();
    if args.again {
        steps.iter().for_each(|step| outcomes.forget(&step.name()));
    }
    if args.device == "cuda"
        && let Some(reason) = no_card(&place, &mut outcomes)?
    {
        outcomes.save(&out)?;
        println!("gpu: no GPU to run on: {reason}");
        return Ok(ExitCode::FAILURE);
    }

    let end = args.budget.map(|n| Instant::now() + Duration::from_secs(n));
    let outcomes = Mutex::new(outcomes);
    let mut rows = Vec::new();
    for step in steps {
        let items = match place.items(step) {
            Ok(items) => items,
            Err(reason) => {
                println!("{}: left out, {reason}", step.name());
                rows.push(vec![step.name(), "-".to_owned(), "-".to_owned(), reason]);
                continue;
            }
        };
        let step_end = Instant::now() + Duration::from_secs(step.seconds());
        let end = end.map_or(step_end, |end| end.min(step_end));
        run_step(step, &items, &place, &outcomes, &out, end)?;
        rows.push(row(step, &items, &lock(&outcomes)));
    }
    let outcomes = outcomes.into_inner().map_err(|_| anyhow!("an item's thread panicked"))?;
    println!("\n{}", table::render(&["step", "ok", "failed", "left"], &rows));
    let speeds = speeds(&outcomes);
    if !speeds.is_empty() {
        let header = ["on", "model and test", "tokens/s", "GB/s", "of the copy"];
        println!("{}", table::render(&header, &speeds));
    }
    println!("{}", Outcomes::path(&out).display());
    let failed = outcomes.steps.values().flat_map(|step| step.values()).any(|o| !o.ok);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What is on this machine.
fn place(args: &Args, root: &Path) -> Result<Place> {
    let n_cores = thread::available_parallelism()?.get();
    let listed = Command::new(root.join("kernels-cuda-tests"))
        .args(["--list", "--format", "terse"])
        .output()
        .context("start kernels-cuda-tests")?;
    ensure!(listed.status.success(), "kernels-cuda-tests --list exited with {}", listed.status);
    let tests = tests(&String::from_utf8_lossy(&listed.stdout));
    let archs = root.join("fixtures/archs");
    let mut tiny = Vec::new();
    for entry in fs::read_dir(&archs).with_context(|| archs.display().to_string())? {
        let entry = entry?;
        if entry.path().join("expected.json").is_file() {
            tiny.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    tiny.sort();
    let toolkit = |name: &str| {
        let installed = Path::new("/usr/local/cuda/bin").join(name);
        shell::on_path(name).or_else(|| Some(installed).filter(|path| path.is_file()))
    };
    let sources = root.join("llama.cpp");
    let builds = toolkit("nvcc").is_some() && shell::on_path("cmake").is_some();
    Ok(Place {
        root: root.to_owned(),
        models: args.models.clone().unwrap_or_else(|| root.join("models")),
        device: args.device.clone(),
        layers: args.layers,
        tests,
        tiny,
        sanitizer: toolkit("compute-sanitizer"),
        llama: Some(sources).filter(|sources| builds && sources.is_dir()),
        libraries: libraries(&root.join(LIBRARIES)),
        n_cores,
        n_cards: n_cards(),
    })
}

/// The cards that nvidia-smi lists, a line for each; none where it is not there.
fn n_cards() -> usize {
    let listed = Command::new("nvidia-smi").arg("--list-gpus").output();
    let listed = listed.ok().filter(|output| output.status.success());
    listed.map_or(0, |output| String::from_utf8_lossy(&output.stdout).lines().count())
}

/// The search path of libraries with those of a folder in front, if there is one.
fn libraries(folder: &Path) -> Option<String> {
    let own = folder.is_dir().then(|| folder.to_string_lossy().into_owned())?;
    let others = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    Some(if others.is_empty() { own } else { format!("{own}:{others}") })
}

/// The names in what `--list --format terse` prints.
fn tests(listed: &str) -> Vec<String> {
    listed.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect()
}

/// Why nothing can run on a card; `None` if the driver opens one.
fn no_card(place: &Place, outcomes: &mut Outcomes) -> Result<Option<String>> {
    let step = Step::Card;
    let items = place.items(step).map_err(|reason| anyhow!(reason))?;
    let driver = items.first().context("an item that opens the driver")?;
    let (outcome, _) = run_item(step, driver, driver.limit)?;
    let reason = (!outcome.ok).then(|| outcome.text.trim().to_owned());
    outcomes.add(&step.name(), &driver.name, outcome);
    Ok(reason)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What of a step is left to do, in order. What makes a file is left where the file is missing and something that is
/// left needs it.
fn left<'a>(step: Step, items: &'a [Item], outcomes: &Outcomes) -> VecDeque<&'a Item> {
    let mut left = VecDeque::new();
    let mut needed: Vec<&Path> = Vec::new();
    for item in items.iter().rev() {
        let is_left = match &item.makes {
            Some(file) => !file.exists() && needed.contains(&file.as_path()),
            None => outcomes.get(&step.name(), &item.name).is_none(),
        };
        if is_left {
            needed.extend(item.needs.iter().map(PathBuf::as_path));
            left.push_front(item);
        }
    }
    left
}

/// Runs what is left of a step until `end`.
fn run_step(
    step: Step,
    items: &[Item],
    place: &Place,
    outcomes: &Mutex<Outcomes>,
    out: &Path,
    end: Instant,
) -> Result<()> {
    let queue = Mutex::new(left(step, items, &lock(outcomes)));
    println!("{}: {} of {} items left", step.name(), lock(&queue).len(), items.len());
    fs::create_dir_all(&place.models)?;
    let work = || -> Result<()> {
        loop {
            let now = Instant::now();
            let Some(item) = lock(&queue).pop_front().filter(|_| now < end) else { return Ok(()) };
            let left = end - now;
            let (outcome, ended) = match item.needs.iter().find(|file| !file.exists()) {
                Some(file) => (missing(file), true),
                None => run_item(step, item, item.limit.min(left))?,
            };
            // What the call had no time for is left to the next one.
            if !ended && left < item.limit {
                println!("{} {}: timed out after {} s", step.name(), item.name, left.as_secs());
                continue;
            }
            let word = if outcome.ok { "ok" } else { "FAILED" };
            println!("{} {}: {word}, {:.1} s", step.name(), item.name, outcome.seconds);
            if !outcome.ok {
                println!("    {}", reason(&outcome.text));
            }
            let mut outcomes = lock(outcomes);
            outcomes.add(&step.name(), &item.name, outcome);
            outcomes.save(out)?;
        }
    };
    thread::scope(|scope| {
        let n = step.n_parallel(place.n_cores);
        let workers: Vec<_> = (0..n).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().map_err(|_| anyhow!("an item's thread panicked"))?
        })
    })
}

/// The outcome of an item whose file another item has not made.
fn missing(file: &Path) -> Outcome {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let text = format!("{name} was not made");
    Outcome { ok: false, seconds: 0.0, value: Value::Null, text }
}

/// Runs an item; says whether it ended by itself.
fn run_item(step: Step, item: &Item, limit: Duration) -> Result<(Outcome, bool)> {
    let part = item.makes.as_ref().map(|file| {
        let mut name = file.clone().into_os_string();
        name.push(".part");
        PathBuf::from(name)
    });
    let mut command = Command::new(&item.program);
    for arg in &item.args {
        match &part {
            Some(part) if arg == PART => command.arg(part),
            _ => command.arg(arg),
        };
    }
    command.envs(item.env.iter().map(|(name, value)| (name, value)));
    let ended = match child::run(command, limit) {
        Ok(ended) => ended,
        Err(error) => {
            let text = format!("{error:#}");
            return Ok((Outcome { ok: false, seconds: 0.0, value: Value::Null, text }, true));
        }
    };
    let mut ok = ended.status.is_some_and(|status| status.success());
    if let (true, Some(file), Some(part), true) = (ok, &item.makes, &part, item.has_part()) {
        fs::rename(part, file).with_context(|| part.display().to_string())?;
    }
    let mut value = Value::Null;
    let mut text = ended.stdout + &ended.stderr;
    if ok && item.json {
        let stdout = &text[..text.len() - ended.stderr.len()];
        match serde_json::from_str(stdout) {
            Ok(json) => (value, text) = (json, String::new()),
            Err(error) => (ok, text) = (false, format!("{text}\nno JSON: {error}")),
        }
    }
    let is_test = matches!(step, Step::Tests | Step::Sanitizer);
    if let (true, Some(file)) = (ok, &item.result) {
        match fs::read(file)
            .map_err(anyhow::Error::from)
            .and_then(|json| Ok(serde_json::from_slice(&json)?))
        {
            Ok(json) => value = json,
            Err(error) => (ok, text) = (false, format!("{text}\n{}: {error}", file.display())),
        }
    }
    match ended.status {
        None => text += &format!("\nit timed out after {} s", limit.as_secs()),
        Some(status) if !ok && text.trim().is_empty() => text = format!("it exited with {status}"),
        _ => {}
    }
    let kept = if ok && is_test { 0 } else { KEPT[usize::from(ok)] };
    let text = tail(&text, kept).to_owned();
    let outcome = Outcome { ok, seconds: ended.time.as_secs_f64(), value, text };
    Ok((outcome, ended.status.is_some()))
}

/// The line that tells why something failed: the last one that says so, or the last one.
fn reason(text: &str) -> &str {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let last = lines.clone().next_back().unwrap_or("no message");
    let says_so = |line: &&str| line.contains("FAILED: ") || line.contains("panicked at");
    let line = lines.rfind(says_so).unwrap_or(last);
    // In a table it is what is after the dashes.
    let line = line.split_once("FAILED: ").map_or(line, |(_, reason)| reason);
    line.trim_end_matches(['|', ' '])
}

/// The last `n` bytes of a text, or a little less.
fn tail(text: &str, n: usize) -> &str {
    let mut start = text.len().saturating_sub(n);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// A step's line in the table.
fn row(step: Step, items: &[Item], outcomes: &Outcomes) -> Vec<String> {
    let of = |item: &Item| outcomes.get(&step.name(), &item.name);
    let count = |ok: bool| items.iter().filter_map(of).filter(|o| o.ok == ok).count();
    let counts = [count(true), count(false), left(step, items, outcomes).len()];
    std::iter::once(step.name()).chain(counts.map(|n| n.to_string())).collect()
}

/// What was measured of models: tokens per second, and where one sequence generates, the bytes of weights that were
/// read, beside the rate of a copy on the card.
fn speeds(outcomes: &Outcomes) -> Vec<Vec<String>> {
    let copy = outcomes.get("rates", "rates").and_then(|o| o.value["copy_gb_per_s"].as_f64());
    let mut rows = Vec::new();
    let steps = [
        ("realizar", "bench"),
        ("by wgmma", "wgmma"),
        ("two cards", "ranks"),
        ("wgpu", "wgpu"),
        ("llama.cpp", "llama"),
    ];
    for (on, step) in steps {
        for (name, outcome) in outcomes.steps.get(step).into_iter().flatten() {
            let ours = outcome.value["results"].as_array();
            let theirs = outcome.value.as_array();
            let bytes = outcome.value["bytes_per_token"].as_f64();
            for test in ours.or(theirs).into_iter().flatten() {
                let (what, speed, is_single) = match test["tokens_per_second"].as_f64() {
                    Some(speed) => {
                        let what = test["test"].as_str().unwrap_or_default().to_owned();
                        let is_single = what.starts_with("tg") && test["batch"] == 1;
                        (what, speed, is_single)
                    }
                    None => {
                        let [n_prompt, n_gen] = ["n_prompt", "n_gen"].map(|key| &test[key]);
                        let what = if *n_gen == 0 {
                            format!("pp{n_prompt}")
                        } else {
                            format!("tg{n_gen}")
                        };
                        (what, test["avg_ts"].as_f64().unwrap_or(f64::NAN), false)
                    }
                };
                let rate = bytes.filter(|_| is_single).map(|bytes| bytes * speed / 1e9);
                let share =
                    rate.zip(copy).map(|(rate, copy)| format!("{:.0} %", 100.0 * rate / copy));
                let model: Vec<&str> = name.split(' ').take(2).collect();
                rows.push(vec![
                    on.to_owned(),
                    format!("{} {what}", model.join(" ")),
                    table::shown(speed),
                    table::shown(rate.unwrap_or(f64::NAN)),
                    share.unwrap_or_else(|| "-".to_owned()),
                ]);
            }
        }
    }
    rows.extend(served(outcomes));
    rows
}

/// What a client got of a model that was served: tokens per second by the median of the times between two tokens, and
/// beside it the share of what the model generates without a server.
fn served(outcomes: &Outcomes) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for (name, outcome) in outcomes.steps.get("serve").into_iter().flatten() {
        let Some(model) = name.strip_suffix(" served") else { continue };
        let alone = outcomes.get("serve", &format!("{model} alone"));
        let alone = alone.and_then(|o| o.value["results"].as_array());
        for result in outcome.value["results"].as_array().into_iter().flatten() {
            let case = result["case"].as_str().unwrap_or_default();
            let n_streams = case.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(1);
            let rounds = result["rounds"].as_array().into_iter().flatten();
            let mut times: Vec<f64> =
                rounds.filter_map(|round| round["measures"]["ITL p50 ms"].as_f64()).collect();
            times.sort_by(f64::total_cmp);
            let Some(time) = times.get(times.len() / 2) else { continue };
            let speed = n_streams as f64 * 1e3 / time;
            let bare = alone.into_iter().flatten().find(|test| test["batch"] == n_streams);
            let bare = bare.and_then(|test| test["tokens_per_second"].as_f64());
            let share = bare.map(|bare| format!("{:.0} % of alone", 100.0 * speed / bare));
            rows.push(vec![
                "served".to_owned(),
                format!("{model} {case}"),
                table::shown(speed),
                "-".to_owned(),
                share.unwrap_or_else(|| "-".to_owned()),
            ]);
        }
    }
    rows
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::json;

    use super::*;

    /// A folder with programs that are shell scripts. There is one at a time: a program cannot be started while another
    /// test's process, on its way to its own program, still has the file open that it was written to.
    struct Folder(tempfile::TempDir, #[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

    static ONE: Mutex<()> = Mutex::new(());

    impl Folder {
        fn new(programs: &[(&str, &str)]) -> Self {
            let one = lock(&ONE);
            let folder = tempfile::tempdir().unwrap();
            for (name, text) in programs {
                let path = folder.path().join(name);
                fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            }
            Self(folder, one)
        }

        fn place(&self, device: &str) -> Place {
            Place {
                root: self.0.path().to_owned(),
                models: self.0.path().join("models"),
                device: device.to_owned(),
                layers: None,
                tests: ["a::one", "a::two", "b::is_reported"].map(str::to_owned).to_vec(),
                tiny: vec!["llama".to_owned()],
                sanitizer: Some("compute-sanitizer".into()),
                llama: Some("llama.cpp".into()),
                libraries: Some("lib".to_owned()),
                n_cores: 2,
                n_cards: 2,
            }
        }

        fn run(&self, step: Step, device: &str, outcomes: &Mutex<Outcomes>, end: Duration) {
            let place = self.place(device);
            let items = place.items(step).unwrap();
            let end = Instant::now() + end;
            run_step(step, &items, &place, outcomes, self.0.path(), end).unwrap();
        }
    }

    const LONG: Duration = Duration::from_secs(100);

    #[test]
    fn tests_run_with_the_driver_and_what_is_done_is_not_done_again() {
        // The second test fails; each says where it ran.
        let text = r#"echo "$2 $REALIZAR_CUDA_DEVICE" >> "$(dirname "$0")/calls"; echo last; test "$2" != a::two"#;
        let folder = Folder::new(&[("kernels-cuda-tests", text), ("opcodes_cuda", "exit 0")]);
        let outcomes = Mutex::default();
        folder.run(Step::Tests, "cuda", &outcomes, LONG);
        let calls = || {
            let text = fs::read_to_string(folder.0.path().join("calls")).unwrap();
            let mut calls: Vec<String> = text.lines().map(str::to_owned).collect();
            calls.sort();
            calls
        };
        // What stops the device is for the interpreter.
        let expected = ["a::one driver", "a::two driver"];
        assert_eq!(calls(), expected);
        let of = |name: &str| lock(&outcomes).get("tests", name).unwrap().clone();
        let one = of("a::one");
        assert!(one.ok && one.text.is_empty());
        assert_eq!((of("a::two").ok, of("a::two").text.as_str()), (false, "last\n"));
        folder.run(Step::Tests, "cuda", &outcomes, LONG);
        assert_eq!(calls(), expected);
        let items = folder.place("cuda").items(Step::Tests).unwrap();
        assert_eq!(row(Step::Tests, &items, &lock(&outcomes)), ["tests", "2", "1", "0"]);
        // The file has the same.
        let saved = Outcomes::open(folder.0.path(), "", "").unwrap();
        assert_eq!(saved, *lock(&outcomes));
        // On the CPU it is the interpreter.
        lock(&outcomes).forget("tests");
        folder.run(Step::Tests, "cpu", &outcomes, LONG);
        assert!(
            ["a::one ", "b::is_reported "].iter().all(|call| calls().iter().any(|c| c == call))
        );
    }

    #[test]
    fn what_a_call_has_no_time_for_is_left_to_the_next() {
        let slow = r#"test "$2" = a::one || sleep 100"#;
        let folder = Folder::new(&[("kernels-cuda-tests", slow), ("opcodes_cuda", "exit 0")]);
        let outcomes = Mutex::default();
        folder.run(Step::Tests, "cuda", &outcomes, Duration::from_secs(1));
        let items = folder.place("cuda").items(Step::Tests).unwrap();
        assert_eq!(row(Step::Tests, &items, &lock(&outcomes)), ["tests", "2", "0", "1"]);
    }

    #[test]
    fn models_are_made_where_something_needs_them() {
        let make = r#"echo "$@" >> "$(dirname "$0")/calls"; echo weights > "$3""#;
        let bench = r#"test -f "$2" && echo '{"results": [], "bytes_per_token": 5}'"#;
        let folder = Folder::new(&[("xtask", make), ("realizar", bench)]);
        let calls = || fs::read_to_string(folder.0.path().join("calls")).unwrap();
        let outcomes = Mutex::default();
        folder.run(Step::Bench, "cuda", &outcomes, LONG);
        assert_eq!(calls().lines().count(), 6, "{}", calls());
        assert!(calls().contains("1b-q4_k_m.gguf.part --ty Q4_K_M"), "{}", calls());
        let models = folder.0.path().join("models");
        assert_eq!(fs::read_dir(&models).unwrap().count(), 6);
        let deep = lock(&outcomes).get("bench", "8b BF16 tokens after 4096").unwrap().clone();
        assert!(deep.ok);
        assert_eq!(deep.value["bytes_per_token"], 5);
        // On a machine that has none of them, only what is left to do asks for one.
        fs::remove_dir_all(&models).unwrap();
        lock(&outcomes).steps.get_mut("bench").unwrap().remove("1b Q8_0 prompts");
        folder.run(Step::Bench, "cuda", &outcomes, LONG);
        assert_eq!(calls().lines().count(), 7);
        assert!(models.join("1b-q8_0.gguf").is_file() && !models.join("1b-bf16.gguf").exists());
        // Without the file, what needs it says so.
        drop(folder);
        let broken = Folder::new(&[("xtask", "exit 1"), ("realizar", bench)]);
        let outcomes = Mutex::default();
        broken.run(Step::Bench, "cuda", &outcomes, LONG);
        let outcomes = lock(&outcomes);
        let prompts = outcomes.get("bench", "8b Q8_0 prompts").unwrap();
        assert_eq!((prompts.ok, prompts.text.as_str()), (false, "8b-q8_0.gguf was not made"));
    }

    #[test]
    fn a_machine_without_a_card_is_told_in_one_line() {
        let folder = Folder::new(&[("card_cuda", "echo 'no CUDA driver: not found'; exit 1")]);
        let mut outcomes = Outcomes::default();
        let reason = no_card(&folder.place("cuda"), &mut outcomes).unwrap();
        assert_eq!(reason.as_deref(), Some("no CUDA driver: not found"));
        drop(folder);
        let folder = Folder::new(&[("card_cuda", r#"echo '{"name": "A card"}'"#)]);
        assert_eq!(no_card(&folder.place("cuda"), &mut outcomes).unwrap(), None);
        assert_eq!(outcomes.get("card", "driver").unwrap().value["name"], "A card");
        // What is not JSON is no answer.
        drop(folder);
        let folder = Folder::new(&[("card_cuda", "echo fine")]);
        let reason = no_card(&folder.place("cuda"), &mut outcomes).unwrap().unwrap();
        assert!(reason.contains("no JSON"), "{reason}");
    }

    #[test]
    fn the_steps_of_a_card_are_complete() {
        let folder = Folder::new(&[]);
        let place = folder.place("cuda");
        let names = |step| -> Vec<String> {
            place.items(step).unwrap().into_iter().map(|item| item.name).collect()
        };
        assert_eq!(names(Step::Card), ["driver", "nvidia-smi"]);
        // Each tool but for the test that stops the device.
        assert_eq!(names(Step::Sanitizer).len(), 4 * 2);
        let sanitized = &place.items(Step::Sanitizer).unwrap()[3];
        assert_eq!(sanitized.args[..4], ["--error-exitcode", "9", "--tool", "racecheck"]);
        assert_eq!(sanitized.args[5..], ["--exact", "a::two"]);
        assert_eq!(names(Step::Bench).len(), 6 * 4);
        let made = "make 8b Q4_K_M with a tokenizer";
        assert_eq!(names(Step::Serve), [made, "8b Q4_K_M alone", "8b Q4_K_M served"]);
        assert_eq!(names(Step::Wgpu).len(), 2 + 2 * 4);
        let has_path = |item: Item| item.env.contains(&("LD_LIBRARY_PATH", "lib".to_owned()));
        assert!(place.items(Step::Wgpu).unwrap().into_iter().all(has_path));
        assert_eq!(names(Step::Llama).len(), 2 + 2 * 3);
        // Two kinds of parity, and two models that are made and measured.
        let early = place.items(Step::Early).unwrap();
        assert_eq!(early.len(), 2 + 2 * 4);
        assert!(early[0].env.contains(&("REALIZAR_CUDA_EARLY_LAUNCHES", "1".to_owned())));
        assert_eq!(early[3].args.last().unwrap(), "--cuda-dependent-launch");
        assert_eq!(folder.place("cuda-interpreter").items(Step::Early).unwrap().len(), 3);
        assert!(folder.place("cpu").items(Step::Early).is_err());
        // A tiny model of theirs is here, and a test; models are made and their prompts measured.
        let with_wgmma = Place {
            tests: ["ops::wgmma::tests::a", "b", "ops::levels::tests::c"]
                .map(str::to_owned)
                .to_vec(),
            ..place.clone()
        };
        let wgmma = with_wgmma.items(Step::Wgmma).unwrap();
        assert_eq!(wgmma.len(), 1 + 1 + 6 * 2);
        assert!(wgmma[1].args.starts_with(&["parity", "--bits"].map(str::to_owned)));
        let by_wgmma = |item: &&Item| item.args.last().is_some_and(|arg| arg == "--cuda-wgmma");
        assert_eq!(wgmma.iter().filter(by_wgmma).count(), 1 + 6);
        // A test, and models that are made and whose sequences are measured.
        let bf16 = with_wgmma.items(Step::Bf16).unwrap();
        assert_eq!(bf16.len(), 1 + 2 * 3);
        let in_bf16 =
            |item: &&Item| item.args.last().is_some_and(|arg| arg == "--cuda-bf16-decode");
        assert_eq!(bf16.iter().filter(in_bf16).count(), 2 * 2);
        let interpreted = Place { device: "cuda-interpreter".to_owned(), ..with_wgmma };
        assert_eq!(interpreted.items(Step::Bf16).unwrap().len(), 1);
        assert_eq!(interpreted.items(Step::Wgmma).unwrap().len(), 2);
        assert!(folder.place("cpu").items(Step::Wgmma).is_err());
        // What there is to measure of the card, then a process for each type of weights.
        assert_eq!(names(Step::Rates).len(), 2 + 30);
        assert_eq!(names(Step::Rates)[..3], ["rates", "launches", "products Q4_K"]);
        assert_eq!(names(Step::Ranks).len(), 2 * 5 + 2 * 4);
        let ranks = place.items(Step::Ranks).unwrap();
        let shares =
            |item: &&Item| item.args.ends_with(&["--tensor-parallel", "2"].map(str::to_owned));
        assert_eq!(ranks.iter().filter(shares).count(), 2 * 5 + 2 * 3);
        let one_card = Place { n_cards: 1, ..place.clone() };
        assert_eq!(one_card.items(Step::Ranks).unwrap_err(), "it needs two GPUs, found 1");
        assert_eq!(folder.place("cuda-interpreter").items(Step::Ranks).unwrap().len(), 2 * 5);
        assert!(folder.place("cpu").items(Step::Ranks).is_err());
        let parity = &place.items(Step::Parity).unwrap()[0];
        let wanted = ["parity", "--archs", "--device", "cuda", "--only", "llama", "--bin"];
        assert_eq!(parity.args[..7], wanted);
        let without = Place { sanitizer: None, llama: None, ..place.clone() };
        for step in [Step::Sanitizer, Step::Llama] {
            assert!(without.items(step).unwrap_err().ends_with("not here"));
        }
        for device in ["cpu", "cuda-interpreter"] {
            for step in [Step::Card, Step::Rates, Step::Wgpu, Step::Llama] {
                assert!(folder.place(device).items(step).is_err());
            }
        }
        assert!(folder.place("cpu").items(Step::Bench).is_ok());
        assert!(folder.place("cuda-interpreter").items(Step::Bench).is_err());
        assert_eq!(tests("a::one: test\nb: bench\n\na::two: test\n"), ["a::one", "a::two"]);
    }

    #[test]
    fn speeds_stand_beside_the_rate_of_a_copy() {
        let mut outcomes = Outcomes::default();
        let mut add = |step: &str, name: &str, value: Value| {
            outcomes.add(
                step,
                name,
                Outcome { ok: true, seconds: 1.0, value, text: String::new() },
            );
        };
        add("rates", "rates", json!({"copy_gb_per_s": 4000.0}));
        let results = json!([
            {"test": "tg128", "batch": 1, "tokens_per_second": 600.0},
            {"test": "tg128 x8", "batch": 8, "tokens_per_second": 3000.0},
        ]);
        add("bench", "8b Q4_K_M tokens", json!({"bytes_per_token": 5e9, "results": results}));
        add("llama", "8b Q4_K_M alone", json!([{"n_prompt": 512, "n_gen": 0, "avg_ts": 9.5}]));
        let mut add = |name: &str, value: Value| {
            let outcome = Outcome { ok: true, seconds: 1.0, value, text: String::new() };
            outcomes.add("serve", name, outcome);
        };
        let alone = json!([{"batch": 1, "tokens_per_second": 600.0}]);
        add("8b Q4_K_M alone", json!({"results": alone}));
        let rounds = json!([{"measures": {"ITL p50 ms": 1.75}}]);
        add("8b Q4_K_M served", json!({"results": [{"case": "1 stream", "rounds": rounds}]}));
        let rows = speeds(&outcomes);
        assert_eq!(rows[3], ["served", "8b Q4_K_M 1 stream", "571", "-", "95 % of alone"]);
        assert_eq!(rows[0], ["realizar", "8b Q4_K_M tg128", "600", "3000", "75 %"]);
        assert_eq!(rows[1], ["realizar", "8b Q4_K_M tg128 x8", "3000", "-", "-"]);
        assert_eq!(rows[2], ["llama.cpp", "8b Q4_K_M pp512", "9.50", "-", "-"]);
    }

    #[test]
    fn a_failure_is_told_in_the_line_that_says_it() {
        for (text, expected) in [
            ("", "no message"),
            ("first\nlast\n\n", "last"),
            ("thread 'a' panicked at src/a.rs:1:\nnote: run", "thread 'a' panicked at src/a.rs:1:"),
            ("| llama | - | FAILED: no driver |\n\nerror: parity: 1 failed\n", "no driver"),
        ] {
            assert_eq!(reason(text), expected);
        }
    }

    #[test]
    fn the_end_of_a_text_begins_with_a_whole_letter() {
        assert_eq!(tail("abc", 5), "abc");
        assert_eq!(tail("aäb", 2), "b");
        assert_eq!(tail("aäb", 3), "äb");
    }
}
