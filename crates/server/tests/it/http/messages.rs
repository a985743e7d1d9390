//! Anthropic's Messages API as agents use it.

use super::common::TestServer;
use serde_json::{Value, json};

const PATH: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

/// The first turn of an agent: its account in front, marks for a cache, a system message behind the
/// user's, and hints that have no effect here.
fn turn(account: &str) -> Value {
    let marked =
        |text: &str| json!({"type": "text", "text": text, "cache_control": {"type": "ephemeral"}});
    let tool = |name: &str| {
        json!({"name": name, "description": "Does something.", "input_schema": {
            "type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"],
        }})
    };
    json!({
        "model": "tiny",
        "max_tokens": 2,
        "system": [
            {"type": "text", "text": format!("x-anthropic-billing-header: {account};")},
            marked("You work in a folder with files of text, and you answer in few words."),
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Today is Monday."}, marked("What is here?")]},
            {"role": "system", "content": "There are two agents: a reader and a writer."},
        ],
        "tools": [tool("Read"), tool("Write")],
        "metadata": {"user_id": "{\"session_id\": \"1\"}"},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
    })
}

const HEADERS: [(&str, &str); 3] = [
    ("content-type", "application/json"),
    ("anthropic-version", "2023-06-01"),
    ("anthropic-beta", "some-feature-2026-01-01,another-2027-02-02"),
];

#[test]
fn conversations_of_several_accounts_share_their_beginning() {
    let server = TestServer::start();
    let usage = |account: &str| {
        let path = format!("{PATH}?beta=true");
        let answer = server.request("POST", &path, &HEADERS, &turn(account).to_string());
        assert_eq!(answer.status, 200, "{}", answer.body);
        let usage = answer.json()["usage"].clone();
        let tokens = |name: &str| usage[name].as_u64().expect("a number");
        (tokens("input_tokens"), tokens("cache_read_input_tokens"))
    };
    let (all, cached) = usage("cc_version=1; cc_conversation=a");
    assert_eq!(cached, 0);
    let same = usage("cc_version=1; cc_conversation=a");
    assert!(same.1 > 200, "{same:?}");
    assert_eq!(same.0 + same.1, all);
    assert_eq!(usage("cc_version=2; cc_conversation=another one"), same);
    // Anything else in front is read.
    let mut body = turn("");
    body["system"][0]["text"] = json!("Another beginning");
    let usage = server.ok(PATH, &body)["usage"].clone();
    let cached = usage["cache_read_input_tokens"].as_u64().expect("a number");
    assert!(cached < 32, "no more than the template's own beginning: {usage}");
}

#[test]
fn tokens_are_counted_whatever_their_number() {
    let server = TestServer::with_context(64);
    let body = |n: usize| json!({"model": "tiny", "messages": [{"role": "user", "content": "a".repeat(n)}]});
    let count = |n: usize| server.ok(COUNT, &body(n))["input_tokens"].as_u64().expect("a number");
    let empty = count(1) - 1;
    for n in [10, 64, 1000, 100_000] {
        assert_eq!(count(n), empty + n as u64);
    }
    // A message of this length is an error that says so.
    let mut message = body(1000);
    message["max_tokens"] = json!(1);
    let answer = server.post(PATH, &message);
    assert_eq!(answer.status, 400);
    let error = answer.json()["error"]["message"].to_string();
    assert!(error.contains("maximum context length is 64 tokens"), "{error}");
}

#[test]
fn conversations_that_the_vendor_began_are_continued() {
    let server = TestServer::start();
    let text = |text: &str| json!({"type": "text", "text": text});
    let document = json!({"type": "document", "title": "Notes",
        "source": {"type": "text", "media_type": "text/plain", "data": "Bring bread."}});
    let body = json!({
        "model": "tiny",
        "max_tokens": 1,
        "messages": [
            {"role": "user", "content": [document, text("What do I need?")]},
            {"role": "user", "content": "And what does it cost?"},
            {"role": "assistant", "content": [
                {"type": "redacted_thinking", "data": "c2VjcmV0"},
                text("I look it up."),
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "bread"}},
                {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [
                    {"type": "web_search_result", "title": "Bread", "url": "https://b.example",
                     "encrypted_content": "c2VjcmV0"}]},
                {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"command": "ls"}},
            ]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [
                {"type": "tool_reference", "tool_name": "price"}, text("2")]}]},
        ],
        "tools": [
            {"type": "bash_20250124", "name": "bash"},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
            {"name": "price", "input_schema": {"type": "object"}, "defer_loading": true},
        ],
    });
    let answer = server.ok(PATH, &body);
    assert_eq!(answer["usage"]["output_tokens"], 1, "{answer}");
    assert_eq!(server.ok(COUNT, &body)["input_tokens"], answer["usage"]["input_tokens"]);
}

#[test]
fn images_are_refused_by_name() {
    let server = TestServer::start();
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}});
    let body = json!({"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": [image]}]});
    let answer = server.post(PATH, &body);
    assert_eq!(answer.status, 400);
    let error = answer.json()["error"].clone();
    assert_eq!(error["type"], "invalid_request_error");
    let message = error["message"].as_str().expect("a message");
    assert!(
        message.starts_with("messages[0].content[0].type: a block of the type \"image\""),
        "{message}"
    );
}
