//! config.json is read as transformers reads it: variants of the tiny models' settings against the
//! logits that transformers computes for them, and what is refused instead.

use crate::common::tiny::tiny;
use realizar_formats::{SafeTensors, SafeTensorsWriter, Tensor, TensorType};
use realizar_runtime::backend::Arithmetic;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::{LoadOptions, Model};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// The variants that are refused: model, variant, and what the error says after the file's name.
const REFUSED: [(&str, &str, &str); 26] = [
    (
        "llama",
        "both_spellings_lose_theta",
        "rope_scaling: expected `rope_theta` as in `rope_parameters`, whose value is lost, found {",
    ),
    (
        "llama",
        "by_layer_type",
        "rope_parameters.full_attention: expected nothing, as all layers have one rotary embedding",
    ),
    (
        "llama",
        "partial_scaled",
        "rope_parameters.partial_rotary_factor: expected 1, as the architecture rotates whole heads, \
         found 0.5",
    ),
    ("llama", "attn_bias_denied", ATTN_BIAS),
    (
        "llama",
        "mlp_bias_denied",
        "mlp_bias: expected true, as the file holds `model.layers.0.mlp.gate_proj.bias`, found false",
    ),
    ("qwen3", "attn_bias_denied", ATTN_BIAS),
    ("gpt_oss", "attn_bias_denied", ATTN_BIAS),
    ("gpt_oss", "another_gain", "a `swiglu_alpha` other than 1.702 is not supported"),
    ("qwen3_moe", "attn_bias_denied", ATTN_BIAS),
    (
        "mistral",
        "attn_bias",
        "tensor `model.layers.0.self_attn.k_proj.bias` (16 in all) is not part of architecture llama \
         as built",
    ),
    (
        "gemma3_text",
        "nested_yarn_not_truncated",
        "`truncate` of one layer type's rotary embedding is not supported",
    ),
    (
        "gemma3_text",
        "old_scaling_type",
        "rope_scaling.rope_type: expected the name of the scaling (`type` is not read here), found \
         nothing",
    ),
    (
        "gemma3_text",
        "flat",
        "rope_parameters: expected `full_attention` and `sliding_attention`, found {",
    ),
    ("phi3", "linear", "rope scaling `linear` is not supported (supported: default, longrope)"),
    (
        "qwen2",
        "layer_types_without_window",
        "layer_types: expected only `full_attention`, as `use_sliding_window` is false, found [",
    ),
    (
        "qwen2",
        "layer_types_null_window",
        "layer_types: expected only `full_attention`, as `sliding_window` is null, found [",
    ),
    ("qwen2", "layer_types_short", "layer_types: expected 4 layers, found ["),
    (
        "gemma",
        "act_two_meanings",
        "hidden_activation: expected the same as `hidden_act`, found \"relu\"",
    ),
    ("glm4", "bias_denied", ATTN_BIAS),
    (
        "olmo3",
        "old_spelling_other_theta",
        "rope_theta: expected 500000, or `rope_parameters` by layer type, found 10000.0",
    ),
    (
        "stablelm",
        "bias_denied",
        "use_qkv_bias: expected true, as the file holds `model.layers.0.self_attn.q_proj.bias`, found \
         false",
    ),
    (
        "gpt_neox",
        "bias_denied",
        "attention_bias: expected true, as the file holds \
         `gpt_neox.layers.0.attention.query_key_value.bias`, found false",
    ),
    ("gptj", "rotary_dim_odd", "rotary_dim: expected an even part of a head, found 3"),
    ("falcon", "alibi", "ALiBi (`alibi`) is not supported"),
    (
        "deepseek_v3",
        "as_v32_too_long",
        "the sparse-attention indexer, in contexts longer than the 32 positions that it selects \
         (`index_topk`), is not supported",
    ),
    (
        "baichuan",
        "normalized_head",
        "the head of Baichuan 2, whose rows are normalized, is not supported",
    ),
];

