//! GGUF files as Ollama's converter writes them: other names, fewer settings, and the encoders of images and audio in
//! the same file. Each gives the bits of the file that llama.cpp's converter wrote.

use crate::common::tiny::tiny;
use realizar_formats::{Array, Gguf, GgufWriter, Value};
use realizar_runtime::backend::Arithmetic;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::checkpoint::Checkpoint;
use realizar_runtime::{LoadOptions, Model};
use std::path::Path;

/// How a file of Ollama's differs from llama.cpp's.
#[derive(Default)]
struct Dialect<'a> {
    model: &'a str,
    /// The architecture's name, if it is another.
    architecture: Option<&'a str>,
    /// Keys that have another name, or none, without the architecture's name.
    keys: &'a [(&'a str, Option<&'a str>)],
    /// Whole keys that have another value.
    values: &'a [(&'a str, Value)],
    /// Ends of the names of tensors, and how they end instead.
    tensors: &'a [(&'a str, &'a str)],
    /// Tensors of other parts.
    parts: &'a [&'a str],
}

impl Dialect<'_> {
    fn write(&self, path: &Path) {
        let gguf = Gguf::open(tiny(self.model).join("model-f32.gguf")).unwrap();
        let own = gguf.metadata().str("general.architecture").unwrap().unwrap().to_owned();
        let tensors: Vec<_> =
            gguf.tensors().iter().map(|info| gguf.tensor(&info.name).unwrap()).collect();
        let architecture = self.architecture.unwrap_or(&own);
        let mut writer = GgufWriter::new();
        for (key, value) in gguf.metadata().iter() {
            if key == "general.architecture" {
                writer.set(key, architecture).unwrap();
                continue;
            }
            let Some(short) = key.strip_prefix(&format!("{own}.")) else {
                if !self.values.iter().any(|(changed, _)| key == *changed) {
                    writer.set(key, value.clone()).unwrap();
                }
                continue;
            };
            let short = match self.keys.iter().find(|(from, _)| *from == short) {
                Some((_, None)) => continue,
                Some((_, Some(to))) => to,
                None => short,
            };
            let key = format!("{architecture}.{short}");
            if !self.values.iter().any(|(changed, _)| key == *changed) {
                writer.set(&key, value.clone()).unwrap();
            }
        }
        for (key, value) in self.values {
            writer.set(key, value.clone()).unwrap();
        }
        for tensor in &tensors {
            let renamed = self.tensors.iter().find_map(|(from, to)| {
                tensor.name.strip_suffix(from).map(|start| format!("{start}{to}"))
            });
            let name = renamed.unwrap_or_else(|| tensor.name.clone());
            writer.tensor(&name, tensor.ty, &tensor.shape, &tensor.data).unwrap();
        }
        let other = &tensors[0];
        for part in self.parts {
            writer.tensor(part, other.ty, &other.shape, &other.data).unwrap();
        }
        writer.write_file(path).unwrap();
    }
}

fn logits(path: &Path, model: &str) -> Vec<f32> {
    let expected = std::fs::read_to_string(tiny(model).join("expected.json")).unwrap();
    let expected: serde_json::Value = serde_json::from_str(&expected).unwrap();
    let ids: Vec<u32> = serde_json::from_value(expected["ids"].clone()).unwrap();
    let backend = CpuBackend::new(Some(2), None).unwrap();
    let options = LoadOptions { arithmetic: Arithmetic::F32, ..LoadOptions::default() };
    let loaded = Model::load(path, &backend, &options);
    let mut model = loaded.unwrap_or_else(|error| panic!("{model}: {error}"));
    model.logits(&ids, &[43], 256).unwrap().remove(0)
}

const PARTS: [&str; 3] = ["v.blk.0.attn_q.weight", "mm.0.weight", "v.patch_embd.weight"];

