//! Multiplies a matrix of each quantized type by one row of activations, and by a
//! prompt of many, and prints the rates.
//!
//! Usage: `matvec [n_threads [type]]`. The weights are drawn from several copies of
//! the matrix in turn, so that they come from memory and not from a cache.

use std::time::Instant;

use realizar_kernels_cpu::{
    Epilogue, MatrixRef, PanelScratch, QuantizedRows, Rows, RowsMut, Team, Tier, default_threads,
    matmul_f32, matmul_int8, supports_weights,
};
use realizar_quant::BlockType;

/// Rows and columns of the matrix.
const DIM: usize = 4096;
/// Bytes of all copies together, more than a last-level cache holds.
const TOTAL_BYTES: usize = 256 << 20;
/// Rows of the prompt.
const PROMPT: usize = 128;

fn main() {
    let mut args = std::env::args().skip(1);
    let n_threads = match args.next().map(|arg| arg.parse()) {
        None => default_threads(),
        Some(Ok(n)) if n > 0 => n,
        Some(_) => {
            println!("usage: matvec [n_threads [type]]");
            return;
        }
    };
    let only = args.next();
    let (team, tier) = (Team::new(n_threads), Tier::detect());
    let scratch = PanelScratch::new(&team);
    let x: Vec<f32> = (0..PROMPT * DIM).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let mut out = vec![0.0; PROMPT * DIM];
    let mut quantized = QuantizedRows::with_capacity(PROMPT, DIM);

    println!("{n_threads} threads, {tier}, {DIM} x {DIM}");
    for ty in BlockType::all().filter(|&ty| supports_weights(ty)) {
        if only.as_ref().is_some_and(|name| BlockType::from_name(name) != Some(ty)) {
            continue;
        }
        let n_bytes = DIM * DIM / ty.block_len() * ty.block_bytes();
        let n_copies = TOTAL_BYTES.div_ceil(n_bytes);
        // Small bytes are blocks of finite weights in every type.
        let data: Vec<u8> = (0..n_copies * n_bytes).map(|i| (i * 13 % 47) as u8).collect();
        let copies: Vec<_> =
            data.chunks(n_bytes).map(|data| MatrixRef::new(ty, DIM, DIM, data)).collect();

        for n_rows in [1, 4] {
            let x = Rows::new(&x[..n_rows * DIM], n_rows, DIM);
            quantized.quantize(&team, tier, x);
            let times = copies.iter().cycle().take(n_copies * 4).map(|&w| {
                let view = RowsMut::new(&mut out[..n_rows * DIM], n_rows, DIM);
                let start = Instant::now();
                matmul_int8(&team, tier, &[w], &quantized, x, view, &Epilogue::default());
                start.elapsed().as_secs_f64()
            });
            let rate = n_bytes as f64 / median(times.collect()) / 1e9;
            println!("{ty:>5} int8 x {n_rows:<3} {rate:7.1} GB/s");
        }

        let x = Rows::new(&x, PROMPT, DIM);
        let times = copies.iter().take(5).map(|&w| {
            let view = RowsMut::new(&mut out, PROMPT, DIM);
            let start = Instant::now();
            matmul_f32(&team, tier, &[w], x, view, &scratch, &Epilogue::default());
            start.elapsed().as_secs_f64()
        });
        let rate = 2.0 * (PROMPT * DIM * DIM) as f64 / median(times.collect()) / 1e9;
        println!("{ty:>5} f32  x {PROMPT:<3} {rate:7.1} GFLOPS");
    }
}

/// The middle of some times.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
