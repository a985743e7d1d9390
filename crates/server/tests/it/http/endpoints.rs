//! Everything beside completions: models, tokens, metrics, health, headers.

use super::common::TestServer;
use realizar_runtime::engine::EngineOptions;
use serde_json::{Value, json};

#[test]
fn agents_read_the_list_of_models() {
    let server = TestServer::with_context(512);
    server.add_embedder();
    for path in ["/v1/models", "/v1/models?client_version=0.171.0", "/models"] {
        let list = server.get(path).json();
        let ids: Vec<&Value> =
            list["data"].as_array().expect("a list").iter().map(|model| &model["id"]).collect();
        assert_eq!(ids, ["tiny", "vectors"]);
        let models = list["models"].as_array().expect("a list");
        // The other one generates no text.
        assert_eq!(models.len(), 1);
        let model = &models[0];
        assert_eq!((&model["slug"], &model["context_window"]), (&json!("tiny"), &json!(512)));
        assert_eq!(model["truncation_policy"], json!({"mode": "tokens", "limit": 128}));
        assert_eq!(model["supported_reasoning_levels"], json!([]));
    }
    let server = TestServer::with_template("{{ messages[0].content }}{# </think> #}");
    let levels = server.get("/v1/models").json()["models"][0]["supported_reasoning_levels"].take();
    let efforts: Vec<&Value> =
        levels.as_array().expect("a list").iter().map(|level| &level["effort"]).collect();
    assert_eq!(efforts, ["none", "low", "medium", "high"]);
}

#[test]
fn models_are_listed() {
    let server = TestServer::start();
    let list = server.get("/v1/models").json();
    assert_eq!(list["object"], "list");
    let model = &list["data"][0];
    assert_eq!((&model["id"], &model["object"]), (&json!("tiny"), &json!("model")));
    assert_eq!((&model["owned_by"], &model["max_model_len"]), (&json!("vllm"), &json!(65536)));
    assert!(model["root"].as_str().is_some_and(|path| path.ends_with("tiny.gguf")));
    for name in ["tiny", "small", "org/tiny"] {
        assert_eq!(server.get(&format!("/v1/models/{name}")).json(), *model, "{name}");
    }
    let info = server.get("/get_model_info").json();
    assert_eq!(
        (&info["is_generation"], &info["served_model_name"]),
        (&json!(true), &json!("tiny"))
    );
    let info = server.get("/get_server_info").json();
    assert_eq!(info["internal_states"][0]["model"], "tiny");
    let load = json!([{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}]);
    assert_eq!(server.get("/get_load").json(), load);
    assert!(server.get("/version").json()["version"].is_string());
}

#[test]
fn texts_become_tokens_and_come_back() {
    let server = TestServer::start();
    let ids = json!([1, 260, 261, 262]);
    let vllm = json!({"model": "tiny", "prompt": "abc", "return_token_strs": true});
    let answer = server.ok("/tokenize", &vllm);
    assert_eq!((&answer["count"], &answer["tokens"]), (&json!(4), &ids));
    assert_eq!(answer["max_model_len"], 65536);
    assert_eq!(answer["token_strs"].as_array().map(Vec::len), Some(4));
    let llama = server.ok("/tokenize", &json!({"content": "abc"}));
    assert_eq!(llama["tokens"], json!([260, 261, 262]));
    let special = json!({"content": "abc", "add_special": true, "with_pieces": true});
    let pieces = server.ok("/tokenize", &special);
    assert_eq!(pieces["tokens"][1], json!({"id": 260, "piece": "a"}));
    // A token that is a part of a character has no text.
    let bytes = json!({"content": "aé", "with_pieces": true, "return_token_strs": true});
    let bytes = server.ok("/tokenize", &bytes);
    let pieces: Vec<&Value> = (0..3).map(|idx| &bytes["tokens"][idx]["piece"]).collect();
    assert_eq!(pieces, [&json!("a"), &json!([0xc3]), &json!([0xa9])]);
    assert_eq!(bytes["token_strs"], json!(["a", "\u{fffd}", "\u{fffd}"]));
    let text = server.ok("/detokenize", &json!({"tokens": [260, 261, 262]}));
    assert_eq!(text, json!({"prompt": "abc", "content": "abc"}));
    let chat = json!({"messages": [{"role": "user", "content": "abc"}]});
    let answer = server.ok("/tokenize", &chat);
    let plain = server.ok("/tokenize", &json!({"content": "<user>abc<assistant>"}));
    assert_eq!(answer["tokens"], plain["tokens"]);
    let rendered = server.ok("/v1/completions/render", &json!({"prompt": ["abc", "b"]}));
    assert_eq!(rendered[0]["token_ids"], ids);
    assert_eq!(rendered[1]["token_ids"].as_array().map(Vec::len), Some(2));
    assert!(rendered[0]["request_id"].as_str().is_some_and(|id| id.starts_with("cmpl-")));
}

