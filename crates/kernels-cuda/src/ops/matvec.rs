//! Products of packed weights with the F32 rows of small decode steps.

use super::rows::optional;
use crate::device::{Argument, Device};
use crate::kernels::{Kernels, MATVEC_COLS};
use crate::{Error, Matrix, Rows};

/// Warps of a block, and matrix rows per warp, as in `cuda/matvec.cuh`.
const WARPS: usize = 4;
/// For a single activation row.
const ROWS_OF_1: usize = 4;
/// For several activation rows.
const ROWS_OF_4: usize = 2;

/// `out = matrix * x + bias + residual` by rows.
#[derive(Debug)]
pub struct Linear<'a, D: Device> {
    /// The weights, `[n_rows, n_cols]`.
    pub matrix: &'a Matrix<D>,
    /// Activations, `[n_batch, n_cols]`.
    pub x: Rows<'a, D>,
    /// Added to every row, `[1, n_rows]`.
    pub bias: Option<Rows<'a, D>>,
    /// Added by rows, `[n_batch, n_rows]`; it may be `out`.
    pub residual: Option<Rows<'a, D>>,
    /// The result, `[n_batch, n_rows]`.
    pub out: Rows<'a, D>,
}

impl<D: Device> Linear<'_, D> {
    /// Asserts that shapes and devices match.
    pub(crate) fn check(&self, kernels: &Kernels<D>) {
        let Self { matrix, x, bias, residual, out } = self;
        let n_batch = x.n_rows();
        x.check(kernels, "x", n_batch, matrix.n_cols());
        x.check_aligned("x");
        out.check(kernels, "out", n_batch, matrix.n_rows());
        if let Some(bias) = bias {
            bias.check(kernels, "bias", 1, matrix.n_rows());
        }
        if let Some(residual) = residual {
            residual.check(kernels, "residual", n_batch, matrix.n_rows());
        }
        kernels.check("the matrix", matrix.buffer(), 0);
    }
}

