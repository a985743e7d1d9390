//! What the sampling of a request begins from: the model's own, in every dialect.

use super::common::TestServer;
use realizar_formats::Value as GgufValue;
use serde_json::{Value, json};

/// The sampling that a request for completions would have.
fn rendered(server: &TestServer, more: &Value) -> Value {
    let mut body = json!({"prompt": "abc"});
    body.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("fields"));
    server.ok("/v1/completions/render", &body)[0]["sampling_params"].clone()
}

#[track_caller]
fn has(told: &Value, want: &Value) {
    // Parameters have 32 bits, also where JSON shows more.
    let number = |value: &Value| value.as_f64().map(|number| number as f32);
    for (name, want) in want.as_object().expect("members") {
        assert_eq!(number(&told[name]), number(want), "{name} of {told}");
    }
}

#[test]
fn a_request_begins_from_the_models_own() {
    let keys = [
        ("general.sampling.temp", GgufValue::F32(0.5)),
        ("general.sampling.top_k", GgufValue::I32(20)),
        ("general.sampling.penalty_repeat", GgufValue::F32(1.25)),
    ];
    let server = TestServer::with_keys(&keys);
    // Of what the file does not say, the fallback.
    let own = json!({"temperature": 0.5, "top_k": 20, "top_p": 0.95, "min_p": 0.05});
    let with_penalty = |name: &str| {
        let mut own = own.clone();
        own[name] = json!(1.25);
        own
    };
    has(&rendered(&server, &json!({})), &with_penalty("repetition_penalty"));
    let models = server.get("/v1/models").json();
    has(&models["data"][0]["meta"]["sampling"], &with_penalty("repetition_penalty"));
    let props = server.get("/props").json();
    has(&props["default_generation_settings"]["params"], &with_penalty("repeat_penalty"));
    let card = server.ok("/api/show", &json!({"model": "tiny"}));
    assert_eq!(
        card["parameters"],
        "temperature 0.5\ntop_k 20\ntop_p 0.95\nmin_p 0.05\nrepeat_penalty 1.25"
    );
    // What a request states is meant as OpenAI's reference says, and what is null is not stated.
    let stated = json!({"temperature": 1, "top_p": 1, "top_k": null});
    let want = json!({"temperature": 1.0, "top_p": 1.0, "top_k": 20, "repetition_penalty": 1.25});
    has(&rendered(&server, &stated), &want);
}

#[test]
fn every_dialect_begins_from_the_models_own() {
    // A model that is greedy by itself: whatever draws otherwise would not repeat these tokens.
    let server = TestServer::with_keys(&[("general.sampling.temp", GgufValue::F32(0.0))]);
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let chat = |more: Value| {
        let mut body = json!({"model": "tiny", "messages": messages, "max_tokens": 24});
        body.as_object_mut().expect("fields").extend(more.as_object().cloned().expect("fields"));
        let answer = server.ok("/v1/chat/completions", &body);
        answer["choices"][0]["message"]["content"].clone()
    };
    let want = chat(json!({"temperature": 0}));
    assert_eq!(chat(json!({})), want);
    assert_ne!(chat(json!({"temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0})), want);
    let anthropic = json!({"model": "tiny", "messages": messages, "max_tokens": 24});
    let answer = server.ok("/v1/messages", &anthropic);
    assert_eq!(answer["content"][0]["text"], want);
    let responses = json!({"model": "tiny", "input": "Hello", "max_output_tokens": 24});
    let answer = server.ok("/v1/responses", &responses);
    assert_eq!(answer["output"][0]["content"][0]["text"], want);
    assert_eq!((&answer["temperature"], &answer["top_p"]), (&json!(0.0), &json!(0.95)));
    let options = json!({"num_predict": 24});
    let ollama =
        json!({"model": "tiny", "messages": messages, "stream": false, "options": options});
    assert_eq!(server.ok("/api/chat", &ollama)["message"]["content"], want);

    let completion = server.ok("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 24}));
    let llama = server.ok("/completion", &json!({"prompt": "Hello", "n_predict": 24}));
    assert_eq!(llama["content"], completion["choices"][0]["text"]);
    assert_eq!(llama["generation_settings"]["temperature"], 0.0);
}
