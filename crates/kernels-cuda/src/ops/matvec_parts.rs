//! Products of float matrices with decode rows on tensor cores. Activations are split into two BF16 parts, which keep
//! 16 significant bits.

use super::matvec::Linear;
use super::round::{HalfType, Halves};
use super::rows::optional;
use crate::Error;
use crate::device::{Argument, Device};
use crate::kernels::{Kernels, PARTS_FEW, PARTS_TILES};

/// The maximum number of activation rows that each block splits itself. More rows are split once for all blocks.
const MAX_FEW: usize = 8;

/// Whether [`matvec_parts`] requires that this many rows are split by [`split_rows`](super::split_rows) first.
pub fn is_worth_splitting(n_batch: usize) -> bool {
    n_batch > MAX_FEW
}

/// Queues a product with activations in two parts. If [`is_worth_splitting`] holds for the number of rows, `parts` are
/// those of `linear.x` as made by [`split_rows`](super::split_rows). The bits of a result row depend on its own
/// activation row alone.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes, types or devices do not match, `parts` are missing or not required, or there are more than 262,140
/// activation rows.
pub fn matvec_parts<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    linear: &Linear<'_, D>,
    parts: Option<Halves<'_, D>>, // [2 * n_batch, n_cols]
) -> Result<(), Error> {
    let n_batch = linear.x.n_rows();
    assert_eq!(parts.is_some(), is_worth_splitting(n_batch), "parts of {n_batch} rows");
    let form = match parts {
        None => Form::Few(few(n_batch)),
        Some(parts) => {
            let n_multiprocessors = kernels.device().n_multiprocessors();
            Form::Tiles(tile(linear.matrix.n_rows(), n_batch, n_multiprocessors), parts)
        }
    };
    queue(kernels, stream, linear, &form)
}

/// The kernel for few rows. A single row has 16 weight rows per block, for more blocks.
fn few(n_batch: usize) -> usize {
    match n_batch {
        1 => 0,
        2..=4 => 1,
        _ => 2,
    }
}

/// The largest tile that yields enough blocks, among those that are not half empty. The choice does not affect bits.
fn tile(n_rows: usize, n_batch: usize, n_multiprocessors: usize) -> usize {
    let fits = |i: &usize| {
        let tile = PARTS_TILES[*i];
        tile.x_rows < 2 * n_batch && tile.keeps_busy(n_rows, n_batch, n_multiprocessors)
    };
    (1..PARTS_TILES.len()).rev().find(fits).unwrap_or(0)
}

/// The kernel of a product, by its index in the table of its kind.
enum Form<'a, D: Device> {
    Few(usize),
    Tiles(usize, Halves<'a, D>),
}

