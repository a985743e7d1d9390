//! Products of integer-level weights with BF16 activations on tensor cores: the implementation of
//! [`matvec_quantized`](super::matvec_quantized) and [`gated_quantized`](super::gated_quantized) for
//! [`QuantType::Bf16`](super::QuantType::Bf16).

use super::linear_quantized::Epilogue;
use super::quantize::{QuantType, Quantized};
use crate::device::Device;
use crate::kernels::{Kernels, LEVELS_FEW, LEVELS_SHARED, LEVELS_TILES, LevelsKernels, Tile};
use crate::{Error, Matrix};

/// Gate rows (and as many up rows) and activation rows of a block of gated products.
const GATED_ROWS: usize = 32;
const GATED_COLS: usize = 8;
/// Threads of a block of gated products.
const GATED_THREADS: u32 = 256;

/// The kernel of a product, by its index in the table of its kind. The choice does not affect bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Few(usize),
    Tiles(usize),
}

/// Selects the kernel with the most weight rows per block that still yields enough blocks. A single activation row is
/// best served by few weight rows per block.
fn form(n_rows: usize, n_batch: usize, n_multiprocessors: usize) -> Form {
    let are_enough = |tile: Tile| tile.keeps_busy(n_rows, n_batch, n_multiprocessors);
    match n_batch {
        1 => Form::Few(0),
        2..=8 => Form::Few(usize::from(are_enough(LEVELS_FEW[1]))),
        9..=32 => Form::Few(2),
        _ => Form::Tiles(usize::from(are_enough(LEVELS_TILES[1]))),
    }
}

fn functions<'a, D: Device>(
    kernels: &'a Kernels<D>,
    matrix: &Matrix<D>,
) -> Result<&'a LevelsKernels<D>, Error> {
    let n_units = matrix.n_rows() * matrix.n_cols() / 16;
    assert!(u32::try_from(n_units).is_ok(), "{n_units} units of a matrix");
    match &kernels.of(matrix.ty())?.levels {
        Some(levels) => Ok(levels),
        None => panic!("{} has no levels", matrix.ty()),
    }
}

/// Queues a product with one matrix, whose shapes and devices were checked.
pub(super) fn matvec<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    matrix: &Matrix<D>,
    x: &Quantized<'_, D>,
    epilogue: &Epilogue,
) -> Result<(), Error> {
    let form = form(matrix.n_rows(), x.n_rows(), kernels.device().n_multiprocessors());
    queue(kernels, stream, matrix, x, epilogue, form)
}

fn queue<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    matrix: &Matrix<D>,
    x: &Quantized<'_, D>,
    epilogue: &Epilogue,
    form: Form,
) -> Result<(), Error> {
    x.check_type("x", QuantType::Bf16);
    let n_batch = x.n_rows();
    let levels = functions(kernels, matrix)?;
    let arguments = epilogue.arguments(matrix, x);
    let (function, grid, threads, shared) = match form {
        Form::Few(i) => {
            let few = LEVELS_FEW[i];
            (&levels.few[i], few.grid_of_few(matrix.n_rows(), n_batch), few.threads, 0)
        }
        Form::Tiles(i) => {
            let tile = LEVELS_TILES[i];
            let grid = tile.grid_of_many(matrix.n_rows(), n_batch);
            (&levels.tiles[i], grid, tile.threads, LEVELS_SHARED)
        }
    };
    // SAFETY: the arguments are those of `matvec_levels_*` and `matmul_levels_*` in order, and so is the shared memory.
    // The planes are those of the matrix; rows of activations are padded with zeros to the kernels' column step, and
    // were otherwise checked by the caller. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch_with_shared(stream, function, grid, [threads, 1], shared, &arguments) }
}

/// A kernel, its grid and its block.
pub(super) type Chosen<'a, D> = (&'a <D as Device>::Function, [u32; 3], [u32; 2]);

