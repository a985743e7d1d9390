//! What is kept for later requests: responses, their items, and chat completions.

use super::common::{Answer, TestServer};
use realizar_runtime::engine::EngineOptions;
use serde_json::{Value, json};

/// A request for a response with these members.
fn ask(members: Value) -> Value {
    let mut body = json!({"model": "tiny", "max_output_tokens": 4, "temperature": 0});
    let Value::Object(members) = members else { panic!("members of an object") };
    for (key, value) in members {
        body[key] = value;
    }
    body
}

fn id(response: &Value) -> &str {
    response["id"].as_str().expect("an id")
}

fn with_key(server: &TestServer, key: &str, method: &str, path: &str, body: &str) -> Answer {
    let bearer = format!("Bearer {key}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    server.request(method, path, &headers, body)
}

fn delete(server: &TestServer, path: &str) -> Answer {
    server.request("DELETE", path, &[], "")
}

fn not_found(answer: &Answer, what: &str) {
    assert_eq!(answer.status, 404, "{}", answer.body);
    let body = answer.json();
    assert_eq!(body["error"]["code"], "not_stored");
    let message = body["error"]["message"].as_str().expect("a message");
    assert!(message.contains(what), "{message}");
}

/// The prompt of a conversation as tokens.
fn n_tokens(server: &TestServer, messages: Value) -> Value {
    let mut chat = json!({"model": "tiny"});
    chat["messages"] = messages;
    let ids = server.ok("/v1/chat/completions/render", &chat)["token_ids"].take();
    json!(ids.as_array().expect("ids").len())
}

#[test]
fn a_response_is_continued() {
    let server = TestServer::start();
    let first = server.ok("/v1/responses", &ask(json!({"input": "one", "instructions": "i"})));
    assert_eq!(first["store"], true);
    let said = first["output"][0]["content"][0]["text"].as_str().expect("text");
    let next = ask(json!({"input": "two", "previous_response_id": id(&first)}));
    let second = server.ok("/v1/responses", &next);
    assert_eq!(second["previous_response_id"], first["id"]);
    // The instructions are those of the new request, which has none.
    let messages = json!([
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "two"},
    ]);
    assert_eq!(second["usage"]["input_tokens"], n_tokens(&server, messages));
    // A stream is kept at its end.
    let mut streamed = next.clone();
    streamed["stream"] = json!(true);
    let answer = server.post("/v1/responses", &streamed);
    let last = answer.body.lines().rev().find_map(|line| line.strip_prefix("data: "));
    let last: Value = serde_json::from_str(last.expect("an event")).expect("JSON");
    let whole = server.get(&format!("/v1/responses/{}", id(&last["response"])));
    assert_eq!(whole.json(), last["response"]);
    assert_eq!(server.get(&format!("/v1/responses/{}", id(&second))).json(), second);
    // Its items are those of the whole conversation.
    let path = format!("/v1/responses/{}/input_items", id(&second));
    let items = server.get(&format!("{path}?order=asc")).json();
    let texts: Vec<&str> = items["data"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| item["content"][0]["text"].as_str().expect("text"))
        .collect();
    assert_eq!(texts, ["one", said, "two"]);
    let newest = server.get(&format!("{path}?limit=1")).json();
    assert_eq!(newest["data"][0], items["data"][2]);
    assert_eq!(newest["has_more"], true);
    let after = newest["last_id"].as_str().expect("an id");
    let rest = server.get(&format!("{path}?after={after}")).json();
    assert_eq!((&rest["data"][0], &rest["data"][1]), (&items["data"][1], &items["data"][0]));
    assert_eq!(server.get(&format!("{path}?limit=0")).status, 400);
    assert_eq!(server.get(&format!("{path}?after=x")).status, 400);
    assert_eq!(server.get(&format!("/v1/responses/{}?stream=true", id(&second))).status, 400);
}

#[test]
fn what_is_deleted_or_was_never_stored_is_not_found() {
    let server = TestServer::start();
    let kept = server.ok("/v1/responses", &ask(json!({"input": "one"})));
    let path = format!("/v1/responses/{}", id(&kept));
    let deleted = delete(&server, &path);
    let want = json!({"id": kept["id"], "object": "response", "deleted": true});
    assert_eq!((deleted.status, deleted.json()), (200, want));
    not_found(&delete(&server, &path), id(&kept));
    not_found(&server.get(&path), id(&kept));
    not_found(&server.get(&format!("{path}/input_items")), id(&kept));
    let other = server.ok("/v1/responses", &ask(json!({"input": "one", "store": false})));
    assert_eq!(other["store"], false);
    not_found(&server.get(&format!("/v1/responses/{}", id(&other))), id(&other));
    for id in [id(&kept), id(&other), "resp_x"] {
        let body = ask(json!({"input": "two", "previous_response_id": id}));
        for path in ["/v1/responses", "/v1/responses/input_tokens"] {
            let answer = server.post(path, &body);
            not_found(&answer, id);
            assert_eq!(answer.json()["error"]["param"], "previous_response_id");
        }
    }
}

