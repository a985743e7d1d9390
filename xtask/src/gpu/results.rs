//! What follows from the outcomes of `gpu quick`: how the tests of each option ended, the speeds, and their tables.

use std::collections::BTreeMap;

use serde_json::Value;

use super::outcome::Outcomes;
use super::quick::{ALONE, BITS, SPEED, TESTS, VARIANTS};
use super::reading::TestRun;
use super::verdict::{self, Key, Speeds, State, Tested, Verdict};
use crate::table;

/// The verdict of each option. Without a GPU nothing was measured.
pub(super) fn verdicts(outcomes: &Outcomes) -> Vec<Verdict> {
    let keys = verdict::FLAGS.iter().map(|flag| flag.key);
    let tested: BTreeMap<&str, Tested> = keys.map(|key| (key, tested(key, outcomes))).collect();
    let mut all = verdict::verdicts(&tested, &speeds(outcomes));
    if outcomes.device != "cuda" {
        for verdict in &mut all {
            verdict.default = State::Undecided;
            verdict.reason =
                format!("on {} nothing is measured: {}", outcomes.device, verdict.reason);
        }
    }
    all
}

/// How the tests of an option ended: those of its kernels, and the bits of tiny models.
fn tested(key: &str, outcomes: &Outcomes) -> Tested {
    let mut tested = Tested::default();
    let (runs, part, variants): (&[&str], &str, &[&str]) = match key {
        "early" => (&["early"], "", &["early"]),
        "wgmma" => (&["plain", "early"], "wgmma", &["wgmma"]),
        _ => (&["plain", "early"], "levels", &["bf16", "all"]),
    };
    for run in runs {
        let found = outcomes.get(TESTS, run).map(|outcome| TestRun::from_value(&outcome.value));
        match found.flatten() {
            Some(found) => add_tests(&mut tested, &found, run, part, outcomes),
            None => tested.missing.push(format!("{TESTS} {run}")),
        }
    }
    for variant in variants {
        let ending = format!(" {variant}");
        let items = outcomes.steps.get(BITS).into_iter().flatten();
        let mut n = 0;
        for (name, outcome) in items.filter(|(name, _)| name.ends_with(&ending)) {
            n += 1;
            if outcome.ok {
                tested.passed += 1;
            } else {
                tested.failed.push(format!("{BITS} {name}"));
            }
        }
        let left = outcomes.notes.get(BITS).into_iter().flat_map(|note| &note.left);
        let left: Vec<String> = left
            .filter(|name| name.ends_with(&ending))
            .map(|name| format!("{BITS} {name}"))
            .collect();
        if n + left.len() == 0 {
            tested.missing.push(format!("{BITS}{ending}"));
        }
        tested.missing.extend(left);
    }
    tested
}

/// Adds the tests of a process whose names have `part`. What a process of its own found of a test counts.
fn add_tests(tested: &mut Tested, found: &TestRun, run: &str, part: &str, outcomes: &Outcomes) {
    let is_one = |name: &&String| name.contains(part);
    tested.passed += found.passed.iter().filter(is_one).count();
    for (name, reason) in found.skipped.iter().filter(|(name, _)| name.contains(part)) {
        // Only what is about the option itself is missed.
        if !part.is_empty() {
            tested.missing.push(format!("{name} ({run}): {reason}"));
        }
    }
    let of_both = found.failed.keys().map(|name| (name, true));
    let of_both = of_both.chain(found.unfinished.iter().map(|name| (name, false)));
    for (name, has_failed) in of_both.filter(|(name, _)| name.contains(part)) {
        let label = format!("{name} ({run})");
        match outcomes.get(ALONE, &format!("{run} {name}")) {
            Some(alone) if alone.ok => tested.passed += 1,
            Some(alone) if !alone.is_cut => tested.failed.push(label),
            _ if has_failed => tested.failed.push(label),
            _ => tested.missing.push(label),
        }
    }
}

/// The speeds of the step, by model, variant, test and round.
pub(super) fn speeds(outcomes: &Outcomes) -> Speeds {
    let mut speeds = Speeds::new();
    for (name, outcome) in outcomes.steps.get(SPEED).into_iter().flatten() {
        let words: Vec<&str> = name.split(' ').collect();
        let [shape, ty, variant, "round", round] = words[..] else { continue };
        let Ok(round) = round.parse() else { continue };
        for result in outcome.value["results"].as_array().into_iter().flatten() {
            let test = result["test"].as_str().map(str::to_owned);
            let Some((test, speed)) = test.zip(result["tokens_per_second"].as_f64()) else {
                continue;
            };
            let key: Key = (format!("{shape} {ty}"), variant.to_owned(), test, round);
            speeds.insert(key, speed);
        }
    }
    speeds
}

