//! Models that come and go: loaded by requests and by hand, in limited memory.

use super::common::{self, Answer, Stream, TestServer};
use realizar_runtime::engine::{Engine, EngineOptions};
use realizar_runtime::{ByteSize, DeviceLayers, LoadOptions, MemoryUse, Model, ModelOutput};
use realizar_server::{ModelLoader, ModelSpec, Models, ModelsConfig, ServedModel, ServerConfig};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

pub(super) const PATH: &str = "/v1/completions";

/// Long enough that an answer of this length is not done at once.
const CONTEXT: usize = 1 << 14;

/// What the next load of a model does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Load,
    /// Load once the test says so.
    Hold,
    Fail,
    Panic,
}

#[derive(Debug, Default)]
pub(super) struct Script {
    acts: HashMap<String, Act>,
    /// Loads that were begun.
    begun: HashMap<String, usize>,
    /// Names of models that the loader finds by itself.
    pub(super) found: Vec<&'static str>,
}

/// Loads the same tiny model under every name that has no file of its own, as the test's script says.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) dir: tempfile::TempDir,
    pub(super) script: Mutex<Script>,
    changed: Condvar,
}

impl Stage {
    pub(super) fn new() -> Arc<Self> {
        let dir = tempfile::tempdir().expect("temporary directory");
        common::write_model(&dir.path().join("tiny.gguf"));
        Arc::new(Self { dir, script: Mutex::default(), changed: Condvar::new() })
    }

    fn options() -> LoadOptions {
        LoadOptions { max_seq_len: Some(CONTEXT), max_seqs: 2, ..LoadOptions::default() }
    }

    /// What one model takes.
    fn bytes(&self) -> usize {
        let (path, cpu) = (self.dir.path().join("tiny.gguf"), common::cpu());
        let needed = Model::memory_needed(&path, &[DeviceLayers::rest(&cpu)], &Self::options());
        needed.expect("a sound file").total()
    }

    fn act(&self, name: &str, act: Act) {
        self.script.lock().expect("script").acts.insert(name.to_owned(), act);
        self.changed.notify_all();
    }

    pub(super) fn begun(&self, name: &str) -> usize {
        self.script.lock().expect("script").begun.get(name).copied().unwrap_or(0)
    }

    fn wait_begun(&self, name: &str, n: usize) {
        let mut script = self.script.lock().expect("script");
        while script.begun.get(name).copied().unwrap_or(0) < n {
            let wait = self.changed.wait_timeout(script, Duration::from_secs(60)).expect("script");
            assert!(!wait.1.timed_out(), "the load of {name} begins");
            script = wait.0;
        }
    }

    fn load(&self, name: &str) -> Result<ServedModel, Box<dyn Error + Send + Sync>> {
        let mut script = self.script.lock().expect("script");
        *script.begun.entry(name.to_owned()).or_default() += 1;
        self.changed.notify_all();
        let act = loop {
            match script.acts.get(name).copied().unwrap_or(Act::Load) {
                Act::Hold => script = self.changed.wait(script).expect("script"),
                act => break act,
            }
        };
        drop(script);
        match act {
            Act::Fail => return Err("the disk is gone".into()),
            Act::Panic => panic!("a defect of the loader"),
            Act::Load | Act::Hold => {}
        }
        let own = self.dir.path().join(format!("{name}.gguf"));
        let path = if own.exists() { own } else { self.dir.path().join("tiny.gguf") };
        let model = Model::load(&path, &common::cpu(), &Self::options())?;
        // The registry gives it its name.
        Ok(ServedModel::new("any", Engine::start(model, EngineOptions::default())?))
    }
}

pub(super) struct Loader(pub(super) Arc<Stage>);

impl ModelLoader for Loader {
    fn memory(&self, _: &str) -> Result<MemoryUse, Box<dyn Error + Send + Sync>> {
        Ok(MemoryUse { weights: self.0.bytes(), ..MemoryUse::default() })
    }

    fn load(&self, name: &str) -> Result<ServedModel, Box<dyn Error + Send + Sync>> {
        self.0.load(name)
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.0.dir.path().join(format!("{name}.gguf")))
    }

    fn discover(&self) -> Vec<ModelSpec> {
        let script = self.0.script.lock().expect("script");
        script.found.iter().map(|name| spec(name)).collect()
    }
}

pub(super) fn spec(name: &str) -> ModelSpec {
    let aliases = vec![format!("org/{name}")];
    let (source, output) = (format!("{name}.gguf"), ModelOutput::Logits);
    ModelSpec { name: name.to_owned(), aliases, source, output }
}

