//! Segments of embeddings in prompts, as models that read images have them: against transformers, and
//! with the same bits however they are run.

use crate::common::gpus::gpus;
use crate::common::requests::{Answer, collect, submit};
use crate::common::segments::{Case, bits, embeddings, logits, refused};
use crate::common::tiny::tiny;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::backend::{Arithmetic, Backend, Phase};
use realizar_runtime::engine::{Engine, EngineOptions, Request, SubmitError};
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::{Chunk, Embeddings, GenerateParams, LoadOptions, Model, Outputs, Prompt};
use std::sync::Arc;

fn cpu(tier: Option<&str>) -> Box<dyn Backend> {
    Box::new(CpuBackend::new(Some(2), tier).unwrap())
}

fn devices() -> Vec<Box<dyn Backend>> {
    [cpu(None), cpu(Some("amx-bf16-software"))].into_iter().chain(gpus()).collect()
}

const CASES: [&str; 4] =
    ["gemma3_images", "qwen3_5_positions", "qwen2_vl_positions", "llama_positions"];

#[test]
fn segments_give_the_logits_of_transformers() {
    for case in CASES.map(Case::read) {
        for backend in std::iter::once(cpu(None)).chain(gpus()) {
            let mut model = case.load(&*backend, Arithmetic::F32);
            case.check(&logits(&mut model, case.prompt().rows(), 128), &backend.name());
        }
    }
}

