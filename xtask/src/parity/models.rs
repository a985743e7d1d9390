//! `cargo xtask parity --table`: writes `docs/models.md`, the table of architectures, and
//! `fixtures/archs/parity.md`, the distance of their tiny models' logits from transformers' on every device.
//!
//! Names, descriptions and refusals are read from the files of the architectures, figures come from runs
//! of the engine. Nothing here lists an architecture.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::archs::{self, Golden};
use super::engine::{Engine, Logits, relative_error};
use super::{Args, GPU_CHUNKS};
use crate::lavapipe::Width;
use crate::totals::Totals;
use crate::{shell, table};

/// Where the table of architectures is kept.
const DOCUMENT: &str = "docs/models.md";
/// Where the figures of the tiny models are kept.
const FIGURES_DOCUMENT: &str = "fixtures/archs/parity.md";
/// Largest allowed difference of a logit, relative to the largest logit of its row.
const TOLERANCE: f64 = 1e-3;

const INTRODUCTION: &str = "\
# Models

<!-- Written by `cargo xtask parity --table`; manual changes are lost. -->

A model is run by its architecture, which a GGUF file names in `general.architecture` and a Hugging Face
directory in `model_type`. Any other name is an error that lists the supported ones. The architecture also determines
which settings and tensors a file may have: an unsupported one is an error at load that names it.
[Parity](../fixtures/archs/parity.md) compares a tiny model of each with transformers on CPU, wgpu and CUDA.

";

const FIGURES: &str = "\
# Parity

<!-- Written by `cargo xtask parity --table`; manual changes are lost. -->

Tiny random models of the [supported architectures](../../docs/models.md), in F32, against transformers. A figure is
the largest difference of a logit, relative to the largest logit of its row, over four positions of a prompt of 44
tokens. The columns are ways to compute the same logits: the prompt as a whole; in chunks of 1, 7 and 16; token by token
as decode rows; and as a prompt batched with two other sequences. Each figure must be at most 1e-3, and the most likely
token must be transformers'. wgpu runs on lavapipe, and the CUDA kernels on their interpreter, both on the CPU; models with
quantized weights are compared on the quantized weights.

";

/// An architecture as its file tells of it.
#[derive(Debug, PartialEq, Eq)]
struct Architecture {
    name: String,
    model_types: Vec<String>,
    about: String,
    refused: Vec<String>,
}

impl Architecture {
    /// From the text of its file; none in a file of shared pieces.
    fn read(source: &str) -> Option<Self> {
        let row = &source[source.find("static ARCHITECTURE: Architecture = Architecture {")?..];
        let name = strings(&row[row.find(" name:")?..]).next()?;
        let types = &row[row.find("hf_model_types:")?..];
        let model_types = strings(&types[..types.find(']')?]).collect();
        let header = source.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
        let header: Vec<&str> = header.take_while(|line| !line.is_empty()).collect();
        let header = header.join(" ");
        let about = header.split_once(": ").map_or(header.as_str(), |(_, about)| about);
        let tests = source.find("#[cfg(test)]").unwrap_or(source.len());
        let refusals = source[..tests].split("unsupported(").skip(1);
        let refusals = refusals.map(str::trim_start).filter(|text| text.starts_with('"'));
        let refused = refusals.filter_map(|text| strings(text).next());
        let mut refused: Vec<String> =
            refused.map(|text| text.trim_end_matches(',').to_owned()).collect();
        refused.dedup();
        Some(Self { name, model_types, about: about.to_owned(), refused })
    }
}

/// The string literals of a text, none of which has an escape.
fn strings(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split('"').skip(1).step_by(2).map(str::to_owned)
}

/// All architectures, by name.
fn architectures() -> Result<Vec<Architecture>> {
    let dir = shell::root().join("crates/model/src/architectures");
    let mut found = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("read {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            found.extend(Architecture::read(&fs::read_to_string(&path)?));
        }
    }
    ensure!(!found.is_empty(), "no architectures in {}", dir.display());
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Runs all models on all devices and writes both documents; with `--only`, prints the figures.
pub(super) fn run(bin: &Path, dir: &Path, args: &Args) -> Result<Totals> {
    let architectures = architectures()?;
    let document = INTRODUCTION.to_owned() + &listed(&architectures);
    let mut parity = FIGURES.to_owned();
    let mut totals = Totals::default();
    let goldens = archs::goldens(dir, args)?;
    let place = |device: &str| Args { device: device.to_owned(), ..Args::default() };
    let cpu = ("CPU", place("cpu"));
    let wgpu = ("wgpu", place("wgpu").on_lavapipe(Width::W256));
    for (title, place) in [cpu, wgpu, ("CUDA", place("cuda-interpreter"))] {
        let engine = place.engine(bin.to_path_buf())?;
        let mut rows = Vec::new();
        for golden in goldens.iter().filter(|golden| archs::runs_on(&place, &golden.name)) {
            let architecture = architecture_of(golden, &architectures)?;
            for (format, path) in &golden.files {
                let mut row =
                    vec![golden.name.clone(), architecture.to_owned(), (*format).to_owned()];
                match figures(&engine, golden, path) {
                    Ok((errors, same_token)) => {
                        let holds = errors.iter().all(|error| *error <= TOLERANCE) && same_token;
                        totals.count(holds);
                        row.extend(errors.map(|error| format!("{error:.1e}")));
                        row.push(if same_token { "same" } else { "OTHER" }.to_owned());
                    }
                    Err(error) => {
                        totals.count(false);
                        println!("{} ({format}) on {title}: {error:#}", golden.name);
                        row.extend(["failed"; 5].map(str::to_owned));
                    }
                }
                rows.push(row);
            }
        }
        let header =
            ["model", "architecture", "format", "whole", "chunks", "generated", "batch", "token"];
        parity += &format!("## {title}\n\n{}\n", table::render(&header, &rows));
    }
    let parity = parity.trim_end().to_owned() + "\n";
    if args.only.is_empty() && args.dir.is_none() {
        for (path, text) in [(DOCUMENT, document), (FIGURES_DOCUMENT, parity)] {
            fs::write(shell::root().join(path), text)?;
            println!("wrote {path}");
        }
    } else {
        println!("{parity}");
    }
    Ok(totals)
}

