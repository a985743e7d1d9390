//! Encodes the published vocabulary vectors and compares every id.
//!
//! `REALIZAR_VOCAB_DIR` names a directory with `ggml-vocab-NAME.gguf`, `.gguf.inp` (texts between
//! separator lines) and `.gguf.out` (one line of ids per text), as llama.cpp publishes them.
//! Without it the test says that it was skipped.

use std::path::{Path, PathBuf};

use realizar_formats::Gguf;
use realizar_runtime::tokenizer::{EncodeOptions, Infill, Tokenizer};

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

const VOCABULARIES: &[&str] = &[
    "command-r",
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gemma-4",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
];

fn vocab_dir() -> Option<PathBuf> {
    let dir = std::env::var_os("REALIZAR_VOCAB_DIR").map(PathBuf::from);
    if dir.is_none() {
        println!("skipped: REALIZAR_VOCAB_DIR is not set");
    }
    dir
}

fn load(dir: &Path, name: &str) -> Tokenizer {
    let path = dir.join(format!("ggml-vocab-{name}.gguf"));
    let gguf = Gguf::open(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    Tokenizer::from_gguf(gguf.metadata()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn read(dir: &Path, name: &str, suffix: &str) -> String {
    let path = dir.join(format!("ggml-vocab-{name}.gguf.{suffix}"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn ids_equal_the_published_vectors() {
    let Some(dir) = vocab_dir() else { return };
    let mut failures = Vec::new();
    for name in VOCABULARIES {
        let tokenizer = load(&dir, name);
        let texts = read(&dir, name, "inp");
        let texts: Vec<&str> = texts.split(SEPARATOR).collect();
        let wanted = read(&dir, name, "out");
        let wanted: Vec<Vec<u32>> = wanted
            .lines()
            .map(|line| line.split_whitespace().map(|id| id.parse().unwrap()).collect())
            .collect();
        assert!(wanted.len() >= 40 && texts.len() >= wanted.len(), "{name}: too few vectors");
        for (text, want) in texts.iter().zip(&wanted) {
            let got = tokenizer.encode(text, PLAIN).unwrap();
            assert!(tokenizer.min_tokens(text) <= got.len(), "{name} {text:?}");
            if got != *want {
                failures.push(format!("{name} {text:?}\n   got {got:?}\n  want {want:?}"));
            }
        }
        // Phi-3 has tokens that swallow white space.
        let least = tokenizer.min_tokens(&"word ".repeat(10_000));
        assert_eq!(least > 0, *name != "phi-3", "{name}: {least}");
    }
    assert!(failures.is_empty(), "{} differ:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn published_texts_round_trip() {
    let Some(dir) = vocab_dir() else { return };
    for name in VOCABULARIES {
        let tokenizer = load(&dir, name);
        for text in read(&dir, name, "inp").split(SEPARATOR) {
            let ids = tokenizer.encode(text, PLAIN).unwrap();
            // Phi-3 swallows white space after its user-defined token, by design.
            let decoded = tokenizer.decode(&ids, false).unwrap();
            assert_eq!(decoded, text, "{name}");
            let mut stream = tokenizer.stream().with_special();
            let mut streamed = String::new();
            for &id in &ids {
                streamed.push_str(stream.push(id).unwrap());
            }
            streamed.push_str(&stream.finish());
            assert_eq!(streamed, decoded, "{name}: streamed");
        }
    }
}

#[test]
fn unsupported_vocabularies_are_named() {
    let Some(dir) = vocab_dir() else { return };
    for (name, model) in [("bert-bge", "`bert`"), ("nomic-bert-moe", "`t5`")] {
        let gguf = Gguf::open(dir.join(format!("ggml-vocab-{name}.gguf"))).unwrap();
        let error = Tokenizer::from_gguf(gguf.metadata()).expect_err(name).to_string();
        assert!(error.contains(model), "{name}: {error}");
    }
}

#[test]
fn tokens_of_infilling_are_those_that_the_models_publish() {
    let Some(dir) = vocab_dir() else { return };
    for (name, want) in [
        ("starcoder", Some(([1, 3, 2], [None, None]))),
        ("refact", Some(([1, 3, 2], [Some(18), None]))),
        ("deepseek-coder", Some(([32016, 32015, 32017], [None, None]))),
        ("gpt-2", None),
    ] {
        let want = want.map(|([prefix, suffix, middle], [repo, file])| Infill {
            prefix,
            suffix,
            middle,
            repo,
            file,
        });
        assert_eq!(load(&dir, name).infill(), want, "{name}");
    }
}
