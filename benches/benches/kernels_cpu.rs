//! The CPU kernels on all physical cores, at sizes of a 7B model's layer.
//!
//! Rates are bytes of weights or of keys and values per second where reading them is the work, else
//! operations, two for a multiply-add: Criterion's `Gelem/s` are GOPS. `cargo xtask bench --ceilings`
//! measures what the machine reaches of either.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use realizar_benches::{block_bytes, values};
use realizar_kernels_cpu::{
    Epilogue, MatrixRef, Norm, PackedMatrix, PackedScratch, PanelScratch, QuantizedRows, Rows,
    RowsMut, Team, Tier, default_threads, matmul_f32, matmul_packed, norm, packs,
};
use realizar_quant::BlockType;
use std::hint::black_box;

const DIM: usize = 4096;

/// One generated token: weights are read once, so the rate is in bytes.
fn packed_row(c: &mut Criterion) {
    packed(c, 1, |bytes, _| Throughput::BytesDecimal(bytes));
}

/// A prompt: the rate is in operations, two to a multiply-add.
fn packed_prompt(c: &mut Criterion) {
    packed(c, 128, |_, ops| Throughput::Elements(ops));
}

/// Products of `n_rows` activation rows with packed matrices of every type. The weights
/// come from several copies in turn, which together are larger than the caches.
fn packed(c: &mut Criterion, n_rows: usize, rate: impl Fn(u64, u64) -> Throughput) {
    const TOTAL_BYTES: usize = 128 << 20;
    let (team, tier) = (Team::new(default_threads()), Tier::detect());
    let x = values(n_rows * DIM);
    let mut quantized = QuantizedRows::with_capacity(n_rows, DIM);
    quantized.quantize(&team, tier, Rows::new(&x, n_rows, DIM));
    let mut out = vec![0.0; n_rows * DIM];
    let scratch = PackedScratch::new(&team, n_rows);
    let mut group = c.benchmark_group(format!("matmul_packed/{n_rows}x{DIM}x{DIM}"));
    for ty in BlockType::all().filter(|&ty| packs(ty)) {
        let data = block_bytes(ty.row_bytes(DIM).expect("whole blocks") * DIM);
        let matrix = MatrixRef::new(ty, DIM, DIM, &data);
        let copies: Vec<_> = (0..TOTAL_BYTES.div_ceil(data.len()))
            .map(|_| PackedMatrix::new(&team, tier, &matrix).expect("memory for the copies"))
            .collect();
        let mut next = copies.iter().cycle();
        group.throughput(rate(data.len() as u64, (2 * n_rows * DIM * DIM) as u64));
        group.bench_function(ty.name(), |b| {
            b.iter(|| {
                let w = [next.next().expect("a cycle does not end").view()];
                let out = RowsMut::new(&mut out, n_rows, DIM);
                let epilogue = Epilogue::default();
                matmul_packed(&team, tier, &w, &quantized, out, &scratch, &epilogue);
            });
        });
    }
    group.finish();
}

/// A prompt: the rate is in operations.
fn float(c: &mut Criterion) {
    const N_TOKENS: usize = 128;
    let (team, tier) = (Team::new(default_threads()), Tier::detect());
    let scratch = PanelScratch::new(&team);
    let x = values(N_TOKENS * DIM);
    let mut out = vec![0.0; N_TOKENS * DIM];
    let mut group = c.benchmark_group("matmul_f32/128x4096x4096");
    group.throughput(Throughput::Elements((2 * N_TOKENS * DIM * DIM) as u64));
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
    group.throughput(Throughput::BytesDecimal(4 * x.len() as u64));
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
    targets = packed_row, packed_prompt, float, norms
}
criterion_main!(benches);
