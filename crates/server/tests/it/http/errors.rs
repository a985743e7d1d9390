//! What is wrong with a request is told in one shape, with a status and the parameter's name.

use super::common::{self, TestServer};
use realizar_runtime::engine::EngineOptions;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const JSON: (&str, &str) = ("content-type", "application/json");

/// Checks the shape of an error and returns parameter and code.
fn error(answer: &common::Answer, status: u16, what: &str) -> (Value, Value) {
    assert_eq!(answer.status, status, "{what}: {}", answer.body);
    let body = answer.json();
    let error = body["error"].as_object().unwrap_or_else(|| panic!("{what}: {body}"));
    let keys: Vec<_> = error.keys().map(String::as_str).collect();
    assert_eq!(keys[..4], ["message", "type", "param", "code"], "{what}");
    let of_context = ["n_prompt_tokens", "n_ctx"];
    let more = if error["code"] == "context_length_exceeded" { &of_context[..] } else { &[] };
    assert_eq!(keys[4..], *more, "{what}");
    assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{what}: {body}");
    let kind = if status >= 500 { "server_error" } else { "invalid_request_error" };
    assert_eq!(error["type"], kind, "{what}");
    (error["param"].clone(), error["code"].clone())
}

#[test]
fn wrong_values_name_their_parameter() {
    let server = TestServer::start();
    let check = |path: &str, more: Value, param: &str| {
        let mut body = match path {
            CHAT => json!({"messages": [{"role": "user", "content": "abc"}], "max_tokens": 1}),
            _ => json!({"prompt": "abc", "max_tokens": 1}),
        };
        for (key, value) in more.as_object().expect("an object") {
            body[key] = value.clone();
        }
        let what = format!("{path} {more}");
        let (found, _) = error(&server.post(path, &body), 400, &what);
        assert_eq!(found, param, "{what}");
    };
    for path in [CHAT, TEXT] {
        check(path, json!({"temperature": -0.5}), "temperature");
        check(path, json!({"temperature": "hot"}), "temperature");
        check(path, json!({"top_p": 0}), "top_p");
        check(path, json!({"top_k": -2}), "top_k");
        check(path, json!({"min_p": 2}), "min_p");
        check(path, json!({"presence_penalty": 3}), "presence_penalty");
        check(path, json!({"frequency_penalty": -3}), "frequency_penalty");
        check(path, json!({"repetition_penalty": 0}), "repetition_penalty");
        check(path, json!({"n": 0}), "n");
        check(path, json!({"n": 1000}), "n");
        check(path, json!({"n": -1}), "n");
        check(path, json!({"max_tokens": -2}), "max_tokens");
        check(path, json!({"n_predict": -2}), "n_predict");
        check(path, json!({"max_tokens": 1.5}), "max_tokens");
        check(path, json!({"stop": ""}), "stop");
        check(path, json!({"stop": [1]}), "stop");
        check(path, json!({"logit_bias": {"99999": 1}}), "logit_bias");
        check(path, json!({"logit_bias": {"5": 101}}), "logit_bias");
        check(path, json!({"logit_bias": [["", 1]]}), "logit_bias");
        check(path, json!({"logit_bias": [[99999, false]]}), "logit_bias");
        check(path, json!({"stop_token_ids": [99999]}), "stop_token_ids");
        check(path, json!({"min_tokens": 2}), "min_tokens");
        check(path, json!({"samplers": ["infill"]}), "samplers");
        check(
            path,
            json!({"samplers": ["min_p", "top_p"], "min_p": 0.1, "top_p": 0.5}),
            "samplers",
        );
        check(path, json!({"id_slot": 1}), "id_slot");
        check(path, json!({"lora": [{"id": 0, "scale": 0.5}]}), "lora");
        check(path, json!({"t_max_predict_ms": 100}), "t_max_predict_ms");
        check(path, json!({"n_probs": 21}), "n_probs");
        check(path, json!({"prompt_logprobs": 21}), "prompt_logprobs");
        check(path, json!({"prompt_logprobs": 1, "stream": true}), "prompt_logprobs");
        check(path, json!({"reasoning_format": "deepseek-legacy"}), "reasoning_format");
        check(path, json!({"stream_options": {"include_usage": true}}), "stream_options");
        check(path, json!({"mirostat": 1}), "mirostat");
        check(path, json!({"typical_p": 0}), "typical_p");
        check(path, json!({"skip_special_tokens": 0}), "skip_special_tokens");
    }
    check(CHAT, json!({"messages": []}), "messages");
    check(CHAT, json!({"messages": null}), "messages");
    check(CHAT, json!({"messages": [{"role": "user"}]}), "messages[0].content");
    check(CHAT, json!({"messages": [{"role": "x", "content": ""}]}), "messages[0].role");
    let tool = json!({"messages": [{"role": "tool", "content": "21 degrees"}]});
    check(CHAT, tool, "messages[0].tool_call_id");
    let image = json!([{"type": "image_url", "image_url": {"url": "data:"}}]);
    let image = json!({"messages": [{"role": "user", "content": image}]});
    check(CHAT, image, "messages[0].content[0].type");
    check(CHAT, json!({"top_logprobs": 2}), "top_logprobs");
    check(CHAT, json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs");
    check(CHAT, json!({"logprobs": 3}), "logprobs");
    check(CHAT, json!({"logprobs": true, "top_logprobs": 2, "n_probs": 3}), "n_probs");
    check(CHAT, json!({"max_tokens": null, "n_predict": 0}), "n_predict");
    check(TEXT, json!({"logprobs": 2, "n_probs": 3}), "n_probs");
    check(TEXT, json!({"reasoning_format": "deepseek"}), "reasoning_format");
    check(CHAT, json!({"max_tokens": 0}), "max_tokens");
    check(CHAT, json!({"max_completion_tokens": 0}), "max_completion_tokens");
    check(CHAT, json!({"max_completion_tokens": 1, "max_tokens": 0}), "max_tokens");
    check(CHAT, json!({"tools": [{"type": "function"}]}), "tools[0].function");
    check(CHAT, json!({"audio": {"voice": "x"}}), "audio");
    check(CHAT, json!({"modalities": ["audio"]}), "modalities");
    check(CHAT, json!({"web_search_options": {}}), "web_search_options");
    check(CHAT, json!({"reasoning_effort": "much"}), "reasoning_effort");
    check(CHAT, json!({"thinking_budget_tokens": 5}), "thinking_budget_tokens");
    check(TEXT, json!({"prompt": []}), "prompt");
    check(TEXT, json!({"prompt": [[]]}), "prompt");
    check(TEXT, json!({"prompt": null}), "prompt");
    check(TEXT, json!({"prompt": [[1, 9999]]}), "prompt");
    check(TEXT, json!({"prompt": [-1]}), "prompt[0]");
    check(TEXT, json!({"logprobs": 21}), "logprobs");
    check(TEXT, json!({"best_of": 1, "n": 2}), "best_of");
    check(TEXT, json!({"best_of": 2, "stream": true}), "best_of");
    check(TEXT, json!({"suffix": 1}), "suffix");
    check("/tokenize", json!({"prompt": null, "content": null}), "prompt");
    check("/tokenize", json!({"content": "a"}), "content");
    check("/tokenize", json!({"messages": [{"role": "user", "content": "a"}]}), "messages");
    check("/detokenize", json!({}), "tokens");
    check("/detokenize", json!({"tokens": [99999]}), "tokens");
}

#[test]
fn what_does_not_fit_the_context_is_told_as_clients_expect() {
    let server = TestServer::start();
    let context = common::CONTEXT as usize;
    let check = |path: &str, body: Value, param: &str, n_prompt: usize, reason: &str| {
        let answer = server.post(path, &body);
        let (found, code) = error(&answer, 400, path);
        assert_eq!((found, code), (json!(param), json!("context_length_exceeded")));
        let error = &answer.json()["error"];
        assert_eq!(
            (&error["n_prompt_tokens"], &error["n_ctx"]),
            (&json!(n_prompt), &json!(context))
        );
        // LiteLLM and others look for these words.
        let words = format!("This model's maximum context length is {context} tokens, {reason}");
        assert_eq!(error["message"], words);
    };
    let (long, longer) = (vec![5; context], vec![5; context + 1]);
    let full = "and the prompt takes all of them, leaving none to generate";
    check(TEXT, json!({"prompt": long}), "prompt", context, full);
    let reason = format!(
        "but {} were requested: {} in the prompt and 4 to generate",
        context + 1,
        context - 3
    );
    let ids = vec![5; context - 3];
    let body = json!({"prompt": ids, "max_tokens": 4, "strict_max_tokens": true});
    check(TEXT, body, "max_tokens", context - 3, &reason);
    let reason = format!("but the prompt has {}", context + 1);
    let body = json!({"prompt": [[5], longer], "max_tokens": 1});
    check(TEXT, body, "prompt", context + 1, &reason);
    let messages = json!([{"role": "user", "content": "abc"}]);
    let n_prompt = server.ok("/tokenize", &json!({"messages": messages}))["count"].as_u64();
    let n_prompt = n_prompt.expect("a number") as usize;
    let reason = format!(
        "but {} were requested: {n_prompt} in the prompt and {context} to generate",
        n_prompt + context
    );
    let body = json!({"messages": messages, "max_completion_tokens": context,
        "strict_max_tokens": true});
    check(CHAT, body, "max_completion_tokens", n_prompt, &reason);
    let messages = json!([{"role": "user", "content": "z".repeat(2 * context)}]);
    let n_prompt = server.ok("/tokenize", &json!({"messages": messages}))["count"].as_u64();
    let n_prompt = n_prompt.expect("a number") as usize;
    let reason = format!("but the prompt has {n_prompt}");
    check(CHAT, json!({"messages": messages}), "messages", n_prompt, &reason);
}

#[test]
fn an_answer_of_no_given_length_takes_the_room_that_there_is() {
    let server = TestServer::with_context(16);
    let generated = |path: &str, body: Value| {
        let answer = server.ok(path, &body);
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        answer["usage"]["completion_tokens"].clone()
    };
    // The last token needs no room.
    let ids = json!([vec![5; 10]]);
    assert_eq!(generated(TEXT, json!({"prompt": ids, "ignore_eos": true})), 7);
    for name in ["max_tokens", "n_predict"] {
        assert_eq!(generated(TEXT, json!({"prompt": ids, name: -1, "ignore_eos": true})), 7);
        let few = json!({"prompt": [[5, 6]], name: -1, "ignore_eos": true});
        assert_eq!(generated(TEXT, few), 15);
        let some = json!({"prompt": ids, name: 3, "ignore_eos": true});
        assert_eq!(generated(TEXT, some), 3);
    }
    // As in llama-server and vLLM, more than there is room for ends where the context does.
    for name in ["max_tokens", "n_predict"] {
        assert_eq!(generated(TEXT, json!({"prompt": ids, name: 99, "ignore_eos": true})), 7);
    }
    let less = json!({"prompt": ids, "max_context_tokens": 14, "ignore_eos": true});
    assert_eq!(generated(TEXT, less), 4);
    let server = TestServer::with_context(40);
    let messages = json!([{"role": "user", "content": "a"}]);
    let body = json!({"messages": messages, "max_tokens": -1, "ignore_eos": true});
    let answer = server.ok(CHAT, &body);
    let usage = ["prompt_tokens", "completion_tokens"].map(|key| answer["usage"][key].as_u64());
    assert_eq!(usage[0].zip(usage[1]).map(|(prompt, answer)| prompt + answer), Some(41));
}

/// The oldest turns go, whole, where the request says so; the system and the last turn stay.
#[test]
fn a_long_conversation_loses_its_oldest_turns() {
    let context = 100;
    let server = TestServer::with_context(context);
    let message = |role: &str, text: &str| json!({"role": role, "content": text});
    let tokens = |messages: &[Value]| {
        let body = json!({"messages": messages});
        server.ok("/tokenize", &body)["count"].as_u64().expect("a count") as usize
    };
    let system = message("system", "S");
    let turn =
        |n: usize| [message("user", &format!("q{n}{}", "x".repeat(12))), message("assistant", "a")];
    let turns: Vec<Value> = (0..9).flat_map(turn).chain([message("user", "last")]).collect();
    let all: Vec<Value> = [vec![system.clone()], turns.clone()].concat();
    assert!(tokens(&all) > context);
    let ask = |more: Value| {
        let mut body = json!({"messages": all, "max_tokens": 8, "temperature": 0});
        body.as_object_mut().expect("an object").extend(more.as_object().expect("more").clone());
        body
    };
    let refused = server.post(CHAT, &ask(json!({})));
    assert_eq!(error(&refused, 400, CHAT), (json!("messages"), json!("context_length_exceeded")));
    let answer = server.ok(CHAT, &ask(json!({"truncation": "auto"})));
    // What is left: the system, and as many whole turns as leave the answer its room.
    let left = |n: usize| [vec![system.clone()], turns[turns.len() - n..].to_vec()].concat();
    let n = (0..9).map(|n| 2 * n + 1).rfind(|&n| tokens(&left(n)) + 8 <= context);
    let left = left(n.expect("the last turn fits"));
    assert_eq!(answer["usage"]["prompt_tokens"], tokens(&left));
    let same = server.ok(CHAT, &json!({"messages": left, "max_tokens": 8, "temperature": 0}));
    assert_eq!(answer["choices"][0]["message"], same["choices"][0]["message"]);
    // The same for OpenAI's responses and for Ollama, which truncates unless told not to.
    let body = json!({"model": "tiny", "input": all, "max_output_tokens": 8, "truncation": "auto"});
    let response = server.ok("/v1/responses", &body);
    assert_eq!(response["usage"]["input_tokens"], tokens(&left));
    assert_eq!(response["truncation"], "auto");
    let body =
        json!({"model": "tiny", "messages": all, "stream": false, "options": {"num_predict": 8}});
    assert_eq!(server.ok("/api/chat", &body)["prompt_eval_count"], tokens(&left));
    let body = json!({"model": "tiny", "messages": all, "truncate": false});
    assert_eq!(server.post("/api/chat", &body).status, 400);
    // A last turn that is too long by itself is an error all the same.
    let long = json!({"messages": [message("user", &"x".repeat(400))], "truncation": "auto"});
    assert_eq!(error(&server.post(CHAT, &long), 400, CHAT).1, "context_length_exceeded");
}

#[test]
fn a_compressed_body_is_not_taken() {
    let server = TestServer::start();
    let encoding = ("content-encoding", "gzip");
    let body = r#"{"prompt": "a"}"#;
    let answer = server.request("POST", TEXT, &[JSON, encoding], body);
    assert_eq!(error(&answer, 415, "gzip").1, "unsupported_content_encoding");
    assert_eq!(answer.header("accept-encoding"), Some("identity"));
    assert!(answer.body.contains("`gzip`"), "{}", answer.body);
    let plain = ("content-encoding", "identity");
    assert_eq!(server.request("POST", TEXT, &[JSON, plain], body).status, 200);
}

#[test]
fn requests_that_no_handler_takes() {
    let server =
        TestServer::with(|config| config.limits.body_bytes = 1000, EngineOptions::default());
    let check = |method: &str, path: &str, headers: &[(&str, &str)], body: &str, status: u16| {
        let what = format!("{method} {path} {body}");
        error(&server.request(method, path, headers, body), status, &what).1
    };
    assert_eq!(check("GET", "/v1/nothing", &[], "", 404), "unknown_url");
    assert_eq!(check("GET", "/nothing", &[], "", 404), "unknown_url");
    assert_eq!(check("GET", CHAT, &[], "", 405), "method_not_allowed");
    assert_eq!(check("POST", "/v1/models", &[JSON], "{}", 405), "method_not_allowed");
    assert_eq!(check("GET", "/v1/models/other", &[], "", 404), "model_not_found");
    check("GET", "/v1/models/%ff", &[], "", 400);
    let other = r#"{"model": "other", "prompt": "a"}"#;
    assert_eq!(check("POST", TEXT, &[JSON], other, 404), "model_not_found");
    let (plain, form) = ("text/plain", "application/x-www-form-urlencoded");
    let [plain, form] = [plain, form].map(|value| ("content-type", value));
    assert_eq!(check("POST", TEXT, &[plain], other, 415), "unsupported_media_type");
    // What curl sends is read as JSON.
    assert_eq!(check("POST", TEXT, &[], other, 404), "model_not_found");
    assert_eq!(check("POST", TEXT, &[form], other, 404), "model_not_found");
    check("POST", TEXT, &[form], "a=b", 400);
    for malformed in ["{", "[]", "7", "null", r#"{"prompt": "a"} {}"#, "{\"prompt\": \"\\ud800\"}"]
    {
        check("POST", TEXT, &[JSON], malformed, 400);
    }
    let long = format!(r#"{{"prompt": "{}"}}"#, "a".repeat(1000));
    assert_eq!(check("POST", TEXT, &[JSON], &long, 413), "body_too_large");
}

#[test]
fn keys_are_asked_for() {
    let keys = vec!["one".to_owned(), "two".to_owned()];
    let server = TestServer::with(|config| config.api_keys = keys, EngineOptions::default());
    let get = |path: &str, headers: &[(&str, &str)]| server.request("GET", path, headers, "");
    for path in ["/health", "/live", "/ready", "/ping"] {
        assert_eq!(get(path, &[]).status, 200, "{path}");
    }
    let (_, code) = error(&get("/v1/models", &[]), 401, "no key");
    assert_eq!(code, "invalid_api_key");
    assert_eq!(get("/v1/models", &[]).header("www-authenticate"), Some("Bearer"));
    for (name, key, status) in [
        ("authorization", "Bearer one", 200),
        ("authorization", "Bearer two", 200),
        ("authorization", "Bearer three", 401),
        ("x-api-key", "two", 200),
        ("x-api-key", "three", 401),
    ] {
        assert_eq!(get("/v1/models", &[(name, key)]).status, status, "{name}: {key}");
    }
    assert_eq!(get("/metrics", &[]).status, 401);
    let body = json!({"prompt": "a"}).to_string();
    assert_eq!(server.request("POST", TEXT, &[JSON], &body).status, 401);
}

#[test]
fn anthropic_errors_have_their_own_shape() {
    let keys = |config: &mut realizar_server::ServerConfig| {
        config.api_keys = vec!["key".to_owned()];
        config.limits.body_bytes = 1000;
    };
    let server = TestServer::with(keys, EngineOptions::default());
    let key = ("x-api-key", "key");
    let long = format!("\"{}\"", "a".repeat(1000));
    let other = r#"{"model": "other", "max_tokens": 1, "messages": []}"#;
    let check = |path: &str, headers: &[(&str, &str)], body: &str, status: u16, kind: &str| {
        let answer = server.request("POST", path, headers, body);
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.body);
        let body = answer.json();
        assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(kind)));
        assert!(body["error"]["message"].as_str().is_some_and(|text| !text.is_empty()), "{body}");
    };
    for path in ["/v1/messages", "/v1/messages/count_tokens"] {
        check(path, &[JSON], "{}", 401, "authentication_error");
        check(path, &[key, ("content-type", "text/plain")], "{}", 415, "invalid_request_error");
        check(path, &[key, JSON], "{", 400, "invalid_request_error");
        check(path, &[key, JSON], "{}", 400, "invalid_request_error");
        check(path, &[key, JSON], other, 404, "not_found_error");
        check(path, &[key, JSON], &long, 413, "request_too_large");
    }
    check("/v1/messages/batches", &[key, JSON], "{}", 404, "not_found_error");
    let answer = server.request("GET", "/v1/messages", &[key], "");
    assert_eq!((answer.status, &answer.json()["type"]), (405, &json!("error")));
}

#[test]
fn limits_of_the_server() {
    let server = TestServer::with(
        |config| {
            config.limits.output_tokens = Some(5);
            config.limits.prompt_tokens = Some(8);
        },
        EngineOptions::default(),
    );
    let body = json!({"prompt": "abc", "max_tokens": 6});
    assert_eq!(error(&server.post(TEXT, &body), 400, "output").0, "max_tokens");
    let body = json!({"prompt": "abcabcabc", "max_tokens": 1});
    let (param, code) = error(&server.post(TEXT, &body), 400, "prompt");
    assert_eq!((param, code), (json!("prompt"), json!("context_length_exceeded")));
    // As many as fit are at most as many as are allowed.
    let body = json!({"prompt": "abc", "max_tokens": -1, "ignore_eos": true});
    assert_eq!(server.ok(TEXT, &body)["usage"]["completion_tokens"], 5);
}
