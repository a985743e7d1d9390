//! Clients that leave, queues that are full, answers that take too long, servers that end.

use super::common::{self, TestServer};
use realizar_runtime::engine::EngineOptions;
use serde_json::{Value, json};
use std::time::Duration;

const PATH: &str = "/v1/completions";

/// A request whose answer takes long.
fn long(stream: bool) -> Value {
    let max_tokens = common::CONTEXT - 100;
    json!({"prompt": "abc", "max_tokens": max_tokens, "ignore_eos": true, "stream": stream})
}

fn one_at_a_time(max_queue: usize) -> EngineOptions {
    EngineOptions { max_seqs: Some(1), max_queue, ..EngineOptions::default() }
}

#[test]
fn a_client_that_leaves_cancels_its_request() {
    let server = TestServer::start();
    for (n, stream) in [(1, true), (2, false)] {
        let mut open = server.open(PATH, &long(stream));
        if stream {
            assert!(open.next("data: ").is_some_and(|chunk| chunk.contains("text_completion")));
        }
        server.wait_until("it runs", |stats| stats.running == 1);
        drop(open);
        server.wait_until("it is cancelled", |stats| stats.finished.cancelled == n);
        server.wait_until("it runs no more", |stats| stats.running == 0);
    }
    let after = server.ok(PATH, &json!({"prompt": "abc", "max_tokens": 2, "ignore_eos": true}));
    assert_eq!(after["usage"]["completion_tokens"], 2);
}

#[test]
fn a_full_queue_refuses() {
    let server = TestServer::with(|_| {}, one_at_a_time(1));
    let running = server.open(PATH, &long(false));
    server.wait_until("one runs", |stats| stats.running == 1);
    let waiting = server.open(PATH, &long(false));
    server.wait_until("one waits", |stats| stats.waiting == 1 && stats.waiting_tokens == 4);
    let load = server.get("/get_load").json();
    assert_eq!((&load[0]["num_reqs"], &load[0]["num_waiting_reqs"]), (&json!(2), &json!(1)));
    // A page of the one that runs, and the prompt of the one that waits.
    assert!(load[0]["num_tokens"].as_u64().is_some_and(|n| n >= 32 + 4), "{load}");
    let answer = server.post(PATH, &json!({"prompt": "abc"}));
    assert_eq!(answer.status, 429, "{}", answer.body);
    assert_eq!(answer.json()["error"]["type"], "rate_limit_error");
    let after = answer.header("retry-after").and_then(|seconds| seconds.parse::<u64>().ok());
    assert!(after.is_some_and(|seconds| seconds >= 1), "{answer:?}");
    let streamed = server.post(PATH, &json!({"prompt": "abc", "stream": true}));
    assert_eq!(streamed.status, 429, "a stream is refused with a status, too");
    drop((running, waiting));
    server.wait_until("both are cancelled", |stats| stats.finished.cancelled == 2);
}

#[test]
fn a_stream_that_nobody_reads_is_cancelled() {
    let bound = |config: &mut realizar_server::ServerConfig| {
        config.connections.backlog_bytes = 1000;
    };
    let server = TestServer::with(bound, EngineOptions::default());
    // More than the system keeps of a connection.
    let mut ask = long(true);
    (ask["logprobs"], ask["n"]) = (json!(20), json!(4));
    let mut stream = server.open(PATH, &ask);
    server.wait_until("it is cancelled", |stats| stats.finished.cancelled == 4);
    let is_error = |data: &String| data.contains("error");
    let last = std::iter::from_fn(|| stream.next("data: ")).find(is_error).expect("an error");
    let last: Value = serde_json::from_str(&last).expect("JSON");
    assert_eq!(last["error"]["code"], "slow_reader");
}

#[test]
fn a_connection_that_takes_nothing_is_closed() {
    let stall = |config: &mut realizar_server::ServerConfig| {
        config.connections.stall_timeout = Duration::from_millis(50);
    };
    let server = TestServer::with(stall, EngineOptions::default());
    let mut ask = long(true);
    (ask["logprobs"], ask["n"]) = (json!(20), json!(4));
    let stream = server.open(PATH, &ask);
    server.wait_until("it is cancelled", |stats| stats.finished.cancelled == 4);
    let rest = stream.rest();
    assert!(rest.contains("text_completion") && !rest.contains("[DONE]"));
}

#[test]
fn what_takes_too_long_is_ended() {
    let limit = |config: &mut realizar_server::ServerConfig| {
        config.request_timeout = Some(Duration::from_millis(50));
    };
    let server = TestServer::with(limit, EngineOptions::default());
    let answer = server.post(PATH, &long(false));
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (504, &json!("timeout")));
    let events = server.stream(PATH, &long(true));
    let last: Value = serde_json::from_str(events.last().expect("an event")).expect("JSON");
    assert_eq!(last["error"]["code"], "timeout");
    server.wait_until("both are cancelled", |stats| stats.finished.cancelled == 2);
}

#[test]
fn a_stream_without_news_says_that_it_is_alive() {
    let often = |config: &mut realizar_server::ServerConfig| {
        config.keep_alive = Duration::from_millis(1);
    };
    let server = TestServer::with(often, one_at_a_time(4));
    let first = server.open(PATH, &long(false));
    server.wait_until("one runs", |stats| stats.running == 1);
    let mut waiting = server.open(PATH, &long(true));
    assert_eq!(waiting.next(":").as_deref(), Some(""));
    drop(first);
    assert!(waiting.next("data: ").is_some());
}

#[test]
fn a_server_that_ends_tells_its_clients() {
    let mut server = TestServer::start();
    let mut stream = server.open(PATH, &long(true));
    assert!(stream.next("data: ").is_some());
    server.wait();
    let rest = stream.rest();
    assert!(rest.contains("the server is shutting down") && !rest.contains("[DONE]"), "{rest}");
    assert!(rest.contains("server_error"), "it is not the client's fault: {rest}");
}

#[test]
fn a_server_that_ends_refuses_with_a_status() {
    let mut server = TestServer::start();
    let open = server.open(PATH, &long(false));
    server.wait_until("it runs", |stats| stats.running == 1);
    server.wait();
    let rest = open.rest();
    assert!(rest.starts_with("HTTP/1.1 503 ") && rest.contains("shutting down"), "{rest}");
}

#[test]
fn a_server_that_ends_lets_answers_end_first() {
    let grace = |config: &mut realizar_server::ServerConfig| {
        config.shutdown_grace = Duration::from_secs(60);
    };
    let mut server = TestServer::with(grace, EngineOptions::default());
    let ask = json!({"prompt": "abc", "max_tokens": 300, "ignore_eos": true, "stream": true});
    let mut stream = server.open(PATH, &ask);
    assert!(stream.next("data: ").is_some());
    server.wait();
    assert!(stream.rest().contains("[DONE]"));
}
