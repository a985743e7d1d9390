//! GGUF models with every value, tensor and byte damaged, and their tokenizers.

use std::fs;
use std::path::Path;

use realizar_formats::{Array, Gguf, GgufWriter, TensorType, Value, ValueType};
use realizar_quant::BlockType;

use super::{Table, fixture};

type TensorSpec = (String, TensorType, Vec<usize>, Vec<u8>);

/// A GGUF model under construction.
#[derive(Clone)]
struct Spec {
    metadata: Vec<(String, Value)>,
    tensors: Vec<TensorSpec>,
}

impl Spec {
    /// A committed model, cut to `n_layers` layers.
    fn of(model: &str, n_layers: u32) -> Self {
        let gguf = Gguf::open(fixture(model).join("model-f32.gguf")).expect("a fixture");
        let mut metadata: Vec<(String, Value)> =
            gguf.metadata().iter().map(|(k, v)| (k.to_owned(), v.clone())).collect();
        for (key, value) in &mut metadata {
            if key.ends_with(".block_count") {
                *value = Value::U32(n_layers);
            }
        }
        let kept = |name: &str| {
            let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
            layer.is_none_or(|l| l.parse::<u32>().is_ok_and(|l| l < n_layers))
        };
        let tensors = gguf.tensors().iter().filter(|info| kept(&info.name));
        let tensors = tensors.map(|info| {
            let t = gguf.tensor(&info.name).expect("a listed tensor");
            (t.name.clone(), t.ty, t.shape.clone(), t.data.to_vec())
        });
        Self { tensors: tensors.collect(), metadata }
    }

    fn architecture(&self) -> String {
        let (_, value) = &self.metadata[0];
        value.as_str().expect("general.architecture comes first").to_owned()
    }

    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.metadata.retain(|(k, _)| k != key);
        self.metadata.push((key.to_owned(), value.into()));
    }

    fn with(&self, key: &str, value: impl Into<Value>) -> Self {
        let mut spec = self.clone();
        spec.set(key, value);
        spec
    }

    fn without(&self, key: &str) -> Self {
        let mut spec = self.clone();
        spec.metadata.retain(|(k, _)| k != key);
        spec
    }

    fn write(&self, path: &Path) {
        let mut writer = GgufWriter::new();
        for (key, value) in &self.metadata {
            writer.set(key, value.clone()).expect("a key");
        }
        for (name, ty, shape, data) in &self.tensors {
            writer.tensor(name, *ty, shape, data).expect("a tensor");
        }
        writer.write_file(path).expect("write");
    }

    fn check(&self, table: &mut Table, what: &str) -> Option<String> {
        let path = table.path("model.gguf");
        self.write(&path);
        table.check(what, &path)
    }
}

/// Values that a single metadata value is replaced by.
fn hostile_values() -> Vec<Value> {
    let mut values = vec![
        Value::Bool(true),
        Value::Str(String::new()),
        Value::Str("a\nb\u{1b}[31m".to_owned()),
        Value::Str("x".repeat(100_000)),
        Value::U64(u64::MAX),
        Value::U64(1 << 32),
        Value::U64(1 << 40),
        Value::I64(i64::MIN),
        Value::I32(-1),
        Value::F64(f64::NAN),
        Value::Array(Array::from([0u32, 1, 2].as_slice())),
        Value::Array(Array::from([u32::MAX; 4].as_slice())),
        Value::Array(Array::from([0u32; 0].as_slice())),
        Value::Array(Array::from_strs(["a", "b"])),
    ];
    for n in [0, 1, 2, 3, 5, 7, 33, 1 << 16, (1 << 24) - 1, 1 << 24, 1 << 31, u32::MAX] {
        values.push(Value::U32(n));
    }
    for x in [0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        values.push(Value::F32(x));
    }
    values
}

