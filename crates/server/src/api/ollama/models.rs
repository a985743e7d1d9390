//! Which models there are: `/api/tags`, `/api/show`, `/api/ps`, `/api/pull`, `/api/version`.

use super::{VERSION, known_name, tagged, timestamp};
use crate::answer::ndjson;
use crate::error::ApiError;
use crate::fields::{Fields, InvalidRequest};
use crate::http::extract::JsonBody;
use crate::registry::served::ServedModel;
use crate::registry::{LoadState, ModelStatus};
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt as _, stream};
use realizar_runtime::ModelOutput;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// When a model goes that stays as long as there is room.
const NEVER: &str = "9999-12-31T23:59:59Z";

/// The version of Ollama's API that is spoken here, and what speaks it.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": VERSION, "realizar": env!("CARGO_PKG_VERSION")}))
}

/// All models.
pub(crate) async fn tags(State(state): State<AppState>) -> Json<Value> {
    let models: Vec<Value> = state.models().statuses().iter().map(listed).collect();
    Json(json!({"models": models}))
}

/// The loaded models.
pub(crate) async fn ps(State(state): State<AppState>) -> Json<Value> {
    let statuses = state.models().statuses();
    let models = statuses.iter().filter_map(|status| Some((status, status.model.as_ref()?)));
    let models = models.map(|(status, model)| {
        let info = model.engine.model();
        let total = info.memory().total();
        let mut body = listed(status);
        body["size"] = json!(total);
        body["size_vram"] = json!(if info.backend().starts_with("cpu") { 0 } else { total });
        let expires = status.stays_for.map(|left| timestamp(SystemTime::now() + left));
        body["expires_at"] = json!(expires.as_deref().unwrap_or(NEVER));
        body["context_length"] = json!(info.max_seq_len());
        if let Some(body) = body.as_object_mut() {
            body.remove("modified_at");
        }
        body
    });
    Json(json!({"models": models.collect::<Vec<_>>()}))
}

/// Where a model is from.
fn path(status: &ModelStatus) -> PathBuf {
    let loaded = status.model.as_ref().map(|model| model.engine.model().path().to_owned());
    loaded.unwrap_or_else(|| PathBuf::from(status.source.as_deref().unwrap_or_default()))
}

/// A model in a list. Of one that is not loaded, little is known.
fn listed(status: &ModelStatus) -> Value {
    let path = path(status);
    let file = std::fs::metadata(&path).ok().filter(std::fs::Metadata::is_file);
    let size = match (&status.model, &file) {
        (Some(model), _) => model.engine.model().weight_bytes() as u64,
        (None, Some(file)) => file.len(),
        (None, None) => 0,
    };
    // An id that changes with the model; it is no digest of its bytes.
    let id = Sha256::digest(format!("{}\0{}\0{size}", status.name, path.display()));
    let digest = id.iter().fold(String::new(), |mut digest, byte| {
        let _ = write!(digest, "{byte:02x}");
        digest
    });
    json!({
        "name": tagged(&status.name),
        "model": tagged(&status.name),
        "modified_at": modified(status),
        "size": size,
        "digest": digest,
        "details": details(status),
    })
}

fn modified(status: &ModelStatus) -> String {
    let file = std::fs::metadata(path(status)).and_then(|file| file.modified());
    timestamp(file.unwrap_or(UNIX_EPOCH + Duration::from_secs(status.created)))
}

fn details(status: &ModelStatus) -> Value {
    let is_gguf = path(status).extension().is_some_and(|end| end == "gguf");
    let info = status.model.as_ref().map(|model| model.engine.model());
    let family = info.map_or("", |info| info.architecture());
    let families: Vec<&str> = info.iter().map(|info| info.architecture()).collect();
    let size = info.map(|info| match info.n_params() as f64 {
        n if n >= 1e9 => format!("{:.1}B", n / 1e9),
        n => format!("{:.2}M", n / 1e6),
    });
    json!({
        "parent_model": "",
        "format": if is_gguf { "gguf" } else { "safetensors" },
        "family": family,
        "families": families,
        "parameter_size": size.unwrap_or_default(),
        "quantization_level": info.map_or("", |info| info.quantization()),
    })
}

