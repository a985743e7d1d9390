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

/// The text of a list in JSON text, up to the end of the list.
fn list<'a>(body: &'a str, name: &str) -> &'a str {
    let start = body.find(&format!("\"{name}\":[")).expect(name) + name.len() + 4;
    &body[start..start + body[start..].find(']').expect("its end")]
}

#[test]
fn greedy_tokens_are_the_most_likely_ones_to_the_last_digit() {
    let server = TestServer::start();
    let generated =
        server.ok(PATH, &with(&greedy(), json!({"max_tokens": 24, "return_tokens": true})));
    let mut ids = json!([1, 260, 261, 262]);
    let tokens = generated["choices"][0]["tokens"].as_array().expect("tokens").clone();
    ids.as_array_mut().expect("ids").extend(tokens);
    // As they are generated, and as a prompt that is scored, which is how lm-eval asks.
    let scored = json!({"prompt": [ids], "echo": true, "max_tokens": 1});
    for (more, n_first) in [(json!({"max_tokens": 24}), 0), (scored, 4)] {
        let body = with(&with(&greedy(), json!({"logprobs": 1})), more);
        let answer = server.post(PATH, &body);
        let lists = answer.json()["choices"][0]["logprobs"].clone();
        let chosen = lists["token_logprobs"].as_array().expect("numbers");
        let top = lists["top_logprobs"].as_array().expect("maps");
        assert!(chosen.len() >= 24);
        for (chosen, top) in chosen.iter().zip(top).skip(n_first) {
            let values =
                top.as_object().expect("a map").values().map(|p| p.as_f64().expect("a number"));
            assert_eq!(chosen.as_f64(), values.reduce(f64::max), "{chosen} {top}");
        }
        // The same digits stand in both lists.
        let digits: Vec<&str> =
            list(&answer.body, "token_logprobs").split(',').skip(n_first).collect();
        let mut tops = &answer.body[answer.body.find("\"top_logprobs\":[").expect("a list")..];
        for digits in digits {
            assert!(digits.parse::<f64>().is_ok(), "{digits}");
            let entry = [format!("\":{digits},"), format!("\":{digits}}}")];
            let at = entry.iter().filter_map(|entry| tops.find(entry.as_str())).min();
            tops = &tops[at.unwrap_or_else(|| panic!("{digits} is not in {tops}")) + 1..];
        }
    }
}

#[test]
fn offsets_are_places_in_the_text() {
    let server = TestServer::start();
    // Characters of one, two, three and four bytes; the tiny model has tokens of single bytes.
    let prompt = "aé世😀b c";
    for more in [
        json!({}),
        json!({"echo": true}),
        json!({"echo": true, "prompt": "a"}),
        json!({"echo": true, "prompt": [1, 260, 261]}),
    ] {
        let body = with(
            &json!({"prompt": prompt, "logprobs": 0, "max_tokens": 20, "temperature": 1.5,
                                "seed": 5, "ignore_eos": true}),
            more,
        );
        let choice = server.ok(PATH, &body)["choices"][0].clone();
        let (text, lists) = (choice["text"].as_str().expect("text"), &choice["logprobs"]);
        let offsets: Vec<usize> = lists["text_offset"]
            .as_array()
            .expect("offsets")
            .iter()
            .map(|offset| offset.as_u64().expect("a number") as usize)
            .collect();
        assert!(offsets.is_sorted() && offsets[0] == 0, "{offsets:?}");
        if body["echo"] == true {
            // The token that begins a text is not part of it.
            assert_eq!(offsets[1], 0, "{offsets:?}");
        }
        let chars: Vec<char> = text.chars().collect();
        let mut n_whole = 0;
        for (token, &offset) in lists["tokens"].as_array().expect("tokens").iter().zip(&offsets) {
            let token = token.as_str().expect("a token");
            if token.starts_with("bytes:") || token.contains(['\u{fffd}', '<']) {
                continue;
            }
            let found: String =
                chars[offset.min(chars.len())..].iter().take(token.chars().count()).collect();
            assert_eq!(found, token, "{text:?} {offsets:?}");
            n_whole += 1;
        }
        assert!(n_whole > 2, "{text:?}");
    }
    // Four bytes of one character begin at one place.
    let ids = server.ok("/tokenize", &json!({"content": "😀"}))["tokens"].clone();
    let n_bytes = ids.as_array().expect("ids").len();
    assert!(n_bytes > 1, "{ids}");
    let body = json!({"prompt": "a😀b", "echo": true, "logprobs": 0, "max_tokens": 0});
    let lists = server.ok(PATH, &body)["choices"][0]["logprobs"].clone();
    let want = [vec![0, 0], vec![1; n_bytes], vec![2]].concat();
    assert_eq!(lists["text_offset"], json!(want), "{lists}");
}

