//! `realizar list`: the models in the cache, and the aliases that can be pulled.

use std::io::Write;

use anyhow::Result;
use realizar_runtime::ByteSize;
use serde_json::json;

use crate::options::GlobalArgs;
use crate::source::alias::ALIASES;
use crate::source::catalogue::{FAMILIES, Family};
use crate::source::{own, shown};
use crate::ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// List the names of the config file and the catalogue, with its tags, instead
    #[arg(long)]
    available: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    if args.available {
        return available(args.json);
    }
    let sources = global.sources();
    let cache = sources.cache()?;
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
    ui::dim(&format!("{} more names: realizar list --available", FAMILIES.len()));
    Ok(())
}

/// Prints the catalogue.
fn available(as_json: bool) -> Result<()> {
    let tags = |family: &Family| family.sizes.iter().map(|size| size.tag).collect::<Vec<_>>();
    if as_json {
        let families: Vec<_> = FAMILIES
            .iter()
            .map(|family| {
                let sizes = family.sizes.iter().map(|size| {
                    let source = format!("hf:{}:{}", size.repo, size.quantization);
                    json!({ "tag": size.tag, "source": source })
                });
                let sizes: Vec<_> = sizes.collect();
                json!({ "name": family.name, "licence": family.licence, "sizes": sizes })
            })
            .collect();
        let own = own::all().iter().map(|own| {
            let source = shown(&own.source.to_string());
            json!({ "name": own.name, "source": source, "sha256": own.sha256 })
        });
        let own: Vec<_> = own.collect();
        return ui::json(&json!({ "names": own, "available": families }));
    }
    let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
    let mut rows = vec![row(["NAME", "TAGS", "LICENCE"])];
    for own in own::all() {
        let about = format!("{}, of the config file", shown(&own.source.to_string()));
        rows.push(row([&own.name, "", &about]));
    }
    rows.extend(FAMILIES.iter().map(|f| row([f.name, &tags(f).join(", "), f.licence])));
    let mut out = ui::out();
    ui::table(&mut out, &rows, &[])?;
    out.flush()?;
    ui::dim("the first tag is the default; NAME:TAG-Q8_0 selects another quantization");
    Ok(())
}
