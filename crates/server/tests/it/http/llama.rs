//! llama-server's own endpoints: the answers are those of OpenAI's, in its own words.

use super::common::{CONTEXT, INFILL, TestServer};
use realizar_runtime::engine::EngineOptions;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// `body` with the members of `more`.
fn with(mut body: Value, more: &Value) -> Value {
    body.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("members"));
    body
}

/// A greedy answer of twelve tokens.
fn ask(more: &Value) -> Value {
    with(json!({"prompt": "Hello", "n_predict": 12, "temperature": 0}), more)
}

/// A server that runs four sequences at a time.
fn with_four_slots() -> TestServer {
    TestServer::with(|_| {}, EngineOptions { max_seqs: Some(4), ..EngineOptions::default() })
}

/// The error of a request.
fn refused(server: &TestServer, path: &str, body: &Value, status: u16) -> Value {
    let answer = server.post(path, body);
    assert_eq!(answer.status, status, "{path} {body}: {}", answer.body);
    let error = answer.json()["error"].clone();
    assert_eq!(error["code"], status);
    error
}

fn ids(server: &TestServer, text: &str) -> Vec<u32> {
    let body = json!({"content": text, "parse_special": false});
    serde_json::from_value(server.ok("/tokenize", &body)["tokens"].clone()).expect("ids")
}

#[test]
fn an_answer_is_that_of_plain_completions() {
    let server = TestServer::start();
    let plain = json!({"prompt": "Hello", "max_tokens": 12, "temperature": 0, "logprobs": 2,
        "return_tokens": true});
    let plain = server.ok("/v1/completions", &plain);
    let (choice, usage) = (&plain["choices"][0], &plain["usage"]);
    for path in ["/completion", "/completions"] {
        let more = json!({"n_probs": 2, "return_tokens": true, "cache_prompt": false});
        let answer = server.ok(path, &ask(&more));
        assert_eq!(answer["content"], choice["text"]);
        assert_eq!(answer["tokens"], choice["tokens"]);
        assert_eq!(answer["tokens_evaluated"], usage["prompt_tokens"]);
        let want = json!({"index": 0, "stop": true, "stop_type": "limit", "stopping_word": "",
            "tokens_predicted": 12, "truncated": false, "model": "tiny", "id_slot": 0});
        for (name, want) in want.as_object().expect("members") {
            assert_eq!(answer[name], *want, "{name}");
        }
        let prompt = server.ok("/tokenize", &json!({"content": "Hello", "add_special": true}));
        let prompt = server.ok("/detokenize", &json!({"tokens": prompt["tokens"]}));
        assert_eq!(answer["prompt"], prompt["content"]);
        let settings = &answer["generation_settings"];
        for (name, want) in [
            ("n_predict", json!(12)),
            ("temperature", json!(0.0)),
            ("top_k", json!(40)),
            ("n_probs", json!(2)),
            ("stream", json!(false)),
            ("logit_bias", json!([])),
            ("grammar", json!("")),
        ] {
            assert_eq!(settings[name], want, "{name}");
        }
        let probs = answer["completion_probabilities"].as_array().expect("a list");
        assert_eq!(probs.len(), 12);
        for (idx, prob) in probs.iter().enumerate() {
            assert_eq!(prob["id"], choice["tokens"][idx]);
            assert_eq!(prob["logprob"], choice["logprobs"]["token_logprobs"][idx]);
            let top = prob["top_logprobs"].as_array().expect("a list");
            assert_eq!((top.len(), &top[0]["id"]), (2, &prob["id"]), "greedy");
            assert_eq!(top[0]["logprob"], prob["logprob"]);
        }
        let timings = &answer["timings"];
        assert_eq!((&timings["predicted_n"], &timings["cache_n"]), (&json!(12), &json!(0)));
        assert_eq!(timings["prompt_n"], usage["prompt_tokens"]);
        let of = |name: &str| timings[name].as_f64().expect(name);
        assert!(of("prompt_ms") > 0.0 && of("predicted_ms") > 0.0, "{timings}");
        assert!((of("predicted_per_second") - 11e3 / of("predicted_ms")).abs() < 1e-6);
    }
}