/// Models of `windows.json` whose settings name the layers that slide.
const NAMES_SLIDING: [&str; 8] = [
    "cohere2",
    "exaone4",
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
    "gemma4_text",
    "gpt_oss",
    "olmo3",
];
/// Variants of `windows.json` that are refused: a window of no positions where layers slide, and none where
/// they need one.
const N_WINDOWS_REFUSED: usize = 34;

/// What is said of a window that layers cannot have.
fn window_refusal(model: &str, name: &str) -> Option<&'static str> {
    let has_list = NAMES_SLIDING.contains(&model);
    Some(match name {
        "zero" if has_list => {
            "layer_types: expected only `full_attention`, as `sliding_window` is 0, found ["
        }
        "null" if matches!(model, "gemma3n_text" | "gemma4_text") => {
            "sliding_window: expected a whole number, found null"
        }
        "null" if has_list => {
            "layer_types: expected only `full_attention`, as `sliding_window` is null, found ["
        }
        "zero" => "sliding_window: expected a number of positions above 0, found 0",
        "null" if model != "qwen2_moe" => return None,
        "null" | "null_without_list" => {
            "sliding_window: expected a number of positions above 0, found null"
        }
        _ => return None,
    })
}

const ATTN_BIAS: &str = "attention_bias: expected true, as the file holds \
                         `model.layers.0.self_attn.q_proj.bias`, found false";

/// The vector of a bias, by the formula of the script.
fn bias(len: usize) -> Vec<u8> {
    let value = |i: usize| (((37 * i + 11) % 101) as f32 - 50.0) / 64.0;
    (0..len).flat_map(|i| value(i).to_le_bytes()).collect()
}

/// Type, shape and data by name.
type Tensors = BTreeMap<String, (TensorType, Vec<usize>, Vec<u8>)>;

/// Layer `layer` with the matrices of its first expert in place of all.
fn dense(tensors: &mut Tensors, layer: &str) {
    let mlp = format!("model.layers.{layer}.mlp.");
    let first = ["gate_proj", "up_proj", "down_proj"].map(|leaf| {
        let tensor = tensors[&format!("{mlp}experts.0.{leaf}.weight")].clone();
        (format!("{mlp}{leaf}.weight"), tensor)
    });
    tensors.retain(|name, _| !name.starts_with(&mlp));
    tensors.extend(first);
}

/// One tensor of gates and ups, and one of downs, for each layer.
fn stack_experts(tensors: &mut Tensors) {
    let expert =
        |l: usize, e: usize, leaf: &str| format!("model.layers.{l}.mlp.experts.{e}.{leaf}.weight");
    for l in
        (0..).take_while(|&l| tensors.contains_key(&expert(l, 0, "gate_proj"))).collect::<Vec<_>>()
    {
        let all: Vec<usize> =
            (0..).take_while(|&e| tensors.contains_key(&expert(l, e, "gate_proj"))).collect();
        for (name, leaves) in
            [("gate_up_proj", &["gate_proj", "up_proj"][..]), ("down_proj", &["down_proj"])]
        {
            let mut stacked = (TensorType::BF16, vec![all.len(), 0, 0], Vec::new());
            for &e in &all {
                stacked.1[1] = 0;
                for leaf in leaves {
                    let (ty, shape, data) = tensors.remove(&expert(l, e, leaf)).unwrap();
                    stacked.0 = ty;
                    (stacked.1[1], stacked.1[2]) = (stacked.1[1] + shape[0], shape[1]);
                    stacked.2.extend(data);
                }
            }
            tensors.insert(format!("model.layers.{l}.mlp.experts.{name}"), stacked);
        }
    }
}

/// Every layer with experts has `n_experts` of them.
fn more_experts(tensors: &mut Tensors, n_experts: usize) {
    let routers: Vec<String> =
        tensors.keys().filter(|name| name.ends_with(".mlp.gate.weight")).cloned().collect();
    for name in routers {
        let [n_stored, dim] = tensors[&name].1[..] else { panic!("{name}") };
        let values = bias(n_experts * dim);
        let experts = name.replace("gate.weight", "experts.");
        tensors.insert(name, (TensorType::F32, vec![n_experts, dim], values));
        for e in n_stored..n_experts {
            for leaf in ["gate_proj", "up_proj", "down_proj"] {
                let source = format!("{experts}{}.{leaf}.weight", e % n_stored);
                let (ty, shape, mut data) = tensors[&source].clone();
                if leaf == "down_proj" {
                    let row = data.len() / shape[0];
                    data.rotate_right(e % shape[0] * row);
                }
                tensors.insert(format!("{experts}{e}.{leaf}.weight"), (ty, shape, data));
            }
        }
    }
}

