//! A request's logits depend on the request alone, to the last bit: not on what
//! else is in the batch, on how its prompt is cut, or on the number of threads.
//! This holds on every device of this machine.

use crate::common::gpus::gpus;
use crate::common::quantized::{write_quantized, write_quantized_experts};
use crate::common::tiny::tiny;
use realizar_quant::BlockType;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::backend::{Backend, Phase};
use realizar_runtime::{Chunk, LoadOptions, Model, Outputs, SeqId};
use std::path::{Path, PathBuf};

const N_SEQS: usize = 8;

/// Tiny models of different shapes, and one that mixes quantized types as files do.
fn models(dir: &Path) -> Vec<PathBuf> {
    use BlockType::{
        IQ4_NL, IQ4_XS, MXFP4, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0,
    };
    let quantized = dir.join("quantized.gguf");
    write_quantized(
        &quantized,
        &[Q8_0, Q4_K, Q5_0, Q6_K, IQ4_XS, Q4_1, Q3_K, Q4_0, MXFP4, Q5_K, Q2_K, Q5_1, IQ4_NL, Q6_K],
    );
    let names = [
        "llama",
        "qwen3",
        "gemma3_text",
        "phi",
        "gpt2",
        "lfm2",
        "qwen3_5_text",
        "qwen3_moe",
        "gpt_oss",
    ];
    let stored_in_parts = ["qwen3_fp8", "llama_awq", "olmo2_gptq"];
    names.into_iter().chain(stored_in_parts).map(tiny).chain([quantized, experts(dir)]).collect()
}

/// A model whose experts mix types that every device runs.
fn experts(dir: &Path) -> PathBuf {
    use BlockType::{BF16, F16, IQ4_XS, MXFP4, Q4_K, Q5_0, Q6_K, Q8_0};
    let path = dir.join("experts.gguf");
    write_quantized_experts(&path, &[Q4_K, Q6_K, Q8_0, IQ4_XS, MXFP4, F16, Q5_0, BF16]);
    path
}

/// A model whose experts mix types of few bits with others.
fn few_bits_experts(dir: &Path) -> PathBuf {
    use BlockType::{BF16, F16, IQ3_S, NVFP4, Q4_K, Q6_K, Q8_0};
    let path = dir.join("few_bits_experts.gguf");
    write_quantized_experts(&path, &[Q8_0, BF16, IQ3_S, Q4_K, F16, NVFP4, Q6_K]);
    path
}

/// A model that mixes the types of at most three bits, IQ3 and NVFP4.
fn few_bits(dir: &Path) -> PathBuf {
    use BlockType::{
        IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, NVFP4, Q1_0, Q2_0, Q8_0, TQ1_0, TQ2_0,
    };
    let path = dir.join("few_bits.gguf");
    let i_quants = [IQ3_S, IQ3_XXS, IQ2_S, IQ2_XS, IQ2_XXS, IQ1_M, IQ1_S];
    let others = [Q8_0, NVFP4, TQ2_0, TQ1_0, Q2_0, Q1_0];
    write_quantized(&path, &[&i_quants[..], &others].concat());
    path
}

fn cpu(n_threads: usize) -> Box<dyn Backend> {
    Box::new(CpuBackend::new(Some(n_threads), None).unwrap())
}

/// The CPU with prompts on tiles of BF16, which any processor computes in software.
fn cpu_with_tiles(n_threads: usize) -> Box<dyn Backend> {
    Box::new(CpuBackend::new(Some(n_threads), Some("amx-bf16-software")).unwrap())
}

/// The CPU with two threads, with and without tiles, and the GPUs.
fn devices() -> Vec<Box<dyn Backend>> {
    [cpu(2), cpu_with_tiles(2)].into_iter().chain(gpus()).collect()
}

fn load(path: &Path, backend: &dyn Backend, kv_type: BlockType) -> Model {
    let options = LoadOptions {
        kv_type: Some(kv_type),
        max_seq_len: Some(96),
        chunk: Some(128),
        max_outputs: 128,
        max_seqs: N_SEQS,
        ..LoadOptions::default()
    };
    Model::load(path, backend, &options).unwrap()
}

