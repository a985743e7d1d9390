//! A server on a free port of this machine with a tiny model, and a client for it.

use super::document::Document;
use realizar_formats::{Gguf, GgufWriter, Value as GgufValue};
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::engine::{Engine, EngineOptions, EngineStats};
use realizar_runtime::template::ChatTemplate;
use realizar_runtime::{LoadOptions, Model, ModelOutput};
use realizar_server::{AppState, Models, ServedModel, Server, ServerConfig};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// The tiny model's context: long enough that an answer of this length is not done at once.
pub(crate) const CONTEXT: u32 = 1 << 16;

/// The name of its file.
const MODEL: &str = "tiny.gguf";

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                        {% if add_generation_prompt %}<assistant>{% endif %}";

/// The tokens by which the tiny model is said to fill in the middle of a text: before what comes
/// first, before what comes last, and before what it generates.
pub(crate) const INFILL: [u32; 3] = [257, 258, 256];

/// The tiny llama of the repository with a chat template and a long context.
pub(crate) fn write_model(path: &Path) {
    write_model_with(path, &[]);
}

/// The same with further keys.
pub(crate) fn write_model_with(path: &Path, keys: &[(&str, GgufValue)]) {
    let source =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/archs/llama/model-f32.gguf");
    let source = Gguf::open(source).expect("the repository's fixture");
    let tensors: Vec<_> = source
        .tensors()
        .iter()
        .map(|info| source.tensor(&info.name).expect("a tensor of the list"))
        .collect();
    let mut gguf = GgufWriter::new();
    for (key, value) in source.metadata().iter() {
        match key {
            "llama.context_length" => gguf.set(key, CONTEXT).expect("set"),
            "tokenizer.chat_template" => {}
            _ => gguf.set(key, value.clone()).expect("set"),
        }
    }
    let own_template = keys.iter().any(|(key, _)| *key == "tokenizer.chat_template");
    if !own_template {
        gguf.set("tokenizer.chat_template", TEMPLATE).expect("set");
    }
    for (role, id) in ["pre", "suf", "mid"].iter().zip(INFILL) {
        gguf.set(&format!("tokenizer.ggml.fim_{role}_token_id"), id).expect("set");
    }
    for (key, value) in keys {
        gguf.set(key, value.clone()).expect("set");
    }
    for tensor in &tensors {
        gguf.tensor(&tensor.name, tensor.ty, &tensor.shape, &tensor.data).expect("tensor");
    }
    gguf.write_file(path).expect("write");
}

/// The seed of requests that say none: what a test asks for is answered alike in every run.
const SEED: u64 = 1;

/// The processor, with one thread.
pub(crate) fn cpu() -> CpuBackend {
    CpuBackend::new(Some(1), None).expect("the CPU")
}

/// What this engine serves under this name.
fn named(name: &str, engine: Engine) -> ServedModel {
    let mut served = ServedModel::new(name, engine);
    served.sampling.seed = Some(SEED);
    served
}

/// The tiny model under its names.
fn tiny_model(context: usize, engine: EngineOptions) -> ServedModel {
    tiny_model_with(&[], context, engine)
}

/// The tiny model with further keys in its file.
fn tiny_model_with(
    keys: &[(&str, GgufValue)],
    context: usize,
    engine: EngineOptions,
) -> ServedModel {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join(MODEL);
    write_model_with(&path, keys);
    let max_seq_len = Some(context);
    let options =
        LoadOptions { max_seq_len, max_seqs: 4, prefix_cache: true, ..LoadOptions::default() };
    let model = Model::load(&path, &cpu(), &options).expect("the model loads");
    let engine = Engine::start(model, engine).expect("the engine starts");
    let mut served = named("tiny", engine);
    served.aliases = vec!["small".to_owned(), "org/tiny".to_owned()];
    served
}

fn models_of(model: ServedModel) -> Models {
    let models = Models::new();
    models.add(model).expect("the only model");
    models
}

