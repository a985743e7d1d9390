//! Multiplies a quantized matrix with a vector on a GPU, in both arithmetics, and prints the error and the
//! rate at which the matrix was read.
//!
//! Usage: `matvec_gpu [adapter [type [rows [cols]]]]`. Several copies of the matrix are read in turn, so that
//! the weights come from memory and not from a cache.

use std::time::Instant;

use realizar_kernels_wgpu::{
    Adapter, AdapterKind, Error, Gpu, GpuOptions, Kernel, Linear, Matrix, QuantizedRows, Rows,
    RowsAt, View, matvec, matvec_int8, quantize, takes_quantized,
};
use realizar_quant::{BlockType, dequantize};

/// Bytes of all copies together.
const TOTAL_BYTES: u64 = 256 << 20;

struct Args {
    adapter: usize,
    ty: BlockType,
    n_rows: u32,
    n_cols: u32,
}

fn args() -> Option<Args> {
    let mut args = std::env::args().skip(1);
    let mut next = |default: &str| args.next().unwrap_or_else(|| default.to_owned());
    let adapter = next("0").parse().ok()?;
    let ty = BlockType::from_name(&next("Q4_K"))?;
    let (n_rows, n_cols) = (next("4096").parse().ok()?, next("4096").parse().ok()?);
    (n_rows > 0 && n_cols > 0).then_some(Args { adapter, ty, n_rows, n_cols })
}

fn main() {
    let Some(args) = args() else {
        println!("usage: matvec_gpu [adapter [type [rows [cols]]]]");
        return;
    };
    if Adapter::all().is_empty() {
        println!("no GPU adapter on this machine");
        return;
    }
    if let Err(error) = run(&args) {
        println!("{error}");
        std::process::exit(1);
    }
}

/// Numbers from -1 to 1 without a period that divides a block.
fn noise(n: usize) -> Vec<f32> {
    let mut state = 1u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 * 2.0 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn run(args: &Args) -> Result<(), Error> {
    let &Args { adapter, ty, n_rows, n_cols } = args;
    let gpu = Gpu::open(adapter, GpuOptions::default())?;
    println!("{}: {n_rows} x {n_cols} of {ty}", gpu.name());

    // One copy is enough for a driver that computes on the CPU.
    let software = Adapter::all()[adapter].kind() == AdapterKind::Software;

    // The matrix repeats a few quantized rows, because quantizing all of them takes long.
    let cols = n_cols as usize;
    let Ok(row_bytes) = ty.row_bytes(cols) else {
        return Err(Error::Unsupported(format!("rows of {n_cols} elements of {ty}")));
    };
    let n_distinct = 16.min(n_rows as usize);
    let mut distinct = vec![0; n_distinct * row_bytes];
    let mut weights = vec![0.0; n_distinct * cols];
    realizar_quant::quantize(ty, &noise(weights.len()), &mut distinct).expect("whole blocks");
    dequantize(ty, &distinct, &mut weights).expect("whole blocks");
    let n_bytes = n_rows as usize * row_bytes;
    let data: Vec<u8> = distinct.iter().copied().cycle().take(n_bytes).collect();
    let n_copies = TOTAL_BYTES.div_ceil(n_bytes as u64).min(if software { 1 } else { 256 });
    let copies: Vec<Matrix> = (0..n_copies)
        .map(|_| Matrix::upload(&gpu, "w", ty, n_rows, n_cols, &data))
        .collect::<Result<_, _>>()?;

    // One row of x, and after it the result.
    let x = noise(cols);
    let values = gpu.buffer("values", 4 * u64::from(n_cols + n_rows))?;
    gpu.write(&values, 0, bytemuck::cast_slice(&x))?;
    let batch = gpu.buffer("batch", 8)?;
    gpu.write(&batch, 0, bytemuck::cast_slice(&[0u32, 1]))?;
    let rows = Rows { values: &values, batch: &batch, at: RowsAt(0) };
    let no_bias = gpu.buffer("vectors", 4)?;
    let linear = |matrix| Linear {
        matrix,
        vectors: &no_bias,
        bias: None,
        x: View::dense(0, n_cols),
        residual: None,
        out: View::dense(n_cols, n_rows),
    };
    let expected: Vec<f64> = weights
        .chunks(cols)
        .map(|w| w.iter().zip(&x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum())
        .collect();

    let measure = |what: &str, kernels: &[Kernel]| -> Result<(), Error> {
        let pass = || {
            let mut recorder = gpu.record();
            kernels.iter().for_each(|kernel| recorder.run(kernel, 1));
            recorder.submit()?;
            gpu.wait()
        };
        pass()?;
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            let start = Instant::now();
            pass()?;
            best = best.min(start.elapsed().as_secs_f64() / f64::from(n_copies as u32));
        }
        let readback = gpu.readback_buffer("out", 4 * u64::from(n_rows))?;
        let mut recorder = gpu.record();
        recorder.copy((&values, 4 * u64::from(n_cols)), (&readback, 0), 4 * u64::from(n_rows));
        recorder.submit()?;
        let mut out = vec![0.0f32; n_rows as usize];
        gpu.read(&readback, &mut out)?;
        let apart = |(r, &y): (usize, &f32)| (f64::from(y) - expected[r % n_distinct]).abs();
        let error = out.iter().enumerate().map(apart).fold(0.0, f64::max);
        let (micros, rate) = (best * 1e6, n_bytes as f64 / best / 1e9);
        println!("{what:>5}: off by {error:.1e} at most, {micros:8.1} us, {rate:7.2} GB/s");
        Ok(())
    };
    let mut kernels = Vec::new();
    for matrix in &copies {
        kernels.extend(matvec(&gpu, rows, &linear(matrix))?);
    }
    measure("f32", &kernels)?;
    if takes_quantized(ty) {
        let to = QuantizedRows::new(&gpu, 1, n_cols)?;
        let mut kernels = vec![quantize(&gpu, rows, View::dense(0, n_cols), &to)?];
        for matrix in &copies {
            kernels.extend(matvec_int8(&gpu, rows, &linear(matrix), &to)?);
        }
        measure("int8", &kernels)?;
    }
    Ok(())
}
