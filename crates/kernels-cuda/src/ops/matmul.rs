//! Products of packed weights with prefill rows, in tiles.

use super::linear_quantized::LinearQuantized;
use super::matvec::Linear;
use super::quantize::QuantType;
use super::round::{Halves, half_type};
use super::rows::optional;
use crate::device::{Argument, Device};
use crate::kernels::{Kernels, TILES};
use crate::{Error, Matrix, Rows};

/// Activation rows and weight rows of a tile of `matmul`, and its threads.
const F32_SIDE: usize = 64;
const F32_THREADS: u32 = 256;

/// Queues a product in F32. The bits of a result row depend on its own activation row alone.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, or rows of `x` are not aligned to 16 bytes.
pub fn matmul<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    linear: &Linear<'_, D>,
) -> Result<(), Error> {
    linear.check(kernels);
    let Linear { matrix, x, bias, residual, out } = linear;
    let n_batch = x.n_rows();
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
    let grid = grid(n_batch, F32_SIDE, matrix, F32_SIDE);
    let function = &kernels.of(matrix.ty())?.matmul;
    // SAFETY: the arguments are those of `matmul_f32_*` in order. The planes are those of the matrix, rows were checked
    // to lie inside their buffers when they were made, and their shapes above. As `matvec` says, buffers outlive queued
    // work.
    unsafe { kernels.launch(stream, function, grid, [F32_THREADS, 1], &arguments) }
}

/// `out = matrix * x + bias + residual` by rows, with the product in half precision.
#[derive(Debug)]
pub struct LinearHalf<'a, D: Device> {
    /// The weights, `[n_rows, n_cols]`.
    pub matrix: &'a Matrix<D>,
    /// Activations in the weights' [`half_type`], `[n_batch, n_cols]`.
    pub x: Halves<'a, D>,
    /// Added to every row, `[1, n_rows]`.
    pub bias: Option<Rows<'a, D>>,
    /// Added by rows, `[n_batch, n_rows]`; it may be `out`.
    pub residual: Option<Rows<'a, D>>,
    /// The result, `[n_batch, n_rows]`.
    pub out: Rows<'a, D>,
}

/// Queues a half-precision product on tensor cores with F32 sums. The bits of a result row depend on its own activation
/// row alone.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes, types or devices do not match.
pub fn matmul_half<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    linear: &LinearHalf<'_, D>,
) -> Result<(), Error> {
    let LinearHalf { matrix, x, bias, residual, out } = linear;
    let n_batch = x.n_rows();
    assert_eq!(half_type(matrix.ty()), Some(x.ty()), "weights of {}", matrix.ty());
    x.check(kernels, "x", n_batch, matrix.n_cols());
    kernels.check("the matrix", matrix.buffer(), 0);
    out.check(kernels, "out", n_batch, matrix.n_rows());
    if let Some(bias) = bias {
        bias.check(kernels, "bias", 1, matrix.n_rows());
    }
    if let Some(residual) = residual {
        residual.check(kernels, "residual", n_batch, matrix.n_rows());
    }
    let [main, high, head] = matrix.planes();
    let [x, x_stride, scales] = x.arguments();
    let [residual, residual_stride] = optional(*residual);
    let arguments = [
        main,
        high,
        head,
        x,
        x_stride,
        scales,
        optional(*bias)[0],
        residual,
        residual_stride,
        out.address(),
        out.stride(),
        Argument::I32(matrix.n_rows() as i32),
        Argument::I32(matrix.n_cols() as i32),
        Argument::I32(n_batch as i32),
    ];
    let tile = tile(n_batch);
    let grid = grid(n_batch, TILES[tile].x_rows, matrix, TILES[tile].w_rows);
    let Some(functions) = &kernels.of(matrix.ty())?.matmul_half else {
        unreachable!("types that halves have")
    };
    // SAFETY: the arguments are those of `matmul_half_*` in order. Half-precision rows are padded to the kernel's
    // column step, and otherwise as in `matmul`.
    unsafe { kernels.launch(stream, &functions[tile], grid, [TILES[tile].threads, 1], &arguments) }
}

