//! Runs the items of a step, side by side or one after the other, within the time that the step and the call have. Results
//! are written as they come. What is done is not done again, so that another call continues where this one ended.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

use super::child::{self, Ended};
use super::item::{Found, Item, PART, Work};
use super::outcome::{Note, Outcome, Outcomes};
use super::place::Place;
use super::reading::{Cases, TestRun};

/// How much of what a program printed is kept: of one that failed, and of one that did not.
const KEPT: [usize; 2] = [4000, 1500];

/// One call of a command.
pub(super) struct Call<'a> {
    pub(super) place: &'a Place,
    outcomes: Mutex<Outcomes>,
    start: Instant,
}

impl<'a> Call<'a> {
    pub(super) fn new(place: &'a Place, outcomes: Outcomes) -> Self {
        Self { place, outcomes: Mutex::new(outcomes), start: Instant::now() }
    }

    /// When so many seconds of the call are over.
    pub(super) fn at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    pub(super) fn outcomes(&self) -> MutexGuard<'_, Outcomes> {
        lock(&self.outcomes)
    }

    /// Notes that a step has no items.
    pub(super) fn leave_out(&self, step: &str, reason: &str) -> Result<()> {
        println!("{step}: left out, {reason}");
        let note = Note { left_out: Some(reason.to_owned()), ..Note::default() };
        let mut outcomes = self.outcomes();
        outcomes.note(step, note);
        outcomes.save(&self.place.out)
    }

    /// Runs what is left of a step until `end`.
    pub(super) fn step(&self, step: &str, work: &Work, end: Instant) -> Result<()> {
        let start = Instant::now();
        let queue = Mutex::new(left(step, &work.items, &self.outcomes()));
        println!("{step}: {} of {} items left", lock(&queue).len(), work.items.len());
        let run = || -> Result<()> {
            loop {
                let now = Instant::now();
                let Some(item) = lock(&queue).pop_front().filter(|_| now < end) else {
                    return Ok(());
                };
                self.item(step, item, end - now)?;
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..work.n_parallel).map(|_| scope.spawn(run)).collect();
            workers.into_iter().try_for_each(|worker| {
                worker.join().map_err(|_| anyhow!("an item's thread panicked"))?
            })
        })?;
        let mut outcomes = self.outcomes();
        let left = left(step, &work.items, &outcomes).into_iter().map(|item| item.name.clone());
        let left: Vec<String> = left.collect();
        let seconds = start.elapsed().as_secs_f64();
        let of = |item: &Item| outcomes.get(step, &item.name);
        let cut = work.items.iter().filter(|item| of(item).is_some_and(|outcome| outcome.is_cut));
        let cut = cut.map(|item| item.name.clone()).collect();
        outcomes.note(step, Note { left_out: None, left, cut, seconds });
        outcomes.save(&self.place.out)
    }

    /// Runs an item that has `left` at most, and keeps what came of it.
    fn item(&self, step: &str, item: &Item, left: Duration) -> Result<()> {
        let (outcome, ended) = match item.needs.iter().find(|file| !file.exists()) {
            Some(file) => (missing(file), true),
            None => run_item(item, item.limit.min(left))?,
        };
        let is_cut = !ended && left < item.limit;
        // What the call had no time for is left to the next one, unless it has results by now.
        if is_cut && item.log.is_none() {
            println!("{step} {}: no time left after {:.0} s", item.name, outcome.seconds);
            return Ok(());
        }
        let word = if outcome.ok { "ok" } else { "FAILED" };
        println!(
            "{step} {}: {word}, {:.1} s{}",
            item.name,
            outcome.seconds,
            summary(item, &outcome)
        );
        if !outcome.ok {
            println!("    {}", reason(&outcome.text));
        }
        let mut outcomes = self.outcomes();
        outcomes.add(step, &item.name, Outcome { is_cut, ..outcome });
        outcomes.save(&self.place.out)
    }

    /// The end of a call: its outcomes.
    pub(super) fn finish(self) -> Result<Outcomes> {
        self.outcomes.into_inner().map_err(|_| anyhow!("an item's thread panicked"))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What of a step is left to do, in order. What makes a file is left where the file is missing and something that is
/// left, or another step, needs it.
pub(super) fn left<'a>(step: &str, items: &'a [Item], outcomes: &Outcomes) -> VecDeque<&'a Item> {
    let mut left = VecDeque::new();
    let mut needed: Vec<&Path> = Vec::new();
    for item in items.iter().rev() {
        let is_left = match &item.makes {
            Some(file) => !file.exists() && (item.for_later || needed.contains(&file.as_path())),
            None => outcomes.get(step, &item.name).is_none(),
        };
        if is_left {
            needed.extend(item.needs.iter().map(PathBuf::as_path));
            left.push_front(item);
        }
    }
    left
}