#[test]
fn files_with_encoders_give_the_bits_of_those_without() {
    let sections = Array::from(&[2, 3, 3_i32][..]);
    let dialects = [
        Dialect {
            model: "gemma3_text",
            keys: &[
                ("rope.freq_base", Some("rope.global.freq_base")),
                ("rope.freq_base_swa", Some("rope.local.freq_base")),
            ],
            values: &[("gemma3.mm.tokens_per_image", 256_u32.into())],
            parts: &PARTS,
            ..Dialect::default()
        },
        Dialect {
            model: "gemma4_text",
            parts: &["a.conv1d.0.weight", PARTS[0]],
            ..Dialect::default()
        },
        Dialect {
            model: "gemma4_moe",
            tensors: &[(".ffn_down_exps.scale", ".ffn_gate_inp.per_expert_scale")],
            parts: &PARTS,
            ..Dialect::default()
        },
        Dialect { model: "llama4", parts: &PARTS, ..Dialect::default() },
        Dialect {
            model: "ministral3",
            keys: &[
                ("rope.scaling.yarn_beta_fast", Some("rope.scaling.beta_fast")),
                ("rope.scaling.yarn_beta_slow", Some("rope.scaling.beta_slow")),
                ("rope.scaling.yarn_log_multiplier", Some("rope.scaling.mscale_all_dim")),
                ("attention.temperature_scale", Some("rope.scaling_beta")),
            ],
            parts: &PARTS,
            ..Dialect::default()
        },
        Dialect {
            model: "qwen2",
            architecture: Some("qwen25vl"),
            values: &[("qwen25vl.rope.mrope_section", Array::from(&[1, 2, 1_i32][..]).into())],
            parts: &PARTS,
            ..Dialect::default()
        },
        Dialect {
            model: "qwen3",
            architecture: Some("qwen3vl"),
            values: &[("qwen3vl.vision.block_count", 27_u32.into())],
            parts: &PARTS,
            ..Dialect::default()
        },
        Dialect {
            model: "qwen3_5_text",
            values: &[("qwen35.rope.dimension_sections", sections.into())],
            tensors: &[(".ssm_dt.bias", ".ssm_dt")],
            parts: &["v.pos_embed.weight", "mm.0.weight", "mtp.fc.weight"],
            ..Dialect::default()
        },
    ];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    for dialect in dialects {
        dialect.write(&path);
        let wanted = logits(&tiny(dialect.model).join("model-f32.gguf"), dialect.model);
        assert!(logits(&path, dialect.model) == wanted, "{}", dialect.model);
    }
    // What is left out is named.
    let of_gemma = Dialect { model: "gemma3_text", parts: &PARTS, ..Dialect::default() };
    of_gemma.write(&path);
    let left_out = Checkpoint::open(&path).unwrap().left_out();
    assert_eq!(left_out.as_deref(), Some("mm (1 tensor), v (2 tensors)"));
    // No other name is passed over.
    let other = Dialect { model: "gemma3_text", parts: &["w.weight"], ..Dialect::default() };
    other.write(&path);
    let backend = CpuBackend::new(Some(1), None).unwrap();
    let error = Model::load(&path, &backend, &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("tensor `w.weight` (1 in all) is not part of"), "{error}");
}

#[test]
fn files_of_text_models_give_the_bits_of_llama_cpps() {
    let dialects = [
        Dialect {
            model: "gpt_oss",
            architecture: Some("gptoss"),
            keys: &[("expert_feed_forward_length", None), ("rope.scaling.type", None)],
            tensors: &[
                (".attn_output.weight", ".attn_out.weight"),
                (".attn_output.bias", ".attn_out.bias"),
                (".attn_sinks.weight", ".attn_sinks"),
                (".post_attention_norm.weight", ".ffn_norm.weight"),
            ],
            ..Dialect::default()
        },
        Dialect {
            model: "lfm2",
            values: &[("lfm2.feed_forward_length", 12_288_u32.into())],
            tensors: &[("token_embd_norm.weight", "output_norm.weight")],
            ..Dialect::default()
        },
        Dialect { model: "olmo3", architecture: Some("olmo3"), ..Dialect::default() },
        Dialect {
            model: "qwen3_next",
            tensors: &[(".ssm_dt.bias", ".ssm_dt")],
            ..Dialect::default()
        },
    ];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    for dialect in dialects {
        dialect.write(&path);
        let wanted = logits(&tiny(dialect.model).join("model-f32.gguf"), dialect.model);
        assert!(logits(&path, dialect.model) == wanted, "{}", dialect.model);
    }
}

