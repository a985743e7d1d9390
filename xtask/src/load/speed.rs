//! How fast servers answer: throughput and latencies of streams side by side, and what a prefix
//! that is in the cache saves.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::Args;
use super::case::{Case, PAIR_TOKENS, cases};
use super::client::{Client, Failure, Reply, drive};
use super::report::{Cell, Run};
use super::server::{Contender, Setup};
use super::stats::Sample;
use super::workload::{Api, Ask, Workload};

/// Pairs of equal requests in a round.
const PAIRS: usize = 4;

/// Measures every case in rounds in which the servers take turns. Each measurement of a server that
/// is started here has a process of its own.
pub(super) fn run(args: &Args, contenders: &[Contender], model: &Path) -> Result<()> {
    let name = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let threads = args.threads()?;
    let mut run = Run::new(contenders, args, &name, threads)?;
    for (idx, case) in cases(args).into_iter().enumerate() {
        let setup = Setup {
            model: model.to_owned(),
            threads,
            parallel: case.parallel(),
            request_len: case.request_len(args),
            queue: None,
            prefix_cache: true,
        };
        let mut outcomes: Vec<_> = contenders.iter().map(|_| Ok(Vec::new())).collect();
        for round in 0..args.rounds {
            let part = ((idx as u64) << 32) | round as u64;
            let mut order: Vec<usize> = (0..contenders.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for i in order {
                let Ok(samples) = &mut outcomes[i] else { continue };
                match measure(args, &contenders[i], &setup, case, part) {
                    Ok(sample) => samples.push(sample),
                    Err(error) if contenders[i].is_ours() => return Err(error),
                    Err(error) => outcomes[i] = Err(format!("{error:#}")),
                }
            }
        }
        let commands = contenders.iter().map(|contender| {
            let command = contender.command(&setup, 8080)?;
            Some(super::report::command_line(&command))
        });
        run.add(Cell { case, commands: commands.collect(), outcomes })?;
    }
    run.finish()
}

/// One round of a case on one server.
fn measure(
    args: &Args,
    contender: &Contender,
    setup: &Setup,
    case: Case,
    part: u64,
) -> Result<Sample> {
    let server = contender.start(setup)?;
    let client = &server.client;
    let api = args.api();
    warm_up(client, api, args.seed ^ part)?;
    let (wall, answers) = match case {
        Case::Streams { n_streams, shared } => {
            let work = Workload {
                api,
                seed: args.seed,
                prompts: &args.prompts,
                shared,
                max_tokens: args.max_tokens,
            };
            let n_requests = args.requests.unwrap_or_else(|| (3 * n_streams).max(16));
            drive(client, n_streams, &work.asks(part, n_requests))
        }
        Case::Twice { prompt } => {
            let work = Workload {
                api,
                seed: args.seed,
                prompts: &[prompt],
                shared: 0,
                max_tokens: PAIR_TOKENS,
            };
            twice(client, &work.asks(part, PAIRS))
        }
    };
    let peak_bytes = server.memory().map_or(0, |memory| memory.peak_bytes);
    server.stop()?;
    Ok(Sample::new(wall, &answers, peak_bytes))
}

/// A short request, so that what a server does once is not measured.
fn warm_up(client: &Client, api: Api, seed: u64) -> Result<()> {
    let work = Workload { api, seed: !seed, prompts: &[24], shared: 0, max_tokens: 4 };
    for ask in work.asks(0, 2) {
        client.ask(&ask)?;
    }
    Ok(())
}

/// Each request twice in a row. After a failure nothing more is sent, as pairs would be torn.
fn twice(client: &Client, asks: &[Ask]) -> (Duration, Vec<Result<Reply, Failure>>) {
    let start = Instant::now();
    let mut answers = Vec::new();
    for ask in asks.iter().flat_map(|ask| [ask, ask]) {
        answers.push(client.ask(ask));
        if answers.last().is_some_and(Result::is_err) {
            answers.retain(Result::is_err);
            break;
        }
    }
    (start.elapsed(), answers)
}
