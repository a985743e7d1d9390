//! Models whose files mean harm: a tiny model of the fixtures with a vocabulary of single letters and a hostile template, or with a
//! tokenizer that adds a hundred million tokens to a text, is a device without an end, or a pipe without a writer.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::shell;

/// The names of models with hostile templates, one that nests, and three that grow.
fn templates() -> [(&'static str, String); 4] {
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

/// The names of models with hostile templates.
pub(super) fn with_templates() -> impl Iterator<Item = &'static str> {
    templates().into_iter().map(|(name, _)| name)
}

/// The names of models with hostile tokenizers.
pub(super) const WITH_TOKENIZERS: [&str; 3] = ["expanded", "endless", "waiting"];

/// A folder with the models, whose context is this many tokens.
pub(super) fn write(context: usize) -> Result<TempDir> {
    let dir = tempfile::tempdir()?;
    let tiny = shell::root().join("fixtures/archs/llama");
    let plain = |name| (name, "{{ messages[0].content }}".to_owned());
    for (name, template) in templates().into_iter().chain(WITH_TOKENIZERS.map(plain)) {
        let model = dir.path().join(name);
        fs::create_dir(&model)?;
        let file = "model.safetensors";
        fs::copy(tiny.join(file), model.join(file)).with_context(|| file.to_owned())?;
        let config = fs::read(tiny.join("config.json")).context("config.json")?;
        let mut config: Value = serde_json::from_slice(&config)?;
        config["max_position_embeddings"] = context.into();
        fs::write(model.join("config.json"), config.to_string())?;
        write_tokenizer(name, &model.join("tokenizer.json"))?;
        let config = json!({"chat_template": template});
        fs::write(model.join("tokenizer_config.json"), config.to_string())?;
    }
    Ok(dir)
}

fn write_tokenizer(name: &str, path: &Path) -> Result<()> {
    match name {
        "expanded" => {
            let (ids, tokens) = (vec![0; 10_000], vec!["!"; 10_000]);
            let mut tokenizer = tokenizer();
            tokenizer["post_processor"] = json!({
                "type": "TemplateProcessing",
                "single": vec![json!({"SpecialToken": {"id": "!", "type_id": 0}}); 10_000],
                "pair": [],
                "special_tokens": {"!": {"id": "!", "ids": ids, "tokens": tokens}},
            });
            fs::write(path, tokenizer.to_string())?;
        }
        #[cfg(unix)]
        "endless" => std::os::unix::fs::symlink("/dev/zero", path)?,
        #[cfg(unix)]
        "waiting" => {
            let made = shell::command("mkfifo").arg(path).status().context("mkfifo")?;
            anyhow::ensure!(made.success(), "mkfifo: {made}");
        }
        _ => fs::write(path, tokenizer().to_string())?,
    }
    Ok(())
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
