//! The lines with which a server says that it listens: its address, what is there, and which contexts the models have.

use realizar_runtime::default_context;
use realizar_server::{Models, ServedModel};

use super::args::Args;
use crate::source::cache::Cache;

/// The lines. The first one, with the URL alone, is for programs as well.
pub(super) fn lines(
    url: &str,
    args: &Args,
    models: &Models,
    pulled: Option<&Cache>,
) -> Vec<String> {
    let mut lines = vec![format!("listening on {url}")];
    lines.push(format!("chat page: {url}/  OpenAI API: {url}/v1"));
    let loaded = models.all();
    lines.extend(loaded.iter().filter_map(|model| shortened(model, args)));
    if let Some(cache) = pulled {
        lines.push(offered(cache.list().map_or(0, |entries| entries.len())));
    }
    lines
}

/// That the context of a model is shorter than the model's, because memory is short.
fn shortened(model: &ServedModel, args: &Args) -> Option<String> {
    let info = model.engine.model();
    let (context, own) = (info.max_seq_len(), default_context(info.config()));
    let is_short = args.scheduling.ctx.is_none() && context < own;
    let why = if args.scheduling.kv_tokens.is_some() {
        "--kv-tokens has room for"
    } else {
        "free memory has room for"
    };
    is_short.then(|| format!("{}: context {context} of {own} tokens, as much as {why}", model.name))
}

/// How many models that have been pulled are offered, or how one is pulled.
fn offered(n: usize) -> String {
    match n {
        0 => "no model has been pulled: `realizar pull smollm2` fetches one, `realizar list \
              --available` shows more names"
            .to_owned(),
        1 => "1 model has been pulled; it is loaded by its first request".to_owned(),
        n => format!("{n} models have been pulled; each is loaded by its first request"),
    }
}
