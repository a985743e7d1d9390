//! Bodies: how many bytes of them there is room for, and what may be in them.

use super::common::{Answer, CONTEXT, TestServer};
use realizar_runtime::engine::EngineOptions;
use realizar_server::ServerConfig;
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn server(change: impl FnOnce(&mut ServerConfig)) -> TestServer {
    TestServer::with(change, EngineOptions::default())
}

fn code(answer: &Answer) -> (u16, Value) {
    (answer.status, answer.json()["error"]["code"].clone())
}

/// The room of the servers below, in bytes.
const LIMIT: usize = 1 << 20;

/// A server with room for one body of that size, for which others wait a little: without that, a
/// body that is still arriving could be the one that is refused.
fn server_with_room() -> TestServer {
    server(|config| {
        config.limits.body_bytes = LIMIT;
        config.limits.bodies_bytes = LIMIT;
        config.room_timeout = Duration::from_secs(1);
        // Bodies that have begun stay for the whole test.
        config.body_stall_timeout = Duration::from_secs(60);
    })
}

/// A connection on which `n_bytes` of a body of that size have been sent.
fn begin_body(server: &TestServer, more: &str, n_bytes: usize) -> TcpStream {
    let mut connection = server.connect();
    let head = format!(
        "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {LIMIT}\r\n{more}\r\n"
    );
    connection.write_all(head.as_bytes()).expect("write");
    connection.write_all(&vec![b' '; n_bytes]).expect("write");
    connection
}

#[test]
fn large_bodies_have_limited_room_together() {
    let server = server_with_room();
    let large = json!({"content": "a".repeat(LIMIT / 2)});
    assert_eq!(server.post("/tokenize", &large).status, 200);
    let start = Instant::now();
    // The body that is refused may be the one that is still arriving, beside which there is room.
    let (slow, refused) = loop {
        // A body without its last byte.
        let slow = begin_body(&server, "", LIMIT - 1);
        let answer = server.post("/tokenize", &large);
        if answer.status != 200 {
            break (slow, answer);
        }
        assert!(start.elapsed() < Duration::from_secs(60), "there is room for both");
    };
    assert_eq!(code(&refused), (503, json!("too_many_bytes")));
    assert_eq!(refused.header("retry-after"), Some("1"));
    // Small ones need no room.
    assert_eq!(server.ok("/tokenize", &json!({"content": "ab"}))["count"], 2);
    drop(slow);
    let start = Instant::now();
    while server.post("/tokenize", &large).status != 200 {
        assert!(start.elapsed() < Duration::from_secs(60), "the room is not given back");
    }
}

#[test]
fn bodies_of_one_client_leave_room_for_those_of_others() {
    let server = server(|config| {
        config.connections.trusted_proxies = vec!["127.0.0.1/32".parse().expect("a network")];
        config.limits.body_bytes = LIMIT;
        config.limits.bodies_bytes = 3 * LIMIT;
        config.room_timeout = Duration::from_secs(1);
    });
    let large = json!({"content": "a".repeat(LIMIT / 2)}).to_string();
    let from = |client: &str| {
        let headers = [("content-type", "application/json"), ("x-forwarded-for", client)];
        server.request("POST", "/tokenize", &headers, &large)
    };
    let begin = |client: &str| {
        let more = format!("x-forwarded-for: {client}\r\n");
        begin_body(&server, &more, LIMIT - 1)
    };
    let start = Instant::now();
    // The body that is refused may be one that is still arriving, beside which there is room.
    let refused = loop {
        let slow = [begin("192.0.2.1"), begin("192.0.2.1")];
        let own = from("192.0.2.1");
        assert_eq!(from("192.0.2.2").status, 200);
        drop(slow);
        if own.status != 200 {
            break own;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "there is room for all");
    };
    assert_eq!(code(&refused), (503, json!("too_many_bytes")));
}

