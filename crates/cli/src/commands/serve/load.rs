//! From a model's source to a model with its engine, whenever the server wants it.

use std::error::Error;
use std::fmt;

use anyhow::{Context, Result};
use realizar_runtime::MemoryUse;
use realizar_runtime::engine::{Engine as EngineThread, EngineOptions};
use realizar_server::{LoadError, ModelLoader, ModelSpec, ServedModel};

use super::args::Args;
use crate::engine::{Engine, Needs, memory_needed, read_template};
use crate::options::GlobalArgs;
use crate::ui;

/// Loads the models of the command line with its options.
pub(super) struct Loader {
    pub(super) args: Args,
    pub(super) global: GlobalArgs,
    pub(super) models: Vec<ModelSpec>,
}

impl Loader {
    fn find(&self, name: &str) -> Result<&ModelSpec> {
        let found = self.models.iter().find(|spec| spec.name == name);
        found.with_context(|| format!("{name} is no model of this server"))
    }

    fn needs(&self, spec: &ModelSpec) -> Needs {
        let args = &self.args;
        Needs {
            ctx: args.ctx,
            seqs: Some(args.parallel),
            // A row of logits for every answer, and more for guesses and for prompts to be scored.
            outputs: Some(args.parallel.saturating_mul(1 + args.lookup).max(16)),
            output: spec.output,
            kv_tokens: args.kv_tokens,
            prefix_cache: !args.no_prefix_cache,
            ..Needs::default()
        }
    }

    fn memory_of(&self, name: &str) -> Result<MemoryUse> {
        let spec = self.find(name)?;
        let path = self.global.sources()?.resolve(&spec.source)?;
        memory_needed(&path, &self.args.load, &self.global, self.needs(spec))
    }

    /// Loads a model and starts its engine.
    fn start(&self, name: &str) -> Result<ServedModel> {
        let (args, spec) = (&self.args, self.find(name)?);
        let path = self.global.sources()?.resolve(&spec.source)?;
        let model = Engine::load(&path, &args.load, &self.global, self.needs(spec))?.model;
        let template = args.template.as_ref().map(|path| read_template(path, model.tokenizer()?));
        let template = template.transpose()?;
        let options = EngineOptions {
            max_seqs: Some(args.parallel),
            max_queue: args.queue,
            lookup_tokens: args.lookup,
            prompt_tokens: Some(args.prompt_step),
            ..EngineOptions::default()
        };
        let mut served = ServedModel::new(name, EngineThread::start(model, options)?);
        served.template = template;
        served.sampling = args.sampling.params();
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
}

/// An error on its way through the server, which tells it to clients, too.
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

/// Why a model could not be loaded at the start; what the user can mend is a usage error.
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