#[test]
fn items_are_referred_to_by_their_ids() {
    let server = TestServer::start();
    let first = server.ok("/v1/responses", &ask(json!({"input": "one"})));
    let item = &first["output"][0];
    let said = item["content"][0]["text"].as_str().expect("text");
    let reference = json!({"type": "item_reference", "id": item["id"]});
    let ask_of = |reference: &Value| {
        ask(json!({"input": [{"role": "user", "content": "one"}, reference,
                             {"role": "user", "content": "two"}]}))
    };
    let second = server.ok("/v1/responses", &ask_of(&reference));
    let messages = json!([
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "two"},
    ]);
    assert_eq!(second["usage"]["input_tokens"], n_tokens(&server, messages));
    let unknown = json!({"type": "item_reference", "id": "msg_x"});
    let answer = server.post("/v1/responses", &ask_of(&unknown));
    not_found(&answer, "msg_x");
    assert_eq!(answer.json()["error"]["param"], "input");
}

#[test]
fn tokens_are_counted_without_an_answer() {
    let server = TestServer::start();
    let count = |body: Value| {
        let counted = server.ok("/v1/responses/input_tokens", &body);
        assert_eq!(counted["object"], "response.input_tokens");
        counted["input_tokens"].clone()
    };
    let user = json!({"role": "user", "content": "one"});
    assert_eq!(count(json!({"input": "one"})), n_tokens(&server, json!([user])));
    let system = json!({"role": "system", "content": "i"});
    let told = json!({"model": "tiny", "input": [user], "instructions": "i"});
    assert_eq!(count(told), n_tokens(&server, json!([system, user])));
    let first = server.ok("/v1/responses", &ask(json!({"input": "one"})));
    let said = json!({"role": "assistant", "content": first["output"][0]["content"][0]["text"]});
    let next = json!({"previous_response_id": first["id"]});
    assert_eq!(count(next.clone()), n_tokens(&server, json!([user, said])));
    assert_eq!(server.post("/v1/responses/input_tokens", &json!({})).status, 400);
    for name in ["model", "input"] {
        let mut body = next.clone();
        body[name] = Value::Null;
        assert_eq!(count(body), count(next.clone()), "{name}");
        let mut body = ask(json!({"input": "one"}));
        body[name] = Value::Null;
        let answer = server.post("/v1/responses", &body);
        assert_eq!(answer.status, 400, "{answer:?}");
        assert_eq!(answer.json()["error"]["param"], name);
    }
}

#[test]
fn keys_do_not_share() {
    let keys = |config: &mut realizar_server::ServerConfig| {
        config.api_keys = vec!["mine".to_owned(), "yours".to_owned()];
    };
    let server = TestServer::with(keys, EngineOptions::default());
    let body = ask(json!({"input": "one"})).to_string();
    let kept = with_key(&server, "mine", "POST", "/v1/responses", &body).json();
    let path = format!("/v1/responses/{}", id(&kept));
    assert_eq!(with_key(&server, "mine", "GET", &path, "").json(), kept);
    not_found(&with_key(&server, "yours", "GET", &path, ""), id(&kept));
    not_found(&with_key(&server, "yours", "DELETE", &path, ""), id(&kept));
    let next = ask(json!({"input": "two", "previous_response_id": id(&kept)})).to_string();
    not_found(&with_key(&server, "yours", "POST", "/v1/responses", &next), id(&kept));
    let reference = json!({"type": "item_reference", "id": kept["output"][0]["id"]});
    let refers = ask(json!({"input": [reference]})).to_string();
    not_found(&with_key(&server, "yours", "POST", "/v1/responses", &refers), "msg_");
    assert_eq!(with_key(&server, "mine", "POST", "/v1/responses", &refers).status, 200);
    assert_eq!(with_key(&server, "none", "GET", &path, "").status, 401);
}