/// The models a, b and c, of which none is loaded.
fn models(stage: &Arc<Stage>, change: impl FnOnce(&mut ModelsConfig)) -> Models {
    let mut config = ModelsConfig { unload_grace: Duration::ZERO, ..ModelsConfig::default() };
    change(&mut config);
    let models = Models::with_loader(Loader(stage.clone()), config);
    for name in ["a", "b", "c"] {
        models.configure(spec(name)).expect("a new name");
    }
    models
}

fn start(stage: &Arc<Stage>, change: impl FnOnce(&mut ModelsConfig)) -> TestServer {
    let models = models(stage, change);
    models.preload(&[] as &[&str]).expect("there is nothing to load");
    TestServer::of(models, |_| {})
}

pub(super) fn ask(model: &str) -> Value {
    json!({"model": model, "prompt": "abc", "max_tokens": 2, "ignore_eos": true})
}

fn long(model: &str) -> Value {
    let max_tokens = CONTEXT - 100;
    json!({"model": model, "prompt": "abc", "max_tokens": max_tokens, "ignore_eos": true,
           "stream": true})
}

impl TestServer {
    pub(super) fn complete(&self, model: &str) {
        assert_eq!(self.ok(PATH, &ask(model))["usage"]["completion_tokens"], 2, "{model}");
    }

    /// A long answer that has begun.
    pub(super) fn begin(&self, model: &str) -> Stream {
        let mut stream = self.open(PATH, &long(model));
        assert!(stream.next("data: ").is_some_and(|chunk| chunk.contains("text_completion")));
        stream
    }

    pub(super) fn admin(&self, verb: &str, model: &str) -> Answer {
        self.post(&format!("/models/{verb}"), &json!({"model": model, "wait": true}))
    }

    /// The states of all models, as `a:loaded b:unloaded`.
    pub(super) fn states(&self) -> String {
        let list = self.get("/models").json();
        let data = list["data"].as_array().expect("a list").iter();
        let state = |model: &Value| {
            let (id, status) = (model["id"].as_str(), model["status"]["value"].as_str());
            format!("{}:{}", id.expect("an id"), status.expect("a status"))
        };
        data.map(state).collect::<Vec<_>>().join(" ")
    }

    pub(super) fn wait_for_states(&self, want: &str) {
        let start = Instant::now();
        while self.states() != want {
            assert!(start.elapsed() < Duration::from_secs(60), "{want}, not {}", self.states());
            std::thread::yield_now();
        }
    }

    fn metric(&self, line: &str) -> Option<String> {
        let metrics = self.get("/metrics").body;
        let found = metrics.lines().find_map(|l| l.strip_prefix(line));
        found.map(|value| value.trim().to_owned())
    }
}

pub(super) fn code(answer: &Answer) -> (u16, Value) {
    (answer.status, answer.json()["error"]["code"].clone())
}

#[test]
fn a_request_loads_its_model() {
    let stage = Stage::new();
    let models = models(&stage, |_| {});
    let server = TestServer::of(models.clone(), |_| {});
    assert_eq!(server.get("/ready").status, 503, "the start is not over");
    models.preload(&["c"]).expect("c loads");
    assert_eq!(server.get("/ready").status, 200);
    assert_eq!(server.states(), "a:unloaded b:unloaded c:loaded");
    let list = server.get("/v1/models").json();
    let a = &list["data"][0];
    assert_eq!(
        (&a["id"], &a["root"], &a["aliases"]),
        (&json!("a"), &json!("a.gguf"), &json!(["org/a"]))
    );
    assert_eq!((&a["max_model_len"], &a["memory"]), (&Value::Null, &Value::Null));
    // By its name, by an alias, and without any.
    for model in ["b", "org/b", ""] {
        server.complete(model);
    }
    assert_eq!(server.states(), "a:loaded b:loaded c:loaded");
    let b = server.get("/v1/models/org/b").json();
    assert_eq!((&b["id"], &b["max_model_len"]), (&json!("b"), &json!(CONTEXT)));
    assert_eq!(b["memory"]["total"], stage.bytes());
    assert_eq!(server.ok(PATH, &json!({"prompt": "a", "max_tokens": 1}))["model"], "a");
    assert_eq!(["a", "b", "c"].map(|name| stage.begun(name)), [1, 1, 1]);
    assert_eq!(server.metric("realizar:model_loads_total{model_name=\"b\"}").as_deref(), Some("1"));
    let other = server.post(PATH, &ask("../tiny.gguf"));
    assert_eq!(code(&other), (404, json!("model_not_found")), "no path is a name");
}