#[test]
fn gemma3_has_what_the_file_does_not_say() {
    let dir = tempfile::tempdir().unwrap();
    let [path, other] = ["a.gguf", "b.gguf"].map(|name| dir.path().join(name));
    // The tokens of images come after those that have embeddings.
    let tokens = |n: usize| Array::from_strs((0..n).map(|i| format!("<{i}>")));
    let own = [
        ("gemma3.context_length", 131_072_u32.into()),
        ("tokenizer.ggml.tokens", tokens(290).into()),
        ("tokenizer.ggml.scores", Array::from(&[0.5_f32; 290][..]).into()),
        ("tokenizer.ggml.token_type", Array::from(&[1_i32; 290][..]).into()),
    ];
    let bare = Dialect {
        model: "gemma3_text",
        keys: &[
            ("attention.layer_norm_rms_epsilon", None),
            ("rope.freq_base", None),
            ("rope.freq_base_swa", None),
        ],
        values: &own,
        parts: &PARTS,
        ..Dialect::default()
    };
    bare.write(&path);
    let said = [
        ("gemma3.context_length", 131_072_u32.into()),
        ("gemma3.attention.layer_norm_rms_epsilon", 1e-6_f32.into()),
        ("gemma3.rope.freq_base", 1e6_f32.into()),
        ("gemma3.rope.freq_base_swa", 1e4_f32.into()),
        ("gemma3.rope.scaling.type", "linear".into()),
        ("gemma3.rope.scaling.factor", 8.0_f32.into()),
    ];
    let whole = Dialect { model: "gemma3_text", values: &said, ..Dialect::default() };
    whole.write(&other);
    assert!(logits(&path, "gemma3_text") == logits(&other, "gemma3_text"));
    let Checkpoint::Gguf(gguf) = Checkpoint::open(&path).unwrap() else { panic!("a GGUF file") };
    for key in ["tokens", "scores", "token_type"] {
        let array = gguf.metadata().get(&format!("tokenizer.ggml.{key}")).unwrap();
        assert_eq!(array.as_array().unwrap().len(), 288, "{key}");
    }
}

#[test]
fn gemma3n_has_tokens_without_embeddings_for_each_layer() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let gguf = Gguf::open(tiny("gemma3n_text").join("model-f32.gguf")).unwrap();
    let tensors: Vec<_> =
        gguf.tensors().iter().map(|info| gguf.tensor(&info.name).unwrap()).collect();
    let longer: Vec<_> = tensors
        .iter()
        .map(|tensor| match tensor.name.as_str() {
            // Eight tokens more.
            "token_embd.weight" => {
                let row = tensor.data.len() / tensor.shape[0];
                let mut data = tensor.data.to_vec();
                data.resize(data.len() + 8 * row, 0);
                (vec![tensor.shape[0] + 8, tensor.shape[1]], data)
            }
            _ => (tensor.shape.clone(), tensor.data.to_vec()),
        })
        .collect();
    let mut writer = GgufWriter::new();
    for (key, value) in gguf.metadata().iter() {
        writer.set(key, value.clone()).unwrap();
    }
    for (tensor, (shape, data)) in tensors.iter().zip(&longer) {
        writer.tensor(&tensor.name, tensor.ty, shape, data).unwrap();
    }
    writer.write_file(&path).unwrap();
    let wanted = logits(&tiny("gemma3n_text").join("model-f32.gguf"), "gemma3n_text");
    let found = logits(&path, "gemma3n_text");
    assert_eq!(found.len(), wanted.len() + 8);
    assert!(found[..wanted.len()] == wanted);
}
