//! `/v1/completions`: prompts in every form, echo, log-probabilities, stops, seeds, streams.

use super::common::{INFILL, TestServer, parts_of};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";

fn text(answer: &Value, choice: usize) -> String {
    answer["choices"][choice]["text"].as_str().expect("a text").to_owned()
}

/// `base` with the fields of `more`.
fn with(base: &Value, more: Value) -> Value {
    let mut both = base.clone();
    let Value::Object(more) = more else { panic!("fields are an object") };
    for (key, value) in more {
        both[key] = value;
    }
    both
}

fn greedy() -> Value {
    json!({"prompt": "abc", "temperature": 0, "max_tokens": 8, "ignore_eos": true})
}

#[test]
fn gaps_are_filled() {
    let server = TestServer::start();
    let ids_of = |text: &str| {
        let body = json!({"prompt": text, "add_special_tokens": false});
        server.ok("/tokenize", &body)["tokens"].as_array().expect("ids").clone()
    };
    let [prefix, suffix, middle] = INFILL.map(|id| json!(id));
    let body = json!({"prompt": ["ab", ""], "suffix": "cd"});
    let rendered = server.ok("/v1/completions/render", &body);
    for (idx, before) in ["ab", ""].iter().enumerate() {
        let before = if before.is_empty() { Vec::new() } else { ids_of(before) };
        let want = [vec![prefix.clone()], before, vec![suffix.clone()], ids_of("cd")].concat();
        let ids = rendered[idx]["token_ids"].as_array().expect("ids");
        // The first token begins every text of this model.
        assert_eq!(ids[1..], [want, vec![middle.clone()]].concat(), "{idx}");
        assert_eq!(ids[0], server.ok("/tokenize", &json!({"prompt": "a"}))["tokens"][0]);
    }
    let plain = json!({"prompt": "ab", "suffix": "", "add_special_tokens": false});
    let plain = server.ok("/v1/completions/render", &plain);
    assert_eq!(plain[0]["token_ids"].as_array(), Some(&ids_of("ab")));
    let body = json!({"prompt": "ab", "suffix": "cd", "max_tokens": 3, "ignore_eos": true});
    assert_eq!(server.ok(PATH, &body)["usage"]["completion_tokens"], 3);
    let error = server.post(PATH, &json!({"prompt": "ab", "suffix": "cd", "echo": true}));
    assert_eq!((error.status, &error.json()["error"]["param"]), (400, &json!("suffix")));
}

#[test]
fn an_answer_has_every_field() {
    let server = TestServer::start();
    let answer = server.ok(PATH, &with(&greedy(), json!({"model": "small", "user": "u"})));
    assert!(answer["id"].as_str().is_some_and(|id| id.starts_with("cmpl-")), "{answer}");
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["model"], "small");
    assert!(answer["created"].as_u64().is_some_and(|at| at > 1_700_000_000));
    assert!(answer["system_fingerprint"].is_string());
    let choice = &answer["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    assert_eq!(choice.get("logprobs"), Some(&Value::Null));
    let usage = &answer["usage"];
    // The beginning-of-text token and three letters.
    assert_eq!(usage["prompt_tokens"], 4);
    assert_eq!((&usage["completion_tokens"], &usage["total_tokens"]), (&json!(8), &json!(12)));
    assert!(usage["prompt_tokens_details"]["cached_tokens"].is_u64());
    let default = server.ok(PATH, &json!({"prompt": "abc", "ignore_eos": true}));
    assert_eq!(default["usage"]["completion_tokens"], 16);
    assert_eq!(default["model"], "tiny");
}

