//! Multiplies a matrix of each block type by one row of activations, by a few and by those of a prompt, on a card, and
//! prints the error and the rates: in F32, in parts of BF16 for floats of 8 and 16 bits, and in half precision, on cards of
//! compute capability 9.0 also by `wgmma`.
//!
//! Usage: `matvec_cuda [device [type]]`. The weights are drawn from several copies of the matrix in turn, so that
//! they come from memory and not from a cache. The products run as one captured graph.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use realizar_kernels_cuda::{
    BLOCK_TYPES, Buffer, Device, Driver, Error, GroupedRows, HalfRows, HalfType, Kernels, Linear,
    LinearGrouped, LinearHalf, Matrix, Rows, WgmmaKernels, group_rows, half_type,
    is_worth_splitting, matmul_half, matmul_wgmma, matvec, matvec_parts, round_rows, split_rows,
    takes_parts,
};
use realizar_quant::{BlockType, dequantize};

/// Rows and columns of the matrix.
const DIM: usize = 4096;
/// Bytes of all copies together, more than a card's cache holds.
const TOTAL_BYTES: usize = 1 << 30;
/// What products are made in, and rows of activations.
const FORMS: [(Form, &[usize]); 4] = [
    (Form::F32, &[1, 8]),
    (Form::Parts, &[1, 8, 32, 128]),
    (Form::Half, &[MAX_ROWS]),
    (Form::Wgmma, &[MAX_ROWS]),
];
const MAX_ROWS: usize = 512;
/// Rows of activations whose results are checked.
const CHECKED: usize = 8;
/// How often the graph is replayed for a measurement.
const RUNS: usize = 20;

/// What a product is made in.
#[derive(Debug, Clone, Copy)]
enum Form {
    F32,
    Parts,
    Half,
    Wgmma,
}

/// Queues a product with a matrix.
type Product<'a> = dyn Fn(&Matrix<Driver>) -> Result<(), Error> + 'a;

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

    let wgmma = WgmmaKernels::load(&*device);
    if let Err(error) = &wgmma {
        println!("no products by wgmma: {error}");
    }
    let wgmma = wgmma.ok();

    let x: Vec<f32> = (0..MAX_ROWS * DIM).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
    let x_at = Buffer::with(&device, &stream, "activations", &x)?;
    let out_at = Buffer::new(&device, "results", MAX_ROWS * DIM * 4)?;
    let room = HalfRows::new(&device, MAX_ROWS, DIM)?;
    let grouped_room = GroupedRows::new(&device, MAX_ROWS, DIM)?;
    for ty in BLOCK_TYPES.into_iter().filter(|&ty| only.is_none_or(|only| only == ty)) {
        let n_bytes = DIM * DIM / ty.block_len() * ty.block_bytes();
        // Small bytes are blocks of finite weights in every type.
        let data: Vec<u8> = (0..n_bytes).map(|i| (i * 13 % 47) as u8).collect();
        let upload = |_| Matrix::upload(&device, &stream, "weights", ty, DIM, DIM, &data);
        let copies =
            (0..TOTAL_BYTES.div_ceil(n_bytes)).map(upload).collect::<Result<Vec<_>, _>>()?;
        kernels.prepare(ty)?;
        let forms = FORMS.into_iter().flat_map(|(form, n)| n.iter().map(move |&n| (form, n)));
        for (form, n_rows) in forms {
            let x_rows = Rows::new(&x_at, 0, n_rows, DIM, DIM);
            let out = Rows::new(&out_at, 0, n_rows, DIM, DIM);
            let (bias, residual) = (None, None);
            // Activations take their form once, and are then multiplied with all copies.
            let product: Box<Product<'_>> = match form {
                Form::F32 => Box::new(|matrix| {
                    let linear = Linear { matrix, x: x_rows, bias, residual, out };
                    matvec(&kernels, &stream, &linear)
                }),
                Form::Parts if takes_parts(ty) => {
                    let parts = is_worth_splitting(n_rows)
                        .then(|| room.rows(HalfType::BF16, 0, 2 * n_rows, DIM));
                    if let Some(parts) = parts {
                        split_rows(&kernels, &stream, x_rows, parts)?;
                    }
                    let (kernels, stream) = (&kernels, &stream);
                    Box::new(move |matrix| {
                        let linear = Linear { matrix, x: x_rows, bias, residual, out };
                        matvec_parts(kernels, stream, &linear, parts)
                    })
                }
                Form::Half => {
                    let Some(half) = half_type(ty) else { continue };
                    let x = room.rows(half, 0, n_rows, DIM);
                    round_rows(&kernels, &stream, x_rows, x)?;
                    let (kernels, stream) = (&kernels, &stream);
                    Box::new(move |matrix| {
                        let linear = LinearHalf { matrix, x, bias, residual, out };
                        matmul_half(kernels, stream, &linear)
                    })
                }
                Form::Wgmma if WgmmaKernels::<Driver>::takes(ty) => {
                    let (Some(wgmma), Some(half)) = (&wgmma, half_type(ty)) else { continue };
                    let x = grouped_room.rows(half, n_rows, DIM);
                    group_rows(&kernels, wgmma, &stream, x_rows, x)?;
                    let (kernels, stream) = (&kernels, &stream);
                    Box::new(move |matrix| {
                        let linear = LinearGrouped { matrix, x, bias, residual, out };
                        matmul_wgmma(kernels, wgmma, stream, &linear)
                    })
                }
                Form::Parts | Form::Wgmma => continue,
            };
            device.synchronize(&stream)?;
            device.begin_capture(&stream)?;
            copies.iter().try_for_each(&product)?;
            let graph = device.end_capture(&stream)?;
            let mut times = Vec::with_capacity(RUNS);
            for _ in 0..RUNS {
                let start = Instant::now();
                // SAFETY: the matrices and all buffers are alive until the stream has been waited for.
                unsafe { device.replay(&stream, &graph) }?;
                device.synchronize(&stream)?;
                times.push(start.elapsed().as_secs_f64());
            }
            times.sort_by(f64::total_cmp);
            let time = times[RUNS / 2] / copies.len() as f64;
            let mut out = vec![0.0f32; n_rows.min(CHECKED) * DIM];
            out_at.read(&stream, 0, &mut out)?;
            println!(
                "{ty:>5} x {n_rows:>3} in {:<6}: off by {:.1e} at most, {:7.1} us, {:7.1} GB/s, {:6.1} TFLOP/s",
                format!("{form:?}"),
                error(ty, &data, &x, &out),
                time * 1e6,
                n_bytes as f64 / time / 1e9,
                (2 * n_rows * DIM * DIM) as f64 / time / 1e12
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
