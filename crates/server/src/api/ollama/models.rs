//! Which models there are: `/api/tags`, `/api/show`, `/api/ps`, `/api/pull`, `/api/version`.

use super::{VERSION, known_name, tagged, timestamp};
use crate::answer::ndjson;
use crate::error::ApiError;
use crate::fields::{Fields, InvalidRequest};
use crate::http::extract::JsonBody;
use crate::registry::{FileFormat, Known, LoadState, ModelStatus};
use crate::state::AppState;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt as _, stream};
use realizar_runtime::ModelOutput;
use realizar_runtime::config::Config;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// When a model goes that stays as long as there is room.
const NEVER: &str = "9999-12-31T23:59:59Z";

/// The version of Ollama's API that is spoken here, and what speaks it.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": VERSION, "realizar": env!("CARGO_PKG_VERSION")}))
}

/// All models.
pub(crate) async fn tags(State(state): State<AppState>) -> Result<Json<Value>, ApiError> {
    let known = look_up(&state, state.models().statuses()).await?;
    Ok(Json(json!({"models": known.iter().map(listed).collect::<Vec<_>>()})))
}

/// The loaded models.
pub(crate) async fn ps(State(state): State<AppState>) -> Result<Json<Value>, ApiError> {
    let mut statuses = state.models().statuses();
    statuses.retain(|status| status.model.is_some());
    let known = look_up(&state, statuses).await?;
    let models = known.iter().filter_map(|known| Some((known, known.status.model.as_ref()?)));
    let models = models.map(|(known, model)| {
        let info = model.engine.model();
        let total = info.memory().total();
        let mut body = listed(known);
        body["size"] = json!(total);
        body["size_vram"] = json!(if info.backend().starts_with("cpu") { 0 } else { total });
        let expires = known.status.stays_for.map(|left| timestamp(SystemTime::now() + left));
        body["expires_at"] = json!(expires.as_deref().unwrap_or(NEVER));
        body["context_length"] = json!(info.max_seq_len());
        if let Some(body) = body.as_object_mut() {
            body.remove("modified_at");
        }
        body
    });
    Ok(Json(json!({"models": models.collect::<Vec<_>>()})))
}

/// Cards of models; their files are read off the serving threads.
async fn look_up(state: &AppState, statuses: Vec<ModelStatus>) -> Result<Vec<Known>, ApiError> {
    let models = state.models().clone();
    let known = tokio::task::spawn_blocking(move || models.look_up(statuses)).await;
    known.map_err(|error| ApiError::internal(error.to_string()))
}

/// A model in a list.
fn listed(known: &Known) -> Value {
    let status = &known.status;
    let size = match (Facts::of(known), &status.files) {
        (Some(facts), _) => facts.weight_bytes as u64,
        (None, Some(files)) => files.bytes,
        (None, None) => 0,
    };
    let path = known.path().map(|path| path.display().to_string());
    let path = path.or_else(|| status.source.clone()).unwrap_or_default();
    // An id that changes with the model; it is no digest of its bytes.
    let id = Sha256::digest(format!("{}\0{path}\0{size}", status.name));
    let digest = id.iter().fold(String::new(), |mut digest, byte| {
        let _ = write!(digest, "{byte:02x}");
        digest
    });
    json!({
        "name": tagged(&status.name),
        "model": tagged(&status.name),
        "modified_at": modified(known),
        "size": size,
        "digest": digest,
        "details": details(known),
    })
}

fn modified(known: &Known) -> String {
    let file = known.path().and_then(|path| std::fs::metadata(path).ok()?.modified().ok());
    timestamp(file.unwrap_or(UNIX_EPOCH + Duration::from_secs(known.status.created)))
}

/// Properties of a loaded model, or of another by its files.
struct Facts<'a> {
    architecture: &'static str,
    config: &'a Config,
    context: usize,
    n_params: usize,
    quantization: &'a str,
    weight_bytes: usize,
}

impl<'a> Facts<'a> {
    fn of(known: &'a Known) -> Option<Self> {
        let Known { status, card } = known;
        match (&status.model, card) {
            (Some(model), _) => {
                let info = model.engine.model();
                Some(Self {
                    architecture: info.architecture(),
                    config: info.config(),
                    context: info.max_seq_len(),
                    n_params: info.n_params(),
                    quantization: info.quantization(),
                    weight_bytes: info.weight_bytes(),
                })
            }
            (None, Some(card)) => {
                let card = &card.model;
                Some(Self {
                    architecture: card.architecture(),
                    config: card.config(),
                    context: card.max_seq_len(),
                    n_params: card.n_params(),
                    quantization: card.quantization(),
                    weight_bytes: card.weight_bytes(),
                })
            }
            (None, None) => None,
        }
    }
}

