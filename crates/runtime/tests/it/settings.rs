//! Settings that files leave out or spell in more than one way.

use crate::common::tiny::tiny;
use realizar_formats::{
    Array, Bytes, Gguf, GgufWriter, SafeTensors, SafeTensorsWriter, Tensor, TensorType, Value,
};
use realizar_runtime::backend::Arithmetic;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::checkpoint::{GgufSettings, HfSettings};
use realizar_runtime::rope::{Rope, RopeScaling};
use realizar_runtime::{Error, LoadOptions, Model};
use serde_json::json;

/// The rope of a GGUF file with these settings, heads of 16 and a context of 64.
fn gguf_rope(settings: &[(&str, Value)]) -> Result<Rope, String> {
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", "llama").unwrap();
    for (key, value) in settings {
        writer.set(&format!("llama.{key}"), value.clone()).unwrap();
    }
    let mut file = Vec::new();
    writer.write(&mut file).unwrap();
    let gguf = Gguf::from_bytes("test.gguf", Bytes::from(file)).unwrap();
    Rope::from_gguf(GgufSettings::new(&gguf), 16, 64).map_err(|error| error.to_string())
}

#[test]
fn rope_scaling_of_gguf_files() {
    let check = |settings: &[(&str, Value)], expected: RopeScaling| {
        assert_eq!(gguf_rope(settings).unwrap().scaling, expected, "{settings:?}");
    };
    let linear = RopeScaling::Linear { factor: 4.0, original_max_seq_len: 64 };
    let (factor, ty) = ("rope.scaling.factor", "rope.scaling.type");
    check(&[], RopeScaling::None);
    check(&[(factor, 4.0_f32.into()), (ty, "linear".into())], linear.clone());
    // A factor without a type is linear; zero stands for none; "none" wins.
    check(&[(factor, 4.0_f32.into())], linear.clone());
    check(&[("rope.scale_linear", 4.0_f32.into())], linear);
    check(&[(factor, 0.0_f32.into())], RopeScaling::None);
    check(&[(factor, 4.0_f32.into()), (ty, "none".into())], RopeScaling::None);
    for (settings, expected) in [
        (
            vec![(ty, "wavelet".into())],
            "test.gguf: rope scaling `wavelet` (`rope.scaling.type`) is not supported (supported: none, linear, yarn, longrope)",
        ),
        (
            vec![(factor, (-1.0_f32).into()), (ty, "linear".into())],
            "test.gguf: llama.rope.scaling.factor: expected a positive number, found -1",
        ),
        (
            vec![("rope.dimension_count", 17_u32.into())],
            "test.gguf: llama.rope.dimension_count: expected an even part of a head, found 17",
        ),
    ] {
        assert_eq!(gguf_rope(&settings).unwrap_err(), expected);
    }
}

#[test]
fn a_default_fills_what_is_missing_and_not_what_is_null() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    std::fs::write(&path, r#"{"given": 1, "sliding_window": null}"#).unwrap();
    let settings = HfSettings::open(&path).unwrap();
    let defaults = [("given", json!(7)), ("sliding_window", json!(4096)), ("eps", json!(0.5))];
    let settings = settings.with_defaults(defaults);
    assert_eq!(settings.usize("given").unwrap(), 1);
    assert_eq!(settings.opt_usize("sliding_window").unwrap(), None);
    assert_eq!(settings.f32("eps").unwrap(), 0.5);
}

