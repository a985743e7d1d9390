//! Steps with more attention work than the GPU backend has scratch memory for: many
//! decode rows with long contexts, as drafts, shared prompts and preempted answers
//! bring them. They run in waves, and their bits are those of small steps.

use crate::common::requests::{Answer, alone, collect, idle_stats, submit};
use crate::common::tiny::tiny;
use realizar_kernels_wgpu::{Adapter, GpuOptions};
use realizar_quant::BlockType;
use realizar_runtime::backend::wgpu::WgpuBackend;
use realizar_runtime::backend::{Arithmetic, Phase};
use realizar_runtime::engine::{Engine, EngineOptions, Request};
use realizar_runtime::rope::RopeStretch;
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::{Chunk, GenerateParams, LoadOptions, Model, Outputs, SeqId};

/// Four times what the tiny models were made for: four splits.
const CONTEXT: usize = 1024;

/// The first GPU with room for this many bytes of the partial results of attention; the
/// usual number if `None`.
fn gpu(attention_bytes: Option<u64>) -> Option<WgpuBackend> {
    if Adapter::all().is_empty() {
        println!("skipped: no GPU adapter on this machine");
        return None;
    }
    let backend = WgpuBackend::open(None, GpuOptions::default()).unwrap();
    Some(match attention_bytes {
        Some(n_bytes) => backend.with_attention_bytes(n_bytes),
        None => backend,
    })
}

fn load(backend: &WgpuBackend, name: &str, options: LoadOptions) -> Model {
    let options = LoadOptions {
        max_seq_len: Some(CONTEXT),
        rope_stretch: Some(RopeStretch::Linear(4.0)),
        max_outputs: options.chunk.unwrap_or(256),
        ..options
    };
    Model::load(&tiny(name).join("model-f32.gguf"), backend, &options).unwrap()
}

/// A token of the text that is told by `salt`.
fn token(pos: usize, salt: usize) -> u32 {
    3 + ((pos * 31 + salt * 17 + pos * pos * 7) % 250) as u32
}

/// A new sequence of a prompt of `len` tokens.
fn prompt(model: &mut Model, len: usize) -> SeqId {
    let tokens: Vec<u32> = (0..len).map(|pos| token(pos, 0)).collect();
    let runner = model.runner();
    let seq = runner.new_sequence();
    let chunk = runner.limits().tokens;
    for tokens in tokens.chunks(chunk) {
        let outputs = Outputs::None;
        runner
            .step(&[Chunk { seq: &seq, rows: tokens.into(), phase: Phase::Prefill, outputs }])
            .unwrap();
    }
    seq
}

/// The logits of one step: of each sequence, these tokens as generated ones.
fn generate(model: &mut Model, chunks: &[(&SeqId, &[u32])]) -> Vec<Vec<u32>> {
    let (phase, outputs) = (Phase::Decode, Outputs::All);
    let step: Vec<Chunk<'_>> = chunks
        .iter()
        .map(|&(seq, tokens)| Chunk { seq, rows: tokens.into(), phase, outputs })
        .collect();
    let rows = model.runner().step(&step).unwrap();
    let bits = |row: &[f32]| -> Vec<u32> { row.iter().map(|x| x.to_bits()).collect() };
    let of_chunk = |(c, (_, tokens)): (usize, &(&SeqId, &[u32]))| {
        (0..tokens.len()).map(|i| bits(rows.row(c, i))).collect::<Vec<_>>()
    };
    chunks.iter().enumerate().flat_map(of_chunk).collect()
}

/// What sequences that continue from one prompt get, `n_tokens` each, in one step; and one
/// token at a time, one sequence after the other.
fn forks(model: &mut Model, (len, n_seqs, n_tokens): (usize, usize, usize)) -> [Vec<Vec<u32>>; 2] {
    let parent = prompt(model, len);
    let texts: Vec<Vec<u32>> = (0..n_seqs)
        .map(|seq| (len..len + n_tokens).map(|pos| token(pos, seq + 1)).collect())
        .collect();
    let mut small = Vec::new();
    for text in &texts {
        let seq = model.runner().fork(&parent);
        text.chunks(1).for_each(|token| small.extend(generate(model, &[(&seq, token)])));
        model.runner().remove(seq);
    }
    let seqs: Vec<SeqId> = texts.iter().map(|_| model.runner().fork(&parent)).collect();
    let chunks: Vec<(&SeqId, &[u32])> = seqs.iter().zip(texts.iter().map(Vec::as_slice)).collect();
    let large = generate(model, &chunks);
    seqs.into_iter().chain([parent]).for_each(|seq| model.runner().remove(seq));
    assert!(model.runner().pool_stats().iter().all(|stats| stats.used == 0), "pages were kept");
    [small, large]
}

