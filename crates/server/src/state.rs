//! What all handlers share: the settings, the models by name, and whether the server is closing.

use crate::config::ServerConfig;
use crate::error::{ApiError, Error};
use crate::ids;
use crate::messages::TemplateTraits;
use crate::reasoning::ReasoningFormat;
use crate::record;
use crate::tools::ToolFormat;
use realizar_runtime::constrain::Constrainer;
use realizar_runtime::engine::Engine;
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::template::ChatTemplate;
use realizar_runtime::tokenizer::Tokenizer;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// A model under its names, with what requests to it begin from.
#[derive(Debug)]
pub struct ServedModel {
    /// The name that answers and lists show.
    pub name: String,
    /// Further names that requests may use.
    pub aliases: Vec<String>,
    /// What runs it.
    pub engine: Engine,
    /// The chat template in place of the model's own.
    pub template: Option<ChatTemplate>,
    /// The format of its tool calls; where there is none, the one that its template shows.
    pub tool_format: Option<ToolFormat>,
    /// The sampling of a request that asks for nothing else.
    pub sampling: SamplingParams,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    chat: OnceLock<ChatSide>,
    constrainer: OnceLock<Result<Constrainer, String>>,
}

/// What a model's chat template shows of how it converses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChatSide {
    /// What its messages may be made of.
    pub(crate) traits: TemplateTraits,
    /// The format of its tool calls, if it is a known one.
    pub(crate) tools: Option<ToolFormat>,
    /// How it marks reasoning, if it does.
    pub(crate) reasoning: Option<ReasoningFormat>,
    /// Whether the template tells the model of tools.
    pub(crate) tells_of_tools: bool,
}

impl ServedModel {
    /// A model under one name, with its own template and OpenAI's defaults of sampling.
    pub fn new(name: impl Into<String>, engine: Engine) -> Self {
        Self {
            name: name.into(),
            aliases: Vec::new(),
            engine,
            template: None,
            tool_format: None,
            sampling: openai_sampling(),
            created: ids::unix_seconds(),
            chat: OnceLock::new(),
            constrainer: OnceLock::new(),
        }
    }

    /// Its tokenizer.
    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        self.engine.model().tokenizer()
    }

    /// The template of its conversations.
    pub(crate) fn chat_template(&self) -> Result<&ChatTemplate, ApiError> {
        let own = match &self.template {
            Some(template) => Some(template),
            None => {
                let own = self.engine.model().chat_template();
                own.map_err(|error| ApiError::internal(error.to_string()))?.map(|own| &**own)
            }
        };
        own.ok_or_else(|| {
            let name = &self.name;
            let message = format!("the model `{name}` has no chat template; use /v1/completions");
            ApiError::invalid("messages", message)
        })
    }

    /// How it converses. The first call renders the template a few times.
    pub(crate) fn chat_side(&self) -> Result<ChatSide, ApiError> {
        let template = self.chat_template()?;
        Ok(*self.chat.get_or_init(|| ChatSide {
            traits: TemplateTraits::of(template),
            tools: self.tool_format.or_else(|| ToolFormat::detect(template.source())),
            reasoning: ReasoningFormat::detect(template.source()),
            tells_of_tools: template.source().contains("tools"),
        }))
    }

    /// What compiles grammars for it. The first call arranges the vocabulary.
    pub(crate) fn constrainer(&self) -> Result<&Constrainer, ApiError> {
        let made = self
            .constrainer
            .get_or_init(|| Constrainer::new(self.tokenizer()).map_err(|error| error.to_string()));
        made.as_ref().map_err(|error| ApiError::internal(error.clone()))
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.name).chain(&self.aliases).map(String::as_str)
    }
}

/// Sampling from the model's own distribution, as OpenAI's API defines its defaults.
pub fn openai_sampling() -> SamplingParams {
    SamplingParams { temperature: 1.0, top_k: 0, top_p: 1.0, ..SamplingParams::default() }
}

/// The models that are served, in the order in which they were added. The first one answers
/// requests that name none.
#[derive(Debug, Default)]
pub struct Models {
    list: RwLock<Vec<Arc<ServedModel>>>,
}

impl Models {
    /// No models.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a model.
    ///
    /// # Errors
    /// If one of its names is taken.
    pub fn add(&self, model: ServedModel) -> Result<Arc<ServedModel>, Error> {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        let taken = |name: &str| list.iter().any(|other| other.names().any(|n| n == name));
        if let Some(name) = model.names().find(|name| taken(name)) {
            return Err(Error::Name { name: name.to_owned() });
        }
        let model = Arc::new(model);
        list.push(model.clone());
        Ok(model)
    }

    /// Takes the model with this name or alias away from new requests; those that run keep it.
    pub fn remove(&self, name: &str) -> Option<Arc<ServedModel>> {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        let at = list.iter().position(|model| model.names().any(|n| n == name))?;
        Some(list.remove(at))
    }

    /// The model with this name or alias.
    pub fn get(&self, name: &str) -> Option<Arc<ServedModel>> {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        list.iter().find(|model| model.names().any(|n| n == name)).cloned()
    }

    /// All models.
    pub fn all(&self) -> Vec<Arc<ServedModel>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What handlers are given; a handle on one shared value.
#[derive(Debug, Clone)]
pub struct AppState(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    config: ServerConfig,
    models: Models,
    closing: AtomicBool,
}

impl AppState {
    /// The state of a server.
    pub fn new(config: ServerConfig, models: Models) -> Self {
        Self(Arc::new(Shared { config, models, closing: AtomicBool::new(false) }))
    }

    /// The settings.
    pub fn config(&self) -> &ServerConfig {
        &self.0.config
    }

    /// The models.
    pub fn models(&self) -> &Models {
        &self.0.models
    }

    /// Whether the server is about to end.
    pub fn is_closing(&self) -> bool {
        self.0.closing.load(Ordering::Relaxed)
    }

    /// From now on the server is not ready, and new requests are refused.
    pub(crate) fn close(&self) {
        self.0.closing.store(true, Ordering::Relaxed);
    }

    /// The model that a request names, or the first one if it names none.
    pub(crate) fn model(&self, name: Option<&str>) -> Result<Arc<ServedModel>, ApiError> {
        if self.is_closing() {
            return Err(ApiError::unavailable("the server is shutting down"));
        }
        let first = self.models().all().into_iter().next();
        let first = first.ok_or_else(|| ApiError::unavailable("no model is loaded"))?;
        let model = match name.filter(|name| !name.is_empty()) {
            Some(name) => self.models().get(name).ok_or_else(|| ApiError::model_not_found(name))?,
            None => first,
        };
        if let Some(recorder) = record::current() {
            recorder.note(|record| record.model = Some(model.name.clone()));
        }
        Ok(model)
    }
}