/// Queues a product. The bits of a result row depend on its own activation row alone.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, or there are more than 262,140 activation rows.
pub fn matvec<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    linear: &Linear<'_, D>,
) -> Result<(), Error> {
    let Linear { matrix, x, bias, residual, out } = linear;
    linear.check(kernels);
    let n_batch = x.n_rows();
    let [of_1, of_4] = &kernels.of(matrix.ty())?.matvec;
    let (function, rows, cols) = match n_batch {
        1 => (of_1, ROWS_OF_1, 1),
        _ => (of_4, ROWS_OF_4, MATVEC_COLS[1]),
    };
    let [main, high, head] = matrix.planes();
    let [residual, residual_stride] = optional(*residual);
    let arguments = [
        main,
        high,
        head,
        x.address(),
        x.stride(),
        optional(*bias)[0],
        residual,
        residual_stride,
        out.address(),
        out.stride(),
        Argument::I32(matrix.n_rows() as i32),
        Argument::I32(matrix.n_cols() as i32),
        Argument::I32(n_batch as i32),
    ];
    let n_groups = n_batch.div_ceil(cols);
    assert!(n_groups <= 65535, "{n_batch} rows of activations");
    let grid = [matrix.n_rows().div_ceil(WARPS * rows) as u32, n_groups as u32, 1];
    // SAFETY: the arguments are those of `matvec_*` in order. The planes are those of the matrix, the rows were checked
    // to lie inside their buffers when they were made, and their shapes above. The buffers are borrowed; freeing one
    // waits for queued work, and replaying a graph is the caller's promise.
    unsafe { kernels.launch(stream, function, grid, [32, WARPS as u32], &arguments) }
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use realizar_quant::BlockType;

    use super::*;
    use crate::matrix::BLOCK_TYPES;
    use crate::testing::{Random, TestDevice, kernels, on_device, read, weights};
    use crate::{Buffer, device::Device};

    struct Case {
        ty: BlockType,
        n_rows: usize,
        n_cols: usize,
        n_batch: usize,
    }

    fn check(case: &Case, extras: bool) {
        let Case { ty, n_rows, n_cols, n_batch } = *case;
        let mut random = Random(7 + n_cols as u64);
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let (bytes, values) = weights(ty, n_rows, n_cols, &mut random);
        let matrix = Matrix::upload(device, &stream, "w", ty, n_rows, n_cols, &bytes).unwrap();
        let x_stride = n_cols.next_multiple_of(4);
        let out_stride = n_rows.next_multiple_of(4) + 4;
        let x: Vec<f32> = (0..n_batch * x_stride).map(|_| random.float()).collect();
        let bias: Vec<f32> = (0..n_rows).map(|_| random.float()).collect();
        let first: Vec<f32> = (0..n_batch * out_stride).map(|_| random.float()).collect();
        let (x_at, bias_at) = (on_device(device, &stream, &x), on_device(device, &stream, &bias));
        let run = |from: usize, n: usize, out: &Buffer<TestDevice>| {
            let out = Rows::new(out, from * out_stride, n, n_rows, out_stride);
            let linear = Linear {
                matrix: &matrix,
                x: Rows::new(&x_at, from * x_stride, n, n_cols, x_stride),
                bias: extras.then(|| Rows::vector(&bias_at, n_rows)),
                residual: extras.then_some(out),
                out,
            };
            matvec(&kernels, &stream, &linear).unwrap();
        };
        let together = on_device(device, &stream, &first);
        run(0, n_batch, &together);
        let found = read(&stream, &together, first.len());

        for b in 0..n_batch {
            let x = &x[b * x_stride..][..n_cols];
            let reach: f64 = x.iter().map(|x| f64::from(x.abs())).sum();
            for r in 0..n_rows {
                let w = &values[r * n_cols..][..n_cols];
                let mut expected: f64 =
                    w.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
                if extras {
                    expected += f64::from(bias[r]) + f64::from(first[b * out_stride + r]);
                }
                let away = (f64::from(found[b * out_stride + r]) - expected).abs();
                // Weights are below 1 in magnitude, levels below twice that.
                assert!(
                    away <= 5e-7 * reach + 2e-7,
                    "{ty} [{n_rows}, {n_cols}] x {n_batch}: {away:e}"
                );
            }
            // Memory between the rows is not written.
            let between = b * out_stride + n_rows..(b + 1) * out_stride;
            assert_eq!(found[between.clone()], first[between]);
        }
        // Single rows give the same bits.
        let alone = on_device(device, &stream, &first);
        for b in 0..n_batch {
            run(b, 1, &alone);
        }
        let alone = read(&stream, &alone, first.len());
        assert!(
            alone.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits()),
            "{ty} x {n_batch}"
        );
    }

    #[cfg_attr(test, test)]
    fn every_type_by_one_row_and_by_several() {
        for ty in BLOCK_TYPES {
            let n_cols = 256.max(ty.block_len());
            for n_batch in [1, 2, 5] {
                check(&Case { ty, n_rows: 19, n_cols, n_batch }, n_batch == 5);
            }
        }
    }

    #[cfg_attr(test, test)]
    fn rows_longer_and_shorter_than_a_step_of_a_warp() {
        for ty in BLOCK_TYPES {
            let len = ty.block_len();
            let lengths: &[usize] = match len {
                1 => &[1, 3, 7, 130, 277, 1029],
                32 => &[32, 96, 1056, 2080],
                64 => &[64, 704, 2112],
                _ => &[256, 1280, 2304],
            };
            for &n_cols in lengths {
                check(&Case { ty, n_rows: 3, n_cols, n_batch: 3 }, false);
            }
        }
    }

    #[cfg_attr(test, test)]
    fn a_captured_product_is_replayed_on_new_values() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let (bytes, values) = weights(BlockType::Q8_0, 5, 64, &mut Random(3));
        let matrix = Matrix::upload(device, &stream, "w", BlockType::Q8_0, 5, 64, &bytes).unwrap();
        let x = on_device(device, &stream, &[0.0; 64]);
        let out = on_device(device, &stream, &[0.0; 8]);
        let linear = Linear {
            matrix: &matrix,
            x: Rows::vector(&x, 64),
            bias: None,
            residual: None,
            out: Rows::vector(&out, 5),
        };
        device.begin_capture(&stream).unwrap();
        matvec(&kernels, &stream, &linear).unwrap();
        let graph = device.end_capture(&stream).unwrap();
        for col in [0, 17, 63] {
            let mut unit = [0.0f32; 64];
            unit[col] = 1.0;
            x.write(&stream, 0, &unit).unwrap();
            // SAFETY: the matrix and both buffers are still alive.
            unsafe { device.replay(&stream, &graph) }.unwrap();
            let found = read(&stream, &out, 5);
            let expected: Vec<f32> = (0..5).map(|r| values[r * 64 + col]).collect();
            assert_eq!(found, expected);
        }
    }

    crate::testing::tests![
        every_type_by_one_row_and_by_several,
        rows_longer_and_shorter_than_a_step_of_a_warp,
        a_captured_product_is_replayed_on_new_values,
    ];
}
