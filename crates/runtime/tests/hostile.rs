//! Damages a small model in every way a table can list and takes it from path to logits and text.
//!
//! Whatever is wrong with a file, loading and running it must not panic, must not allocate beyond
//! a bound, and must end in finite logits or in an error of one line that names the file.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use realizar_formats::{
    Array, Gguf, GgufWriter, SafeTensors, SafeTensorsWriter, TensorType, Value, ValueType,
};
use realizar_quant::BlockType;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::template::{Message, RenderOptions};
use realizar_runtime::tokenizer::EncodeOptions;
use realizar_runtime::{Error, GenerateParams, LoadOptions, Model};
use serde_json::{Value as Json, json};

/// Counts what the current thread holds, and the most it held.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    let held = HELD.get() + change;
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

// SAFETY: every call is passed on to the system allocator unchanged; the counters are plain cells
// of the thread and allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `ptr` came from this allocator with the same layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What loading and running the tiny model may hold: key-value cache, arena, tokenizer, weights.
const ALLOC_LIMIT: usize = 64 << 20;

/// From path to logits and text. Gives the error of loading apart, which must name the file.
fn run(path: &Path) -> Result<Result<(), Error>, Error> {
    let backend = CpuBackend::new(Some(1), None).expect("a backend");
    let mut model = Model::load(path, &backend, &LoadOptions::default())?;
    Ok(run_model(&mut model))
}

fn run_model(model: &mut Model) -> Result<(), Error> {
    for row in model.logits(&[1, 2, 3], &[0, 2], 2)? {
        assert!(row.iter().all(|x| x.is_finite()), "logits are not finite");
    }
    let tokenizer = model.tokenizer()?;
    let options = EncodeOptions { add_special: true, parse_special: true };
    let ids = tokenizer.encode("ab <s> w\u{f6}rld", options)?;
    tokenizer.decode(&ids, false)?;
    if let Some(template) = model.chat_template() {
        template.render(&[Message::new("user", "hi")], &RenderOptions::default())?;
    }
    let params = GenerateParams { max_tokens: Some(3), logprobs: Some(2), ..Default::default() };
    let mut session = model.new_session();
    session.generate(model, &ids, &params, &mut |_| ControlFlow::Continue(()))?;
    session.close(model);
    Ok(())
}

/// Collects what went wrong over a table of cases.
struct Table {
    dir: tempfile::TempDir,
    n_cases: usize,
    failures: Vec<String>,
}

impl Table {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self { dir, n_cases: 0, failures: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs what lies at `path`; returns the error, if there was one.
    fn check(&mut self, what: &str, path: &Path) -> Option<String> {
        self.n_cases += 1;
        let before = HELD.get();
        PEAK.set(before);
        let result = catch_unwind(AssertUnwindSafe(|| run(path)));
        let peak = usize::try_from(PEAK.get() - before).unwrap_or(0);
        if peak > ALLOC_LIMIT {
            self.failures.push(format!("{what}: {peak} bytes at most"));
        }
        let (error, names_file) = match result {
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or(panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
                self.failures.push(format!("{what}: panicked: {}", text.unwrap_or_default()));
                return None;
            }
            Ok(Err(error)) => (error, true),
            Ok(Ok(Err(error))) => {
                // What a request asks for is not in the file.
                let names_file = matches!(error, Error::Tokenizer { .. } | Error::Template { .. });
                (error, names_file)
            }
            Ok(Ok(Ok(()))) => return None,
        };
        let text = error.to_string();
        let dir = self.dir.path().display().to_string();
        if text.chars().any(char::is_control) || text.len() > 2000 {
            self.failures.push(format!("{what}: not one short line: {text:.3000}"));
        }
        if names_file && !text.starts_with(&dir) {
            self.failures.push(format!("{what}: names no file: {text}"));
        }
        Some(text)
    }

    fn finish(self) {
        let (n, failures) = (self.failures.len(), self.failures.join("\n"));
        assert!(n == 0, "{n} of {} cases failed:\n{failures}", self.n_cases);
    }
}

type TensorSpec = (String, TensorType, Vec<usize>, Vec<u8>);

/// A GGUF model under construction.
#[derive(Clone)]
struct Spec {
    metadata: Vec<(String, Value)>,
    tensors: Vec<TensorSpec>,
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/archs").join(name)
}

impl Spec {
    /// A committed model, cut to `n_layers` layers.
    fn of(model: &str, n_layers: u32) -> Self {
        let gguf = Gguf::open(&fixture(model).join("model-f32.gguf")).expect("a fixture");
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
                t[i].2 = [vec![1, 1], vec![shape.iter().product()]].concat()
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
            for block in BlockType::all() {
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
    let file = SafeTensors::open(&fixture(model)).expect("a fixture");
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

#[test]
fn paths_that_are_no_model() {
    let mut table = Table::new();
    let empty = table.path("empty");
    fs::create_dir(&empty).expect("create");
    fs::write(table.path("empty.gguf"), []).expect("write");
    fs::write(table.path("only.safetensors"), [0; 8]).expect("write");
    for name in ["empty", "empty.gguf", "only.safetensors", "nothing", "nothing/at/all"] {
        let path = table.path(name);
        assert!(table.check(name, &path).is_some(), "{name}");
    }
    #[cfg(unix)]
    {
        let pipe = table.path("pipe.gguf");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        if made.is_ok_and(|status| status.success()) {
            assert!(table.check("a pipe", &pipe).is_some());
        }
        let dir = table.path("piped");
        fs::create_dir(&dir).expect("create");
        let made = std::process::Command::new("mkfifo").arg(dir.join("config.json")).status();
        if made.is_ok_and(|status| status.success()) {
            assert!(table.check("a piped config.json", &dir).is_some());
        }
        assert!(table.check("a device", Path::new("/dev/zero")).is_some());
        table.failures.retain(|failure| !failure.contains("names no file"));
    }
    table.finish();
}
