//! Answers with a form: grammars, tools, and the APIs that say the same in other words.

use super::common::TestServer;
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};

const CHAT: &str = "/v1/chat/completions";

pub(crate) fn ask(more: &Value) -> Value {
    let mut ask = json!({"messages": [{"role": "user", "content": "abc"}], "temperature": 0.7,
                         "seed": 3, "max_tokens": 400});
    for (key, value) in more.as_object().expect("an object") {
        ask[key] = value.clone();
    }
    ask
}

pub(crate) fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {"n": {"enum": [1, 2, 3]}, "on": {"type": "boolean"}},
        "required": ["n", "on"],
        "additionalProperties": false
    })
}

pub(crate) fn tools() -> Value {
    let tool = |name: &str| {
        let function = json!({"name": name, "description": "d", "parameters": schema()});
        json!({"type": "function", "function": function})
    };
    json!([tool("first"), tool("second")])
}

/// That a text is JSON of the schema.
pub(crate) fn check(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!([1, 2, 3].iter().any(|n| value["n"] == *n) && value["on"].is_boolean(), "{text}");
}

#[test]
fn answers_follow_a_schema_in_every_spelling() {
    let server = TestServer::start();
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema()}});
    for more in [
        json!({"response_format": format}),
        json!({"guided_json": schema()}),
        json!({"structured_outputs": {"json": schema()}}),
        json!({"json_schema": schema()}),
    ] {
        let answer = server.ok(CHAT, &ask(&more));
        let choice = &answer["choices"][0];
        check(choice["message"]["content"].as_str().expect("content"));
        assert_eq!(choice["finish_reason"], "stop");
    }
    let chunks = server.chunks(CHAT, &ask(&json!({"response_format": format, "stream": true})));
    let piece = |chunk: &Value| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned);
    check(&chunks.iter().filter_map(piece).collect::<String>());

    let plain = |more: Value| {
        let mut body = ask(&more);
        body["prompt"] = json!("abc");
        server.ok("/v1/completions", &body)["choices"][0]["text"].as_str().expect("text").to_owned()
    };
    assert!(["yes", "no"].contains(&plain(json!({"guided_choice": ["yes", "no"]})).as_str()));
    assert_eq!(plain(json!({"guided_regex": "a{3}"})), "aaa");
    assert_eq!(plain(json!({"grammar": "root ::= \"b\" \"c\"{2}"})), "bcc");
}

#[test]
fn a_grammar_that_cannot_be_followed_is_refused_with_its_place() {
    let server = TestServer::start();
    for (more, param) in [
        (json!({"guided_regex": "("}), "guided_regex"),
        (json!({"guided_json": {"not": {}}}), "guided_json"),
        (json!({"guided_json": {"type": "integer", "multipleOf": 99_999_989}}), "guided_json"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {}}}),
            "response_format.json_schema.schema",
        ),
        (json!({"response_format": {"type": "xml"}}), "response_format"),
        (json!({"guided_regex": "a", "guided_choice": ["b"]}), "guided_choice"),
        (json!({"tools": [custom("start: <x>")]}), "tools"),
        (json!({"tools": [custom("start: b")], "tool_choice": "required"}), "tools"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (json!({"tools": tools(), "tool_choice": "third"}), "tool_choice"),
    ] {
        let answer = server.post(CHAT, &ask(&more));
        assert_eq!(answer.status, 400, "{more}: {}", answer.body);
        let found = answer.json()["error"]["param"].clone();
        assert!(found.as_str().is_some_and(|found| found.starts_with(param)), "{more}: {found}");
    }
}

