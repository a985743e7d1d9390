//! Attention of the CPU backend, run through a runner, against its definition in f64.

use super::{Chunk, Outputs, PromptRules, Runner};
use realizar_backends::cpu::CpuBackend;
use realizar_backends::{Arithmetic, Backend, ExecutableOptions, Phase};
use realizar_formats::Bytes;
use realizar_kvcache::KvLayout;
use realizar_model::ModelOutput;
use realizar_model::graph::plan::{RowLimits, plan};
use realizar_model::graph::weights::{Linear, Weight, WeightData, WeightId, Weights};
use realizar_model::graph::{AttentionSpec, GraphBuilder, Reach, WeightInfo, fuse};
use realizar_quant::BlockType;

const N_HEADS: usize = 4;
const N_KV_HEADS: usize = 2;
const HEAD_DIM: usize = 8;
const DIM: usize = N_HEADS * HEAD_DIM;
const VOCAB_SIZE: usize = 32;
const KV_DIM: usize = N_KV_HEADS * HEAD_DIM;
const SCALE: f32 = 0.35;
const SINKS: [f32; N_HEADS] = [-1.5, 0.0, 1.25, 4.0];

/// A pseudo-random matrix. // [rows, cols]
fn matrix(seed: usize, rows: usize, cols: usize) -> Vec<f32> {
    (0..rows * cols).map(|i| ((i * 7919 + seed * 104_729) % 401) as f32 / 400.0 - 0.5).collect()
}

/// Table, wq, wk, wv: rows and columns.
const MATRICES: [(&str, usize, usize); 4] =
    [("tok_embed", VOCAB_SIZE, DIM), ("wq", DIM, DIM), ("wk", KV_DIM, DIM), ("wv", KV_DIM, DIM)];

/// The attention of one layer, straight from embeddings; its result is the output.
fn runner(n_threads: usize, window: Option<usize>) -> (Runner, String) {
    let mut weights = Weights::default();
    let mut infos = Vec::new();
    let matrices: Vec<Weight> = (0..)
        .zip(MATRICES)
        .map(|(id, (name, rows, cols))| {
            let values = matrix(id as usize, rows, cols);
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            let (ty, data) = (BlockType::F32, Bytes::from(bytes));
            weights.0.push(WeightData::Matrix { ty, rows, cols, data });
            infos.push(WeightInfo { name: name.to_owned(), shape: vec![rows, cols], ty });
            Weight { id: WeightId(id), rows, cols }
        })
        .collect();
    weights.0.push(WeightData::Vector(SINKS.to_vec()));
    let name = "attn_sinks".to_owned();
    infos.push(WeightInfo { name, shape: vec![N_HEADS], ty: BlockType::F32 });

    let mut b = GraphBuilder::new();
    let x = b.embed(&matrices[0], 1.0);
    let linear = |i: usize| Linear { weight: matrices[i], bias: None, order: None, factor: 1.0 };
    let [q, k, v] = [1, 2, 3].map(|i| b.linear(x, &linear(i)));
    let spec = AttentionSpec {
        n_heads: N_HEADS,
        n_kv_heads: N_KV_HEADS,
        head_dim: HEAD_DIM,
        scale: SCALE,
        softcap: None,
        window,
        chunked: false,
        reach: Reach::Causal,
        sinks: Some(WeightId(4)),
        alibi: None,
    };
    let a = b.attention(q, k, v, &spec);
    let output = b.select_rows(a);
    let mut graph = b.finish(output);
    graph.weights = infos;

    let backend = CpuBackend::new(Some(n_threads), None).unwrap();
    let limits = RowLimits { tokens: 64, outputs: 64 };
    let graph = fuse(graph, backend.fusions());
    let layout = KvLayout::new(BlockType::F32, graph.kv_groups[0].clone()).unwrap();
    let kv = vec![(layout, 4)];
    let options = ExecutableOptions {
        arithmetic: Arithmetic::F32,
        kv: kv.clone(),
        n_states: 0,
        max_seq_len: 64,
        profile: false,
        logits: false,
        packed_files: None,
    };
    let executable = backend.load(plan(&graph, limits), weights, &options).unwrap();
    let output = (ModelOutput::Embeddings, DIM);
    let rules = PromptRules::new(&graph, (VOCAB_SIZE, DIM), limits);
    (Runner::new(executable, limits, output, rules, 64, (&kv, None), false), graph.to_string())
}

