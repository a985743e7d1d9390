//! `/v1/chat/completions`: messages, log-probabilities, streams.

use super::common::{TestServer, parts_of};
use serde_json::{Value, json};

const PATH: &str = "/v1/chat/completions";

fn ask(more: Value) -> Value {
    let mut ask = json!({"messages": [{"role": "user", "content": "abc"}], "temperature": 0,
                         "max_tokens": 12, "ignore_eos": true});
    let Value::Object(more) = more else { panic!("fields are an object") };
    for (key, value) in more {
        ask[key] = value;
    }
    ask
}

fn content(answer: &Value) -> String {
    answer["choices"][0]["message"]["content"].as_str().expect("content").to_owned()
}

#[test]
fn an_answer_has_every_field() {
    let server = TestServer::start();
    let answer = server.ok(PATH, &ask(json!({"model": "org/tiny", "metadata": {"a": "b"}})));
    assert!(answer["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")), "{answer}");
    assert_eq!(
        (&answer["object"], &answer["model"]),
        (&json!("chat.completion"), &json!("org/tiny"))
    );
    let choice = &answer["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    assert_eq!(choice.get("logprobs"), Some(&Value::Null));
    let message = &choice["message"];
    assert_eq!(message["role"], "assistant");
    assert_eq!(message.get("refusal"), Some(&Value::Null));
    assert_eq!(message["annotations"], json!([]));
    assert!(message.get("tool_calls").is_none());
    assert_eq!(answer["usage"]["completion_tokens"], 12);
    assert_eq!(answer["service_tier"], "default");

    // The prompt is what the template makes of the messages.
    let text = server.ok("/apply-template", &ask(json!({})))["prompt"].clone();
    assert_eq!(text, "<user>abc<assistant>");
    let ids = server.ok("/tokenize", &json!({"content": text}))["tokens"].clone();
    assert_eq!(answer["usage"]["prompt_tokens"], ids.as_array().map(Vec::len).expect("ids"));
    let same = json!({"prompt": [ids], "temperature": 0, "max_tokens": 12, "ignore_eos": true});
    let same = server.ok("/v1/completions", &same);
    assert_eq!(same["choices"][0]["text"], content(&answer));
    let rendered = server.ok("/v1/chat/completions/render", &ask(json!({})));
    assert_eq!(rendered["token_ids"], ids);
}

#[test]
fn content_comes_as_text_and_in_parts() {
    let server = TestServer::start();
    let answer = server.ok(PATH, &ask(json!({})));
    let parts = json!([{"type": "text", "text": "abc"}]);
    let same =
        server.ok(PATH, &ask(json!({"messages": [{"role": "user", "content": parts}], "n": 2})));
    assert_eq!(content(&same), content(&answer));
    assert_eq!(same["choices"][1]["message"], same["choices"][0]["message"]);
    assert_eq!(same["choices"][1]["index"], 1);
}

#[test]
fn tokens_come_with_their_likelihood() {
    let server = TestServer::start();
    let answer = server.ok(PATH, &ask(json!({"logprobs": true, "top_logprobs": 3})));
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs.get("refusal"), Some(&Value::Null));
    let tokens = logprobs["content"].as_array().expect("tokens");
    assert_eq!(tokens.len(), 12);
    let mut bytes = Vec::new();
    for token in tokens {
        let top = token["top_logprobs"].as_array().expect("top");
        assert_eq!(top.len(), 3);
        assert_eq!(top[0]["logprob"], token["logprob"], "greedy takes the most likely token");
        bytes.extend(
            token["bytes"]
                .as_array()
                .expect("bytes")
                .iter()
                .map(|byte| u8::try_from(byte.as_u64().expect("a number")).expect("a byte")),
        );
    }
    // Text that was cut inside a character ends before it.
    assert!(
        String::from_utf8_lossy(&bytes).starts_with(content(&answer).trim_end_matches('\u{fffd}'))
    );
    let none = server.ok(PATH, &ask(json!({"logprobs": true})));
    assert_eq!(none["choices"][0]["logprobs"]["content"][0]["top_logprobs"], json!([]));
}

#[test]
fn llama_servers_names_mean_the_same() {
    let server = TestServer::start();
    let ours = server.ok(PATH, &ask(json!({"logprobs": true, "top_logprobs": 2})));
    let theirs =
        ask(json!({"max_tokens": null, "n_predict": 12, "n_probs": 2, "return_tokens": true}));
    let answer = server.ok(PATH, &theirs)["choices"][0].clone();
    assert_eq!(answer["logprobs"], ours["choices"][0]["logprobs"]);
    let ids = answer["tokens"].as_array().expect("ids");
    assert_eq!(ids.len(), 12);
    let mut streamed = theirs;
    streamed["stream"] = json!(true);
    let chunks = server.chunks(PATH, &streamed);
    let parts = chunks.iter().filter_map(|chunk| chunk["choices"][0]["tokens"].as_array());
    assert_eq!(parts.flatten().cloned().collect::<Vec<_>>(), *ids);
}