/// Every single value of the file, and the keys that an architecture may have besides.
fn check_metadata(table: &mut Table, model: &str) {
    let spec = Spec::of(model, 1);
    assert_eq!(spec.check(table, "whole"), None, "{model}");
    let architecture = spec.architecture();
    let mut keys: Vec<String> = spec
        .metadata
        .iter()
        .filter(|(_, value)| value.ty() != ValueType::Array)
        .map(|(key, _)| key.clone())
        .collect();
    for key in [
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "attention.layer_norm_epsilon",
        "attention.clamp_kqv",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "rope.freq_base_swa",
        "rope.dimension_count",
        "rope.scale_linear",
        "rope.scaling.factor",
        "rope.scaling.type",
    ] {
        keys.push(format!("{architecture}.{key}"));
    }
    for role in ["bos", "eos", "unknown", "eot", "fim_pad"] {
        keys.push(format!("tokenizer.ggml.{role}_token_id"));
    }
    for key in ["tokenizer.ggml.pre", "tokenizer.chat_template", "tokenizer.ggml.add_bos_token"] {
        keys.push(key.to_owned());
    }
    for key in &keys {
        spec.without(key).check(table, &format!("{model}: without {key}"));
        for value in hostile_values() {
            let what = format!("{model}: {key} = {:.100}", format!("{value:?}"));
            // The alignment is checked where it is written.
            if key != "general.alignment" {
                spec.with(key, value).check(table, &what);
            }
        }
    }
    for ty in ["linear", "yarn", "longrope", "none"] {
        for key in [
            "factor",
            "attn_factor",
            "original_context_length",
            "yarn_beta_fast",
            "yarn_beta_slow",
            "yarn_log_multiplier",
        ] {
            for value in hostile_values() {
                let prefix = format!("{architecture}.rope.scaling.");
                let what = format!("{model}: {ty}, {key} = {:.100}", format!("{value:?}"));
                let mut spec = spec.with(&format!("{prefix}type"), ty);
                spec.set(&format!("{prefix}{key}"), value);
                spec.check(table, &what);
            }
        }
    }
}

#[test]
fn hostile_metadata_of_llama() {
    let mut table = Table::new();
    check_metadata(&mut table, "llama");
    table.finish();
}

#[test]
fn hostile_metadata_of_gemma2() {
    let mut table = Table::new();
    check_metadata(&mut table, "gemma2");
    table.finish();
}

#[test]
fn hostile_metadata_of_gpt2() {
    let mut table = Table::new();
    check_metadata(&mut table, "gpt2");
    table.finish();
}

#[test]
fn hostile_metadata_of_phi3() {
    let mut table = Table::new();
    check_metadata(&mut table, "phi3");
    table.finish();
}

#[test]
fn hostile_metadata_of_olmo() {
    let mut table = Table::new();
    check_metadata(&mut table, "olmo");
    table.finish();
}

