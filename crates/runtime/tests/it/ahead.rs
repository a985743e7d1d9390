//! Steps that are launched after the one that runs change no answer: with a device that can, the engine gives the
//! answers that a session alone gives.

use crate::common::gpus::cuda;
use crate::common::requests::{
    Answer, alone, collect, idle_stats, load_on, request, serving, submit,
};
use crate::common::tiny::tiny;
use realizar_formats::{Gguf, GgufWriter};
use realizar_quant::BlockType;
use realizar_runtime::backend::Backend;
use realizar_runtime::engine::{Engine, EngineEvent, EngineOptions, EngineStats, Request};
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::{DeviceLayers, FinishReason, GenerateParams, LoadOptions, Model};

/// The device, unless it is not built.
fn device() -> Option<Box<dyn Backend>> {
    let device = cuda();
    if device.is_none() {
        println!("skipped: built without the interpreter of CUDA kernels");
    }
    device
}

/// Request `i`: greedy, or with a token that is drawn from all, of the best 40, of those of a nucleus, or of those near the
/// best.
fn plain(i: usize) -> Request {
    let mut request = request(i);
    let sampling = request.params.sampling.get_or_insert_default();
    (sampling.top_k, sampling.top_p, sampling.min_p) =
        [(0, 1.0, 0.0), (40, 0.95, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.1)][i % 4];
    if sampling.top_k == 0 && sampling.top_p + sampling.min_p != 1.0 && sampling.temperature > 0.0 {
        // So that few tokens hold most of it.
        sampling.temperature = 0.2;
    }
    request
}

/// An engine's statistics after these requests, which it answered as a session alone does.
fn check(name: &str, model: Model, requests: &[Request], wanted: &[Answer]) -> EngineStats {
    let engine = Engine::start(model, EngineOptions::default()).unwrap();
    let pending: Vec<_> = requests.iter().map(|request| submit(&engine, request.clone())).collect();
    for (i, (_ticket, events)) in pending.iter().enumerate() {
        assert_eq!(collect(1, events).0, wanted[i..=i], "{name}: request {i}");
    }
    let stats = idle_stats(&engine);
    assert_eq!((stats.kv_used_pages, stats.states_used), (0, 0), "{name}: {stats:?}");
    stats
}

#[test]
fn answers_are_those_that_requests_get_alone() {
    let Some(device) = device() else { return };
    // Full attention with few pages, windows, and recurrent states.
    let cases = [("llama", Some(256)), ("gemma3_text", None), ("qwen3_5_text", None)];
    for (name, kv_tokens) in cases {
        let mut model = load_on(&*device, name, LoadOptions::default());
        let requests: Vec<Request> = (0..8).map(plain).collect();
        let wanted: Vec<_> = requests.iter().map(|r| alone(&mut model, r, 0)).collect();
        let stats = check(name, load_on(&*device, name, serving(kv_tokens)), &requests, &wanted);
        assert!(stats.ahead_rows > 20, "{name}: {stats:?}");
        // Answers that reach their lengths are known to end; some end before, or are not decided by a shortlist.
        assert!(stats.ahead_wasted * 8 <= stats.ahead_rows, "{name}: {stats:?}");
    }
}

