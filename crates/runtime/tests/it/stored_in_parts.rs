//! Directories whose linears lie in several tensors: quants or FP8, and planes of scales.

use crate::common::gpus::gpus;
use crate::common::tiny::tiny;
use realizar_formats::{SafeTensors, SafeTensorsWriter};
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::backend::{Arithmetic, Backend, Phase};
use realizar_runtime::checkpoint::Checkpoint;
use realizar_runtime::{Chunk, DeviceLayers, LoadOptions, Model, Outputs};
use serde_json::{Value, json};
use std::path::Path;

/// The tiny models.
const NAMES: [&str; 21] = [
    "llama_awq",
    "llama_fp8",
    "llama_fp8_ao",
    "llama_gptq",
    "llama_int4_ao",
    "llama_int4_ct",
    "llama_int8_ao",
    "llama_nf4_bnb",
    "olmo2_gptq",
    "olmo_gptq",
    "phi3_gptq",
    "qwen2_fp4_bnb",
    "qwen2_gptq",
    "qwen2_int4_ct",
    "qwen2_int8_bnb",
    "qwen2_int8_ct",
    "qwen3_e5m2",
    "qwen3_fp4_ct",
    "qwen3_fp8",
    "qwen3_moe_fp4_ct",
    "qwen3_nvfp4_mo",
];

/// Logits of a prompt's last row and of decode rows.
fn logits(path: &Path, device: &dyn Backend, arithmetic: Arithmetic) -> Vec<f32> {
    let options = LoadOptions { arithmetic, max_seq_len: Some(64), ..LoadOptions::default() };
    let mut model = Model::load(path, device, &options).unwrap();
    let runner = model.runner();
    let seq = runner.new_sequence();
    let tokens: Vec<u32> = (0..40).map(|i| 3 + i * i * 7 % 250).collect();
    let (prompt, generated) = tokens.split_at(34);
    let chunks = std::iter::once((prompt, Phase::Prefill))
        .chain(generated.chunks(1).map(|token| (token, Phase::Decode)));
    let mut rows = Vec::new();
    for (tokens, phase) in chunks {
        let step = Chunk { seq: &seq, rows: tokens.into(), phase, outputs: Outputs::Last };
        rows.extend_from_slice(runner.step(&[step]).unwrap().row(0, 0));
    }
    runner.remove(seq);
    rows
}

/// The default arithmetic on every tier and GPU is close to F32; what F32 is close to is the matter
/// of `cargo xtask parity`.
#[test]
fn the_default_arithmetic_is_close_to_f32_everywhere() {
    let tiers = realizar_kernels_cpu::Tier::available().map(|tier| tier.to_string());
    let cpu = |tier: &str| -> Box<dyn Backend> {
        Box::new(CpuBackend::new(Some(2), Some(tier)).unwrap())
    };
    let mut devices: Vec<Box<dyn Backend>> = tiers.map(|tier| cpu(&tier)).collect();
    devices.push(cpu("amx-bf16-software"));
    devices.extend(gpus());
    for name in NAMES {
        let path = tiny(name);
        let expected = logits(&path, &*devices[0], Arithmetic::F32);
        let peak = expected.iter().fold(0.0_f32, |peak, v| peak.max(v.abs()));
        for device in &devices {
            for (arithmetic, bound) in [(Arithmetic::F32, 1e-5), (Arithmetic::Auto, 3e-2)] {
                let found = logits(&path, &**device, arithmetic);
                let apart = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
                let apart = apart.fold(0.0_f32, f32::max) / peak;
                assert!(apart <= bound, "{name} {arithmetic:?} on {}: {apart:e}", device.name());
            }
        }
    }
}

#[test]
fn nothing_is_converted_before_it_is_read() {
    for name in NAMES {
        let checkpoint = Checkpoint::open(&tiny(name)).unwrap();
        let (mut n_made, mut n_plain) = (0, 0);
        for tensor in checkpoint.tensor_names().map(|name| checkpoint.tensor(name).unwrap()) {
            let n_bytes = tensor.ty.size_of_shape(&tensor.shape).unwrap();
            assert_eq!(tensor.data.len(), n_bytes, "{}", tensor.name);
            let is_plain = name == "qwen3_moe_fp4_ct" && tensor.name.contains("self_attn");
            let is_linear = tensor.name.contains("_proj.weight") && !is_plain;
            assert_eq!(tensor.data.is_made(), !is_linear, "{}", tensor.name);
            let read = tensor.data.for_once();
            assert_eq!(read[..], tensor.data[..], "{}", tensor.name);
            *(if is_linear { &mut n_made } else { &mut n_plain }) += 1;
        }
        assert!(n_made >= 8 && n_plain >= 2, "{name}: {n_made}, {n_plain}");
    }
}

#[test]
fn the_memory_that_is_needed_is_what_is_taken() {
    let cpu = CpuBackend::new(Some(1), None).unwrap();
    for name in NAMES {
        for arithmetic in [Arithmetic::F32, Arithmetic::Auto] {
            let options = LoadOptions { arithmetic, ..LoadOptions::default() };
            let devices = [DeviceLayers::rest(&cpu)];
            let needed = Model::memory_needed(&tiny(name), &devices, &options).unwrap();
            let model = Model::load(&tiny(name), &cpu, &options).unwrap();
            assert_eq!(model.memory(), needed, "{name}");
        }
    }
}

