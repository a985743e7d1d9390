//! Which options of the CUDA backend are to be on by default, by a rule: on where its tests pass and it is at least 3 % faster in
//! both rounds of some measurement, and slower in none.
//!
//! [`verdicts`] is a function of what was measured and of how tests ended; nothing here runs anything.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What an option has to gain, in both rounds.
const GAIN: f64 = 0.03;
/// What a speed differs by from one run to the next: only more than that is slower.
const NOISE: f64 = 0.01;
/// Rounds of every measurement.
pub(super) const ROUNDS: [u32; 2] = [1, 2];

/// An option, and the options that are compared.
pub(super) struct Flag {
    pub(super) name: &'static str,
    /// Its name in steps of tests.
    pub(super) key: &'static str,
    /// The model and the pairs of variants, with the option and without, that show its gain; the first has to be there.
    gains: &'static [(&'static str, &'static str, &'static str)],
    /// Pairs that have other options as well, and must not be slower.
    others: &'static [(&'static str, &'static str, &'static str)],
}

pub(super) const FLAGS: &[Flag] = &[
    Flag {
        name: "--cuda-dependent-launch",
        key: "early",
        gains: &[("8b Q4_K_M", "early", "plain"), ("8b Q4_K_M", "wgmma+early", "wgmma")],
        others: &[("8b BF16", "wgmma+early", "plain")],
    },
    Flag {
        name: "--cuda-wgmma",
        key: "wgmma",
        gains: &[("8b Q4_K_M", "wgmma", "plain"), ("8b Q4_K_M", "wgmma+early", "early")],
        others: &[("8b BF16", "wgmma+early", "plain")],
    },
    Flag {
        name: "--cuda-bf16-decode",
        key: "bf16",
        gains: &[("8b Q4_K_M", "all", "wgmma+early")],
        others: &[],
    },
];

/// A measurement: model, variant, test and round.
pub(super) type Key = (String, String, String, u32);

/// Tokens per second.
pub(super) type Speeds = BTreeMap<Key, f64>;

/// How the tests of an option ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tested {
    pub(super) passed: usize,
    pub(super) failed: Vec<String>,
    /// What was not run or did not end.
    pub(super) missing: Vec<String>,
}

/// What follows for an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    On,
    Off,
    Undecided,
}

/// One option's verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Verdict {
    pub(super) option: String,
    pub(super) default: State,
    pub(super) reason: String,
    pub(super) tests: Tested,
    pub(super) changes: Vec<Change>,
}

/// A speed with an option over that without it, less one, in each round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Change {
    pub(super) measurement: String,
    pub(super) rounds: Vec<f64>,
}

impl Change {
    fn is_gain(&self) -> bool {
        self.rounds.iter().all(|&change| change >= GAIN)
    }

    fn is_loss(&self) -> bool {
        self.rounds.iter().any(|&change| change < -NOISE)
    }
}

/// The verdict of each option. `tested` has how its tests ended, by [`Flag::key`].
pub(super) fn verdicts(tested: &BTreeMap<&str, Tested>, speeds: &Speeds) -> Vec<Verdict> {
    let of = |flag: &Flag| verdict(flag, tested.get(flag.key).cloned().unwrap_or_default(), speeds);
    FLAGS.iter().map(of).collect()
}

fn verdict(flag: &Flag, tests: Tested, speeds: &Speeds) -> Verdict {
    let gains: Vec<Change> = flag.gains.iter().flat_map(|pair| changes(pair, speeds)).collect();
    let others = flag.others.iter().flat_map(|pair| changes(pair, speeds));
    let mut all = gains.clone();
    all.extend(others);
    let is_measured = flag.gains.first().is_some_and(|pair| is_complete(pair, speeds));
    let loss = all.iter().find(|change| change.is_loss());
    let best = gains.iter().filter(|change| change.is_gain()).max_by(|a, b| {
        let least = |change: &Change| change.rounds.iter().copied().fold(f64::INFINITY, f64::min);
        least(a).total_cmp(&least(b))
    });
    let (default, reason) = if let Some(first) = tests.failed.first() {
        (State::Off, format!("{} tests failed, first {first}", tests.failed.len()))
    } else if let Some(change) = loss {
        (State::Off, format!("slower: {change}"))
    } else if tests.passed == 0 || !tests.missing.is_empty() {
        let n = tests.missing.len();
        (
            State::Undecided,
            format!("{} tests passed, {n} did not end or were not run", tests.passed),
        )
    } else if !is_measured {
        (State::Undecided, "not measured in both rounds".to_owned())
    } else if let Some(change) = best {
        (State::On, format!("faster: {change}"))
    } else {
        (State::Off, format!("nowhere {:.0} % faster in both rounds", 100.0 * GAIN))
    };
    Verdict { option: flag.name.to_owned(), default, reason, tests, changes: all }
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rounds: Vec<String> =
            self.rounds.iter().map(|change| format!("{:+.1} %", 100.0 * change)).collect();
        write!(f, "{} {}", self.measurement, rounds.join(", "))
    }
}

/// The tests that a model was measured by without an option.
fn tests_of<'a>(
    model: &'a str,
    without: &'a str,
    speeds: &'a Speeds,
) -> impl Iterator<Item = &'a str> {
    let of = move |key: &'a Key| {
        let (own, variant, test, round) = key;
        (own == model && variant == without && *round == ROUNDS[0]).then_some(test.as_str())
    };
    speeds.keys().filter_map(of)
}

