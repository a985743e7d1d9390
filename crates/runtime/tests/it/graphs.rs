//! The graph of every architecture's tiny model, as text: what a change of an architecture, of the
//! graph builder or of the fusions does to a forward pass shows as a change of these snapshots.
//!
//! The models are in the repository's `fixtures/archs`. After an intended change, run the test with
//! `INSTA_UPDATE=always` and read the difference before committing it.

use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::{LoadOptions, Model};
use std::path::{Path, PathBuf};

fn archs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/archs")
}

/// The graph of `fixtures/archs/NAME`, after the CPU backend's fusions.
fn graph(name: &str) -> String {
    let backend = CpuBackend::new(Some(1), None).expect("one thread");
    let options = LoadOptions { chunk: Some(8), ..LoadOptions::default() };
    match Model::load(&archs().join(name), &backend, &options) {
        Ok(model) => model.placement().to_string(),
        Err(error) => panic!("{name}: {error}"),
    }
}

#[test]
fn graphs_of_safetensors_models() {
    let mut names: Vec<String> = std::fs::read_dir(archs())
        .expect("the repository has fixtures")
        .map(|entry| entry.expect("a readable folder"))
        .filter(|entry| entry.path().join("config.json").is_file())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert!(names.len() >= 14, "{names:?}");
    for name in names {
        insta::assert_snapshot!(name.clone(), graph(&name));
    }
}

#[test]
fn gguf_and_safetensors_are_one_graph() {
    // The twins differ in the stored type and, as llama's GGUF files permute Q and K, in how ropes
    // pair columns.
    for name in [
        "llama",
        "gemma3_text",
        "gpt2",
        "olmo",
        "olmo2",
        "lfm2",
        "qwen3_5_text",
        "mixtral",
        "qwen3_moe",
        "baichuan",
        "cohere",
        "cohere2",
        "exaone4",
        "glm4",
        "gpt_neox",
        "internlm2",
        "olmo3",
        "seed_oss",
        "smollm3",
        "stablelm",
        "gpt_oss",
        "gpt_oss_mxfp4",
        "olmoe",
        "glm4_moe",
        "minimax_m2",
        "lfm2_moe",
        "ernie4_5_moe",
        "phimoe",
        "qwen3_next",
        "qwen3_5_moe_text",
        "granitemoeshared",
        "hunyuan_v1_moe",
        "llama4",
    ] {
        let hf = graph(name).replace("BF16", "F32").replace("Neox", "Interleaved");
        let gguf = graph(&format!("{name}/model-f32.gguf")).replace("Neox", "Interleaved");
        assert_eq!(hf, gguf, "{name}");
    }
}