#[test]
fn prompts_are_scored_in_the_shape_of_vllm() {
    let server = TestServer::start();
    let body = json!({"prompt": "abc", "max_tokens": 1, "prompt_logprobs": 2});
    let choice = server.ok(PATH, &body)["choices"][0].clone();
    let echo = json!({"prompt": "abc", "max_tokens": 0, "echo": true, "logprobs": 2});
    let echo = server.ok(PATH, &echo)["choices"][0]["logprobs"].clone();
    let scored = choice["prompt_logprobs"].as_array().expect("a list");
    assert_eq!(scored.len(), 4);
    assert_eq!(scored[0], Value::Null);
    for (i, (id, text)) in [("260", "a"), ("261", "b"), ("262", "c")].into_iter().enumerate() {
        let own = &scored[i + 1][id];
        assert_eq!(own["decoded_token"], text);
        assert_eq!(own["logprob"], echo["token_logprobs"][i + 1]);
        let rank = own["rank"].as_u64().expect("a number");
        let all = scored[i + 1].as_object().expect("a map");
        assert_eq!(all.keys().next().map(String::as_str), Some(id));
        assert_eq!(all.len(), if rank <= 2 { 2 } else { 3 });
        let by_rank = |rank: u64| all.values().find(|token| token["rank"] == rank).expect("a rank");
        for rank in 1..=2 {
            let top = by_rank(rank);
            assert!(top["logprob"].as_f64() >= own["logprob"].as_f64() || rank > 1, "{all:?}");
        }
        assert!(by_rank(1)["logprob"].as_f64() >= by_rank(2)["logprob"].as_f64());
    }
    assert_eq!(choice.get("logprobs"), Some(&Value::Null));
    // With others for the echo: each list has as many as were requested.
    let body = json!({"prompt": "abc", "max_tokens": 0, "prompt_logprobs": 5, "echo": true, "logprobs": 0});
    let both = server.ok(PATH, &body)["choices"][0].clone();
    assert_eq!(both["logprobs"]["top_logprobs"][1].as_object().map(|top| top.len()), Some(1));
    assert!(both["prompt_logprobs"][1].as_object().is_some_and(|top| top.len() >= 5));
    let chat = json!({"messages": [{"role": "user", "content": "abc"}], "max_tokens": 1, "prompt_logprobs": 0});
    let chat = server.ok("/v1/chat/completions", &chat);
    let n_prompt = chat["usage"]["prompt_tokens"].as_u64().expect("a number") as usize;
    let scored = chat["prompt_logprobs"].as_array().expect("a list");
    assert_eq!(scored.len(), n_prompt);
    assert!(scored[1..].iter().all(|token| token.as_object().is_some_and(|own| own.len() == 1)));
}

#[test]
fn ids_come_where_they_are_asked_for() {
    let server = TestServer::start();
    let ask = with(&greedy(), json!({"return_tokens": true, "echo": true, "logprobs": 0}));
    let choice = server.ok(PATH, &ask)["choices"][0].clone();
    let ids = choice["tokens"].as_array().expect("ids").clone();
    assert_eq!(ids.len(), 8);
    let text = server.ok("/detokenize", &json!({"tokens": ids}))["content"].clone();
    let answer = choice["text"].as_str().expect("text").strip_prefix("abc").expect("the prompt");
    assert_eq!(text.as_str().map(str::trim_start), Some(answer.trim_start()));
    let chunks = server.chunks(PATH, &with(&ask, json!({"stream": true})));
    let streamed: Vec<Value> = parts_of(&chunks, &choice)
        .iter()
        .flat_map(|part| part["tokens"].as_array().expect("ids").clone())
        .collect();
    assert_eq!(streamed, ids);
    let plain = server.ok(PATH, &greedy());
    assert!(plain["choices"][0].get("tokens").is_none());
}

#[test]
fn tokens_end_answers_but_none_before_its_time() {
    let server = TestServer::start();
    let ask = with(&greedy(), json!({"max_tokens": 24, "return_tokens": true}));
    let whole = server.ok(PATH, &ask)["choices"][0].clone();
    let ids = whole["tokens"].as_array().expect("ids").clone();
    let at = (1..20).rev().find(|&i| !ids[..i].contains(&ids[i])).expect("a token of its own");
    let stop = json!({"stop_token_ids": [ids[at]]});
    let choice = server.ok(PATH, &with(&ask, stop.clone()))["choices"][0].clone();
    assert_eq!(choice["tokens"], json!(ids[..at]));
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&json!("stop"), &ids[at]));
    let included = json!({"include_stop_str_in_output": true});
    let longer = server.ok(PATH, &with(&with(&ask, stop.clone()), included))["choices"][0].clone();
    let spelled = server.ok(PATH, &with(&ask, json!({"max_tokens": at + 1, "logprobs": 0})));
    let spelled = &spelled["choices"][0]["logprobs"]["tokens"][at];
    if let Some(token) = spelled.as_str().filter(|token| !token.starts_with("bytes:")) {
        assert_eq!(text_of(&longer), format!("{}{token}", text_of(&choice)));
    }
    let later = with(&with(&ask, stop), json!({"min_tokens": at + 2}));
    let later = server.ok(PATH, &later)["choices"][0]["tokens"].clone();
    let later = later.as_array().expect("ids");
    assert!(later.len() >= at + 2);
    assert!(!later[..at + 2].contains(&ids[at]));
    // Without a reason of the request, none is told.
    assert_eq!(whole.get("stop_reason"), Some(&Value::Null));
}

