//! A model's `tokenizer.json` and its GGUF vocabulary must give the same ids.
//!
//! `REALIZAR_HF_PAIRS` lists `DIRECTORY=FILE.gguf` pairs, separated by semicolons: a directory
//! with `tokenizer.json` and the same model's GGUF file. Without it the test says that it was
//! skipped.

use std::path::Path;

use realizar_formats::Gguf;
use realizar_runtime::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::{Value, json};

const TEXTS: &[&str] = &[
    "",
    "Hello, world! It's 2026; I'll pay $1234.56.",
    "  two  spaces   three\n\n\nlines\t\ttabs \n ",
    "日本語のテキスト and العربية, हिन्दी, 👩‍👩‍👧 🦙 é",
    "fn main() {\n    println!(\"{}\", x);\n}\n",
    "\u{0}\u{1}\u{7f}\u{ad}\u{feff}",
];

#[test]
fn both_sources_give_the_same_ids() {
    let Some(pairs) = std::env::var_os("REALIZAR_HF_PAIRS") else {
        println!("skipped: REALIZAR_HF_PAIRS is not set");
        return;
    };
    let pairs = pairs.into_string().unwrap();
    let mut failures = Vec::new();
    for pair in pairs.split(';') {
        let (dir, file) = pair.split_once('=').unwrap();
        let hf = Tokenizer::from_hf_dir(Path::new(dir)).unwrap();
        let gguf = Gguf::open(Path::new(file)).unwrap();
        let native = Tokenizer::from_gguf(gguf.metadata()).unwrap();
        for text in TEXTS {
            let options = EncodeOptions { add_special: false, parse_special: false };
            let (a, b) = (hf.encode(text, options).unwrap(), native.encode(text, options).unwrap());
            if a != b {
                failures.push(format!("{dir} {text:?}\n {a:?}\n {b:?}"));
            }
            let (a, b) = (hf.decode(&a, true).unwrap(), native.decode(&b, true).unwrap());
            if a != b || a != *text {
                failures.push(format!("{dir} {text:?} decodes to {a:?} and {b:?}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A `tokenizer.json` of letters with these parts, and a text of it.
fn load(name: &str, parts: &Value) -> Result<Vec<u32>, String> {
    let dir = std::env::temp_dir().join(format!("realizar-hf-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let vocab: serde_json::Map<String, Value> =
        ('a'..='z').enumerate().map(|(i, c)| (c.to_string(), json!(i))).collect();
    let mut file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    for (key, value) in parts.as_object().unwrap() {
        file[key] = value.clone();
    }
    std::fs::write(dir.join("tokenizer.json"), file.to_string()).unwrap();
    let options = EncodeOptions { add_special: false, parse_special: false };
    let ids = Tokenizer::from_hf_dir(&dir).and_then(|tokenizer| {
        let first = tokenizer.encode("abc", options);
        // A text that fails leaves the tokenizer as it was.
        assert_eq!(tokenizer.encode("abc", options).is_ok(), first.is_ok());
        first
    });
    std::fs::remove_dir_all(&dir).unwrap();
    ids.map_err(|error| error.to_string())
}

#[test]
fn damaged_files_are_errors_that_name_them() {
    assert_eq!(load("whole", &json!({})), Ok(vec![0, 1, 2]));
    let check = |name: &str, parts: Value, want: &str| {
        let error = load(name, &parts).unwrap_err();
        assert!(error.contains("tokenizer.json") && error.contains(want), "{name}: {error}");
        assert!(!error.contains('\n'), "{error}");
    };
    let replace = |pattern: Value, content: &str| {
        json!({"normalizer": {"type": "Replace",
        "pattern": pattern, "content": content}})
    };
    check("empty", replace(json!({"String": ""}), "x"), "replaces the empty text");
    check("long", replace(json!({"String": "a"}), &"x".repeat(65)), "inserts 65 bytes");
    let precompiled = |map: &str| {
        json!({"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Precompiled", "precompiled_charsmap": map}]}})
    };
    // Tables of 2^32 - 4, of no and of two entries.
    check("large", precompiled("/P///w=="), "has a table of 4294967292");
    check("none", precompiled("AAAAAA=="), "");
    check("short", precompiled("CAAAAP8DAAD/AwAA"), "");
    let split = json!({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": ""},
        "behavior": "Isolated", "invert": false}});
    assert_eq!(load("split", &split), Ok(vec![0, 1, 2]));
    let split = json!({"pre_tokenizer": {"type": "Split", "pattern": {"String": ""},
        "behavior": "MergedWithNext", "invert": true}});
    assert_eq!(load("inverted", &split), Ok(vec![0, 1, 2]));
}