/// Queues a product with 8-bit activations on tensor cores, one launch per matrix. The bits of a result row depend on
/// its own activation row alone.
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, or [`takes_quantized`](crate::takes_quantized) does not hold for a type.
pub fn matmul_int8<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    linear: &LinearQuantized<'_, D>,
) -> Result<(), Error> {
    linear.check(kernels);
    let x = &linear.x;
    x.check_type("x", QuantType::Int8);
    let n_batch = x.n_rows();
    let tile = tile(n_batch);
    for (matrix, epilogue) in linear.parts() {
        let Some(int8) = &kernels.of(matrix.ty())?.int8 else {
            panic!("{} has no levels", matrix.ty())
        };
        let arguments = epilogue.arguments(matrix, x);
        let grid = grid(n_batch, TILES[tile].x_rows, matrix, TILES[tile].w_rows);
        let function = &int8.matmul[tile];
        // SAFETY: the arguments are those of `matmul_int8_*` in order, and otherwise as in `matmul`.
        unsafe { kernels.launch(stream, function, grid, [TILES[tile].threads, 1], &arguments) }?;
    }
    Ok(())
}

/// The smaller tile if the larger would be at most half full. The choice does not affect bits.
fn tile(n_batch: usize) -> usize {
    usize::from(n_batch <= TILES[0].x_rows / 2)
}

