//! Hugging Face directories with every setting, tokenizer file and byte damaged.

use std::fs;
use std::path::{Path, PathBuf};

use realizar_formats::{SafeTensors, SafeTensorsWriter};
use serde_json::{Value as Json, json};

use super::{Table, fixture};

/// The committed model of transformers with a small tokenizer, as a directory.
fn write_hf(dir: &Path, config: &Json, tokenizer: &Json) {
    fs::write(dir.join("config.json"), config.to_string()).expect("write");
    fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).expect("write");
}

fn tokenizer_json() -> Json {
    let mut vocab = serde_json::Map::new();
    for (i, c) in ('a'..='z').chain(['\u{120}', '<', '>', '\u{c3}', '\u{b6}']).enumerate() {
        vocab.insert(c.to_string(), json!(i + 1));
    }
    vocab.insert("ab".to_owned(), json!(40));
    // As many as the models have rows, so that each token they choose has a text.
    vocab.insert("<s>".to_owned(), json!(0));
    for id in (32..40).chain(41..288) {
        vocab.insert(format!("token{id}"), json!(id));
    }
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": [["a", "b"]]},
    })
}

/// Every value of a JSON text, replaced by others and removed: (what, text).
fn damaged(json: &Json) -> Vec<(String, Json)> {
    fn paths(json: &Json, prefix: &str, out: &mut Vec<String>) {
        let mut push = |key: &str, value: &Json| {
            let path = format!("{prefix}/{key}");
            out.push(path.clone());
            paths(value, &path, out);
        };
        match json {
            Json::Object(map) => map.iter().take(24).for_each(|(key, value)| push(key, value)),
            Json::Array(list) => {
                list.iter().take(2).enumerate().for_each(|(i, value)| push(&i.to_string(), value));
            }
            _ => {}
        }
    }
    let mut all = Vec::new();
    paths(json, "", &mut all);
    let nested = (0..60).fold(json!(1), |inner, _| json!([inner]));
    let values = [
        json!(null),
        json!(true),
        json!(""),
        json!("a\nb\u{1b}[31m"),
        json!("x".repeat(100_000)),
        json!(0),
        json!(1),
        json!(3),
        json!(7),
        json!(-1),
        json!(0.5),
        json!(-1.5),
        json!(1e30),
        json!(1e300),
        json!(u32::MAX),
        json!(1u64 << 40),
        json!(u64::MAX),
        json!([]),
        json!([1, 2, 3]),
        json!(vec![1e30; 10_000]),
        json!({}),
        json!({"rope_type": "yarn"}),
        nested,
    ];
    let mut out = Vec::new();
    for path in all {
        let (parent, key) = path.rsplit_once('/').expect("a path has a slash");
        let mut removed = json.clone();
        if let Some(map) = removed.pointer_mut(parent).and_then(Json::as_object_mut) {
            map.remove(key);
            out.push((format!("without {path}"), removed));
        }
        for value in &values {
            let mut changed = json.clone();
            *changed.pointer_mut(&path).expect("a listed path") = value.clone();
            out.push((format!("{path} = {:.60}", value.to_string()), changed));
        }
    }
    out
}

/// A directory with one layer of the committed model.
fn hf_dir(table: &Table, model: &str, layers_key: &str) -> (PathBuf, Json) {
    let dir = table.path(model);
    fs::create_dir(&dir).expect("create");
    let text = fs::read_to_string(fixture(model).join("config.json")).expect("config.json");
    let mut config: Json = serde_json::from_str(&text).expect("JSON");
    config[layers_key] = json!(1);
    if config.get("layer_types").is_some() {
        config["layer_types"] = json!([config["layer_types"][0]]);
    }
    let file = SafeTensors::open(fixture(model)).expect("a fixture");
    let tensors: Vec<_> = file
        .tensors()
        .iter()
        .filter(|info| {
            let mut parts = info.name.split('.');
            parts.find_map(|part| part.parse::<u32>().ok()).is_none_or(|layer| layer == 0)
        })
        .map(|info| file.tensor(&info.name).expect("a listed tensor"))
        .collect();
    let mut writer = SafeTensorsWriter::new();
    for t in &tensors {
        writer.tensor(&t.name, t.ty, &t.shape, &t.data).expect("a tensor");
    }
    writer.write_file(dir.join("model.safetensors")).expect("write");
    (dir, config)
}