fn text_of(choice: &Value) -> String {
    choice["text"].as_str().expect("a text").to_owned()
}

#[test]
fn biases_are_given_by_ids_and_by_texts() {
    let server = TestServer::start();
    let tokens = |bias: Value| {
        let body = with(&greedy(), json!({"logit_bias": bias, "return_tokens": true}));
        server.ok(PATH, &body)["choices"][0]["tokens"].clone()
    };
    let free = tokens(json!({}));
    let id = free[0].as_u64().expect("an id");
    let banned = tokens(json!({id.to_string(): false}));
    assert!(!banned.as_array().expect("ids").contains(&json!(id)));
    for same in [json!([[id, false]]), json!([[id.to_string(), false]])] {
        assert_eq!(tokens(same), banned);
    }
    // The letters are tokens of their own.
    let forced = tokens(json!({"b": 100}));
    assert_eq!(forced, json!([261, 261, 261, 261, 261, 261, 261, 261]));
    assert_eq!(tokens(json!([["b", 100]])), forced);
    assert_eq!(tokens(json!([[261, 50], [261, 50]])), forced);
}

#[test]
fn control_tokens_are_shown_on_demand() {
    let server = TestServer::start();
    // The token that begins a text, forced.
    let ask = with(&greedy(), json!({"logit_bias": [[1, 100]], "max_tokens": 2}));
    let hidden = server.ok(PATH, &ask)["choices"][0].clone();
    assert_eq!(text_of(&hidden), "");
    let shown = server.ok(PATH, &with(&ask, json!({"skip_special_tokens": false})));
    assert_eq!(text(&shown, 0), "<s><s>");
}

#[test]
fn tokens_can_be_written_as_their_ids() {
    let server = TestServer::start();
    let more = json!({"logprobs": 2, "max_tokens": 4, "ignore_eos": true, "return_tokens": true,
                      "return_tokens_as_token_ids": true});
    let choice = server.ok(PATH, &with(&greedy(), more))["choices"][0].clone();
    let ids = choice["tokens"].as_array().expect("ids");
    assert_eq!(ids.len(), 4);
    for (i, id) in ids.iter().enumerate() {
        let name = format!("token_id:{id}");
        assert_eq!(choice["logprobs"]["tokens"][i], name);
        let top = choice["logprobs"]["top_logprobs"][i].as_object().expect("likely tokens");
        // The chosen token is the most likely one.
        assert_eq!(top.keys().next(), Some(&name));
        assert_eq!(top.len(), 2);
    }
}

#[test]
fn llama_servers_names_mean_the_same() {
    let server = TestServer::start();
    let ask = json!({"prompt": "abc", "temperature": 0, "ignore_eos": true});
    let ours = server.ok(PATH, &with(&ask, json!({"max_tokens": 5, "logprobs": 3})));
    let theirs = server.ok(PATH, &with(&ask, json!({"n_predict": 5, "n_probs": 3})));
    assert_eq!(ours["choices"], theirs["choices"]);
    assert_eq!(ours["usage"]["completion_tokens"], 5);
    let none = json!({"max_tokens": 5, "n_probs": 0, "id_slot": -1, "lora": [], "t_max_predict_ms": 0,
                      "reasoning_format": "none", "return_tokens": false});
    let plain = server.ok(PATH, &with(&ask, none))["choices"][0].clone();
    assert_eq!(plain["text"], ours["choices"][0]["text"]);
    assert_eq!(plain.get("logprobs"), Some(&Value::Null));
    // Without the steps that apply them, a temperature and the other filters change nothing.
    let draw = json!({"prompt": "abc", "seed": 3, "max_tokens": 24, "ignore_eos": true});
    let hot = json!({"temperature": 30, "top_k": 5, "samplers": ["top_k"]});
    let cold = json!({"temperature": 1, "top_k": 5, "top_p": 1, "min_p": 0});
    let text = |more: Value| text(&server.ok(PATH, &with(&draw, more)), 0);
    assert_eq!(text(hot), text(cold));
    // A temperature that comes last cannot widen what is kept: here the best token alone.
    let hot = json!({"temperature": 30, "top_k": 0, "top_p": 1, "min_p": 0.98, "max_tokens": 8});
    let best = text(json!({"temperature": 0, "max_tokens": 8}));
    assert_ne!(text(hot.clone()), best);
    assert_eq!(text(with(&hot, json!({"temperature_last": true}))), best);
    assert_eq!(text(with(&hot, json!({"samplers": ["min_p", "temperature"]}))), best);
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