#[test]
fn requests_share_a_load_and_hold_nobody_up() {
    let stage = Stage::new();
    stage.act("b", Act::Hold);
    let server = start(&stage, |_| {});
    std::thread::scope(|scope| {
        let waiting: Vec<_> =
            (0..3).map(|_| scope.spawn(|| server.post(PATH, &ask("b")))).collect();
        stage.wait_begun("b", 1);
        server.complete("a");
        assert_eq!(server.states(), "a:loaded b:loading c:unloaded");
        stage.act("b", Act::Load);
        for answer in waiting {
            assert_eq!(answer.join().expect("an answer").status, 200);
        }
    });
    assert_eq!(stage.begun("b"), 1);
}

#[test]
fn the_least_recently_used_model_makes_room() {
    for by_memory in [true, false] {
        let stage = Stage::new();
        let bytes = stage.bytes();
        let server = start(&stage, |config| match by_memory {
            true => config.memory_limit = Some(2 * bytes + bytes / 2),
            false => config.max_loaded = Some(2),
        });
        for model in ["a", "b", "a", "c"] {
            server.complete(model);
        }
        assert_eq!(server.states(), "a:loaded b:unloaded c:loaded", "{by_memory}");
        server.complete("b");
        assert_eq!(server.states(), "a:unloaded b:loaded c:loaded", "{by_memory}");
        let unloads = |name: &str| {
            server.metric(&format!("realizar:model_unloads_total{{model_name=\"{name}\"}}"))
        };
        assert_eq!(["a", "b", "c"].map(|name| unloads(name).expect("there")), ["1", "1", "0"]);
        let weights =
            server.metric("realizar:model_memory_bytes{model_name=\"b\",kind=\"weights\"}");
        assert!(weights.is_some_and(|bytes| bytes.parse::<usize>().expect("a number") > 0));
    }
}

#[test]
fn a_model_in_use_stays() {
    let stage = Stage::new();
    let server = start(&stage, |config| {
        (config.max_loaded, config.room_wait) = (Some(1), Duration::from_millis(20));
    });
    let stream = server.begin("a");
    let refused = server.post(PATH, &ask("b"));
    assert_eq!(code(&refused), (503, json!("unavailable")));
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    assert_eq!(server.states(), "a:loaded b:unloaded c:unloaded");
    assert_eq!(stage.begun("b"), 0);
    drop(stream);
    let start = Instant::now();
    while server.post(PATH, &ask("b")).status != 200 {
        assert!(start.elapsed() < Duration::from_secs(60), "a is not used any more");
    }
    assert_eq!(server.states(), "a:unloaded b:loaded c:unloaded");
}

#[test]
fn a_load_waits_for_room() {
    let stage = Stage::new();
    let server = start(&stage, |config| config.max_loaded = Some(1));
    let stream = server.begin("a");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| server.post(PATH, &ask("b")));
        server.wait_for_states("a:loaded b:loading c:unloaded");
        drop(stream);
        assert_eq!(waiting.join().expect("an answer").status, 200);
    });
    assert_eq!(server.states(), "a:unloaded b:loaded c:unloaded");
}

#[test]
fn what_cannot_be_loaded_is_told_and_tried_again() {
    let stage = Stage::new();
    let server = start(&stage, |_| {});
    for (act, want) in [(Act::Fail, "the disk is gone"), (Act::Panic, "a defect of the loader")] {
        stage.act("a", act);
        let answer = server.post(PATH, &ask("a"));
        assert_eq!(code(&answer), (500, json!("model_load_failed")));
        assert!(answer.body.contains(want), "{}", answer.body);
        let status = server.get("/v1/models/a").json()["status"].clone();
        assert_eq!((&status["value"], &status["failed"]), (&json!("unloaded"), &json!(true)));
        assert!(status["error"].as_str().is_some_and(|text| text.contains(want)), "{status}");
    }
    stage.act("a", Act::Load);
    server.complete("a");
    assert_eq!(server.get("/v1/models/a").json()["status"], json!({"value": "loaded"}));
    let failures = server.metric("realizar:model_load_failures_total{model_name=\"a\"}");
    assert_eq!((stage.begun("a"), failures.as_deref()), (3, Some("2")));
}

#[test]
fn a_model_above_the_limit_is_refused_unread() {
    let stage = Stage::new();
    let limit = stage.bytes() - 1;
    let server = start(&stage, |config| config.memory_limit = Some(limit));
    let answer = server.post(PATH, &ask("a"));
    assert_eq!(code(&answer), (500, json!("model_load_failed")));
    let text = format!("all models together may take {}", ByteSize::from(limit));
    assert!(answer.body.contains(&text), "{}", answer.body);
    assert_eq!(stage.begun("a"), 0);
}