fn queue<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    linear: &Linear<'_, D>,
    form: &Form<'_, D>,
) -> Result<(), Error> {
    linear.check(kernels);
    let Linear { matrix, x, bias, residual, out } = linear;
    let n_batch = x.n_rows();
    let Some(functions) = &kernels.of(matrix.ty())?.parts else {
        panic!("weights of {} take no activations in parts", matrix.ty())
    };
    let (function, grid, threads, x) = match form {
        Form::Few(i) => {
            let few = PARTS_FEW[*i];
            let grid = few.grid_of_few(matrix.n_rows(), n_batch);
            (&functions.few[*i], grid, few.threads, x.arguments())
        }
        Form::Tiles(i, parts) => {
            parts.check(kernels, "parts", 2 * n_batch, matrix.n_cols());
            assert_eq!(parts.ty(), HalfType::BF16, "parts");
            let tile = PARTS_TILES[*i];
            let grid = tile.grid_of_many(matrix.n_rows(), n_batch);
            let [values, stride, _] = parts.arguments();
            (&functions.tiles[*i], grid, tile.threads, [values, stride])
        }
    };
    let [main, high, head] = matrix.planes();
    let [residual, residual_stride] = optional(*residual);
    let arguments = [
        main,
        high,
        head,
        x[0],
        x[1],
        optional(*bias)[0],
        residual,
        residual_stride,
        out.address(),
        out.stride(),
        Argument::I32(matrix.n_rows() as i32),
        Argument::I32(matrix.n_cols() as i32),
        Argument::I32(n_batch as i32),
    ];
    // SAFETY: the arguments are those of `matvec_parts_*` and `matmul_parts_*` in order. Rows of parts are padded to
    // the kernel's column step, and otherwise as in `matvec`.
    unsafe { kernels.launch(stream, function, grid, [threads, 1], &arguments) }
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use realizar_quant::BlockType;

    use super::*;
    use crate::testing::{Random, TestDevice, halved, kernels, on_device, read, weights};
    use crate::{Buffer, HalfRows, Matrix, Rows, split_rows};

    /// All types with these kernels.
    const TYPES: [BlockType; 3] = [BlockType::BF16, BlockType::F16, BlockType::F8_0];

    /// The sum of both parts of a number.
    fn in_parts(x: f32) -> f64 {
        let high = halved(BlockType::BF16, x).1;
        f64::from(high) + f64::from(halved(BlockType::BF16, x - high).1)
    }

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
        let (x_stride, out_stride) = (n_cols.next_multiple_of(4) + 4, n_rows + 3);
        let x = random.floats(n_batch * x_stride);
        let bias = random.floats(n_rows);
        let first = random.floats(n_batch * out_stride);
        let (x_at, bias_at) = (on_device(device, &stream, &x), on_device(device, &stream, &bias));
        let room = HalfRows::new(device, 2 * n_batch + 2, n_cols + 70).unwrap();
        let rows = |from: usize, n: usize| Rows::new(&x_at, from * x_stride, n, n_cols, x_stride);
        let linear =
            |from: usize, n: usize, to: &Buffer<TestDevice>, run: &dyn Fn(&Linear<'_, _>)| {
                let out = Rows::new(to, from * out_stride, n, n_rows, out_stride);
                let bias = extras.then(|| Rows::vector(&bias_at, n_rows));
                let residual = extras.then_some(out);
                run(&Linear { matrix: &matrix, x: rows(from, n), bias, residual, out });
            };
        let parts = |from: usize, n: usize| {
            let to = room.rows(HalfType::BF16, 2, 2 * n, n_cols);
            split_rows(&kernels, &stream, rows(from, n), to).unwrap();
            to
        };

        // The selected kernel is compared with the reference.
        let together = on_device(device, &stream, &first);
        linear(0, n_batch, &together, &|linear| {
            let parts = is_worth_splitting(n_batch).then(|| parts(0, n_batch));
            matvec_parts(&kernels, &stream, linear, parts).unwrap();
        });
        let found = read(&stream, &together, first.len());
        for b in 0..n_batch {
            let x = &x[b * x_stride..][..n_cols];
            let reach: f64 = x.iter().map(|x| f64::from(x.abs())).sum();
            for r in 0..n_rows {
                let w = &values[r * n_cols..][..n_cols];
                let dot = |of: &dyn Fn(f32) -> f64| -> f64 {
                    w.iter().zip(x).map(|(&w, &x)| f64::from(w) * of(x)).sum()
                };
                let mut found = f64::from(found[b * out_stride + r]);
                if extras {
                    found -= f64::from(bias[r]) + f64::from(first[b * out_stride + r]);
                }
                // Weights are below 1 in magnitude. Splitting loses less than 2^-17 of a number.
                let (of_parts, of_floats) = (dot(&in_parts), dot(&|x| f64::from(x)));
                let away = [(found - of_parts).abs(), (found - of_floats).abs()];
                assert!(
                    away[0] <= 5e-7 * reach + 4e-7 && away[1] <= 8e-6 * reach + 4e-7,
                    "{ty} [{n_rows}, {n_cols}] x {n_batch}: {away:?}"
                );
            }
            // Memory between the rows is not written.
            let between = b * out_stride + n_rows..(b + 1) * out_stride;
            assert_eq!(found[between.clone()], first[between]);
        }

        // All kernels give the same bits, for all rows together and for single rows.
        let same = |from: usize, n: usize, what: &str, form: &Form<'_, TestDevice>| {
            let to = on_device(device, &stream, &first);
            linear(from, n, &to, &|linear| queue(&kernels, &stream, linear, form).unwrap());
            let at = from * out_stride..(from + n) * out_stride;
            let again = read(&stream, &to, first.len());
            let mut pairs = again[at.clone()].iter().zip(&found[at]);
            assert!(
                pairs.all(|(a, b)| a.to_bits() == b.to_bits()),
                "{ty} [{n_rows}, {n_cols}] x {n_batch}: {n} rows from {from} by {what}"
            );
        };
        for from in [0, n_batch - 1] {
            same(from, 1, "few", &Form::Few(0));
        }
        for i in 0..PARTS_FEW.len() {
            same(0, n_batch, &format!("few {i}"), &Form::Few(i));
        }
        for i in 0..PARTS_TILES.len() {
            same(0, n_batch, &format!("tiles {i}"), &Form::Tiles(i, parts(0, n_batch)));
        }
    }

    #[cfg_attr(test, test)]
    fn few_rows_and_many_have_the_same_bits() {
        for ty in TYPES {
            for (n_rows, n_batch, extras) in [(37, 3, false), (19, 11, true)] {
                let n_cols = 192;
                check(&Case { ty, n_rows, n_cols, n_batch, extras });
            }
        }
    }

    #[cfg_attr(test, test)]
    fn more_rows_than_a_tile_has() {
        check(&Case { ty: BlockType::BF16, n_rows: 131, n_cols: 136, n_batch: 66, extras: true });
        check(&Case { ty: BlockType::F8_0, n_rows: 5, n_cols: 64, n_batch: 65, extras: false });
    }

    #[cfg_attr(test, test)]
    fn columns_of_no_whole_step_or_segment() {
        for (ty, lengths) in [
            (BlockType::BF16, &[1, 3, 7, 65, 578, 1029][..]),
            (BlockType::F16, &[5, 130, 520]),
            (BlockType::F8_0, &[64, 576, 1216]),
        ] {
            for &n_cols in lengths {
                check(&Case { ty, n_rows: 3, n_cols, n_batch: 2, extras: false });
            }
        }
    }

    #[cfg_attr(test, test)]
    fn what_is_not_finite_reaches_its_own_row_alone() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let (n_rows, n_cols, n_batch) = (16, 64, 10);
        let bytes = [0x80u8, 0x3f].repeat(n_rows * n_cols); // ones
        let ty = BlockType::BF16;
        let matrix = Matrix::upload(device, &stream, "w", ty, n_rows, n_cols, &bytes).unwrap();
        let mut x = vec![0.5f32; n_batch * n_cols];
        x[3 * n_cols + 5] = f32::INFINITY;
        x[7 * n_cols + 60] = f32::NAN;
        let x_at = on_device(device, &stream, &x);
        let out = on_device(device, &stream, &vec![0.0f32; n_batch * n_rows]);
        for n in [8, n_batch] {
            let x = Rows::new(&x_at, 0, n, n_cols, n_cols);
            let room = HalfRows::new(device, 2 * n, n_cols).unwrap();
            let parts = is_worth_splitting(n).then(|| {
                let to = room.rows(HalfType::BF16, 0, 2 * n, n_cols);
                split_rows(&kernels, &stream, x, to).unwrap();
                to
            });
            let out_rows = Rows::new(&out, 0, n, n_rows, n_rows);
            let linear = Linear { matrix: &matrix, x, bias: None, residual: None, out: out_rows };
            matvec_parts(&kernels, &stream, &linear, parts).unwrap();
            let found = read(&stream, &out, n * n_rows);
            for (b, row) in found.chunks(n_rows).enumerate() {
                let is_right = |&v: &f32| match b {
                    3 => v == f32::INFINITY,
                    7 => v.is_nan(),
                    _ => v == 32.0,
                };
                assert!(row.iter().all(is_right), "row {b} of {n}: {row:?}");
            }
        }
    }

    #[cfg_attr(test, test)]
    fn tiles_are_as_large_as_there_are_enough_of() {
        // For numbers of weight rows and activation rows.
        let cases = [
            ((4096, 9), (32, 32)),
            ((4096, 32), (32, 32)),
            ((28672, 32), (64, 32)),
            ((4096, 128), (64, 64)),
            ((28672, 128), (128, 64)),
            ((28672, 20), (64, 32)),
            ((64, 100), (32, 32)),
        ];
        for ((n_rows, n_batch), expected) in cases {
            let tile = PARTS_TILES[tile(n_rows, n_batch, 120)];
            assert_eq!((tile.w_rows, tile.x_rows), expected, "{n_rows} x {n_batch}");
        }
    }

    crate::testing::tests![
        few_rows_and_many_have_the_same_bits,
        more_rows_than_a_tile_has,
        columns_of_no_whole_step_or_segment,
        what_is_not_finite_reaches_its_own_row_alone,
        tiles_are_as_large_as_there_are_enough_of,
    ];
}