/// The indexer of sparse attention in every layer, of 2 heads of 16 columns.
fn add_indexers(tensors: &mut Tensors) {
    let of_queries = |(name, tensor): (&String, &(TensorType, Vec<usize>, Vec<u8>))| {
        let stem = name.strip_suffix("q_a_proj.weight")?;
        Some((format!("{stem}indexer"), tensor.1[0], tensor.1[1]))
    };
    let found: Vec<(String, usize, usize)> = tensors.iter().filter_map(of_queries).collect();
    for (stem, rank, dim) in found {
        for (leaf, rows, columns) in [("wq_b", 32, rank), ("wk", 16, dim), ("weights_proj", 2, dim)]
        {
            let matrix = (TensorType::F32, vec![rows, columns], bias(rows * columns));
            tensors.insert(format!("{stem}.{leaf}.weight"), matrix);
        }
        for (leaf, value) in [("weight", 1.0_f32), ("bias", 0.0)] {
            let values = value.to_le_bytes().repeat(16);
            let vector = (TensorType::F32, vec![16], values);
            tensors.insert(format!("{stem}.k_norm.{leaf}"), vector);
        }
    }
}

/// One of the changes that the script lists.
fn change(tensors: &mut Tensors, what: &str) {
    const EMBEDS: [&str; 2] = ["model.embed_tokens.weight", "transformer.wte.weight"];
    let embed = EMBEDS.into_iter().find(|name| tensors.contains_key(*name)).unwrap();
    let leaves: &[&str] = match what {
        "head" => {
            let (ty, shape, mut data) = tensors[embed].clone();
            let row = data.len() / shape[0];
            data.rotate_right(row);
            tensors.insert("lm_head.weight".to_owned(), (ty, shape, data));
            return;
        }
        "same_head" => {
            tensors.insert("lm_head.weight".to_owned(), tensors[embed].clone());
            return;
        }
        "only_head" => {
            let table = tensors.remove(embed).unwrap();
            tensors.insert("lm_head.weight".to_owned(), table);
            return;
        }
        "no_bias" => {
            tensors.retain(|name, _| !name.ends_with(".bias"));
            return;
        }
        "stacked_experts" => return stack_experts(tensors),
        "indexer" => return add_indexers(tensors),
        n if n.starts_with("experts:") => {
            return more_experts(tensors, n["experts:".len()..].parse().unwrap());
        }
        layer if layer.starts_with("dense:") => return dense(tensors, &layer["dense:".len()..]),
        "out_bias" => &["o_proj"],
        "attn_bias" => &["q_proj", "k_proj", "v_proj", "o_proj"],
        "mlp_bias" => &["gate_proj", "up_proj", "down_proj"],
        other => panic!("unknown change {other}"),
    };
    let of = |name: &str| leaves.iter().any(|leaf| name.ends_with(&format!(".{leaf}.weight")));
    let found: Vec<(String, usize)> =
        tensors.iter().filter(|(name, _)| of(name)).map(|(n, t)| (n.clone(), t.1[0])).collect();
    for (name, len) in found {
        let name = name.replace(".weight", ".bias");
        tensors.insert(name, (TensorType::F32, vec![len], bias(len)));
    }
}