#[test]
fn drafts_of_long_contexts_that_share_pages_are_one_step() {
    for (name, attention_bytes) in
        [("llama", None), ("llama", Some(0)), ("gemma3_text", Some(3000))]
    {
        let Some(backend) = gpu(attention_bytes) else { return };
        let options =
            LoadOptions { chunk: Some(48), kv_tokens: Some(4096), ..LoadOptions::default() };
        let mut model = load(&backend, name, options);
        // A chunk of drafts each, and a row of as many sequences as there are rows.
        for shape in [(700, 8, 6), (1023, 48, 1), (250, 6, 8)] {
            let [small, large] = forks(&mut model, shape);
            assert_eq!(small.len(), shape.1 * shape.2);
            assert!(small == large, "{name}, {attention_bytes:?} bytes, {shape:?}");
        }
    }
}

#[test]
fn a_preempted_answer_is_run_again_in_one_step() {
    use BlockType::{F16, F32};
    for (attention_bytes, kv_type, arithmetic) in [
        (None, F16, Arithmetic::Auto),
        (Some(0), F16, Arithmetic::Auto),
        (Some(2000), F32, Arithmetic::F32),
    ] {
        let Some(backend) = gpu(attention_bytes) else { return };
        let options = LoadOptions {
            chunk: Some(96),
            kv_tokens: Some(2048),
            kv_type: Some(kv_type),
            arithmetic,
            ..LoadOptions::default()
        };
        let mut model = load(&backend, "llama", options);
        let answer: Vec<u32> = (640..720).map(|pos| token(pos, 1)).collect();
        let seq = prompt(&mut model, 640);
        let one = |token: &[u32]| generate(&mut model, &[(&seq, token)]);
        let wanted: Vec<Vec<u32>> = answer.chunks(1).flat_map(one).collect();
        // Its pages are gone. All of it comes back beside the drafts of another.
        model.runner().remove(seq);
        let (again, other) = (prompt(&mut model, 640), prompt(&mut model, 900));
        let drafts: Vec<u32> = (900..905).map(|pos| token(pos, 2)).collect();
        let found = generate(&mut model, &[(&other, &drafts), (&again, &answer)]);
        assert!(found[5..] == wanted, "{attention_bytes:?}");
    }
}

#[test]
fn an_engine_with_drafts_and_few_pages_gives_the_answers_of_each_alone() {
    // Waves of few rows.
    let Some(backend) = gpu(Some(2000)) else { return };
    let request = |i: usize| {
        let sampling = match i % 2 {
            0 => SamplingParams::greedy(),
            _ => SamplingParams {
                temperature: 1.5,
                seed: Some(i as u64),
                ..SamplingParams::default()
            },
        };
        let params = GenerateParams {
            sampling: Some(sampling),
            max_tokens: Some(56),
            ignore_eos: true,
            logprobs: Some(1),
            ..GenerateParams::default()
        };
        // A long beginning that all share.
        let prompt = (0..600 + 9 * i).map(|pos| token(pos, if pos < 576 { 0 } else { i }));
        Request::new(prompt.collect::<Vec<_>>(), params)
    };
    let options = LoadOptions { chunk: Some(96), ..LoadOptions::default() };
    let mut model = load(&backend, "llama", options.clone());
    let wanted: Vec<Answer> = (0..5).map(|i| alone(&mut model, &request(i), 0)).collect();
    // Room for the shared pages and those of one or two whole answers.
    let serving =
        LoadOptions { max_seqs: 5, prefix_cache: true, kv_tokens: Some(800), ..options.clone() };
    let draft = load(&backend, "llama", LoadOptions { max_seqs: 5, ..options });
    let engine = Engine::start_with_draft(
        load(&backend, "llama", serving),
        Some(draft),
        EngineOptions { prompt_tokens: Some(96), ..EngineOptions::default() },
    );
    let engine = engine.unwrap();
    let pending: Vec<_> = (0..5).map(|i| submit(&engine, request(i))).collect();
    for (i, (_ticket, events)) in pending.iter().enumerate() {
        assert_eq!(collect(1, events).0, wanted[i..=i], "request {i}");
    }
    let stats = idle_stats(&engine);
    assert!(stats.preemptions > 0 && stats.prefix_hits > 0, "{stats:?}");
    assert!(stats.draft_tokens > 50 && stats.accepted_tokens > 30, "{stats:?}");
    assert_eq!(stats.kv_used_pages, 0);
}
