//! `realizar rm`: removes pulled models from the cache.

use std::io::Write;

use anyhow::{Result, bail};
use realizar_runtime::ByteSize;

use crate::options::GlobalArgs;
use crate::ui;

/// Files outside the cache are never touched.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Models, by the names that `realizar list` prints or as they were given to pull
    #[arg(required_unless_present = "unfinished")]
    models: Vec<String>,
    /// Delete what interrupted downloads, and processes that were killed while they packed weights, left
    /// behind
    #[arg(long)]
    unfinished: bool,
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    let sources = global.sources();
    let mut out = ui::out();
    let mut unknown = Vec::new();
    for model in &args.models {
        match sources.remove(model)? {
            Some(manifest) => {
                writeln!(out, "removed {} ({})", manifest.name, ByteSize(manifest.bytes))?;
            }
            None => unknown.push(format!("`{model}`")),
        }
    }
    if args.unfinished {
        let bytes = sources.cache()?.remove_unfinished()?;
        writeln!(out, "removed {} of unfinished files", ByteSize(bytes))?;
    }
    out.flush()?;
    if !unknown.is_empty() {
        bail!("not in the cache: {}; `realizar list` shows what is", unknown.join(", "));
    }
    Ok(())
}
