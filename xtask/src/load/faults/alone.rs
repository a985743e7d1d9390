//! Faults that take a server of their own: its limits are reached, its file goes, it is told to end.

use std::fs;
use std::ops::ControlFlow;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::{EXIT_LIMIT, Found, GOOD_TOKENS, REQUEST_LIMIT};
use crate::load::client::{Client, Failure, Reply, joined};
use crate::load::metrics::{self, Gauges};
use crate::load::server::{Contender, Setup};
use crate::load::verify::text_difference;
use crate::load::workload::{Api, Ask, Dice, text};

/// How soon a request must be refused.
const REFUSAL_LIMIT: Duration = Duration::from_secs(2);
/// Requests whose keys and values do not fit together, tokens of their prompts, and tokens that the
/// cache holds: two of them at their end.
const CROWD: usize = 6;
const CROWD_PROMPT: usize = 100;
const CROWD_CACHE: usize = 640;

/// The `idx`-th request, with this many tokens of a prompt and of an answer.
fn ask(seed: u64, idx: usize, prompt: usize, answer: usize) -> Ask {
    let prompt = text(&mut Dice::new(seed, idx as u64), prompt);
    Ask::greedy(Api::Completions, "", &prompt, answer)
}

/// Streams that run, each told when it begins.
fn streams<'scope, 'env>(
    scope: &'scope thread::Scope<'scope, 'env>,
    client: &'env Client,
    asks: &'env [Ask],
) -> (Vec<thread::ScopedJoinHandle<'scope, Result<Reply, Failure>>>, mpsc::Receiver<()>) {
    let (begun, begins) = mpsc::channel();
    let threads = asks.iter().map(|ask| {
        let mut begun = Some(begun.clone());
        scope.spawn(move || {
            client.ask_while(ask, |_| {
                if let Some(begun) = begun.take() {
                    // Nothing waits any longer when another stream has failed.
                    let _ = begun.send(());
                }
                ControlFlow::Continue(())
            })
        })
    });
    (threads.collect(), begins)
}

/// Fills the places and the queue, and sends more.
pub(super) fn too_many(contender: &Contender, setup: &Setup, seed: u64) -> Found {
    let queue = setup.queue.context("a server with a queue")?;
    let server = contender.start(setup)?;
    let n_requests = setup.parallel + queue + 10;
    let asks: Vec<Ask> = (0..n_requests).map(|idx| ask(seed, idx, 16, 2 * GOOD_TOKENS)).collect();
    let client = &server.client.limited(REQUEST_LIMIT);
    let answers: Vec<_> = thread::scope(|scope| {
        let (threads, _) = streams(scope, client, &asks);
        threads.into_iter().map(joined).collect()
    });
    let (mut whole, mut refused) = (0, 0);
    let mut slowest = Duration::ZERO;
    for answer in answers {
        match answer {
            Ok(_) => whole += 1,
            Err(Failure::Status { status: 429, retry_after: Some(seconds), after, .. }) => {
                ensure!(seconds.parse::<u32>().is_ok(), "Retry-After: {seconds}");
                refused += 1;
                slowest = slowest.max(after);
            }
            Err(Failure::Status { status: 429, .. }) => bail!("429 without Retry-After"),
            Err(failure) => bail!("{failure}"),
        }
    }
    ensure!(refused > 0, "none of {n_requests} requests was refused");
    ensure!(whole >= setup.parallel, "only {whole} of {n_requests} requests were answered");
    ensure!(slowest < REFUSAL_LIMIT, "a request was refused after {slowest:?} only");
    Gauges::wait_idle(client)?;
    server.stop()?;
    Ok(format!("{whole} answered, {refused} refused within {} ms", slowest.as_millis()))
}