fn check_config(model: &str, layers_key: &str) {
    let mut table = Table::new();
    let (dir, config) = hf_dir(&table, model, layers_key);
    let tokenizer = tokenizer_json();
    write_hf(&dir, &config, &tokenizer);
    assert_eq!(table.check("whole", &dir), None, "{model}");
    for (what, config) in damaged(&config) {
        write_hf(&dir, &config, &tokenizer);
        table.check(&format!("{model}: config.json: {what}"), &dir);
    }
    let keys = [
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "beta_fast",
        "beta_slow",
        "short_factor",
        "long_factor",
    ];
    for ty in ["default", "linear", "llama3", "yarn", "longrope", "dynamic"] {
        let n_pairs = 4;
        let rope = json!({
            "rope_type": ty, "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
            "attention_factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0,
            "beta_slow": 1.0, "short_factor": vec![1.0; n_pairs], "long_factor": vec![2.0; n_pairs],
        });
        for (what, rope) in damaged(&rope) {
            if !keys.iter().any(|key| what.contains(key)) {
                continue;
            }
            let mut config = config.clone();
            config["rope_parameters"] = rope;
            write_hf(&dir, &config, &tokenizer);
            table.check(&format!("{model}: {ty}: {what}"), &dir);
        }
    }
    for text in ["", "{", "[]", "null", "\u{feff}{}", "{\"model_type\": \"a\\nb\"}", "\u{0}"] {
        fs::write(dir.join("config.json"), text).expect("write");
        assert!(table.check(&format!("config.json is {text:?}"), &dir).is_some());
    }
    fs::write(dir.join("config.json"), [0xff; 100]).expect("write");
    assert!(table.check("config.json is not UTF-8", &dir).is_some());
    table.finish();
}

#[test]
fn hostile_config_json_of_llama() {
    check_config("llama", "num_hidden_layers");
}

#[test]
fn hostile_config_json_of_gemma3() {
    check_config("gemma3_text", "num_hidden_layers");
}

#[test]
fn hostile_config_json_of_gpt2() {
    check_config("gpt2", "n_layer");
}

#[test]
fn hostile_tokenizer_json() {
    let mut table = Table::new();
    let (dir, config) = hf_dir(&table, "llama", "num_hidden_layers");
    let tokenizer = tokenizer_json();
    for (what, tokenizer) in damaged(&tokenizer) {
        write_hf(&dir, &config, &tokenizer);
        table.check(&format!("tokenizer.json: {what}"), &dir);
    }
    let files = ["tokenizer_config.json", "special_tokens_map.json", "generation_config.json"];
    for name in files {
        write_hf(&dir, &config, &tokenizer);
        let whole = json!({"bos_token": "<s>", "eos_token": {"content": "<s>"}, "eos_token_id": [0],
            "bos_token_id": 0, "chat_template": "{{ messages }}", "add_bos_token": true});
        for (what, json) in damaged(&whole) {
            fs::write(dir.join(name), json.to_string()).expect("write");
            table.check(&format!("{name}: {what}"), &dir);
        }
        fs::write(dir.join(name), "{").expect("write");
        table.check(&format!("{name} is cut"), &dir);
        fs::remove_file(dir.join(name)).expect("remove");
    }
    for text in ["", "{", "[]", "null", "{}", "\u{0}"] {
        fs::write(dir.join("tokenizer.json"), text).expect("write");
        assert!(table.check(&format!("tokenizer.json is {text:?}"), &dir).is_some());
    }
    fs::remove_file(dir.join("tokenizer.json")).expect("remove");
    let error = table.check("no tokenizer.json", &dir).expect("an error");
    assert!(error.contains("tokenizer.json"), "{error}");
    // Truncated and damaged tensors.
    write_hf(&dir, &config, &tokenizer);
    let path = dir.join("model.safetensors");
    let bytes = fs::read(&path).expect("read");
    for i in (0..2000).step_by(5) {
        for byte in [bytes[i] ^ 1, bytes[i] ^ 0x80, b'0', b'"'] {
            let mut bytes = bytes.clone();
            bytes[i] = byte;
            fs::write(&path, bytes).expect("write");
            table.check(&format!("byte {i} = {byte:#x}"), &dir);
        }
    }
    for len in (0..bytes.len()).step_by(499) {
        fs::write(&path, &bytes[..len]).expect("write");
        if table.check(&format!("{len} bytes"), &dir).is_none() {
            table.failures.push(format!("{len} bytes: was taken"));
        }
    }
    fs::remove_file(&path).expect("remove");
    assert!(table.check("no tensors", &dir).is_some());
    table.finish();
}

