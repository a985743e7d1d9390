//! Every place where outside text becomes work takes inputs that grow: [`growth::all`] lists them.
//!
//! Work is counted in allocated bytes and in the processor time of the process, which runs nothing else. Where an
//! input grows 8-fold, neither may grow more than 20-fold, above a floor that hides what an input does not
//! decide. Input that is refused passes: a limit is as good as a fast algorithm. Input that is a program, such
//! as a template with loops, has no other bound than the limit that ends it.
#![cfg(unix)]

mod growth;
mod measure;

use growth::Growth;
use measure::Work;
use realizar_fuzz::{ENTRIES, PATHS, TARGETS};

/// The factor from one size of an input to the next.
const STEP: usize = 8;
/// The most that the work may grow with it.
const MOST: u64 = 20;
/// Work that is too little to compare: a model is loaded, or a thread is started.
const FLOOR: Work = Work { nanoseconds: 50_000_000, bytes: 24 << 20 };
/// The processor time of a program until its limit ends it; a target runs a template four times.
const PROGRAM_NANOSECONDS: u64 = 20_000_000_000;
/// The longest input, that of a body.
const LONGEST: usize = 1 << 20;
/// How often an input is tried whose processor time grew too much: other programs share the caches.
const TRIES: usize = 3;

/// The work of one input: of several tries the least.
fn work(growth: &Growth, n: usize, tries: usize) -> Option<Work> {
    let input = (growth.make)(n);
    if input.len() > LONGEST {
        return None;
    }
    let run = || measure::of(|| (growth.target.run)(&input));
    (0..tries).map(|_| run()).reduce(Work::min)
}

/// The sizes at which the work of an input grows too much, in words.
fn excess(growth: &Growth) -> Option<String> {
    let mut n = growth.first;
    let mut before = work(growth, n, 1)?;
    loop {
        let mut now = work(growth, n * STEP, 1)?;
        if growth.is_program {
            let is_bounded = now.nanoseconds <= PROGRAM_NANOSECONDS;
            return (!is_bounded).then(|| format!("{}: {now:?} at {}", growth.name, n * STEP));
        }
        if now.exceeds(before) {
            before = work(growth, n, TRIES)?;
            now = work(growth, n * STEP, TRIES)?;
        }
        if now.exceeds(before) {
            let size = n * STEP;
            return Some(format!("{}: {before:?} at {n}, {now:?} at {size}", growth.name));
        }
        n *= STEP;
        before = now;
        if n >= growth.first * STEP * STEP {
            return None;
        }
    }
}

impl Work {
    fn exceeds(self, before: Self) -> bool {
        let most = |before: u64, floor: u64| floor.max(before.saturating_mul(MOST));
        self.nanoseconds > most(before.nanoseconds, FLOOR.nanoseconds)
            || self.bytes > most(before.bytes, FLOOR.bytes)
    }
}

/// One test alone, as the processor time of the process is measured.
#[test]
fn work_grows_as_its_input_does() {
    let all = growth::all();
    for target in TARGETS {
        let walked = all.iter().any(|growth| growth.target.name == target.name);
        assert!(walked, "{} has no input that grows", target.name);
    }
    for (file, name, target) in ENTRIES {
        assert!(realizar_fuzz::target(target).is_some(), "{file}: {name}");
    }
    for path in PATHS {
        assert!(all.iter().any(|growth| growth.name.contains(path)), "{path}");
    }
    // The first run of a target sets up what all its inputs share.
    for target in TARGETS {
        (target.run)(b"{}");
    }
    let found: Vec<String> = all.iter().filter_map(excess).collect();
    assert!(found.is_empty(), "{} of {}:\n{}", found.len(), all.len(), found.join("\n"));
}
