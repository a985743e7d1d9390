//! `realizar du`: what the cache takes on the disk.

use std::io::Write;

use anyhow::Result;
use realizar_runtime::ByteSize;
use serde_json::json;

use crate::options::GlobalArgs;
use crate::ui;

/// Sizes are those of the files, packed weights beside a model included.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    let sources = global.sources();
    let cache = sources.cache()?;
    let usage = cache.usage()?;
    let total =
        usage.models.iter().map(|(_, bytes)| bytes).sum::<u64>() + usage.unfinished + usage.packed;
    if args.json {
        let models: Vec<_> = usage
            .models
            .iter()
            .map(|(name, bytes)| json!({ "name": name, "bytes": bytes }))
            .collect();
        return ui::json(&json!({
            "cache": cache.root(),
            "models": models,
            "unfinished": usage.unfinished,
            "packed": usage.packed,
            "total": total,
        }));
    }
    let row = |bytes: u64, what: &str| vec![ByteSize(bytes).to_string(), what.to_owned()];
    let mut models = usage.models;
    models.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let mut rows: Vec<_> = models.iter().map(|(name, bytes)| row(*bytes, name)).collect();
    for (bytes, what) in [
        (usage.unfinished, "unfinished files, which `realizar rm --unfinished` removes"),
        (usage.packed, "packed weights of models outside the cache"),
    ] {
        if bytes > 0 {
            rows.push(row(bytes, what));
        }
    }
    rows.push(row(total, &format!("in {}", cache.root().display())));
    let mut out = ui::out();
    ui::table(&mut out, &rows, &[0])?;
    out.flush()?;
    Ok(())
}
