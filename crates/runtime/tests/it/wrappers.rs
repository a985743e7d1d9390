//! Models that read more than text: directories whose settings wrap those of a text model, and GGUF files of the
//! text models alone.

use crate::common::tiny::tiny;
use realizar_formats::{
    Array, Gguf, GgufWriter, SafeTensors, SafeTensorsWriter, Tensor, TensorType,
};
use realizar_runtime::backend::Arithmetic;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::checkpoint::Checkpoint;
use realizar_runtime::{Error, LoadOptions, Model};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/wrappers")
}

fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> T {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// A wrapper around a tiny model, as transformers saves it.
#[derive(Debug, Deserialize)]
struct Case {
    model: String,
    config: Value,
    layers: String,
    others: String,
    parts: Vec<String>,
}

/// The logits of transformers.
#[derive(Debug, Deserialize)]
struct Expected {
    ids: Vec<u32>,
    values: HashMap<usize, Vec<f32>>,
}

/// The logits of positions of the prompt of a tiny model.
fn logits(path: &Path, expected: &Expected) -> Result<Vec<(usize, Vec<f32>)>, Error> {
    let backend = CpuBackend::new(Some(2), None).unwrap();
    let options = LoadOptions { arithmetic: Arithmetic::F32, ..LoadOptions::default() };
    let mut model = Model::load(path, &backend, &options)?;
    let mut positions: Vec<usize> = expected.values.keys().copied().collect();
    positions.sort_unstable();
    let rows = model.logits(&expected.ids, &positions, 256)?;
    Ok(positions.into_iter().zip(rows).collect())
}

fn tensors_of(file: &SafeTensors) -> Vec<Tensor> {
    file.tensors().iter().map(|info| file.tensor(&info.name).unwrap()).collect()
}

/// A directory with these settings, the tiny model's tensors under other names, and one number for each part.
fn directory(
    config: &Value,
    model: &Path,
    name: impl Fn(&str) -> String,
    parts: &[&str],
) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let tensors = tensors_of(&SafeTensors::open(model).unwrap());
    let mut writer = SafeTensorsWriter::new();
    for tensor in &tensors {
        writer.tensor(&name(&tensor.name), tensor.ty, &tensor.shape, &tensor.data).unwrap();
    }
    for part in parts {
        writer.tensor(part, TensorType::F32, &[1], &[0; 4]).unwrap();
    }
    writer.write_file(dir.path().join("model.safetensors")).unwrap();
    dir
}

#[test]
fn a_wrapper_computes_what_its_text_model_does() {
    let cases: Vec<Case> = read(&fixtures().join("wrappers.json"));
    assert!(cases.len() > 35);
    let mut known = HashMap::new();
    for case in cases {
        let bare = tiny(&case.model);
        let expected: Expected = read(&bare.join("expected.json"));
        let wanted =
            known.entry(case.model.clone()).or_insert_with(|| logits(&bare, &expected).unwrap());
        let rename = |name: &str| match name.strip_prefix("model.") {
            Some(rest) => format!("{}{rest}", case.layers),
            None => format!("{}{name}", case.others),
        };
        let parts: Vec<&str> = case.parts.iter().map(String::as_str).collect();
        let dir = directory(&case.config, &bare, rename, &parts);
        let outer = &case.config["model_type"];
        let found = logits(dir.path(), &expected)
            .unwrap_or_else(|error| panic!("{outer} of {}: {error}", case.model));
        assert!(found == *wanted, "{outer} of {}", case.model);
        let left_out = Checkpoint::open(dir.path()).unwrap().left_out().unwrap_or_default();
        let counts = left_out.split('(').filter_map(|part| part.split_once(' ')?.0.parse().ok());
        let counts: Vec<usize> = counts.collect();
        assert_eq!(counts.iter().sum::<usize>(), parts.len(), "{outer}: {left_out}");
    }
}

#[test]
fn text_models_of_wrappers_alone_give_the_logits_of_transformers() {
    for name in ["gemma4_unified", "glm4v", "glm_ocr", "qwen3_vl_moe"] {
        let dir = fixtures().join(name);
        let expected: Expected = read(&dir.join("expected.json"));
        for (position, found) in logits(&dir, &expected).unwrap() {
            let wanted = &expected.values[&position];
            let largest = wanted.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
            for (a, b) in found.iter().zip(wanted) {
                assert!((a - b).abs() < 1e-5 * largest, "{name}, {position}: {a} is not {b}");
            }
        }
    }
}

