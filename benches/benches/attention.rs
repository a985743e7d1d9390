//! Attention on the CPU at the shapes of two small models: prompts in multiply-adds,
//! decode rows in bytes of keys and values, on one and two threads.
//!
//! A model's layers share pages and take turns, so that a decode row finds its keys
//! and values in memory as it does in a model.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use realizar_benches::values;
use realizar_kernels_cpu::{
    AttnLimits, AttnParams, AttnScratch, AttnSeq, KvGeometry, KvSlot, Rows, RowsMut, Team, Tier,
    attention, kv_store,
};
use realizar_quant::BlockType;
use std::hint::black_box;

const PAGE_LEN: usize = 32;

#[derive(Clone, Copy)]
struct Shape {
    name: &'static str,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    n_layers: usize,
}

const SHAPES: [Shape; 2] = [
    Shape { name: "smollm2-135m", n_heads: 9, n_kv_heads: 3, head_dim: 64, n_layers: 30 },
    Shape { name: "gemma3-270m", n_heads: 4, n_kv_heads: 1, head_dim: 256, n_layers: 18 },
];

/// The key-value cache of one sequence.
struct Cache {
    layers: Vec<KvGeometry>,
    memory: Vec<u8>,
    pages: Vec<u32>,
}

impl Cache {
    fn new(team: &Team, shape: Shape, ty: BlockType, len: usize) -> Self {
        let width = shape.n_kv_heads * shape.head_dim;
        let part = PAGE_LEN * ty.row_bytes(width).expect("whole blocks");
        let page_bytes = 2 * part * shape.n_layers;
        let layer = |l| {
            let (heads, dim) = (shape.n_kv_heads, shape.head_dim);
            let (k, v) = (2 * l * part, (2 * l + 1) * part);
            KvGeometry::new(ty, PAGE_LEN, heads, dim, page_bytes, k, v).expect("the parts fit")
        };
        let layers: Vec<_> = (0..shape.n_layers).map(layer).collect();
        let n_pages = len.div_ceil(PAGE_LEN);
        let mut memory = vec![0; n_pages * page_bytes];
        let slot = |pos| KvSlot { page: (pos / PAGE_LEN) as u32, idx: (pos % PAGE_LEN) as u32 };
        let slots: Vec<_> = (0..len).map(slot).collect();
        let x = values(len * width);
        let x = Rows::new(&x, len, width);
        for geo in &layers {
            kv_store(team, Tier::detect(), geo, &mut memory, x, x, &slots);
        }
        Self { layers, memory, pages: (0..n_pages as u32).collect() }
    }
}

/// The last `n_rows` positions of `len`, on one layer after the other.
fn measure(
    c: &mut Criterion,
    (name, throughput): (&str, Throughput),
    shape: Shape,
    ty: BlockType,
    (len, n_rows, generated): (usize, usize, bool),
) {
    let mut group = c.benchmark_group(format!("attention/{name}/{}", shape.name));
    group.throughput(throughput);
    for n_threads in [1, 2] {
        let team = Team::new(n_threads);
        let cache = Cache::new(&team, shape, ty, len);
        let width = shape.n_heads * shape.head_dim;
        let params = AttnParams {
            n_heads: shape.n_heads,
            n_kv_heads: shape.n_kv_heads,
            head_dim: shape.head_dim,
            scale: 1.0 / (shape.head_dim as f32).sqrt(),
            softcap: None,
            window: None,
            chunked: false,
            alibi: None,
            sinks: None,
        };
        let limits = AttnLimits {
            head_dim: shape.head_dim,
            group: shape.n_heads / shape.n_kv_heads,
            n_kv_heads: shape.n_kv_heads,
            kv_len: len,
        };
        let scratch = AttnScratch::new(n_threads, limits).for_tier(Tier::detect());
        let (first_pos, pages) = (len - n_rows, &cache.pages[..]);
        let seqs = [AttnSeq {
            rows: 0..n_rows,
            first_pos,
            pages,
            first_page: 0,
            reaches: None,
            generated,
        }];
        let q = values(n_rows * width);
        let mut out = vec![0.0; q.len()];
        let mut layers = cache.layers.iter().cycle();
        let id = BenchmarkId::new(format!("{ty}/{len}"), format!("{n_threads} threads"));
        group.bench_function(id, |b| {
            b.iter(|| {
                let geo = layers.next().expect("a cycle has no end");
                let q = Rows::new(black_box(&q), n_rows, width);
                let out = RowsMut::new(&mut out, n_rows, width);
                let tier = Tier::detect();
                attention(&team, tier, &params, geo, &cache.memory, q, &seqs, &scratch, out);
            });
        });
    }
    group.finish();
}

/// A whole prompt in one chunk. Both products count two operations for each multiply-add
/// of what rows see.
fn prefill(c: &mut Criterion) {
    for shape in SHAPES {
        for len in [512, 2048] {
            let shape = Shape { n_layers: 2, ..shape };
            let n_ops = 2 * len * (len + 1) * shape.n_heads * shape.head_dim;
            let name = ("prefill", Throughput::Elements(n_ops as u64));
            measure(c, name, shape, BlockType::F16, (len, len, false));
        }
    }
}

/// One decode row.
fn decode(c: &mut Criterion) {
    for shape in SHAPES {
        for ty in [BlockType::F16, BlockType::F8, BlockType::Q8_0, BlockType::Q4_0] {
            for len in [2048, 8192] {
                let row = ty.row_bytes(shape.n_kv_heads * shape.head_dim).expect("whole blocks");
                let name = ("decode", Throughput::Bytes((2 * len * row) as u64));
                measure(c, name, shape, ty, (len, 1, true));
            }
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = prefill, decode
}
criterion_main!(benches);
