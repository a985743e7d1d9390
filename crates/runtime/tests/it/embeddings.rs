//! Embeddings: hidden states that the head turns into the reference's logits, pooled alike whatever
//! else runs and however a text is cut.

use crate::common::gpus::gpus;
use crate::common::quantized::write_quantized;
use crate::common::tiny::tiny;
use crate::common::tiny_models::tiny_models;
use realizar_formats::{SafeTensors, SafeTensorsWriter};
use realizar_quant::{BlockType, dequantize};
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::backend::{Arithmetic, Backend, Phase};
use realizar_runtime::engine::{
    EmbeddingRequest, Engine, EngineEvent, EngineOptions, Request, Ticket,
};
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::{
    DeviceLayers, EmbedParams, Error, Event, GenerateParams, LoadOptions, Model, ModelOutput,
    Pooling,
};
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

const CONTEXT: usize = 200;
const POOLINGS: [Pooling; 3] = [Pooling::Last, Pooling::Mean, Pooling::Cls];

fn options() -> LoadOptions {
    LoadOptions {
        output: ModelOutput::Embeddings,
        max_seq_len: Some(CONTEXT),
        chunk: Some(48),
        ..LoadOptions::default()
    }
}

fn cpu(n_threads: usize) -> CpuBackend {
    CpuBackend::new(Some(n_threads), None).unwrap()
}

