//! From a model's source to a model with its engine.

use anyhow::Result;
use realizar_runtime::ModelOutput;
use realizar_runtime::engine::{Engine as EngineThread, EngineOptions};
use realizar_server::ServedModel;

use super::args::Args;
use crate::engine::{Engine, Needs, read_template};
use crate::options::GlobalArgs;

/// Loads a model and starts its engine.
pub(super) fn load(
    source: &str,
    mut names: Vec<String>,
    output: ModelOutput,
    args: &Args,
    global: &GlobalArgs,
) -> Result<ServedModel> {
    let path = global.sources()?.resolve(source)?;
    let needs = Needs {
        ctx: args.ctx,
        seqs: Some(args.parallel),
        // A row of logits for every answer, and more for guesses and for prompts to be scored.
        outputs: Some(args.parallel.saturating_mul(1 + args.lookup).max(16)),
        output,
        kv_tokens: args.kv_tokens,
        prefix_cache: !args.no_prefix_cache,
        ..Needs::default()
    };
    let model = Engine::load(&path, &args.load, global, needs)?.model;
    let template = args.template.as_ref().map(|path| read_template(path, model.tokenizer()?));
    let template = template.transpose()?;
    let options = EngineOptions {
        max_seqs: Some(args.parallel),
        max_queue: args.queue,
        lookup_tokens: args.lookup,
        prompt_tokens: Some(args.prompt_step),
        ..EngineOptions::default()
    };
    let name = names.remove(0);
    let mut served = ServedModel::new(name, EngineThread::start(model, options)?);
    served.aliases = names;
    served.template = template;
    served.sampling = args.sampling.params();
    Ok(served)
}