#[test]
fn hostile_tensors() {
    let mut table = Table::new();
    for model in ["llama", "gpt2", "gemma3_text", "phi3"] {
        let spec = Spec::of(model, 1);
        for i in 0..spec.tensors.len() {
            let (name, _, shape, data) = spec.tensors[i].clone();
            let mut refused = |how: &str, change: &dyn Fn(&mut Vec<TensorSpec>)| {
                let mut spec = spec.clone();
                change(&mut spec.tensors);
                let what = format!("{model}: {name} {how}");
                // The embedding says how large the vocabulary is.
                let embedding = name == "token_embd.weight" && how == "one row less";
                if spec.check(&mut table, &what).is_none() && !embedding {
                    table.failures.push(format!("{what}: was taken"));
                }
            };
            // What may be missing is not in the committed models, except a second lm_head.
            if name != "output.weight" {
                refused("missing", &|t| drop(t.remove(i)));
            }
            refused("renamed", &|t| t[i].0 = format!("{name}x"));
            refused("control characters", &|t| t[i].0 = "a\nb\u{1b}[0m".to_owned());
            refused("long name", &|t| t[i].0 = "n".repeat(60_000));
            refused("flat and transposed", &|t| {
                t[i].2 = match shape.as_slice() {
                    [a, b] if a != b => vec![*b, *a],
                    [a, b] => vec![a * b],
                    _ => vec![1, shape[0]],
                }
            });
            refused("one row less", &|t| {
                let row = data.len() / shape[0];
                t[i].2[0] -= 1;
                t[i].3.truncate(data.len() - row);
            });
            refused("no rows", &|t| {
                t[i].2[0] = 0;
                t[i].3.clear();
            });
            refused("4 dimensions", &|t| {
                t[i].2 = [vec![1, 1], vec![shape.iter().product()]].concat();
            });
            for ty in [
                TensorType::I32,
                TensorType::F64,
                TensorType::I8,
                TensorType::I64,
                TensorType::Block(BlockType::Q8_1),
                TensorType::Block(BlockType::Q8_K),
            ] {
                let Ok(n) = ty.size_of_shape(&shape) else { continue };
                refused(&format!("as {ty}"), &|t| (t[i].1, t[i].3) = (ty, vec![0x5a; n]));
            }
            // Random bits in a type that can be multiplied: finite logits, or an error.
            for block in BlockType::all().filter(|ty| ty.ggml_id().is_some()) {
                let ty = TensorType::Block(block);
                let Ok(n) = ty.size_of_shape(&shape) else { continue };
                for byte in [0u8, 0x3c, 0x5a, 0xff] {
                    let mut spec = spec.clone();
                    (spec.tensors[i].1, spec.tensors[i].3) = (ty, vec![byte; n]);
                    spec.check(&mut table, &format!("{model}: {name} as {ty} of {byte:#x}"));
                }
            }
        }
        for (name, shape) in [("extra.weight", vec![4]), ("rope_freqs.weight", vec![3])] {
            let mut spec = spec.clone();
            let n = shape.iter().product::<usize>() * 4;
            spec.tensors.push((name.to_owned(), BlockType::F32.into(), shape, vec![0; n]));
            assert!(spec.check(&mut table, name).is_some(), "{model}: {name}");
        }
    }
    // Factors of the angles, as tensors.
    let spec = Spec::of("llama", 1);
    for name in ["rope_freqs", "rope_factors_long", "rope_factors_short"] {
        for factor in [0.0, -1.0, 1e-45, 1e30, f32::NAN, f32::INFINITY] {
            let mut spec = spec.clone();
            let data: Vec<u8> =
                [1.0, 1.0, factor, 1.0].iter().flat_map(|x| x.to_le_bytes()).collect();
            for name in [
                name,
                if name.starts_with("rope_factors_long") { "rope_factors_short" } else { name },
            ] {
                if !spec.tensors.iter().any(|t| t.0.starts_with(name)) {
                    let name = format!("{name}.weight");
                    spec.tensors.push((name, BlockType::F32.into(), vec![4], data.clone()));
                }
            }
            spec.check(&mut table, &format!("{name} = {factor}"));
        }
    }
    table.finish();
}

#[test]
fn damaged_bytes() {
    let mut table = Table::new();
    let spec = Spec::of("llama", 1);
    let path = table.path("whole.gguf");
    spec.write(&path);
    let bytes = fs::read(&path).expect("read");
    let n_data: usize = spec.tensors.iter().map(|t| t.3.len().next_multiple_of(32)).sum();
    let header = bytes.len() - n_data;
    let path = table.path("damaged.gguf");
    for i in (0..header).step_by(3) {
        for byte in [bytes[i] ^ 0xff, bytes[i] ^ 1, bytes[i] ^ 0x80, 0] {
            let mut bytes = bytes.clone();
            bytes[i] = byte;
            fs::write(&path, bytes).expect("write");
            table.check(&format!("byte {i} = {byte:#x}"), &path);
        }
    }
    for len in (0..header).step_by(11).chain((header..bytes.len() - 32).step_by(997)) {
        fs::write(&path, &bytes[..len]).expect("write");
        if table.check(&format!("{len} bytes"), &path).is_none() {
            table.failures.push(format!("{len} bytes: was taken"));
        }
    }
    table.finish();
}

