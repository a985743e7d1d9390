//! The kernels' tests: on the interpreter, or where `REALIZAR_CUDA_DEVICE=driver` is set, on the first GPU. A line of JSON for
//! each test that begins and each that ends, as soon as it does.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser;
use realizar_kernels_cuda::tests::{self, Event, Outcome, Test};
use serde_json::json;

#[derive(Parser)]
#[command(name = "kernel-tests")]
struct Args {
    /// Parts of names; all tests without one.
    filters: Vec<String>,
    /// Names are whole ones.
    #[arg(long)]
    exact: bool,
    /// Print the names instead.
    #[arg(long)]
    list: bool,
    /// Tests at a time.
    #[arg(long, default_value = "1")]
    threads: usize,
}

pub(crate) fn main() -> ExitCode {
    let args = Args::parse();
    let mut chosen = tests::list(&args.filters);
    if args.exact {
        chosen.retain(|test| args.filters.iter().any(|name| name == test.name()));
    }
    if args.list {
        println!("{}", json!(chosen.iter().map(Test::name).collect::<Vec<_>>()));
        return ExitCode::SUCCESS;
    }
    if chosen.is_empty() {
        println!("no test has a name with {:?}", args.filters);
        return ExitCode::FAILURE;
    }
    let (has_failed, out) = (AtomicBool::new(false), Mutex::new(()));
    tests::run(&chosen, args.threads, &|event| {
        let line = match event {
            Event::Started(name) => json!({"started": name}),
            Event::Ended(name, outcome, time) => {
                let (word, reason) = match outcome {
                    Outcome::Passed => ("passed", None),
                    Outcome::Skipped(reason) => ("skipped", Some(reason)),
                    Outcome::Failed(reason) => ("failed", Some(reason)),
                };
                has_failed.fetch_or(word == "failed", Ordering::Relaxed);
                json!({"test": name, "outcome": word, "seconds": time.as_secs_f64(), "reason": reason})
            }
            _ => return,
        };
        // A line at a time, which a reader has even if the process dies in the next test.
        let _one = out.lock();
        let mut stdout = std::io::stdout();
        let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    });
    if has_failed.into_inner() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