#[test]
fn the_start_loads_what_fits() {
    let stage = Stage::new();
    let models = models(&stage, |config| config.max_loaded = Some(2));
    models.preload(&["a", "b", "c"]).expect("two load, one stays");
    let server = TestServer::of(models.clone(), |_| {});
    assert_eq!(server.states(), "a:loaded b:loaded c:unloaded");
    stage.act("c", Act::Fail);
    assert!(models.preload(&["d"]).is_err(), "it is not known");
}

#[test]
fn models_are_loaded_and_unloaded_by_hand() {
    let stage = Stage::new();
    let server = start(&stage, |config| config.autoload = false);
    assert_eq!(code(&server.post(PATH, &ask("a"))), (400, json!("model_not_loaded")));
    let done = server.admin("load", "org/a");
    assert_eq!((done.status, done.json()), (200, json!({"success": true})));
    server.complete("a");
    let weak = Arc::downgrade(&server.state.models().get("a").expect("it is loaded"));
    assert!(weak.upgrade().is_some());
    for (verb, model, want) in [
        ("load", "a", (400, "already loaded")),
        ("load", "x", (404, "does not exist")),
        ("load", "/etc/passwd", (404, "does not exist")),
        ("unload", "b", (400, "not loaded")),
        ("unload", "x", (404, "does not exist")),
        ("load", "", (400, "`model` is required")),
    ] {
        let answer = server.admin(verb, model);
        assert_eq!(answer.status, want.0, "{verb} {model}: {}", answer.body);
        assert!(answer.body.contains(want.1), "{verb} {model}: {}", answer.body);
    }
    assert_eq!(server.admin("unload", "a").status, 200);
    assert!(weak.upgrade().is_none(), "nothing holds the model");
    assert_eq!(server.states(), "a:unloaded b:unloaded c:unloaded");
    // Without waiting, the answer comes before the load is done.
    stage.act("b", Act::Hold);
    assert_eq!(server.post("/models/load", &json!({"model": "b"})).status, 200);
    server.wait_for_states("a:unloaded b:loading c:unloaded");
    // What is still loading is dropped when it is loaded.
    assert_eq!(server.admin("unload", "b").status, 200);
    stage.act("b", Act::Load);
    server.wait_for_states("a:unloaded b:unloaded c:unloaded");
    assert_eq!(server.admin("load", "b").status, 200);
    assert_eq!(server.states(), "a:unloaded b:loaded c:unloaded");
}

#[test]
fn unloading_cancels_what_runs_after_the_grace() {
    let stage = Stage::new();
    let server = start(&stage, |_| {});
    let stream = server.begin("a");
    let weak = Arc::downgrade(&server.state.models().get("a").expect("it is loaded"));
    assert_eq!(server.admin("unload", "a").status, 200);
    let rest = stream.rest();
    assert!(rest.contains("being unloaded") && !rest.contains("[DONE]"), "{rest}");
    let start = Instant::now();
    while weak.upgrade().is_some() {
        assert!(start.elapsed() < Duration::from_secs(60), "the connection lets go of it");
    }
    server.complete("a");
    assert_eq!(stage.begun("a"), 2);
}

/// A file that is truncated ends the requests to its model, which is unloaded; once the file is
/// whole again, the next request loads it.
#[cfg(unix)]
#[test]
fn a_truncated_file_unloads_its_model_alone() {
    realizar_formats::survive_lost_pages().expect("the handler");
    let stage = Stage::new();
    let own = stage.dir.path().join("a.gguf");
    common::write_model(&own);
    let server = start(&stage, |_| {});
    server.complete("b");
    let stream = server.begin("a");
    let file = std::fs::File::options().write(true).open(&own);
    file.and_then(|file| file.set_len(100)).expect("truncate");
    let rest = stream.rest();
    assert!(rest.contains("a.gguf: the file was truncated"), "{rest}");
    assert!(!rest.contains("[DONE]"), "{rest}");
    server.wait_for_states("a:unloaded b:loaded c:unloaded");
    assert_eq!(server.get("/health").status, 200);
    let status = server.state.models().get("a");
    assert!(status.is_none(), "{status:?}");
    let failed = server.post(PATH, &ask("a"));
    assert_eq!(failed.status, 500, "{}", failed.body);
    server.complete("b");
    std::fs::remove_file(&own).expect("remove");
    common::write_model(&own);
    server.complete("a");
    assert_eq!(stage.begun("a"), 3);
}