#[test]
fn a_request_says_whether_objects_have_other_properties() {
    let server = TestServer::start();
    let object = json!({"type": "object", "properties": {"a": {"type": "null"}}});
    let answer = |outputs: Value| {
        let body = ask(&json!({"structured_outputs": outputs, "max_tokens": 300}));
        server.ok(CHAT, &body)["choices"][0]["message"]["content"]
            .as_str()
            .expect("text")
            .to_owned()
    };
    let closed = |text: &str| {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
        value.as_object().expect("an object").keys().all(|name| name == "a")
    };
    let by_default = answer(json!({"json": object}));
    assert!(closed(&by_default), "{by_default}");
    let disabled = answer(json!({"json": object, "disable_additional_properties": true}));
    assert_eq!(disabled, by_default);
    let allowed = answer(json!({"json": object, "disable_additional_properties": false}));
    assert_ne!(allowed, by_default);
}

#[test]
fn hostile_grammars_leave_room_for_others() {
    let server = TestServer::start();
    let patterns = |n: usize| -> Vec<Value> {
        (0..n)
            .map(|i| json!({"type": "string", "pattern": format!("(a|b)*a(a|b){{{i}}}")}))
            .collect()
    };
    let names: Vec<String> = (0..20_000).map(|i| format!("n{i}")).collect();
    let doubling: String = (0..40).map(|i| format!("T{i}: T{} T{}\n", i + 1, i + 1)).collect();
    let growing: String = (0..3000).map(|i| format!("T{i}: \"(\" T{} \")\"\n", i + 1)).collect();
    let hostile = [
        (json!({"guided_json": {"allOf": patterns(15)}}), 400),
        (json!({"guided_json": {"properties": {"a": {"items": {"allOf": patterns(10)}}}}}), 400),
        (json!({"guided_json": {"type": "object", "required": names}}), 400),
        (json!({"guided_grammar": format!("start: T0\n{doubling}T40: \"a\"")}), 400),
        (json!({"guided_grammar": format!("start: T0\n{growing}T3000: \"a\"")}), 200),
    ];
    // More at a time than there are places for compilations.
    std::thread::scope(|scope| {
        for (more, want) in hostile.iter().flat_map(|one| [one; 4]) {
            let server = &server;
            scope.spawn(move || {
                let answer = server.post(CHAT, &ask(more));
                assert_eq!(answer.status, *want, "{more:.100}: {}", answer.body);
            });
        }
    });
    let answer = server.ok(CHAT, &ask(&json!({"max_tokens": 5})));
    assert!(answer["choices"][0]["message"]["content"].is_string(), "{answer}");
    let answer = server.ok(CHAT, &ask(&json!({"guided_json": schema()})));
    check(answer["choices"][0]["message"]["content"].as_str().expect("content"));
}

/// A custom tool with a Lark grammar.
fn custom(grammar: &str) -> Value {
    let grammar = json!({"syntax": "lark", "definition": grammar});
    let format = json!({"type": "grammar", "grammar": grammar});
    json!({"type": "custom", "custom": {"name": "say", "format": format}})
}

#[test]
fn the_input_of_a_custom_tool_follows_its_grammar() {
    let server = TestServer::start();
    let grammar = "start: \"a\\n\\\"\" /[b-d]{3}/ LF\n%import common.LF";
    let named = json!({"type": "custom", "custom": {"name": "say"}});
    let tools = json!([custom(grammar), tools()[0]]);
    let mut body = ask(&json!({"tools": tools, "tool_choice": named}));
    let answer = server.ok(CHAT, &body);
    let call = &answer["choices"][0]["message"]["tool_calls"][0];
    assert_eq!((&call["type"], &call["custom"]["name"]), (&json!("custom"), &json!("say")));
    assert_eq!(call["function"], Value::Null);
    let input = call["custom"]["input"].as_str().expect("a text");
    let rest = input.strip_prefix("a\n\"").and_then(|rest| rest.strip_suffix('\n')).expect(input);
    assert!(rest.len() == 3 && rest.bytes().all(|b| (b'b'..=b'd').contains(&b)), "{input}");
    body["stream"] = json!(true);
    let mut streamed = String::new();
    for chunk in server.chunks(CHAT, &body) {
        let Some(delta) = chunk["choices"][0]["delta"]["tool_calls"].get(0).cloned() else {
            continue;
        };
        if streamed.is_empty() && delta["id"].is_string() {
            assert_eq!(
                (&delta["type"], &delta["custom"]["name"]),
                (&json!("custom"), &json!("say"))
            );
        }
        streamed.push_str(delta["custom"]["input"].as_str().expect("a text"));
    }
    assert_eq!(streamed, input);
    // Sent back, it is a call of a function with one parameter.
    let messages = json!([
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": "done"},
    ]);
    server.ok(CHAT, &ask(&json!({"messages": messages, "tools": tools})));
}