fn details(known: &Known) -> Value {
    let format = known.status.files.as_ref().map_or(FileFormat::Gguf, |files| files.format);
    let facts = Facts::of(known);
    let family = facts.as_ref().map(|facts| facts.architecture);
    let size = facts.as_ref().map(|facts| match facts.n_params as f64 {
        n if n >= 1e9 => format!("{:.1}B", n / 1e9),
        n => format!("{:.2}M", n / 1e6),
    });
    json!({
        "parent_model": "",
        "format": format.name(),
        "family": family.unwrap_or_default(),
        "families": family.into_iter().collect::<Vec<_>>(),
        "parameter_size": size.unwrap_or_default(),
        "quantization_level": facts.map_or("", |facts| facts.quantization),
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
    let models = state.models().clone();
    let told = tokio::task::spawn_blocking(move || {
        let known = models.look_up(vec![status]);
        known.iter().map(shown).next()
    });
    let told = told.await.map_err(|error| ApiError::internal(error.to_string()))?;
    told.map(Json).ok_or_else(|| ApiError::model_not_found(&name))
}

/// What is known of a model, whose text side may be read for it.
fn shown(known: &Known) -> Value {
    let status = &known.status;
    let capability = match status.output {
        ModelOutput::Logits => "completion",
        ModelOutput::Embeddings => "embedding",
    };
    let mut told = json!({
        "modelfile": format!("FROM {}\n", status.name),
        "parameters": "",
        "template": "",
        "modified_at": modified(known),
        "details": details(known),
        "model_info": Facts::of(known).as_ref().map_or_else(|| json!({}), model_info),
        "capabilities": [capability],
    });
    if let Some(model) = &status.model {
        let sampling = &model.sampling;
        told["parameters"] = json!(format!(
            "temperature {}\ntop_k {}\ntop_p {}\nmin_p {}\nrepeat_penalty {}",
            sampling.temperature,
            sampling.top_k,
            sampling.top_p,
            sampling.min_p,
            sampling.repetition_penalty,
        ));
    }
    if status.output == ModelOutput::Logits {
        let text = Text::of(known);
        let capabilities =
            [("insert", text.infill), ("tools", text.tools), ("thinking", text.thinking)];
        let names = capabilities.into_iter().filter(|(_, has)| *has).map(|(name, _)| name);
        told["capabilities"] = std::iter::once(capability).chain(names).collect();
        told["template"] = json!(text.template.unwrap_or_default());
    }
    told
}

fn model_info(facts: &Facts<'_>) -> Value {
    let architecture = facts.architecture;
    let mut info = Map::new();
    info.insert("general.architecture".to_owned(), json!(architecture));
    info.insert("general.parameter_count".to_owned(), json!(facts.n_params));
    for (name, value) in [
        ("block_count", facts.config.layers.len()),
        ("context_length", facts.context),
        ("embedding_length", facts.config.dim),
        ("vocab_size", facts.config.vocab_size),
    ] {
        info.insert(format!("{architecture}.{name}"), json!(value));
    }
    Value::Object(info)
}

/// What the text side of a model offers.
#[derive(Default)]
struct Text<'a> {
    template: Option<&'a str>,
    infill: bool,
    tools: bool,
    thinking: bool,
}

impl<'a> Text<'a> {
    fn of(known: &'a Known) -> Self {
        if let Some(model) = &known.status.model {
            let infill = model.tokenizer().infill().is_some();
            return match (model.chat_side_for(true), model.chat_template()) {
                (Ok(side), Ok(template)) => Self {
                    template: Some(template.source()),
                    infill,
                    tools: side.tools.is_some() || side.traits.tools_variable.is_some(),
                    thinking: side.reasoning.is_some(),
                },
                _ => Self { infill, ..Self::default() },
            };
        }
        known.card.as_ref().map_or_else(Self::default, |card| {
            let text = card.text();
            let template = text.template.as_deref();
            Self { template, infill: text.infill, tools: text.tools, thinking: text.thinking }
        })
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