#[test]
fn a_body_that_stalls_is_given_up() {
    let server = server(|config| config.body_stall_timeout = Duration::from_millis(20));
    let mut slow = begin_body(&server, "", 100);
    let mut answer = [0; 12];
    slow.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 408");
}

#[test]
fn bodies_have_limited_numbers_of_values() {
    let server = server(|config| config.limits.values = 100);
    let messages = |n: usize| vec![json!({"role": "user", "content": "a"}); n];
    let chat = |n| json!({"model": "tiny", "max_tokens": 1, "messages": messages(n)});
    let input = |n| json!({"model": "tiny", "max_output_tokens": 1, "input": messages(n)});
    for (path, few, many) in [
        ("/v1/chat/completions", chat(20), chat(40)),
        ("/v1/messages", chat(20), chat(40)),
        ("/v1/responses", input(20), input(40)),
        ("/apply-template", chat(20), chat(40)),
    ] {
        let answer = server.post(path, &few);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let answer = server.post(path, &many);
        assert_eq!(answer.status, 413, "{path}: {}", answer.body);
        assert!(answer.body.contains("more JSON values than the 100 allowed"), "{}", answer.body);
    }
    // Fields that nothing reads count as well, and token ids do not where they are ids.
    let ask = |more: &str, n: usize| json!({"prompt": [97], "max_tokens": 1, more: vec![97; n]});
    assert_eq!(
        code(&server.post("/v1/completions", &ask("x", 200))),
        (413, json!("body_too_large"))
    );
    let ids = json!({"prompt": vec![97; 200], "max_tokens": 1});
    assert_eq!(server.ok("/v1/completions", &ids)["usage"]["prompt_tokens"], 200);
    assert_eq!(server.post("/v1/responses", &ask("input", 200)).status, 413);
}

#[test]
fn lists_and_texts_of_a_request_are_limited() {
    let server = server(|_| {});
    let check = |field: &str, most: Value, more: Value, param: &str| {
        let ask = |value| json!({"prompt": "a", "max_tokens": 1, field: value});
        let answer = server.post("/v1/completions", &ask(most));
        assert_eq!(answer.status, 200, "{field}: {}", answer.body);
        let answer = server.post("/v1/completions", &ask(more));
        assert_eq!(answer.status, 400, "{field}: {}", answer.body);
        assert_eq!(answer.json()["error"]["param"], param, "{}", answer.body);
    };
    let texts = |n: usize, len: usize| {
        json!((0..n).map(|i| format!("{i:\u{20}>len$}")).collect::<Vec<_>>())
    };
    check("stop", texts(64, 1024), texts(65, 1024), "stop");
    check("stop", json!("a".repeat(1024)), json!("a".repeat(1025)), "stop[0]");
    check("dry_sequence_breakers", texts(64, 64), texts(65, 64), "dry_sequence_breakers");
    check("dry_sequence_breakers", texts(1, 64), texts(2, 65), "dry_sequence_breakers[0]");
    check("stop_token_ids", json!(vec![5; 1024]), json!(vec![5; 1025]), "stop_token_ids");
    let vocab = server.state.models().get("tiny").expect("the model").engine.model().vocab_size();
    let biases = |n: usize| json!(vec![json!([5, 1]); n]);
    check("logit_bias", biases(vocab), biases(vocab + 1), "logit_bias");
    let bias = |len: usize| json!({"a".repeat(len): 1});
    check("logit_bias", bias(1 << 14), bias((1 << 14) + 1), "logit_bias");
}

