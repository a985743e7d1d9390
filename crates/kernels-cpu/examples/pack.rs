//! Packs a matrix of each quantized type and prints the rates.
//!
//! Usage: `pack [n_threads [type]]`. The blocks come from memory and not from a cache, and the packed matrix
//! goes to memory that was touched before.

use std::time::Instant;

use realizar_kernels_cpu::{MatrixRef, Pages, Team, Tier, default_threads, pack, packed_bytes};
use realizar_quant::BlockType;

/// Rows and columns of a matrix.
const DIM: usize = 4096;
/// Bytes of all matrices together, more than a last-level cache has.
const TOTAL_BYTES: usize = 192 << 20;

fn main() {
    let mut args = std::env::args().skip(1);
    let n_threads = match args.next().map(|arg| arg.parse()) {
        None => default_threads(),
        Some(Ok(n)) if n > 0 => n,
        Some(_) => {
            println!("usage: pack [n_threads [type]]");
            return;
        }
    };
    let only = args.next();
    let team = Team::new(n_threads);
    println!("{n_threads} threads, {DIM} x {DIM}");
    for ty in BlockType::all() {
        if only.as_ref().is_some_and(|name| BlockType::from_name(name) != Some(ty)) {
            continue;
        }
        let Some(n_bytes) = packed_bytes(ty, DIM, DIM) else { continue };
        let Ok(row_bytes) = ty.row_bytes(DIM) else { continue };
        let file_bytes = DIM * row_bytes;
        let n_copies = TOTAL_BYTES.div_ceil(n_bytes);
        let [Some(mut data), Some(mut out)] =
            [file_bytes, n_bytes].map(|n| Pages::zeroed(n_copies * n))
        else {
            println!("too little memory");
            return;
        };
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = (i * 13 % 251) as u8;
        }
        out.fill(1);
        for tier in Tier::available() {
            let mut times = Vec::new();
            for _ in 0..4 {
                let copies = data.chunks_exact(file_bytes).zip(out.chunks_exact_mut(n_bytes));
                for (data, out) in copies {
                    let matrix = MatrixRef::new(ty, DIM, DIM, data);
                    let start = Instant::now();
                    pack(&team, tier, &matrix, out);
                    times.push(start.elapsed().as_secs_f64());
                }
            }
            // Other load on the machine slows some runs.
            times.sort_by(f64::total_cmp);
            let rate = file_bytes as f64 / times[times.len() / 10] / 1e9;
            println!("{ty:>5} {:<8} {rate:7.2} GB/s", tier.name());
        }
    }
}
