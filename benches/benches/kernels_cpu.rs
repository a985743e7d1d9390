//! The CPU kernels on all physical cores, at sizes of a 7B model's layer.
//!
//! Rates are bytes of weights or of keys and values per second where reading them is the work, else
//! operations, two for a multiply-add: Criterion's `Gelem/s` are GOPS. `cargo xtask bench --ceilings`
//! measures what the machine reaches of either.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use realizar_benches::{block_bytes, values};
use realizar_kernels_cpu::{
    AttnParams, AttnScratch, AttnSeq, Epilogue, KvGeometry, MatrixRef, Norm, PanelScratch,
    QuantizedRows, Rows, RowsMut, Team, Tier, attention, default_threads, matmul_f32, matmul_int8,
    norm,
};
use realizar_quant::BlockType;
use std::hint::black_box;

const DIM: usize = 4096;
const TYPES: [BlockType; 5] =
    [BlockType::Q4_0, BlockType::Q4_1, BlockType::Q8_0, BlockType::Q4_K, BlockType::Q6_K];

/// Bytes of the copies of a matrix that are read in turn, more than a last-level cache holds.
const COLD_BYTES: usize = 256 << 20;

/// Generated tokens, one or eight together: weights are read once, so the rate is in bytes.
fn int8(c: &mut Criterion) {
    let (team, tier) = (Team::new(default_threads()), Tier::detect());
    for n_rows in [1, 8] {
        let x = values(n_rows * DIM);
        let x = Rows::new(&x, n_rows, DIM);
        let mut quantized = QuantizedRows::with_capacity(n_rows, DIM);
        let mut out = vec![0.0; n_rows * DIM];
        let mut group = c.benchmark_group(format!("matmul_int8/{n_rows}x4096x4096"));
        for ty in TYPES {
            let n_bytes = ty.row_bytes(DIM).expect("whole blocks") * DIM;
            let data = block_bytes(n_bytes * COLD_BYTES.div_ceil(n_bytes));
            let mut copies = data.chunks(n_bytes).cycle();
            group.throughput(Throughput::BytesDecimal(n_bytes as u64));
            group.bench_function(ty.name(), |b| {
                b.iter(|| {
                    let data = copies.next().expect("a cycle has no end");
                    let w = [MatrixRef::new(ty, DIM, DIM, data)];
                    quantized.quantize(&team, tier, black_box(x));
                    let out = RowsMut::new(&mut out, n_rows, DIM);
                    matmul_int8(&team, tier, &w, &quantized, x, out, &Epilogue::default());
                });
            });
        }
        group.finish();
    }
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

/// 32 query heads over 8 key-value heads in an F16 cache of 2048 positions: keys and values in bytes
/// for one row, operations for many.
fn attend(c: &mut Criterion) {
    const PAGE_LEN: usize = 32;
    const KV_LEN: usize = 2048;
    let (n_heads, n_kv_heads, head_dim) = (32, 8, 128);
    let part = n_kv_heads * PAGE_LEN * head_dim * 2;
    let geometry =
        KvGeometry::new(BlockType::F16, PAGE_LEN, n_kv_heads, head_dim, 2 * part, 0, part)
            .expect("a layout of F16");
    let memory = block_bytes(KV_LEN / PAGE_LEN * 2 * part);
    let pages: Vec<u32> = (0..(KV_LEN / PAGE_LEN) as u32).collect();
    let params = AttnParams {
        n_heads,
        n_kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        softcap: None,
        window: None,
        causal: true,
        sinks: None,
    };
    let (team, tier) = (Team::new(default_threads()), Tier::detect());
    let scratch = AttnScratch::new(default_threads(), PAGE_LEN, head_dim, n_heads / n_kv_heads);
    let mut group = c.benchmark_group("attention/kv2048");
    for (name, n_rows) in [("decode", 1), ("prefill128", 128)] {
        let q = values(n_rows * n_heads * head_dim);
        let mut out = vec![0.0; q.len()];
        let width = n_heads * head_dim;
        let seqs =
            [AttnSeq { rows: 0..n_rows, first_pos: KV_LEN - n_rows, pages: &pages, first_page: 0 }];
        // Of a row, every head multiplies the keys and the values of the positions before it.
        group.throughput(if n_rows == 1 {
            Throughput::BytesDecimal(memory.len() as u64)
        } else {
            Throughput::Elements((4 * n_rows * KV_LEN * n_heads * head_dim) as u64)
        });
        group.bench_function(name, |b| {
            b.iter(|| {
                let q = Rows::new(black_box(&q), n_rows, width);
                let out = RowsMut::new(&mut out, n_rows, width);
                attention(&team, tier, &params, &geometry, &memory, q, &seqs, &scratch, out);
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
    targets = int8, float, attend, norms
}
criterion_main!(benches);
