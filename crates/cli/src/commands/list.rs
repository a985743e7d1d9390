//! `realizar list`: the models in the cache, and the aliases that can be pulled.

use std::io::Write;

use anyhow::Result;
use realizar_runtime::ByteSize;
use serde_json::json;

use crate::options::GlobalArgs;
use crate::source::alias::ALIASES;
use crate::ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    let cache = global.sources()?.cache;
    let entries = cache.list()?;
    let pulled = |name: &str| entries.iter().any(|entry| entry.manifest.name == name);
    if args.json {
        let models: Vec<_> = entries
            .iter()
            .map(|entry| {
                let m = &entry.manifest;
                json!({
                    "name": m.name,
                    "path": entry.path,
                    "source": m.source,
                    "bytes": m.bytes,
                    "sha256": m.sha256,
                    "licence": m.licence,
                    "pulled_at": m.pulled_at,
                })
            })
            .collect();
        let aliases: Vec<_> = ALIASES
            .iter()
            .map(|alias| {
                json!({
                    "name": alias.name,
                    "description": alias.description,
                    "licence": alias.licence,
                    "bytes": alias.bytes,
                    "pulled": pulled(alias.name),
                })
            })
            .collect();
        return ui::json(&json!({
            "cache": cache.root(),
            "models": models,
            "aliases": aliases,
        }));
    }
    let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
    let mut rows = vec![row(["MODEL", "SIZE", "STATE", "ABOUT"])];
    for entry in &entries {
        let m = &entry.manifest;
        let alias = ALIASES.iter().find(|alias| alias.name == m.name);
        let about = alias.map_or_else(
            || entry.path.display().to_string(),
            |alias| format!("{} ({})", alias.description, alias.licence),
        );
        rows.push(row([&m.name, &ByteSize(m.bytes).to_string(), "pulled", &about]));
    }
    for alias in ALIASES.iter().filter(|alias| !pulled(alias.name)) {
        let about = format!("{} ({})", alias.description, alias.licence);
        rows.push(row([alias.name, &ByteSize(alias.bytes).to_string(), "-", &about]));
    }
    let mut out = ui::out();
    ui::table(&mut out, &rows, &[1])?;
    out.flush()?;
    Ok(())
}
