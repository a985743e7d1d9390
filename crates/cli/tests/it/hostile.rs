//! Broken models and wrong options as a user meets them: one line that begins with `error: ` and
//! names what is wrong, nothing on standard output, and no panic.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::fixture;
use realizar_formats::{Array, Gguf, GgufWriter, SplitLimits, TensorType, Value};
use tempfile::TempDir;

type TensorSpec = (String, TensorType, Vec<usize>, Vec<u8>);

/// A folder with a small sound model, from which broken ones are made.
struct Models {
    dir: TempDir,
    metadata: Vec<(String, Value)>,
    tensors: Vec<TensorSpec>,
}

impl Models {
    fn new() -> Self {
        let gguf = Gguf::open(fixture("model-f32.gguf")).expect("a fixture");
        let metadata = gguf.metadata().iter().map(|(k, v)| (k.to_owned(), v.clone())).collect();
        let tensors = gguf.tensors().iter().map(|info| {
            let t = gguf.tensor(&info.name).expect("a listed tensor");
            (t.name.clone(), t.ty, t.shape.clone(), t.data.to_vec())
        });
        let models = Self {
            dir: tempfile::tempdir().expect("a temporary directory"),
            metadata,
            tensors: tensors.collect(),
        };
        models.gguf("whole.gguf", |_, _| ());
        models
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes the model after `change`.
    fn gguf(
        &self,
        name: &str,
        change: impl FnOnce(&mut Vec<(String, Value)>, &mut Vec<TensorSpec>),
    ) {
        let (mut metadata, mut tensors) = (self.metadata.clone(), self.tensors.clone());
        change(&mut metadata, &mut tensors);
        writer(&metadata, &tensors).write_file(self.path(name)).expect("write");
    }

    fn set(&self, name: &str, key: &str, value: impl Into<Value>) {
        let value = value.into();
        self.gguf(name, |metadata, _| {
            metadata.retain(|(k, _)| k != key);
            metadata.push((key.to_owned(), value));
        });
    }

    /// The bytes of the sound model, changed.
    fn bytes(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(self.path("whole.gguf")).expect("read");
        change(&mut bytes);
        fs::write(self.path(name), bytes).expect("write");
    }

    /// Runs and expects one line of error; returns it.
    fn fails(&self, args: &[&str], code: i32) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_realizar"))
            .args(args)
            .current_dir(self.dir.path())
            .env("REALIZAR_CACHE", self.path("cache"))
            .env_remove("RUST_LOG")
            .env("REALIZAR_DEVICE", "cpu")
            .stdin(Stdio::null())
            .output()
            .expect("the binary starts");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.starts_with("error: "), "{args:?}: {stderr}");
        assert!(!stderr.contains("panicked"), "{args:?}: {stderr}");
        assert!(
            output.stdout.is_empty(),
            "{args:?}: {:?}",
            String::from_utf8_lossy(&output.stdout)
        );
        // The argument parser adds how the program is used.
        if code == 1 {
            assert_eq!(stderr.lines().count(), 1, "{args:?}: {stderr}");
        }
        stderr
    }

    fn succeeds(&self, args: &[&str]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_realizar"));
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env("REALIZAR_CACHE", self.path("cache")).env("REALIZAR_DEVICE", "cpu");
        let output = command.output().expect("start");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn writer<'a>(metadata: &[(String, Value)], tensors: &'a [TensorSpec]) -> GgufWriter<'a> {
    let mut writer = GgufWriter::new();
    for (key, value) in metadata {
        writer.set(key, value.clone()).expect("a key");
    }
    for (name, ty, shape, data) in tensors {
        writer.tensor(name, *ty, shape, data).expect("a tensor");
    }
    writer
}