#[test]
fn hostile_tokenizers() {
    let mut table = Table::new();
    let spec = Spec::of("llama", 1);
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let tokens: Vec<String> = {
        let value = spec.metadata.iter().find(|(k, _)| *k == key("tokens")).expect("tokens");
        let array = value.1.as_array().and_then(Array::strs).expect("strings");
        array.iter().map(str::to_owned).collect()
    };
    let n = tokens.len();
    for name in ["tokens", "scores", "token_type", "merges", "model"] {
        spec.without(&key(name)).check(&mut table, &format!("without {name}"));
        for value in hostile_values() {
            let what = format!("{name} = {:.60}", format!("{value:?}"));
            spec.with(&key(name), value).check(&mut table, &what);
        }
    }
    for len in [0, 1, 3, n - 1, n + 1, n + 1000] {
        let tokens: Vec<String> = (0..len)
            .map(|i| tokens.get(i).cloned().unwrap_or_else(|| format!("extra{i}")))
            .collect();
        let mut all = spec.clone();
        all.set(&key("tokens"), Array::from_strs(&tokens));
        all.check(&mut table, &format!("{len} tokens"));
        all.set(&key("scores"), Array::from(vec![f32::NAN; len].as_slice()));
        all.set(&key("token_type"), Array::from(vec![1i32; len].as_slice()));
        all.check(&mut table, &format!("{len} tokens, scores and types"));
        for id in [0, len.saturating_sub(1), len, n, 1 << 20] {
            let mut all = all.clone();
            all.set(&key("bos_token_id"), id as u32);
            all.set(&key("add_bos_token"), true);
            all.check(&mut table, &format!("{len} tokens, bos {id}"));
        }
    }
    for ty in [0, 2, 3, 4, 5, 6, 7, -1, i32::MAX, i32::MIN] {
        let types = Array::from(vec![ty; n].as_slice());
        spec.with(&key("token_type"), types).check(&mut table, &format!("all of type {ty}"));
    }
    for text in ["", "\n", "\u{2581}", "<0xZZ>", "same"] {
        let tokens = Array::from_strs(vec![text; n]);
        spec.with(&key("tokens"), tokens).check(&mut table, &format!("all are {text:?}"));
    }
    // The same vocabulary as byte-level BPE.
    let mut bpe = spec.with(&key("model"), "gpt2").without(&key("scores"));
    bpe.set(&key("pre"), "gpt-2");
    bpe.check(&mut table, "no merges");
    for merges in [&[][..], &[""], &[" "], &["a"], &["a b c"], &["zz yy"], &["\n \n"]] {
        let merges_array = Array::from_strs(merges);
        bpe.with(&key("merges"), merges_array).check(&mut table, &format!("merges {merges:?}"));
    }
    for pre in ["", "nonsense", "a\nb", "llama-bpe", "qwen2"] {
        bpe.set(&key("merges"), Array::from_strs([""; 0]));
        bpe.with(&key("pre"), pre).check(&mut table, &format!("pre {pre:?}"));
    }
    for template in [
        "{% if %}",
        "{{ nope() }}",
        "{{ 1 // 0 }}",
        "{{ messages[9].content.x.y }}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{{ raise_exception('no\nsuch\nthing') }}",
        "{{ 'a' * 99999999999 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ '",
        "\u{0}",
    ] {
        spec.with("tokenizer.chat_template", template).check(&mut table, template);
    }
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(20_000), ")".repeat(20_000));
    spec.with("tokenizer.chat_template", deep).check(&mut table, "a deep template");
    table.finish();
}