/// Selects the kernel of a gated product with `n_rows` results.
pub(super) fn gated<'a, D: Device>(
    kernels: &'a Kernels<D>,
    matrix: &Matrix<D>,
    n_rows: usize,
    n_batch: usize,
) -> Result<Chosen<'a, D>, Error> {
    let grid = [n_rows.div_ceil(GATED_ROWS), n_batch.div_ceil(GATED_COLS), 1].map(|n| n as u32);
    Ok((&functions(kernels, matrix)?.gated, grid, [GATED_THREADS, 1]))
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use realizar_quant::BlockType;

    use super::*;
    use crate::matrix::INTEGER_TYPES;
    use crate::testing::{Random, TestDevice, halved, kernels, on_device, read, weights};
    use crate::{Buffer, LinearQuantized, QuantizedRows, Rows, matvec_quantized, quantize};

    struct Case {
        ty: BlockType,
        n_rows: usize,
        n_cols: usize,
        n_batch: usize,
        extras: bool,
    }

    /// Computes a product with every kernel and compares it with the reference and with the other kernels.
    fn check(case: &Case) {
        let Case { ty, n_rows, n_cols, n_batch, extras } = *case;
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let mut random = Random(9 + n_cols as u64);
        let (bytes, values) = weights(ty, n_rows, n_cols, &mut random);
        let matrix = Matrix::upload(device, &stream, "w", ty, n_rows, n_cols, &bytes).unwrap();
        let (x_stride, out_stride) = (n_cols + 4, n_rows + 3);
        let x = random.floats(n_batch * x_stride);
        let bias = random.floats(n_rows);
        let first = random.floats(n_batch * out_stride);
        let (x_at, bias_at) = (on_device(device, &stream, &x), on_device(device, &stream, &bias));
        let room = QuantizedRows::new(device, QuantType::Bf16, n_batch + 1, n_cols).unwrap();
        let all = room.rows(1, n_batch, n_cols);
        quantize(&kernels, &stream, Rows::new(&x_at, 0, n_batch, n_cols, x_stride), all).unwrap();
        let linear = |from: usize,
                      n: usize,
                      to: &Buffer<TestDevice>,
                      run: &dyn Fn(&LinearQuantized<'_, _>)| {
            let out = Rows::new(to, from * out_stride, n, n_rows, out_stride);
            run(&LinearQuantized {
                matrices: &[&matrix],
                x: room.rows(1 + from, n, n_cols),
                bias: extras.then(|| Rows::vector(&bias_at, n_rows)),
                residual: extras.then_some(out),
                out,
            });
        };

        // The selected kernel is compared with the reference.
        let together = on_device(device, &stream, &first);
        linear(0, n_batch, &together, &|linear| {
            matvec_quantized(&kernels, &stream, linear).unwrap();
        });
        let found = read(&stream, &together, first.len());
        for b in 0..n_batch {
            let x: Vec<f64> = x[b * x_stride..][..n_cols]
                .iter()
                .map(|&x| f64::from(halved(BlockType::BF16, x).1))
                .collect();
            let reach: f64 = x.iter().map(|x| x.abs()).sum();
            for r in 0..n_rows {
                let w = &values[r * n_cols..][..n_cols];
                let dot: f64 = w.iter().zip(&x).map(|(&w, &x)| f64::from(w) * x).sum();
                let mut found = f64::from(found[b * out_stride + r]);
                if extras {
                    found -= f64::from(bias[r]) + f64::from(first[b * out_stride + r]);
                }
                // Weights are below 1 in magnitude. Two BF16 parts of a sum have an error of up to 2^-17, which a
                // minimum scales.
                let away = (found - dot).abs();
                assert!(
                    away <= 4e-6 * reach + 4e-7,
                    "{ty} [{n_rows}, {n_cols}] x {n_batch}, {b} {r}: {found} {dot} {:e}",
                    away / reach
                );
            }
            // Memory between the rows is not written.
            let between = b * out_stride + n_rows..(b + 1) * out_stride;
            assert_eq!(found[between.clone()], first[between]);
        }

        // All kernels give the same bits, for all rows together and for single rows.
        let same = |from: usize, n: usize, form: Form| {
            let to = on_device(device, &stream, &first);
            linear(from, n, &to, &|linear| {
                let (matrix, epilogue) = linear.parts().next().unwrap();
                queue(&kernels, &stream, matrix, &linear.x, &epilogue, form).unwrap();
            });
            let at = from * out_stride..(from + n) * out_stride;
            let again = read(&stream, &to, first.len());
            let mut pairs = again[at.clone()].iter().zip(&found[at]);
            assert!(
                pairs.all(|(a, b)| a.to_bits() == b.to_bits()),
                "{ty} [{n_rows}, {n_cols}] x {n_batch}: {n} rows from {from} by {form:?}"
            );
        };
        for from in [0, n_batch - 1] {
            same(from, 1, Form::Few(0));
        }
        for i in 0..LEVELS_FEW.len() {
            same(0, n_batch, Form::Few(i));
        }
        for i in 0..LEVELS_TILES.len() {
            same(0, n_batch, Form::Tiles(i));
        }
    }

    #[cfg_attr(test, test)]
    fn every_type_by_every_kernel() {
        for (i, ty) in INTEGER_TYPES.into_iter().enumerate() {
            let lengths: &[usize] =
                if ty.block_len() == 32 { &[96, 544, 1184] } else { &[256, 1280] };
            let (n_rows, n_batch) = ([19, 3, 33][i % 3], [2, 9, 11][i / 3 % 3]);
            let n_cols = lengths[i % lengths.len()];
            check(&Case { ty, n_rows, n_cols, n_batch, extras: i % 2 == 0 });
        }
    }

    #[cfg_attr(test, test)]
    fn rows_longer_and_shorter_than_a_step() {
        use BlockType::{IQ4_XS, Q2_K, Q4_0, Q4_K, Q6_K, Q8_0};
        for (ty, lengths) in [
            (Q4_0, &[32, 1056, 2112][..]),
            (Q8_0, &[32, 160, 1184]),
            (Q4_K, &[256, 2304]),
            (Q6_K, &[768, 4352]),
            (IQ4_XS, &[2304]),
            (Q2_K, &[768, 4352]),
        ] {
            for &n_cols in lengths {
                check(&Case { ty, n_rows: 3, n_cols, n_batch: 2, extras: false });
            }
        }
    }

    #[cfg_attr(test, test)]
    fn a_row_that_is_not_finite_shows_it_and_no_other_does() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let (n_rows, n_cols) = (2, 256);
        for n_batch in [2, 9, 40] {
            let (bytes, _) = weights(BlockType::Q4_K, n_rows, n_cols, &mut Random(1));
            let matrix =
                Matrix::upload(device, &stream, "w", BlockType::Q4_K, n_rows, n_cols, &bytes);
            let mut x = Random(2).floats(n_batch * n_cols);
            x[n_cols + 44] = f32::NAN;
            let x = on_device(device, &stream, &x);
            let out = on_device(device, &stream, &vec![0.0f32; n_batch * n_rows]);
            let room = QuantizedRows::new(device, QuantType::Bf16, n_batch, n_cols).unwrap();
            let to = room.rows(0, n_batch, n_cols);
            let rows = Rows::new(&x, 0, n_batch, n_cols, n_cols);
            quantize(&kernels, &stream, rows, to).unwrap();
            let linear = LinearQuantized {
                matrices: &[&matrix.unwrap()],
                x: to,
                bias: None,
                residual: None,
                out: Rows::new(&out, 0, n_batch, n_rows, n_rows),
            };
            matvec_quantized(&kernels, &stream, &linear).unwrap();
            for (i, x) in read(&stream, &out, n_batch * n_rows).into_iter().enumerate() {
                assert_eq!(x.is_finite(), i / n_rows != 1, "{i} of {n_batch} rows: {x}");
            }
        }
    }

    /// On 120 multiprocessors, 108 blocks are enough.
    #[cfg_attr(test, test)]
    fn blocks_are_as_large_as_there_are_enough_of() {
        let cases = [
            ((28672, 1), Form::Few(0)),
            ((3424, 8), Form::Few(0)),
            ((3425, 2), Form::Few(1)),
            ((28672, 9), Form::Few(2)),
            ((4096, 128), Form::Tiles(0)),
            ((28672, 33), Form::Tiles(1)),
        ];
        for ((n_rows, n_batch), expected) in cases {
            assert_eq!(form(n_rows, n_batch, 120), expected, "{n_rows} x {n_batch}");
        }
        // More of them want more blocks.
        for (n, expected) in [(132, 1), (142, 1), (143, 1), (148, 0)] {
            assert_eq!(form(4096, 8, n), Form::Few(expected), "{n}");
        }
    }

    crate::testing::tests![
        every_type_by_every_kernel,
        rows_longer_and_shorter_than_a_step,
        a_row_that_is_not_finite_shows_it_and_no_other_does,
        blocks_are_as_large_as_there_are_enough_of,
    ];
}