/// Settings in a file of their own, as earlier releases of ModelOpt exported them.
#[test]
fn settings_of_modelopt_may_be_beside_the_others() {
    let (dir, name) = (tempfile::tempdir().unwrap(), "qwen3_nvfp4_mo");
    let text = std::fs::read_to_string(tiny(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config.as_object_mut().unwrap().remove("quantization_config");
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let tensors = dir.path().join("model.safetensors");
    std::fs::copy(tiny(name).join("model.safetensors"), tensors).unwrap();
    let cpu = CpuBackend::new(Some(2), None).unwrap();
    let load = || Model::load(dir.path(), &cpu, &LoadOptions::default());
    let error = load().err().unwrap().to_string();
    assert!(error.contains("_proj.weight"), "{error}");
    let quantization = json!({ "quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": "FP8" });
    let of_modelopt = json!({ "producer": { "name": "modelopt" }, "quantization": quantization });
    std::fs::write(dir.path().join("hf_quant_config.json"), of_modelopt.to_string()).unwrap();
    load().unwrap();
    let found = logits(dir.path(), &cpu, Arithmetic::F32);
    assert_eq!(found, logits(&tiny(name), &cpu, Arithmetic::F32));
}

/// Opens a copy of a tiny model with other settings of its quantization, without the tensors that
/// end in `left_out`.
fn error(name: &str, change: impl Fn(&mut Value), left_out: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let config = std::fs::read_to_string(tiny(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    change(&mut config["quantization_config"]);
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let source = SafeTensors::open(tiny(name)).unwrap();
    let kept = source.tensors().iter().filter(|info| !info.name.ends_with(left_out));
    let tensors: Vec<_> = kept.map(|info| source.tensor(&info.name).unwrap()).collect();
    let mut file = SafeTensorsWriter::new();
    for tensor in &tensors {
        file.tensor(&tensor.name, tensor.ty, &tensor.shape, &tensor.data).unwrap();
    }
    file.write_file(dir.path().join("model.safetensors")).unwrap();
    let cpu = CpuBackend::new(Some(1), None).unwrap();
    Model::load(dir.path(), &cpu, &LoadOptions::default()).err().unwrap().to_string()
}

#[test]
fn what_is_not_supported_is_named() {
    let check = |found: String, expected: &[&str]| {
        assert!(expected.iter().all(|text| found.contains(text)), "{found}, not {expected:?}");
    };
    let none = "no such tensor";
    let tiles = |tile: Value| move |q: &mut Value| q["weight_block_size"] = tile.clone();
    check(
        error("qwen3_fp8", tiles(json!([128, 100])), none),
        &["layers.0.mlp.down_proj", "[64, 320] with scales [1, 3] for tiles of 128 x 100"],
    );
    check(error("qwen3_fp8", tiles(json!([128])), none), &["FP8 with tiles of [128]"]);
    check(
        error("qwen3_fp8", |_| {}, "layers.1.self_attn.q_proj.weight_scale_inv"),
        &["model.layers.1.self_attn.q_proj.weight_scale_inv"],
    );
    let algorithm = |q: &mut Value| q["quant_algo"] = json!("W4A8_AWQ");
    check(error("qwen3_nvfp4_mo", algorithm, none), &["ModelOpt's `W4A8_AWQ` (`quant_algo`)"]);
    let groups = |q: &mut Value| {
        (q["quant_algo"], q["group_size"]) = (json!("NVFP4"), json!(32));
    };
    check(error("qwen3_nvfp4_mo", groups, none), &["quantization_config.group_size", "16", "32"]);
    check(
        error("qwen3_nvfp4_mo", |_| {}, "layers.1.mlp.up_proj.weight_scale_2"),
        &["model.layers.1.mlp.up_proj.weight_scale_2"],
    );
    let format = |q: &mut Value| q["format"] = json!("marlin-24");
    check(error("llama_fp8", format, none), &["compressed-tensors", "`marlin-24`"]);
    let ints = |q: &mut Value| q["config_groups"]["group_0"]["weights"]["type"] = json!("int");
    check(error("llama_fp8", ints, none), &["FP8, which `config_groups` does not describe"]);
    let version = |q: &mut Value| q["version"] = json!("gemv");
    check(error("llama_awq", version, none), &["AWQ in the layout `gemv`"]);
    let bits = |q: &mut Value| q["bits"] = json!(3);
    check(error("llama_awq", bits, none), &["AWQ of 3 bits"]);
    check(error("llama_gptq", bits, none), &["GPTQ of 3 bits"]);
    let format = |q: &mut Value| q["checkpoint_format"] = json!("marlin");
    check(error("llama_gptq", format, none), &["GPTQ in the format `marlin`"]);
    // Groups of 64 would be half as many.
    let groups = |q: &mut Value| q["group_size"] = json!(64);
    check(
        error("olmo2_gptq", groups, none),
        &["down_proj.scales`: expected shape [3, 64], found [5, 64]"],
    );
    check(
        error("llama_fp8", |_| {}, "layers.0.mlp.up_proj.weight_scale"),
        &["model.layers.0.mlp.up_proj.weight_scale"],
    );
}