/// The tokens of sequence `i`: a prompt, then what is "generated", the same in
/// every run. Prompts differ in length, so batches are ragged.
fn tokens(i: usize) -> (Vec<u32>, Vec<u32>) {
    let token = |pos: usize| 3 + ((pos * 31 + i * 17 + pos * pos * 7) % 250) as u32;
    let n_prompt = 20 + 5 * i;
    ((0..n_prompt).map(token).collect(), (n_prompt..n_prompt + 6).map(token).collect())
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// The logits of the prompt's last token and of each generated one, the prompt
/// run in chunks of `chunk`.
fn alone(model: &mut Model, i: usize, chunk: usize) -> Vec<Vec<u32>> {
    alone_with(model, &tokens(i), chunk)
}

/// As [`alone`], for any prompt and what is generated after it.
fn alone_with(
    model: &mut Model,
    (prompt, generated): &(Vec<u32>, Vec<u32>),
    chunk: usize,
) -> Vec<Vec<u32>> {
    let runner = model.runner();
    let seq = runner.new_sequence();
    let mut rows = Vec::new();
    let cuts = prompt.chunks(chunk).map(|c| (c, Phase::Prefill));
    for (tokens, phase) in cuts.chain(generated.chunks(1).map(|c| (c, Phase::Decode))) {
        let step = Chunk { seq: &seq, rows: tokens.into(), phase, outputs: Outputs::Last };
        rows.push(bits(runner.step(&[step]).unwrap().row(0, 0)));
    }
    runner.remove(seq);
    rows.split_off(prompt.len().div_ceil(chunk) - 1)
}

/// The same for all sequences at once, sequence `i` one step after `i - 1`, so
/// that prompts and generated tokens share steps.
fn together(model: &mut Model) -> Vec<Vec<Vec<u32>>> {
    together_with(model, &(0..N_SEQS).map(tokens).collect::<Vec<_>>())
}

/// As [`together`], for any prompts and what is generated after them.
fn together_with(model: &mut Model, all: &[(Vec<u32>, Vec<u32>)]) -> Vec<Vec<Vec<u32>>> {
    let (runner, n_seqs) = (model.runner(), all.len());
    let seqs: Vec<SeqId> = all.iter().map(|_| runner.new_sequence()).collect();
    let n_decode = all.iter().map(|(_, generated)| generated.len()).max().unwrap();
    let mut rows = vec![Vec::new(); n_seqs];
    for step in 0..n_seqs + n_decode {
        let mut running = Vec::new();
        let mut chunks = Vec::new();
        for i in 0..n_seqs {
            let (prompt, generated) = &all[i];
            let (tokens, phase) = match step.checked_sub(i) {
                Some(0) => (&prompt[..], Phase::Prefill),
                Some(n) if n <= generated.len() => (&generated[n - 1..n], Phase::Decode),
                _ => continue,
            };
            running.push(i);
            chunks.push(Chunk {
                seq: &seqs[i],
                rows: tokens.into(),
                phase,
                outputs: Outputs::Last,
            });
        }
        let logits = runner.step(&chunks).unwrap();
        for (c, &i) in running.iter().enumerate() {
            rows[i].push(bits(logits.row(c, 0)));
        }
    }
    seqs.into_iter().for_each(|seq| runner.remove(seq));
    assert!(runner.pool_stats().iter().all(|stats| stats.used == 0), "pages were kept");
    rows
}

#[test]
fn a_batch_of_eight_gives_the_bits_of_eight_alone() {
    let dir = tempfile::tempdir().unwrap();
    let devices = devices();
    let of_few_bits = [few_bits(dir.path()), few_bits_experts(dir.path())];
    for path in models(dir.path()).into_iter().chain(of_few_bits) {
        for device in &devices {
            let mut model = load(&path, &**device, BlockType::F16);
            let batched = together(&mut model);
            for (i, rows) in batched.iter().enumerate() {
                let case = format!("{path:?} on {}: sequence {i}", device.name());
                assert_eq!(rows.len(), 7, "{case}: rows");
                assert!(rows == &alone(&mut model, i, 128), "{case} differs");
            }
        }
    }
}

#[test]
fn chunks_and_threads_change_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    let cpus = [cpu(1), cpu(2), cpu(3)];
    let with_tiles = [1, 2, 3].map(cpu_with_tiles);
    let gpus = gpus();
    let on_cpu = [few_bits_experts(dir.path())];
    for path in models(dir.path()).iter().chain(&on_cpu) {
        use BlockType::{BF16, F8, F16, F32, Q4_0, Q8_0};
        for kv_type in [F32, F16, BF16, F8, Q8_0, Q4_0] {
            let options = LoadOptions { kv_type: Some(kv_type), ..LoadOptions::default() };
            if let Err(error) = Model::load(path, &*cpus[0], &options) {
                // Most tiny models have heads of less than a block.
                let text = error.to_string();
                assert!(text.contains("are not whole blocks of 32"), "{path:?}: {text}");
                continue;
            }
            let check = |devices: &[Box<dyn Backend>]| {
                let whole = alone(&mut load(path, &*devices[0], kv_type), 3, 128);
                for (i, device) in devices.iter().enumerate() {
                    let mut model = load(path, &**device, kv_type);
                    for chunk in [1, 7, 32, 128] {
                        let name = device.name();
                        let case = format!("{path:?}, {kv_type}, {name} {i}, chunks of {chunk}");
                        assert!(alone(&mut model, 3, chunk) == whole, "{case}");
                    }
                }
            };
            check(&cpus);
            check(&with_tiles);
            // The kernels for the other types differ in loads and stores alone.
            let one = if kv_type.block_len() > 1 { "quantized.gguf" } else { "gemma3_text" };
            let is_checked = kv_type == F16 || path.ends_with(one);
            if is_checked && !on_cpu.contains(path) {
                gpus.chunks(1).for_each(check);
            }
        }
    }
}

