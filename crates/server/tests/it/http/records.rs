//! What an observer sees of requests.

use super::common::{self, TestServer};
use realizar_runtime::engine::EngineOptions;
use realizar_server::{RequestObserver, RequestRecord};
use serde_json::json;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Debug)]
struct Told(Mutex<Sender<RequestRecord>>);

impl RequestObserver for Told {
    fn ended(&self, record: RequestRecord) {
        self.0.lock().expect("no panic").send(record).expect("the test listens");
    }
}

fn server() -> (TestServer, Receiver<RequestRecord>) {
    let (sender, records) = channel();
    let observer = Arc::new(Told(Mutex::new(sender)));
    let change = |config: &mut realizar_server::ServerConfig| config.observer = Some(observer);
    (TestServer::with(change, EngineOptions::default()), records)
}

fn next(records: &Receiver<RequestRecord>) -> RequestRecord {
    records.recv_timeout(Duration::from_secs(60)).expect("a record")
}

#[test]
fn requests_are_told_of_when_they_are_over() {
    let (server, records) = server();
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let headers = [
        ("content-type", "application/json"),
        ("x-request-id", "mine"),
        ("traceparent", parent),
        ("tracestate", "a=b"),
    ];
    let path = "/v1/completions";
    // Of the second prompt all but the last token is in the cache.
    for (stream, cached) in [(false, 0), (true, 3)] {
        let ask = json!({"model": "small", "prompt": "abc", "max_tokens": 5, "ignore_eos": true,
                         "n": 2, "stream": stream});
        let answer = server.request("POST", path, &headers, &ask.to_string());
        assert_eq!(answer.status, 200, "{}", answer.body);
        let record = next(&records);
        assert_eq!((&*record.id, &*record.method, &*record.path), ("mine", "POST", path));
        assert_eq!(record.route.as_deref(), Some(path));
        assert_eq!(record.traceparent.as_deref(), Some(parent));
        assert_eq!(record.tracestate.as_deref(), Some("a=b"));
        assert_eq!((record.status, record.error), (Some(200), None));
        assert_eq!(record.model.as_deref(), Some("tiny"));
        let tokens = (record.input_tokens, record.cached_tokens, record.output_tokens);
        assert_eq!(tokens, (4, cached, 10));
        assert_eq!(record.finish_reasons, ["length", "length"]);
        assert!(record.time_to_first_token.is_some_and(|time| time <= record.duration));
    }
    server.add_embedder();
    let texts = json!({"model": "vectors", "input": ["abc", "abc"]});
    assert_eq!(server.ok("/v1/embeddings", &texts)["usage"]["prompt_tokens"], 8);
    let record = next(&records);
    assert_eq!((record.model.as_deref(), record.input_tokens), (Some("vectors"), 8));
    let answer = server.get("/v1/models/org/tiny");
    let record = next(&records);
    assert_eq!(answer.header("x-request-id"), Some(&*record.id));
    assert_eq!(record.route.as_deref(), Some("/v1/models/{*name}"));
    assert_eq!((record.traceparent, record.output_tokens), (None, 0));
    server.get("/nothing");
    let record = next(&records);
    assert_eq!((record.route, record.status), (None, Some(404)));
}

#[test]
fn failures_and_clients_that_leave_are_told_of() {
    let (server, records) = server();
    let body = json!({"prompt": "abc", "max_tokens": -2});
    assert_eq!(server.post("/v1/completions", &body).status, 400);
    assert_eq!(next(&records).status, Some(400));
    let ask = json!({"prompt": "abc", "max_tokens": common::CONTEXT - 100, "ignore_eos": true,
                     "stream": true});
    let mut stream = server.open("/v1/completions", &ask);
    assert!(stream.next("data: ").is_some());
    drop(stream);
    let record = next(&records);
    assert_eq!((record.status, record.error), (Some(200), None));
    assert!(record.output_tokens > 0 && record.finish_reasons.is_empty());
    let mut server = server;
    let mut stream = server.open("/v1/completions", &ask);
    assert!(stream.next("data: ").is_some());
    server.wait();
    let record = next(&records);
    assert_eq!((record.status, record.error.as_deref()), (Some(200), Some("unavailable")));
}