#[test]
fn tools_beside_a_schema_are_called_or_the_schema_is_followed() {
    let server = TestServer::start();
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema()}});
    let beside = |choice: &str| {
        let more = json!({"tools": tools(), "tool_choice": choice, "response_format": format,
                          "parallel_tool_calls": false});
        server.ok(CHAT, &ask(&more))["choices"][0].clone()
    };
    let either = beside("auto");
    match either["message"]["content"].as_str() {
        Some(content) => check(content),
        None => {
            let call = &either["message"]["tool_calls"][0]["function"];
            assert!(["first", "second"].contains(&call["name"].as_str().expect("a name")));
        }
    }
    assert_eq!(beside("required")["finish_reason"], "tool_calls");
    let none = beside("none");
    check(none["message"]["content"].as_str().expect("content"));
    // A strict function is held to its schema where the model calls it; an answer without calls is free.
    let mut strict = tools();
    strict[0]["function"]["strict"] = json!(true);
    let answer = server.ok(CHAT, &ask(&json!({"tools": strict, "max_tokens": 10})));
    assert!(answer["choices"][0]["message"]["content"].is_string(), "{answer}");
}

#[test]
fn a_tool_that_must_be_called_is_called() {
    let server = TestServer::start();
    let named = json!({"type": "function", "function": {"name": "second"}});
    // Several calls in one answer may continue to its limit, so they are not requested.
    for (choice, parallel) in [(json!("required"), false), (named, true)] {
        let more =
            json!({"tools": tools(), "tool_choice": choice, "parallel_tool_calls": parallel});
        let body = ask(&more);
        let answer = server.ok(CHAT, &body);
        let choice_of = &answer["choices"][0];
        // To call what the request names is no choice of the model.
        let reason = if parallel { "stop" } else { "tool_calls" };
        assert_eq!(choice_of["finish_reason"], reason, "{answer}");
        assert_eq!(choice_of["message"]["content"], Value::Null);
        let calls = choice_of["message"]["tool_calls"].as_array().expect("calls");
        assert!(!calls.is_empty() && (parallel || calls.len() == 1));
        for call in calls {
            assert_eq!(call["type"], "function");
            assert!(call["id"].as_str().is_some_and(|id| id.starts_with("call_")), "{call}");
            let name = call["function"]["name"].as_str().expect("a name");
            assert!(name == "second" || choice == "required" && name == "first", "{name}");
            check(call["function"]["arguments"].as_str().expect("arguments"));
        }

        // The same in pieces.
        let mut streamed = body;
        streamed["stream"] = json!(true);
        let chunks = server.chunks(CHAT, &streamed);
        let mut pieces = vec![(String::new(), String::new()); calls.len()];
        for delta in chunks.iter().filter_map(|c| c["choices"][0]["delta"]["tool_calls"].get(0)) {
            let (name, arguments) = &mut pieces[delta["index"].as_u64().expect("index") as usize];
            name.push_str(delta["function"]["name"].as_str().unwrap_or_default());
            arguments.push_str(delta["function"]["arguments"].as_str().expect("arguments"));
        }
        let whole: Vec<(String, String)> = calls
            .iter()
            .map(|call| ["name", "arguments"].map(|key| call["function"][key].as_str().unwrap()))
            .map(|[name, arguments]| (name.to_owned(), arguments.to_owned()))
            .collect();
        assert_eq!(pieces, whole);
        assert_eq!(chunks.last().expect("chunks")["choices"][0]["finish_reason"], reason);
    }
    // Without a call, tools change the prompt alone.
    let answer = server.ok(CHAT, &ask(&json!({"tools": tools(), "max_tokens": 5})));
    assert!(answer["choices"][0]["message"]["content"].is_string(), "{answer}");
    let text = server.ok("/apply-template", &ask(&json!({"tools": tools()})));
    assert!(text["prompt"].as_str().is_some_and(|t| t.contains("\"name\":\"second\"")), "{text}");
}

