//! Models that bring a layer for multi-token prediction: what it drafts, and that no answer depends on it.

use crate::common::gpus::gpus;
use crate::common::requests::{
    Answer, CONTEXT, alone, collect, cpus, idle_stats, request, serving, submit,
};
use realizar_formats::{Gguf, GgufWriter};
use realizar_quant::{BlockType, quantize};
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::backend::{Arithmetic, Backend};
use realizar_runtime::engine::{Engine, EngineOptions, Request};
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::{DeviceLayers, DraftHead, GenerateParams, LoadOptions, Model};
use serde_json::Value;
use std::path::{Path, PathBuf};

const MODELS: [&str; 4] = ["qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "glm4_moe"];
/// Without a GGUF twin: llama.cpp's converter leaves the layer out.
const HF_ONLY: [&str; 1] = ["deepseek_v3_draft"];

fn folder(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/drafts")).join(name)
}

fn file(name: &str) -> PathBuf {
    folder(name).join("model-f32.gguf")
}

fn load(device: &dyn Backend, path: &Path, options: LoadOptions) -> Model {
    let options = LoadOptions { max_seq_len: Some(CONTEXT), chunk: Some(48), ..options };
    Model::load(path, device, &options).unwrap()
}

fn drafting(kv_tokens: Option<usize>) -> LoadOptions {
    LoadOptions { draft_head: DraftHead::On, ..serving(kv_tokens) }
}

/// The CPU with two threads, the first GPU if there is one, and the interpreter of CUDA kernels where it is built.
fn devices() -> impl Iterator<Item = Box<dyn Backend>> {
    let cpu: Box<dyn Backend> = Box::new(CpuBackend::new(Some(2), None).unwrap());
    let gpus = gpus().into_iter().enumerate().filter(|(i, _)| *i != 1).map(|(_, gpu)| gpu);
    std::iter::once(cpu).chain(gpus)
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    numbers(value).into_iter().map(|x| x as u32).collect()
}

fn likeliest(row: &[f32]) -> u32 {
    (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32
}

#[test]
fn what_is_drafted_is_what_the_reference_drafts() {
    for name in MODELS.into_iter().chain(HF_ONLY).chain(["copying"]) {
        let has_twin = file(name).is_file();
        assert_eq!(has_twin, !HF_ONLY.contains(&name), "{name}");
        let expected = std::fs::read_to_string(folder(name).join("expected.json")).unwrap();
        let expected: Value = serde_json::from_str(&expected).unwrap();
        let prompt = ids(&expected["ids"]);
        for device in devices() {
            // Devices differ in their kernels, not in what they are given.
            let is_cpu = device.name().starts_with("cpu");
            let files = match (has_twin, is_cpu) {
                (true, true) => &["model-f32.gguf", ""][..],
                (true, false) => &["model-f32.gguf"],
                (false, _) => &[""],
            };
            let chunks = if is_cpu { &[256, 7, 1][..] } else { &[29] };
            for file in files {
                let options = LoadOptions {
                    arithmetic: Arithmetic::F32,
                    draft_head: DraftHead::On,
                    ..LoadOptions::default()
                };
                let mut model = Model::load(&folder(name).join(file), &*device, &options).unwrap();
                for &chunk in chunks {
                    let case = format!("{name}/{file} on {}, chunks of {chunk}", device.name());
                    let n = expected["drafts"].as_array().unwrap().len();
                    let rows = model.draft_logits(&prompt, n, chunk).unwrap();
                    let drafts: Vec<u32> = rows.iter().map(|row| likeliest(row)).collect();
                    assert_eq!(drafts, ids(&expected["drafts"]), "{case}");
                    for (row, expected) in rows.iter().zip(expected["logits"].as_array().unwrap()) {
                        let expected = numbers(expected);
                        let largest = expected.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                        let error = row.iter().zip(&expected).map(|(a, b)| (a - b).abs());
                        let error = error.fold(0.0, f32::max) / largest;
                        assert!(error <= 1e-3, "{case}: {error}");
                    }
                }
            }
        }
    }
}

/// The model with matrices of Q8_0, whose activations are rounded in other ways for prompts and for output rows.
fn quantized(name: &str, path: &Path) {
    let source = Gguf::open(folder(name).join("model-f32.gguf")).unwrap();
    let mut tensors = Vec::new();
    for info in source.tensors() {
        let tensor = source.tensor(&info.name).unwrap();
        let is_matrix = tensor.shape.len() == 2 && !info.name.contains("conv1d");
        let (ty, data) = match is_matrix && tensor.shape[1].is_multiple_of(32) {
            true => {
                let values: Vec<f32> = floats(&tensor.data);
                let mut data = vec![0; BlockType::Q8_0.row_bytes(values.len()).unwrap()];
                quantize(BlockType::Q8_0, &values, &mut data).unwrap();
                (BlockType::Q8_0, data)
            }
            false => (BlockType::F32, tensor.data.to_vec()),
        };
        tensors.push((info.name.clone(), ty, tensor.shape.clone(), data));
    }
    let mut gguf = GgufWriter::new();
    for (key, value) in source.metadata().iter() {
        gguf.set(key, value.clone()).unwrap();
    }
    for (name, ty, shape, data) in &tensors {
        gguf.tensor(name, *ty, shape, data).unwrap();
    }
    gguf.write_file(path).unwrap();
}

fn floats(data: &[u8]) -> Vec<f32> {
    data.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect()
}

/// Whether the answers of an engine are those that requests get alone, from a model without the layer.
fn check_answers(device: &dyn Backend, path: &Path, n: usize) {
    let case = format!("{} on {}", path.display(), device.name());
    let mut model = load(device, path, LoadOptions::default());
    let wanted: Vec<Answer> = (0..n).map(|i| alone(&mut model, &request(i), 0)).collect();
    for (kv_tokens, lookup_tokens) in [(None, 0), (Some(320), 3)] {
        let options =
            EngineOptions { lookup_tokens, draft_always: true, ..EngineOptions::default() };
        let engine = Engine::start(load(device, path, drafting(kv_tokens)), options).unwrap();
        for round in 0..2 {
            let pending: Vec<_> = (0..n).map(|i| submit(&engine, request(i))).collect();
            for (i, (_ticket, events)) in pending.iter().enumerate() {
                let got = collect(1, events).0;
                assert_eq!(got, wanted[i..=i], "{case}, {kv_tokens:?}: round {round}, request {i}");
            }
        }
        let stats = idle_stats(&engine);
        assert_eq!(stats.kv_used_pages, 0, "{case}");
        assert!(stats.prefix_hits > 100, "{case}: {stats:?}");
        assert_eq!(stats.preemptions > 0, kv_tokens.is_some(), "{case}: {stats:?}");
        assert!(stats.drafts_by_head.drafted > 0, "{case}: {stats:?}");
        let of_sources = [stats.drafts_by_lookup, stats.drafts_by_model, stats.drafts_by_head];
        let sum: u64 = of_sources.iter().map(|counts| counts.drafted).sum();
        assert_eq!(sum, stats.draft_tokens, "{case}");
        let sum: u64 = of_sources.iter().map(|counts| counts.accepted).sum();
        assert_eq!(sum, stats.accepted_tokens, "{case}");
    }
}

#[test]
fn answers_are_those_without_drafts() {
    for name in MODELS {
        // The interpreter of CUDA kernels takes long.
        for device in devices().take(2) {
            let n = if device.name().starts_with("cpu") { 24 } else { 8 };
            check_answers(&*device, &file(name), n);
        }
    }
}

#[test]
fn answers_are_those_without_drafts_where_prompts_have_another_arithmetic() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    quantized("qwen3_5_text", &path);
    for device in cpus() {
        check_answers(&device, &path, 12);
    }
}

/// `n` greedy tokens after a prompt.
fn greedy(prompt: Vec<u32>, n: usize) -> Request {
    let params = GenerateParams {
        sampling: Some(SamplingParams::greedy()),
        max_tokens: Some(n),
        ignore_eos: true,
        ..GenerateParams::default()
    };
    Request::new(prompt, params)
}

#[test]
fn a_layer_that_repeats_the_model_is_always_right() {
    for device in devices() {
        let case = device.name();
        let mut model = load(&*device, &file("copying"), LoadOptions::default());
        let draft_tokens = 3;
        let options = EngineOptions { draft_tokens, ..EngineOptions::default() };
        let engine =
            Engine::start(load(&*device, &file("copying"), drafting(None)), options).unwrap();
        for i in 0..3 {
            let request =
                Request { n: 2, ..greedy((0..40).map(|k| 5 + k * (i + 3)).collect(), 61) };
            let (_ticket, events) = submit(&engine, request.clone());
            let wanted = alone(&mut model, &request, 0);
            assert_eq!(collect(2, &events).0, [wanted.clone(), wanted], "{case}");
        }
        let counts = idle_stats(&engine).drafts_by_head;
        assert_eq!(counts.drafted, counts.accepted, "{case}");
        // Of four tokens three are drafted where all are right, but for the first steps of an answer.
        assert!(counts.accepted >= 6 * 40, "{case}: {counts:?}");
    }
}

#[test]
fn the_layer_is_loaded_where_it_is_wanted_and_there() {
    let cpu = CpuBackend::new(Some(1), None).unwrap();
    let has_layer = |name: &str, draft_head| {
        let options = LoadOptions { draft_head, ..LoadOptions::default() };
        let needed = Model::memory_needed(&file(name), &[DeviceLayers::rest(&cpu)], &options);
        Model::load(&file(name), &cpu, &options).map(|model| {
            assert_eq!(model.memory(), needed.unwrap(), "{name}");
            model.draft_bytes().is_some()
        })
    };
    assert!(!has_layer("glm4_moe", DraftHead::Off).unwrap());
    assert!(has_layer("glm4_moe", DraftHead::Auto).unwrap());
    let plain = "../archs/qwen3_5_text";
    assert!(!has_layer(plain, DraftHead::Auto).unwrap());
    let error = has_layer(plain, DraftHead::On).unwrap_err().to_string();
    assert!(error.contains("has no multi-token prediction layer"), "{error}");
    let mut model = load(&cpu, &file("glm4_moe"), LoadOptions::default());
    let error = model.draft_logits(&[3, 4], 1, 8).unwrap_err().to_string();
    assert!(error.contains("loaded without its multi-token prediction layer"), "{error}");
}
