//! Memory over many requests: short ones on 16 streams, some of which are left before their end.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::Args;
use super::client::{Client, Failure, joined};
use super::metrics::Gauges;
use super::server::{Contender, Server, Setup};
use super::workload::{Api, Ask, Dice, text};
use crate::table;

const STREAMS: usize = 16;
/// How many times the memory is read.
const READINGS: usize = 80;
/// Tokens of prompts and answers at most.
const PROMPT: usize = 96;
const ANSWER: usize = 16;
/// By how much the last quarter's memory may be above the first quarter's: a fraction and bytes.
const GROWTH: (f64, f64) = (0.02, 4.0 * 1024.0 * 1024.0);

/// Sends the requests, prints the memory, and returns whether it stayed and all went well.
pub(super) fn run(
    args: &Args,
    contender: &Contender,
    model: &Path,
    n_requests: usize,
) -> Result<bool> {
    ensure!(n_requests >= READINGS, "--soak: at least {READINGS} requests");
    let label = &contender.label;
    let setup = Setup {
        model: model.to_owned(),
        threads: args.threads()?,
        parallel: args.parallel,
        request_len: 256,
        queue: Some(2 * STREAMS),
        prefix_cache: true,
    };
    let server = contender.start(&setup)?;
    let idle = Gauges::of(&server.client)?;
    let start = Instant::now();
    let (readings, failures) = send(&server, args.seed, n_requests)?;
    let wall = start.elapsed();
    let (end, _) = Gauges::wait_idle(&server.client)?;
    server.stop()?;

    // The first tenth is warm-up: pages of the cache are touched for the first time.
    let steady = &readings[readings.len() / 10..];
    let quarter = steady.len() / 4;
    let first = table::median(&steady[..quarter]);
    let last = table::median(&steady[steady.len() - quarter..]);
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    println!(
        "{label}: {n_requests} requests in {wall:.1?}; resident memory {:.1} MiB in the first \
         quarter after warm-up, {:.1} MiB in the last",
        mib(first),
        mib(last)
    );
    let flat = last <= first * (1.0 + GROWTH.0) + GROWTH.1;
    if !flat {
        println!("{label}: the memory grew");
    }
    if let Some(failure) = failures.first() {
        println!("{label}: {} requests failed, first: {failure}", failures.len());
    }
    let back = end.kv_usage == idle.kv_usage;
    let told = |gauges: Gauges| gauges.kv_usage.map_or("not told".to_owned(), |u| u.to_string());
    println!("{label}: cache in use before: {}, afterwards: {}", told(idle), told(end));
    Ok(flat && back && failures.is_empty())
}

/// The readings of the resident memory in bytes, and why requests failed.
fn send(server: &Server, seed: u64, n_requests: usize) -> Result<(Vec<f64>, Vec<String>)> {
    let next = AtomicUsize::new(0);
    let readings = Mutex::new(Vec::new());
    let client = &server.client;
    let work = || {
        let mut failures = Vec::new();
        loop {
            let idx = next.fetch_add(1, Ordering::Relaxed);
            if idx >= n_requests {
                return failures;
            }
            if let Err(failure) = one(client, seed, idx) {
                failures.push(failure.to_string());
            }
            if idx.is_multiple_of(n_requests / READINGS)
                && let Some(memory) = server.memory()
            {
                let mut readings = readings.lock().unwrap_or_else(PoisonError::into_inner);
                readings.push(memory.now_bytes as f64);
            }
        }
    };
    let failures = thread::scope(|scope| {
        let threads: Vec<_> = (0..STREAMS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(joined).collect()
    });
    let readings = readings.into_inner().unwrap_or_else(PoisonError::into_inner);
    let enough = readings.len() >= READINGS / 2;
    enough.then_some((readings, failures)).context("the system does not report a process's memory")
}

/// The `idx`-th request. Every tenth is left after its first token.
fn one(client: &Client, seed: u64, idx: usize) -> Result<(), Failure> {
    let mut dice = Dice::new(seed, idx as u64);
    let len = 1 + dice.below(PROMPT);
    let prompt = text(&mut dice, len);
    let api = dice.pick(&[Api::Completions, Api::Chat]);
    let ask = Ask::greedy(api, "", &prompt, 1 + dice.below(ANSWER));
    if dice.below(10) > 0 {
        return client.ask(&ask).map(drop);
    }
    match client.ask_while(&ask, |_| ControlFlow::Break(())) {
        // An answer without any text has nothing to be left at.
        Ok(_) | Err(Failure::Left) => Ok(()),
        Err(failure) => Err(failure),
    }
}