#[test]
fn broken_models_name_the_file_and_what_is_wrong() {
    let m = Models::new();
    let logits = |name: &str, wants: &[&str]| {
        let error = m.fails(&["logits", name, "--ids", "1,2"], 1);
        assert!(error.contains(name), "{error}");
        wants.iter().for_each(|want| assert!(error.contains(want), "{want}: {error}"));
    };
    m.succeeds(&["logits", "whole.gguf", "--ids", "1,2"]);
    m.succeeds(&["run", "whole.gguf", "--raw", "-n", "2", "hi"]);

    m.bytes("cut.gguf", |bytes| bytes.truncate(bytes.len() / 2));
    logits("cut.gguf", &["tensor"]);
    m.bytes("magic.gguf", |bytes| bytes[0] ^= 1);
    logits("magic.gguf", &["not a GGUF file"]);
    m.bytes("big.gguf", |bytes| bytes[4..8].reverse());
    logits("big.gguf", &["unsupported", "big-endian"]);
    m.bytes("count.gguf", |bytes| bytes[8..16].fill(0xff));
    logits("count.gguf", &["tensor"]);
    // The type id of the first tensor comes after its name and its dimensions.
    let (name, _, shape, _) = &m.tensors[0];
    m.bytes("type.gguf", |bytes| {
        let at = bytes.windows(name.len()).position(|w| w == name.as_bytes()).expect("the name");
        let id = at + name.len() + 4 + 8 * shape.len();
        bytes[id..id + 4].copy_from_slice(&77u32.to_le_bytes());
    });
    logits("type.gguf", &[name, "type 77", "not supported"]);
    m.bytes("shape.gguf", |bytes| {
        let at = bytes.windows(name.len()).position(|w| w == name.as_bytes()).expect("the name");
        bytes[at + name.len() + 4..][..8].fill(0x7f);
    });
    logits("shape.gguf", &[name]);

    m.set("arch.gguf", "general.architecture", "warp");
    logits("arch.gguf", &["`warp` is not supported", "llama"]);
    m.set("zero.gguf", "llama.attention.head_count", 0u32);
    logits("zero.gguf", &["llama."]);
    m.set("heads.gguf", "llama.attention.head_count_kv", 3u32);
    logits("heads.gguf", &["llama.attention.head_count_kv", "found 3"]);
    m.set("word.gguf", "llama.block_count", "four");
    logits("word.gguf", &["llama.block_count"]);
    m.set("base.gguf", "llama.rope.freq_base", f32::NAN);
    logits("base.gguf", &["llama.rope.freq_base", "NaN"]);
    m.gguf("missing.gguf", |_, tensors| tensors.retain(|t| t.0 != "blk.2.attn_k.weight"));
    logits("missing.gguf", &["blk.2.attn_k.weight", "missing"]);
    m.gguf("wrong.gguf", |_, tensors| {
        let t = tensors.iter_mut().find(|t| t.0 == "blk.1.ffn_up.weight").expect("a tensor");
        t.2.reverse();
    });
    logits("wrong.gguf", &["blk.1.ffn_up.weight", "expected shape [64, 32], found [32, 64]"]);
    m.gguf("extra.gguf", |_, tensors| {
        tensors.push(("blk.0.lora.weight".to_owned(), tensors[0].1, vec![1], vec![0; 4]));
    });
    logits("extra.gguf", &["blk.0.lora.weight"]);
    m.gguf("nan.gguf", |_, tensors| {
        let t = tensors.iter_mut().find(|t| t.0 == "output_norm.weight").expect("a tensor");
        t.3.fill(0xff);
    });
    logits("nan.gguf", &["not finite"]);
    let error = m.fails(&["run", "nan.gguf", "--raw", "hi"], 1);
    assert!(error.contains("nan.gguf: the model's output is not finite"), "{error}");
    assert!(
        error.contains("weights or settings are corrupt; fetch or convert it again"),
        "{error}"
    );

    let run = |name: &str, wants: &[&str]| {
        m.succeeds(&["logits", name, "--ids", "1,2"]);
        let error = m.fails(&["run", name, "--raw", "hi"], 1);
        assert!(error.contains(name), "{error}");
        wants.iter().for_each(|want| assert!(error.contains(want), "{want}: {error}"));
        let error = m.fails(&["tokenize", name, "hi"], 1);
        assert!(error.contains(name), "{error}");
    };
    m.gguf("silent.gguf", |metadata, _| metadata.retain(|(k, _)| !k.starts_with("tokenizer.")));
    run("silent.gguf", &["tokenizer.ggml.model"]);
    m.set("scores.gguf", "tokenizer.ggml.scores", Array::from([0.0f32; 3].as_slice()));
    run("scores.gguf", &["tokenizer.ggml.scores", "3"]);
    m.set("bos.gguf", "tokenizer.ggml.bos_token_id", 99_999u32);
    run("bos.gguf", &["tokenizer.ggml.bos_token_id", "99999"]);
    m.set("template.gguf", "tokenizer.chat_template", "{% if %}");
    let error = m.fails(&["run", "template.gguf", "hi"], 1);
    assert!(error.contains("template.gguf") && error.contains("does not parse"), "{error}");
}

