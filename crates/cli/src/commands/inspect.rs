//! `realizar inspect`: what a model file holds.
use anyhow::Result;

use crate::options::GlobalArgs;
use crate::ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model: a path, an alias, or hf:, https:// or pip: source
    model: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    let path = global.sources()?.resolve(&args.model)?;
    ui::json(&serde_json::json!({ "path": path, "json": args.json }))
}
