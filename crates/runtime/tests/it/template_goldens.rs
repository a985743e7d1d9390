//! Renders published chat templates and compares with what transformers makes of them.
//!
//! `REALIZAR_TEMPLATE_DIR` lists the directories of templates (`*.jinja`, or `*.gguf` with a
//! template), separated as in `PATH`. Without it the test says that it was skipped. The goldens
//! and the script that made them are in `fixtures/templates`.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use realizar_formats::Gguf;
use realizar_runtime::template::{ChatTemplate, Message, RenderOptions};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// 2026-01-02 03:04:05 UTC.
const NOW: Duration = Duration::from_secs(1_767_323_045);

/// Renders that differ: this template joins strings marked as safe for HTML to plain ones, which
/// makes Jinja2 escape the plain ones.
const KNOWN: &[(&str, &str)] = &[
    ("meetkai-functionary-medium-v3.1.jinja", "tools"),
    ("meetkai-functionary-medium-v3.1.jinja", "tool-call"),
    ("meetkai-functionary-medium-v3.1.jinja", "many-tools"),
    ("meetkai-functionary-medium-v3.1.jinja", "two-calls"),
    ("meetkai-functionary-medium-v3.1.jinja", "text-arguments"),
    ("meetkai-functionary-medium-v3.1.jinja", "reasoned-call"),
];

fn fixture(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/templates").join(name);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

fn short_hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn source(path: &Path) -> String {
    if path.extension().is_some_and(|extension| extension == "gguf") {
        let gguf = Gguf::open(path).unwrap();
        gguf.metadata().str("tokenizer.chat_template").unwrap().unwrap().to_owned()
    } else {
        std::fs::read_to_string(path).unwrap()
    }
}

/// Small templates, each for one thing that Jinja2 or Python has. What Jinja2 refuses when it compiles a template, is
/// refused when it is loaded.
#[test]
fn filters_methods_and_operators_are_those_of_jinja2() {
    let mut wrong = Vec::new();
    for row in fixture("builtins.json").as_array().expect("rows") {
        let source = row["template"].as_str().expect("a template");
        let template = ChatTemplate::new(source, "<s>", "</s>").map_err(|error| error.to_string());
        let got = template.as_ref().map_err(Clone::clone).and_then(|template| {
            template.render(&[], &RenderOptions::default()).map_err(|error| error.to_string())
        });
        let is_right = match (row["output"].as_str(), row["fails"].as_str()) {
            (Some(want), _) => got.as_deref() == Ok(want),
            (None, Some("load")) => template.is_err(),
            (None, _) => got.is_err(),
        };
        if !is_right {
            wrong.push(format!("{row}: {got:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn renders_equal_those_of_transformers() {
    let Some(dirs) = std::env::var_os("REALIZAR_TEMPLATE_DIR") else {
        println!("skipped: REALIZAR_TEMPLATE_DIR is not set");
        return;
    };
    let dirs: Vec<PathBuf> = std::env::split_paths(&dirs).collect();
    let conversations = fixture("conversations.json");
    let goldens = fixture("goldens.json");
    let (mut n_templates, mut n_renders, mut failures) = (0, 0, Vec::new());
    for (name, golden) in goldens.as_object().unwrap() {
        let Some(path) = dirs.iter().map(|dir| dir.join(name)).find(|path| path.exists()) else {
            continue;
        };
        let source = source(&path);
        if golden["template"] != short_hash(&source) {
            println!("{name}: another version of the template; not compared");
            continue;
        }
        n_templates += 1;
        let template = match ChatTemplate::new(&source, "<s>", "</s>") {
            Ok(template) => template,
            Err(error) => {
                failures.push(format!("{name}: {error}"));
                continue;
            }
        };
        for conversation in conversations.as_array().unwrap() {
            let case = conversation["name"].as_str().unwrap();
            let messages: Vec<Message> =
                serde_json::from_value(conversation["messages"].clone()).unwrap();
            let options = RenderOptions {
                add_generation_prompt: conversation["add_generation_prompt"] == true,
                tools: conversation["tools"].as_array().map(Vec::as_slice),
                extra: conversation["extra"].as_object(),
                now: Some(SystemTime::UNIX_EPOCH + NOW),
            };
            let got = template.render(&messages, &options);
            let summary = got.as_ref().map(|text| format!("{} {}", text.len(), short_hash(text)));
            // Where Jinja2 fails, there is nothing to compare with.
            let Some(want) = golden[case].as_str() else { continue };
            n_renders += 1;
            if want == "refused" {
                if let Ok(text) = &got {
                    failures.push(format!("{name} {case}: refused by itself, got {text}"));
                }
                continue;
            }
            if KNOWN.contains(&(name.as_str(), case)) {
                continue;
            }
            if summary.as_deref().ok() != Some(want) {
                let got = got.unwrap_or_else(|error| format!("error: {error}"));
                if let Some(out) = std::env::var_os("REALIZAR_TEMPLATE_OUT") {
                    std::fs::write(Path::new(&out).join(format!("{name}.{case}")), &got).unwrap();
                }
                let head: String = got.chars().take(200).collect();
                failures.push(format!("{name} {case}: want {want}, got {head}"));
            }
        }
    }
    assert!(n_templates > 0, "no template of the goldens is in {dirs:?}");
    println!("{n_templates} templates, {n_renders} renders");
    assert!(failures.is_empty(), "{} differ:\n{}", failures.len(), failures.join("\n"));
}