/// The name in a request.
pub(crate) fn named(body: &Map<String, Value>) -> Result<(String, bool), InvalidRequest> {
    let root = Fields::root(body);
    let (model, older) = (root.str("model")?, root.str("name")?);
    let missing = || InvalidRequest::Missing { param: root.path("model") };
    let name = model.or(older).ok_or_else(missing)?.to_owned();
    Ok((name, root.bool("stream")?.unwrap_or(true)))
}

fn status(state: &AppState, name: &str) -> Result<ModelStatus, ApiError> {
    let found = state.models().status(&known_name(state, name));
    found.ok_or_else(|| ApiError::model_not_found(name))
}

/// What is known of a model. It is not loaded for that.
pub(crate) async fn show(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let ((name, _), _held) = body.parse(|body| Ok(named(&body.read_all()?)?)).await?;
    let status = status(&state, &name)?;
    let mut told = json!({
        "modelfile": format!("FROM {}\n", status.name),
        "parameters": "",
        "template": "",
        "modified_at": modified(&status),
        "details": details(&status),
        "model_info": {},
        "capabilities": [match status.output {
            ModelOutput::Logits => "completion",
            ModelOutput::Embeddings => "embedding",
        }],
    });
    if let Some(model) = &status.model {
        describe(&mut told, model);
    }
    Ok(Json(told))
}

/// Adds what only a loaded model tells.
fn describe(told: &mut Value, model: &ServedModel) {
    let info = model.engine.model();
    let (architecture, config) = (info.architecture(), info.config());
    let mut facts = Map::new();
    facts.insert("general.architecture".to_owned(), json!(architecture));
    facts.insert("general.parameter_count".to_owned(), json!(info.n_params()));
    for (name, value) in [
        ("block_count", config.layers.len()),
        ("context_length", info.max_seq_len()),
        ("embedding_length", config.dim),
        ("vocab_size", info.vocab_size()),
    ] {
        facts.insert(format!("{architecture}.{name}"), json!(value));
    }
    told["model_info"] = Value::Object(facts);
    let sampling = &model.sampling;
    told["parameters"] = json!(format!(
        "temperature {}\ntop_k {}\ntop_p {}\nmin_p {}\nrepeat_penalty {}",
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
    ));
    let Some(capabilities) =
        told["capabilities"].as_array_mut().filter(|list| list[0] == "completion")
    else {
        return;
    };
    if model.tokenizer().infill().is_some() {
        capabilities.push(json!("insert"));
    }
    if let (Ok(side), Ok(template)) = (model.chat_side(), model.chat_template()) {
        if side.tools.is_some() || side.traits.tools_variable.is_some() {
            capabilities.push(json!("tools"));
        }
        if side.reasoning.is_some() {
            capabilities.push(json!("thinking"));
        }
        told["template"] = json!(template.source());
    }
}

/// Loads a model that the server was started with, which fetches what is missing of it.
pub(crate) async fn pull(
    State(state): State<AppState>,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let ((name, streams), _held) = body.parse(|body| Ok(named(&body.read_all()?)?)).await?;
    let Ok(status) = status(&state, &name) else {
        return Err(ApiError::no_such_model(format!(
            "the server was not started with the model `{name}`; `realizar pull {name}` fetches it, \
             and `realizar serve {name}` serves it"
        )));
    };
    let load = async move {
        match status.state {
            LoadState::Loaded => Ok(json!({"status": "success"})),
            _ => {
                let loaded = state.models().load(&status.name, true).await;
                loaded.map(|()| json!({"status": "success"})).map_err(ApiError::from)
            }
        }
    };
    if !streams {
        return Ok(Json(load.await?).into_response());
    }
    let first = json!({"status": format!("loading {name}")});
    let last = stream::once(async move {
        Ok(load.await.map_or_else(|error| ndjson::failure(&error), |done| ndjson::line(&done)))
    });
    Ok(ndjson::of(stream::iter([Ok(ndjson::line(&first))]).chain(last)))
}
