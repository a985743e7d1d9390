//! The gated delta rule and the convolution before it at the shape of Qwen3.5 0.8B, on one and two threads:
//! a prompt of 256 rows, and one decode row. Rates are rows.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use realizar_benches::values;
use realizar_kernels_cpu::{
    Activation, DeltaInputs, DeltaNet, DeltaScratch, LayerStates, Rows, RowsMut, ShortConv,
    StateSeq, StateSteps, Team, Tier, delta_net, short_conv,
};

const HEADS: usize = 16;
const DIM: usize = 128;
const WIDTH: usize = HEADS * DIM;
const TAPS: usize = 4;

/// Rows that continue from slot 0 and leave their state in slot 1.
fn steps(n_rows: usize) -> StateSteps {
    let mut steps = StateSteps::with_capacity(n_rows);
    let mut writes = vec![realizar_kernels_cpu::NO_STATE; n_rows];
    writes[n_rows - 1] = 1;
    steps.fill([StateSeq { rows: 0..n_rows, from: Some(0) }], writes, 2);
    steps
}

fn delta(c: &mut Criterion) {
    let mut group = c.benchmark_group("delta_net");
    let (decay, dt_bias) = (vec![-0.1; HEADS], vec![-2.0; HEADS]);
    let net = DeltaNet {
        n_k_heads: HEADS,
        n_v_heads: HEADS,
        k_dim: DIM,
        v_dim: DIM,
        eps: 1e-6,
        tiled: false,
        decay: &decay,
        dt_bias: &dt_bias,
    };
    let mut memory = values(2 * net.state_len());
    for n_rows in [1, 256] {
        let [q, k, v] = [0, 1, 2].map(|_| values(n_rows * WIDTH));
        let [a, b] = [0, 1].map(|_| values(n_rows * HEADS));
        let rows = |x| Rows::new(x, n_rows, WIDTH);
        let gates = |x| Rows::new(x, n_rows, HEADS);
        let inputs =
            DeltaInputs { q: rows(&q), k: rows(&k), v: rows(&v), a: gates(&a), b: gates(&b) };
        let mut out = vec![0.0; n_rows * WIDTH];
        let steps = steps(n_rows);
        group.throughput(Throughput::Elements(n_rows as u64));
        for n_threads in [1, 2] {
            let team = Team::new(n_threads);
            let scratch = DeltaScratch::new(&team, DIM);
            let id = BenchmarkId::new(format!("{n_rows} rows"), n_threads);
            group.bench_function(id, |b| {
                b.iter(|| {
                    let out = RowsMut::new(&mut out, n_rows, WIDTH);
                    let len = net.state_len();
                    let states = LayerStates::new(&mut memory, len, 0, len);
                    let tier = Tier::detect();
                    delta_net(&team, tier, &net, &inputs, out, &steps, &states, &scratch);
                });
            });
        }
    }
}

fn conv(c: &mut Criterion) {
    let mut group = c.benchmark_group("short_conv");
    let width = 3 * WIDTH;
    let taps = values(TAPS * width);
    let conv = ShortConv { taps: &taps, bias: None, act: Some(Activation::Silu) };
    let len = ShortConv::state_len(TAPS, width);
    let mut memory = values(2 * len);
    for n_rows in [1, 256] {
        let x = values(n_rows * width);
        let mut out = vec![0.0; n_rows * width];
        let steps = steps(n_rows);
        group.throughput(Throughput::Elements(n_rows as u64));
        for n_threads in [1, 2] {
            let team = Team::new(n_threads);
            let id = BenchmarkId::new(format!("{n_rows} rows"), n_threads);
            group.bench_function(id, |b| {
                b.iter(|| {
                    let x = Rows::new(&x, n_rows, width);
                    let out = RowsMut::new(&mut out, n_rows, width);
                    let states = LayerStates::new(&mut memory, len, 0, len);
                    short_conv(&team, Tier::detect(), &conv, x, out, &steps, &states);
                });
            });
        }
    }
}

criterion_group!(benches, delta, conv);
criterion_main!(benches);