/// The outcome of an item whose file another item has not made.
fn missing(file: &Path) -> Outcome {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    Outcome { text: format!("{name} was not made"), ..Outcome::default() }
}

/// The counts of tests and cases, for a line.
fn summary(item: &Item, outcome: &Outcome) -> String {
    let value = outcome.value.clone();
    let line = match item.result {
        Found::Tests => serde_json::from_value(value).map(|run: TestRun| run.line()),
        Found::Cases => serde_json::from_value(value).map(|cases: Cases| cases.line()),
        Found::Text | Found::Json | Found::File(_) => return String::new(),
    };
    line.map_or_else(|_| String::new(), |line| format!(": {line}"))
}

/// Runs an item; says whether it ended by itself.
pub(super) fn run_item(item: &Item, limit: Duration) -> Result<(Outcome, bool)> {
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
    let ended = match child::run(command, limit, item.log.as_deref()) {
        Ok(ended) => ended,
        Err(error) => {
            return Ok((Outcome { text: format!("{error:#}"), ..Outcome::default() }, true));
        }
    };
    let mut ok = ended.status.is_some_and(|status| status.success());
    if let (true, Some(file), Some(part), true) = (ok, &item.makes, &part, item.has_part()) {
        fs::rename(part, file).with_context(|| part.display().to_string())?;
    }
    let (value, mut text) = match read(&item.result, &ended, ok) {
        Ok(read) => read,
        Err(error) => {
            ok = false;
            (Value::Null, format!("{}{}\n{error:#}", ended.stdout, ended.stderr))
        }
    };
    match ended.status {
        None => text += &format!("\nit timed out after {:.0} s", ended.time.as_secs_f64()),
        Some(status) if !ok && text.trim().is_empty() => text = format!("it exited with {status}"),
        _ => {}
    }
    let text = tail(&text, KEPT[usize::from(ok)]).to_owned();
    let outcome =
        Outcome { ok, seconds: ended.time.as_secs_f64(), value, text, ..Outcome::default() };
    Ok((outcome, ended.status.is_some()))
}

