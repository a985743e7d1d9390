//! Multiplies a packed matrix of each quantized type with one activation row, with a few and with many, and
//! prints the rates.
//!
//! Usage: `matvec [n_threads [type]]`. Several copies of the matrix are used in turn, so that the weights
//! come from memory and not from a cache.

use std::time::Instant;

use realizar_kernels_cpu::{
    Epilogue, MatrixRef, PackedMatrix, PackedScratch, QuantizedRows, Rows, RowsMut, Team, Tier,
    default_threads, matmul_packed, packs,
};
use realizar_quant::BlockType;

/// Rows and columns of the matrix.
const DIM: usize = 4096;
/// Bytes of all copies together, more than a last-level cache has.
const TOTAL_BYTES: usize = 128 << 20;
/// Numbers of activation rows: single-sequence decode, batched decode, prefill.
const N_ROWS: [usize; 3] = [1, 8, 128];

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
    let max_rows = N_ROWS.into_iter().max().unwrap_or(1);
    let scratch = PackedScratch::new(&team, max_rows);
    let x: Vec<f32> = (0..max_rows * DIM).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let mut out = vec![0.0; max_rows * DIM];
    let mut quantized = QuantizedRows::with_capacity(max_rows, DIM);

    println!("{n_threads} threads, {tier}, {DIM} x {DIM}");
    for ty in BlockType::all().filter(|&ty| packs(ty)) {
        if only.as_ref().is_some_and(|name| BlockType::from_name(name) != Some(ty)) {
            continue;
        }
        let n_bytes = DIM * DIM / ty.block_len() * ty.block_bytes();
        // Small bytes give finite weights in every type.
        let data: Vec<u8> = (0..n_bytes).map(|i| (i * 13 % 47) as u8).collect();
        let matrix = MatrixRef::new(ty, DIM, DIM, &data);
        let start = Instant::now();
        let copies: Option<Vec<_>> = (0..TOTAL_BYTES.div_ceil(n_bytes))
            .map(|_| PackedMatrix::new(&team, tier, &matrix))
            .collect();
        let Some(copies) = copies else {
            println!("too little memory for the copies of {ty}");
            return;
        };
        let rate = (copies.len() * n_bytes) as f64 / start.elapsed().as_secs_f64() / 1e9;
        println!("{ty:>5} packed  {rate:8.2} GB/s");

        for n_rows in N_ROWS {
            quantized.quantize(&team, tier, Rows::new(&x[..n_rows * DIM], n_rows, DIM));
            let n_runs = if n_rows == 1 { 4 * copies.len() } else { 10 };
            let times = copies.iter().cycle().take(n_runs).map(|w| {
                let view = RowsMut::new(&mut out[..n_rows * DIM], n_rows, DIM);
                let start = Instant::now();
                let epilogue = Epilogue::default();
                matmul_packed(&team, tier, &[w.view()], &quantized, view, &scratch, &epilogue);
                start.elapsed().as_secs_f64()
            });
            let time = fast(times.collect());
            let (bytes, ops) = (n_bytes as f64 / time, 2.0 * (n_rows * DIM * DIM) as f64 / time);
            println!("{ty:>5} x {n_rows:<4} {:9.1} GB/s {:7.0} GOPS", bytes / 1e9, ops / 1e9);
        }
    }
}

/// The 10th percentile of the times, because other load on the machine slows some runs.
fn fast(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}