/// Writes the directory of a variant.
fn write(dir: &Path, variant: &Value) {
    let source = tiny(variant["model"].as_str().unwrap());
    let text = std::fs::read_to_string(source.join("config.json")).unwrap();
    let mut config: Map<String, Value> = serde_json::from_str(&text).unwrap();
    config.extend(variant["set"].as_object().unwrap().clone());
    for key in variant["drop"].as_array().unwrap() {
        config.remove(key.as_str().unwrap());
    }
    std::fs::write(dir.join("config.json"), Value::Object(config).to_string()).unwrap();

    let file = SafeTensors::open(source).unwrap();
    let of = |tensor: Tensor| (tensor.name, (tensor.ty, tensor.shape, tensor.data.to_vec()));
    let mut tensors: Tensors =
        file.tensors().iter().map(|info| of(file.tensor(&info.name).unwrap())).collect();
    for what in variant["tensors"].as_array().unwrap() {
        change(&mut tensors, what.as_str().unwrap());
    }
    let mut writer = SafeTensorsWriter::new();
    for (name, (ty, shape, data)) in &tensors {
        writer.tensor(name, *ty, shape, data).unwrap();
    }
    writer.write_file(dir.join("model.safetensors")).unwrap();
}

#[test]
fn settings_are_read_as_transformers_reads_them() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/settings");
    let files =
        ["expected.json", "dense.json", "unusual.json", "windows.json"].map(|name| -> Value {
            serde_json::from_str(&std::fs::read_to_string(fixtures.join(name)).unwrap()).unwrap()
        });
    let step = files[0]["step"].as_u64().unwrap() as usize;
    let backend = CpuBackend::new(Some(1), None).unwrap();
    let (mut n_refused, mut failed) = (0, Vec::new());
    for variant in files.iter().flat_map(|file| file["variants"].as_array().unwrap()) {
        let (model, name) = (&variant["model"], &variant["name"]);
        let case = format!("{model} {name}");
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), variant);
        let options = LoadOptions {
            arithmetic: Arithmetic::F32,
            max_seq_len: variant["context"].as_u64().map(|n| n as usize),
            ..LoadOptions::default()
        };
        let loaded = Model::load(dir.path(), &backend, &options);
        let refused = REFUSED.iter().find(|row| model == row.0 && name == row.1).map(|row| row.2);
        let names = (model.as_str().unwrap(), name.as_str().unwrap());
        let refused = refused.or_else(|| window_refusal(names.0, names.1));
        let error = match (loaded, refused) {
            (Ok(_), Some(reason)) => format!("runs, not refused with {reason}"),
            (Err(error), Some(reason)) => {
                n_refused += 1;
                match error.to_string() {
                    text if text.contains(&format!(": {reason}")) => continue,
                    text => format!("{text}, not {reason}"),
                }
            }
            (Err(error), None) => error.to_string(),
            (Ok(mut model), None) => {
                let Some(wanted) = variant["logits"].as_object() else {
                    panic!("{case} runs, and transformers refuses it: {}", variant["error"]);
                };
                let source = tiny(variant["model"].as_str().unwrap());
                let ids = std::fs::read_to_string(source.join("expected.json")).unwrap();
                let ids: Value = serde_json::from_str(&ids).unwrap();
                let ids: Vec<u32> = serde_json::from_value(ids["ids"].clone()).unwrap();
                let positions: Vec<usize> = wanted.keys().map(|p| p.parse().unwrap()).collect();
                let rows = model.logits(&ids, &positions, 256).unwrap();
                let (mut largest, mut error) = (0.0_f64, 0.0_f64);
                for (row, wanted) in rows.iter().zip(wanted.values()) {
                    let wanted: Vec<f64> = serde_json::from_value(wanted.clone()).unwrap();
                    assert_eq!(wanted.len(), row.len().div_ceil(step), "{case}");
                    for (x, wanted) in row.iter().step_by(step).zip(wanted) {
                        largest = largest.max(wanted.abs());
                        error = error.max((f64::from(*x) - wanted).abs());
                    }
                }
                match error / largest {
                    relative if relative < 1e-5 => continue,
                    relative => format!("differs by {relative:.2e}"),
                }
            }
        };
        failed.push(format!("{case}: {error}"));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!(n_refused, REFUSED.len() + N_WINDOWS_REFUSED);
}

#[test]
fn contexts_may_have_several_chunks() {
    let backend = CpuBackend::new(Some(1), None).unwrap();
    let model = Model::load(&tiny("llama4_chunks"), &backend, &LoadOptions::default()).unwrap();
    assert_eq!(model.max_seq_len(), 256);
}
