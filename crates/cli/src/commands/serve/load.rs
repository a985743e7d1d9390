//! From a model's source to a model with its engine, whenever the server wants it.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, Result};
use realizar_runtime::engine::{CacheEvent, CacheSink, Engine as EngineThread, EngineOptions};
use realizar_runtime::{DraftHead, MemoryUse, ModelOutput};
use realizar_server::{LoadError, ModelLoader, ModelSpec, ServedModel};

use super::args::{Args, DraftArgs};
use super::models::pulled;
use crate::engine::{Engine, Needs, memory_needed, read_template};
use crate::options::{DraftHeadArg, GlobalArgs};
use crate::source::cache::Cache;
use crate::ui;

/// Loads the models of the command line with its options.
pub(super) struct Loader {
    pub(super) args: Args,
    pub(super) global: GlobalArgs,
    pub(super) models: Vec<ModelSpec>,
    /// Where models are that have been pulled, if they are offered.
    pub(super) pulled: Option<Cache>,
    /// The subscriber to changes of the prefix cache.
    pub(super) cache_sink: Option<CacheSink>,
}

impl Loader {
    fn find(&self, name: &str) -> Result<Cow<'_, ModelSpec>> {
        if let Some(spec) = self.models.iter().find(|spec| spec.name == name) {
            return Ok(Cow::Borrowed(spec));
        }
        let found = self.offered()?.into_iter().find(|spec| spec.name == name);
        found.map(Cow::Owned).with_context(|| format!("unknown model {name}"))
    }

    /// The models that have been pulled, if they are offered.
    fn offered(&self) -> Result<Vec<ModelSpec>> {
        let Some(cache) = &self.pulled else { return Ok(Vec::new()) };
        Ok(pulled(cache, &self.args.models.alias)?.0)
    }

    fn needs(&self, spec: &ModelSpec) -> Needs {
        let args = &self.args;
        Needs {
            ctx: args.scheduling.ctx,
            seqs: Some(args.scheduling.parallel),
            // A row of logits for every answer, and more for draft tokens and for prompts to be scored.
            outputs: Some(args.scheduling.parallel.saturating_mul(1 + self.max_guesses()).max(16)),
            output: spec.output,
            kv_tokens: args.scheduling.kv_tokens,
            prefix_cache: !args.scheduling.no_prefix_cache,
            draft_head: self.draft_head(spec),
            ..Needs::default()
        }
    }

    /// The maximum number of tokens drafted per step for an answer.
    fn max_guesses(&self) -> usize {
        let DraftArgs { lookup, draft_model, draft_max, .. } = &self.args.draft;
        if draft_model.is_some() { *lookup.max(draft_max) } else { *lookup }
    }

    /// Whether a model drafts with a layer of its own: not beside a draft model, unless that is requested.
    fn draft_head(&self, spec: &ModelSpec) -> DraftHead {
        let DraftArgs { draft_head, draft_model, .. } = &self.args.draft;
        match draft_head {
            _ if spec.output != ModelOutput::Logits => DraftHead::Off,
            DraftHeadArg::Auto if draft_model.is_some() => DraftHead::Off,
            DraftHeadArg::Auto => DraftHead::Auto,
            DraftHeadArg::On => DraftHead::On,
            DraftHeadArg::Off => DraftHead::Off,
        }
    }

    /// The draft model of a model, and what it needs.
    fn draft(&self, spec: &ModelSpec) -> Option<(&str, Needs)> {
        let source = self.args.draft.draft_model.as_deref()?;
        let needs = self.needs(spec);
        let (outputs, draft_head) = (Some(self.args.scheduling.parallel), DraftHead::Off);
        let needs = Needs { outputs, prefix_cache: false, draft_head, ..needs };
        (spec.output == ModelOutput::Logits).then_some((source, needs))
    }

    fn memory_of(&self, name: &str) -> Result<MemoryUse> {
        let spec = &*self.find(name)?;
        let needed = |source: &str, needs| {
            let path = self.global.sources().resolve(source)?;
            memory_needed(&path, &self.args.load, &self.global, needs)
        };
        let own = needed(&spec.source, self.needs(spec))?;
        let draft = self.draft(spec).map(|(source, needs)| needed(source, needs)).transpose()?;
        Ok(own + draft.unwrap_or_default())
    }

    /// Loads a model and starts its engine.
    fn start(&self, name: &str) -> Result<ServedModel> {
        let (args, spec) = (&self.args, &*self.find(name)?);
        let load = |source: &str, needs| {
            let path = self.global.sources().resolve(source)?;
            anyhow::Ok(Engine::load(&path, &args.load, &self.global, needs)?.model)
        };
        let model = load(&spec.source, self.needs(spec))?;
        let draft = self.draft(spec).map(|(source, needs)| load(source, needs)).transpose()?;
        let template =
            args.chat.template.as_ref().map(|path| read_template(path, model.tokenizer()?));
        let template = template.transpose()?;
        let cache_sink = self.cache_sink.clone().filter(|_| spec.output == ModelOutput::Logits);
        if let Some(CacheSink(tell)) = &cache_sink {
            // Of a model that was loaded before, nothing is left.
            tell(vec![CacheEvent::Cleared]);
        }
        let options = EngineOptions {
            max_seqs: Some(args.scheduling.parallel),
            max_queue: args.scheduling.queue,
            lookup_tokens: args.draft.lookup,
            prompt_tokens: Some(args.scheduling.prompt_step),
            draft_tokens: args.draft.draft_max,
            draft_always: false,
            cache_sink,
        };
        let engine = EngineThread::start_with_draft(model, draft, options)?;
        let mut served = ServedModel::new(name, engine);
        served.template = template;
        served.tool_format = args.chat.tool_parser;
        served.reasoning_format = args.chat.reasoning_parser;
        served.additional_properties = args.chat.additional_properties.into();
        served.sampling = args.sampling.over(&served.sampling);
        Ok(served)
    }
}

impl ModelLoader for Loader {
    fn memory(&self, name: &str) -> Result<MemoryUse, Box<dyn Error + Send + Sync>> {
        self.memory_of(name).map_err(Failure::boxed)
    }

    fn load(&self, name: &str) -> Result<ServedModel, Box<dyn Error + Send + Sync>> {
        self.start(name).map_err(Failure::boxed)
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        let spec = self.find(name).ok()?;
        self.global.sources().find(&spec.source)
    }

    fn discover(&self) -> Vec<ModelSpec> {
        self.offered().unwrap_or_else(|error| {
            tracing::warn!("cannot list what has been pulled: {error:#}");
            Vec::new()
        })
    }
}

/// An error on its way through the server, which reports it to clients, too.
#[derive(Debug)]
struct Failure(anyhow::Error);

impl Failure {
    fn boxed(error: anyhow::Error) -> Box<dyn Error + Send + Sync> {
        Box::new(Self(error))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&ui::one_line(&self.0))
    }
}

impl Error for Failure {}

/// Why a model could not be loaded at the start; what the user can fix is a usage error.
pub(super) fn start_error(error: LoadError) -> anyhow::Error {
    if let LoadError::Failed { error, .. } = &error
        && let Some(Failure(failure)) = error.downcast_ref()
    {
        let text = ui::one_line(failure);
        return if failure.is::<ui::UsageError>() {
            ui::usage(text)
        } else {
            anyhow::Error::msg(text)
        };
    }
    error.into()
}