/// The output at every position of a prompt that is run in chunks.
fn run(runner: &mut Runner, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let seq = runner.new_sequence();
    let mut rows = Vec::new();
    for tokens in tokens.chunks(chunk) {
        let all: Vec<usize> = (0..tokens.len()).collect();
        let outputs = Outputs::At(&all);
        let chunk = Chunk { seq: &seq, rows: tokens.into(), phase: Phase::Prefill, outputs };
        let logits = runner.step(&[chunk]).unwrap();
        rows.extend(all.iter().map(|&i| logits.row(0, i).to_vec()));
    }
    runner.remove(seq);
    rows
}

/// `w x` of every token's embedding, in f64. // [n_tokens][rows]
fn project(i: usize, tokens: &[u32]) -> Vec<Vec<f64>> {
    let (_, rows, cols) = MATRICES[i];
    let (table, w) = (matrix(0, VOCAB_SIZE, DIM), matrix(i, rows, cols));
    let dot = |x: &[f32], w: &[f32]| -> f64 {
        x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum()
    };
    let embedded = tokens.iter().map(|&t| &table[t as usize * DIM..][..DIM]);
    embedded.map(|x| w.chunks(cols).map(|w| dot(x, w)).collect()).collect()
}

/// What attention gives at `pos`, by the definition.
fn expected(tokens: &[u32], pos: usize, window: Option<usize>) -> Vec<f64> {
    let [q, k, v] = [1, 2, 3].map(|i| project(i, tokens));
    let first = window.map_or(0, |w| (pos + 1).saturating_sub(w));
    let mut out = Vec::new();
    for (h, sink) in SINKS.into_iter().enumerate() {
        let (q_col, kv_col) = (h * HEAD_DIM, h / (N_HEADS / N_KV_HEADS) * HEAD_DIM);
        let weights: Vec<f64> = (first..=pos)
            .map(|p| {
                let pairs = q[pos][q_col..][..HEAD_DIM].iter().zip(&k[p][kv_col..]);
                (f64::from(SCALE) * pairs.map(|(q, k)| q * k).sum::<f64>()).exp()
            })
            .collect();
        let sum = weights.iter().sum::<f64>() + f64::from(sink).exp();
        out.extend((kv_col..kv_col + HEAD_DIM).map(|c| {
            let values = v[first..=pos].iter().zip(&weights);
            values.map(|(v, weight)| v[c] * weight).sum::<f64>() / sum
        }));
    }
    out
}

#[test]
fn attention_with_sinks_matches_f64() {
    let tokens: Vec<u32> = (0..41).map(|i| (i * 17 + i * i * 3) % VOCAB_SIZE as u32).collect();
    for window in [None, Some(6)] {
        let (mut whole, text) = runner(1, window);
        assert!(text.contains("sinks attn_sinks F32[4]"), "{text}");
        let rows = run(&mut whole, &tokens, 64);
        for (pos, row) in rows.iter().enumerate() {
            for (found, e) in row.iter().zip(expected(&tokens, pos, window)) {
                let apart = (f64::from(*found) - e).abs();
                assert!(apart < 2e-6, "window {window:?}, position {pos}: {found} for {e}");
            }
        }
        let bits = |rows: &[Vec<f32>]| -> Vec<u32> {
            rows.iter().flatten().map(|x| x.to_bits()).collect()
        };
        for (n_threads, chunk) in [(1, 1), (2, 7), (3, 64)] {
            let found = run(&mut runner(n_threads, window).0, &tokens, chunk);
            assert_eq!(bits(&found), bits(&rows), "{n_threads} threads, chunks of {chunk}");
        }
    }
}
