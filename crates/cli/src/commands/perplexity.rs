//! `realizar perplexity`: how well a model predicts a text, scored as llama-perplexity does:
//! chunks of `--ctx` tokens that do not overlap, the second half of each counts.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use realizar_runtime::tokenizer::EncodeOptions;
use serde_json::json;

use crate::engine::{Engine, Needs};
use crate::options::{GlobalArgs, LoadArgs, read_text};
use crate::source::progress::Progress;
use crate::ui;

/// Rows of logits per step: enough for whole tiles, few enough for large vocabularies.
pub(super) const OUTPUTS: usize = 64;

/// The text is cut into chunks of --ctx tokens; the second half of each is scored.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model: a path, an alias, or hf:, https:// or pip: source
    model: String,
    /// The text; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Tokens per chunk
    #[arg(long, value_name = "N", default_value = "512", value_parser = chunk_len, allow_negative_numbers = true)]
    ctx: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: LoadArgs,
}

/// Tokens of a chunk.
pub(super) fn chunk_len(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if n >= 4 => Ok(n),
        _ => Err("must be a whole number of at least 4".to_owned()),
    }
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    let text = read_text(None, Some(&args.file), "text")?;
    let path = global.sources().resolve(&args.model)?;
    let needs = Needs { ctx: Some(args.ctx), outputs: Some(OUTPUTS), ..Needs::default() };
    let mut engine = Engine::load(&path, &args.load, global, needs)?;
    let options = EncodeOptions { add_special: true, parse_special: false };
    let ids = engine.encode(&text, options)?;
    let progress = Progress::steps("perplexity", (ids.len() / args.ctx) as u64);
    let result = engine.model.perplexity(&ids, args.ctx, &mut |done, total, running| {
        progress.set_total(total as u64);
        progress.set(done as u64);
        progress.note(&format!("{running:.4}", running = running.value));
    })?;
    progress.done();
    if args.json {
        return ui::json(&json!({
            "perplexity": result.value,
            "error": result.error,
            "n_tokens": result.n_tokens,
            "n_chunks": result.n_chunks,
            "ctx": args.ctx,
        }));
    }
    let mut out = ui::out();
    writeln!(
        out,
        "perplexity {:.4} ± {:.4} ({} chunks of {} tokens, {} tokens scored)",
        result.value, result.error, result.n_chunks, args.ctx, result.n_tokens
    )?;
    out.flush()?;
    Ok(())
}