/// What an option changes in each test that both variants have in every round.
fn changes(&(model, with, without): &(&str, &str, &str), speeds: &Speeds) -> Vec<Change> {
    let of = |variant: &str, test: &str, round: u32| {
        speeds.get(&(model.to_owned(), variant.to_owned(), test.to_owned(), round)).copied()
    };
    let change = |test: &str| {
        let one = |&round: &u32| Some(of(with, test, round)? / of(without, test, round)? - 1.0);
        let rounds = ROUNDS.iter().map(one).collect::<Option<_>>()?;
        Some(Change { measurement: format!("{model} {test}, {with} over {without}"), rounds })
    };
    tests_of(model, without, speeds).filter_map(change).collect()
}

/// Whether both variants have every test of the other in every round.
fn is_complete(&(model, with, without): &(&str, &str, &str), speeds: &Speeds) -> bool {
    let has = |variant: &str, test: &str| {
        ROUNDS.iter().all(|&round| {
            speeds.contains_key(&(model.to_owned(), variant.to_owned(), test.to_owned(), round))
        })
    };
    let mut tests = tests_of(model, without, speeds).peekable();
    tests.peek().is_some() && tests.all(|test| has(with, test) && has(without, test))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Speeds of `8b Q4_K_M`: variant, test, both rounds.
    fn speeds(rows: &[(&str, &str, [f64; 2])]) -> Speeds {
        let mut speeds = Speeds::new();
        for (variant, test, rounds) in rows {
            for (round, speed) in ROUNDS.iter().zip(rounds) {
                let key =
                    ("8b Q4_K_M".to_owned(), (*variant).to_owned(), (*test).to_owned(), *round);
                speeds.insert(key, *speed);
            }
        }
        speeds
    }

    fn check(tests: &Tested, speeds: &Speeds) -> (State, String) {
        let tested = BTreeMap::from([("wgmma", tests.clone())]);
        let found = verdicts(&tested, speeds).remove(1);
        assert_eq!(found.option, "--cuda-wgmma");
        (found.default, found.reason)
    }

    #[test]
    fn an_option_is_on_where_it_is_faster_in_both_rounds_and_slower_in_none() {
        let passed = Tested { passed: 4, ..Tested::default() };
        let plain = [("plain", "pp512", [100.0, 100.0]), ("plain", "tg64", [50.0, 50.0])];
        let with = |pp: [f64; 2], tg: [f64; 2]| {
            speeds(&[&plain[..], &[("wgmma", "pp512", pp), ("wgmma", "tg64", tg)]].concat())
        };
        let cases = [
            (
                [103.0, 104.0],
                [50.0, 50.0],
                State::On,
                "faster: 8b Q4_K_M pp512, wgmma over plain +3.0 %, +4.0 %",
            ),
            // Noise is no loss.
            ([103.0, 104.0], [49.6, 50.4], State::On, "faster"),
            (
                [103.0, 104.0],
                [49.4, 50.4],
                State::Off,
                "slower: 8b Q4_K_M tg64, wgmma over plain -1.2 %, +0.8 %",
            ),
            ([110.0, 102.9], [50.0, 50.0], State::Off, "nowhere 3 % faster in both rounds"),
        ];
        for (pp, tg, default, reason) in cases {
            let found = check(&passed, &with(pp, tg));
            assert!(found.0 == default && found.1.starts_with(reason), "{found:?}");
        }
    }

    #[test]
    fn tests_that_fail_turn_an_option_off_and_those_that_are_missing_leave_it_open() {
        let fast =
            speeds(&[("plain", "pp512", [100.0, 100.0]), ("wgmma", "pp512", [150.0, 150.0])]);
        let failed =
            Tested { passed: 3, failed: vec!["ops::wgmma::tests::a".to_owned()], missing: vec![] };
        let (default, reason) = check(&failed, &fast);
        assert_eq!(
            (default, reason.as_str()),
            (State::Off, "1 tests failed, first ops::wgmma::tests::a")
        );
        let missing = Tested { passed: 3, failed: vec![], missing: vec!["llama".to_owned()] };
        assert_eq!(check(&missing, &fast).0, State::Undecided);
        assert_eq!(check(&Tested::default(), &fast).0, State::Undecided);
    }

    #[test]
    fn one_round_is_not_enough() {
        let passed = Tested { passed: 4, ..Tested::default() };
        let mut half =
            speeds(&[("plain", "pp512", [100.0, 100.0]), ("wgmma", "pp512", [150.0, 150.0])]);
        half.remove(&("8b Q4_K_M".to_owned(), "wgmma".to_owned(), "pp512".to_owned(), 2));
        assert_eq!(
            check(&passed, &half),
            (State::Undecided, "not measured in both rounds".to_owned())
        );
        assert_eq!(check(&passed, &Speeds::new()).0, State::Undecided);
    }

    #[test]
    fn a_loss_beside_other_options_counts() {
        let passed = Tested { passed: 4, ..Tested::default() };
        let mut all =
            speeds(&[("plain", "pp512", [100.0, 100.0]), ("wgmma", "pp512", [150.0, 150.0])]);
        for round in ROUNDS {
            let key = |variant: &str| {
                ("8b BF16".to_owned(), variant.to_owned(), "tg64".to_owned(), round)
            };
            all.insert(key("plain"), 100.0);
            all.insert(key("wgmma+early"), 97.0);
        }
        let (default, reason) = check(&passed, &all);
        assert_eq!(default, State::Off);
        assert_eq!(reason, "slower: 8b BF16 tg64, wgmma+early over plain -3.0 %, -3.0 %");
    }
}
