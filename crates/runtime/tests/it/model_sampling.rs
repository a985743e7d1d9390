//! The sampling settings that a model's files bring, in both formats.

use crate::common::tiny::tiny;
use realizar_formats::{Gguf, GgufWriter};
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::{Error, LoadOptions, Model, ModelOutput};
use std::path::{Path, PathBuf};

fn load(path: &Path, output: ModelOutput) -> Result<Model, Error> {
    let options = LoadOptions { output, ..LoadOptions::default() };
    Model::load(path, &CpuBackend::new(Some(1), None).unwrap(), &options)
}

/// The tiny llama as a directory, with this `generation_config.json`.
fn directory(dir: &Path, generation: &str) -> PathBuf {
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(tiny("llama").join(name), dir.join(name)).unwrap();
    }
    std::fs::write(dir.join("generation_config.json"), generation).unwrap();
    dir.to_owned()
}

/// The tiny llama as a GGUF file, with this temperature.
fn file(dir: &Path, temp: f32) -> PathBuf {
    let source = Gguf::open(tiny("llama").join("model-f32.gguf")).unwrap();
    let infos = source.tensors().iter();
    let tensors: Vec<_> = infos.map(|info| source.tensor(&info.name).unwrap()).collect();
    let mut writer = GgufWriter::new();
    for (key, value) in source.metadata().iter() {
        writer.set(key, value.clone()).unwrap();
    }
    writer.set("general.sampling.temp", temp).unwrap();
    for tensor in &tensors {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape, &tensor.data).unwrap();
    }
    let path = dir.join("m.gguf");
    writer.write_file(&path).unwrap();
    path
}

#[test]
fn a_model_brings_its_sampling() {
    let dir = tempfile::tempdir().unwrap();
    let default = SamplingParams::default();
    assert_eq!(
        (default.temperature, default.top_k, default.top_p, default.min_p),
        (0.8, 40, 0.95, 0.05)
    );
    let warm = SamplingParams { temperature: 0.6, ..default.clone() };
    let generation = r#"{"temperature": 0.6, "eos_token_id": 2}"#;
    for (path, want) in [
        (tiny("llama").join("model-f32.gguf"), &default),
        (tiny("llama"), &default),
        (file(dir.path(), 0.6), &warm),
        (directory(dir.path(), generation), &warm),
    ] {
        let model = load(&path, ModelOutput::Logits).unwrap();
        assert_eq!(model.sampling(), want, "{}", path.display());
    }
}

#[test]
fn sampling_out_of_range_is_an_error_of_models_that_generate() {
    let dir = tempfile::tempdir().unwrap();
    for (path, want) in [
        (file(dir.path(), -1.0), "m.gguf: general.sampling.temp: expected from 0 to 100, found -1"),
        (
            directory(dir.path(), r#"{"top_p": 2}"#),
            "generation_config.json: top_p: expected above 0 and at most 1, found 2",
        ),
    ] {
        let error = load(&path, ModelOutput::Logits).unwrap_err().to_string();
        assert!(error.ends_with(want), "{error}");
        let model = load(&path, ModelOutput::Embeddings).unwrap();
        assert_eq!(*model.sampling(), SamplingParams::default());
    }
}