#[test]
fn pieces_of_long_texts_come_whole() {
    let server = server(|_| {});
    let text = "ab\"\n".repeat(3000);
    let body = json!({"content": text, "with_pieces": true, "return_token_strs": true});
    let answer = server.ok("/tokenize", &body);
    let tokens = answer["tokens"].as_array().expect("tokens");
    let pieces: String = tokens.iter().map(|t| t["piece"].as_str().expect("a text")).collect();
    let strings = answer["token_strs"].as_array().expect("texts");
    let joined: String = strings.iter().map(|s| s.as_str().expect("a text")).collect();
    assert_eq!((&pieces, &joined), (&text, &text));
    assert_eq!((answer["count"].as_u64(), tokens.len()), (Some(12000), 12000));
    assert_eq!(answer["max_model_len"], CONTEXT);
    let plain = server.ok("/tokenize", &json!({"content": text}));
    let ids: Vec<&Value> = tokens.iter().map(|token| &token["id"]).collect();
    assert_eq!(json!(ids), plain["tokens"]);
    assert_eq!(plain["token_strs"], Value::Null);
    let empty = server.ok("/tokenize", &json!({"content": ""}));
    assert_eq!((&empty["count"], &empty["tokens"]), (&json!(0), &json!([])));
}

#[test]
fn prompts_that_cannot_fit_are_refused_before_they_are_encoded() {
    let server = server(|_| {});
    // The longest token of the tiny vocabulary stands for far fewer characters.
    let long = "a".repeat(32 * CONTEXT as usize);
    for (path, body, param) in [
        ("/v1/completions", json!({"prompt": long}), "prompt"),
        ("/v1/completions", json!({"prompt": "a", "suffix": long}), "prompt"),
        ("/v1/completions", json!({"prompt": ["a", long]}), "prompt"),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": long}]}),
            "messages",
        ),
    ] {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{path}: {}", answer.body);
        let error = &answer.json()["error"];
        assert_eq!(
            (&error["code"], &error["param"]),
            (&json!("context_length_exceeded"), &json!(param))
        );
        assert!(answer.body.contains("the prompt has at least"), "{}", answer.body);
    }
    // What is only tokenized has no context to fit.
    let count = server.ok("/tokenize", &json!({"content": long}))["count"].clone();
    assert_eq!(count, long.len());
}

#[test]
fn errors_do_not_repeat_what_is_long() {
    let server = server(|_| {});
    let long = "a\u{e9}".repeat(1 << 16);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "a", "model": long})),
        ("/v1/completions", json!({"prompt": "a", "response_format": {"type": long}})),
        ("/apply-template", json!({"messages": [{"role": long, "content": "a"}]})),
        ("/v1/messages", json!({"model": long, "max_tokens": 1, "messages": []})),
    ] {
        let answer = server.post(path, &body);
        assert!((400..500).contains(&answer.status), "{path}: {}", answer.status);
        assert!(answer.body.len() < 1 << 13, "{path}: {} bytes", answer.body.len());
    }
}

#[test]
fn memory_is_given_back_after_large_requests() {
    static GIVEN: AtomicUsize = AtomicUsize::new(0);
    let server = server(|config| {
        config.give_back_memory = Some(|| {
            GIVEN.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(server.ok("/tokenize", &json!({"content": "ab"}))["count"], 2);
    server.ok("/tokenize", &json!({"content": "a".repeat(1 << 16)}));
    let start = Instant::now();
    while GIVEN.load(Ordering::Relaxed) == 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "no memory is given back");
        std::thread::yield_now();
    }
    assert_eq!(GIVEN.load(Ordering::Relaxed), 1);
}

#[test]
fn bodies_of_many_values_take_more_room() {
    let server = server_with_room();
    // Half of the room is taken by a body of which half came.
    let _slow = begin_body(&server, "", LIMIT / 2);
    let few = json!({"content": "ab", "x": vec![0; 100]});
    let many = json!({"content": "ab", "x": vec![0; 3000]});
    let start = Instant::now();
    while server.post("/tokenize", &many).status == 200 {
        assert!(start.elapsed() < Duration::from_secs(60), "there is room for both");
    }
    assert_eq!(code(&server.post("/tokenize", &many)), (503, json!("too_many_bytes")));
    assert_eq!(server.post("/tokenize", &few).status, 200);
}
