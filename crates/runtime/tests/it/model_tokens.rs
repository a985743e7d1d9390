//! Tokenizers of real models against reference ids.
//!
//! `REALIZAR_REFERENCE` names a `next_token.json`: per model, prompts with their ids and greedy
//! continuations. `REALIZAR_MODEL_DIR` names the directory with the models' GGUF files. Without
//! them the test says that it was skipped.

use std::path::PathBuf;

use realizar_formats::Gguf;
use realizar_runtime::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::Value;

#[test]
fn prompt_ids_equal_the_reference() {
    let vars = ["REALIZAR_REFERENCE", "REALIZAR_MODEL_DIR"].map(std::env::var_os);
    let [Some(reference), Some(dir)] = vars.map(|var| var.map(PathBuf::from)) else {
        println!("skipped: REALIZAR_REFERENCE and REALIZAR_MODEL_DIR are not both set");
        return;
    };
    let reference: Value =
        serde_json::from_str(&std::fs::read_to_string(&reference).unwrap()).unwrap();
    let ids = |value: &Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let plain = |name: &str| -> String {
        name.to_lowercase().chars().filter(char::is_ascii_alphanumeric).collect()
    };
    let mut n_prompts = 0;
    for (model, prompts) in reference.as_object().unwrap() {
        let path = std::fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .find(|path| {
                path.file_stem().is_some_and(|s| plain(&s.to_string_lossy()) == plain(model))
            })
            .unwrap_or_else(|| panic!("no file for {model} in {}", dir.display()));
        let gguf = Gguf::open(&path).unwrap();
        let tokenizer = Tokenizer::from_gguf(gguf.metadata()).unwrap();
        for prompt in prompts.as_array().unwrap() {
            let text = prompt["prompt"].as_str().unwrap();
            let options = EncodeOptions { add_special: true, parse_special: true };
            assert_eq!(
                tokenizer.encode(text, options).unwrap(),
                ids(&prompt["ids"]),
                "{model} {text:?}"
            );
            let mut stream = tokenizer.stream().continuing();
            let mut streamed = String::new();
            for id in ids(&prompt["greedy_ids"]) {
                streamed.push_str(stream.push(id).unwrap());
            }
            streamed.push_str(&stream.finish());
            assert_eq!(streamed, prompt["greedy_text"].as_str().unwrap(), "{model} {text:?}");
            n_prompts += 1;
        }
    }
    println!("{n_prompts} prompts");
}
