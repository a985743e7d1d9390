//! Ollama's API: the answers are those of OpenAI's endpoints, in its own words.

use super::common::{CONTEXT, TestServer};
use realizar_runtime::engine::EngineOptions;
use serde_json::{Value, json};

/// The lines of a stream.
fn lines(server: &TestServer, path: &str, body: &Value) -> Vec<Value> {
    let answer = server.post(path, body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    answer.body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The error of a request.
fn refused(server: &TestServer, path: &str, body: &Value, status: u16) -> String {
    let answer = server.post(path, body);
    assert_eq!(answer.status, status, "{path} {body}: {}", answer.body);
    answer.json()["error"].as_str().expect("a text").to_owned()
}

#[test]
fn a_chat_answers_as_chat_completions_do() {
    let server = TestServer::start();
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let options = json!({"temperature": 0, "num_predict": 12});
    let asked = json!({"model": "tiny:latest", "messages": messages, "options": options});
    let ours = json!({"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 12});
    let ours = server.ok("/v1/chat/completions", &ours);
    let want = ours["choices"][0]["message"]["content"].as_str().expect("a text");

    let mut whole = asked.clone();
    whole["stream"] = json!(false);
    let whole = server.ok("/api/chat", &whole);
    assert_eq!(whole["message"], json!({"role": "assistant", "content": want}));
    assert_eq!((&whole["done"], &whole["done_reason"]), (&json!(true), &json!("length")));
    assert_eq!(whole["model"], "tiny:latest");
    assert_eq!(whole["eval_count"], 12);
    assert_eq!(whole["prompt_eval_count"], ours["usage"]["prompt_tokens"]);
    let nanos = |name: &str| whole[name].as_u64().expect(name);
    let parts = nanos("load_duration") + nanos("prompt_eval_duration") + nanos("eval_duration");
    assert!(parts > 0 && parts <= nanos("total_duration"), "{whole}");

    // Streams unless it is told otherwise.
    let told = lines(&server, "/api/chat", &asked);
    let text: String =
        told.iter().map(|line| line["message"]["content"].as_str().expect("a text")).collect();
    assert_eq!(text, want);
    let (last, others) = told.split_last().expect("lines");
    assert!(others.len() > 2 && others.iter().all(|line| line["done"] == false));
    assert_eq!((&last["done"], &last["eval_count"]), (&json!(true), &json!(12)));
}

#[test]
fn texts_are_put_into_the_template_unless_they_are_raw() {
    let server = TestServer::start();
    let options = json!({"temperature": 0, "num_predict": 8});
    let text = |body: &Value| {
        let mut all = json!({"model": "tiny", "stream": false, "options": options});
        all.as_object_mut().expect("an object").extend(body.as_object().cloned().expect("fields"));
        server.ok("/api/generate", &all)["response"].as_str().expect("a text").to_owned()
    };
    let chat = |messages: &Value| {
        let body = json!({"messages": messages, "temperature": 0, "max_tokens": 8});
        let answer = server.ok("/v1/chat/completions", &body);
        answer["choices"][0]["message"]["content"].as_str().expect("a text").to_owned()
    };
    let completion = |mut body: Value| {
        (body["temperature"], body["max_tokens"]) = (json!(0), json!(8));
        let answer = server.ok("/v1/completions", &body);
        answer["choices"][0]["text"].as_str().expect("a text").to_owned()
    };
    let user = json!({"role": "user", "content": "Hello"});
    assert_eq!(text(&json!({"prompt": "Hello"})), chat(&json!([user])));
    let system = json!({"role": "system", "content": "Be kind"});
    let got = text(&json!({"prompt": "Hello", "system": "Be kind"}));
    assert_eq!(got, chat(&json!([system, user])));
    let got = text(&json!({"prompt": "Hello", "raw": true}));
    assert_eq!(got, completion(json!({"prompt": "Hello"})));
    let got = text(&json!({"prompt": "Hello", "suffix": "end"}));
    assert_eq!(got, completion(json!({"prompt": "Hello", "suffix": "end"})));
}

#[test]
fn formats_and_probabilities_are_followed() {
    let server = TestServer::start();
    let schema = json!({"type": "object", "properties": {"a": {"enum": ["b", "c"]}},
        "required": ["a"], "additionalProperties": false});
    let body = json!({"model": "tiny", "stream": false, "format": schema,
        "messages": [{"role": "user", "content": "x"}], "options": {"seed": 1}});
    let answer = server.ok("/api/chat", &body);
    let text = answer["message"]["content"].as_str().expect("a text");
    let value: Value = serde_json::from_str(text).expect(text);
    assert!(["b", "c"].contains(&value["a"].as_str().expect("a text")), "{text}");
    assert_eq!(answer["done_reason"], "stop");

    let body = json!({"model": "tiny", "stream": false, "prompt": "x", "logprobs": true,
        "top_logprobs": 2, "options": {"num_predict": 3}});
    let told = server.ok("/api/generate", &body);
    let told = told["logprobs"].as_array().expect("a list");
    assert_eq!(told.len(), 3);
    assert!(told.iter().all(|token| token["top_logprobs"].as_array().expect("some").len() == 2));
}

#[test]
fn a_smaller_context_is_kept_to() {
    let server = TestServer::start();
    let ask = |num_ctx: u32| {
        json!({"model": "tiny", "stream": false, "messages": [{"role": "user", "content": "Hello"}],
            "options": {"num_ctx": num_ctx, "seed": 3, "num_predict": 30}})
    };
    let answer = server.ok("/api/chat", &ask(CONTEXT * 2));
    let n_prompt = answer["prompt_eval_count"].as_u64().expect("a number");
    assert!(answer["eval_count"].as_u64() > Some(5), "{answer}");
    let answer = server.ok("/api/chat", &ask(n_prompt as u32 + 5));
    assert_eq!((&answer["eval_count"], &answer["done_reason"]), (&json!(5), &json!("length")));
    let error = refused(&server, "/api/chat", &ask(n_prompt as u32), 400);
    assert!(error.contains("maximum context length"), "{error}");
}

#[test]
fn vectors_are_those_of_openai() {
    let server = TestServer::start();
    server.add_embedder();
    let texts = json!(["Hello", "you there"]);
    let ours = server.ok("/v1/embeddings", &json!({"model": "vectors", "input": texts}));
    let told = server.ok("/api/embed", &json!({"model": "vectors", "input": texts}));
    let vectors = told["embeddings"].as_array().expect("vectors");
    for (idx, vector) in vectors.iter().enumerate() {
        assert_eq!(*vector, ours["data"][idx]["embedding"]);
    }
    assert_eq!(told["prompt_eval_count"], ours["usage"]["prompt_tokens"]);
    let one = server.ok("/api/embeddings", &json!({"model": "vectors", "prompt": "Hello"}));
    let (one, whole) = (&one["embedding"], &vectors[0]);
    let ratio = |idx: usize| one[idx].as_f64().expect("x") / whole[idx].as_f64().expect("x");
    assert!((ratio(0) / ratio(1) - 1.0).abs() < 1e-3, "not in one direction");
    let long = "long ".repeat(100);
    let ask = |truncate: bool| json!({"model": "vectors", "input": long, "truncate": truncate});
    let error = refused(&server, "/api/embed", &ask(false), 400);
    assert!(error.contains("maximum context length"), "{error}");
    // A text that is cut has the vector of its beginning.
    let cut = server.ok("/api/embed", &ask(true));
    let ids =
        server.ok("/tokenize", &json!({"model": "vectors", "prompt": long}))["tokens"].clone();
    let ids = ids.as_array().expect("ids");
    let n = cut["prompt_eval_count"].as_u64().expect("a count") as usize;
    assert!(n < ids.len(), "{n}");
    let begun = server.ok("/v1/embeddings", &json!({"model": "vectors", "input": ids[..n]}));
    assert_eq!(cut["embeddings"][0], begun["data"][0]["embedding"]);
    // `num_ctx` is a smaller context.
    let some = "long ".repeat(8);
    let ask = |truncate: bool| json!({"model": "vectors", "input": some, "truncate": truncate, "options": {"num_ctx": 3}});
    let few = server.ok("/api/embed", &ask(true));
    let begun = server.ok("/v1/embeddings", &json!({"model": "vectors", "input": ids[..3]}));
    assert_eq!(
        (&few["prompt_eval_count"], &few["embeddings"][0]),
        (&json!(3), &begun["data"][0]["embedding"])
    );
    let error = refused(&server, "/api/embed", &ask(false), 400);
    assert!(error.contains("maximum context length is 3 tokens"), "{error}");
    let ask = json!({"model": "vectors", "input": long, "truncate_prompt_tokens": 3});
    let few = server.ok("/v1/embeddings", &ask);
    assert_eq!(few["usage"]["prompt_tokens"], 3);
    let begun = server.ok("/v1/embeddings", &json!({"model": "vectors", "input": ids[..3]}));
    assert_eq!(few["data"], begun["data"]);
}

#[test]
fn no_text_has_no_vector() {
    let server = TestServer::start();
    server.add_embedder();
    for input in [json!({}), json!({"input": null}), json!({"input": ""}), json!({"input": []})] {
        let mut body = json!({"model": "vectors"});
        body.as_object_mut().expect("an object").extend(input.as_object().cloned().expect("input"));
        let told = server.ok("/api/embed", &body);
        assert_eq!(told["model"], "vectors", "{body}");
        assert_eq!(told["embeddings"], json!([]), "{body}");
        assert_eq!(told["prompt_eval_count"], 0, "{body}");
    }
    for body in [json!({"model": "vectors"}), json!({"model": "vectors", "prompt": ""})] {
        assert_eq!(server.ok("/api/embeddings", &body), json!({"embedding": []}), "{body}");
    }
    for (input, found) in [(json!(5), "found 5"), (json!(["x", 5]), "found [\"x\",5]")] {
        let error =
            refused(&server, "/api/embed", &json!({"model": "vectors", "input": input}), 400);
        assert!(error.contains("a text or a list of texts") && error.contains(found), "{error}");
    }
    refused(&server, "/api/embed", &json!({"model": "other"}), 404);
}

#[test]
fn models_are_listed_and_described() {
    let server = TestServer::start();
    let tags = server.get("/api/tags").json();
    assert_eq!(tags["models"][0]["name"], "tiny:latest");
    assert_eq!(tags["models"][0]["details"]["family"], "llama");
    assert_eq!(tags["models"][0]["details"]["quantization_level"], "F32");
    assert_eq!(tags["models"][0]["digest"].as_str().expect("a text").len(), 64);
    let ps = server.get("/api/ps").json();
    assert_eq!(ps["models"][0]["context_length"], CONTEXT);
    assert!(ps["models"][0]["size"].as_u64() > Some(0));
    let show = server.ok("/api/show", &json!({"model": "tiny:latest"}));
    assert_eq!(show["capabilities"], json!(["completion", "insert"]));
    assert_eq!(show["model_info"]["llama.context_length"], CONTEXT);
    assert!(show["template"].as_str().expect("a template").contains("add_generation_prompt"));
    assert!(server.get("/api/version").json()["version"].is_string());
    // Nothing is generated by these: they only say that the model is there.
    for path in ["/api/chat", "/api/generate"] {
        let told = lines(&server, path, &json!({"model": "tiny", "keep_alive": "5m"}));
        assert_eq!((told.len(), &told[0]["done_reason"]), (1, &json!("load")));
    }
    let pulled = lines(&server, "/api/pull", &json!({"model": "tiny"}));
    assert_eq!(pulled.last().expect("a line")["status"], "success");
    let error = refused(&server, "/api/pull", &json!({"model": "other"}), 404);
    assert!(error.contains("realizar pull other"), "{error}");
    let error = refused(&server, "/api/chat", &json!({"model": "other"}), 404);
    assert!(error.contains("`other`"), "{error}");
}

#[test]
fn what_is_not_offered_is_refused() {
    let server = TestServer::start();
    let answer = server.request("DELETE", "/api/delete", &[], "");
    assert_eq!(answer.status, 404);
    assert!(answer.body.contains("realizar rm"), "{}", answer.body);
    assert!(refused(&server, "/api/create", &json!({}), 404).contains("realizar pull"));
    assert!(refused(&server, "/api/other", &json!({}), 404).contains("unknown URL"));
    let chat = |more: &Value| {
        let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "x"}]});
        body.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("fields"));
        refused(&server, "/api/chat", &body, 400)
    };
    assert!(chat(&json!({"options": {"temperature": -1}})).contains("temperature"));
    assert!(chat(&json!({"think": true})).contains("does not support thinking"));
    assert!(chat(&json!({"keep_alive": 0})).contains("cannot be loaded again"));
    // A model that came loaded cannot be loaded again, so it is not unloaded.
    let unload = json!({"model": "tiny", "keep_alive": 0});
    assert!(refused(&server, "/api/generate", &unload, 400).contains("cannot be loaded again"));
}

#[test]
fn keys_are_asked_for() {
    let keys =
        |config: &mut realizar_server::ServerConfig| config.api_keys = vec!["key".to_owned()];
    let server = TestServer::with(keys, EngineOptions::default());
    for path in ["/api/tags", "/api/ps", "/api/version"] {
        let answer = server.get(path);
        assert_eq!(answer.status, 401, "{path}");
        assert!(answer.json()["error"].is_string(), "{}", answer.body);
        let bearer = [("authorization", "Bearer key")];
        assert_eq!(server.request("GET", path, &bearer, "").status, 200, "{path}");
    }
    assert_eq!(server.post("/api/pull", &json!({"model": "tiny"})).status, 401);
}