/// A server whose only model fails is not ready, until a request has loaded it again.
#[cfg(unix)]
#[test]
fn health_tells_of_an_only_model_that_failed() {
    realizar_formats::survive_lost_pages().expect("the handler");
    let stage = Stage::new();
    let own = stage.dir.path().join("a.gguf");
    common::write_model(&own);
    let models = Models::with_loader(Loader(stage.clone()), ModelsConfig::default());
    models.configure(spec("a")).expect("a new name");
    models.offer(spec("b")).expect("a new name");
    models.preload(&["a"]).expect("loaded");
    let server = TestServer::of(models, |_| {});
    assert_eq!(server.get("/health").status, 200);
    let stream = server.begin("a");
    let file = std::fs::File::options().write(true).open(&own);
    file.and_then(|file| file.set_len(100)).expect("truncate");
    assert!(stream.rest().contains("a.gguf: the file was truncated"));
    server.wait_for_states("a:unloaded b:unloaded");
    for path in ["/health", "/ready", "/ping"] {
        let answer = server.get(path);
        assert_eq!(answer.status, 503, "{path}");
        assert!(answer.body.contains("a.gguf: the file was truncated"), "{}", answer.body);
    }
    assert_eq!(server.get("/live").status, 200);
    std::fs::remove_file(&own).expect("remove");
    common::write_model(&own);
    server.complete("a");
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn unloading_lets_answers_end() {
    let stage = Stage::new();
    let server = start(&stage, |config| config.unload_grace = Duration::from_secs(60));
    let body = json!({"model": "a", "prompt": "abc", "max_tokens": 300, "ignore_eos": true,
                      "stream": true});
    let mut stream = server.open(PATH, &body);
    assert!(stream.next("data: ").is_some());
    std::thread::scope(|scope| {
        let unload = scope.spawn(|| server.admin("unload", "a"));
        assert!(stream.rest().contains("[DONE]"));
        assert_eq!(unload.join().expect("an answer").status, 200);
    });
    assert_eq!(server.states(), "a:unloaded b:unloaded c:unloaded");
}

#[test]
fn loading_asks_for_the_right_key() {
    let check = |change: fn(&mut ServerConfig), want: [u16; 3]| {
        let models = models(&Stage::new(), |_| {});
        models.preload(&[] as &[&str]).expect("there is nothing to load");
        let server = TestServer::of(models, change);
        let got = ["", "Bearer user", "Bearer admin"].map(|key| {
            let headers = [("content-type", "application/json"), ("authorization", key)];
            let body = json!({"model": "none"}).to_string();
            server.request("POST", "/models/load", &headers, &body).status
        });
        assert_eq!(got, want);
        let headers = [("authorization", "Bearer admin")];
        let lists = server.request("GET", "/models", &headers, "").status;
        let open = server.state.config().admin_keys.is_empty();
        let closed = !server.state.config().api_keys.is_empty() && open;
        assert_eq!(lists, if closed { 401 } else { 200 }, "an admin may also list");
    };
    let (known, unauthorized, forbidden) = (404, 401, 403);
    check(|_| {}, [known; 3]);
    check(|config| config.host = "0.0.0.0".to_owned(), [forbidden; 3]);
    check(
        |config| {
            config.host = "0.0.0.0".to_owned();
            config.api_keys = vec!["user".to_owned()];
        },
        [unauthorized, known, unauthorized],
    );
    check(
        |config| {
            config.api_keys = vec!["user".to_owned()];
            config.admin_keys = vec!["admin".to_owned()];
        },
        [unauthorized, unauthorized, known],
    );
    check(
        |config| config.admin_keys = vec!["admin".to_owned()],
        [unauthorized, unauthorized, known],
    );
}

#[test]
fn a_server_that_ends_gives_up_its_loads() {
    let stage = Stage::new();
    stage.act("b", Act::Hold);
    let mut server = start(&stage, |_| {});
    let waiting = server.open(PATH, &long("b"));
    stage.wait_begun("b", 1);
    server.begin_to_stop();
    let answer = waiting.rest();
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("shutting down"), "{answer}");
    stage.act("b", Act::Load);
    server.wait();
    assert!(server.state.models().all().is_empty(), "what came too late is dropped");
}

#[test]
fn a_model_that_came_loaded_stays() {
    let server = TestServer::start();
    let answer = server.admin("unload", "tiny");
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("model")));
    assert_eq!(server.states(), "tiny:loaded");
}
