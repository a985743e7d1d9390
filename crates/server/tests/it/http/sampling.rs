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

#[test]
fn penalties_count_the_prompt_where_the_dialect_says_so() {
    let server = TestServer::start();
    let ids = server.ok("/tokenize", &json!({"content": "Hello, you"}))["tokens"].clone();
    let of = |idx: usize| ids[idx].as_u64().expect("an id");
    // Two tokens above all others; the prompt has the first twice.
    let (first, second) = (of(0), of(1));
    let prompt = json!([first, first]);
    let body = |more: &Value| {
        let mut body = json!({"prompt": prompt, "n_predict": 1, "temperature": 1, "top_k": 0, "top_p": 1,
            "min_p": 0, "logit_bias": [[first, 50], [second, 50]], "seed": 1});
        body.as_object_mut().expect("fields").extend(more.as_object().cloned().expect("fields"));
        body
    };
    // How much more likely the first one is, as a difference of logits.
    let above = |more: Value| {
        let mut more = more;
        (more["n_probs"], more["post_sampling_probs"]) = (json!(2), json!(true));
        let answer = server.ok("/completion", &body(&more));
        let top = answer["completion_probabilities"][0]["top_probs"].clone();
        let share = |id: u64| {
            let mut tokens = top.as_array().expect("tokens").iter();
            let token = tokens.find(|token| token["id"] == id).expect("a token");
            token["prob"].as_f64().expect("a share")
        };
        (share(first) / share(second)).ln()
    };
    let plain = above(json!({}));
    let with = |more: Value| {
        let mut all = json!({"presence_penalty": 0.5, "frequency_penalty": 0.25});
        all.as_object_mut().expect("fields").extend(more.as_object().cloned().expect("fields"));
        all
    };
    for (more, want) in [
        (json!({}), 1.0),
        (json!({"repeat_last_n": 1}), 0.75),
        (json!({"repeat_last_n": 0}), 0.0),
        (json!({"penalize_prompt": false}), 0.0),
    ] {
        let got = plain - above(with(more.clone()));
        assert!((got - want).abs() < 1e-3, "{more}: {got}");
    }

    // The first token is ahead by half of what the penalties take from it.
    let ahead = 50.0 - plain + 0.5;
    let chosen = |path: &str, more: Value| {
        let mut more = with(more);
        more["temperature"] = json!(0);
        more["logit_bias"] = json!([[first, ahead], [second, 50]]);
        more["return_tokens"] = json!(true);
        let answer = server.ok(path, &body(&more));
        let tokens = match path {
            "/completion" => answer["tokens"].clone(),
            _ => answer["choices"][0]["tokens"].clone(),
        };
        tokens[0].as_u64().expect("an id")
    };
    assert_eq!(chosen("/completion", json!({})), second);
    assert_eq!(chosen("/completion", json!({"penalize_prompt": false})), first);
    assert_eq!(chosen("/v1/completions", json!({})), first);
    assert_eq!(chosen("/v1/completions", json!({"penalize_prompt": true})), second);
}