/// The value of an item, and the text that is kept beside it.
fn read(found: &Found, ended: &Ended, ok: bool) -> Result<(Value, String)> {
    let text = || format!("{}{}", ended.stdout, ended.stderr);
    Ok(match found {
        Found::Json if ok => {
            (serde_json::from_str(&ended.stdout).context("no JSON")?, String::new())
        }
        Found::File(file) if ok => {
            let bytes = fs::read(file).with_context(|| file.display().to_string())?;
            (serde_json::from_slice(&bytes).with_context(|| file.display().to_string())?, text())
        }
        Found::Tests => {
            let run = TestRun::read(&ended.stdout);
            let first = run.failed.iter().next();
            let first = first.map_or_else(String::new, |(name, why)| format!("\n{name}: {why}"));
            (serde_json::to_value(run)?, format!("{}{first}", ended.stderr))
        }
        Found::Cases => {
            let cases = Cases::read(&ended.stdout);
            let first = cases.different.iter().chain(&cases.failed).next().cloned();
            let text = format!("{}\n{}", ended.stderr, first.unwrap_or_default());
            (serde_json::to_value(cases)?, text)
        }
        Found::Text | Found::Json | Found::File(_) => (Value::Null, text()),
    })
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

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::gpu::testing::{Folder, LONG};

    #[test]
    fn what_is_done_is_not_done_again_and_a_step_ends_with_a_note() {
        let folder =
            Folder::new(&[("a", r#"echo x >> "$(dirname "$0")/calls"; echo last; exit "$1""#)]);
        let calls = || fs::read_to_string(folder.path().join("calls")).unwrap().lines().count();
        let place = folder.place("cuda");
        let item = |name: &str, status: &str| Item::new(name, place.program("a"), status);
        let work = Work::alone(vec![item("one", "0"), item("two", "3")]);
        let call = Call::new(&place, Outcomes::default());
        call.step("step", &work, Instant::now() + LONG).unwrap();
        call.step("step", &work, Instant::now() + LONG).unwrap();
        assert_eq!(calls(), 2);
        let outcomes = call.finish().unwrap();
        let of = |name: &str| outcomes.get("step", name).unwrap();
        assert!(of("one").ok && !of("two").ok && of("two").text == "last\n");
        assert!(outcomes.notes["step"].left.is_empty());
        // The file has the same.
        assert_eq!(Outcomes::open(&place.out, "", "").unwrap(), outcomes);
    }

    #[test]
    fn a_step_that_runs_out_of_time_keeps_what_it_has_and_names_what_is_left() {
        let slow = r#"test "$1" = 0 || sleep 100"#;
        let lines = r#"echo '{"started":"t"}'; sleep 100"#;
        let folder = Folder::new(&[("slow", slow), ("lines", lines)]);
        let place = folder.place("cuda");
        let log = place.out.join("tests.jsonl");
        let item = |name: &str, arg: &str| Item::new(name, place.program("slow"), arg);
        let tests = Item::new("tests", place.program("lines"), "").result(Found::Tests);
        let work = Work::parallel(vec![item("a", "0"), item("b", "1"), tests.log(log.clone())], 3);
        let call = Call::new(&place, Outcomes::default());
        call.step("step", &work, Instant::now() + Duration::from_secs(1)).unwrap();
        // The next step begins.
        call.step("next", &Work::alone(vec![item("a", "0")]), Instant::now() + LONG).unwrap();
        let outcomes = call.finish().unwrap();
        let note = &outcomes.notes["step"];
        assert_eq!(
            (note.left.as_slice(), note.cut.as_slice()),
            (&["b".to_owned()][..], &["tests".to_owned()][..])
        );
        let run = TestRun::from_value(&outcomes.get("step", "tests").unwrap().value).unwrap();
        assert_eq!(run.unfinished, ["t"]);
        assert_eq!(fs::read_to_string(log).unwrap(), "{\"started\":\"t\"}\n");
        assert!(outcomes.get("next", "a").unwrap().ok);
    }

    #[test]
    fn models_are_made_where_something_needs_them() {
        let make = r#"echo "$@" >> "$(dirname "$0")/calls"; echo weights > "$3""#;
        let bench = r#"test -f "$2" && echo '{"results": []}'"#;
        let folder = Folder::new(&[("xtask", make), ("realizar", bench)]);
        let calls = || fs::read_to_string(folder.path().join("calls")).unwrap();
        let place = folder.place("cuda");
        let model = ("1b", "Q4_K_M");
        let speed = place.speed("speed".to_owned(), &place.model(model), "cuda");
        let work = Work::alone(vec![place.made(model), place.made(("8b", "BF16")), speed]);
        let call = Call::new(&place, Outcomes::default());
        call.step("bench", &work, Instant::now() + LONG).unwrap();
        assert_eq!(calls().lines().count(), 1);
        assert!(calls().contains("1b-q4_k_m.gguf.part --ty Q4_K_M"), "{}", calls());
        assert!(call.outcomes().get("bench", "speed").unwrap().ok);
        // For another step it is made without being needed here.
        let later = Work::alone(vec![place.made(("8b", "BF16")).for_later()]);
        call.step("prepare", &later, Instant::now() + LONG).unwrap();
        assert!(place.model(("8b", "BF16")).is_file());
        drop(call);
        drop(folder);
        // Without the file, what needs it says so.
        let folder = Folder::new(&[("xtask", "exit 1"), ("realizar", bench)]);
        let place = folder.place("cuda");
        let speed = place.speed("speed".to_owned(), &place.model(model), "cuda");
        let work = Work::alone(vec![place.made(model), speed]);
        let call = Call::new(&place, Outcomes::default());
        call.step("bench", &work, Instant::now() + LONG).unwrap();
        let outcomes = call.finish().unwrap();
        let speed = outcomes.get("bench", "speed").unwrap();
        assert_eq!((speed.ok, speed.text.as_str()), (false, "1b-q4_k_m.gguf was not made"));
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