/// As the model's rows are, without a length of 1.
fn plain(pooling: Pooling) -> EmbedParams {
    EmbedParams { pooling: Some(pooling), dimensions: None, normalize: false }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// The numbers of a tensor, if there is one whose name ends so.
fn tensor(tensors: &SafeTensors, suffix: &str) -> Option<Vec<f32>> {
    let info = tensors.tensors().iter().find(|info| info.name.ends_with(suffix))?;
    let tensor = tensors.tensor(&info.name)?;
    let mut values = vec![0.0; tensor.n_elements()];
    dequantize(tensor.ty.block_type()?, &tensor.data, &mut values).unwrap();
    Some(values)
}

#[test]
fn the_head_turns_hidden_states_into_the_logits_of_transformers() {
    let read = |path: &Path| -> Value {
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    for path in tiny_models() {
        let dir = if path.is_dir() { &path } else { path.parent().unwrap() };
        // A GGUF file of this architecture has no window.
        let (expected, config) = (read(&dir.join("expected.json")), read(&dir.join("config.json")));
        let tensors = SafeTensors::open(dir).unwrap();
        let any = |names: &[&str]| names.iter().find_map(|name| tensor(&tensors, name));
        let own = any(&["lm_head.weight", "embed_out.weight"]);
        let own = own
            .or_else(|| (config["model_type"] == "internlm2").then(|| any(&["output.weight"]))?);
        let has_own = own.is_some();
        let tables = ["embed_tokens.weight", "wte.weight", "word_embeddings.weight"];
        let head = own.or_else(|| any(&tables)).unwrap();
        let bias = tensor(&tensors, "lm_head.bias");
        let cap = config["final_logit_softcapping"].as_f64();

        let f32s = LoadOptions { arithmetic: Arithmetic::F32, max_seq_len: None, ..options() };
        let mut model = Model::load(&path, &cpu(2), &f32s).unwrap();
        let (dim, scale) = (model.config().dim, f64::from(model.config().logit_scale));
        let text = LoadOptions { output: ModelOutput::Logits, ..f32s };
        let whole = Model::load(&path, &cpu(1), &text).unwrap().n_params();
        let of_head = if has_own { head.len() + bias.as_ref().map_or(0, Vec::len) } else { 0 };
        assert_eq!(whole - model.n_params(), of_head, "{path:?}");

        let ids = expected["ids"].as_array().unwrap();
        let ids: Vec<u32> = ids.iter().map(|id| id.as_u64().unwrap() as u32).collect();
        for (pos, row) in expected["values"].as_object().unwrap() {
            let pos: usize = pos.parse().unwrap();
            let hidden = model.embed(&ids[..=pos], &plain(Pooling::Last)).unwrap();
            assert_eq!(hidden.len(), dim, "{path:?}");
            let row: Vec<f64> =
                row.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
            let largest = row.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            assert_eq!(head.len(), row.len() * dim, "{path:?}");
            for (i, (weights, want)) in head.chunks(dim).zip(&row).enumerate() {
                let products = weights.iter().zip(&hidden);
                let dot: f64 = products.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                let dot = scale * (dot + bias.as_ref().map_or(0.0, |bias| f64::from(bias[i])));
                let logit = cap.map_or(dot, |cap| cap * (dot / cap).tanh());
                let apart = (logit - want).abs();
                assert!(
                    apart <= 1e-3 * largest,
                    "{path:?}, position {pos}, token {i}: {logit}, not {want}"
                );
            }
        }
    }
}

/// Text `i`; some begin alike.
fn text(i: usize) -> Vec<u32> {
    let shared = [0, 40, 64, 90][i % 4];
    let token = |pos: usize| {
        let salt = if pos < shared { i % 2 } else { i };
        3 + ((pos * 31 + salt * 17 + pos * pos * 7) % 200) as u32
    };
    (0..shared + 1 + (i * 13) % 40).map(token).collect()
}

#[test]
fn pooling_is_of_the_rows_in_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let quantized = dir.path().join("quantized.gguf");
    write_quantized(&quantized, &[BlockType::Q4_K, BlockType::Q6_K, BlockType::Q8_0]);
    for path in [tiny("llama"), tiny("gemma3_text"), tiny("gpt2"), quantized] {
        let mut model = Model::load(&path, &cpu(2), &options()).unwrap();
        let ids = text(3);
        let rows: Vec<Vec<f32>> = (1..=ids.len())
            .map(|n| model.embed(&ids[..n], &plain(Pooling::Last)).unwrap())
            .collect();
        let mut mean = rows[0].clone();
        for row in &rows[1..] {
            mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        mean.iter_mut().for_each(|x| *x /= ids.len() as f32);
        for (pooling, want) in [
            (Pooling::Last, &rows[ids.len() - 1]),
            (Pooling::Mean, &mean),
            (Pooling::Cls, &rows[0]),
        ] {
            let found = model.embed(&ids, &plain(pooling)).unwrap();
            assert_eq!(bits(&found), bits(want), "{path:?}: {pooling}");
            // Other steps, other threads and two devices.
            for (n_threads, chunk, last_layers) in [(1, 1, 0), (3, 7, 0), (2, 48, 1)] {
                let options = LoadOptions { chunk: Some(chunk), ..options() };
                let (first, last) = (cpu(n_threads), cpu(2));
                let split = [DeviceLayers::rest(&first), DeviceLayers::at_most(&last, last_layers)];
                let mut other = Model::load_onto(&path, &split, &options).unwrap();
                let found = other.embed(&ids, &plain(pooling)).unwrap();
                assert_eq!(bits(&found), bits(want), "{path:?}: {pooling}, chunks of {chunk}");
            }
            let unit = EmbedParams { pooling: Some(pooling), ..EmbedParams::default() };
            let unit = model.embed(&ids, &unit).unwrap();
            let length: f64 = want.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            for (x, want) in unit.iter().zip(want) {
                assert!((f64::from(*x) * length - f64::from(*want)).abs() < 1e-5 * length);
            }
        }
    }
}

#[test]
fn a_model_of_text_embeds_too() {
    let f32s = LoadOptions { arithmetic: Arithmetic::F32, max_seq_len: None, ..options() };
    let both = LoadOptions { output: ModelOutput::Logits, embeddings: true, ..f32s.clone() };
    let alone = LoadOptions { embeddings: false, ..both.clone() };
    let generated = |model: &mut Model, ids: &[u32]| {
        let params = GenerateParams { max_tokens: Some(4), ..GenerateParams::default() };
        let params = GenerateParams { sampling: Some(SamplingParams::greedy()), ..params };
        let mut session = model.new_session();
        let go_on = &mut |_: &Event<'_>| ControlFlow::Continue(());
        let ids = session.generate(model, ids, &params, go_on).unwrap().ids;
        session.close(model);
        ids
    };
    for path in tiny_models() {
        let mut only = Model::load(&path, &cpu(1), &f32s).unwrap();
        let mut model = Model::load(&path, &cpu(1), &both).unwrap();
        let cut = LoadOptions { chunk: Some(7), max_outputs: 3, ..both.clone() };
        let mut cut = Model::load(&path, &cpu(1), &cut).unwrap();
        let mut plain_text = Model::load(&path, &cpu(1), &alone).unwrap();
        assert_eq!(model.embedding_dim(), Some(model.config().dim), "{path:?}");
        assert_eq!(plain_text.embedding_dim(), None);
        let vocab_size = model.config().vocab_size as u32;
        let ids: Vec<u32> = text(1).into_iter().take(24).map(|id| id % vocab_size).collect();
        assert_eq!(model.pooling().unwrap(), only.pooling().unwrap());
        for pooling in POOLINGS {
            let wanted = only.embed(&ids, &plain(pooling)).unwrap();
            let found = model.embed(&ids, &plain(pooling)).unwrap();
            let most = wanted.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
            for (found, wanted) in found.iter().zip(&wanted) {
                assert!((found - wanted).abs() <= 1e-4 * most, "{path:?}: {found}, not {wanted}");
            }
            // However it is cut, and whatever was generated before.
            let again = cut.embed(&ids, &plain(pooling)).unwrap();
            assert_eq!(bits(&again), bits(&found), "{path:?} {pooling:?}");
            // Some of the models have no tokenizer, and generate no text.
            if model.tokenizer().is_ok() {
                let expected = generated(&mut plain_text, &ids);
                assert_eq!(generated(&mut model, &ids), expected, "{path:?}");
            }
            assert_eq!(bits(&model.embed(&ids, &plain(pooling)).unwrap()), bits(&found));
        }
        let last = ids.len() - 1;
        let logits = |model: &mut Model| bits(&model.logits(&ids, &[last], 48).unwrap()[0]);
        assert_eq!(logits(&mut model), logits(&mut plain_text), "{path:?}");
    }
    // On GPUs, where the head takes the norm before it otherwise.
    let path = tiny("llama").join("model-f32.gguf");
    let wanted =
        Model::load(&path, &cpu(1), &both).unwrap().embed(&text(1), &plain(Pooling::Mean)).unwrap();
    for gpu in gpus() {
        let mut model = Model::load(&path, &*gpu, &both).unwrap();
        let found = model.embed(&text(1), &plain(Pooling::Mean)).unwrap();
        let most = wanted.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
        for (found, wanted) in found.iter().zip(&wanted) {
            assert!((found - wanted).abs() <= 1e-3 * most, "{}: {found}, not {wanted}", gpu.name());
        }
        let expected = generated(&mut Model::load(&path, &*gpu, &alone).unwrap(), &text(1));
        assert_eq!(generated(&mut model, &text(1)), expected, "{}", gpu.name());
    }
    let cpu = cpu(1);
    let two = [DeviceLayers { backend: &cpu, n_layers: Some(1) }, DeviceLayers::rest(&cpu)];
    let error = Model::load_onto(&path, &two, &both).unwrap_err().to_string();
    assert!(
        error.contains("a model on several devices generates text or computes embeddings"),
        "{error}"
    );
}

fn submit(engine: &Engine, request: EmbeddingRequest) -> (Ticket, Receiver<EngineEvent>) {
    let (sender, receiver) = channel();
    let sink = Box::new(move |event| drop(sender.send(event)));
    (engine.submit_embedding(request, sink).unwrap(), receiver)
}

/// The embedding, and the tokens that were cached.
fn collect(events: &Receiver<EngineEvent>) -> (Vec<f32>, usize) {
    match events.recv().expect("the request is not complete") {
        EngineEvent::Embedding { values, cached_tokens } => (values, cached_tokens),
        event => panic!("{event:?}"),
    }
}

fn serving(kv_tokens: Option<usize>) -> LoadOptions {
    LoadOptions { max_seqs: 8, prefix_cache: true, kv_tokens, ..options() }
}

/// The first `n_texts` texts at once, against each alone.
fn check_engine(device: &dyn Backend, name: &str, n_texts: usize) {
    let path = tiny(name).join("model-f32.gguf");
    let params = |i: usize| EmbedParams {
        pooling: [None, Some(POOLINGS[i % 3])][i % 2],
        dimensions: i.is_multiple_of(5).then_some(24),
        normalize: !i.is_multiple_of(7),
    };
    let mut model = Model::load(&path, device, &options()).unwrap();
    let wanted: Vec<Vec<f32>> =
        (0..n_texts).map(|i| model.embed(&text(i), &params(i)).unwrap()).collect();
    // With room for all, and with so little that texts lose their pages to others.
    for kv_tokens in [None, Some(224)] {
        let model = Model::load(&path, device, &serving(kv_tokens)).unwrap();
        let engine = Engine::start(model, EngineOptions::default()).unwrap();
        assert_eq!(engine.model().embedding(), Some((Pooling::Last, wanted[1].len())));
        let pending: Vec<_> = (0..n_texts)
            .map(|i| submit(&engine, EmbeddingRequest::new(text(i), params(i))))
            .collect();
        let mut n_cached = 0;
        for (i, (_ticket, events)) in pending.iter().enumerate() {
            let (values, cached) = collect(events);
            let case = format!("{name} on {}: text {i}", device.name());
            assert_eq!(bits(&values), bits(&wanted[i]), "{case}");
            let reuses = params(i).pooling.is_none_or(|p| p == Pooling::Last);
            assert!(cached == 0 || reuses, "{case}: {cached} tokens had no output");
            n_cached += cached;
        }
        engine.shutdown(Duration::from_secs(600));
        let stats = engine.stats();
        assert_eq!((stats.finished.embedding, stats.e2e.count()), (n_texts as u64, n_texts as u64));
        assert_eq!((stats.kv_used_pages, stats.running, stats.waiting), (0, 0, 0));
        assert_eq!(stats.prompt_tokens, (0..n_texts).map(|i| text(i).len() as u64).sum::<u64>());
        assert!(n_cached > 0, "nothing was reused");
        if kv_tokens.is_some() {
            assert!(stats.preemptions > 0, "nobody lost a page");
        }
    }
}

#[test]
fn an_engine_gives_the_bits_that_texts_get_alone() {
    for name in ["llama", "gemma3_text", "gpt2"] {
        check_engine(&cpu(2), name, 40);
    }
}

#[test]
fn gpus_give_the_same_bits_too() {
    for device in gpus() {
        check_engine(&*device, "gemma3_text", 16);
    }
}

#[test]
fn a_dropped_ticket_frees_what_it_held() {
    let model = Model::load(&tiny("llama").join("model-f32.gguf"), &cpu(1), &serving(None));
    let engine = Engine::start(model.unwrap(), EngineOptions::default()).unwrap();
    let mut pending: Vec<_> = (0..12)
        .map(|i| submit(&engine, EmbeddingRequest::new(text(i), plain(Pooling::Mean))))
        .collect();
    drop(pending.split_off(6));
    for (_ticket, events) in &pending {
        collect(events);
    }
    engine.shutdown(Duration::from_secs(600));
    let stats = engine.stats();
    assert_eq!((stats.kv_used_pages, stats.running, stats.waiting), (0, 0, 0));
    assert_eq!(stats.finished.embedding + stats.finished.cancelled, 12);
    assert!(stats.finished.embedding >= 6);
}

#[test]
fn what_a_model_was_not_loaded_for_is_refused() {
    const NO_TEXT: &str = "the model was loaded for embeddings and generates no text";
    const NO_EMBEDDING: &str = "the model was loaded for text generation and computes no \
                                embeddings";
    let path = tiny("llama").join("model-f32.gguf");
    let load = |output| Model::load(&path, &cpu(1), &LoadOptions { output, ..options() }).unwrap();
    let of = |error: Error| error.to_string();
    let ids = text(5);

    let mut model = load(ModelOutput::Embeddings);
    assert_eq!(of(model.logits(&ids, &[0], 48).unwrap_err()), NO_TEXT);
    assert_eq!(of(model.perplexity(&ids, 4, &mut |_, _, _| ()).unwrap_err()), NO_TEXT);
    let mut base = load(ModelOutput::Logits);
    let apart = model.kl_divergence(&mut base, &ids, 4, Phase::Prefill, &mut |_, _, _| ());
    assert_eq!(of(apart.unwrap_err()), NO_TEXT);
    let mut session = model.new_session();
    let params = GenerateParams::default();
    let mut go = |_: &realizar_runtime::Event<'_>| ControlFlow::Continue(());
    assert_eq!(of(session.generate(&mut model, &ids, &params, &mut go).unwrap_err()), NO_TEXT);
    for (ids, params, want) in [
        (&[][..], EmbedParams::default(), "the prompt has no tokens"),
        (
            &[5; 201],
            EmbedParams::default(),
            "a prompt of 201 tokens does not fit the context of 200",
        ),
        (&[9999], EmbedParams::default(), "token 9999 is not in the vocabulary of 288"),
        (
            &[5],
            EmbedParams { dimensions: Some(0), ..EmbedParams::default() },
            "an embedding must have 1 to 32 dimensions, not 0",
        ),
    ] {
        assert_eq!(of(model.embed(ids, &params).unwrap_err()), want);
    }

    let embeds = Engine::start(model, EngineOptions::default()).unwrap();
    let request = Request::new(ids.clone(), params.clone());
    assert_eq!(embeds.submit(request, Box::new(|_| ())).unwrap_err().to_string(), NO_TEXT);
    for (prompt, params, want) in [
        (vec![], EmbedParams::default(), "the prompt has no tokens"),
        (
            vec![5; 201],
            EmbedParams::default(),
            "a prompt of 201 tokens does not fit the context of 200",
        ),
        (vec![9999], EmbedParams::default(), "token 9999 is not in the vocabulary of 288"),
        (
            vec![5],
            EmbedParams { dimensions: Some(33), ..EmbedParams::default() },
            "an embedding must have 1 to 32 dimensions, not 33",
        ),
    ] {
        let request = EmbeddingRequest::new(prompt, params);
        let error = embeds.submit_embedding(request, Box::new(|_| ())).unwrap_err();
        assert_eq!(error.to_string(), want);
    }

    let mut model = load(ModelOutput::Logits);
    assert_eq!(of(model.embed(&ids, &EmbedParams::default()).unwrap_err()), NO_EMBEDDING);
    let writes = Engine::start(model, EngineOptions::default()).unwrap();
    let request = EmbeddingRequest::new(ids, EmbedParams::default());
    let error = writes.submit_embedding(request, Box::new(|_| ())).unwrap_err();
    assert_eq!(error.to_string(), NO_EMBEDDING);
    assert_eq!(writes.model().embedding(), None);
}

/// Writes `tiny(name)` to `dir`, without the tensors that `leave_out` names and with `more` in
/// config.json.
fn copy(name: &str, dir: &Path, leave_out: &str, more: Option<(&str, Value)>) {
    let from = tiny(name);
    let text = std::fs::read_to_string(from.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    if let Some((key, value)) = more {
        config[key] = value;
    }
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let tensors = SafeTensors::open(&from).unwrap();
    let kept = tensors.tensors().iter().filter(|info| !info.name.starts_with(leave_out));
    let kept: Vec<_> = kept.map(|info| tensors.tensor(&info.name).unwrap()).collect();
    let mut writer = SafeTensorsWriter::new();
    for tensor in &kept {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape, &tensor.data).unwrap();
    }
    writer.write_file(dir.join("model.safetensors")).unwrap();
}

#[test]
fn a_checkpoint_without_a_head_gives_embeddings() {
    for name in ["llama", "phi"] {
        let dir = tempfile::tempdir().unwrap();
        copy(name, dir.path(), "lm_head", None);
        let text_options = LoadOptions { output: ModelOutput::Logits, ..options() };
        let error = Model::load(dir.path(), &cpu(1), &text_options).unwrap_err().to_string();
        assert!(error.contains("`lm_head.weight` is missing"), "{error}");
        let embedding = |path: &Path| {
            let mut model = Model::load(path, &cpu(1), &options()).unwrap();
            bits(&model.embed(&text(2), &EmbedParams::default()).unwrap())
        };
        assert_eq!(embedding(dir.path()), embedding(&tiny(name)), "{name}");
    }
}

#[test]
fn files_say_how_to_pool() {
    let dir = tempfile::tempdir().unwrap();
    copy("llama", dir.path(), "lm_head", None);
    let pooling = |path: &Path| Model::load(path, &cpu(1), &options()).unwrap().pooling().unwrap();
    assert_eq!(pooling(dir.path()), Pooling::Last);
    std::fs::create_dir(dir.path().join("1_Pooling")).unwrap();
    std::fs::write(dir.path().join("1_Pooling/config.json"), "{}").unwrap();
    assert_eq!(pooling(dir.path()), Pooling::Mean);
    let mut model = Model::load(dir.path(), &cpu(1), &options()).unwrap();
    let [unsaid, mean] = [None, Some(Pooling::Mean)].map(|pooling| {
        let params = EmbedParams { pooling, ..EmbedParams::default() };
        bits(&model.embed(&text(2), &params).unwrap())
    });
    assert_eq!(unsaid, mean);
}

#[test]
fn attention_in_both_directions_is_refused() {
    for (key, value) in [("is_causal", false), ("use_bidirectional_attention", true)] {
        let dir = tempfile::tempdir().unwrap();
        copy("llama", dir.path(), "none", Some((key, value.into())));
        let error = Model::load(dir.path(), &cpu(1), &options()).unwrap_err().to_string();
        assert!(error.contains(key) && error.ends_with("is not supported"), "{error}");
    }
}
