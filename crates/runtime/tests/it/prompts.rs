//! Prompts of which rows are embeddings: with the embeddings of tokens they have the bits of the
//! tokens, and the prefix cache tells them apart by their content.

use crate::common::gpus::gpus;
use crate::common::tiny::tiny;
use realizar_formats::SafeTensors;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::backend::{Backend, Phase};
use realizar_runtime::engine::{Engine, EngineEvent, EngineOptions, Request};
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::{
    Chunk, Embeddings, GenerateParams, LoadOptions, Model, Outputs, Prompt, Rows,
};
use std::sync::Arc;
use std::sync::mpsc::channel;

fn ids() -> Vec<u32> {
    (0..70).map(|i| 3 + (i * 37 + i * i) % 200).collect()
}

/// The embeddings of tokens as the model has them after its embedding.
fn embeddings(name: &str, ids: &[u32]) -> Arc<Embeddings> {
    let file = SafeTensors::open(tiny(name)).unwrap();
    let table = ["model.embed_tokens.weight", "transformer.wte.weight"];
    let table = table.into_iter().find_map(|name| file.tensor(name)).expect("an embedding");
    let dim = *table.shape.last().unwrap();
    let scale = if name.starts_with("gemma") { (dim as f32).sqrt() } else { 1.0 };
    let mut values = vec![0.0; table.n_elements()];
    let ty = table.ty.block_type().unwrap();
    realizar_quant::dequantize(ty, &table.data, &mut values).unwrap();
    let row = |&id: &u32| values[id as usize * dim..][..dim].iter().map(|x| x * scale);
    Arc::new(Embeddings::new(ids.iter().flat_map(row).collect(), dim).unwrap())
}

/// The tokens, some runs of them as embeddings.
fn mixed(name: &str, ids: &[u32]) -> Prompt {
    let mut prompt = Prompt::default();
    for (i, run) in ids.chunks(9).enumerate() {
        match i % 3 {
            0 => prompt.push_tokens(run),
            _ => prompt.push_embeddings(embeddings(name, run)),
        }
    }
    assert_eq!((prompt.len(), prompt.has_embeddings()), (ids.len(), true));
    prompt
}

/// The bits of the logits of every row.
fn logits(model: &mut Model, rows: Rows<'_>, chunk: usize) -> Vec<Vec<u32>> {
    let runner = model.runner();
    let seq = runner.new_sequence();
    let mut all = Vec::new();
    for start in (0..rows.len()).step_by(chunk) {
        let rows = rows.slice(start..rows.len().min(start + chunk));
        let (phase, outputs) = (Phase::Prefill, Outputs::All);
        let found = runner.step(&[Chunk { seq: &seq, rows, phase, outputs }]).unwrap();
        let bits = |i| found.row(0, i).iter().map(|x| x.to_bits()).collect();
        all.extend((0..rows.len()).map(bits));
    }
    all
}

#[test]
fn embeddings_of_tokens_give_the_bits_of_the_tokens() {
    let cpu: Box<dyn Backend> = Box::new(CpuBackend::new(Some(2), None).unwrap());
    let devices: Vec<_> = std::iter::once(cpu).chain(gpus().into_iter().take(1)).collect();
    let ids = ids();
    for name in ["llama", "gemma3_text", "gpt2"] {
        let prompt = mixed(name, &ids);
        for backend in &devices {
            let options =
                LoadOptions { chunk: Some(70), max_outputs: 70, ..LoadOptions::default() };
            let mut model = Model::load(&tiny(name), &**backend, &options).unwrap();
            let expected = logits(&mut model, (&ids).into(), 70);
            for chunk in [70, 16, 1] {
                let found = logits(&mut model, prompt.rows(), chunk);
                assert!(found == expected, "{name} on {} by {chunk}", backend.name());
            }
        }
    }
}

#[test]
fn rows_that_are_no_prompt_of_the_model_are_refused() {
    let backend = CpuBackend::new(Some(1), None).unwrap();
    let mut model = Model::load(&tiny("llama"), &backend, &LoadOptions::default()).unwrap();
    let mut refused = |rows: Rows<'_>| {
        let runner = model.runner();
        let seq = runner.new_sequence();
        let step = Chunk { seq: &seq, rows, phase: Phase::Prefill, outputs: Outputs::Last };
        runner.step(&[step]).unwrap_err().to_string()
    };
    let mut other = Prompt::from(vec![3]);
    other.push_embeddings(Arc::new(Embeddings::new(vec![1.0; 6], 3).unwrap()));
    let error = refused(other.rows());
    assert!(error.contains("embeddings of 3 elements for a model of "), "{error}");
    // What stands for an embedding is not a token.
    let error = refused((&vec![3, u32::MAX]).into());
    assert!(error.contains("token 4294967295 is not in the vocabulary"), "{error}");
}

/// The tokens of a greedy answer, and how many of the prompt were cached.
fn answer(engine: &Engine, prompt: Prompt) -> (Vec<u32>, usize) {
    let params = GenerateParams {
        sampling: Some(SamplingParams::greedy()),
        max_tokens: Some(12),
        ignore_eos: true,
        ..GenerateParams::default()
    };
    let (sender, events) = channel();
    let sink = Box::new(move |event| drop(sender.send(event)));
    let _ticket = engine.submit(Request::new(prompt, params), sink).unwrap();
    let (mut ids, mut cached) = (Vec::new(), None);
    loop {
        match events.recv().unwrap() {
            EngineEvent::Prompt { cached_tokens, .. } => cached = Some(cached_tokens),
            EngineEvent::Token(token) => ids.push(token.id),
            EngineEvent::Finished { .. } => return (ids, cached.unwrap()),
            event => panic!("{event:?}"),
        }
    }
}

#[test]
fn the_prefix_cache_tells_contents_apart() {
    let backend = CpuBackend::new(Some(2), None).unwrap();
    let options = LoadOptions { prefix_cache: true, chunk: Some(48), ..LoadOptions::default() };
    // The same weights beside a tokenizer.
    let path = tiny("llama").join("model-f32.gguf");
    let model = Model::load(&path, &backend, &options).unwrap();
    let drafts = EngineOptions { lookup_tokens: 4, ..EngineOptions::default() };
    let engine = Engine::start(model, drafts).unwrap();
    let ids = ids();
    let (expected, _) = answer(&engine, ids.clone().into());
    // The symbols of embeddings are none of tokens, so only the tokens at the beginning are found.
    assert_eq!(answer(&engine, mixed("llama", &ids)), (expected.clone(), 9));
    let (again, cached) = answer(&engine, mixed("llama", &ids));
    assert_eq!((again, cached >= 64), (expected, true), "{cached} cached");
    // Another content in row 40.
    let mut other = ids.clone();
    other[40] += 1;
    let (_, cached) = answer(&engine, mixed("llama", &other));
    assert!((32..=40).contains(&cached), "{cached}");
}
