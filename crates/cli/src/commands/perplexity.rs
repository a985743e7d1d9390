//! `realizar perplexity`: how well a model predicts a text, scored as llama-perplexity does:
//! windows of `--ctx` tokens that do not overlap, the second half of each counts.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use serde_json::json;

use crate::engine::Model;
use crate::options::{GlobalArgs, LoadArgs, read_text};
use crate::source::progress::Progress;
use crate::ui;

/// The text is cut into windows of --ctx tokens; the second half of each is scored.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model: a path, an alias, or hf:, https:// or pip: source
    model: String,
    /// The text; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Tokens per window
    #[arg(long, value_name = "N", default_value = "512", value_parser = window)]
    ctx: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    load: LoadArgs,
}

fn window(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(n) if n >= 4 => Ok(n),
        Ok(_) => Err("must be at least 4".to_owned()),
        Err(e) => Err(e.to_string()),
    }
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    let text = read_text(None, Some(&args.file), "text")?;
    let path = global.sources()?.resolve(&args.model)?;
    let mut model = Model::load(&path, &args.load, Some(args.ctx))?;
    let ids = model.encode(&text, true, false)?;
    let progress = Progress::steps("perplexity", (ids.len() / args.ctx) as u64);
    let result = model.perplexity(&ids, args.ctx, &mut |done, total, running| {
        progress.set_total(total as u64);
        progress.set(done as u64);
        progress.note(format!("{running:.4}"));
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
        "perplexity {:.4} ± {:.4} ({} windows of {} tokens, {} tokens scored)",
        result.value, result.error, result.n_chunks, args.ctx, result.n_tokens
    )?;
    out.flush()?;
    Ok(())
}