/// Templates that write calls, with what a call in their format begins with.
const CALLING: [(&str, &str); 2] = [
    (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}<tool_call>\n\
         {'name': {{ c.function.name }}, 'arguments': {{ c.function.arguments }}}\n</tool_call>\
         {% endfor %}{% endfor %}{{ tools }}<assistant>",
        "<tool_call>\n{\"name\": \"",
    ),
    (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls %}<tool_call>\n\
         <function={{ c.function.name }}>\n</function>\n</tool_call>{% endfor %}{% endfor %}\
         {{ tools }}<assistant>",
        "<tool_call>\n<function=",
    ),
];

#[test]
fn a_tool_that_must_be_called_is_called_in_the_models_words() {
    for (template, begin) in CALLING {
        let server = TestServer::with_template(template);
        let more = json!({"tools": tools(), "tool_choice": "required",
                          "parallel_tool_calls": false, "logprobs": true});
        let answer = server.ok(CHAT, &ask(&more));
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        let calls = choice["message"]["tool_calls"].as_array().expect("calls");
        assert_eq!(calls.len(), 1);
        check(calls[0]["function"]["arguments"].as_str().expect("arguments"));
        let tokens = choice["logprobs"]["content"].as_array().expect("tokens");
        let written: String = tokens.iter().filter_map(|token| token["token"].as_str()).collect();
        assert!(written.starts_with(begin), "{written}");
    }
}

#[test]
fn a_call_that_is_cut_is_no_content() {
    let server = TestServer::start();
    let named = json!({"type": "function", "function": {"name": "second"}});
    for choice in [json!("required"), named] {
        // Cut before it is certain which function is called, and after it.
        let mut n_calls = 0;
        for n in (1..400).step_by(7) {
            let mut body = ask(&json!({"tools": tools(), "tool_choice": choice, "max_tokens": n}));
            let answer = server.ok(CHAT, &body)["choices"][0].clone();
            let content = &answer["message"]["content"];
            assert!(content.is_null() || content == "", "{n}: {answer}");
            if answer["finish_reason"] != "length" {
                break;
            }
            n_calls += usize::from(answer["message"].get("tool_calls").is_some());
            assert!(n > 1 || n_calls == 0, "{answer}");
            body["stream"] = json!(true);
            let chunks = server.chunks(CHAT, &body);
            let pieces = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str());
            assert_eq!(pieces.collect::<String>(), "", "{chunks:?}");
        }
        assert!(n_calls > 0, "no call was long enough");
    }
}