/// A row for each model and test, a column for each variant: tokens per second of both rounds.
pub(super) fn speed_table(speeds: &Speeds) -> String {
    let mut tests: Vec<(&str, &str)> = Vec::new();
    for (model, _, test, _) in speeds.keys() {
        if !tests.contains(&(model, test)) {
            tests.push((model, test));
        }
    }
    if tests.is_empty() {
        return String::new();
    }
    let has = |variant: &str| speeds.keys().any(|(_, own, _, _)| own == variant);
    let variants: Vec<&str> =
        VARIANTS.iter().map(|(name, _)| *name).filter(|variant| has(variant)).collect();
    let cell = |model: &str, test: &str, variant: &str| {
        let of = |round: &u32| {
            let key = (model.to_owned(), variant.to_owned(), test.to_owned(), *round);
            speeds.get(&key).copied().map_or_else(|| "-".to_owned(), table::shown)
        };
        verdict::ROUNDS.iter().map(of).collect::<Vec<_>>().join(", ")
    };
    let rows: Vec<Vec<String>> = tests
        .iter()
        .map(|(model, test)| {
            let cells = variants.iter().map(|variant| cell(model, test, variant));
            std::iter::once(format!("{model} {test}")).chain(cells).collect()
        })
        .collect();
    let header: Vec<&str> = std::iter::once("tokens/s").chain(variants.iter().copied()).collect();
    table::render(&header, &rows)
}

/// A row for each option.
pub(super) fn verdict_table(verdicts: &[Verdict]) -> String {
    let word = |verdict: &Verdict| match verdict.default {
        State::On => "on",
        State::Off => "off",
        State::Undecided => "undecided",
    };
    let rows: Vec<Vec<String>> = verdicts
        .iter()
        .map(|v| {
            vec![v.option.clone(), word(v).to_owned(), v.tests.passed.to_string(), v.reason.clone()]
        })
        .collect();
    table::render(&["option", "by default", "tests passed", "why"], &rows)
}

/// A row for each of the steps, also of those that were left out or not begun.
pub(super) fn step_table<'a>(
    steps: impl Iterator<Item = (&'a str, Option<u64>)>,
    outcomes: &Outcomes,
) -> String {
    let rows: Vec<Vec<String>> = steps
        .map(|(step, seconds)| {
            let [ok, failed] = outcomes.counts(step);
            let note = outcomes.notes.get(step);
            let left = note.map_or(0, |note| note.left.len());
            let about = match note {
                None => "not begun".to_owned(),
                Some(note) => match (&note.left_out, note.left.first().or(note.cut.first())) {
                    (Some(reason), _) => format!("left out: {reason}"),
                    (None, Some(first)) => format!("ran out of time at {first}"),
                    (None, None) => String::new(),
                },
            };
            let taken = note.filter(|note| note.left_out.is_none());
            let taken = taken.map_or_else(|| "-".to_owned(), |note| format!("{:.0}", note.seconds));
            let seconds = seconds.map_or_else(|| "-".to_owned(), |n| n.to_string());
            let counts = [ok, failed, left].map(|n| n.to_string());
            let [ok, failed, left] = counts;
            vec![step.to_owned(), ok, failed, left, taken, seconds, about]
        })
        .collect();
    table::render(&["step", "ok", "failed", "left", "seconds", "planned", "note"], &rows)
}

/// Whose tokens per second a table shows that are not in rounds of variants: ours, and those that llama-bench prints.
pub(super) fn results_of(value: &Value) -> Vec<(String, f64)> {
    let ours = value["results"].as_array();
    let of = |test: &Value| match test["tokens_per_second"].as_f64() {
        Some(speed) => Some((test["test"].as_str()?.to_owned(), speed)),
        None => {
            let [n_prompt, n_gen] = ["n_prompt", "n_gen"].map(|key| &test[key]);
            let name = if *n_gen == 0 { format!("pp{n_prompt}") } else { format!("tg{n_gen}") };
            Some((name, test["avg_ts"].as_f64()?))
        }
    };
    ours.or(value.as_array()).into_iter().flatten().filter_map(of).collect()
}

