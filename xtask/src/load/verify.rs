//! Answers under load: a mix of requests that arrive in bursts, each compared with what the same
//! request gets when it is alone on a fresh server that keeps no prefixes.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::Value;

use super::client::{Client, Failure, Reply, drive, joined};
use super::metrics;
use super::server::{Contender, Setup};
use super::workload::{Api, Ask, Dice, text};
use super::{Args, MAX_STREAMS};

/// Tokens of prompts, without what they share.
const PROMPTS: &[usize] = &[1, 8, 31, 32, 33, 64, 127, 200, 400];
/// Tokens that requests generate at most.
const ANSWERS: &[usize] = &[1, 2, 16, 48, 96];
/// Tokens of the beginnings that requests may share.
const SHARED: &[usize] = &[40, 300, 600];

/// Compares, prints what differs, and returns whether nothing does.
pub(super) fn run(
    args: &Args,
    contender: &Contender,
    model: &Path,
    n_requests: usize,
) -> Result<bool> {
    let label = &contender.label;
    let asks = asks(args.seed, n_requests);
    let arrivals = arrivals(args.seed, n_requests);
    let longest = SHARED.iter().chain(PROMPTS).max().copied().unwrap_or(0)
        + 2 * PROMPTS.iter().max().copied().unwrap_or(0);
    let loaded = Setup {
        model: model.to_owned(),
        threads: args.threads()?,
        parallel: args.parallel,
        request_len: longest * 5 / 4 + 256,
        queue: Some(n_requests),
        prefix_cache: true,
    };
    let server = contender.start(&loaded)?;
    let start = Instant::now();
    let busy = send(&server.client, &asks, &arrivals);
    println!("{label}: {n_requests} requests in bursts took {:.1?}", start.elapsed());
    if contender.is_ours() {
        println!("{label}: {} preemptions", metrics::preemptions(&server.client)?);
    }
    server.stop()?;

    let server = contender.start(&Setup { prefix_cache: false, ..loaded })?;
    let (wall, alone) = drive(&server.client, 1, &asks);
    println!("{label}: one after the other they took {wall:.1?}");
    server.stop()?;

    let mut n_wrong = 0;
    let mut n_tokens = 0;
    let mut n_cached = 0;
    for (idx, (busy, alone)) in busy.iter().zip(&alone).enumerate() {
        n_tokens += busy.as_ref().map_or(0, Reply::tokens);
        n_cached += busy.as_ref().ok().and_then(|r| r.usage).map_or(0, |usage| usage.cached);
        if let Some(difference) = difference(busy, alone) {
            n_wrong += 1;
            println!("{label}: request {idx} ({}): {difference}", about(&asks[idx]));
        }
    }
    println!(
        "{label}: {n_wrong} of {n_requests} answers differ; {n_tokens} tokens were generated, and \
         {n_cached} tokens of prompts came from the cache"
    );
    Ok(n_wrong == 0)
}

/// Requests of all kinds: greedy and seeded sampling, streams and whole answers, both APIs, with
/// and without log-probabilities, beginnings that many share, and prompts that continue from others.
fn asks(seed: u64, n: usize) -> Vec<Ask> {
    let mut dice = Dice::new(seed, 0);
    let shared: Vec<String> = SHARED.iter().map(|&len| text(&mut dice, len)).collect();
    let mut prompts: Vec<(usize, String)> = Vec::new();
    let mut asks = Vec::new();
    for _ in 0..n {
        let mut prompt = {
            let len = dice.pick(PROMPTS);
            text(&mut dice, len)
        };
        // An earlier prompt up to some word, or all of it, and then something new.
        let mut beginning =
            if dice.below(2) == 0 { SHARED.len() } else { dice.below(SHARED.len()) };
        if !prompts.is_empty() && dice.below(4) == 0 {
            let (shared, earlier) = &prompts[dice.below(prompts.len())];
            let words: Vec<&str> = earlier.split(' ').collect();
            let kept = words[..1 + dice.below(words.len())].join(" ");
            let added = text(&mut dice, 24);
            (beginning, prompt) = (*shared, format!("{kept} {added}"));
            prompt = prompt.split(' ').take(400).collect::<Vec<_>>().join(" ");
        }
        let api = dice.pick(&[Api::Completions, Api::Chat]);
        let before = shared.get(beginning).map_or("", String::as_str);
        let mut ask = Ask::greedy(api, before, &prompt, dice.pick(ANSWERS));
        prompts.push((beginning, prompt));
        if dice.below(2) == 0 {
            ask = ask.with("temperature", dice.pick(&[0.5, 0.8, 1.2]));
            ask = ask.with("seed", dice.below(1 << 31));
            ask = ask.with("top_p", dice.pick(&[0.8, 0.95, 1.0]));
            if dice.below(4) == 0 {
                ask = ask.with("frequency_penalty", 0.5).with("presence_penalty", 0.25);
            }
        }
        if dice.below(2) == 0 {
            let top = dice.below(4);
            ask = match api {
                Api::Completions => ask.with("logprobs", top),
                Api::Chat => ask.with("logprobs", true).with("top_logprobs", top),
            };
        }
        if dice.below(3) == 0 {
            ask = ask.with("ignore_eos", false);
        }
        if dice.below(8) == 0 {
            ask = ask.with("stop", [" the", " day"].as_slice());
        }
        if dice.below(3) == 0 {
            ask = ask.with("stream", false).without("stream_options");
        }
        asks.push(ask);
    }
    asks
}