#[test]
fn anthropic_messages() {
    let server = TestServer::start();
    let tool = json!({"name": "first", "description": "d", "input_schema": schema()});
    let body = json!({
        "model": "tiny", "max_tokens": 300, "system": "s",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "abc"}]}],
        "tools": [tool], "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
    });
    let answer = server.ok("/v1/messages", &body);
    assert_eq!((&answer["type"], &answer["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    assert_eq!(answer["content"][0]["type"], "tool_use");
    check(&answer["content"][0]["input"].to_string());
    let usage = &answer["usage"];
    let prompt = usage["input_tokens"].as_u64().unwrap()
        + usage["cache_read_input_tokens"].as_u64().unwrap();
    let count = server.ok("/v1/messages/count_tokens", &body);
    assert_eq!(count["input_tokens"], prompt);

    let mut plain = json!({"model": "tiny", "max_tokens": 8, "stream": true,
                           "messages": [{"role": "user", "content": "abc"}]});
    let answer = server.post("/v1/messages", &plain);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let events: Vec<&str> =
        answer.body.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(events[0], "message_start");
    assert_eq!(events[events.len() - 2..], ["message_delta", "message_stop"]);
    plain["messages"] = json!([]);
    let answer = server.post("/v1/messages", &plain);
    assert_eq!((answer.status, &answer.json()["type"]), (400, &json!("error")));
    assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
}

#[test]
fn openai_responses() {
    let server = TestServer::start();
    let format = json!({"type": "json_schema", "name": "x", "schema": schema(), "strict": true});
    let body = json!({"model": "tiny", "input": "abc", "instructions": "s", "store": false,
                      "max_output_tokens": 300, "text": {"format": format}});
    let answer = server.ok("/v1/responses", &body);
    assert_eq!((&answer["object"], &answer["status"]), (&json!("response"), &json!("completed")));
    check(answer["output"][0]["content"][0]["text"].as_str().expect("text"));
    assert!(answer["usage"]["total_tokens"].as_u64() > Some(10), "{answer}");
    assert_eq!(answer["usage"]["input_tokens_details"]["cache_write_tokens"], 0);
    // OpenAI's shape has no null here.
    assert!(answer.get("user").is_none());
    let mut named = body.clone();
    named["user"] = json!("u");
    assert_eq!(server.ok("/v1/responses", &named)["user"], "u");
    named["user"] = Value::Null;
    assert!(server.ok("/v1/responses", &named).get("user").is_none());

    let mut streamed = body;
    streamed["stream"] = json!(true);
    let answer = server.post("/v1/responses", &streamed);
    let data = answer.body.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).expect("JSON")).collect();
    assert_eq!(events[0]["type"], "response.created");
    let last = events.last().expect("events");
    assert_eq!(last["type"], "response.completed");
    check(last["response"]["output"][0]["content"][0]["text"].as_str().expect("text"));
    let numbers: Vec<u64> =
        events.iter().map(|e| e["sequence_number"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    streamed["previous_response_id"] = json!("resp_1");
    let answer = server.post("/v1/responses", &streamed);
    assert_eq!(
        (answer.status, &answer.json()["error"]["param"]),
        (404, &json!("previous_response_id"))
    );
}

#[test]
fn a_page_is_at_the_root() {
    let server = TestServer::start();
    let page = server.get("/");
    assert_eq!(page.status, 200);
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(
        page.header("content-security-policy").is_some_and(|p| p.contains("default-src 'none'"))
    );
    assert!(page.body.contains("v1/chat/completions"));
    for file in ["math.js", "pdf.js"] {
        let mut connection = server.connect();
        let request =
            format!("GET /page/{file} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).expect("write");
        let mut answer = Vec::new();
        connection.read_to_end(&mut answer).expect("an answer");
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
        let (head, body) = answer.split_at(end);
        let head = String::from_utf8_lossy(head).to_lowercase();
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert!(head.contains("content-type: text/javascript; charset=utf-8"), "{head}");
        assert!(head.contains("content-encoding: gzip"), "{head}");
        assert!(body.starts_with(&[0x1f, 0x8b]), "{file} is not compressed");
    }
    assert_eq!(server.get("/page/other.js").status, 404);
}

#[test]
fn the_last_hour_is_told() {
    let server = TestServer::start();
    // The first sample is taken when the server begins.
    let history = loop {
        let history = server.get("/metrics/history").json();
        if history["models"] != json!([]) {
            break history;
        }
        std::thread::yield_now();
    };
    assert_eq!(history["interval"], 5);
    assert_eq!(history["models"][0]["model"], "tiny");
    let sample = &history["models"][0]["samples"][0];
    assert_eq!((&sample["generated_tokens"], &sample["kv_used"]), (&json!(0), &json!(0.0)));
    let models = server.get("/v1/models").json();
    // The tiny model says nothing of sampling.
    let sampling = &models["data"][0]["meta"]["sampling"];
    for (name, want) in [("temperature", 0.8), ("top_k", 40.0), ("top_p", 0.95), ("min_p", 0.05)] {
        assert_eq!(sampling[name].as_f64(), Some(want), "{name}");
    }
}
