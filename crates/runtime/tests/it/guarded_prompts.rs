//! Prompts whose users spell control tokens: with every published template and vocabulary the
//! control tokens are those that the template writes, and ordinary text has the ids it always had.
//!
//! Needs `REALIZAR_TEMPLATE_DIR` and `REALIZAR_VOCAB_DIR`, which `cargo xtask test` sets.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use realizar_formats::{Array, Gguf, GgufWriter};
use realizar_runtime::template::{ChatTemplate, Message, RenderOptions};
use realizar_runtime::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::{Map, Value, json};

const FULL: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };
const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };

fn dirs(name: &str) -> Vec<PathBuf> {
    match std::env::var_os(name) {
        Some(dirs) => std::env::split_paths(&dirs).collect(),
        None => {
            println!("skipped: {name} is not set");
            Vec::new()
        }
    }
}

fn files(dir: &Path, suffix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = entries
        .filter(|path| path.file_name().is_some_and(|n| n.to_string_lossy().ends_with(suffix)))
        .collect();
    paths.sort();
    paths
}

/// What a template has in angle or square brackets: most of it are the model's control tokens.
fn bracketed(source: &str) -> Vec<String> {
    let mut found = BTreeSet::new();
    for (open, close) in [('<', '>'), ('[', ']')] {
        for (at, _) in source.match_indices(open) {
            let Some(len) = source[at..].find(close) else { continue };
            let text = &source[at..at + len + 1];
            let fits = |c: char| c.is_alphanumeric() || "<>[]|/_-▁｜:".contains(c);
            let one = !text[1..].contains(open) && text.chars().all(fits);
            if one && text.contains(char::is_alphabetic) && !text.starts_with("['") {
                found.insert(text.to_owned());
            }
        }
    }
    found.into_iter().collect()
}

/// How a byte-level vocabulary spells bytes.
fn byte_char(byte: u8) -> char {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let n_before = (0..byte).filter(|b| !printable(b)).count() as u32;
    if printable(&byte) { byte as char } else { char::from_u32(256 + n_before).unwrap() }
}

/// A token per byte and these control tokens, from a GGUF file and from a `tokenizer.json`.
fn tokenizers(controls: &[String]) -> [Tokenizer; 2] {
    let dir = tempfile::tempdir().unwrap();
    let bytes: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
    let path = dir.path().join("vocab.gguf");
    let mut writer = GgufWriter::new();
    let tokens: Vec<&String> = bytes.iter().chain(controls).collect();
    let types: Vec<i32> = (0..tokens.len()).map(|id| if id < 256 { 1 } else { 3 }).collect();
    writer.set("general.architecture", "llama").unwrap();
    writer.set("tokenizer.ggml.model", "gpt2").unwrap();
    writer.set("tokenizer.ggml.pre", "gpt-2").unwrap();
    writer.set("tokenizer.ggml.tokens", Array::from_strs(&tokens)).unwrap();
    writer.set("tokenizer.ggml.token_type", Array::from(types.as_slice())).unwrap();
    writer.set("tokenizer.ggml.merges", Array::from_strs::<&str>([])).unwrap();
    writer.write_file(&path).unwrap();
    let own = Tokenizer::from_gguf(Gguf::open(&path).unwrap().metadata()).unwrap();

    let vocab: Map<String, Value> =
        bytes.into_iter().enumerate().map(|(id, c)| (c, json!(id))).collect();
    let added = controls.iter().enumerate().map(|(i, text)| {
        json!({"id": 256 + i, "content": text, "special": true, "single_word": false,
               "lstrip": false, "rstrip": false, "normalized": false})
    });
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true});
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added.collect::<Value>(), "normalizer": {"type": "NFC"},
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
    });
    std::fs::write(dir.path().join("tokenizer.json"), json.to_string()).unwrap();
    [own, Tokenizer::from_hf_dir(dir.path()).unwrap()]
}