/// Grid over tiles of activation rows and of weight rows. Neighbouring blocks share weights.
fn grid<D: Device>(n_batch: usize, x_rows: usize, matrix: &Matrix<D>, w_rows: usize) -> [u32; 3] {
    let n_tiles = matrix.n_rows().div_ceil(w_rows);
    assert!(n_tiles <= 65535, "{n_tiles} tiles of weights");
    [n_batch.div_ceil(x_rows) as u32, n_tiles as u32, 1]
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use realizar_quant::BlockType;

    use super::*;
    use crate::matrix::BLOCK_TYPES;
    use crate::matrix::INTEGER_TYPES;
    use crate::testing::{Random, TestDevice, halved, kernels, on_device, read, rounded, weights};
    use crate::{Buffer, HalfRows, QuantizedRows, matvec_quantized, quantize, round_rows};

    /// The type of the activations.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Form {
        F32,
        Half,
        Int8,
    }

    struct Case<'a> {
        form: Form,
        types: &'a [BlockType],
        n_rows: &'a [usize],
        n_cols: usize,
        n_batch: usize,
    }

    /// Weights and activations after rounding.
    fn multiplied(form: Form, ty: BlockType, w: &[f32], x: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let plain = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect();
        let bf16 = |x: &[f32]| x.iter().map(|&x| f64::from(halved(BlockType::BF16, x).1)).collect();
        match (form, ty) {
            (Form::F32, _) => (plain(w), plain(x)),
            (Form::Int8, _) => (plain(w), rounded(x)),
            (Form::Half, BlockType::F16) => {
                // The largest magnitude becomes 2^14 to 2^15.
                let top = x.iter().fold(0.0f32, |top, x| top.max(x.abs()));
                let scale = (14.0 - top.log2().floor()).exp2();
                let half = |&x: &f32| f64::from(halved(BlockType::F16, scale * x).1 / scale);
                (plain(w), x.iter().map(half).collect())
            }
            (Form::Half, _) => (bf16(w), bf16(x)),
        }
    }

    /// A product of rows `from` to `from + n` of `x`.
    struct Bench<'a> {
        kernels: &'a Kernels<TestDevice>,
        stream: &'a realizar_ptx::Stream,
        matrices: Vec<Matrix<TestDevice>>,
        x: Buffer<TestDevice>,
        bias: Buffer<TestDevice>,
        n_cols: usize,
        x_stride: usize,
        out_stride: usize,
    }

    impl Bench<'_> {
        fn run(&self, form: Form, from: usize, n: usize, out: &Buffer<TestDevice>) {
            let &Bench { kernels, stream, ref matrices, n_cols, x_stride, out_stride, .. } = self;
            let x = Rows::new(&self.x, from * x_stride, n, n_cols, x_stride);
            let n_rows: usize = matrices.iter().map(Matrix::n_rows).sum();
            let out = Rows::new(out, from * out_stride, n, n_rows, out_stride);
            let bias = Some(Rows::vector(&self.bias, n_rows));
            let residual = Some(out);
            let matrix = &matrices[0];
            match form {
                Form::F32 => {
                    matmul(kernels, stream, &Linear { matrix, x, bias, residual, out }).unwrap();
                }
                Form::Half => {
                    let room = HalfRows::new(kernels.device(), n + 1, n_cols + 70).unwrap();
                    let to = room.rows(half_type(matrix.ty()).unwrap(), 1, n, n_cols);
                    round_rows(kernels, stream, x, to).unwrap();
                    let linear = LinearHalf { matrix, x: to, bias, residual, out };
                    matmul_half(kernels, stream, &linear).unwrap();
                }
                Form::Int8 => {
                    let room =
                        QuantizedRows::new(kernels.device(), QuantType::Int8, n + 1, n_cols + 32)
                            .unwrap();
                    let to = room.rows(1, n, n_cols);
                    quantize(kernels, stream, x, to).unwrap();
                    let parts: Vec<&Matrix<_>> = matrices.iter().collect();
                    let linear = LinearQuantized { matrices: &parts, x: to, bias, residual, out };
                    matmul_int8(kernels, stream, &linear).unwrap();
                }
            }
        }
    }

    fn check(kernels: &Kernels<TestDevice>, stream: &realizar_ptx::Stream, case: &Case<'_>) {
        let &Case { form, types, n_rows, n_cols, n_batch } = case;
        let device = kernels.device();
        let mut random = Random(n_cols as u64 + 5);
        let (mut matrices, mut values) = (Vec::new(), Vec::new());
        for (&ty, &n_rows) in types.iter().zip(n_rows) {
            let (bytes, of_part) = weights(ty, n_rows, n_cols, &mut random);
            let matrix = Matrix::upload(device, stream, "w", ty, n_rows, n_cols, &bytes);
            matrices.push(matrix.unwrap());
            values.extend(of_part.chunks(n_cols).map(|row| (ty, row.to_vec())));
        }
        let n_rows = values.len();
        let (x_stride, out_stride) = (n_cols.next_multiple_of(4) + 4, n_rows + 3);
        let x = random.floats(n_batch * x_stride);
        let bias = random.floats(n_rows);
        let first = random.floats(n_batch * out_stride);
        let put = |values: &[f32]| on_device(device, stream, values);
        let (together, alone) = (put(&first), put(&first));
        let (x_at, bias_at) = (put(&x), put(&bias));
        let bench = Bench {
            kernels,
            stream,
            matrices,
            x: x_at,
            bias: bias_at,
            n_cols,
            x_stride,
            out_stride,
        };
        bench.run(form, 0, n_batch, &together);
        let found = read(stream, &together, first.len());
        for b in 0..n_batch {
            let x = &x[b * x_stride..][..n_cols];
            let reach: f64 = x.iter().map(|x| f64::from(x.abs())).sum();
            for (r, (ty, w)) in values.iter().enumerate() {
                let (w, x) = multiplied(form, *ty, w, x);
                let dot: f64 = w.iter().zip(&x).map(|(w, x)| w * x).sum();
                let expected = dot + f64::from(bias[r]) + f64::from(first[b * out_stride + r]);
                let away = (f64::from(found[b * out_stride + r]) - expected).abs();
                assert!(
                    away <= 1e-6 * reach + 4e-7,
                    "{form:?} {types:?} {n_cols} x {n_batch}, row {b}, result {r}: {away:e}"
                );
            }
            // Memory between the rows is not written.
            let between = b * out_stride + n_rows..(b + 1) * out_stride;
            assert_eq!(found[between.clone()], first[between]);
        }
        // Single rows give the same bits.
        let some: &[usize] = if n_batch > 2 { &[n_batch / 2, n_batch - 1] } else { &[n_batch - 1] };
        for &b in some {
            bench.run(form, b, 1, &alone);
            let at = b * out_stride;
            let alone = read(stream, &alone, first.len());
            let mut pairs = alone[at..at + n_rows].iter().zip(&found[at..]);
            assert!(
                pairs.all(|(a, b)| a.to_bits() == b.to_bits()),
                "{form:?} {types:?} x {n_batch}: row {b} alone"
            );
        }
    }

    /// Checks every type in a form with each number of rows.
    fn check_all(form: Form, types: &[BlockType], n_batches: &[usize]) {
        let (kernels, stream) = kernels();
        for (i, &ty) in types.iter().enumerate() {
            let n_cols = match ty.block_len() {
                1 => 101,
                32 => 96,
                64 => 192,
                _ => 256,
            };
            let n_batch = n_batches[i % n_batches.len()];
            let case = Case { form, types: &[ty], n_rows: &[19], n_cols, n_batch };
            check(&kernels, &stream, &case);
        }
    }

    #[cfg_attr(test, test)]
    fn every_type_in_f32() {
        check_all(Form::F32, &BLOCK_TYPES, &[5, 1, 3]);
    }

    #[cfg_attr(test, test)]
    fn every_type_in_half_precision() {
        let types: Vec<_> = BLOCK_TYPES.into_iter().filter(|&ty| half_type(ty).is_some()).collect();
        check_all(Form::Half, &types, &[5, 1, 66]);
    }

    #[cfg_attr(test, test)]
    fn every_type_with_8_bit_activations() {
        check_all(Form::Int8, &INTEGER_TYPES, &[5, 1, 66]);
    }

    #[cfg_attr(test, test)]
    fn tiles_of_both_sizes_in_half_precision() {
        use BlockType::*;
        let (kernels, stream) = kernels();
        for (ty, n_rows, n_cols, n_batch) in [
            (F16, 130, 65, 64),
            (BF16, 129, 136, 65),
            (F8_0, 5, 64, 70),
            (Q4_K, 3, 512, 130),
            (Q8_0, 35, 416, 20),
        ] {
            let case = Case { form: Form::Half, types: &[ty], n_rows: &[n_rows], n_cols, n_batch };
            check(&kernels, &stream, &case);
        }
    }

    #[cfg_attr(test, test)]
    fn tiles_of_both_sizes_with_8_bit_activations() {
        use BlockType::*;
        let (kernels, stream) = kernels();
        for (types, n_rows, n_cols, n_batch) in [
            (&[Q8_0][..], &[130][..], 32, 64),
            (&[Q4_0], &[129], 160, 65),
            (&[Q4_K, Q6_K], &[3, 5], 512, 130),
            (&[Q2_K], &[70], 256, 66),
            (&[Q5_K], &[40], 768, 33),
            (&[Q4_1], &[31], 608, 3),
        ] {
            check(&kernels, &stream, &Case { form: Form::Int8, types, n_rows, n_cols, n_batch });
        }
    }

    #[cfg_attr(test, test)]
    fn a_tile_in_f32_is_left_and_another_begun() {
        let (kernels, stream) = kernels();
        let (types, n_rows) = (&[BlockType::Q5_1][..], &[66][..]);
        let case = Case { form: Form::F32, types, n_rows, n_cols: 160, n_batch: 67 };
        check(&kernels, &stream, &case);
        let (types, n_rows) = (&[BlockType::F32][..], &[3][..]);
        let case = Case { form: Form::F32, types, n_rows, n_cols: 259, n_batch: 2 };
        check(&kernels, &stream, &case);
    }

    #[cfg_attr(test, test)]
    fn prompts_have_the_arithmetic_of_decode_steps_in_a_block() {
        // One block of 32 columns is one term in both.
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let mut random = Random(9);
        for ty in INTEGER_TYPES.into_iter().filter(|ty| ty.block_len() == 32) {
            let (bytes, _) = weights(ty, 7, 32, &mut random);
            let matrix = Matrix::upload(device, &stream, "w", ty, 7, 32, &bytes).unwrap();
            let x = on_device(device, &stream, &random.floats(3 * 32));
            let room = QuantizedRows::new(device, QuantType::Int8, 3, 32).unwrap();
            let to = room.rows(0, 3, 32);
            quantize(&kernels, &stream, Rows::new(&x, 0, 3, 32, 32), to).unwrap();
            let [few, many] = [(); 2].map(|()| on_device(device, &stream, &[0.0f32; 21]));
            let parts = [&matrix];
            let linear = |out| LinearQuantized {
                matrices: &parts,
                x: to,
                bias: None,
                residual: None,
                out: Rows::new(out, 0, 3, 7, 7),
            };
            matvec_quantized(&kernels, &stream, &linear(&few)).unwrap();
            matmul_int8(&kernels, &stream, &linear(&many)).unwrap();
            assert_eq!(read(&stream, &few, 21), read(&stream, &many, 21), "{ty}");
        }
    }

    crate::testing::tests![
        every_type_in_f32,
        every_type_in_half_precision,
        every_type_with_8_bit_activations,
        tiles_of_both_sizes_in_half_precision,
        tiles_of_both_sizes_with_8_bit_activations,
        a_tile_in_f32_is_left_and_another_begun,
        prompts_have_the_arithmetic_of_decode_steps_in_a_block,
    ];
}
