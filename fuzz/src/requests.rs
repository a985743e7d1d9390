//! Bodies of requests, to a server with a tiny model.

use crate::files;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode};
use realizar_formats::{Gguf, GgufWriter};
use realizar_runtime::Model;
use realizar_runtime::engine::{Engine, EngineOptions};
use realizar_runtime::template::ChatTemplate;
use realizar_server::{AppState, Models, ServedModel, ServerConfig, app};
use std::path::PathBuf;
use std::sync::OnceLock;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tower::ServiceExt;

/// Every endpoint that takes a body; the first byte of the data chooses.
pub const PATHS: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/v1/messages/count_tokens",
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/models/load",
    "/models/unload",
    "/completion",
    "/infill",
    "/embedding",
    "/api/chat",
    "/api/embed",
    "/api/embeddings",
    "/api/generate",
    "/api/pull",
    "/api/show",
    "/completions",
    "/embeddings",
    "/lora-adapters",
    "/mcp/call",
    "/ping",
    "/props",
    "/rerank",
    "/score",
    "/v1/responses/input_tokens",
];

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
                        {% if add_generation_prompt %}<assistant>{% endif %}";

/// The maximum number of bytes of an answer: a context of text, with its log-probabilities.
const MAX_ANSWER: usize = 16 << 20;

/// The tiny model with tokens for infilling, which `/infill` needs.
fn with_infill() -> (TempDir, PathBuf) {
    let source = Gguf::open(files::tiny_gguf()).expect("the repository's fixture");
    let tensors: Vec<_> = source
        .tensors()
        .iter()
        .map(|info| source.tensor(&info.name).expect("a tensor of the list"))
        .collect();
    let mut gguf = GgufWriter::new();
    for (key, value) in source.metadata().iter() {
        gguf.set(key, value.clone()).expect("a key of the file");
    }
    for (role, id) in [("pre", 3_u32), ("suf", 4), ("mid", 5), ("rep", 6), ("sep", 7)] {
        gguf.set(&format!("tokenizer.ggml.fim_{role}_token_id"), id).expect("a key");
    }
    for tensor in &tensors {
        gguf.tensor(&tensor.name, tensor.ty, &tensor.shape, &tensor.data).expect("a tensor");
    }
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("infill.gguf");
    gguf.write_file(&path).expect("a temporary file");
    (folder, path)
}

struct Service {
    runtime: Runtime,
    app: Router,
}

fn service() -> &'static Service {
    static SERVICE: OnceLock<Service> = OnceLock::new();
    SERVICE.get_or_init(|| {
        let model = with_infill();
        let model = Model::load(&model.1, &files::cpu(), &files::small());
        let engine = Engine::start(model.expect("a sound model"), EngineOptions::default());
        let mut served = ServedModel::new("tiny", engine.expect("the engine starts"));
        served.template = Some(ChatTemplate::new(TEMPLATE, "", "").expect("a sound template"));
        let models = Models::new();
        models.add(served).expect("the first model");
        let state = AppState::new(ServerConfig::default(), models);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build();
        let app = app(state).expect("sound settings");
        Service { runtime: runtime.expect("a runtime"), app }
    })
}

/// A body: whatever it is, the answer is not the server's fault.
pub(crate) fn request(data: &[u8]) {
    let Some((path, body)) = data.split_first() else { return };
    let path = PATHS[usize::from(*path) % PATHS.len()];
    let Service { runtime, app } = service();
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(Body::from(body.to_vec()))
        .expect("a sound request");
    runtime.block_on(async {
        let answer = app.clone().oneshot(request).await.expect("a service that cannot fail");
        let status = answer.status();
        let text = to_bytes(answer.into_body(), MAX_ANSWER).await.expect("the answer ends");
        let text = String::from_utf8_lossy(&text);
        // What the server does not have is no failure.
        let is_fault = status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED;
        assert!(!is_fault, "{path}: {status}: {text}");
    });
}
