//! Conversations of coding agents: the first request of each as it ships, in other words, and what follows.
//!
//! `fixtures/agents` has the requests, `fixtures/scripted` the models, which call the agent's shell in each turn of
//! the user and then say a sentence.

use super::common::TestServer;
use serde_json::{Value, json};
use std::path::Path;

/// The scripted answer after the call.
const ANSWER: &str = "The cup is on the table.";
/// The command of the scripted call.
const COMMAND: &str = "echo cup >> cups.txt";
/// The user's second request.
const AGAIN: &str = "Put another one there.";
/// A page of the prefix cache: a prompt that begins like another finds all but the last of it.
const PAGE: u64 = 32;

/// The agent's first request, for this model.
fn first_request(agent: &str, model: &str) -> Value {
    let file = format!("../../fixtures/agents/{agent}.json");
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
    let mut body: Value = serde_json::from_str(&text.expect("the fixture")).expect("JSON");
    assert_eq!(body["model"], "MODEL");
    body["model"] = json!(model);
    body
}

/// Appends to a list of the request.
fn push(body: &mut Value, list: &str, items: &[Value]) {
    body[list].as_array_mut().expect("a list").extend_from_slice(items);
}

/// Asserts that a prompt found what an earlier one of this length had left in the cache.
fn check_cached(cached: &Value, earlier: u64) {
    let cached = cached.as_u64().expect("a number");
    assert!(cached + PAGE >= earlier, "{cached} of {earlier} tokens were cached");
}

#[test]
fn codex_calls_its_shell_and_goes_on() {
    let server = TestServer::scripted("codex");
    let mut body = first_request("codex", "codex");
    let mut earlier = 0;
    for turn in 0..2 {
        let called = completed(&server, &body, earlier);
        let call = &called["output"][0];
        assert_eq!(
            (&call["type"], &call["name"]),
            (&json!("function_call"), &json!("exec_command"))
        );
        let arguments: Value =
            serde_json::from_str(call["arguments"].as_str().expect("text")).expect("JSON");
        assert_eq!(arguments, json!({"cmd": COMMAND}), "turn {turn}");
        earlier = called["usage"]["input_tokens"].as_u64().expect("a number");
        let result = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "Exit code: 0"});
        push(&mut body, "input", &[call.clone(), result]);

        let answered = completed(&server, &body, earlier);
        let message = &answered["output"][0];
        assert_eq!(message["content"][0]["text"], ANSWER, "{answered}");
        earlier = answered["usage"]["input_tokens"].as_u64().expect("a number");
        let again = json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": AGAIN}]});
        push(&mut body, "input", &[message.clone(), again]);
    }
}

/// The response that a stream of Responses ends with.
fn completed(server: &TestServer, body: &Value, earlier: u64) -> Value {
    let events = server.events("/v1/responses", body);
    let last = events.last().expect("events");
    assert_eq!(last["type"], "response.completed", "{last}");
    check_cached(&last["response"]["usage"]["input_tokens_details"]["cached_tokens"], earlier);
    last["response"].clone()
}

#[test]
fn claude_code_calls_its_shell_and_goes_on() {
    let server = TestServer::scripted("claude");
    let mut body = first_request("claude_code", "claude");
    let mut earlier = 0;
    for turn in 0..2 {
        // The billing block differs from conversation to conversation, and from turn to turn.
        body["system"][0]["text"] =
            json!(format!("x-anthropic-billing-header: cc_version={turn};"));
        let (call, prompt) = message(&server, &body, earlier);
        assert_eq!((&call["type"], &call["name"]), (&json!("tool_use"), &json!("Bash")));
        assert_eq!(call["input"]["command"], COMMAND, "turn {turn}");
        earlier = prompt;
        let result = json!({"type": "tool_result", "tool_use_id": call["id"], "content": "", "is_error": false});
        push(
            &mut body,
            "messages",
            &[
                json!({"role": "assistant", "content": [call]}),
                json!({"role": "user", "content": [result]}),
            ],
        );

        let (text, prompt) = message(&server, &body, earlier);
        assert_eq!(text, json!({"type": "text", "text": ANSWER}));
        earlier = prompt;
        let again =
            json!([{"type": "text", "text": AGAIN, "cache_control": {"type": "ephemeral"}}]);
        push(
            &mut body,
            "messages",
            &[
                json!({"role": "assistant", "content": [text]}),
                json!({"role": "user", "content": again}),
            ],
        );
    }
}

/// The only block of a streamed message, put together, and the tokens of the prompt.
fn message(server: &TestServer, body: &Value, earlier: u64) -> (Value, u64) {
    let events = server.events("/v1/messages?beta=true", body);
    let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
    let [start] = of("content_block_start")[..] else { panic!("one block: {events:?}") };
    let mut block = start["content_block"].clone();
    let deltas = of("content_block_delta");
    let texts =
        |key: &str| deltas.iter().filter_map(|d| d["delta"][key].as_str()).collect::<String>();
    if block["type"] == "text" {
        block["text"] = json!(texts("text"));
    } else {
        block["input"] = serde_json::from_str(&texts("partial_json")).expect("JSON");
    }
    let usage = &of("message_start")[0]["message"]["usage"];
    check_cached(&usage["cache_read_input_tokens"], earlier);
    let prompt = ["input_tokens", "cache_read_input_tokens"]
        .map(|key| usage[key].as_u64().expect("a number"));
    (block, prompt.iter().sum())
}

#[test]
fn opencode_calls_its_shell_and_goes_on() {
    let server = TestServer::scripted("opencode");
    let mut body = first_request("opencode", "opencode");
    let mut earlier = 0;
    for turn in 0..2 {
        let (called, prompt) = chat(&server, &body, earlier);
        let function = &called["tool_calls"][0]["function"];
        assert_eq!(function["name"], "bash", "{called}");
        let arguments: Value =
            serde_json::from_str(function["arguments"].as_str().expect("text")).expect("JSON");
        assert_eq!(arguments["command"], COMMAND, "turn {turn}");
        earlier = prompt;
        let id = &called["tool_calls"][0]["id"];
        let result = json!({"role": "tool", "tool_call_id": id, "content": "(no output)"});
        push(&mut body, "messages", &[called.clone(), result]);

        let (answered, prompt) = chat(&server, &body, earlier);
        assert_eq!(answered["content"], ANSWER);
        earlier = prompt;
        push(&mut body, "messages", &[answered, json!({"role": "user", "content": AGAIN})]);
    }
}

/// The streamed message of a chat completion, put together, and the tokens of the prompt.
fn chat(server: &TestServer, body: &Value, earlier: u64) -> (Value, u64) {
    let chunks = server.chunks("/v1/chat/completions", body);
    let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    let content: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
    let calls: Vec<&Value> =
        deltas.iter().map(|delta| &delta["tool_calls"][0]).filter(|c| c.is_object()).collect();
    let mut message = json!({"role": "assistant", "content": content});
    if let Some(first) = calls.first() {
        let arguments: String =
            calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
        let function = json!({"name": first["function"]["name"], "arguments": arguments});
        message["tool_calls"] =
            json!([{"id": first["id"], "type": "function", "function": function}]);
    }
    let usage = chunks.iter().rev().map(|chunk| &chunk["usage"]).find(|usage| usage.is_object());
    let usage = usage.expect("the request asks for usage");
    check_cached(&usage["prompt_tokens_details"]["cached_tokens"], earlier);
    (message, usage["prompt_tokens"].as_u64().expect("a number"))
}