#[test]
fn a_stream_has_an_event_for_each_token() {
    let server = TestServer::start();
    let whole = server.ok("/completion", &ask(&json!({"return_tokens": true})));
    let more = json!({"stream": true, "n_probs": 1, "timings_per_token": true,
        "stream_options": {"include_usage": true}, "sse_ping_interval": -1});
    let events = server.stream("/completion", &ask(&more));
    let events: Vec<Value> =
        events.iter().map(|data| serde_json::from_str(data).expect("JSON")).collect();
    let (last, pieces) = events.split_last().expect("events");
    let text: String = pieces.iter().map(|p| p["content"].as_str().expect("a text")).collect();
    assert_eq!(text, whole["content"].as_str().expect("a text"));
    for (idx, piece) in pieces.iter().enumerate() {
        assert_eq!((&piece["stop"], &piece["tokens_predicted"]), (&json!(false), &json!(idx + 1)));
        assert_eq!(piece["tokens"], json!([whole["tokens"][idx]]));
        assert_eq!(piece["completion_probabilities"][0]["id"], whole["tokens"][idx]);
        assert_eq!(piece["timings"]["predicted_n"], idx + 1);
    }
    assert_eq!((pieces.len(), &last["stop"], &last["content"]), (12, &json!(true), &json!("")));
    assert_eq!((&last["stop_type"], &last["tokens"]), (&json!("limit"), &json!([])));
    assert_eq!(last["usage"]["completion_tokens"], 12);
    assert_eq!(last["generation_settings"]["stream"], true);
}

#[test]
fn prompts_have_many_forms() {
    let server = TestServer::start();
    let text = |prompt: Value| {
        let answer = server.ok("/completion", &ask(&json!({"prompt": prompt})));
        answer["content"].as_str().expect("a text").to_owned()
    };
    let hello = server.ok("/tokenize", &json!({"content": "Hello", "add_special": true}));
    let hello = hello["tokens"].clone();
    let want = text(json!("Hello"));
    assert_eq!(text(hello.clone()), want);
    assert_eq!(text(json!({"prompt_string": "Hello"})), want);
    assert_eq!(text(json!(["Hello"])), want, "one prompt has one answer");
    // Texts after ids have no tokens around them.
    let mut all: Vec<u32> = serde_json::from_value(hello.clone()).expect("ids");
    all.extend(ids(&server, "you"));
    all.push(40);
    let mut mixed = hello.as_array().cloned().expect("ids");
    mixed.extend([json!("you"), json!(40)]);
    assert_eq!(text(json!(mixed)), text(json!(all)));
    let prompts = json!(["Hello", mixed, {"prompt_string": "x"}]);
    let several = server.ok("/completion", &ask(&json!({"prompt": prompts, "n_cmpl": 2})));
    let several = several.as_array().expect("a list");
    let of = |idx: usize| several[idx]["content"].as_str().expect("a text");
    assert_eq!(several.len(), 6);
    assert!(several.iter().enumerate().all(|(idx, answer)| answer["index"] == idx));
    assert_eq!([of(0), of(1), of(2)], [&*want, &*want, &*text(json!(all))]);
    assert_eq!(of(4), text(json!("x")));

    let error = |prompt: Value| refused(&server, "/completion", &json!({"prompt": prompt}), 400);
    assert_eq!(error(json!([]))["param"], "prompt");
    assert_eq!(error(json!([[]]))["message"], "the prompt has no tokens");
    let media = json!({"prompt_string": "x", "multimodal_data": ["aGk="]});
    assert!(error(media)["message"].as_str().expect("a text").contains("not supported"));
    let outside = error(json!([1, 99_999]));
    assert!(outside["message"].as_str().expect("a text").contains("99999"), "{outside}");
}