/// A running server. It ends when it is dropped.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) state: AppState,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TestServer {
    /// A server with the settings that tests mostly want.
    pub(crate) fn start() -> Self {
        Self::with(|_| {}, EngineOptions::default())
    }

    /// A server with the settings that `change` makes.
    pub(crate) fn with(change: impl FnOnce(&mut ServerConfig), engine: EngineOptions) -> Self {
        Self::of(models_of(tiny_model(CONTEXT as usize, engine)), change)
    }

    /// A server whose model has this context.
    pub(crate) fn with_context(context: usize) -> Self {
        Self::of(models_of(tiny_model(context, EngineOptions::default())), |_| {})
    }

    /// A server whose model has further keys in its file.
    pub(crate) fn with_keys(keys: &[(&str, GgufValue)]) -> Self {
        let model = tiny_model_with(keys, CONTEXT as usize, EngineOptions::default());
        Self::of(models_of(model), |_| {})
    }

    /// A server whose model has this chat template.
    pub(crate) fn with_template(template: &str) -> Self {
        Self::with_template_and(template, |_| {})
    }

    /// The same with the settings that `change` makes.
    pub(crate) fn with_template_and(
        template: &str,
        change: impl FnOnce(&mut ServerConfig),
    ) -> Self {
        let mut served = tiny_model(CONTEXT as usize, EngineOptions::default());
        served.template = Some(ChatTemplate::new(template, "<s>", "</s>").expect("a template"));
        Self::of(models_of(served), change)
    }

    /// A server with a model of `fixtures/scripted`, under its name.
    pub(crate) fn scripted(name: &str) -> Self {
        let file = format!("../../fixtures/scripted/{name}.gguf");
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file);
        let max_seq_len = Some(CONTEXT as usize);
        let options =
            LoadOptions { max_seq_len, max_seqs: 2, prefix_cache: true, ..LoadOptions::default() };
        let model = Model::load(&path, &cpu(), &options).expect("the model loads");
        let engine = Engine::start(model, EngineOptions::default()).expect("the engine starts");
        Self::of(models_of(named(name, engine)), |_| {})
    }

    /// A server of these models.
    pub(crate) fn of(models: Models, change: impl FnOnce(&mut ServerConfig)) -> Self {
        let grace = Duration::ZERO;
        let mut config = ServerConfig { port: 0, shutdown_grace: grace, ..ServerConfig::default() };
        change(&mut config);
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().expect("threads");
        let server = runtime.block_on(Server::bind(config, models)).expect("a free port");
        let (mut address, state) = (server.address(), server.state().clone());
        if address.ip().is_unspecified() {
            address.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let stopped = async move { drop(stopped.await) };
            runtime.block_on(server.run(stopped)).expect("the server ends well");
        });
        Self { address, state, stop: Some(stop), thread: Some(thread) }
    }

    /// Serves the tiny model for embeddings as well, as `vectors`.
    pub(crate) fn add_embedder(&self) {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join(MODEL);
        write_model(&path);
        let output = ModelOutput::Embeddings;
        let options = LoadOptions { output, max_seq_len: Some(64), ..LoadOptions::default() };
        let model = Model::load(&path, &cpu(), &options).expect("the model loads");
        let engine = Engine::start(model, EngineOptions::default()).expect("the engine starts");
        self.state.models().add(named("vectors", engine)).expect("a unique name");
    }

    /// Serves the tiny LFM2, whose layers carry states, as `hybrid`.
    pub(crate) fn add_hybrid(&self) {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/archs/lfm2");
        let options = LoadOptions {
            max_seq_len: Some(128),
            max_seqs: 2,
            prefix_cache: true,
            ..LoadOptions::default()
        };
        let path = path.join("model-f32.gguf");
        let model = Model::load(&path, &cpu(), &options).expect("the model loads");
        let engine = Engine::start(model, EngineOptions::default()).expect("the engine starts");
        self.state.models().add(named("hybrid", engine)).expect("a unique name");
    }

    /// Tells the server to end and does not wait for it.
    pub(crate) fn begin_to_stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits for the server to end.
    pub(crate) fn wait(&mut self) {
        self.begin_to_stop();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server does not panic");
        }
    }

    pub(crate) fn stats(&self) -> EngineStats {
        self.state.models().get("tiny").expect("the model").engine.stats()
    }

    /// Waits until the engine's numbers are as wanted.
    pub(crate) fn wait_until(&self, what: &str, wanted: impl Fn(&EngineStats) -> bool) {
        let start = Instant::now();
        while !wanted(&self.stats()) {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}: {:?}", self.stats());
            std::thread::yield_now();
        }
    }

    /// A connection on which nothing was said.
    pub(crate) fn connect(&self) -> TcpStream {
        let connection = TcpStream::connect(self.address).expect("a connection");
        connection.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
        connection
    }

    fn agent() -> ureq::Agent {
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        config.timeout_global(Some(Duration::from_secs(120))).build().into()
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// What the server says of itself.
    pub(crate) fn document(&self) -> &'static Document {
        static DOCUMENT: OnceLock<Document> = OnceLock::new();
        DOCUMENT.get_or_init(|| Document::new(self.send("GET", "/openapi.json", &[], "").json()))
    }

    /// Sends a request, reads the answer and holds it to the server's document.
    pub(crate) fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let answer = self.send(method, path, headers, body);
        self.document().check(method, path, body, &answer);
        answer
    }

    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = ureq::http::Request::builder().method(method).uri(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = match body {
            "" => Self::agent().run(request.body(()).expect("a request")),
            body => Self::agent().run(request.body(body.to_owned()).expect("a request")),
        };
        let mut response = response.expect("an answer");
        let headers = response.headers().iter();
        let headers = headers.map(|(name, value)| {
            (name.as_str().to_owned(), value.to_str().expect("a text").to_owned())
        });
        Answer {
            status: response.status().as_u16(),
            headers: headers.collect(),
            body: response.body_mut().read_to_string().expect("a body"),
        }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.request("GET", path, &[], "")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        let headers = [("content-type", "application/json")];
        self.request("POST", path, &headers, &body.to_string())
    }

    /// Posts and expects success.
    pub(crate) fn ok(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{path} {body}: {}", answer.body);
        answer.json()
    }

    /// Begins a request whose answer the test reads, or does not.
    pub(crate) fn open(&self, path: &str, body: &Value) -> Stream {
        let mut connection = self.connect();
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             connection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        connection.write_all(head.as_bytes()).expect("write");
        connection.write_all(body.as_bytes()).expect("write");
        Stream(BufReader::new(connection))
    }

    /// Streams an answer to its end: the data of its events.
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Vec<String> {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.header("content-type"), Some("text/event-stream"));
        let lines = answer.body.lines().filter(|line| !line.is_empty() && !line.starts_with(':'));
        lines.map(|line| line.strip_prefix("data: ").expect("data").to_owned()).collect()
    }

    /// Streams an answer of named events to its end: the data of each.
    pub(crate) fn events(&self, path: &str, body: &Value) -> Vec<Value> {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let data = answer.body.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|data| serde_json::from_str(data).expect("JSON")).collect()
    }

    /// As [`Self::stream`], the chunks before `[DONE]`, which must be there.
    pub(crate) fn chunks(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut data = self.stream(path, body);
        assert_eq!(data.pop().as_deref(), Some("[DONE]"));
        data.iter().map(|data| serde_json::from_str(data).expect("JSON")).collect()
    }
}

/// The parts of a streamed choice, in their order.
pub(crate) fn parts_of<'a>(chunks: &'a [Value], choice: &Value) -> Vec<&'a Value> {
    let parts = chunks.iter().map(|chunk| &chunk["choices"][0]);
    parts.filter(|part| part["index"] == choice["index"]).collect()
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.begin_to_stop();
        if let Some(thread) = self.thread.take() {
            // A panic of the server is not to hide the one that ends the test.
            let _ = thread.join();
        }
    }
}

/// An answer that was read whole.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// A connection on which a request was made. Dropping it leaves the server alone with it.
pub(crate) struct Stream(BufReader<TcpStream>);

impl Stream {
    /// The next line of the answer that begins with `prefix`, without it.
    pub(crate) fn next(&mut self, prefix: &str) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line).expect("an answer in time") == 0 {
                return None;
            }
            if let Some(rest) = line.strip_prefix(prefix) {
                return Some(rest.trim_end().to_owned());
            }
        }
    }

    /// All that is left.
    pub(crate) fn rest(mut self) -> String {
        let mut text = Vec::new();
        // A server that ends may reset the connection.
        let _ = self.0.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
}
