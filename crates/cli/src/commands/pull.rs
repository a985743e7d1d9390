//! `realizar pull`: fetch a model into the cache and print where it lies.

use std::io::Write;

use anyhow::Result;
use serde_json::json;

use crate::options::GlobalArgs;
use crate::source::Source;
use crate::ui;

/// A model that is already there is not fetched again.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model: an alias, or hf:, https:// or pip: source
    model: String,
    /// Download again even if the model is in the cache
    #[arg(long)]
    force: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    let source = Source::parse(&args.model)?;
    let entry = global.sources().pull(&source, args.force)?;
    let manifest = &entry.manifest;
    if args.json {
        return ui::json(&json!({
            "name": manifest.name,
            "path": entry.path,
            "source": manifest.source,
            "bytes": manifest.bytes,
            "sha256": manifest.sha256,
            "licence": manifest.licence,
        }));
    }
    if let Some(licence) = &manifest.licence {
        ui::note(&format!("licence: {licence}"));
    }
    let mut out = ui::out();
    writeln!(out, "{}", entry.path.display())?;
    out.flush()?;
    Ok(())
}