#[test]
fn the_oldest_are_dropped_and_said_to_be() {
    let few = |config: &mut realizar_server::ServerConfig| config.limits.stored_responses = 2;
    let server = TestServer::with(few, EngineOptions::default());
    let first = server.ok("/v1/responses", &ask(json!({"input": "one"})));
    let next = ask(json!({"input": "two", "previous_response_id": id(&first)}));
    let second = server.ok("/v1/responses", &next);
    let other = server.ok("/v1/responses", &ask(json!({"input": "three"})));
    not_found(&server.get(&format!("/v1/responses/{}", id(&first))), "dropped for newer ones");
    // What continues it has its items still.
    let last = ask(json!({"input": "four", "previous_response_id": id(&second)}));
    let last = server.ok("/v1/responses", &last);
    let items = server.get(&format!("/v1/responses/{}/input_items", id(&last))).json();
    assert_eq!(items["data"].as_array().map(Vec::len), Some(5));
    not_found(&server.get(&format!("/v1/responses/{}", id(&second))), id(&second));
    assert_eq!(server.get(&format!("/v1/responses/{}", id(&other))).status, 200);
}

#[test]
fn what_is_continued_counts_as_a_part_of_the_body() {
    let small = |config: &mut realizar_server::ServerConfig| {
        config.limits.body_bytes = 3_000;
        config.limits.values = 60;
    };
    let server = TestServer::with(small, EngineOptions::default());
    let check = |input: Value, limit: &str| {
        let mut previous = Value::Null;
        for _ in 0..8 {
            let body = ask(json!({"input": input, "previous_response_id": previous,
                                  "max_output_tokens": 1}));
            let answer = server.post("/v1/responses", &body);
            if answer.status == 413 {
                return assert!(answer.body.contains(limit), "{}", answer.body);
            }
            assert_eq!(answer.status, 200, "{}", answer.body);
            previous = answer.json()["id"].take();
        }
        panic!("there was no limit: {limit}");
    };
    check(json!("a".repeat(700)), "KiB");
    check(json!([{"role": "user", "content": "a"}]), "60 JSON values");
}

#[test]
fn chat_completions_are_kept_if_they_are_asked_to() {
    let server = TestServer::start();
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "one"}]);
    let body = |store: Value, tag: &str, stream: bool| {
        json!({"model": "tiny", "messages": messages, "max_tokens": 4, "temperature": 0,
               "store": store, "metadata": {"tag": tag}, "stream": stream, "n": 2,
               "stream_options": if stream { json!({"include_usage": true}) } else { Value::Null }})
    };
    let kept = server.ok("/v1/chat/completions", &body(json!(true), "a", false));
    let path = format!("/v1/chat/completions/{}", id(&kept));
    let mut want = kept.clone();
    want["metadata"] = json!({"tag": "a"});
    assert_eq!(server.get(&path).json(), want);
    let listed = server.get(&format!("{path}/messages")).json();
    let first = json!({"role": "system", "content": "s", "id": format!("{}-0", id(&kept))});
    assert_eq!((&listed["data"][0], listed["data"].as_array().map(Vec::len)), (&first, Some(2)));
    // A stream is kept whole at its end.
    let chunks = server.chunks("/v1/chat/completions", &body(json!(true), "b", true));
    let streamed = server.get(&format!("/v1/chat/completions/{}", id(&chunks[0]))).json();
    let without = |completion: &Value| {
        let mut completion = completion.clone();
        for key in ["id", "created", "metadata", "usage"] {
            completion[key].take();
        }
        completion
    };
    assert_eq!(without(&streamed), without(&want));
    assert_eq!(streamed["usage"]["total_tokens"], want["usage"]["total_tokens"]);
    assert_eq!(streamed["metadata"], json!({"tag": "b"}));
    // Others are not kept.
    for store in [json!(false), Value::Null] {
        let other = server.ok("/v1/chat/completions", &body(store, "c", false));
        not_found(&server.get(&format!("/v1/chat/completions/{}", id(&other))), id(&other));
    }
    let (a, b) = (id(&kept), id(&streamed));
    let deleted = delete(&server, &path);
    let want = json!({"id": a, "object": "chat.completion.deleted", "deleted": true});
    assert_eq!((deleted.status, deleted.json()), (200, want));
    not_found(&delete(&server, &path), a);
    not_found(&server.get(&format!("{path}/messages")), a);
    // It is no response.
    not_found(&server.get(&format!("/v1/responses/{b}")), b);
}