#[test]
fn answers_end_where_they_are_told_to() {
    let server = TestServer::start();
    let whole = server.ok("/completion", &ask(&json!({})));
    let whole = whole["content"].as_str().expect("a text");
    let (at, word) = whole.char_indices().nth(4).expect("some characters");
    let (word, at) = (word.to_string(), whole.find(word).map_or(at, |first| first.min(at)));
    let answer = server.ok("/completion", &ask(&json!({"stop": [word]})));
    assert_eq!((&answer["stop_type"], &answer["stopping_word"]), (&json!("word"), &json!(word)));
    assert_eq!(answer["content"], whole[..at]);
    assert_eq!(answer["generation_settings"]["stop"], json!([word]));

    let grammar = json!({"grammar": "root ::= \"yes\"", "n_predict": -1});
    let answer = server.ok("/completion", &ask(&grammar));
    assert_eq!((&answer["content"], &answer["stop_type"]), (&json!("yes"), &json!("eos")));
    assert_eq!(answer["generation_settings"]["grammar"], grammar["grammar"]);

    // The time counts from a line feed on.
    let lines = json!({"grammar": "root ::= \"\\n\"*", "n_predict": -1, "ignore_eos": true,
        "t_max_predict_ms": 1, "temperature": 1});
    let answer = server.ok("/completion", &ask(&lines));
    let n = answer["tokens_predicted"].as_u64().expect("a number");
    assert_eq!((&answer["stop_type"], &answer["has_new_line"]), (&json!("limit"), &json!(true)));
    assert!(n > 1 && n < u64::from(CONTEXT) / 2, "{n}");
    assert_eq!(answer["truncated"], false);
    let events = server.stream("/completion", &ask(&with(lines, &json!({"stream": true}))));
    assert!(events.last().expect("events").contains("\"stop_type\":\"limit\""));
    let letters = json!({"grammar": "root ::= \"a\"*", "n_predict": 300, "ignore_eos": true,
        "t_max_predict_ms": 1});
    assert_eq!(server.ok("/completion", &ask(&letters))["tokens_predicted"], 300);
}

#[test]
fn a_context_that_is_full_truncates_the_answer() {
    let server = TestServer::with_context(64);
    let answer = server.ok("/completion", &ask(&json!({"n_predict": -1, "ignore_eos": true})));
    assert_eq!((&answer["truncated"], &answer["stop_type"]), (&json!(true), &json!("limit")));
    let count = |name: &str| answer[name].as_u64().expect(name);
    assert_eq!(count("tokens_evaluated") + count("tokens_predicted"), 65);
    // The tokens that may not come are biases, as there is no end to the answer otherwise.
    let biases = &answer["generation_settings"]["logit_bias"];
    assert!(biases.as_array().is_some_and(|list| !list.is_empty()), "{biases}");
    assert!(biases.as_array().into_iter().flatten().all(|bias| bias["bias"].is_null()));

    let error = refused(&server, "/completion", &json!({"prompt": "long ".repeat(64)}), 400);
    assert_eq!(
        (&error["type"], &error["n_ctx"]),
        (&json!("exceed_context_size_error"), &json!(64))
    );
}

#[test]
fn a_prompt_may_be_run_anew() {
    let server = TestServer::start();
    let body = ask(&json!({"prompt": "once upon a time ".repeat(8)}));
    let ask = |more: &Value| server.ok("/completion", &with(body.clone(), more));
    let first = ask(&json!({}));
    assert_eq!(first["tokens_cached"], 0);
    let again = ask(&json!({}));
    assert!(again["tokens_cached"].as_u64() >= Some(32), "{again}");
    let anew = ask(&json!({"cache_prompt": false}));
    assert_eq!((&anew["tokens_cached"], &anew["timings"]["cache_n"]), (&json!(0), &json!(0)));
    assert_eq!(anew["timings"]["prompt_n"], anew["tokens_evaluated"]);
    assert!(first["content"] == again["content"] && first["content"] == anew["content"]);
}