#[test]
fn reasoning_is_told_apart_or_left_in_the_text() {
    // The template opens the reasoning, which the tiny model never closes.
    let server = TestServer::with_template(
        "{% for m in messages %}{{ m.content }}{% endfor %}{# </think> #}<think>",
    );
    let message = |more: Value| server.ok(PATH, &ask(more))["choices"][0]["message"].clone();
    let apart = message(json!({}));
    assert_eq!(apart["content"], "");
    let reasoning = apart["reasoning_content"].as_str().expect("reasoning").to_owned();
    assert!(!reasoning.is_empty());
    for format in ["auto", "deepseek"] {
        assert_eq!(message(json!({"reasoning_format": format})), apart);
    }
    let inside = message(json!({"reasoning_format": "none"}));
    assert!(inside.get("reasoning_content").is_none());
    assert_eq!(inside["content"].as_str().map(str::trim), Some(reasoning.trim()));
}

#[test]
fn a_stream_is_role_deltas_reason_usage_done() {
    let server = TestServer::start();
    for more in [json!({}), json!({"logprobs": true, "top_logprobs": 1}), json!({"n": 2})] {
        let answer = server.ok(PATH, &ask(more.clone()));
        let mut streamed = ask(more);
        streamed["stream"] = json!(true);
        streamed["stream_options"] = json!({"include_usage": true});
        let mut chunks = server.chunks(PATH, &streamed);
        let last = chunks.pop().expect("usage");
        assert_eq!(last["choices"], json!([]));
        assert_eq!(last["usage"]["total_tokens"], answer["usage"]["total_tokens"]);
        for chunk in &chunks {
            assert_eq!(chunk["object"], "chat.completion.chunk");
            assert_eq!((&chunk["id"], &chunk["created"]), (&last["id"], &last["created"]));
            assert_eq!(chunk.get("usage"), Some(&Value::Null));
        }
        for choice in answer["choices"].as_array().expect("choices") {
            let own = parts_of(&chunks, choice);
            let role = json!({"role": "assistant", "content": "", "refusal": null});
            assert_eq!(own[0]["delta"], role);
            let (end, before) = own.split_last().expect("chunks");
            assert_eq!(end["delta"], json!({}));
            assert_eq!(end["finish_reason"], choice["finish_reason"]);
            assert!(before.iter().all(|c| c.get("finish_reason") == Some(&Value::Null)));
            let text: String = own.iter().filter_map(|c| c["delta"]["content"].as_str()).collect();
            assert_eq!(text, choice["message"]["content"].as_str().expect("content"));
            let lists = own.iter().filter_map(|c| c["logprobs"]["content"].as_array());
            let tokens: Vec<_> = lists.flatten().cloned().collect();
            let whole = choice["logprobs"]["content"].as_array().cloned().unwrap_or_default();
            assert_eq!(tokens, whole);
        }
    }
    let mut always = ask(json!({"stream": true}));
    always["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
    let counts: Vec<_> = server
        .chunks(PATH, &always)
        .iter()
        .map(|chunk| chunk["usage"]["completion_tokens"].as_u64().expect("usage in every chunk"))
        .collect();
    assert!(counts.is_sorted() && counts.last() == Some(&12), "{counts:?}");
}

#[test]
fn a_system_message_without_a_place_begins_the_users_turn_in_every_dialect() {
    let turns = "{% for m in messages %}{% if m.role == 'system' %}SYSTEM{% else %}<{{ m.role }}>{{ m.content }}\
                 {% endif %}{% endfor %}<assistant>";
    let refuses = turns.replace("SYSTEM", "{{ raise_exception('no system role') }}");
    let leaves_out = turns.replace("SYSTEM", "");
    for template in [refuses, leaves_out] {
        let server = TestServer::with_template(&template);
        let user = json!({"role": "user", "content": "Hello"});
        let system = json!({"role": "system", "content": "Be kind"});
        let rendered = server.ok("/apply-template", &json!({"messages": [system, user]}));
        assert_eq!(rendered["prompt"], "<user>Be kind\n\nHello<assistant>");
        let joined = json!([{"role": "user", "content": "Be kind\n\nHello"}]);
        let want = content(&server.ok(PATH, &ask(json!({"messages": joined}))));
        let plain = content(&server.ok(PATH, &ask(json!({"messages": [user]}))));
        assert_ne!(want, plain);

        assert_eq!(content(&server.ok(PATH, &ask(json!({"messages": [system, user]})))), want);
        let greedy = |more: Value| {
            let mut body = json!({"model": "tiny", "temperature": 0, "stream": false});
            body.as_object_mut()
                .expect("fields")
                .extend(more.as_object().cloned().expect("fields"));
            body
        };
        let begins = |text: &Value| {
            let text = text.as_str().expect("a text");
            assert!(!text.is_empty() && want.starts_with(text), "{text:?}, expected {want:?}");
        };
        let body = json!({"max_tokens": 12, "system": "Be kind", "messages": [user]});
        begins(&server.ok("/v1/messages", &greedy(body))["content"][0]["text"]);
        let body = json!({"max_output_tokens": 12, "instructions": "Be kind", "input": "Hello"});
        begins(&server.ok("/v1/responses", &greedy(body))["output"][0]["content"][0]["text"]);
        let options = json!({"temperature": 0, "num_predict": 12});
        let body = json!({"options": options, "messages": [system, user]});
        begins(&server.ok("/api/chat", &greedy(body))["message"]["content"]);
        let body = json!({"options": options, "system": "Be kind", "prompt": "Hello"});
        begins(&server.ok("/api/generate", &greedy(body))["response"]);
    }
}