/// The table of architectures.
fn listed(architectures: &[Architecture]) -> String {
    let code = |names: &[String]| {
        names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    };
    let rows: Vec<Vec<String>> = architectures
        .iter()
        .map(|it| {
            let names = code(std::slice::from_ref(&it.name));
            let cells = [names, code(&it.model_types), it.about.clone(), it.refused.join("; ")];
            cells.map(|cell| cell.replace('|', "\\|")).into()
        })
        .collect();
    let header =
        ["GGUF", "`model_type`", "models", "not supported, besides what no architecture supports"];
    // Columns of sentences are not aligned: a new one would change every line.
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut out = line(&header.map(str::to_owned)) + &"|---".repeat(header.len()) + "|\n";
    rows.iter().for_each(|row| out += &line(row));
    format!("## Architectures\n\n{out}")
}

/// The architecture of a tiny model, by its `model_type`.
fn architecture_of<'a>(golden: &Golden, all: &'a [Architecture]) -> Result<&'a str> {
    let (_, folder) = golden.files.first().context("no files")?;
    let folder = if folder.is_dir() { folder } else { folder.parent().context("no folder")? };
    let config: Value = serde_json::from_str(&fs::read_to_string(folder.join("config.json"))?)?;
    let model_type = config["model_type"].as_str().context("no `model_type`")?;
    let has = |it: &&Architecture| it.model_types.iter().any(|name| name == model_type);
    let found = all.iter().find(has);
    Ok(&found.with_context(|| format!("{}: no architecture has {model_type}", golden.name))?.name)
}

/// The relative errors of the whole prompt, chunks, generation and a batch, and whether the likeliest
/// tokens are the reference's in all of them.
fn figures(engine: &Engine, golden: &Golden, path: &Path) -> Result<([f64; 4], bool)> {
    let exact = ["--arithmetic", "f32", "--chunk", "64"];
    let found =
        engine.logits_in_all_ways(path, &golden.ids, &golden.positions, GPU_CHUNKS, &exact)?;
    let error = |logits: &Logits| relative_error(logits, golden.values());
    let mut chunked = 0.0_f64;
    for logits in &found.chunks {
        chunked = chunked.max(error(logits)?);
    }
    let errors = [error(&found.whole)?, chunked, error(&found.generated)?, error(&found.batched)?];
    let wanted = likeliest(golden.values());
    let all = [&found.whole, &found.generated, &found.batched].into_iter().chain(&found.chunks);
    let same = all.into_iter().all(|logits| likeliest(logits) == wanted);
    Ok((errors, same))
}

/// The index of the largest logit of each row.
fn likeliest(logits: &Logits) -> Vec<Option<usize>> {
    let largest = |row: &Vec<f64>| {
        let (at, _) = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))?;
        Some(at)
    };
    logits.values().map(largest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_architectures_tell_of_them() {
        let source = "//! mini: Mini 1 and 2. The llama\n//! shape.\n//!\n//! More.\n\
            static ARCHITECTURE: Architecture = Architecture {\n    name: \"mini\",\n\
            \x20   hf_model_types: &[\"mini_a\", \"mini_b\"],\n    hf_names: &[(\"x\", \"y\")],\n};\n\
            fn f() { s.unsupported(\"ALiBi\"); s.unsupported(format!(\"x {y}\")); }\n";
        let want = Architecture {
            name: "mini".to_owned(),
            model_types: vec!["mini_a".to_owned(), "mini_b".to_owned()],
            about: "Mini 1 and 2. The llama shape.".to_owned(),
            refused: vec!["ALiBi".to_owned()],
        };
        assert_eq!(Architecture::read(source), Some(want));
        assert_eq!(Architecture::read("//! Shared pieces.\n"), None);
    }
}