#[test]
fn probabilities_are_those_behind_sampling_where_that_is_asked_for() {
    let server = TestServer::start();
    let probs = |more: Value| {
        let answer =
            server.ok("/completion", &ask(&with(json!({"post_sampling_probs": true}), &more)));
        answer["completion_probabilities"].as_array().cloned().expect("a list")
    };
    let of = |tokens: &Value| -> Vec<f64> {
        let tokens = tokens.as_array().expect("a list").iter();
        tokens.map(|token| token["prob"].as_f64().expect("a number")).collect()
    };
    for token in probs(json!({"n_probs": 3})) {
        assert_eq!((&token["prob"], of(&token["top_probs"])), (&json!(1.0), vec![1.0]), "greedy");
    }
    // Without filters, at the temperature 1, they are the model's own.
    let body = json!({"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "n_predict": 1,
        "n_probs": 3, "seed": 1});
    let plain = server.ok("/completion", &ask(&body));
    let plain = plain["completion_probabilities"][0]["top_logprobs"].as_array().cloned();
    let model: Vec<f64> = plain
        .expect("a list")
        .iter()
        .map(|token| token["logprob"].as_f64().expect("a number").exp())
        .collect();
    let close = |got: &[f64], want: &[f64]| {
        got.len() == want.len() && got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-4)
    };
    let told = of(&probs(body.clone())[0]["top_probs"]);
    assert!(close(&told, &model), "{told:?} instead of {model:?}");
    // Two are left of all, at half the temperature: squares of their shares.
    let two = with(body, &json!({"temperature": 0.5, "top_k": 2}));
    let squares = model[0].powi(2) + model[1].powi(2);
    let want = [model[0].powi(2) / squares, model[1].powi(2) / squares];
    let token = probs(two)[0].clone();
    let told = of(&token["top_probs"]);
    assert!(close(&told, &want), "{told:?} instead of {want:?}");
    let is_told = token["top_probs"].as_array().is_some_and(|list| {
        list.iter().any(|top| top["id"] == token["id"] && top["prob"] == token["prob"])
    });
    assert!(is_told, "{token}");
}

#[test]
fn an_answer_has_the_places_that_are_asked_for() {
    let server = TestServer::start();
    let fields = json!(["content", "generation_settings/n_predict", "timings/predicted_n", "x/y"]);
    let answer = server.ok("/completion", &ask(&json!({"response_fields": fields})));
    let whole = server.ok("/completion", &ask(&json!({"response_fields": []})));
    let want = json!({"content": whole["content"], "generation_settings/n_predict": 12,
        "timings/predicted_n": 12});
    assert_eq!(answer, want);
}

#[test]
fn what_cannot_be_honoured_is_named() {
    let server = TestServer::start();
    for (name, value) in [
        ("id_slot", json!(1)),
        ("lora", json!([{"id": 0, "scale": 1}])),
        ("n_discard", json!(4)),
        ("return_progress", json!(true)),
        ("grammar_lazy", json!(true)),
        ("adaptive_target", json!(0.5)),
        ("dynatemp_range", json!(0.5)),
        ("n_keep", json!(-2)),
        ("n_cmpl", json!(1000)),
        ("sse_ping_interval", json!(0)),
        ("mirostat", json!(1)),
        ("samplers", json!(["infill"])),
    ] {
        let error = refused(&server, "/completion", &ask(&json!({(name): value})), 400);
        assert_eq!(
            (&error["param"], &error["type"]),
            (&json!(name), &json!("invalid_request_error"))
        );
    }
    // Defaults of clients ask for nothing.
    let defaults = json!({"id_slot": -1, "lora": [], "n_discard": 0, "n_keep": 4, "min_keep": 0,
        "t_max_predict_ms": 0, "n_probs": 0, "dynatemp_range": 0, "adaptive_target": -1,
        "backend_sampling": true, "mirostat": 0});
    server.ok("/completion", &ask(&defaults));
    for path in ["/slots/0?action=save", "/slots/0?action=erase"] {
        let answer = server.post(path, &json!({"filename": "x"}));
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.body.contains("prefix cache"), "{}", answer.body);
    }
}