/// Attention of decode rows is cut at multiples of 256 positions, and merged.
#[test]
fn contexts_beyond_the_split_of_attention_change_no_bit() {
    use BlockType::{F16, Q4_0, Q4_K, Q6_K, Q8_0};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("quantized.gguf");
    write_quantized(&path, &[Q8_0, Q4_K, Q6_K, Q4_0]);
    // Decode rows go from the first part of a context to the second, and on to the third.
    let token = |salt: usize, pos: usize| 3 + ((pos * 31 + salt * 17 + pos * pos * 7) % 250) as u32;
    let text = |(salt, n): (usize, usize)| {
        let tokens = |range: std::ops::Range<usize>| range.map(|pos| token(salt, pos)).collect();
        (tokens(0..n), tokens(n..n + 10))
    };
    let all: Vec<_> = [250, 300, 508].into_iter().enumerate().map(text).collect();
    let check = |devices: &[&dyn Backend], kv_type: BlockType| {
        let load = |device: &dyn Backend| {
            let options = LoadOptions {
                kv_type: Some(kv_type),
                max_seq_len: Some(640),
                chunk: Some(512),
                max_seqs: all.len(),
                ..LoadOptions::default()
            };
            Model::load(&path, device, &options).unwrap()
        };
        let batched = together_with(&mut load(devices[0]), &all);
        let mut models: Vec<_> = devices.iter().map(|device| load(*device)).collect();
        for (i, (text, rows)) in all.iter().zip(&batched).enumerate() {
            assert_eq!(rows.len(), 11, "rows");
            for (model, chunk) in models.iter_mut().zip([512, 100, 37]) {
                let case = format!("{kv_type}, sequence {i} alone in chunks of {chunk}");
                assert!(alone_with(model, text, chunk) == *rows, "{}: {case}", model.backend());
            }
        }
    };
    let cpus = [cpu(3), cpu(2), cpu(1)];
    let with_tiles = [3, 2, 1].map(cpu_with_tiles);
    for kv_type in [F16, Q8_0] {
        check(&[&*cpus[0], &*cpus[1], &*cpus[2]], kv_type);
        check(&[&*with_tiles[0], &*with_tiles[1], &*with_tiles[2]], kv_type);
    }
    for kv_type in [F16, Q4_0] {
        gpus().iter().take(1).for_each(|gpu| check(&[&**gpu], kv_type));
    }
}

#[test]
fn all_rows_of_a_prompt_are_what_each_is_alone() {
    let mut model = load(&tiny("gemma3_text"), &*cpu(2), BlockType::F16);
    let (prompt, _) = tokens(2);
    let positions: Vec<usize> = (0..prompt.len()).collect();
    let all = model.logits(&prompt, &positions, 128).unwrap();
    for pos in positions {
        let one = model.logits(&prompt[..=pos], &[pos], 5).unwrap();
        assert_eq!(bits(&all[pos]), bits(&one[0]), "position {pos}");
    }
}

