//! Layers that are divided among ranks, on interpreters of CUDA kernels that exchange rows: the logits of transformers,
//! the same bits for every chunk and batch, and clear errors for what cannot be divided.

use crate::common::golden::Golden;
use crate::common::quantized::{write_quantized, write_quantized_experts};
use crate::common::tiny::tiny;
use realizar_kernels_cuda::Interpreter;
use realizar_ptx::Checks;
use realizar_quant::BlockType;
use realizar_runtime::backend::cuda::CudaRanks;
use realizar_runtime::backend::{Arithmetic, Phase};
use realizar_runtime::device::{self, DeviceChoice, DeviceOptions};
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::{Chunk, Error, GenerateParams, LoadOptions, Model, ModelOutput, Outputs};
use std::ops::ControlFlow;
use std::path::Path;

fn try_load(path: &Path, n_ranks: usize, options: &LoadOptions) -> Result<Model, Error> {
    let devices = DeviceOptions {
        n_threads: Some(1),
        tensor_parallel: Some(n_ranks),
        ..DeviceOptions::default()
    };
    let list = DeviceChoice::CudaInterpreter.into();
    device::load(path, &list, None, &devices, options).map(|loaded| loaded.model)
}

fn load(path: &Path, n_ranks: usize, options: &LoadOptions) -> Model {
    match try_load(path, n_ranks, options) {
        Ok(model) => model,
        Err(error) => panic!("{path:?} on {n_ranks} ranks: {error}"),
    }
}

fn exact() -> LoadOptions {
    LoadOptions { arithmetic: Arithmetic::F32, max_seq_len: Some(96), ..LoadOptions::default() }
}

/// How many nodes of the graph begin with a word, as the graph is printed.
fn n_nodes(model: &Model, what: &str) -> usize {
    model.placement().to_string().lines().filter(|line| line.contains(what)).count()
}

#[test]
fn two_ranks_give_the_logits_of_transformers() {
    // Name; layers whose two sums over the ranks are there: those of attention and of the network after it.
    let cases = [
        ("llama", 8),
        // Biases; norms on heads; windows and norms after the sums; a softcap on logits that are gathered.
        ("qwen2", 8),
        ("qwen3", 8),
        ("gemma3_text", 12),
        ("gemma2", 8),
        // Layer norms with biases, and both networks of a layer on one input.
        ("gpt2", 8),
        ("phi", 8),
        ("phi3", 8),
        // Experts, alone and beside one that all rows share.
        ("mixtral", 6),
        ("qwen3_moe", 6),
        ("qwen2_moe", 6),
        // Norms over all heads keep attention whole.
        ("olmo2", 4),
    ];
    for (name, n_sums) in cases {
        let mut model = load(&tiny(name), 2, &exact());
        Golden::read(&tiny(name)).check(&mut model, &format!("{name} on two ranks"));
        assert_eq!(n_nodes(&model, "sum over the ranks"), n_sums, "{name}");
        assert_eq!(n_nodes(&model, "columns of all ranks"), 1, "{name}");
        assert_eq!(model.metrics().devices.len(), 2, "{name}");
    }
}

#[test]
fn four_ranks_share_the_key_value_heads() {
    // Two key-value heads, each of which two ranks have.
    for name in ["llama", "gemma3_text", "mixtral"] {
        let mut model = load(&tiny(name), 4, &exact());
        Golden::read(&tiny(name)).check(&mut model, &format!("{name} on four ranks"));
        assert!(n_nodes(&model, ", 1/1 heads of") > 0, "{name}: {}", model.placement());
    }
}

#[test]
fn layers_that_carry_a_state_are_on_every_rank() {
    for name in ["lfm2", "qwen3_5_text"] {
        let mut model = load(&tiny(name), 2, &exact());
        Golden::read(&tiny(name)).check(&mut model, &format!("{name} on two ranks"));
        assert!(n_nodes(&model, "sum over the ranks") > 0, "{name}");
    }
}

#[test]
fn every_rank_holds_its_part_of_the_weights() {
    let options = exact();
    let path = tiny("llama");
    let whole = load(&path, 1, &options);
    let two = load(&path, 2, &options);
    // The embedding (BF16), nine norms and the four frequencies of the angles are on both; all else, and the keys and
    // values, once.
    let both = 2 * 288 * 32 + 4 * (9 * 32 + 4);
    assert_eq!(two.memory().kv, whole.memory().kv);
    assert_eq!(two.memory().weights, whole.memory().weights + both);
    assert_eq!(two.backend(), format!("{} x 2", whole.backend()));
    let needed = device::memory_needed(
        &path,
        &DeviceChoice::CudaInterpreter.into(),
        None,
        &DeviceOptions { tensor_parallel: Some(2), ..DeviceOptions::default() },
        &options,
    );
    assert_eq!(needed.unwrap(), two.memory());
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}

/// The logits of a prompt's last token and of three tokens after it, alone in their steps.
fn alone(model: &mut Model, seed: u32, chunk: usize) -> Vec<Vec<u32>> {
    let (prompt, generated) = tokens(seed);
    let runner = model.runner();
    let seq = runner.new_sequence();
    let cuts = prompt.chunks(chunk).map(|c| (c, Phase::Prefill));
    let mut rows = Vec::new();
    for (tokens, phase) in cuts.chain(generated.chunks(1).map(|c| (c, Phase::Decode))) {
        let step = Chunk { seq: &seq, rows: tokens.into(), phase, outputs: Outputs::Last };
        rows.push(bits(runner.step(&[step]).unwrap().row(0, 0)));
    }
    runner.remove(seq);
    rows.split_off(prompt.len().div_ceil(chunk) - 1)
}

