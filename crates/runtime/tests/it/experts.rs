//! Experts on every device: how rows are sent to them, and how files store them.

use crate::common::gpus::gpus;
use crate::common::quantized::write_quantized_experts;
use crate::common::tiny::tiny;
use realizar_formats::{Gguf, GgufWriter, Tensor};
use realizar_quant::BlockType;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::backend::{Arithmetic, Backend, Batch, BatchSeq, ExecutableOptions, Phase};
use realizar_runtime::graph::{GraphBuilder, Groups, Route, Scoring};
use realizar_runtime::plan::{RowLimits, plan};
use realizar_runtime::weights::Weights;
use realizar_runtime::{Chunk, LoadOptions, Model, Outputs};
use std::path::Path;

fn devices() -> impl Iterator<Item = Box<dyn Backend>> {
    let cpu: Box<dyn Backend> = Box::new(CpuBackend::new(Some(2), None).unwrap());
    std::iter::once(cpu).chain(gpus())
}

/// Numbers from minus two to two that are all different.
fn score(row: usize, expert: usize) -> f32 {
    ((row * 7919 + expert * 104_729 + row * expert * 31) % 4001) as f32 / 1000.0 - 2.0
}

/// The definition: the experts of a row and their factors, by sigmoids that are normalized and scaled.
fn expected(row: usize, route: &Route, groups: Groups) -> Vec<f64> {
    let Groups { n: n_groups, n_open, n_best } = groups;
    let sigmoid = |expert| 1.0 / (1.0 + (-f64::from(score(row, expert))).exp());
    let factors: Vec<f64> = (0..route.n_experts).map(sigmoid).collect();
    let len = route.n_experts / n_groups;
    let worth = |group: &usize| {
        let mut of_group = factors[group * len..][..len].to_vec();
        of_group.sort_by(|a, b| b.total_cmp(a));
        of_group.iter().take(n_best).sum::<f64>()
    };
    let mut groups: Vec<usize> = (0..n_groups).collect();
    groups.sort_by(|a, b| worth(b).total_cmp(&worth(a)));
    let open = &groups[..n_open];
    let mut experts: Vec<usize> =
        (0..route.n_experts).filter(|expert| open.contains(&(expert / len))).collect();
    experts.sort_by(|&a, &b| factors[b].total_cmp(&factors[a]));
    experts.truncate(route.n_chosen);
    experts.sort_unstable();
    let sum: f64 = experts.iter().map(|&expert| factors[expert]).sum();
    let of = |&expert: &usize| f64::from(route.scale) * factors[expert] / sum;
    experts.iter().map(|&expert| expert as f64).chain(experts.iter().map(of)).collect()
}

#[test]
fn rows_choose_experts_of_the_best_groups() {
    const N_ROWS: usize = 70;
    for (n_experts, n_chosen, [n, n_open, n_best]) in [
        (64, 6, [8, 4, 2]),
        (12, 4, [3, 1, 2]),
        (256, 8, [8, 4, 2]),
        (160, 6, [8, 3, 1]),
        (12, 3, [4, 2, 1]),
    ] {
        let groups = Groups { n, n_open, n_best };
        let route = Route {
            scoring: Scoring::Sigmoid,
            n_experts,
            n_chosen,
            choice_bias: None,
            groups: Some(groups),
            normalize: true,
            scale: 2.5,
        };
        for device in devices() {
            let mut b = GraphBuilder::new();
            let scores = b.input(n_experts);
            let routes = b.route(scores, route);
            let graph = b.finish(routes);
            let options = ExecutableOptions {
                arithmetic: Arithmetic::F32,
                kv: Vec::new(),
                n_states: 0,
                max_seq_len: N_ROWS,
                profile: false,
                logits: false,
                packed_files: None,
            };
            let limits = RowLimits { tokens: N_ROWS, outputs: 1 };
            let plan = plan(&graph, limits);
            let mut executable = device.load(plan, Weights::default(), &options).unwrap();
            let mut batch = Batch::with_capacity(N_ROWS, 0);
            batch.seqs.push(BatchSeq { first_row: 0, n_rows: N_ROWS, first_pos: 0 });
            batch.tokens.resize(N_ROWS, 0);
            batch.positions.extend(0..N_ROWS as u32);
            let input: Vec<f32> =
                (0..N_ROWS).flat_map(|row| (0..n_experts).map(move |e| score(row, e))).collect();
            let found = executable.run(&batch, &input).unwrap();
            for (row, found) in found.chunks_exact(2 * n_chosen).enumerate() {
                for (found, wanted) in found.iter().zip(expected(row, &route, groups)) {
                    let apart = (f64::from(*found) - wanted).abs();
                    let case = format!("{n_experts} experts on {}, row {row}", device.name());
                    assert!(apart < 1e-5, "{case}: {found} for {wanted}");
                }
            }
        }
    }
}