#[test]
fn chunks_that_make_no_sense_are_refused_and_change_nothing() {
    let mut model = load(&tiny("llama"), &*cpu(1), BlockType::F16);
    let before = alone(&mut model, 0, 128);
    let runner = model.runner();
    let seq = runner.new_sequence();
    let chunk = |tokens: &'static [u32], outputs| Chunk {
        seq: &seq,
        rows: tokens.into(),
        phase: Phase::Prefill,
        outputs,
    };
    let whole = chunk(&[3, 4], Outputs::Last);
    for (chunks, expected) in [
        (vec![chunk(&[], Outputs::None)], "a chunk has no rows"),
        (vec![whole, whole], "a sequence has two chunks in one step"),
        (
            vec![chunk(&[3, 4], Outputs::At(&[2]))],
            "the output rows of a chunk must be in it and ascending",
        ),
        (
            vec![chunk(&[3, 4], Outputs::At(&[1, 0]))],
            "the output rows of a chunk must be in it and ascending",
        ),
        (vec![chunk(&[9999], Outputs::Last)], "token 9999 is not in the vocabulary of 288"),
        (vec![chunk(&[3; 97], Outputs::Last)], "97 tokens do not fit the context of 96"),
    ] {
        let error = runner.step(&chunks).map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert_eq!(runner.seq_len(&seq), 0);
    }
    runner.remove(seq);
    assert!(runner.pool_stats().iter().all(|stats| stats.used == 0), "pages were kept");
    assert!(alone(&mut model, 0, 128) == before);
}

#[test]
fn a_prompt_can_be_cancelled_between_its_chunks() {
    use realizar_runtime::{Event, FinishReason, GenerateParams};
    use std::ops::ControlFlow;

    let backend = CpuBackend::new(Some(1), None).unwrap();
    let options = LoadOptions { chunk: Some(8), ..LoadOptions::default() };
    let path = tiny("llama").join("model-f32.gguf");
    let mut model = Model::load(&path, &backend, &options).unwrap();
    let ids: Vec<u32> = (3..43).collect();
    let mut session = model.new_session();
    let params = GenerateParams { max_tokens: Some(1), ..GenerateParams::default() };
    let mut seen = Vec::new();
    let mut until = |limit: usize, session: &mut realizar_runtime::Session| {
        let mut go = |event: &Event<'_>| {
            if let Event::Prompt { done, total } = event {
                seen.push((*done, *total));
                if *done >= limit {
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        };
        session.generate(&mut model, &ids, &params, &mut go).unwrap()
    };
    assert_eq!(until(16, &mut session).finish_reason, FinishReason::Cancelled);
    let rest = until(100, &mut session);
    assert_eq!((rest.finish_reason, rest.timings.cached_tokens), (FinishReason::Length, 16));
    assert_eq!(seen, [(8, 40), (16, 40), (24, 40), (32, 40), (40, 40)]);
}

#[test]
fn what_a_session_keeps_changes_no_answer() {
    use realizar_runtime::GenerateParams;
    use realizar_runtime::sampling::SamplingParams;
    use std::ops::ControlFlow;

    let params = GenerateParams {
        sampling: Some(SamplingParams::greedy()),
        max_tokens: Some(8),
        ignore_eos: true,
        logprobs: Some(4),
        ..GenerateParams::default()
    };
    let cases = [
        ("llama", cpu(2)),
        ("gemma3_text", cpu(2)),
        ("lfm2", cpu(2)),
        ("qwen3_5_text", cpu(2)),
        ("llama", cpu_with_tiles(2)),
        ("gemma3_text", cpu_with_tiles(2)),
    ];
    let on_gpus = ["lfm2", "qwen3_5_text"]
        .into_iter()
        .flat_map(|name| gpus().into_iter().take(1).map(move |gpu| (name, gpu)));
    for (name, backend) in cases.into_iter().chain(on_gpus) {
        let path = tiny(name).join("model-f32.gguf");
        let options = LoadOptions { max_seqs: 2, chunk: Some(16), ..LoadOptions::default() };
        let mut model = Model::load(&path, &*backend, &options).unwrap();
        let (first, more) = tokens(1);
        let mut go = |_: &realizar_runtime::Event<'_>| ControlFlow::Continue(());

        // A conversation: the second prompt holds the first, its answer and more.
        let mut session = model.new_session();
        let answer = session.generate(&mut model, &first, &params, &mut go).unwrap();
        assert_eq!(answer.timings.cached_tokens, 0);
        let second = [&first[..], &answer.ids, &more].concat();
        let kept = session.generate(&mut model, &second, &params, &mut go).unwrap();
        session.close(&mut model);

        let mut fresh = model.new_session();
        let expected = fresh.generate(&mut model, &second, &params, &mut go).unwrap();
        assert_eq!(kept.ids, expected.ids, "{name}");
        assert_eq!(kept.top_logprobs, expected.top_logprobs, "{name}");
        if name != "gemma3_text" {
            // What was written as a prompt is kept, what was generated is not.
            assert_eq!(kept.timings.cached_tokens, first.len());
        }
    }
}