#[test]
fn texts_that_end_answers_and_requests_that_are_cancelled_cost_one_row() {
    let Some(device) = device() else { return };
    let mut model = load_on(&*device, "llama", LoadOptions::default());
    let greedy = |i: usize, stop: Vec<String>| {
        let params = GenerateParams {
            sampling: Some(SamplingParams::greedy()),
            max_tokens: Some(40),
            ignore_eos: true,
            stop,
            ..GenerateParams::default()
        };
        Request { params, ..request(i) }
    };
    let whole = alone(&mut model, &greedy(2, Vec::new()), 0);
    let stop: String = whole.text.chars().skip(whole.text.chars().count() / 2).take(3).collect();
    let stopped = greedy(2, vec![stop]);
    let wanted = alone(&mut model, &stopped, 0);
    assert_eq!(wanted.reason, Some(FinishReason::Stop));
    assert!(wanted.ids.len() < whole.ids.len());
    let engine =
        Engine::start(load_on(&*device, "llama", serving(None)), EngineOptions::default()).unwrap();
    let (_ticket, events) = submit(&engine, stopped);
    assert_eq!(collect(1, &events).0, [wanted]);
    // One that is cancelled after its first tokens, beside one that continues.
    let (cancelled, first) = submit(&engine, greedy(5, Vec::new()));
    let (_ticket, events) = submit(&engine, greedy(2, Vec::new()));
    for _ in 0..3 {
        assert!(!matches!(first.recv().unwrap(), EngineEvent::Failed(_)));
    }
    drop(cancelled);
    assert_eq!(collect(1, &events).0, [whole]);
    let stats = idle_stats(&engine);
    assert_eq!(stats.finished.cancelled, 1);
    assert!(stats.ahead_rows > 40 && (1..=3).contains(&stats.ahead_wasted), "{stats:?}");
    assert_eq!(stats.kv_used_pages, 0);
}

#[test]
fn rows_that_no_shortlist_decides_are_run_again() {
    let Some(device) = device() else { return };
    // All logits are zero, so that the lowest of all tokens is chosen, which no shortlist tells.
    let source = Gguf::open(tiny("llama").join("model-f32.gguf")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("zero.gguf");
    let data = |name: &str| source.tensor(name).unwrap().data.to_vec();
    let all: Vec<_> = source.tensors().iter().map(|info| (info, data(&info.name))).collect();
    let zero = vec![0; data("output_norm.weight").len()];
    let mut gguf = GgufWriter::new();
    for (key, value) in source.metadata().iter() {
        gguf.set(key, value.clone()).unwrap();
    }
    for (info, data) in &all {
        let data = if info.name == "output_norm.weight" { &zero } else { data };
        gguf.tensor(&info.name, BlockType::F32, &info.shape, data).unwrap();
    }
    gguf.write_file(&path).unwrap();
    let load = |options| {
        let options = LoadOptions { max_seq_len: Some(200), chunk: Some(48), ..options };
        Model::load(&path, &*device, &options).unwrap()
    };
    let params = GenerateParams {
        sampling: Some(SamplingParams::greedy()),
        max_tokens: Some(6),
        ignore_eos: true,
        ..GenerateParams::default()
    };
    let requests: Vec<Request> =
        (1..3).map(|i| Request { params: params.clone(), ..request(i) }).collect();
    let mut model = load(LoadOptions::default());
    let wanted: Vec<_> = requests.iter().map(|r| alone(&mut model, r, 0)).collect();
    assert!(wanted.iter().all(|answer| answer.ids.len() == 6), "{wanted:?}");
    let stats = check("zero", load(serving(None)), &requests, &wanted);
    // Once for each answer, which is then run step by step.
    assert_eq!(stats.ahead_wasted, 2, "{stats:?}");
}

#[test]
fn parts_on_several_devices_run_one_step_at_a_time() {
    let Some(device) = device() else { return };
    let load = |options| {
        let options = LoadOptions { max_seq_len: Some(200), chunk: Some(48), ..options };
        let devices = [
            DeviceLayers { backend: &*device, n_layers: Some(1) },
            DeviceLayers { backend: &*device, n_layers: None },
        ];
        Model::load_onto(&tiny("llama").join("model-f32.gguf"), &devices, &options).unwrap()
    };
    let requests: Vec<Request> = (0..2).map(plain).collect();
    let mut model = load(LoadOptions::default());
    let wanted: Vec<_> = requests.iter().map(|r| alone(&mut model, r, 0)).collect();
    let stats = check("two parts", load(serving(None)), &requests, &wanted);
    assert_eq!(stats.ahead_rows, 0, "{stats:?}");
}