/// A `tokenizer.json` of a megabyte that adds 10^8 tokens to every text.
#[test]
fn templates_of_a_tokenizer_are_not_expanded() {
    let mut table = Table::new();
    let (dir, config) = hf_dir(&table, "llama", "num_hidden_layers");
    let mut tokenizer = tokenizer_json();
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let start = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
    let template = |pieces: Vec<Json>, n_ids: usize| {
        let (ids, tokens) = (vec![0; n_ids], vec!["<s>"; n_ids]);
        let special = json!({"<s>": {"id": "<s>", "ids": ids, "tokens": tokens}});
        json!({"type": "TemplateProcessing", "single": pieces, "pair": [text], "special_tokens": special})
    };
    tokenizer["post_processor"] = template(vec![start.clone(), text.clone()], 1);
    write_hf(&dir, &config, &tokenizer);
    assert_eq!(table.check("a start", &dir), None);
    let mut many = template([vec![start; 10_000], vec![text.clone()]].concat(), 10_000);
    for (processor, want) in [
        (many.clone(), "add 100000000 tokens to a text, at most 1024 are allowed"),
        (json!({"type": "Sequence", "processors": [many]}), "add 100000000 tokens"),
        (template(vec![text.clone(); 50_000], 1), "repeats the text 50000 times"),
    ] {
        tokenizer["post_processor"] = processor;
        write_hf(&dir, &config, &tokenizer);
        let error = table.check(want, &dir).expect("an error");
        assert!(error.contains("tokenizer.json") && error.contains(want), "{error}");
    }
    // A template whose type has another name is one nevertheless, or none at all.
    many["type"] = json!("ByteLevel");
    tokenizer["post_processor"] = many;
    write_hf(&dir, &config, &tokenizer);
    assert!(table.check("another type", &dir).is_some());
    table.finish();
}

#[cfg(unix)]
#[test]
fn nothing_but_regular_files_is_read() {
    use std::os::unix::fs::symlink;

    let mut table = Table::new();
    let (dir, config) = hf_dir(&table, "llama", "num_hidden_layers");
    write_hf(&dir, &config, &tokenizer_json());
    let pipe = table.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    for name in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "generation_config.json",
        "chat_template.jinja",
        "chat_template.json",
        "model.safetensors",
    ] {
        let (path, kept) = (dir.join(name), table.path("kept"));
        let is_there = path.exists();
        if is_there {
            fs::rename(&path, &kept).expect("moved");
        }
        for target in [pipe.as_path(), Path::new("/dev/zero")] {
            symlink(target, &path).expect("a link");
            let what = format!("{name} -> {}", target.display());
            let error = table.check(&what, &dir);
            if is_there || error.is_some() {
                let error = error.unwrap_or_default();
                assert!(error.contains(name), "{what}: {error}");
            }
            fs::remove_file(&path).expect("removed");
        }
        if is_there {
            fs::rename(&kept, &path).expect("moved");
        }
    }
    assert_eq!(table.check("whole", &dir), None);
    // Files that are too large are not read either; these are sparse.
    for (name, len) in [("config.json", 8 << 20), ("tokenizer.json", 64 << 20)] {
        write_hf(&dir, &config, &tokenizer_json());
        fs::File::options()
            .write(true)
            .open(dir.join(name))
            .and_then(|file| file.set_len(len + 1))
            .expect("longer");
        let error = table.check(name, &dir).expect("an error");
        let want = format!("expected at most {len} bytes, found {}", len + 1);
        assert!(error.contains(name) && error.contains(&want), "{error}");
    }
    table.finish();
}