/// When each request is sent: bursts of up to 24 with pauses of up to a second.
fn arrivals(seed: u64, n: usize) -> Vec<Duration> {
    let mut dice = Dice::new(seed, 1);
    let mut at = Duration::ZERO;
    let mut arrivals = Vec::new();
    while arrivals.len() < n {
        for _ in 0..=dice.below(24) {
            arrivals.push(at);
            at += Duration::from_millis(dice.below(5) as u64);
        }
        at += Duration::from_millis(dice.below(1000) as u64);
    }
    arrivals.truncate(n);
    arrivals
}

/// Sends each request at its time, or as soon as one of the threads is free.
fn send(client: &Client, asks: &[Ask], arrivals: &[Duration]) -> Vec<Result<Reply, Failure>> {
    let next = AtomicUsize::new(0);
    let start = Instant::now();
    let work = || {
        let mut answers = Vec::new();
        loop {
            let idx = next.fetch_add(1, Ordering::Relaxed);
            let Some(ask) = asks.get(idx) else { return answers };
            thread::sleep(arrivals[idx].saturating_sub(start.elapsed()));
            answers.push((idx, client.ask(ask)));
        }
    };
    let mut answers: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..MAX_STREAMS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(joined).collect()
    });
    answers.sort_by_key(|(idx, _)| *idx);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// What is different, in words.
fn difference(busy: &Result<Reply, Failure>, alone: &Result<Reply, Failure>) -> Option<String> {
    let (busy, alone) = match (busy, alone) {
        (Ok(busy), Ok(alone)) => (busy, alone),
        (Err(failure), Ok(_)) => return Some(format!("failed under load: {failure}")),
        (_, Err(failure)) => return Some(format!("failed alone: {failure}")),
    };
    if let Some(place) = text_difference(&busy.text, &alone.text) {
        return Some(place);
    }
    if busy.finish != alone.finish {
        return Some(format!("ended by {:?} under load, {:?} alone", busy.finish, alone.finish));
    }
    let counts = |reply: &Reply| reply.usage.map(|usage| (usage.prompt, usage.completion));
    if counts(busy) != counts(alone) {
        return Some(format!("usage {:?} under load, {:?} alone", busy.usage, alone.usage));
    }
    if busy.logprobs != alone.logprobs {
        let mut pairs = busy.logprobs.iter().zip(&alone.logprobs);
        let none = (&Value::Null, &Value::Null);
        let at = pairs.clone().take_while(|(a, b)| a == b).count();
        let (a, b) = pairs.find(|(a, b)| a != b).unwrap_or(none);
        return Some(format!("at token {at} the log-probabilities are {a} under load, {b} alone"));
    }
    None
}

/// Where two texts begin to differ, in words.
pub(super) fn text_difference(busy: &str, alone: &str) -> Option<String> {
    if busy == alone {
        return None;
    }
    let same = busy.chars().zip(alone.chars()).take_while(|(a, b)| a == b).count();
    let rest = |text: &str| text.chars().skip(same).take(40).collect::<String>();
    let (busy, alone) = (rest(busy), rest(alone));
    Some(format!("after {same} equal characters {busy:?} under load, {alone:?} alone"))
}

/// A request in a few words.
fn about(ask: &Ask) -> String {
    let field = |key: &str| ask.body.get(key).map_or("-".to_owned(), ToString::to_string);
    format!(
        "{}, max_tokens {}, temperature {}, stream {}, logprobs {}",
        ask.api.path(),
        field("max_tokens"),
        field("temperature"),
        field("stream"),
        field("logprobs")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::client::Usage;
    use serde_json::json;

    #[test]
    fn requests_and_arrivals_are_the_same_every_time_and_of_all_kinds() {
        let all = asks(5, 200);
        assert_eq!(all, asks(5, 200));
        assert_ne!(all, asks(6, 200));
        let count = |key: &str, value: Value| all.iter().filter(|a| a.body[key] == value).count();
        for (key, value) in
            [("stream", json!(false)), ("stream", json!(true)), ("temperature", json!(0))]
        {
            let n = count(key, value.clone());
            assert!((40..=180).contains(&n), "{key} {value}: {n}");
        }
        assert!(all.iter().filter(|a| a.api == Api::Chat).count() > 60);
        let arrivals = arrivals(5, 200);
        assert_eq!(arrivals.len(), 200);
        assert!(arrivals.windows(2).all(|pair| pair[0] <= pair[1]));
    }

    #[test]
    fn every_kind_of_difference_is_told() {
        let reply = Reply {
            text: "one two".to_owned(),
            finish: "stop".to_owned(),
            logprobs: vec![json!(-0.5), json!(-1.5)],
            usage: Some(Usage { prompt: 3, completion: 2, cached: 0 }),
            ..Reply::default()
        };
        let check = |change: &dyn Fn(&mut Reply), want: Option<&str>| {
            let mut busy = reply.clone();
            change(&mut busy);
            let got = difference(&Ok(busy), &Ok(reply.clone()));
            match want {
                None => assert_eq!(got, None),
                Some(want) => assert!(got.as_ref().is_some_and(|g| g.contains(want)), "{got:?}"),
            }
        };
        check(&|_| {}, None);
        check(&|r| r.usage = Some(Usage { prompt: 3, completion: 2, cached: 2 }), None);
        check(&|r| r.text = "one, two".to_owned(), Some("after 3 equal characters \", two\""));
        check(&|r| r.finish = "length".to_owned(), Some("ended by \"length\""));
        check(&|r| r.usage = None, Some("usage None"));
        check(
            &|r| r.logprobs[1] = json!(-1.25),
            Some("at token 1 the log-probabilities are -1.25"),
        );
        let failed = Err(Failure::Broken("gone".to_owned()));
        assert!(difference(&failed, &Ok(reply)).unwrap().contains("under load: gone"));
    }
}
