//! The kernels' tests as a library: the same tests by the same names as in `cargo test`, so that a machine with a GPU
//! needs neither Rust nor a program per test.
//!
//! Several tests run at a time in one process. A panic is caught. A test that stops the GPU makes all later tests fail
//! as well, because a process cannot use a GPU any more after that. With the environment variable
//! `REALIZAR_CUDA_DEVICE=driver` the tests run on the first GPU, and with `REALIZAR_CUDA_EARLY_LAUNCHES` with dependent
//! launches.

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::device::{Device, dependent};
use crate::image::unpacked;
use crate::testing::{is_gpu, take_skipped};
use crate::{Error, device, matrix, ops, pages, states};

/// A test.
#[derive(Clone, Copy)]
pub struct Test {
    pub(crate) path: &'static str,
    pub(crate) function: fn(),
    /// Text that the panic message of the test must contain, if the test must panic.
    pub(crate) panics: &'static [&'static str],
}

impl Test {
    /// Path in the crate, as `cargo test` prints it.
    pub fn name(&self) -> &'static str {
        self.path.split_once("::").map_or(self.path, |(_, name)| name)
    }

    /// Whether the test stops the device on purpose, to check an error report. A GPU could not be used after it.
    fn stops_device(&self) -> bool {
        self.path.contains("reported")
    }
}

/// The result of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It passed.
    Passed,
    /// It cannot run on this device, for this reason.
    Skipped(String),
    /// It failed, with the message and location of its panic.
    Failed(String),
}

/// Progress of a run.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A test starts.
    Started(&'static str),
    /// A test ended after this time.
    Ended(&'static str, &'a Outcome, Duration),
}

/// The tests that the device can run and whose names contain one of `filters`, or all without a filter, in their order.
pub fn list(filters: &[String]) -> Vec<Test> {
    let own: [&[Test]; 4] =
        [device::tests::TESTS, matrix::tests::TESTS, pages::tests::TESTS, states::tests::TESTS];
    let all = own.into_iter().chain(ops::tests::MODULES.iter().copied()).flatten().copied();
    let is_chosen = |test: &Test| {
        filters.is_empty() || filters.iter().any(|filter| test.name().contains(filter.as_str()))
    };
    all.filter(|test| is_chosen(test) && !(is_gpu() && test.stops_device())).collect()
}

/// Loads an image, in the compressed format of the crate's folder `image`, and looks up one of its kernels. This makes
/// a driver compile the image unless it has it cached.
///
/// # Errors
/// Any error of the device.
pub fn load_image<D: Device>(device: &D, name: &str, image: &[u8]) -> Result<(), Error> {
    let refused = |reason: String| Error::Kernel { kernel: name.to_owned(), reason };
    let text = unpacked(image).map_err(|e| refused(e.to_string()))?;
    let text = if device.launches_early() { dependent(&text) } else { text };
    let kernel = text.split(".visible .entry ").nth(1).and_then(|rest| rest.split('(').next());
    let kernel = kernel.ok_or_else(|| refused("no kernel".to_owned()))?;
    let module = device.load(name, &text)?;
    device.function(&module, kernel).map(drop)
}

thread_local! {
    /// Message and location of the panic of this thread's test.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs tests, `n_threads` at a time. `report` is called from their threads.
pub fn run(tests: &[Test], n_threads: usize, report: &(dyn Fn(Event<'_>) + Sync)) {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(|info| PANIC.set(Some(info.to_string()))));
    let left = Mutex::new(tests.iter());
    let next = || left.lock().map_or(None, |mut left| left.next());
    thread::scope(|scope| {
        for _ in 0..n_threads.clamp(1, tests.len().max(1)) {
            scope.spawn(|| {
                while let Some(test) = next() {
                    report(Event::Started(test.name()));
                    let start = Instant::now();
                    let outcome = outcome(test);
                    report(Event::Ended(test.name(), &outcome, start.elapsed()));
                }
            });
        }
    });
    panic::set_hook(usual);
}

/// Runs a test on this thread.
fn outcome(test: &Test) -> Outcome {
    drop((PANIC.take(), take_skipped()));
    let result = panic::catch_unwind(AssertUnwindSafe(test.function));
    let message = PANIC.take().unwrap_or_else(|| "a panic without a message".to_owned());
    match (result, test.panics) {
        (Ok(()), []) => take_skipped().map_or(Outcome::Passed, Outcome::Skipped),
        (Ok(()), [expected, ..]) => Outcome::Failed(format!("no panic with `{expected}`")),
        (Err(_), [expected]) if message.contains(expected) => Outcome::Passed,
        (Err(_), _) => Outcome::Failed(message),
    }
}

#[cfg(test)]
mod runner {
    use super::*;

    fn test(name: &'static str, function: fn(), panics: &'static [&'static str]) -> Test {
        Test { path: name, function, panics }
    }

    #[test]
    fn tests_are_found_by_parts_of_their_names() {
        let names = |filter: &str| -> Vec<&str> {
            list(&[filter.to_owned()]).iter().map(Test::name).collect()
        };
        assert_eq!(names("ops::norm::tests::norms"), ["ops::norm::tests::norms"]);
        assert_eq!(names("no such test"), [] as [&str; 0]);
        let all = list(&[]);
        assert!(
            all.len() > 100 && names("ops::attention::tests::decode::").len() > 5,
            "{}",
            all.len()
        );
    }

    #[test]
    fn an_image_is_loaded_with_one_of_its_kernels() {
        let (device, _) = crate::testing::bench();
        let image = include_bytes!("../image/norm.ptx.br");
        assert_eq!(load_image(&*device, "norm", image), Ok(()));
        assert!(load_image(&*device, "norm", &image[1..]).is_err());
    }

    #[test]
    fn panics_are_outcomes_of_their_tests_alone() {
        let tests = [
            test("crate::passes", || {}, &[]),
            test("crate::fails", || panic!("one of {}", 2), &[]),
            test("crate::panics_as_expected", || panic!("out of range"), &["out of"]),
            test("crate::panics_otherwise", || panic!("out of range"), &["in range"]),
            test("crate::does_not_panic", || {}, &["in range"]),
        ];
        let found = Mutex::new(Vec::new());
        run(&tests, 1, &|event| {
            if let Event::Ended(name, outcome, _) = event {
                found.lock().unwrap().push((name, outcome.clone()));
            }
        });
        let found = found.into_inner().unwrap();
        let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, tests.each_ref().map(Test::name));
        let message = |i: usize| match &found[i].1 {
            Outcome::Failed(message) => message.clone(),
            other => format!("{other:?}"),
        };
        assert_eq!((message(0), message(2)), ("Passed".to_owned(), "Passed".to_owned()));
        assert!(
            message(1).contains("tests.rs") && message(1).ends_with("one of 2"),
            "{}",
            message(1)
        );
        assert!(message(3).ends_with("out of range"), "{}", message(3));
        assert_eq!(message(4), "no panic with `in range`");
    }
}
