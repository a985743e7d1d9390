//! Multiplies a matrix of each block type by one row of activations and by a few, on a card, and prints the
//! error and the rate.
//!
//! Usage: `matvec_cuda [device [type]]`. The weights are drawn from several copies of the matrix in turn, so that
//! they come from memory and not from a cache. The products run as one captured graph.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use realizar_kernels_cuda::{
    BLOCK_TYPES, Buffer, Device, Driver, Error, Kernels, Linear, Matrix, Rows, matvec,
};
use realizar_quant::{BlockType, dequantize};

/// Rows and columns of the matrix.
const DIM: usize = 4096;
/// Bytes of all copies together, more than a card's cache holds.
const TOTAL_BYTES: usize = 1 << 30;
/// Rows of activations.
const N_ROWS: [usize; 2] = [1, 8];
/// How often the graph is replayed for a measurement.
const RUNS: usize = 20;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let device = args.next().map_or(Some(0), |arg| arg.parse().ok());
    let only = args.next().map(|name| BlockType::from_name(&name));
    let (Some(device), None | Some(Some(_))) = (device, only) else {
        println!("usage: matvec_cuda [device [type]]");
        return ExitCode::FAILURE;
    };
    match run(device, only.flatten()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(index: usize, only: Option<BlockType>) -> Result<(), Error> {
    let device = Arc::new(Driver::open(index)?);
    println!("{}, compute capability {}, {DIM} x {DIM}", device.name(), device.card().capability);
    let start = Instant::now();
    let (kernels, stream) = (Kernels::load(&device)?, device.stream()?);
    println!("kernels loaded in {:.2} s", start.elapsed().as_secs_f64());

    let max_rows = N_ROWS.into_iter().max().unwrap_or(1);
    let x: Vec<f32> = (0..max_rows * DIM).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let x_at = Buffer::with(&device, &stream, "activations", &x)?;
    let out_at = Buffer::new(&device, "results", max_rows * DIM * 4)?;
    for ty in BLOCK_TYPES.into_iter().filter(|&ty| only.is_none_or(|only| only == ty)) {
        let n_bytes = DIM * DIM / ty.block_len() * ty.block_bytes();
        // Small bytes are blocks of finite weights in every type.
        let data: Vec<u8> = (0..n_bytes).map(|i| (i * 13 % 47) as u8).collect();
        let upload = |_| Matrix::upload(&device, &stream, "weights", ty, DIM, DIM, &data);
        let copies =
            (0..TOTAL_BYTES.div_ceil(n_bytes)).map(upload).collect::<Result<Vec<_>, _>>()?;
        for n_rows in N_ROWS {
            device.begin_capture(&stream)?;
            for matrix in &copies {
                let linear = Linear {
                    matrix,
                    x: Rows::new(&x_at, 0, n_rows, DIM, DIM),
                    bias: None,
                    residual: None,
                    out: Rows::new(&out_at, 0, n_rows, DIM, DIM),
                };
                matvec(&kernels, &stream, &linear)?;
            }
            let graph = device.end_capture(&stream)?;
            let mut times = Vec::with_capacity(RUNS);
            for _ in 0..RUNS {
                let start = Instant::now();
                // SAFETY: the matrices and both buffers are alive until the stream has been waited for.
                unsafe { device.replay(&stream, &graph) }?;
                device.synchronize(&stream)?;
                times.push(start.elapsed().as_secs_f64());
            }
            times.sort_by(f64::total_cmp);
            let time = times[RUNS / 2] / copies.len() as f64;
            let mut out = vec![0.0f32; n_rows * DIM];
            out_at.read(&stream, 0, &mut out)?;
            println!(
                "{ty:>5} x {n_rows}: off by {:.1e} at most, {:7.1} us, {:7.1} GB/s",
                error(ty, &data, &x, &out),
                time * 1e6,
                n_bytes as f64 / time / 1e9
            );
        }
    }
    Ok(())
}

/// The largest error of a result, in units of the sum of its products' magnitudes.
fn error(ty: BlockType, data: &[u8], x: &[f32], out: &[f32]) -> f64 {
    let mut weights = vec![0.0; DIM];
    let mut worst = 0.0f64;
    for (row, bytes) in data.chunks_exact(data.len() / DIM).enumerate() {
        dequantize(ty, bytes, &mut weights).expect("a row of whole blocks");
        for (x, out) in x.chunks_exact(DIM).zip(out.chunks_exact(DIM)) {
            let products = weights.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
            let (sum, reach) =
                products.fold((0.0, 0.0), |(sum, reach), p| (sum + p, reach + p.abs()));
            worst = worst.max((f64::from(out[row]) - sum).abs() / reach.max(f64::MIN_POSITIVE));
        }
    }
    worst
}
