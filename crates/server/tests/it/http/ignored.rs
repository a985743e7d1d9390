//! What is left out or ignored on purpose: the table, its document, and the requests with its rows.

use super::common::TestServer;
use realizar_server::ignored::{Api, ROWS, document};
use serde_json::{Map, Value, json};
use std::path::Path;

/// A small request of an endpoint.
fn request(path: &str) -> Value {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let mut body = match path {
        "/v1/responses" => json!({"input": "hi", "max_output_tokens": 1}),
        "/api/generate" => json!({"prompt": "hi", "options": {"num_predict": 1}}),
        "/api/chat" => json!({"messages": messages, "options": {"num_predict": 1}}),
        _ => json!({"messages": messages, "max_tokens": 1}),
    };
    body["model"] = json!("tiny");
    body["stream"] = json!(false);
    body
}

/// Puts members into an object, and those of objects into these.
fn merge(into: &mut Value, members: Map<String, Value>) {
    for (name, value) in members {
        match (&mut into[&name], value) {
            (own @ Value::Object(_), Value::Object(value)) => merge(own, value),
            (own, value) => *own = value,
        }
    }
}

#[test]
fn every_row_is_answered() {
    let server = TestServer::start();
    for row in ROWS {
        for example in row.examples() {
            for path in row.api.paths() {
                let mut body = request(path);
                merge(&mut body, example.clone());
                server.ok(path, &body);
            }
        }
    }
}

#[test]
fn tools_that_are_left_out_are_not_in_the_prompt() {
    let server = TestServer::start();
    let count = |tools: Value| {
        let mut body = request("/v1/messages/count_tokens");
        body["tools"] = tools;
        server.ok("/v1/messages/count_tokens", &body)["input_tokens"].clone()
    };
    let own = json!({"name": "f", "input_schema": {"type": "object"}});
    let search = json!({"type": "web_search_20250305", "name": "web_search"});
    assert_eq!(count(json!([search, own])), count(json!([own])));
    assert_eq!(count(json!([search])), count(json!([])));
    assert_ne!(count(json!([own])), count(json!([])));
}

#[test]
fn other_values_are_refused() {
    let server = TestServer::start();
    for (api, members, param) in [
        (Api::Responses, json!({"tools": [{"type": "web_surf"}]}), "tools[0].type"),
        (
            Api::Messages,
            json!({"tools": [{"type": "web_search_1999", "name": "t"}]}),
            "tools[0].type",
        ),
        (Api::Chat, json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (Api::Ollama, json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
    ] {
        let path = api.paths()[0];
        let mut body = request(path);
        merge(&mut body, members.as_object().expect("members").clone());
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{path}: {}", answer.body);
        assert!(answer.body.contains(param), "{path}: {}", answer.body);
    }
}

#[test]
fn the_document_is_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ignored.md");
    let found = std::fs::read_to_string(path).expect("docs/ignored.md");
    assert!(
        found == document(),
        "run `cargo run -p realizar-server --example ignored > docs/ignored.md`"
    );
}
