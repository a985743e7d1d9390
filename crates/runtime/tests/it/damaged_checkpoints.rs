//! Directories whose linears are quantized, damaged in every setting of `quantization_config` and every tensor of a
//! linear: each is an error that names what is wrong.

use crate::common::tiny::tiny;
use realizar_formats::{SafeTensors, SafeTensorsWriter, Tensor, TensorType};
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::{LoadOptions, Model};
use serde_json::{Value, json};

/// A model of each kind.
const NAMES: [&str; 14] = [
    "gpt_oss_mxfp4",
    "llama_awq",
    "llama_fp8",
    "llama_fp8_ao",
    "llama_gptq",
    "llama_int4_ct",
    "llama_int8_ao",
    "llama_nf4_bnb",
    "olmo2_gptq",
    "qwen2_int4_ct",
    "qwen2_int8_bnb",
    "qwen2_int8_ct",
    "qwen3_fp4_ct",
    "qwen3_fp8",
];

/// What loading says, `None` if nothing.
fn load(config: &Value, tensors: &[Tensor]) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let mut file = SafeTensorsWriter::new();
    for tensor in tensors {
        file.tensor(&tensor.name, tensor.ty, &tensor.shape, &tensor.data).unwrap();
    }
    file.write_file(dir.path().join("model.safetensors")).unwrap();
    let cpu = CpuBackend::new(Some(1), None).unwrap();
    let options = LoadOptions { max_seq_len: Some(8), ..LoadOptions::default() };
    Model::load(dir.path(), &cpu, &options).err().map(|error| error.to_string())
}

fn parts(name: &str) -> (Value, Vec<Tensor>) {
    let config = std::fs::read_to_string(tiny(name).join("config.json")).unwrap();
    let source = SafeTensors::open(tiny(name)).unwrap();
    let tensors = source.tensors().iter().map(|info| source.tensor(&info.name).unwrap());
    (serde_json::from_str(&config).unwrap(), tensors.collect())
}

/// The path of every value inside `value`, but for what is inside lists.
fn paths(value: &Value, path: &str, found: &mut Vec<String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}/{key}");
        found.push(path.clone());
        paths(value, &path, found);
    }
}

#[test]
fn every_setting_of_another_type_is_named() {
    let mut n_checked = 0;
    for name in NAMES {
        let (config, tensors) = parts(name);
        let mut found = Vec::new();
        paths(&config["quantization_config"], "/quantization_config", &mut found);
        for path in found {
            // What torchao's configurations hold is how weights were made, which the tensors say.
            if path.contains("/_data/") {
                continue;
            }
            let mut damaged = config.clone();
            let value = damaged.pointer_mut(&path).unwrap();
            // A list of numbers is of another type wherever something else than sizes of tiles stands.
            *value = if value.is_array() { json!({"7": true}) } else { json!([[]]) };
            let error = load(&damaged, &tensors).unwrap_or_default();
            let key = path.rsplit('/').next().unwrap();
            assert!(error.contains(key), "{name}: {path}: `{error}`");
            n_checked += 1;
        }
    }
    assert!(n_checked > 150, "{n_checked}");
}

#[test]
fn sizes_and_names_that_cannot_be_are_errors() {
    let check = |name: &str, path: &str, value: Value, expected: &str| {
        let (mut config, tensors) = parts(name);
        *config["quantization_config"].pointer_mut(path).unwrap() = value.clone();
        let error = load(&config, &tensors).unwrap_or_default();
        assert!(error.contains(expected), "{name} {path} {value}: `{error}`, not `{expected}`");
    };
    for (value, expected) in
        [(json!(0), "group_size"), (json!(-2), "group_size"), (json!(48), "describe")]
    {
        check("llama_int4_ct", "/config_groups/group_2/weights/group_size", value, expected);
    }
    let weights = "/config_groups/group_2/weights";
    for (key, value, expected) in [
        ("num_bits", json!(3), "3 bits"),
        ("num_bits", json!(8), "describe"),
        ("num_bits", json!(-4), "num_bits"),
        ("type", json!("integer"), "weights.type"),
        ("strategy", json!("rows"), "weights.strategy"),
        ("strategy", json!("tensor"), "describe"),
        ("dynamic", json!(true), "dynamic"),
    ] {
        check("llama_int4_ct", &format!("{weights}/{key}"), value, expected);
    }
    let targets = |group: &str| format!("/config_groups/{group}/targets");
    check("llama_int4_ct", &targets("group_0"), json!(["re:.*(down_proj"]), "group_0.targets");
    // What is in no other group is then in that of all linears.
    check("llama_int4_ct", &targets("group_1"), json!(["re:.*experts.*"]), "describe");
    check("llama_int4_ct", "/config_groups/group_0/weights/actorder", json!("rows"), "actorder");
    check("llama_int4_ct", "/config_groups/group_0/format", json!("marlin-24"), "`marlin-24`");
    check("llama_int4_ct", "/quantization_status", json!("calibration"), "quantization_status");
    check("llama_int4_ct", "/config_groups", json!({}), "`config_groups` does not describe");
    check("llama_int4_ct", "/kv_cache_scheme", json!({"type": "words"}), "kv_cache_scheme.type");
    check("qwen3_fp8", "/activation_scheme", json!("both"), "activation_scheme");
    check("qwen3_fp8", "/weight_block_size", json!([0, 128]), "[0, 128]");
    check("qwen3_fp8", "/quant_method", json!("fp9"), "`fp9`");
    check("llama_nf4_bnb", "/load_in_8bit", json!(true), "load_in_4bit");
    check("llama_nf4_bnb", "/bnb_4bit_quant_type", json!("nf5"), "bnb_4bit_quant_type");
    check("llama_nf4_bnb", "/bnb_4bit_compute_dtype", json!("int4"), "bnb_4bit_compute_dtype");
}

/// Tensors without which a linear means the same as long as the rest agrees.
const OPTIONAL: [&str; 4] = [".g_idx", ".weight_g_idx", ".weight_format", "zero_point"];

#[test]
fn every_tensor_of_a_linear_is_named() {
    let mut n_checked = 0;
    for name in NAMES {
        let (config, tensors) = parts(name);
        let is_float = |ty: TensorType| ["F32", "F16", "BF16"].contains(&ty.to_string().as_str());
        let ends = ["scale", "scale_inv", "scales", "SCB", "absmax", "quant_map", "weight_shape"];
        for (i, tensor) in tensors.iter().enumerate() {
            let is_part = !is_float(tensor.ty) || ends.iter().any(|end| tensor.name.ends_with(end));
            if !tensor.name.contains("layers.0.") || !is_part {
                continue;
            }
            let others = || tensors.iter().enumerate().filter(move |(j, _)| *j != i);
            let without: Vec<Tensor> = others().map(|(_, tensor)| tensor.clone()).collect();
            let is_optional = OPTIONAL.iter().any(|end| tensor.name.ends_with(end));
            let mut check = |what: &str, tensors: &[Tensor]| {
                let error = load(&config, tensors);
                let is_named = error.as_ref().is_some_and(|error| error.contains("layers.0."));
                assert!(
                    is_named || is_optional && error.is_none(),
                    "{} {what}: {error:?}",
                    tensor.name
                );
                n_checked += 1;
            };
            check("left out", &without);
            // The same bytes as numbers of another size.
            let mut damaged = without.clone();
            let (ty, shape) = (TensorType::Bool, vec![tensor.data.len(), 1, 1, 1]);
            damaged.push(Tensor { ty, shape, ..tensor.clone() });
            check("of another type", &damaged);
        }
    }
    assert!(n_checked > 300, "{n_checked}");
}