#[test]
fn a_context_can_be_stretched_as_a_file_would_ask_for() {
    use realizar_runtime::rope::RopeStretch;
    let backend = CpuBackend::new(Some(1), None).unwrap();
    let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/archs");
    let yarn = fixture.join("llama_yarn");
    let ids: Vec<u32> = (0..100).map(|i| 3 + i * 7 % 250).collect();
    let logits = |path: &std::path::Path, options: &LoadOptions| {
        Model::load(path, &backend, options).and_then(|mut model| model.logits(&ids, &[99], 256))
    };
    let wanted = logits(&yarn, &LoadOptions::default()).unwrap();

    // The same weights with a file that asks for nothing.
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(yarn.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let config = std::fs::read_to_string(yarn.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["rope_parameters"] = json!({"rope_theta": 10000.0, "rope_type": "default"});
    config["max_position_embeddings"] = json!(32);
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let stretched = |rope_stretch| LoadOptions {
        rope_stretch,
        max_seq_len: Some(128),
        ..LoadOptions::default()
    };
    assert_eq!(logits(dir.path(), &stretched(Some(RopeStretch::Yarn(4.0)))).unwrap(), wanted);
    assert_ne!(logits(dir.path(), &stretched(Some(RopeStretch::Linear(4.0)))).unwrap(), wanted);
    let check = |path: &std::path::Path, stretch, expected: &str| {
        let error = logits(path, &stretched(stretch)).unwrap_err().to_string();
        assert_eq!(error, expected);
    };
    let advice = "RoPE scaling can extend it";
    let text = format!("ctx: 128 exceeds the model's context of 32 tokens; {advice}");
    check(dir.path(), None, &text);
    let text = "rope-scaling: the model's rotary embedding is already scaled";
    check(&yarn, Some(RopeStretch::Yarn(4.0)), text);
    // What has a scaling is not advised to take another.
    let options = LoadOptions { max_seq_len: Some(300), ..LoadOptions::default() };
    let error = logits(&yarn, &options).unwrap_err().to_string();
    assert_eq!(error, "ctx: 300 exceeds the model's context of 256 tokens");
    let text = "rope-scaling: the factor must be above 1 and at most 1024, not 0.5";
    check(dir.path(), Some(RopeStretch::Linear(0.5)), text);
}

/// The tiny model from its GGUF file with changed metadata: keys with another value, or with none.
fn gguf_model(model: &str, changes: &[(&str, Option<Value>)]) -> Result<Model, Error> {
    edited_gguf_model(model, changes, &|tensor| (tensor.shape.clone(), tensor.data.to_vec()))
}

/// Shape and data in place of a tensor's own.
type Edit<'a> = &'a dyn Fn(&Tensor) -> (Vec<usize>, Vec<u8>);

/// As [`gguf_model`], with other tensors: `edit` gives shape and data in place of a tensor's own.
fn edited_gguf_model(
    model: &str,
    changes: &[(&str, Option<Value>)],
    edit: Edit<'_>,
) -> Result<Model, Error> {
    let file = Gguf::open(tiny(model).join("model-f32.gguf")).unwrap();
    let tensors: Vec<_> =
        file.tensors().iter().map(|info| file.tensor(&info.name).unwrap()).collect();
    let edited: Vec<_> = tensors.iter().map(edit).collect();
    let mut writer = GgufWriter::new();
    for (key, value) in file.metadata().iter() {
        if !changes.iter().any(|(changed, _)| key == *changed) {
            writer.set(key, value.clone()).unwrap();
        }
    }
    for (key, value) in changes {
        if let Some(value) = value {
            writer.set(key, value.clone()).unwrap();
        }
    }
    for (t, (shape, data)) in tensors.iter().zip(&edited) {
        writer.tensor(&t.name, t.ty, shape, data).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    writer.write_file(&path).unwrap();
    let backend = CpuBackend::new(Some(1), None).unwrap();
    let options = LoadOptions { arithmetic: Arithmetic::F32, ..LoadOptions::default() };
    Model::load(&path, &backend, &options)
}

/// The logits of the tiny model's ids at position 43, with metadata changed as in [`gguf_model`].
fn gguf_logits(model: &str, changes: &[(&str, Option<Value>)]) -> Vec<f32> {
    let ids = std::fs::read_to_string(tiny(model).join("expected.json")).unwrap();
    let ids: serde_json::Value = serde_json::from_str(&ids).unwrap();
    let ids: Vec<u32> = serde_json::from_value(ids["ids"].clone()).unwrap();
    let mut model = gguf_model(model, changes).unwrap();
    model.logits(&ids, &[43], 256).unwrap().remove(0)
}

#[test]
fn a_norm_takes_the_epsilon_of_its_kind() {
    let wanted = gguf_logits("olmo", &[]);
    let other = ("olmo.attention.layer_norm_rms_epsilon", Some(0.1_f32.into()));
    assert_eq!(gguf_logits("olmo", &[other]), wanted);
    let own = ("olmo.attention.layer_norm_epsilon", Some(0.1_f32.into()));
    assert_ne!(gguf_logits("olmo", &[own]), wanted);
    let other = ("llama.attention.layer_norm_epsilon", Some(0.1_f32.into()));
    assert_eq!(gguf_logits("llama", &[other]), gguf_logits("llama", &[]));
}

#[test]
fn a_gemma3_file_without_a_window_sees_everything() {
    // transformers' logits with `full_attention` in every layer, every sixth token.
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/settings");
    let file = std::fs::read_to_string(file.join("expected.json")).unwrap();
    let file: serde_json::Value = serde_json::from_str(&file).unwrap();
    let variants = file["variants"].as_array().unwrap();
    let variant = variants.iter().find(|v| v["name"] == "no_windows").unwrap();
    let wanted: Vec<f32> = serde_json::from_value(variant["logits"]["43"].clone()).unwrap();
    let found = gguf_logits("gemma3_text", &[("gemma3.attention.sliding_window", None)]);
    let found: Vec<f32> = found.into_iter().step_by(6).collect();
    let largest = wanted.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
    assert_eq!(found.len(), wanted.len());
    for (a, b) in found.iter().zip(&wanted) {
        assert!((a - b).abs() < 1e-5 * largest, "{a} is not {b}");
    }
}

#[test]
fn settings_that_would_change_the_result_are_refused_by_name() {
    let backend = CpuBackend::new(Some(1), None).unwrap();
    let check = |model: &str, key: &str, value: serde_json::Value, expected: Option<&str>| {
        let dir = tempfile::tempdir().unwrap();
        let source = tiny(model);
        std::fs::copy(source.join("model.safetensors"), dir.path().join("model.safetensors"))
            .unwrap();
        let config = std::fs::read_to_string(source.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
        config[key] = value;
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let loaded = Model::load(dir.path(), &backend, &LoadOptions::default());
        match (loaded, expected) {
            (Ok(_), None) => {}
            (Err(error), Some(expected)) => {
                let wanted = format!("config.json: {key}: expected {expected}");
                assert!(error.to_string().ends_with(&wanted), "{error}, not {wanted}");
            }
            (loaded, expected) => panic!("{model} {key}: {loaded:?}, not {expected:?}"),
        }
    };
    let one = "1, as architecture llama does not apply it, found 0.22";
    check("llama", "residual_multiplier", json!(0.22), Some(one));
    check("llama", "residual_multiplier", json!(1.0), None);
    check("llama", "residual_multiplier", json!(null), None);
    let off = "null, false or 0, as architecture llama does not apply it, found 8";
    check("llama", "num_local_experts", json!(8), Some(off));
    check("llama", "num_local_experts", json!(0), None);
    let never = "nothing, as architecture llama does not apply it, found 0.0078125";
    check("llama", "attention_multiplier", json!(0.007_812_5), Some(never));
    let off = "null, false or 0, as architecture qwen3 does not apply it, found 30.0";
    check("qwen3", "final_logit_softcapping", json!(30.0), Some(off));
    check("qwen3_moe", "num_experts_per_tok", json!(9), Some("some of 5 experts, found 9"));
    check("qwen3_moe", "decoder_sparse_step", json!(0), Some("a positive number, found 0"));
    let counts = "5, as `num_local_experts` says, found 6";
    check("qwen3_moe", "num_experts", json!(6), Some(counts));
    check("qwen3_moe", "num_experts", json!(5), None);
    // What its family reads, or passes over for a reason, is no such setting.
    check("gemma2", "final_logit_softcapping", json!(20.0), None);
    check("gemma3_text", "attn_logit_softcapping", json!(50.0), None);
    check("llama", "made_up", json!(0.5), None);
}

#[test]
fn float_tensors_of_a_quantized_model_are_refused() {
    let backend = CpuBackend::new(Some(1), None).unwrap();
    for (quantized, plain, method) in [
        ("llama_gptq", "llama", "gptq"),
        ("llama_awq", "llama", "awq"),
        ("llama_fp8", "llama", "compressed-tensors"),
        ("qwen3_fp8", "qwen3", "fp8"),
        ("qwen3_nvfp4_mo", "qwen3", "modelopt"),
        ("llama_nf4_bnb", "llama", "bitsandbytes"),
        ("llama_int8_ao", "llama", "torchao"),
        ("gpt_oss_mxfp4", "gpt_oss", "mxfp4"),
    ] {
        let config = |model: &str| -> serde_json::Value {
            let text = std::fs::read_to_string(tiny(model).join("config.json")).unwrap();
            serde_json::from_str(&text).unwrap()
        };
        let dir = tempfile::tempdir().unwrap();
        let tensors = tiny(plain).join("model.safetensors");
        std::fs::copy(tensors, dir.path().join("model.safetensors")).unwrap();
        let mut settings = config(plain);
        settings["quantization_config"] = config(quantized)["quantization_config"].clone();
        std::fs::write(dir.path().join("config.json"), settings.to_string()).unwrap();
        let loaded = Model::load(dir.path(), &backend, &LoadOptions::default());
        let error = loaded.map(drop).unwrap_err().to_string();
        let expected = format!(
            "quantization_config.quant_method: expected nothing, as no tensor is quantized by it, \
             found \"{method}\""
        );
        assert!(error.ends_with(&expected), "{quantized}: {error}");
    }
}

#[test]
fn metadata_that_would_change_the_result_is_refused_by_name() {
    let check = |key: &str, value: Value, expected: Option<&str>| {
        let result = gguf_model("llama", &[(key, Some(value))]).map(|_| ());
        match (result, expected) {
            (Ok(()), None) => {}
            (Err(error), Some(expected)) => {
                let wanted = format!(
                    "m.gguf: {key}: expected {expected}, as architecture llama does not apply it, "
                );
                assert!(error.to_string().contains(&wanted), "{error}, not {wanted}");
            }
            (result, expected) => panic!("{key}: {result:?}, not {expected:?}"),
        }
    };
    check("llama.residual_scale", 0.22_f32.into(), Some("1"));
    check("llama.residual_scale", 1.0_f32.into(), None);
    check("llama.attention.scale", 0.5_f32.into(), Some("null, false or 0"));
    check("llama.attention.scale", 0.0_f32.into(), None);
    check("llama.attention.shared_kv_layers", 2_u32.into(), Some("null, false or 0"));
    check("llama.made_up", "text".into(), None);
    check("granite.residual_scale", 0.22_f32.into(), None);
}

#[test]
fn settings_of_experts_are_checked() {
    let check = |model: &str, key: &str, value: u32, expected: &str| {
        let key = format!("{model}.{key}");
        let folder = if model == "llama" { "mixtral" } else { "qwen2_moe" };
        let error = gguf_model(folder, &[(&key, Some(value.into()))]).unwrap_err().to_string();
        assert!(error.ends_with(&format!("{key}: expected {expected}")), "{error}");
    };
    check("llama", "expert_used_count", 5, "some of 4 experts, found 5");
    check("llama", "expert_used_count", 0, "some of 4 experts, found 0");
    check("llama", "expert_count", 4000, "at most 1024 experts, found 4000");
    let one = "1, as architecture llama does not apply it, found 2";
    check("llama", "expert_gating_func", 2, one);
    let dim = 1 << 25;
    let size = "a size of a model, found 33554432";
    check("qwen2moe", "expert_feed_forward_length", dim, size);
    check("qwen2moe", "expert_shared_feed_forward_length", dim, size);
    // Without experts the layers are dense.
    let error = gguf_model("mixtral", &[("llama.expert_count", None)]).unwrap_err().to_string();
    assert!(error.contains("tensor `blk.0.ffn_up.weight` is missing"), "{error}");
}

#[test]
fn a_matrix_of_one_row_may_be_a_vector() {
    let logits = |edit: Edit<'_>| {
        let mut model = edited_gguf_model("qwen2_moe", &[], edit).unwrap();
        model.logits(&[3, 94, 256, 18], &[3], 256).unwrap()
    };
    let as_is = logits(&|tensor| (tensor.shape.clone(), tensor.data.to_vec()));
    let squeezed = logits(&|tensor| {
        let shape = tensor.shape.iter().copied().filter(|&n| n != 1).collect();
        (shape, tensor.data.to_vec())
    });
    assert_eq!(squeezed, as_is);
}

#[test]
fn layers_may_differ_in_their_hidden_columns() {
    const KEY: &str = "llama.feed_forward_length";
    // Of 64 hidden columns the last 24 of layer 1 are zero in one file and left out in the other.
    let kept = 40;
    let is_edited = |tensor: &Tensor, leaf: &str| tensor.name == format!("blk.1.{leaf}.weight");
    let logits = |changes: &[(&str, Option<Value>)], leave_out: bool| {
        let edit = |tensor: &Tensor| {
            let (mut shape, mut data) = (tensor.shape.clone(), tensor.data.to_vec());
            let n_bytes = shape.last().unwrap() * size_of::<f32>(); // of a row
            if is_edited(tensor, "ffn_gate") || is_edited(tensor, "ffn_up") {
                data[kept * n_bytes..].fill(0);
                if leave_out {
                    data.truncate(kept * n_bytes);
                    shape[0] = kept;
                }
            } else if is_edited(tensor, "ffn_down") {
                let n_kept = kept * size_of::<f32>();
                data.chunks_exact_mut(n_bytes).for_each(|row| row[n_kept..].fill(0));
                if leave_out {
                    data =
                        data.chunks_exact(n_bytes).flat_map(|row| row[..n_kept].to_vec()).collect();
                    shape[1] = kept;
                }
            }
            (shape, data)
        };
        let model = edited_gguf_model("llama", changes, &edit);
        model.and_then(|mut model| model.logits(&[3, 94, 256, 18], &[3], 256))
    };
    let list = |numbers: &[u32]| [(KEY, Some(Value::Array(Array::from(numbers))))];
    let wanted = logits(&[], false).unwrap();
    assert_ne!(
        gguf_model("llama", &[]).unwrap().logits(&[3, 94, 256, 18], &[3], 256).unwrap(),
        wanted
    );
    assert_eq!(logits(&list(&[64; 4]), false).unwrap(), wanted);
    let found = logits(&list(&[64, 40, 64, 64]), true).unwrap();
    let largest = wanted[0].iter().fold(0.0_f32, |m, x| m.max(x.abs()));
    for (a, b) in found[0].iter().zip(&wanted[0]) {
        assert!((a - b).abs() < 1e-5 * largest, "{a} is not {b}");
    }
    let error = logits(&list(&[64, 40, 64]), true).unwrap_err().to_string();
    let text = format!("{KEY}: expected a number for each of 4 layers, found a list of 3");
    assert!(error.ends_with(&text), "{error}");
}

#[test]
fn the_text_model_of_a_multimodal_directory_is_run() {
    let source = tiny("gemma3_text");
    let config = std::fs::read_to_string(source.join("config.json")).unwrap();
    let text: serde_json::Value = serde_json::from_str(&config).unwrap();
    let backend = CpuBackend::new(Some(1), None).unwrap();
    let logits = |path: &std::path::Path| {
        let model = Model::load(path, &backend, &LoadOptions::default());
        model.and_then(|mut model| model.logits(&[3, 94, 256, 18], &[3], 256))
    };
    let wanted = logits(&source).unwrap();
    let file = SafeTensors::open(&source).unwrap();
    for (layers, others, part) in [
        ("model.language_model.", "", "model.vision_tower.patches.weight"),
        ("language_model.model.", "language_model.", "multi_modal_projector.norm.weight"),
    ] {
        let write = |config: serde_json::Value, part: &str| {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
            let tensors: Vec<_> =
                file.tensors().iter().map(|info| file.tensor(&info.name).unwrap()).collect();
            let mut writer = SafeTensorsWriter::new();
            for tensor in &tensors {
                let name = match tensor.name.strip_prefix("model.") {
                    Some(rest) => format!("{layers}{rest}"),
                    None => format!("{others}{}", tensor.name),
                };
                writer.tensor(&name, tensor.ty, &tensor.shape, &tensor.data).unwrap();
            }
            writer.tensor(part, TensorType::F32, &[1], &[0; 4]).unwrap();
            writer.write_file(dir.path().join("model.safetensors")).unwrap();
            dir
        };
        let whole = json!({
            "model_type": "gemma3",
            "text_config": text,
            "vision_config": {"hidden_size": 8},
            "image_token_index": 7,
        });
        assert_eq!(logits(write(whole.clone(), part).path()).unwrap(), wanted, "{layers}");
        let check = |config: serde_json::Value, part: &str, expected: &str| {
            let error = logits(write(config, part).path()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}, not {expected}");
        };
        check(whole.clone(), "speech_tower.x", "tensor `speech_tower.x` (1 in all) is not part of");
        let mut scaled = whole.clone();
        scaled["text_config"]["residual_multiplier"] = json!(0.5);
        check(scaled, part, "config.json: text_config.residual_multiplier: expected 1, as");
        let mut quantized = whole;
        quantized["quantization_config"] = json!({"quant_method": "made_up"});
        check(
            quantized,
            part,
            "quantization method `made_up` (`quant_method`) is not supported (supported: awq, ",
        );
    }
}