/// The bits of the logits of a prompt's rows, in steps of this many tokens, and of rows generated after it.
fn bits(path: &Path, device: &dyn Backend, n_prompt: usize, chunk: usize) -> Vec<u32> {
    let options = LoadOptions {
        max_seq_len: Some(n_prompt + 8),
        chunk: Some(n_prompt),
        max_outputs: n_prompt,
        ..LoadOptions::default()
    };
    let mut model = Model::load(path, device, &options).unwrap();
    let runner = model.runner();
    let seq = runner.new_sequence();
    let tokens: Vec<u32> = (0..n_prompt as u32 + 4).map(|i| 3 + i * i * 7 % 250).collect();
    let (prompt, generated) = tokens.split_at(n_prompt);
    let chunks = prompt.chunks(chunk).map(|tokens| (tokens, Phase::Prefill));
    let generated = generated.chunks(1).map(|token| (token, Phase::Decode));
    let mut rows = Vec::new();
    for (tokens, phase) in chunks.chain(generated) {
        let step = Chunk { seq: &seq, rows: tokens.into(), phase, outputs: Outputs::All };
        let given = runner.step(&[step]).unwrap();
        (0..tokens.len()).for_each(|i| rows.extend(given.row(0, i).iter().map(|x| x.to_bits())));
    }
    runner.remove(seq);
    rows
}

/// Pairs in tiles of either height, and hardly any.
#[test]
fn how_many_rows_share_a_matrix_shows_in_no_bit() {
    use BlockType::{F16, Q4_K, Q6_K, Q8_0};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("experts.gguf");
    write_quantized_experts(&path, &[Q4_K, Q6_K, Q8_0, F16]);
    for device in devices() {
        let whole = bits(&path, &*device, 130, 130);
        assert!(whole.iter().all(|&bits| f32::from_bits(bits).is_finite()));
        for chunk in [1, 40, 90] {
            let found = bits(&path, &*device, 130, chunk);
            assert!(found == whole, "in steps of {chunk} on {}", device.name());
        }
    }
}

/// Writes a GGUF file whose experts are tensors of their own, as files had them before early 2024, without
/// the last `n_missing` ones.
fn write_unstacked(from: &Path, to: &Path, n_missing: usize) {
    let source = Gguf::open(from).unwrap();
    let all: Vec<Tensor> =
        source.tensors().iter().map(|info| source.tensor(&info.name).unwrap()).collect();
    let mut out = GgufWriter::new();
    for (key, value) in source.metadata().iter() {
        out.set(key, value.clone()).unwrap();
    }
    let mut tensors = Vec::new(); // (name, shape, data)
    for tensor in &all {
        let Some((layer, leaf)) = tensor.name.split_once(".ffn_") else {
            tensors.push((tensor.name.clone(), tensor, None));
            continue;
        };
        match leaf.strip_suffix("_exps.weight") {
            None => tensors.push((tensor.name.clone(), tensor, None)),
            Some(leaf) => tensors.extend((0..tensor.shape[0]).map(|expert| {
                (format!("{layer}.ffn_{leaf}.{expert}.weight"), tensor, Some(expert))
            })),
        }
    }
    let is_single = |of: &(_, _, Option<usize>)| of.2.is_some();
    assert_eq!(tensors.iter().filter(|of| is_single(of)).count(), 3 * 4 * 3);
    let mut n_left = 3 * 4 * 3 - n_missing;
    for (name, tensor, expert) in tensors {
        let (shape, data) = match expert {
            None => (&tensor.shape[..], &tensor.data[..]),
            Some(_) if n_left == 0 => continue,
            Some(expert) => {
                n_left -= 1;
                let n_bytes = tensor.data.len() / tensor.shape[0];
                (&tensor.shape[1..], &tensor.data[expert * n_bytes..][..n_bytes])
            }
        };
        out.tensor(&name, tensor.ty, shape, data).unwrap();
    }
    out.write_file(to).unwrap();
}

#[test]
fn experts_may_be_tensors_of_their_own_in_gguf_files() {
    let dir = tempfile::tempdir().unwrap();
    let stacked = tiny("mixtral").join("model-f32.gguf");
    let single = dir.path().join("single.gguf");
    write_unstacked(&stacked, &single, 0);
    for device in devices() {
        let expected = bits(&stacked, &*device, 30, 30);
        assert!(bits(&single, &*device, 30, 30) == expected, "{}", device.name());
    }
    let cut = dir.path().join("cut.gguf");
    write_unstacked(&stacked, &cut, 1);
    let cpu = CpuBackend::new(Some(1), None).unwrap();
    let error = Model::load(&cut, &cpu, &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains("blk.2.ffn_") && error.contains(".3.weight"), "{error}");
}