/// A row for each result of a step in turn with a peer.
pub(super) fn peer_table(step: &str, outcomes: &Outcomes) -> String {
    let items = outcomes.steps.get(step).into_iter().flatten();
    let rows: Vec<Vec<String>> = items
        .flat_map(|(name, outcome)| {
            let results = results_of(&outcome.value).into_iter();
            results.map(move |(test, speed)| vec![name.clone(), test, table::shown(speed)])
        })
        .collect();
    if rows.is_empty() { String::new() } else { table::render(&["of", "test", "tokens/s"], &rows) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::gpu::outcome::{Note, Outcome};

    fn outcomes() -> Outcomes {
        let mut outcomes = Outcomes { device: "cuda".to_owned(), ..Outcomes::default() };
        let mut add = |step: &str, name: &str, ok: bool, value: Value| {
            outcomes.add(step, name, Outcome { ok, value, ..Outcome::default() });
        };
        let run = |failed: &[&str], unfinished: &[&str]| {
            let failed: BTreeMap<&str, &str> = failed.iter().map(|name| (*name, "off")).collect();
            json!({"passed": ["ops::wgmma::tests::a", "ops::levels::tests::b", "c"],
                   "skipped": {"d": "two GPUs"}, "failed": failed, "unfinished": unfinished})
        };
        add(TESTS, "plain", false, run(&["ops::levels::tests::e"], &["ops::wgmma::tests::f"]));
        add(TESTS, "early", true, run(&[], &[]));
        // The one failed after another one had stopped the GPU.
        add(ALONE, "plain ops::wgmma::tests::f", true, Value::Null);
        for variant in ["early", "wgmma", "bf16", "all"] {
            add(BITS, &format!("llama {variant}"), variant != "bf16", Value::Null);
        }
        for round in [1, 2] {
            for (variant, speed) in [("plain", 100.0), ("wgmma", 150.0)] {
                let results = json!({"results": [{"test": "pp512", "tokens_per_second": speed}]});
                add(SPEED, &format!("8b Q4_K_M {variant} round {round}"), true, results);
            }
        }
        outcomes
    }

    #[test]
    fn tests_of_an_option_are_those_of_its_kernels_and_its_bits() {
        let outcomes = outcomes();
        let wgmma = tested("wgmma", &outcomes);
        assert_eq!((wgmma.passed, wgmma.failed.len(), wgmma.missing.len()), (2 + 1 + 1, 0, 0));
        let bf16 = tested("bf16", &outcomes);
        assert_eq!(bf16.failed, ["ops::levels::tests::e (plain)", "bits llama bf16"]);
        let early = tested("early", &outcomes);
        assert_eq!((early.passed, early.failed.len(), early.missing.len()), (3 + 1, 0, 0));
        let nothing = tested("early", &Outcomes::default());
        assert_eq!(nothing.missing, ["tests early", "bits early"]);
    }

    #[test]
    fn verdicts_follow_from_what_was_found() {
        let mut outcomes = outcomes();
        let states = |outcomes: &Outcomes| -> Vec<State> {
            verdicts(outcomes).iter().map(|verdict| verdict.default).collect()
        };
        assert_eq!(states(&outcomes), [State::Undecided, State::On, State::Off]);
        let table = verdict_table(&verdicts(&outcomes));
        assert!(table.contains("| --cuda-wgmma            | on "), "{table}");
        outcomes.device = "cpu".to_owned();
        assert_eq!(states(&outcomes), [State::Undecided; 3]);
    }

    #[test]
    fn speeds_of_rounds_stand_side_by_side() {
        let table = speed_table(&speeds(&outcomes()));
        let last = table.lines().last().unwrap();
        assert_eq!(last, "| 8b Q4_K_M pp512 | 100, 100 | 150, 150 |");
        assert_eq!(speed_table(&Speeds::new()), "");
    }

    #[test]
    fn every_step_has_a_row_that_says_why_it_has_no_results() {
        let mut outcomes = outcomes();
        let note = Note { left_out: Some("it needs a GPU".to_owned()), ..Note::default() };
        outcomes.note("card", note);
        outcomes.note(SPEED, Note { left: vec!["x".to_owned()], seconds: 9.6, ..Note::default() });
        let steps = [("card", Some(10)), (SPEED, Some(155)), ("ncu", None)];
        let table = step_table(steps.into_iter(), &outcomes);
        let rows: Vec<Vec<&str>> = table
            .lines()
            .skip(2)
            .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
            .collect();
        assert_eq!(rows[0], ["card", "0", "0", "0", "-", "10", "left out: it needs a GPU"]);
        assert_eq!(rows[1], ["speed", "4", "0", "1", "10", "155", "ran out of time at x"]);
        assert_eq!(rows[2], ["ncu", "0", "0", "0", "-", "-", "not begun"]);
    }

    #[test]
    fn results_of_both_engines_are_read() {
        let theirs = json!([{"n_prompt": 512, "n_gen": 0, "avg_ts": 9.5}, {"n_prompt": 0, "n_gen": 64, "avg_ts": 2.0}]);
        assert_eq!(results_of(&theirs), [("pp512".to_owned(), 9.5), ("tg64".to_owned(), 2.0)]);
        let ours = json!({"results": [{"test": "tg64 x8", "tokens_per_second": 3.0}]});
        assert_eq!(results_of(&ours), [("tg64 x8".to_owned(), 3.0)]);
    }
}