#[test]
fn the_settings_of_a_text_model_may_have_another_name() {
    let text: Value = read(&tiny("qwen2").join("config.json"));
    let expected: Expected = read(&tiny("qwen2").join("expected.json"));
    let config = json!({
        "model_type": "internvl_chat",
        "llm_config": text,
        "vision_config": {"model_type": "intern_vit_6b"},
    });
    let parts = ["vision_model.embeddings.class_embedding", "mlp1.0.weight"];
    let name = |name: &str| format!("language_model.{name}");
    let dir = directory(&config, &tiny("qwen2"), name, &parts);
    let wanted = logits(&tiny("qwen2"), &expected).unwrap();
    assert_eq!(logits(dir.path(), &expected).unwrap(), wanted);
}

#[test]
fn what_is_missing_of_a_wrapper_is_named() {
    let error = |config: Value| {
        let dir = directory(&config, &tiny("qwen2"), str::to_owned, &[]);
        let expected: Expected = read(&tiny("qwen2").join("expected.json"));
        logits(dir.path(), &expected).unwrap_err().to_string()
    };
    let text = |ty: &str| json!({"model_type": ty, "hidden_size": 32});
    for (config, wanted) in [
        (
            json!({"model_type": "llava", "text_config": text("mamba")}),
            "architecture `mamba`, the text model of `llava`, is not supported",
        ),
        (
            json!({"model_type": "mllama", "text_config": text("mllama_text_model")}),
            "architecture `mllama`, whose text model is `mllama_text_model`, is not supported",
        ),
        // Its text model sees the whole prompt, which the text model alone does not.
        (
            json!({"model_type": "paligemma", "text_config": text("gemma")}),
            "architecture `paligemma`, whose text model is `gemma`, is not supported",
        ),
        (json!({"model_type": "x"}), "architecture `x` is not supported"),
        (json!({"model_type": "llava", "text_config": 7}), "text_config: expected an object"),
    ] {
        let found = error(config);
        assert!(found.contains(wanted), "{found}, not {wanted}");
    }
}

/// The GGUF file of a tiny model under another architecture's name, with further settings.
fn renamed(model: &str, [from, to]: [&str; 2], path: &Path, change: impl Fn(&mut GgufWriter<'_>)) {
    let gguf = Gguf::open(tiny(model).join("model-f32.gguf")).unwrap();
    let tensors: Vec<_> =
        gguf.tensors().iter().map(|info| gguf.tensor(&info.name).unwrap()).collect();
    let mut writer = GgufWriter::new();
    for (key, value) in gguf.metadata().iter() {
        let key = key.replacen(&format!("{from}."), &format!("{to}."), 1);
        if key == "general.architecture" {
            writer.set(&key, to).unwrap();
        } else {
            writer.set(&key, value.clone()).unwrap();
        }
    }
    change(&mut writer);
    for tensor in &tensors {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape, &tensor.data).unwrap();
    }
    writer.write_file(path).unwrap();
}

#[test]
fn the_text_model_of_qwen3_vl_is_run_from_gguf_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    for (model, names) in
        [("qwen3", ["qwen3", "qwen3vl"]), ("qwen3_moe", ["qwen3moe", "qwen3vlmoe"])]
    {
        let expected: Expected = read(&tiny(model).join("expected.json"));
        renamed(model, names, &path, |writer| {
            let sections = Array::from(&[2, 2, 2, 0_i32][..]);
            writer.set(&format!("{}.rope.dimension_sections", names[1]), sections).unwrap();
            writer.set(&format!("{}.n_deepstack_layers", names[1]), 3_u32).unwrap();
        });
        let wanted = logits(&tiny(model).join("model-f32.gguf"), &expected).unwrap();
        assert!(logits(&path, &expected).unwrap() == wanted, "{model}");
    }
}

#[test]
fn a_projector_is_no_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mmproj.gguf");
    renamed("qwen3", ["qwen3", "clip"], &path, |_| {});
    let expected: Expected = read(&tiny("qwen3").join("expected.json"));
    let error = logits(&path, &expected).unwrap_err().to_string();
    let wanted = "architecture `clip` (a projector of images or audio, which has no text model)";
    assert!(error.contains(wanted), "{error}");
}
