//! Models whose chat templates mean harm: a tiny model of the fixtures with a vocabulary of single
//! letters, and a template.

use std::fs;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::shell;

/// The models' names, and their templates: one that nests, and three that grow.
fn all() -> [(&'static str, String); 4] {
    let doubled = "{% set ns = namespace(a='aaaaaaaa') %}{% for i in range(64) %}\
                   {% set ns.a = ns.a ~ ns.a %}{% endfor %}{{ ns.a }}";
    let replaced = "{{ 'aaaaaaaa'".to_owned() + &" | replace('a', 'aaaaaaaa')".repeat(16) + " }}";
    [
        ("nested", format!("{{{{ {}true }}}}", "not ".repeat(50_000))),
        ("doubled", doubled.to_owned()),
        ("replaced", replaced),
        ("padded", "{{ '{:>1000000000}'.format('a') }}".to_owned()),
    ]
}

/// The names of the models.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    all().into_iter().map(|(name, _)| name)
}

/// A folder with the models, whose context is this many tokens.
pub(super) fn models(context: usize) -> Result<TempDir> {
    let dir = tempfile::tempdir()?;
    let tiny = shell::root().join("fixtures/archs/llama");
    for (name, template) in all() {
        let model = dir.path().join(name);
        fs::create_dir(&model)?;
        let file = "model.safetensors";
        fs::copy(tiny.join(file), model.join(file)).with_context(|| file.to_owned())?;
        let config = fs::read(tiny.join("config.json")).context("config.json")?;
        let mut config: Value = serde_json::from_slice(&config)?;
        config["max_position_embeddings"] = context.into();
        fs::write(model.join("config.json"), config.to_string())?;
        fs::write(model.join("tokenizer.json"), tokenizer().to_string())?;
        let config = json!({"chat_template": template});
        fs::write(model.join("tokenizer_config.json"), config.to_string())?;
    }
    Ok(dir)
}

/// One token for each letter.
fn tokenizer() -> Value {
    let vocab: Map<String, Value> =
        ('!'..='~').enumerate().map(|(id, c)| (c.to_string(), json!(id))).collect();
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": vocab, "merges": [],
        },
    })
}