#[test]
fn prompts_come_as_texts_and_as_ids() {
    let server = TestServer::start();
    let answer = server.ok(PATH, &greedy());
    for prompt in [json!(["abc"]), json!([1, 260, 261, 262]), json!([[1, 260, 261, 262]])] {
        let same = server.ok(PATH, &with(&greedy(), json!({"prompt": prompt})));
        assert_eq!(same["choices"], answer["choices"], "{prompt}");
    }
    let prompts = json!({"prompt": ["abc", "b"], "n": 2, "temperature": 0});
    let both = server.ok(PATH, &with(&greedy(), prompts));
    let choices = both["choices"].as_array().expect("choices");
    let indices: Vec<_> = choices.iter().map(|choice| choice["index"].clone()).collect();
    assert_eq!(indices, [0, 1, 2, 3]);
    assert_eq!(text(&both, 0), text(&answer, 0));
    assert_eq!(text(&both, 1), text(&answer, 0));
    let b = server.ok(PATH, &with(&greedy(), json!({"prompt": "b"})));
    assert_eq!(text(&both, 2), text(&b, 0));
    assert_eq!(both["usage"]["prompt_tokens"], 4 + 2);
    assert_eq!(both["usage"]["completion_tokens"], 4 * 8);
}

#[test]
fn echo_tells_how_likely_the_prompt_was() {
    let server = TestServer::start();
    let ask = json!({"prompt": "abc", "temperature": 0, "max_tokens": 1, "logprobs": 2,
                     "ignore_eos": true});
    let answer = server.ok(PATH, &ask);
    let generated = &answer["choices"][0]["logprobs"];
    assert_eq!(generated["tokens"].as_array().map(Vec::len), Some(1));
    let first = generated["token_logprobs"][0].as_f64().expect("a number");
    // The most likely token is the one that was chosen.
    let top = generated["top_logprobs"][0].as_object().expect("an object");
    assert_eq!(top.len(), 2);
    assert!(top.values().all(|p| p.as_f64().is_some_and(|p| p <= first)), "{generated}");

    let echo = server.ok(PATH, &with(&ask, json!({"echo": true})));
    assert_eq!(text(&echo, 0), format!("abc{}", text(&answer, 0)));
    let lists = &echo["choices"][0]["logprobs"];
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(lists[name].as_array().map(Vec::len), Some(5), "{name}");
    }
    assert_eq!(lists["token_logprobs"][0], Value::Null);
    assert_eq!(lists["top_logprobs"][0], Value::Null);
    let near = |a: &Value, b: f64| a.as_f64().is_some_and(|a| (a - b).abs() < 1e-3);
    assert!(near(&lists["token_logprobs"][4], first), "{lists}");
    let spelled: Vec<_> = lists["tokens"].as_array().expect("tokens")[1..4].to_vec();
    assert_eq!(spelled, ["a", "b", "c"]);

    // What was generated, given as the end of a prompt, is as likely as when it was generated.
    let ids = server.ok("/tokenize", &json!({"content": "abc", "add_special": true}));
    let (mut ids, logits) = (ids["tokens"].clone(), server.ok(PATH, &greedy()));
    let chosen = server.ok("/tokenize", &json!({"content": text(&logits, 0)}));
    let id = server.ok(PATH, &with(&ask, json!({"logprobs": 1})));
    assert_eq!(
        id["choices"][0]["logprobs"]["top_logprobs"][0].as_object().map(|m| m.len()),
        Some(1)
    );
    ids.as_array_mut().expect("ids").push(chosen["tokens"][0].clone());
    let scored =
        json!({"prompt": [ids], "echo": true, "logprobs": 1, "max_tokens": 0, "temperature": 0});
    let scored = server.ok(PATH, &scored);
    let lists = &scored["choices"][0]["logprobs"];
    assert_eq!(lists["tokens"].as_array().map(Vec::len), Some(5));
    assert_eq!(scored["usage"]["completion_tokens"], 0);
    assert_eq!(scored["choices"][0]["finish_reason"], "length");
    if chosen["tokens"].as_array().map(Vec::len) == Some(8) {
        assert!(near(&lists["token_logprobs"][4], first), "{lists} {first}");
    }
    // Without log-probabilities only the text comes back.
    let plain = server.ok(PATH, &json!({"prompt": "abc", "echo": true, "max_tokens": 0}));
    assert_eq!((text(&plain, 0).as_str(), &plain["choices"][0]["logprobs"]), ("abc", &Value::Null));
}