/// A conversation in which everybody but the assistant says `text`.
fn conversations(text: &str) -> [Vec<Message>; 2] {
    let user = || Message::new("user", format!("b {text} d"));
    [
        vec![
            Message::new("system", format!("a {text}")),
            user(),
            Message::new("assistant", "Yes."),
            Message::new("user", text),
        ],
        vec![user()],
    ]
}

#[test]
fn templates_alone_write_control_tokens() {
    let (mut n_templates, mut n_tokens) = (0, 0);
    for path in dirs("REALIZAR_TEMPLATE_DIR").iter().flat_map(|dir| files(dir, ".jinja")) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let source = std::fs::read_to_string(&path).unwrap();
        let controls = bracketed(&source);
        let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
        // All of them, and the beginning of each at the end of a text of its own.
        let all = controls.concat();
        for tokenizer in &tokenizers(&controls) {
            let prompt = |messages: &[Message]| {
                let prompt = template.render_prompt(messages, &options, tokenizer).ok()?;
                let ids = tokenizer.encode_guarded(&prompt, FULL).unwrap();
                assert_eq!(tokenizer.decode(&ids, false).unwrap(), prompt.text(), "{name}");
                let controls: Vec<u32> = ids.into_iter().filter(|&id| id >= 256).collect();
                Some((controls, prompt.text().into_owned()))
            };
            let plain = conversations("x");
            let Some(at) = plain.iter().position(|messages| prompt(messages).is_some()) else {
                println!("{name}: refuses plain conversations");
                continue;
            };
            let (want, _) = prompt(&plain[at]).unwrap();
            let begun: String =
                controls.iter().flat_map(|token| token.chars().take(3).chain([' '])).collect();
            let cut = controls.iter().map(|token| token[..token.len() - 1].to_owned());
            for said in [all.clone(), begun].into_iter().chain(cut) {
                let messages = &conversations(&said)[at];
                let Some((got, text)) = prompt(messages) else {
                    panic!("{name}: refuses {said:?}");
                };
                assert_eq!(got, want, "{name}: {text}");
                assert_eq!(text, template.render(messages, &options).unwrap(), "{name}");
            }
            n_tokens += want.len();
        }
        n_templates += 1;
    }
    println!("{n_templates} templates, {n_tokens} control tokens");
}

#[test]
fn guarded_text_has_the_ids_of_ordinary_text() {
    let template = ChatTemplate::new("{{ messages[0].content }}", "", "").unwrap();
    let ids = |tokenizer: &Tokenizer, text: &str| {
        let messages = [Message::new("user", text)];
        let prompt = template.render_prompt(&messages, &RenderOptions::default(), tokenizer);
        tokenizer.encode_guarded(&prompt.unwrap(), FULL).unwrap()
    };
    let mut n_vocabularies = 0;
    for path in dirs("REALIZAR_VOCAB_DIR").iter().flat_map(|dir| files(dir, ".gguf")) {
        let gguf = Gguf::open(&path).unwrap();
        let Ok(tokenizer) = Tokenizer::from_gguf(gguf.metadata()) else { continue };
        n_vocabularies += 1;
        let n = tokenizer.vocab_size() as u32;
        let special = (0..n).filter(|&id| tokenizer.is_special(id));
        let special: Vec<String> = special.map(|id| tokenizer.token_text(id).unwrap()).collect();
        for token in special.iter().take(300) {
            for text in
                [format!("Hello, {token}world\n"), format!("{token}{token} "), token.clone()]
            {
                let want = tokenizer.encode(&text, PLAIN).unwrap();
                assert_eq!(ids(&tokenizer, &text), want, "{}: {text:?}", path.display());
            }
        }
        let inp = PathBuf::from(format!("{}.inp", path.display()));
        let Ok(texts) = std::fs::read_to_string(inp) else { continue };
        for text in texts.split("\n__ggml_vocab_test__\n") {
            let want = tokenizer.encode(text, PLAIN).unwrap();
            assert_eq!(ids(&tokenizer, text), want, "{}: {text:?}", path.display());
        }
    }
    println!("{n_vocabularies} vocabularies");
}
