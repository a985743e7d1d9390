//! Models that are only offered: how long they stay, and those that the loader finds by itself.

use super::common::{self, TestServer};
use super::registry::{Loader, PATH, Stage, ask, code, spec};
use realizar_server::{KeepAlive, Models, ModelsConfig};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// A server with the named model a, and the models d and e, which are only offered.
fn offering(stage: &Arc<Stage>, keep_alive: KeepAlive) -> TestServer {
    let config =
        ModelsConfig { keep_alive, unload_grace: Duration::ZERO, ..ModelsConfig::default() };
    let models = Models::with_loader(Loader(stage.clone()), config);
    models.configure(spec("a")).expect("a new name");
    for name in ["d", "e"] {
        models.offer(spec(name)).expect("a new name");
    }
    models.preload(&[] as &[&str]).expect("there is nothing to load");
    TestServer::of(models, |_| {})
}

/// A request of Ollama's API that generates.
fn generate(model: &str, keep_alive: &Value) -> Value {
    let options = json!({"num_predict": 2});
    json!({"model": model, "prompt": "abc", "raw": true, "stream": false, "options": options,
           "keep_alive": keep_alive})
}

#[test]
fn an_offered_model_goes_when_its_time_is_over() {
    let stage = Stage::new();
    let server = offering(&stage, KeepAlive::NOT);
    for model in ["a", "d"] {
        server.complete(model);
    }
    server.wait_for_states("a:loaded d:unloaded e:unloaded");
    // The time of a request counts, until the model is gone.
    server.ok("/api/generate", &generate("d", &json!("1h")));
    server.complete("d");
    server.ok("/api/generate", &generate("e", &json!(0.001)));
    server.wait_for_states("a:loaded d:loaded e:unloaded");
    server.ok("/api/generate", &generate("d", &json!("1ms")));
    server.wait_for_states("a:loaded d:unloaded e:unloaded");
    // What was loaded by hand stays.
    assert_eq!(server.admin("load", "e").status, 200);
    server.complete("e");
    server.complete("d");
    server.wait_for_states("a:loaded d:unloaded e:loaded");
}

#[test]
fn the_time_of_a_request_is_told() {
    let stage = Stage::new();
    let server = offering(&stage, KeepAlive::default());
    let expires =
        |server: &TestServer| server.get("/api/ps").json()["models"][0]["expires_at"].clone();
    server.ok("/api/generate", &generate("d", &json!(-1)));
    assert_eq!(expires(&server), "9999-12-31T23:59:59Z");
    server.ok("/api/generate", &generate("d", &json!("1h")));
    assert_ne!(expires(&server), "9999-12-31T23:59:59Z");
    // A named model stays, whatever time a request states.
    server.ok("/api/generate", &generate("a", &json!("1ms")));
    assert_eq!(expires(&server), "9999-12-31T23:59:59Z");
    assert_eq!(server.states(), "a:loaded d:loaded e:unloaded");
}

#[test]
fn a_model_answers_and_goes() {
    let stage = Stage::new();
    let server = offering(&stage, KeepAlive::FOREVER);
    for model in ["a", "d"] {
        let answer = server.ok("/api/generate", &generate(model, &json!(0)));
        assert_eq!(answer["done"], true, "{model}");
    }
    server.wait_for_states("a:unloaded d:unloaded e:unloaded");
    // It answers those that use it at the same time first.
    let mut stream = server.begin("d");
    server.ok("/api/generate", &generate("d", &json!("0s")));
    assert!(stream.next("data: ").is_some());
    drop(stream);
    server.wait_for_states("a:unloaded d:unloaded e:unloaded");
    assert_eq!(stage.begun("d"), 2);
}

#[test]
fn who_may_not_unload_has_no_model_go_early() {
    let stage = Stage::new();
    let config = ModelsConfig { unload_grace: Duration::ZERO, ..ModelsConfig::default() };
    let models = Models::with_loader(Loader(stage.clone()), config);
    models.offer(spec("d")).expect("a new name");
    models.preload(&[] as &[&str]).expect("there is nothing to load");
    let server = TestServer::of(models, |config| config.admin_keys = vec!["admin".to_owned()]);
    let ask = |keep_alive: &Value, key: &str| {
        let headers = [("content-type", "application/json"), ("authorization", key)];
        let body = generate("d", keep_alive).to_string();
        server.request("POST", "/api/generate", &headers, &body).status
    };
    assert_eq!(ask(&json!(0), "Bearer other"), 401);
    assert_eq!(ask(&json!("1ms"), "Bearer other"), 200);
    // Its time is the server's, so it is still there for the next request.
    assert_eq!(ask(&json!("1ms"), "Bearer other"), 200);
    assert_eq!(server.states(), "d:loaded");
    assert_eq!(ask(&json!(0), "Bearer admin"), 200);
    server.wait_for_states("d:unloaded");
    assert_eq!(stage.begun("d"), 1);
}

#[test]
fn models_that_the_loader_finds_come_and_go() {
    let stage = Stage::new();
    let models = Models::with_loader(Loader(stage.clone()), ModelsConfig::default());
    models.preload(&[] as &[&str]).expect("there is nothing to load");
    let server = TestServer::of(models, |_| {});
    assert_eq!((server.states().as_str(), server.get("/ready").status), ("", 200));
    let found = |names: &[&'static str]| {
        stage.script.lock().expect("script").found = names.to_vec();
    };
    found(&["m"]);
    server.complete("org/m");
    found(&["m", "n"]);
    assert_eq!(server.states(), "m:loaded n:unloaded");
    // A loaded one is only gone when it is unloaded.
    found(&[]);
    assert_eq!(server.states(), "m:loaded");
    assert_eq!(server.admin("unload", "m").status, 200);
    assert_eq!(server.states(), "");
    assert_eq!(code(&server.post(PATH, &ask("m"))), (404, json!("model_not_found")));
}

#[test]
fn files_of_unloaded_models_are_told() {
    let stage = Stage::new();
    let path = stage.dir.path().join("a.gguf");
    common::write_model(&path);
    let server = offering(&stage, KeepAlive::default());
    let of = |model: &str| {
        let body = server.get(&format!("/v1/models/{model}")).json();
        (body["format"].clone(), body["size"].clone())
    };
    let bytes = std::fs::metadata(&path).expect("the file").len();
    assert_eq!(of("a"), (json!("gguf"), json!(bytes)));
    assert_eq!(of("d"), (Value::Null, Value::Null), "it has no file of its own yet");
    server.complete("d");
    assert_eq!(of("d").0, "gguf");
}
