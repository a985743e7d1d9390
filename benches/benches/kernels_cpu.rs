//! The CPU kernels on all physical cores, at sizes of a 7B model's layer.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use realizar_benches::{block_bytes, values};
use realizar_kernels_cpu::{
    Epilogue, MatrixRef, Norm, PanelScratch, QuantizedRows, Rows, RowsMut, Team, Tier,
    default_threads, matmul_f32, matmul_int8, norm,
};
use realizar_quant::BlockType;
use std::hint::black_box;

const DIM: usize = 4096;
const TYPES: [BlockType; 5] =
    [BlockType::Q4_0, BlockType::Q4_1, BlockType::Q8_0, BlockType::Q4_K, BlockType::Q6_K];

/// One generated token: weights are read once, so the rate is in bytes.
fn int8(c: &mut Criterion) {
    let (team, tier) = (Team::new(default_threads()), Tier::detect());
    let x = values(DIM);
    let x = Rows::new(&x, 1, DIM);
    let mut quantized = QuantizedRows::with_capacity(1, DIM);
    let mut out = vec![0.0; DIM];
    let mut group = c.benchmark_group("matmul_int8/1x4096x4096");
    for ty in TYPES {
        let data = block_bytes(ty.row_bytes(DIM).expect("whole blocks") * DIM);
        let w = [MatrixRef::new(ty, DIM, DIM, &data)];
        group.throughput(Throughput::Bytes(data.len() as u64));
        group.bench_function(ty.name(), |b| {
            b.iter(|| {
                quantized.quantize(&team, tier, black_box(x));
                let out = RowsMut::new(&mut out, 1, DIM);
                matmul_int8(&team, tier, &w, &quantized, x, out, &Epilogue::default());
            });
        });
    }
    group.finish();
}

/// A prompt: the rate is in multiply-adds.
fn float(c: &mut Criterion) {
    const N_TOKENS: usize = 128;
    let (team, tier) = (Team::new(default_threads()), Tier::detect());
    let scratch = PanelScratch::new(&team);
    let x = values(N_TOKENS * DIM);
    let mut out = vec![0.0; N_TOKENS * DIM];
    let mut group = c.benchmark_group("matmul_f32/128x4096x4096");
    group.throughput(Throughput::Elements((N_TOKENS * DIM * DIM) as u64));
    for ty in [BlockType::F32, BlockType::F16, BlockType::Q4_0, BlockType::Q4_K] {
        let data = match ty {
            BlockType::F32 => values(DIM * DIM).iter().flat_map(|v| v.to_le_bytes()).collect(),
            _ => block_bytes(ty.row_bytes(DIM).expect("whole blocks") * DIM),
        };
        let w = [MatrixRef::new(ty, DIM, DIM, &data)];
        group.bench_function(ty.name(), |b| {
            b.iter(|| {
                let x = Rows::new(black_box(&x), N_TOKENS, DIM);
                let out = RowsMut::new(&mut out, N_TOKENS, DIM);
                matmul_f32(&team, tier, &w, x, out, &scratch, &Epilogue::default());
            });
        });
    }
    group.finish();
}

fn norms(c: &mut Criterion) {
    const N_TOKENS: usize = 128;
    let (team, tier) = (Team::new(default_threads()), Tier::detect());
    let (x, weight) = (values(N_TOKENS * DIM), values(DIM));
    let mut out = vec![0.0; x.len()];
    let rms = Norm::Rms { group: DIM, weight: Some(&weight), eps: 1e-5 };
    let layer = Norm::Layer { group: DIM, weight: Some(&weight), bias: Some(&weight), eps: 1e-5 };
    let mut group = c.benchmark_group("norm/128x4096");
    group.throughput(Throughput::Elements(x.len() as u64));
    for (name, kind) in [("rms", rms), ("layer", layer)] {
        group.bench_function(name, |b| {
            b.iter(|| {
                let x = Rows::new(black_box(&x), N_TOKENS, DIM);
                norm(&team, tier, &kind, x, RowsMut::new(&mut out, N_TOKENS, DIM));
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = int8, float, norms
}
criterion_main!(benches);