#[test]
fn gaps_are_filled_between_texts_and_behind_other_files() {
    let server = TestServer::start();
    let gap = json!({"input_prefix": "ab", "input_suffix": "yz", "n_predict": 8, "temperature": 0});
    let plain = json!({"prompt": "ab", "suffix": "yz", "max_tokens": 8, "temperature": 0});
    let plain = server.ok("/v1/completions", &plain);
    let answer = server.ok("/infill", &gap);
    assert_eq!(answer["content"], plain["choices"][0]["text"]);
    assert_eq!(answer["tokens_evaluated"], plain["usage"]["prompt_tokens"]);

    // The order of llama.cpp's `format_prompt_infill`.
    let extra = json!({"input_extra": [{"text": "one"}, {"filename": "b", "text": "two"}],
        "prompt": "cd"});
    let answer = server.ok("/infill", &with(gap.clone(), &extra));
    let begin = server.ok("/tokenize", &json!({"content": "", "add_special": true}));
    let begin: Vec<u32> = serde_json::from_value(begin["tokens"].clone()).expect("ids");
    let snippet = ids(&server, "\n\n--- snippet ---\n\n");
    let [prefix, suffix, middle] = INFILL.map(|id| vec![id]);
    let [one, two, ab, cd, yz] = ["one", "two", "ab", "cd", "yz"].map(|text| ids(&server, text));
    let parts =
        [snippet.clone(), one, snippet, two, begin, prefix, ab, cd, suffix, yz, middle].concat();
    let whole = server.ok("/completion", &ask(&json!({"prompt": parts, "n_predict": 8})));
    assert_eq!(answer["content"], whole["content"]);
    assert_eq!(answer["prompt"], whole["prompt"]);

    // Of other files there is as much as fits.
    let small = TestServer::with_context(64);
    let long = json!({"input_extra": [{"text": "long ".repeat(64)}]});
    let answer = small.ok("/infill", &with(gap.clone(), &long));
    assert_eq!(answer["tokens_evaluated"], 64 - 8);
    let error = refused(
        &small,
        "/infill",
        &with(gap.clone(), &json!({"input_suffix": "long ".repeat(64)})),
        400,
    );
    assert_eq!(
        (&error["param"], &error["type"]),
        (&json!("input_suffix"), &json!("exceed_context_size_error"))
    );
    for (more, param) in [
        (json!({"input_prefix": null}), "input_prefix"),
        (json!({"input_suffix": null}), "input_suffix"),
        (json!({"input_extra": [{"filename": "x"}]}), "input_extra[0]"),
        (json!({"input_extra": [{"filename": 1, "text": "x"}]}), "input_extra[0].filename"),
        (json!({"prompt": ["x"]}), "prompt"),
    ] {
        let error = refused(&server, "/infill", &with(gap.clone(), &more), 400);
        assert_eq!(error["param"], param, "{more}: {error}");
    }
    server.add_hybrid();
    let error = refused(&server, "/infill", &with(gap, &json!({"model": "hybrid"})), 501);
    assert_eq!(error["type"], "not_supported_error");
}

#[test]
fn properties_are_those_that_requests_begin_from() {
    let server = with_four_slots();
    let props = server.get("/props").json();
    let settings = &props["default_generation_settings"];
    assert_eq!((&settings["n_ctx"], &props["total_slots"]), (&json!(CONTEXT), &json!(4)));
    assert_eq!((&props["model_alias"], &props["endpoint_slots"]), (&json!("tiny"), &json!(true)));
    assert!(props["model_path"].as_str().expect("a path").ends_with("tiny.gguf"));
    assert!(props["chat_template"].as_str().expect("a text").contains("add_generation_prompt"));
    let answer = server.ok("/completion", &json!({"prompt": "x", "n_predict": 1}));
    for (name, value) in settings["params"].as_object().expect("members") {
        if !["n_predict", "max_tokens"].contains(&name.as_str()) {
            assert_eq!(*value, answer["generation_settings"][name], "{name}");
        }
    }
    assert_eq!(server.get("/props?model=small").json()["model_alias"], "tiny");
    let answer = server.get("/props?model=other");
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (404, &json!("not_found_error")));
    refused(&server, "/props", &json!({}), 501);
    assert_eq!(server.get("/lora-adapters").json(), json!([]));
    refused(&server, "/lora-adapters", &json!([{"id": 0, "scale": 0.5}]), 501);
}