fn tokens(seed: u32) -> (Vec<u32>, Vec<u32>) {
    let token = |pos: u32| 3 + (pos * 31 + seed * 17 + pos * pos * 7) % 250;
    ((0..20 + 3 * seed).map(token).collect(), (40..43).map(token).collect())
}

#[test]
fn batches_chunks_and_runs_change_no_bit() {
    use BlockType::{F16, IQ4_NL, Q4_0, Q5_0, Q8_0};
    let dir = tempfile::tempdir().unwrap();
    let dense = dir.path().join("dense.gguf");
    write_quantized(&dense, &[Q8_0, Q4_0, Q5_0, F16, IQ4_NL]);
    let experts = dir.path().join("experts.gguf");
    write_quantized_experts(&experts, &[Q8_0, Q5_0, F16]);
    let options = LoadOptions { max_seq_len: Some(96), max_seqs: 3, ..LoadOptions::default() };
    for path in [dense, experts, tiny("gemma3_text")] {
        let mut model = load(&path, 2, &options);
        let whole: Vec<_> = (0..3).map(|seed| alone(&mut model, seed, 64)).collect();
        assert!(alone(&mut model, 1, 7) == whole[1], "{path:?} in chunks");
        let mut again = load(&path, 2, &options);
        assert!(alone(&mut again, 1, 64) == whole[1], "{path:?} loaded again");
        // A step after one another, so that prompts and generated tokens share steps.
        let runner = model.runner();
        let seqs: Vec<_> = (0..3).map(|_| runner.new_sequence()).collect();
        let all: Vec<_> = (0..3).map(tokens).collect();
        let mut found = vec![Vec::new(); 3];
        for step in 0..6_usize {
            let mut running = Vec::new();
            let mut chunks = Vec::new();
            for (i, (prompt, generated)) in all.iter().enumerate() {
                let (rows, phase) = match step.checked_sub(i) {
                    Some(0) => (&prompt[..], Phase::Prefill),
                    Some(n) if n <= 3 => (&generated[n - 1..n], Phase::Decode),
                    _ => continue,
                };
                running.push(i);
                let rows = rows.into();
                chunks.push(Chunk { seq: &seqs[i], rows, phase, outputs: Outputs::Last });
            }
            let logits = runner.step(&chunks).unwrap();
            for (c, &i) in running.iter().enumerate() {
                found[i].push(bits(logits.row(c, 0)));
            }
        }
        seqs.into_iter().for_each(|seq| runner.remove(seq));
        assert!(found == whole, "{path:?} in batches");
    }
}

#[test]
fn tokens_are_chosen_on_the_first_rank() {
    let sampling = SamplingParams::greedy();
    let params = GenerateParams {
        sampling: Some(sampling),
        max_tokens: Some(6),
        ..GenerateParams::default()
    };
    let path = tiny("llama").join("model-f32.gguf");
    let generate = |n_ranks: usize| {
        let mut model = load(&path, n_ranks, &exact());
        let mut session = model.new_session();
        let ids = [5, 9, 77, 30, 4];
        let made = session.generate(&mut model, &ids, &params, &mut |_| ControlFlow::Continue(()));
        made.unwrap().ids
    };
    let alone = generate(1);
    assert!(!alone.is_empty());
    assert_eq!(generate(2), alone);
}

#[test]
fn hidden_states_are_whole() {
    let options = LoadOptions { output: ModelOutput::Embeddings, ..exact() };
    let ids: Vec<u32> = (3..20).collect();
    let embed = |n_ranks: usize| {
        let mut model = load(&tiny("qwen3"), n_ranks, &options);
        let runner = model.runner();
        let seq = runner.new_sequence();
        let rows = ids[..].into();
        let step = Chunk { seq: &seq, rows, phase: Phase::Prefill, outputs: Outputs::Last };
        let row = runner.step(&[step]).unwrap().row(0, 0).to_vec();
        runner.remove(seq);
        row
    };
    let (one, two) = (embed(1), embed(2));
    let scale = one.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    assert!(one.iter().zip(&two).all(|(a, b)| (a - b).abs() <= 1e-5 * scale));
}

#[test]
fn a_rank_that_fails_ends_the_step_of_all() {
    let broken = Checks { max_instructions: 1, ..Checks::FAST };
    for checks in [[Checks::FAST, broken.clone()], [broken, Checks::FAST]] {
        let devices = checks.map(|checks| Interpreter::new(checks, usize::MAX));
        let ranks = CudaRanks::new(devices.into()).unwrap();
        let mut model = Model::load(&tiny("llama"), &ranks, &exact()).unwrap();
        let mut failed = || model.logits(&[5, 9, 77], &[2], 16).unwrap_err().to_string();
        let error = failed();
        assert!(error.contains("instructions"), "{error}");
        assert_eq!(failed(), error, "nothing runs after it");
    }
}

#[test]
fn what_cannot_be_divided_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("k.gguf");
    write_quantized(&path, &[BlockType::Q8_0, BlockType::Q4_K]);
    let refused = |path: &Path, n_ranks: usize| {
        let error = try_load(path, n_ranks, &exact()).expect_err("it cannot be divided");
        error.to_string()
    };
    assert_eq!(
        refused(&path, 2),
        "the model cannot be divided among 2 ranks: `layers.1.wo` of Q4_K has 256 columns in \
         blocks of 256, which cannot be divided evenly"
    );
    assert_eq!(
        refused(&tiny("llama_awq"), 2),
        "the model cannot be divided among 2 ranks: `layers.0.wo` of Q4_Z has 32 columns in blocks \
         of 32, which cannot be divided evenly"
    );
    assert_eq!(
        refused(&tiny("llama"), 3),
        "the model cannot be divided among 3 ranks: the 4 query heads and 2 key-value heads of \
         layer 0 cannot be divided evenly"
    );
}
