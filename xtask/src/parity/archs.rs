//! Tiny models of each architecture against transformers, from safetensors and from GGUF.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::engine::{Engine, Logits, integers, logits_from, relative_error, same_bits};
use super::{Args, Totals};
use crate::table;

/// Largest allowed difference of a logit, relative to the largest logit of its row.
const TOLERANCE: f64 = 1e-3;
/// The chunk size whose logits must be the whole prompt's, to the last bit.
const CHUNK: &str = "7";

/// A tiny model with what transformers computes for it.
pub(super) struct Golden {
    /// Folder name.
    pub(super) name: String,
    /// The folder, and the GGUF twin where there is one: (format, path).
    pub(super) files: Vec<(&'static str, PathBuf)>,
    /// The prompt.
    pub(super) ids: Vec<usize>,
    /// Positions whose logits are known.
    pub(super) positions: Vec<usize>,
    values: Logits,
}

/// All models of a folder that the arguments ask for.
pub(super) fn goldens(dir: &Path, args: &Args) -> Result<Vec<Golden>> {
    let entries = fs::read_dir(dir).with_context(|| format!("read {}", dir.display()))?;
    let mut folders = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.join("expected.json").is_file() {
            folders.push(path);
        }
    }
    folders.sort();
    let mut goldens = Vec::new();
    for folder in folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if args.wants(&name) {
            goldens.push(read(&folder, name).with_context(|| folder.display().to_string())?);
        }
    }
    ensure!(!goldens.is_empty(), "no tiny models in {}", dir.display());
    Ok(goldens)
}

fn read(folder: &Path, name: String) -> Result<Golden> {
    let json: Value = serde_json::from_str(&fs::read_to_string(folder.join("expected.json"))?)?;
    let mut files = vec![("safetensors", folder.to_path_buf())];
    let twin = folder.join("model-f32.gguf");
    if twin.is_file() {
        files.push(("gguf", twin));
    }
    Ok(Golden {
        name,
        files,
        ids: integers(&json["ids"], "ids")?,
        positions: integers(&json["positions"], "positions")?,
        values: logits_from(&json)?,
    })
}

/// Compare every model and print the table.
pub(super) fn run(engine: &Engine, dir: &Path, args: &Args) -> Result<Totals> {
    let mut totals = Totals::default();
    let mut rows = Vec::new();
    for golden in goldens(dir, args)? {
        for (format, path) in &golden.files {
            let mut row = vec![golden.name.clone(), (*format).to_owned()];
            match compare(engine, &golden, path) {
                Ok((error, chunked)) => {
                    let same = if chunked { "same bits" } else { "differs" };
                    row.extend([format!("{error:.2e}"), same.to_owned()]);
                    row.push(totals.count(error <= TOLERANCE && chunked));
                }
                Err(error) => {
                    row.extend(["-".to_owned(), "-".to_owned()]);
                    row.push(format!("{}: {error:#}", totals.count(false)));
                }
            }
            rows.push(row);
        }
    }
    println!("Logits against transformers (relative error at most {TOLERANCE:e})\n");
    println!("{}", table::render(&["model", "format", "error", "in chunks", "result"], &rows));
    Ok(totals)
}

/// (relative error, whether a chunked prompt gives the same bits)
fn compare(engine: &Engine, golden: &Golden, path: &Path) -> Result<(f64, bool)> {
    let exact = ["--arithmetic", "f32"];
    let whole = engine.logits(path, &golden.ids, &golden.positions, &exact)?;
    let chunked = ["--arithmetic", "f32", "--chunk", CHUNK];
    let chunked = engine.logits(path, &golden.ids, &golden.positions, &chunked)?;
    Ok((relative_error(&whole, &golden.values)?, same_bits(&whole, &chunked)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell;

    #[test]
    fn committed_models_are_complete() {
        let dir = shell::root().join("fixtures/archs");
        let goldens = goldens(&dir, &Args::default()).unwrap();
        let names: Vec<&str> = goldens.iter().map(|g| g.name.as_str()).collect();
        let expected = [
            "gemma",
            "gemma2",
            "gemma3_text",
            "gpt2",
            "llama",
            "llama_rope3",
            "llama_yarn",
            "mistral",
            "olmo",
            "olmo2",
            "phi",
            "phi3",
            "qwen2",
            "qwen3",
        ];
        assert_eq!(names, expected);
        for golden in goldens {
            assert_eq!(golden.ids.len(), 44, "{}", golden.name);
            assert_eq!(golden.positions, [0, 5, 22, 43], "{}", golden.name);
            assert!(golden.values.values().all(|row| row.len() == 288), "{}", golden.name);
            let twins = usize::from(golden.name != "mistral");
            assert_eq!(golden.files.len(), 1 + twins, "{}", golden.name);
        }
    }
}
