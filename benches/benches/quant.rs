//! Dequantizing and quantizing a long row, in elements per second.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use realizar_benches::{block_bytes, values};
use realizar_quant::{BlockType, dequantize, quantize};
use std::hint::black_box;

const N: usize = 1 << 16;
const TYPES: [BlockType; 5] =
    [BlockType::Q4_0, BlockType::Q4_1, BlockType::Q8_0, BlockType::Q4_K, BlockType::Q6_K];

fn rows(c: &mut Criterion) {
    let mut group = c.benchmark_group("dequantize");
    group.throughput(Throughput::Elements(N as u64));
    for ty in TYPES {
        let bytes = block_bytes(ty.row_bytes(N).expect("whole blocks"));
        let mut out = vec![0.0; N];
        group.bench_function(ty.name(), |b| {
            b.iter(|| dequantize(ty, black_box(&bytes), &mut out).expect("the sizes fit"));
        });
    }
    group.finish();
    let mut group = c.benchmark_group("quantize");
    group.throughput(Throughput::Elements(N as u64));
    let x = values(N);
    for ty in [BlockType::Q8_0, BlockType::Q4_K] {
        let mut out = vec![0; ty.row_bytes(N).expect("whole blocks")];
        group.bench_function(ty.name(), |b| {
            b.iter(|| quantize(ty, black_box(&x), &mut out).expect("the sizes fit"));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = rows
}
criterion_main!(benches);
