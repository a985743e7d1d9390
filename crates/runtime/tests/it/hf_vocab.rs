//! A model's `tokenizer.json` and its GGUF vocabulary must give the same ids.
//!
//! `REALIZAR_HF_PAIRS` lists `DIRECTORY=FILE.gguf` pairs, separated by semicolons: a directory
//! with `tokenizer.json` and the same model's GGUF file. Without it the test says that it was
//! skipped.

use std::path::Path;

use realizar_formats::Gguf;
use realizar_runtime::tokenizer::{EncodeOptions, Tokenizer};

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