#[test]
fn rows_that_do_not_see_each_other_have_other_logits() {
    let case = Case::read("gemma3_images");
    let mut model = case.load(&*cpu(None), Arithmetic::F32);
    let [both, causal] = [case.prompt(), case.prompt_with(|rows, _| rows)]
        .map(|prompt| logits(&mut model, prompt.rows(), 128));
    let apart = |row: usize| {
        let pairs = both[row].iter().zip(&causal[row]);
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    // Only the last row of the first image has seen all of it before.
    assert!((0..both.len()).filter(|&row| apart(row) > 0.05).count() > 40);
    assert!(apart(0) > 0.05 && apart(12) > 0.05, "{} {}", apart(0), apart(12));
}

/// Decode rows after the prompt, one in a step, of all prompts in one batch.
fn in_batch(model: &mut Model, prompts: &[Prompt], generated: &[u32]) -> Vec<Vec<Vec<u32>>> {
    let runner = model.runner();
    let seqs: Vec<_> = prompts.iter().map(|_| runner.new_sequence()).collect();
    let mut all = vec![Vec::new(); prompts.len()];
    let chunk = |i: usize| {
        let (rows, outputs) = (prompts[i].rows(), Outputs::All);
        Chunk { seq: &seqs[i], rows, phase: Phase::Prefill, outputs }
    };
    let step: Vec<_> = (0..prompts.len()).map(chunk).collect();
    let rows = runner.step(&step).unwrap();
    for (i, prompt) in prompts.iter().enumerate() {
        let rows: Vec<_> = (0..prompt.len()).map(|row| rows.row(i, row).to_vec()).collect();
        all[i].extend(bits(&rows));
    }
    for id in generated {
        let ids = [*id];
        let chunk = |seq| {
            let (rows, outputs) = ((&ids).into(), Outputs::Last);
            Chunk { seq, rows, phase: Phase::Decode, outputs }
        };
        let step: Vec<_> = seqs.iter().map(chunk).collect();
        let rows = runner.step(&step).unwrap();
        (0..prompts.len()).for_each(|i| all[i].extend(bits(&[rows.row(i, 0).to_vec()])));
    }
    all
}

#[test]
fn segments_have_the_same_bits_however_they_are_run() {
    for case in CASES.map(Case::read) {
        let prompt = case.prompt();
        let plain: Prompt = prompt.tokens().collect();
        for backend in devices() {
            let name = format!("{} on {}", case.name, backend.name());
            let mut model = case.load(&*backend, Arithmetic::Auto);
            let whole = bits(&logits(&mut model, prompt.rows(), 128));
            for chunk in [1, 7, 16, 30] {
                let found = bits(&logits(&mut model, prompt.rows(), chunk));
                assert!(found == whole, "{name} in chunks of {chunk}");
            }
            let generated = case.greedy();
            let alone = in_batch(&mut model, std::slice::from_ref(&prompt), &generated);
            assert!(alone[0][..prompt.len()] == whole, "{name}");
            let text = in_batch(&mut model, std::slice::from_ref(&plain), &generated);
            let both = [plain.clone(), prompt.clone()];
            let together = in_batch(&mut model, &both, &generated);
            assert!(together == [&text[..], &alone].concat(), "{name} in a batch");
        }
    }
}

#[test]
fn what_a_model_cannot_run_is_refused() {
    let backend = cpu(None);
    let case = Case::read("gemma3_images");
    let both = |n: usize| {
        let mut prompt = Prompt::from(vec![5, 6]);
        prompt.push_embeddings(Arc::new(embeddings(0, n, 32).bidirectional()));
        prompt.push_tokens(&[7]);
        prompt
    };
    let mut model = case.load(&*backend, Arithmetic::Auto);
    let prompt = both(6);
    let in_part = "rows with bidirectional attention must be in one prefill chunk";
    for (range, phase) in [(0..5, Phase::Prefill), (4..9, Phase::Prefill), (0..9, Phase::Decode)] {
        let error = refused(&mut model, prompt.rows().slice(range), phase);
        assert!(error.contains(in_part), "{error}");
    }
    let error = refused(&mut model, both(150).rows(), Phase::Prefill);
    let expected = "150 rows with bidirectional attention do not fit a step of 128 rows";
    assert!(error.contains(expected), "{error}");
    for name in ["llama", "qwen3_5_text", "gemma2"] {
        let mut model = Model::load(&tiny(name), &*backend, &LoadOptions::default()).unwrap();
        let error = refused(&mut model, prompt.rows(), Phase::Prefill);
        let expected = "rows with bidirectional attention for a model without it";
        assert!(error.contains(expected), "{name}: {error}");
    }
}

/// An engine on a tiny model.
fn engine(name: &str, options: LoadOptions, drafts: usize) -> Engine {
    let path = tiny(name).join("model-f32.gguf");
    let options = LoadOptions { max_seq_len: Some(200), max_seqs: 8, ..options };
    let model = Model::load(&path, &CpuBackend::new(Some(2), None).unwrap(), &options).unwrap();
    let options =
        EngineOptions { prompt_tokens: Some(3), lookup_tokens: drafts, ..EngineOptions::default() };
    Engine::start(model, options).unwrap()
}

/// The image of a prompt as the model knows it.
fn image(name: &str, rows: Embeddings, is_plain: bool) -> Embeddings {
    let n = rows.n_rows() as u32;
    match name {
        _ if is_plain => rows,
        "gemma3_text" => rows.bidirectional(),
        "qwen3_5_text" => rows.with_positions((0..n).map(|i| [0, i / 3, i % 3]).collect()).unwrap(),
        _ => rows.with_positions((0..n).map(|i| [3 * i; 3]).collect()).unwrap(),
    }
}

/// Prompts of text and images of 5 to 13 rows, some of which begin alike.
fn request(name: &str, i: usize) -> Request {
    let text = |n: usize, salt: usize| -> Vec<u32> {
        (0..n).map(|pos| 3 + ((pos * 31 + salt * 17 + pos * pos * 7) % 200) as u32).collect()
    };
    let mut prompt = Prompt::from(text([1, 20, 33][i % 3], i % 2));
    for image in 0..3 {
        let which = if image == 0 { i % 2 } else { i };
        let rows = embeddings(50 * which + 9 * image, 5 + (3 * which + image) % 9, 32);
        prompt.push_embeddings(Arc::new(self::image(name, rows, (i + image) % 5 == 4)));
        prompt.push_tokens(&text(4 + i % 7, i + image));
    }
    let sampling = match i % 3 {
        0 => SamplingParams::greedy(),
        _ => SamplingParams { temperature: 1.5, seed: Some(i as u64), ..SamplingParams::default() },
    };
    let params = GenerateParams {
        sampling: Some(sampling),
        max_tokens: Some(5 + (i * 7) % 30),
        ignore_eos: true,
        logprobs: Some(1),
        ..GenerateParams::default()
    };
    Request::new(prompt, params)
}

fn answers(engine: &Engine, requests: &[Request]) -> Vec<(Answer, usize)> {
    let running: Vec<_> = requests.iter().map(|request| submit(engine, request.clone())).collect();
    let collected = running.iter().map(|(_ticket, events)| collect(1, events));
    collected.map(|(mut answers, cached)| (answers.remove(0), cached)).collect()
}

#[test]
fn answers_to_images_are_those_of_being_alone() {
    for name in ["gemma3_text", "qwen3_5_text", "llama"] {
        check_answers(name);
    }
}

fn check_answers(name: &str) {
    let requests: Vec<Request> = (0..24).map(|i| request(name, i)).collect();
    let alone = engine(name, LoadOptions { chunk: Some(96), ..LoadOptions::default() }, 0);
    let wanted: Vec<Answer> =
        requests.iter().map(|r| answers(&alone, std::slice::from_ref(r)).remove(0).0).collect();
    // With 14 rows a step has no room for an image of 13 beside two answers; some lose their pages.
    for (chunk, kv_tokens) in [(14, None), (14, Some(224)), (48, Some(224))] {
        let options = LoadOptions {
            chunk: Some(chunk),
            kv_tokens,
            prefix_cache: true,
            max_outputs: 14,
            ..LoadOptions::default()
        };
        let engine = engine(name, options, 2);
        let found = answers(&engine, &requests);
        for (i, ((found, _), wanted)) in found.iter().zip(&wanted).enumerate() {
            assert_eq!(found, wanted, "{name}, request {i} in steps of {chunk}");
        }
        let stats = engine.stats();
        assert_eq!(stats.preemptions > 0, kv_tokens.is_some(), "{name}: {stats:?}");
        // How much of the prompts depends on which of them run together.
        assert!(stats.prefix_hits > 0, "{name}: {stats:?}");
    }
}

#[test]
fn a_prefix_does_not_end_within_rows_that_see_each_other() {
    let options = LoadOptions { chunk: Some(64), prefix_cache: true, ..LoadOptions::default() };
    let engine = engine("gemma3_text", options, 0);
    let prompt = |is_both: bool, n_text: usize| {
        let mut prompt: Prompt = (0..20).map(|i| 3 + i).collect();
        let rows = embeddings(0, 40, 32);
        let rows = if is_both { rows.bidirectional() } else { rows };
        prompt.push_embeddings(Arc::new(rows));
        prompt.push_tokens(&(0..n_text as u32).map(|i| 100 + i).collect::<Vec<_>>());
        let params = GenerateParams { max_tokens: Some(2), ..GenerateParams::default() };
        Request::new(prompt, params)
    };
    let cached = |request: Request| answers(&engine, &[request])[0].1;
    assert_eq!(cached(prompt(true, 9)), 0);
    assert_eq!(cached(prompt(true, 9)), 68);
    // Of a prompt that ends with the image the last row is run, and so all of the image.
    assert_eq!(cached(prompt(true, 0)), 20);
    // The same rows that see only those before them have other keys and values.
    assert_eq!(cached(prompt(false, 9)), 20);
    assert_eq!(cached(prompt(false, 0)), 59);
    assert_eq!(cached(prompt(true, 12)), 69);
}

#[test]
fn an_image_that_fits_no_step_is_refused_at_the_request() {
    let engine =
        engine("gemma3_text", LoadOptions { chunk: Some(16), ..LoadOptions::default() }, 0);
    let mut prompt = Prompt::from(vec![5]);
    prompt.push_embeddings(Arc::new(embeddings(0, 17, 32).bidirectional()));
    let request = Request::new(prompt, GenerateParams::default());
    let error = engine.submit(request, Box::new(|_| {})).unwrap_err();
    assert!(matches!(error, SubmitError::Invalid(_)), "{error}");
    let expected = "17 rows with bidirectional attention do not fit a step of 16 rows";
    assert!(error.to_string().contains(expected), "{error}");
}