/// Sends more at once than the key-value cache holds. Some lose their place for a while, and all get
/// the answers that they get alone.
pub(super) fn cache_exhausted(contender: &Contender, setup: &Setup, seed: u64) -> Found {
    let mut contender = contender.clone();
    contender.extra.extend(["--kv-tokens".to_owned(), CROWD_CACHE.to_string()]);
    let (parallel, queue) = (CROWD, Some(2 * CROWD));
    let setup = Setup { parallel, queue, request_len: CROWD_CACHE, ..setup.clone() };
    let server = contender.start(&setup)?;
    let asks: Vec<Ask> =
        (0..CROWD).map(|idx| ask(seed, idx, CROWD_PROMPT, 2 * GOOD_TOKENS)).collect();
    let client = &server.client.limited(REQUEST_LIMIT);
    let alone: Vec<Reply> = asks.iter().map(|ask| client.ask(ask)).collect::<Result<_, _>>()?;
    let together: Vec<Reply> = thread::scope(|scope| {
        let (threads, _) = streams(scope, client, &asks);
        threads.into_iter().map(joined).collect::<Result<_, _>>()
    })?;
    for (alone, together) in alone.iter().zip(&together) {
        if let Some(difference) = text_difference(&together.text, &alone.text) {
            bail!("{difference}");
        }
    }
    Gauges::wait_idle(client)?;
    let n_preempted = metrics::preemptions(client)?;
    ensure!(n_preempted > 0.0, "the cache was never short");
    server.stop()?;
    Ok(format!("{CROWD} answers as alone, {n_preempted} preemptions"))
}

/// Deletes the file of the model that is served.
pub(super) fn file_deleted(contender: &Contender, setup: &Setup, seed: u64) -> Found {
    let dir = tempfile::tempdir()?;
    let name = setup.model.file_name().context("a file of a model")?;
    let model = dir.path().join(name);
    fs::copy(&setup.model, &model).with_context(|| model.display().to_string())?;
    let server = contender.start(&Setup { model: model.clone(), ..setup.clone() })?;
    let ask = ask(seed, 0, 64, GOOD_TOKENS);
    let client = server.client.limited(REQUEST_LIMIT);
    let before = client.ask(&ask)?;
    fs::remove_file(&model).with_context(|| model.display().to_string())?;
    let other = Ask::greedy(Api::Completions, "", "Something else", GOOD_TOKENS);
    client.ask(&other)?;
    let after = client.ask(&ask)?;
    if let Some(difference) = text_difference(&after.text, &before.text) {
        bail!("{difference}");
    }
    server.stop()?;
    Ok("the same answer afterwards".to_owned())
}

/// Ends the server while streams run: they are finished, new requests are not taken, and the exit
/// status is zero.
pub(super) fn terminated(contender: &Contender, setup: &Setup, seed: u64) -> Found {
    let mut server = contender.start(setup)?;
    let asks: Vec<Ask> =
        (0..setup.parallel).map(|idx| ask(seed, idx, 16, 4 * GOOD_TOKENS)).collect();
    let client = server.client.limited(REQUEST_LIMIT);
    let (answers, late) = thread::scope(|scope| -> Result<_> {
        let (threads, begins) = streams(scope, &client, &asks);
        for _ in &asks {
            begins.recv_timeout(EXIT_LIMIT).context("a stream did not begin")?;
        }
        server.terminate()?;
        thread::sleep(Duration::from_millis(200));
        let late = client.ask(&asks[0]);
        Ok((threads.into_iter().map(joined).collect::<Vec<_>>(), late))
    })?;
    for answer in answers {
        let reply = answer.map_err(|failure| anyhow::anyhow!("a running stream: {failure}"))?;
        ensure!(reply.tokens() == 4 * GOOD_TOKENS, "a stream ended after {}", reply.tokens());
    }
    let late = match late {
        Ok(_) => bail!("a request that came after the signal was answered"),
        Err(Failure::Status { status, .. }) if status != 503 && status != 429 => {
            bail!("a request that came after the signal got {status}")
        }
        Err(Failure::Status { status, .. }) => format!("met by {status}"),
        Err(_) => "refused".to_owned(),
    };
    let start = Instant::now();
    let status = server.wait(EXIT_LIMIT)?;
    ensure!(status.success(), "the server exited with {status}: {}", server.last_line());
    Ok(format!(
        "{} streams finished, a later request was {late}, exit status 0 {:.1} s after the last \
         answer",
        asks.len(),
        start.elapsed().as_secs_f64()
    ))
}