#[test]
fn broken_folders_name_the_missing_file() {
    let m = Models::new();
    let shards = writer(&m.metadata, &m.tensors)
        .write_split(m.path("split"), SplitLimits { max_tensors: Some(20), max_bytes: None })
        .expect("write");
    assert!(shards.len() > 1);
    let first = shards[0].to_string_lossy().into_owned();
    m.succeeds(&["logits", &first, "--ids", "1"]);
    fs::remove_file(&shards[1]).expect("remove");
    let error = m.fails(&["logits", &first, "--ids", "1"], 1);
    let missing = shards[1].file_name().expect("a name").to_string_lossy();
    assert!(error.contains(&*missing), "{error}");

    fs::create_dir(m.path("hf")).expect("create");
    fs::copy(fixture("model.safetensors"), m.path("hf/model.safetensors")).expect("copy");
    for model in ["hf", "hf/model.safetensors"] {
        let error = m.fails(&["logits", model, "--ids", "1"], 1);
        assert!(error.contains(model) && error.contains("config.json"), "{error}");
    }
    fs::copy(fixture("config.json"), m.path("hf/config.json")).expect("copy");
    m.succeeds(&["logits", "hf", "--ids", "1"]);
    for args in [&["run", "hf", "--raw", "hi"][..], &["tokenize", "hf", "hi"]] {
        let error = m.fails(args, 1);
        let want = "error: hf: the model has no tokenizer (tokenizer.json is missing)\n";
        assert_eq!(error, want);
    }
    fs::write(m.path("hf/config.json"), "{\"model_type\": \"llama\"}").expect("write");
    let error = m.fails(&["logits", "hf", "--ids", "1"], 1);
    assert!(error.contains("hf/config.json"), "{error}");
    fs::remove_file(m.path("hf/model.safetensors")).expect("remove");
    let error = m.fails(&["logits", "hf", "--ids", "1"], 1);
    assert!(error.contains("hf"), "{error}");
}

#[test]
fn wrong_requests_are_refused() {
    let m = Models::new();
    fs::write(m.path("short.txt"), "hi").expect("write");
    fs::write(m.path("broken.jinja"), "{% for %}").expect("write");
    let long = "word ".repeat(400);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["logits", "M", "--ids", "99999"], 1, "99999"),
        (&["logits", "M", "--ids", "-1"], 2, "-1"),
        (&["logits", "M", "--ids", "1", "--positions", "7"], 2, "7"),
        (&["logits", "M", "--ids", "1", "--cpu-tier", "nonsense"], 2, "--cpu-tier: `nonsense`"),
        (&["logits", "M", "--ids", "1", "--threads", "0"], 2, "threads"),
        (&["logits", "M", "--ids", "1", "--threads", "99999"], 2, "from 1 to 1024, not 99999"),
        (&["logits", "M", "--ids", "1", "--chunk", "0"], 2, "chunk"),
        (&["logits", "M", "--ids", "1", "--kv-type", "q4_k"], 2, "q4_k"),
        (&["run", "M", "--raw", &long, "--ctx", "64"], 1, "64"),
        (&["run", "M", "--raw", "hi", "--ctx", "0"], 2, "ctx"),
        (&["run", "M", "--raw", "hi", "--ctx", "100000"], 1, "100000"),
        (&["run", "M", "hi", "--template", "none.jinja"], 1, "none.jinja"),
        (&["run", "M", "hi", "--template", "broken.jinja"], 1, "broken.jinja"),
        (&["run", "M", "hi"], 1, "chat template"),
        (&["run", "M", "--raw", "hi", "--stop", ""], 2, "--stop"),
        (&["run", "M", "--raw", "hi", "--temp", "-1"], 2, "must be a number from 0 to 100"),
        (&["run", "M", "--raw", "hi", "--repeat-penalty", "0"], 2, "--repeat-penalty"),
        (&["run", "M", "--raw", "hi", "-n", "-1"], 2, "must be a whole number of at least 0"),
        (&["run", "M", "--raw", "hi", "--tmep", "1"], 2, "--tmep"),
        (&["bench", "M", "-r", "0"], 2, "must be a whole number of at least 1"),
        (&["bench", "M", "-b", "0"], 2, "--batch: must be at least 1"),
        (&["run", "M", "--raw", "hi", "--temp", "NaN"], 2, "temp"),
        (&["run", "M", "--raw", "hi", "--top-p", "2"], 2, "top-p"),
        (&["run", "M", "--raw", "hi", "--min-p", "-0.5"], 2, "-0"),
        (&["perplexity", "M", "-f", "short.txt", "--ctx", "16"], 1, "too few"),
        (&["perplexity", "M", "-f", "none.txt"], 1, "none.txt"),
        (&["perplexity", "M", "-f", "short.txt", "--ctx", "3"], 2, "ctx"),
        (&["kl-divergence", "M", "-f", "short.txt", "--ctx", "16"], 1, "too few"),
        (&["kl-divergence", "M", "-f", "none.txt"], 1, "none.txt"),
        (&["kl-divergence", "M", "-f", "short.txt", "--ctx", "3"], 2, "ctx"),
        (&["kl-divergence", "M", "-f", "short.txt", "--base", "none.gguf"], 1, "none.gguf"),
        (&["kl-divergence", "M", "-f", "short.txt", "--rows", "all"], 2, "--rows"),
        (&["kl-divergence", "M", "-f", "short.txt", "--chunks", "1"], 2, "--chunks"),
    ];
    for (args, code, want) in cases {
        let args: Vec<&str> =
            args.iter().map(|&arg| if arg == "M" { "whole.gguf" } else { arg }).collect();
        let error = m.fails(&args, *code);
        assert!(error.contains(want), "{args:?}: {error}");
    }
}