#[test]
fn texts_become_vectors() {
    let server = TestServer::start();
    let path = "/v1/embeddings";
    assert_eq!(server.post(path, &json!({"input": "abc"})).json()["error"]["param"], "model");
    server.add_embedder();
    let models = server.get("/v1/models").json();
    let capability = |idx: usize| models["data"][idx]["capabilities"].clone();
    assert_eq!((capability(0), capability(1)), (json!(["completion"]), json!(["embedding"])));
    let answer = server.ok(path, &json!({"input": ["abc", [260, 261]]}));
    assert_eq!(
        (&answer["model"], &answer["usage"]["prompt_tokens"]),
        (&json!("vectors"), &json!(6))
    );
    let vector = |answer: &Value, idx: usize| -> Vec<f64> {
        let item = &answer["data"][idx];
        assert_eq!(item["index"], idx);
        let values = item["embedding"].as_array().expect("numbers");
        values.iter().map(|value| value.as_f64().expect("a number")).collect()
    };
    let (first, second) = (vector(&answer, 0), vector(&answer, 1));
    assert_ne!(first, second);
    for vector in [&first, &second] {
        let norm: f64 = vector.iter().map(|x| x * x).sum();
        assert!((norm - 1.0).abs() < 1e-4, "{norm}");
    }
    let short = server.ok(path, &json!({"input": "abc", "model": "vectors", "dimensions": 2}));
    assert_eq!(vector(&short, 0).len(), 2);
    let plain = server.ok(path, &json!({"input": "abc", "encoding_format": null}));
    assert_eq!(vector(&plain, 0), first);
    let text = server.ok(path, &json!({"input": "abc", "encoding_format": "base64"}));
    let text = text["data"][0]["embedding"].as_str().expect("base64").len();
    assert_eq!(text, (first.len() * 4).div_ceil(3) * 4);
    let wrong = |body: Value| server.post(path, &body).json()["error"]["param"].clone();
    assert_eq!(wrong(json!({"input": [[]]})), "input");
    assert_eq!(wrong(json!({"input": []})), "input");
    assert_eq!(wrong(json!({"input": "abc", "dimensions": 1_000_000})), "dimensions");
}

#[test]
fn metrics_count_what_was_done() {
    let server = TestServer::start();
    let ask = json!({"prompt": "abc", "max_tokens": 5, "ignore_eos": true});
    server.ok("/v1/completions", &ask);
    let answer = server.get("/metrics");
    assert!(answer.header("content-type").is_some_and(|ty| ty.starts_with("text/plain")));
    let sample = |name: &str| {
        let line = answer.body.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("{name} is missing in\n{}", answer.body));
        line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).expect("a number")
    };
    let tiny = "{model_name=\"tiny\"";
    assert_eq!(sample(&format!("vllm:prompt_tokens_total{tiny}")), 4.0);
    assert_eq!(sample(&format!("vllm:generation_tokens_total{tiny}")), 5.0);
    let length = format!("vllm:request_success_total{tiny},finished_reason=\"length\"");
    assert_eq!(sample(&length), 1.0);
    assert_eq!(sample(&format!("vllm:num_requests_waiting{tiny}")), 0.0);
    assert_eq!(sample(&format!("realizar:engine_up{tiny}")), 1.0);
    assert_eq!(sample(&format!("realizar:engine_panics_total{tiny}")), 0.0);
    assert_eq!(sample(&format!("vllm:cache_config_info{tiny},block_size=\"32\"")), 1.0);
    // The state is published after the step that gave the last token.
    let gauges = || {
        let text = server.get("/metrics").body;
        let value = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(&format!("vllm:{name}{tiny}")));
            line.and_then(|line| line.rsplit(' ').next()).map(str::to_owned)
        };
        ["num_requests_running", "kv_cache_usage_perc"].map(value)
    };
    while gauges() != [Some("0".to_owned()), Some("0".to_owned())] {
        std::thread::yield_now();
    }
    for name in [
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
    ] {
        let bucket = format!("vllm:{name}_bucket{tiny},le=\"+Inf\"");
        assert_eq!(sample(&bucket), sample(&format!("vllm:{name}_count{tiny}")), "{name}");
    }
    let steps = answer.body.lines().filter(|line| line.contains("op_class=\"linear\""));
    assert!(steps.count() > 13, "a counter and a histogram");
    // Logits of the processor need not come to the host.
    for name in ["rows", "bytes"] {
        assert_eq!(sample(&format!("realizar_output_{name}_total{tiny}")), 0.0);
    }
    // Every sample follows the type of its metric.
    let mut family = String::new();
    for line in answer.body.lines() {
        match line.strip_prefix("# TYPE ").and_then(|rest| rest.split(' ').next()) {
            Some(name) => family = name.to_owned(),
            None => assert!(line.starts_with('#') || line.starts_with(&family), "{line}"),
        }
    }
}

