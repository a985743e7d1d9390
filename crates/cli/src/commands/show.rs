//! `realizar show`: a model on one card: architecture, size, context, licence, template, defaults.

use std::io::Write;
use std::path::Path;

use anyhow::Result;
use realizar_runtime::ByteSize;
use serde_json::{Map, Value};

use super::inspect::{Report, by_type, shorten};
use crate::options::GlobalArgs;
use crate::source::Sources;
use crate::source::cache::Cache;
use crate::ui;

/// Reads metadata alone; `realizar inspect` prints all of it with the tensors.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Model: a path, a name, or hf:, https:// or pip: source
    model: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A row of the card: its name, the end of the key in a GGUF file after the architecture's name, and the key in
/// `config.json`.
const NUMBERS: &[(&str, &str, &str)] = &[
    ("context length", "context_length", "max_position_embeddings"),
    ("embedding length", "embedding_length", "hidden_size"),
    ("layers", "block_count", "num_hidden_layers"),
    ("heads", "attention.head_count", "num_attention_heads"),
    ("KV heads", "attention.head_count_kv", "num_key_value_heads"),
    ("experts", "expert_count", "num_experts"),
];

/// Keys of `generation_config.json` that say how tokens are chosen; its others are ids of tokens and lengths.
const HF_SAMPLING: [&str; 7] =
    ["do_sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty"];

pub(crate) fn execute(args: &Args, global: &GlobalArgs) -> Result<()> {
    let sources = global.sources();
    let path = sources.resolve(&args.model)?;
    let rows = rows(&path, &sources)?;
    if args.json {
        let object: Map<String, Value> = rows
            .into_iter()
            .map(|(name, value)| (name.to_lowercase().replace(' ', "_"), value.into()))
            .collect();
        return ui::json(&object);
    }
    let rows: Vec<_> = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
    let mut out = ui::out();
    ui::table(&mut out, &rows, &[])?;
    out.flush()?;
    Ok(())
}

/// The card of the model at `path`, a name and a text each.
pub(super) fn rows(path: &Path, sources: &Sources) -> Result<Vec<(&'static str, String)>> {
    let report = Report::read(path, false)?;
    // Without a cache, nothing was pulled.
    let pulled = sources.cache().map_or_else(|_| Ok(Vec::new()), Cache::list)?;
    let pulled = pulled.into_iter().find(|entry| entry.path == path);
    Ok(card(&report, pulled.and_then(|entry| entry.manifest.licence)))
}

/// The contents of the card.
fn card(report: &Report, licence: Option<String>) -> Vec<(&'static str, String)> {
    let get = |key: &str| report.metadata.iter().find(|(name, _)| name == key).map(|(_, v)| v);
    let text = |value: &Value| match value {
        Value::String(text) => Some(shorten(text, false)),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        _ => None,
    };
    let architecture =
        get("general.architecture").or_else(|| get("config.model_type")).and_then(text);
    let architecture = architecture.unwrap_or_default();
    let mut rows = Vec::new();
    let mut add = |name, value: Option<String>| rows.extend(value.map(|value| (name, value)));
    add("name", get("general.name").and_then(text));
    add("architecture", Some(architecture.clone()));
    let types = by_type(&report.tensors);
    let sum =
        |of: fn(&super::inspect::Sum) -> u64| types.iter().map(|(_, sum)| of(sum)).sum::<u64>();
    let (elements, bytes) = (sum(|sum| sum.elements), sum(|sum| sum.bytes));
    add("parameters", Some(ui::count(elements)));
    let shares = types.iter().map(|(name, sum)| {
        format!("{name} {:.0} %", 100.0 * sum.bytes as f64 / bytes.max(1) as f64)
    });
    add("weights", Some(format!("{}: {}", ByteSize(bytes), shares.collect::<Vec<_>>().join(", "))));
    for (name, gguf, hf) in NUMBERS {
        let of_gguf = get(&format!("{architecture}.{gguf}"));
        add(name, of_gguf.or_else(|| get(&format!("config.{hf}"))).and_then(text));
    }
    let template = get("tokenizer.chat_template").and_then(Value::as_str).map(|template| {
        let uses = ["tools", "enable_thinking"].into_iter().filter(|word| template.contains(word));
        let uses: Vec<_> =
            uses.map(|word| if word == "tools" { "tools" } else { "thinking" }).collect();
        if uses.is_empty() { "yes".to_owned() } else { format!("yes, with {}", uses.join(" and ")) }
    });
    add("chat template", template);
    let sampling = report.metadata.iter().filter_map(|(key, value)| {
        let of_hf = || {
            let name = key.strip_prefix("generation_config.")?;
            HF_SAMPLING.contains(&name).then_some(name)
        };
        let name = key.strip_prefix("general.sampling.").or_else(of_hf)?;
        Some(format!("{name} {}", text(value)?))
    });
    let sampling: Vec<_> = sampling.collect();
    add("sampling", (!sampling.is_empty()).then(|| sampling.join(", ")));
    add("licence", licence.or_else(|| get("general.license").and_then(text)));
    add("format", Some(report.format.clone()));
    add("path", Some(report.path.display().to_string()));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn sampling_is_that_of_the_files() {
        let metadata = |pairs: &[(&str, Value)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
        };
        for (metadata, want) in [
            (metadata(&[("general.name", "m".into())]), None),
            (
                metadata(&[
                    ("general.sampling.temp", 0.6.into()),
                    ("general.sampling.top_k", 20.into()),
                ]),
                Some("temp 0.6, top_k 20"),
            ),
            (
                metadata(&[
                    ("generation_config.do_sample", true.into()),
                    ("generation_config.eos_token_id", 2.into()),
                    ("generation_config.top_p", 0.9.into()),
                ]),
                Some("do_sample true, top_p 0.9"),
            ),
        ] {
            let (path, format) = ("m".into(), "GGUF v3".to_owned());
            let report = Report { path, format, metadata, tensors: Vec::new() };
            let rows = card(&report, None);
            let row = rows.iter().find(|(name, _)| *name == "sampling");
            assert_eq!(row.map(|(_, text)| text.as_str()), want);
        }
    }

    #[test]
    fn cards_of_both_formats() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/archs/llama");
        let gguf = Report::read(&folder.join("model-f32.gguf"), false).expect("a GGUF file");
        let dir = Report::read(&folder, false).expect("a folder");
        for (report, weights) in [(gguf, "F32 100 %"), (dir, "BF16 100 %")] {
            let rows = card(&report, Some("L".to_owned()));
            let get = |name: &str| {
                let row = rows.iter().find(|(found, _)| *found == name);
                row.map(|(_, value)| value.as_str()).unwrap_or_default()
            };
            assert_eq!(get("architecture"), "llama");
            assert!(get("weights").ends_with(weights), "{rows:?}");
            assert_eq!(get("licence"), "L");
            for (name, _, _) in &NUMBERS[..5] {
                assert!(get(name).parse::<usize>().is_ok_and(|n| n > 0), "{name}: {rows:?}");
            }
        }
    }
}