#[test]
fn slots_show_the_sequences_that_run() {
    let server = with_four_slots();
    let slots = || server.get("/slots").json().as_array().cloned().expect("slots");
    let idle = slots();
    assert_eq!(idle.len(), 4);
    for (id, slot) in idle.iter().enumerate() {
        let want =
            json!({"id": id, "n_ctx": CONTEXT, "speculative": false, "is_processing": false});
        assert_eq!(*slot, want);
    }
    let endless = json!({"prompt": "Hello", "n_predict": -1, "ignore_eos": true, "stream": true,
        "temperature": 0.5});
    let mut stream = server.open("/completion", &with(endless.clone(), &json!({"n": 3})));
    stream.next("data: ").expect("an event");
    // The first event tells of one of them; the others decode in the same step or in a later one.
    let decodes = |slot: &Value| slot["next_token"][0]["n_decoded"].as_u64() > Some(0);
    let busy = loop {
        let busy = slots();
        if busy[..3].iter().all(decodes) {
            break busy;
        }
        std::thread::yield_now();
    };
    for slot in &busy[..3] {
        assert_eq!((&slot["is_processing"], &slot["id_task"]), (&json!(true), &json!(0)), "{slot}");
        assert_eq!(slot["params"]["temperature"], 0.5);
        let next = &slot["next_token"][0];
        assert_eq!((&next["has_next_token"], &next["n_remain"]), (&json!(true), &json!(-1)));
    }
    assert_eq!(busy[3]["is_processing"], false);
    assert_eq!(server.get("/slots?fail_on_no_slot=1").status, 200);
    let mut chat = endless;
    chat.as_object_mut().expect("an object").remove("prompt");
    chat["messages"] = json!([{"role": "user", "content": "x"}]);
    let mut other = server.open("/v1/chat/completions", &chat);
    other.next("data: ").expect("an event");
    let answer = server.get("/slots?fail_on_no_slot=1");
    assert_eq!(
        (answer.status, &answer.json()["error"]["type"]),
        (503, &json!("unavailable_error"))
    );
    drop((stream, other));
    // The server hears of it when it writes the next time.
    let start = Instant::now();
    while slots().iter().any(|slot| slot["is_processing"] == true) {
        assert!(start.elapsed() < Duration::from_secs(60), "slots stay busy");
        std::thread::yield_now();
    }
}

#[test]
fn vectors_are_those_of_openai() {
    let server = TestServer::start();
    server.add_embedder();
    let numbers = |value: &Value| -> Vec<f64> {
        value.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
    };
    let ours = server.ok("/v1/embeddings", &json!({"input": ["Hello", "you there"]}));
    for (path, name) in [("/embedding", "content"), ("/embeddings", "input")] {
        let told = server.ok(path, &json!({(name): ["Hello", "you there"]}));
        for (idx, one) in told.as_array().expect("a list").iter().enumerate() {
            assert_eq!(one["index"], idx);
            let (one, want) =
                (numbers(&one["embedding"][0]), numbers(&ours["data"][idx]["embedding"]));
            assert!(one.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-6), "{one:?} {want:?}");
        }
    }
    let scaled = |kind: i32| {
        let told = server.ok("/embedding", &json!({"content": "Hello", "embd_normalize": kind}));
        numbers(&told[0]["embedding"][0])
    };
    let largest = |list: &[f64]| list.iter().map(|x| x.abs()).fold(0.0, f64::max);
    assert!((largest(&scaled(0)) - 32760.0).abs() < 0.01);
    assert!((scaled(1).iter().map(|x| x.abs()).sum::<f64>() - 1.0).abs() < 1e-4);
    let (raw, unit) = (scaled(-1), scaled(2));
    let length = raw.iter().map(|x| x * x).sum::<f64>().sqrt();
    assert!(raw.iter().zip(&unit).all(|(x, y)| (x / length - y).abs() < 1e-5));
    let error = |body: Value| refused(&server, "/embedding", &body, 400)["param"].clone();
    assert_eq!(error(json!({"content": []})), "content");
    assert_eq!(error(json!({"content": "x", "input": "x"})), "input");
    assert_eq!(error(json!({"content": "x", "embd_normalize": -2})), "embd_normalize");
    assert_eq!(error(json!({"content": "x", "encoding_format": "base64"})), "encoding_format");
}

#[test]
fn keys_are_asked_for() {
    let keys =
        |config: &mut realizar_server::ServerConfig| config.api_keys = vec!["key".to_owned()];
    let server = TestServer::with(keys, EngineOptions::default());
    for path in ["/props", "/slots", "/lora-adapters"] {
        let answer = server.get(path);
        let error = &answer.json()["error"];
        assert_eq!(
            (answer.status, &error["type"]),
            (401, &json!("authentication_error")),
            "{path}"
        );
        let bearer = [("authorization", "Bearer key")];
        assert_eq!(server.request("GET", path, &bearer, "").status, 200, "{path}");
    }
    refused(&server, "/completion", &json!({"prompt": "x"}), 401);
}