#[test]
fn metrics_tell_of_recurrent_states() {
    let server = TestServer::start();
    server.add_hybrid();
    let engine = server.state.models().get("hybrid").expect("the model");
    let sample = |model: &str, name: &str| {
        let line = format!("realizar:{name}{{model_name=\"{model}\"}} ");
        let text = server.get("/metrics").body;
        let value = text.lines().find_map(|l| l.strip_prefix(&line)).map(str::to_owned);
        value.unwrap_or_else(|| panic!("{line} is missing in\n{text}"))
    };
    let names = [
        "prefix_cache_states",
        "prefix_cache_states_stored_total",
        "prefix_cache_state_evictions_total",
        "prefix_cache_stateless_tokens_total",
    ];
    // A prompt, the same with more after it, and one that leaves its text within the first page,
    // where no state was kept.
    let first: Vec<u32> = (0..40).map(|i| 3 + i * 7 % 200).collect();
    let more: Vec<u32> = first.iter().copied().chain(100..130).collect();
    let other: Vec<u32> = first[..20].iter().copied().chain(200..210).collect();
    for (prompt, cached, expected) in [
        (&first, 0, ["2", "2", "0", "0"]), // at its end, and at its last whole page
        (&more, 40, ["4", "4", "0", "0"]),
        (&other, 0, ["5", "5", "0", "20"]), // at its end: it has no whole page
    ] {
        let ask = json!({"model": "hybrid", "prompt": prompt, "max_tokens": 2});
        let usage = server.ok("/v1/completions", &ask)["usage"].clone();
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], cached, "{usage}");
        // The state is published after the step that gave the last token.
        while engine.engine.stats().running > 0 {
            std::thread::yield_now();
        }
        assert_eq!(names.map(|name| sample("hybrid", name)), expected, "{} tokens", prompt.len());
        assert_eq!(sample("hybrid", "state_usage_perc"), "0");
    }
    // A model without states has none.
    assert_eq!(names.map(|name| sample("tiny", name)), ["0"; 4]);
}

#[test]
fn request_ids_come_back() {
    let server = TestServer::start();
    let given = server.request("GET", "/live", &[("x-request-id", "mine")], "");
    assert_eq!(given.header("x-request-id"), Some("mine"));
    let long = "x".repeat(1000);
    for headers in [&[][..], &[("x-request-id", long.as_str())], &[("x-request-id", "")]] {
        let answer = server.request("GET", "/nothing", headers, "");
        let id = answer.header("x-request-id").expect("an id");
        assert!(id.starts_with("req-"), "{id}");
    }
}

#[test]
fn pages_of_other_origins_are_let_in_only_when_allowed() {
    let origin = ("origin", "https://a.example");
    let preflight = |server: &TestServer, origin| {
        let headers = [origin, ("access-control-request-method", "POST")];
        let answer = server.request("OPTIONS", "/v1/completions", &headers, "");
        answer.header("access-control-allow-origin").map(str::to_owned)
    };
    let closed = TestServer::start();
    assert_eq!(preflight(&closed, origin), None);
    let allowed = vec!["https://a.example".to_owned()];
    let open = TestServer::with(
        |config| {
            config.allowed_origins = allowed;
            config.api_keys = vec!["key".to_owned()];
        },
        EngineOptions::default(),
    );
    assert_eq!(preflight(&open, origin).as_deref(), Some("https://a.example"));
    assert_eq!(preflight(&open, ("origin", "https://b.example")), None);
    let local = TestServer::with(
        |config| config.allowed_origins = vec!["localhost".to_owned()],
        EngineOptions::default(),
    );
    let page = "http://127.0.0.1:3000";
    assert_eq!(preflight(&local, ("origin", page)).as_deref(), Some(page));
    assert_eq!(preflight(&local, origin), None);
    // SDKs in browsers send headers of their own.
    let sent = "authorization,anthropic-version,openai-organization,x-stainless-retry-count";
    let asked = ("access-control-request-headers", sent);
    let headers = [origin, ("access-control-request-method", "POST"), asked];
    let answer = open.request("OPTIONS", "/v1/messages", &headers, "");
    assert_eq!(answer.header("access-control-allow-headers"), Some(sent));
    let closed = closed.request("OPTIONS", "/v1/messages", &headers, "");
    assert_eq!(closed.header("access-control-allow-origin"), None);
    let answer = open.request("GET", "/live", &[origin], "");
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://a.example"));
}

#[test]
fn health_follows_the_models() {
    let server = TestServer::start();
    for path in ["/health", "/ready", "/ping", "/live"] {
        assert_eq!(server.get(path).json(), json!({"status": "ok"}), "{path}");
    }
    let model = server.state.models().get("small").expect("the model by its alias");
    model.engine.shutdown(std::time::Duration::ZERO);
    for path in ["/health", "/ready", "/ping", "/live"] {
        let answer = server.get(path);
        assert_eq!(answer.status, 503, "{path}");
        let error = &answer.json()["error"];
        assert_eq!(error["message"], "the engine of the model `tiny` has ended", "{path}");
    }
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("realizar:engine_up{model_name=\"tiny\"} 0"), "{metrics}");
    let removed = server.state.models().remove("small").expect("the model by its alias");
    for (path, status) in [("/health", 503), ("/ready", 503), ("/live", 200)] {
        assert_eq!(server.get(path).status, status, "{path}");
    }
    let answer = server.post("/v1/completions", &json!({"prompt": "a"}));
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &json!("unavailable")));
    assert_eq!(server.get("/v1/models").json()["data"], Value::Array(Vec::new()));
    removed.engine.shutdown(std::time::Duration::ZERO);
}
