//! Products of quantized weights with quantized decode rows.

use super::levels;
use super::linear_quantized::LinearQuantized;
use super::quantize::QuantType;
use super::rows::optional;
use crate::device::{Argument, Device};
use crate::kernels::{INT8_COLS, INT8_TILE, Kernels, mixed_index};
use crate::{Error, Matrix};

/// Warps of a block, and matrix rows per warp, as in `cuda/matvec_quantized.cuh`.
pub(super) const WARPS: usize = 4;
pub(super) const ROWS: usize = 2;
/// Threads of a tile, and the minimum number of activation rows for tiles.
const TILE_THREADS: u32 = 256;
pub(super) const MIN_TILE_ROWS: usize = 9;

/// Queues a product. The bits of a result row depend on its own activation row alone, and not on the other matrices.
/// With 8-bit activations and at most eight rows, K-type matrices share one launch; otherwise each matrix has a launch
/// of its own, which runs in tiles for more than eight rows. With BF16 activations each matrix has a launch of its own.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, or [`takes_quantized`](crate::takes_quantized) does not hold for a type.
pub fn matvec_quantized<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    linear: &LinearQuantized<'_, D>,
) -> Result<(), Error> {
    linear.check(kernels);
    let LinearQuantized { matrices, x, bias, residual, out } = linear;
    if x.ty() == QuantType::Bf16 {
        let mut parts = linear.parts();
        return parts.try_for_each(|(matrix, epilogue)| {
            levels::matvec(kernels, stream, matrix, x, &epilogue)
        });
    }
    let n_batch = x.n_rows();
    let cols = INT8_COLS.iter().position(|&n| n_batch <= n).unwrap_or(INT8_COLS.len() - 1);
    let grid = |n_blocks: usize| {
        assert!(n_blocks <= 65535, "{n_blocks} blocks of rows");
        [n_batch.div_ceil(INT8_COLS[cols]) as u32, n_blocks as u32, 1]
    };
    let block = [32, WARPS as u32];
    let blocks_of = |matrix: &Matrix<D>| matrix.n_rows().div_ceil(WARPS * ROWS);

    if matrices.len() > 1
        && n_batch < MIN_TILE_ROWS
        && matrices.iter().all(|matrix| mixed_index(matrix.ty()).is_some())
    {
        let part = |i: usize| matrices.get(i).copied();
        let planes = |i| part(i).map_or([Argument::Address(0); 3], Matrix::planes);
        let of_part = |f: fn(&Matrix<D>) -> usize| {
            [0, 1, 2].map(|i| Argument::I32(part(i).map_or(0, f) as i32))
        };
        let [[m0, h0, d0], [m1, h1, d1], [m2, h2, d2]] = [planes(0), planes(1), planes(2)];
        let [n_cols, n_batch_at] = [x.n_cols(), n_batch].map(|n| Argument::I32(n as i32));
        let [quants, blocks, stride] = x.arguments();
        let [t0, t1, t2] = of_part(|matrix| mixed_index(matrix.ty()).unwrap_or(0));
        let [n0, n1, n2] = of_part(Matrix::n_rows);
        let [residual, residual_stride] = optional(*residual);
        let [out, out_stride] = out.arguments();
        let arguments = [
            m0,
            h0,
            d0,
            m1,
            h1,
            d1,
            m2,
            h2,
            d2,
            t0,
            t1,
            t2,
            n0,
            n1,
            n2,
            quants,
            blocks,
            stride,
            optional(*bias)[0],
            residual,
            residual_stride,
            out,
            out_stride,
            n_cols,
            n_batch_at,
        ];
        let grid = grid(matrices.iter().map(|matrix| blocks_of(matrix)).sum());
        let function = &kernels.mixed()?[cols];
        // SAFETY: the arguments are those of `matvec_int8_mixed_*` in order. The planes are those of the matrices; an
        // absent one has no rows. Rows were checked to lie inside their buffers when they were made, and their shapes
        // above. As `matvec` says, buffers outlive queued work.
        return unsafe { kernels.launch(stream, function, grid, block, &arguments) };
    }
    for (matrix, epilogue) in linear.parts() {
        let Some(int8) = &kernels.of(matrix.ty())?.int8 else {
            panic!("{} has no levels", matrix.ty())
        };
        let arguments = epilogue.arguments(matrix, x);
        let (function, grid, block) = match &int8.matvec_tiles {
            Some(function) if n_batch >= MIN_TILE_ROWS => {
                let [x, w] = [n_batch, matrix.n_rows()].map(|n| n.div_ceil(INT8_TILE));
                assert!(w <= 65535, "{w} tiles of weights");
                (function, [x as u32, w as u32, 1], [TILE_THREADS, 1])
            }
            _ => (&int8.matvec[cols], grid(blocks_of(matrix)), block),
        };
        // SAFETY: the arguments are those of `matvec_int8_*` in order, and otherwise as above.
        unsafe { kernels.launch(stream, function, grid, block, &arguments) }?;
    }
    Ok(())
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use realizar_quant::BlockType;

    use super::*;
    use crate::matrix::INTEGER_TYPES;
    use crate::testing::{Random, TestDevice, kernels, on_device, read, rounded, weights};
    use crate::{Buffer, QuantizedRows, Rows, quantize};

    struct Case<'a> {
        types: &'a [BlockType],
        n_rows: &'a [usize],
        n_cols: usize,
        n_batch: usize,
    }

    fn check(kernels: &Kernels<TestDevice>, stream: &realizar_ptx::Stream, case: &Case<'_>) {
        let &Case { types, n_rows, n_cols, n_batch } = case;
        let mut random = Random(7 + n_cols as u64);
        let device = kernels.device();
        let mut values = Vec::new();
        let mut matrices = Vec::new();
        for (&ty, &n_rows) in types.iter().zip(n_rows) {
            let (bytes, of_part) = weights(ty, n_rows, n_cols, &mut random);
            let matrix = Matrix::upload(device, stream, "w", ty, n_rows, n_cols, &bytes);
            matrices.push(matrix.unwrap());
            values.extend(of_part);
        }
        let n_rows: usize = n_rows.iter().sum();
        let (x_stride, out_stride) = (n_cols + 4, n_rows + 3);
        let x = random.floats(n_batch * x_stride);
        let bias = random.floats(n_rows);
        let first = random.floats(n_batch * out_stride);
        let [x_at, bias_at, together, alone] =
            [&x, &bias, &first, &first].map(|values| on_device(device, stream, values));
        let room = QuantizedRows::new(device, QuantType::Int8, n_batch + 1, n_cols + 32).unwrap();
        let all = room.rows(1, n_batch, n_cols);
        quantize(kernels, stream, Rows::new(&x_at, 0, n_batch, n_cols, x_stride), all).unwrap();
        let run = |parts: &[&Matrix<_>], from: usize, n: usize, at: usize, out: &Buffer<_>| {
            let n_rows = parts.iter().map(|part| part.n_rows()).sum();
            let out = Rows::new(out, from * out_stride + at, n, n_rows, out_stride);
            let linear = LinearQuantized {
                matrices: parts,
                x: room.rows(1 + from, n, n_cols),
                bias: Some(Rows::vector_at(&bias_at, at, n_rows)),
                residual: Some(out),
                out,
            };
            matvec_quantized(kernels, stream, &linear).unwrap();
        };
        let parts: Vec<&Matrix<_>> = matrices.iter().collect();
        run(&parts, 0, n_batch, 0, &together);
        let found = read(stream, &together, first.len());
        for b in 0..n_batch {
            let x = rounded(&x[b * x_stride..][..n_cols]);
            let reach: f64 = x.iter().map(|x| x.abs()).sum();
            for r in 0..n_rows {
                let w = &values[r * n_cols..][..n_cols];
                let dot: f64 = w.iter().zip(&x).map(|(&w, &x)| f64::from(w) * x).sum();
                let expected = dot + f64::from(bias[r]) + f64::from(first[b * out_stride + r]);
                let away = (f64::from(found[b * out_stride + r]) - expected).abs();
                assert!(away <= 5e-7 * reach + 4e-7, "{types:?} {n_cols} x {n_batch}: {away:e}");
            }
            // Memory between the rows is not written.
            let between = b * out_stride + n_rows..(b + 1) * out_stride;
            assert_eq!(found[between.clone()], first[between]);
        }
        // Single rows with single matrices give the same bits.
        for b in 0..n_batch {
            let mut at = 0;
            for part in &parts {
                run(&[part], b, 1, at, &alone);
                at += part.n_rows();
            }
        }
        let alone = read(stream, &alone, first.len());
        let same = alone.iter().zip(&found).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(same, "{types:?} x {n_batch}");
    }

    #[cfg_attr(test, test)]
    fn every_type_by_one_row_and_by_several() {
        let (kernels, stream) = kernels();
        for ty in INTEGER_TYPES {
            for (n_batch, n_cols) in [(1, 256), (2, 512), (4, 256), (7, 256), (9, 512)] {
                let case = Case { types: &[ty], n_rows: &[11], n_cols, n_batch };
                check(&kernels, &stream, &case);
            }
        }
    }

    #[cfg_attr(test, test)]
    fn rows_longer_and_shorter_than_a_step_of_a_warp() {
        let (kernels, stream) = kernels();
        for ty in INTEGER_TYPES {
            let lengths: &[usize] =
                if ty.block_len() == 32 { &[32, 96, 1056, 2112] } else { &[256, 1280, 2304, 4352] };
            for &n_cols in lengths {
                check(&kernels, &stream, &Case { types: &[ty], n_rows: &[3], n_cols, n_batch: 2 });
            }
        }
    }

    #[cfg_attr(test, test)]
    fn tiles_have_the_bits_of_single_rows() {
        let (kernels, stream) = kernels();
        for (i, ty) in INTEGER_TYPES.into_iter().enumerate() {
            let lengths: &[usize] =
                if ty.block_len() == 32 { &[96, 544, 1184] } else { &[256, 1280] };
            let (n_rows, n_batch) = ([35, 3, 33][i % 3], [33, 17, 40][i / 3 % 3]);
            let n_cols = lengths[i % lengths.len()];
            check(&kernels, &stream, &Case { types: &[ty], n_rows: &[n_rows], n_cols, n_batch });
        }
    }

    #[cfg_attr(test, test)]
    fn matrices_of_different_types_in_one_launch() {
        use BlockType::*;
        let (kernels, stream) = kernels();
        for types in [[Q4_K, Q4_K, Q6_K], [Q8_0, Q2_K, IQ4_NL], [Q5_K, Q3_K, MXFP4]] {
            for n_batch in [1, 2, 3, 5, 10] {
                for n in [2, 3] {
                    let (types, n_rows) = (&types[..n], &[16, 9, 7][..n]);
                    check(&kernels, &stream, &Case { types, n_rows, n_cols: 512, n_batch });
                }
            }
        }
    }

    #[cfg_attr(test, test)]
    fn a_row_that_is_not_finite_shows_it() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let (bytes, _) = weights(BlockType::Q4_K, 2, 256, &mut Random(1));
        let matrix = Matrix::upload(device, &stream, "w", BlockType::Q4_K, 2, 256, &bytes).unwrap();
        let mut x = Random(2).floats(512);
        x[300] = f32::NAN;
        let x = on_device(device, &stream, &x);
        let out = on_device(device, &stream, &[0.0f32; 4]);
        let room = QuantizedRows::new(device, QuantType::Int8, 2, 256).unwrap();
        let to = room.rows(0, 2, 256);
        quantize(&kernels, &stream, Rows::new(&x, 0, 2, 256, 256), to).unwrap();
        let out_rows = Rows::new(&out, 0, 2, 2, 2);
        let linear = LinearQuantized {
            matrices: &[&matrix],
            x: to,
            bias: None,
            residual: None,
            out: out_rows,
        };
        matvec_quantized(&kernels, &stream, &linear).unwrap();
        let found = read(&stream, &out, 4).iter().map(|x| x.is_finite()).collect::<Vec<_>>();
        assert_eq!(found, [true, true, false, false]);
    }

    crate::testing::tests![
        every_type_by_one_row_and_by_several,
        rows_longer_and_shorter_than_a_step_of_a_warp,
        tiles_have_the_bits_of_single_rows,
        matrices_of_different_types_in_one_launch,
        a_row_that_is_not_finite_shows_it,
    ];
}