#[test]
fn answers_end_where_they_are_told_to() {
    let server = TestServer::start();
    let ask = with(&greedy(), json!({"max_tokens": 32}));
    let whole = text(&server.ok(PATH, &ask), 0);
    let stop: String = whole.chars().skip(2).take(2).collect();
    let before = &whole[..whole.find(&stop).expect("a part of the text")];
    for stop in [json!(stop), json!(["not in the text", stop])] {
        let answer = server.ok(PATH, &with(&ask, json!({"stop": stop})));
        assert_eq!(text(&answer, 0), before);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
    let banned = server.ok(PATH, &with(&ask, json!({"logprobs": 1, "max_tokens": 1})));
    let token = banned["choices"][0]["logprobs"]["tokens"][0].as_str().expect("a token").to_owned();
    let ids = server.ok("/tokenize", &json!({"content": token}));
    if let Some([id]) = ids["tokens"].as_array().map(Vec::as_slice) {
        let bias = json!({"logit_bias": {id.to_string(): -100}, "max_tokens": 1});
        assert_ne!(text(&server.ok(PATH, &with(&ask, bias)), 0), token);
    }
}

#[test]
fn seeds_make_answers_repeat() {
    let server = TestServer::start();
    let ask = json!({"prompt": "abc", "temperature": 1.5, "max_tokens": 24, "ignore_eos": true,
                     "seed": 7});
    let first = text(&server.ok(PATH, &ask), 0);
    assert_eq!(text(&server.ok(PATH, &ask), 0), first);
    assert_ne!(text(&server.ok(PATH, &with(&ask, json!({"seed": 8}))), 0), first);
    let two = server.ok(PATH, &with(&ask, json!({"n": 2})));
    assert_eq!(text(&two, 0), first);
    assert_ne!(text(&two, 1), first);
    let best = server.ok(PATH, &with(&ask, json!({"n": 1, "best_of": 3})));
    assert_eq!(best["choices"].as_array().map(Vec::len), Some(1));
    assert_eq!(best["usage"]["completion_tokens"], 3 * 24);
    assert_eq!(best["choices"][0]["logprobs"], Value::Null);
}

#[test]
fn a_stream_says_what_an_answer_says() {
    let server = TestServer::start();
    for more in [
        json!({}),
        json!({"echo": true}),
        json!({"logprobs": 1}),
        json!({"echo": true, "logprobs": 1, "n": 2}),
        json!({"prompt": ["abc", "b"], "temperature": 1.5, "seed": 3, "n": 2}),
        json!({"stop": "never in the text", "max_tokens": 40}),
    ] {
        let ask = with(&greedy(), more);
        let answer = server.ok(PATH, &ask);
        let options = json!({"stream": true, "stream_options": {"include_usage": true}});
        let mut chunks = server.chunks(PATH, &with(&ask, options));
        let last = chunks.pop().expect("a chunk of usage");
        assert_eq!(last["choices"], json!([]));
        let usage = |usage: &Value| (usage["prompt_tokens"].clone(), usage["total_tokens"].clone());
        assert_eq!(usage(&last["usage"]), usage(&answer["usage"]), "{ask}");
        assert!(chunks.iter().all(|chunk| chunk.get("usage") == Some(&Value::Null)));
        assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
        for choice in answer["choices"].as_array().expect("choices") {
            let own = parts_of(&chunks, choice);
            let text: String = own.iter().map(|c| c["text"].as_str().expect("text")).collect();
            assert_eq!(text, choice["text"].as_str().expect("text"), "{ask}");
            let reasons: Vec<_> = own.iter().map(|c| &c["finish_reason"]).collect();
            let (end, before) = reasons.split_last().expect("chunks");
            assert_eq!(*end, &choice["finish_reason"]);
            assert!(before.iter().all(|reason| reason.is_null()));
            for name in ["tokens", "token_logprobs", "text_offset", "top_logprobs"] {
                let lists = own.iter().filter_map(|c| c["logprobs"][name].as_array());
                let streamed: Vec<Value> = lists.flatten().cloned().collect();
                let whole = choice["logprobs"][name].as_array().cloned().unwrap_or_default();
                assert_eq!(streamed, whole, "{name} {ask}");
            }
        }
        let quiet = server.chunks(PATH, &with(&ask, json!({"stream": true})));
        assert!(quiet.iter().all(|chunk| chunk.get("usage").is_none()));
    }
}
