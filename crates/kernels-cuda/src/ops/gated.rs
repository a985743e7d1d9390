//! Gated products of decode rows: a quantized gate and up matrix, with the gated activation in the epilogue.

use std::sync::Arc;

use super::levels;
use super::matvec_quantized::{MIN_TILE_ROWS, ROWS, WARPS};
use super::quantize::{BLOCK_LEN, QuantType, Quantized, QuantizedRows};
use super::rows::optional;
use crate::device::{Argument, Device};
use crate::kernels::{INT8_COLS, Kernels, activation_argument};
use crate::{Activation, Buffer, Error, Matrix, Rows};

/// The maximum number of activation rows of a gated product. Products of more rows run in tiles.
pub const MAX_GATED_ROWS: usize = MIN_TILE_ROWS - 1;

/// The maximum number of row groups of a gated product.
const MAX_GROUPS: usize = MAX_GATED_ROWS.div_ceil(INT8_COLS[INT8_COLS.len() - 1]);

/// Memory for the quantized results of gated products with up to [`MAX_GATED_ROWS`] rows.
///
/// With 8-bit integers, the blocks of a launch use counters to find the last one to finish each 32 results. Launches
/// with the same memory must therefore be in one stream.
#[derive(Debug)]
pub struct GatedRows<D: Device> {
    rows: QuantizedRows<D>,
    counters: Buffer<D>, // [MAX_GROUPS, max_cols / 32], zero between launches
    max_cols: usize,
}

impl<D: Device> GatedRows<D> {
    /// Bytes for rows of up to `max_cols` values.
    pub fn bytes(ty: QuantType, max_cols: usize) -> usize {
        QuantizedRows::<D>::bytes(ty, MAX_GATED_ROWS, max_cols) + 4 * Self::n_counters(max_cols)
    }

    fn n_counters(max_cols: usize) -> usize {
        MAX_GROUPS * max_cols.div_ceil(BLOCK_LEN)
    }

    /// Allocates memory for rows of up to `max_cols` values.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or any error of the driver.
    pub fn new(
        device: &Arc<D>,
        stream: &D::Stream,
        ty: QuantType,
        max_cols: usize,
    ) -> Result<Self, Error> {
        let counters = vec![0u32; Self::n_counters(max_cols)];
        Ok(Self {
            rows: QuantizedRows::new(device, ty, MAX_GATED_ROWS, max_cols)?,
            counters: Buffer::with(device, stream, "the counters of gated products", &counters)?,
            max_cols,
        })
    }

    /// The first `n_rows` rows, of `n_cols` values each.
    ///
    /// # Panics
    /// If they exceed the allocated memory, or `n_cols` is not a multiple of 32.
    pub fn rows(&self, n_rows: usize, n_cols: usize) -> Quantized<'_, D> {
        self.rows.rows(0, n_rows, n_cols)
    }
}

/// `out = act(gate * x) * (up * x)` by rows. Each product includes its half of the bias.
#[derive(Debug)]
pub struct GatedQuantized<'a, D: Device> {
    /// The gate rows, then as many up rows, `[2 * n_rows, n_cols]`.
    pub matrix: &'a Matrix<D>,
    /// Whether the up rows are first instead.
    pub up_first: bool,
    /// Added to the products before the activation, `[1, 2 * n_rows]`.
    pub bias: Option<Rows<'a, D>>,
    /// Activations, `[n_batch, n_cols]`, of at most [`MAX_GATED_ROWS`] rows, not in the memory of `to`.
    pub x: Quantized<'a, D>,
    /// The gate's activation.
    pub act: Activation,
    /// The result, `[n_batch, n_rows]`.
    pub out: Rows<'a, D>,
    /// Where the result is also quantized to, in the type of `x`; read by [`GatedRows::rows`].
    pub to: Option<&'a GatedRows<D>>,
}

/// Queues a gated product in one launch. The bits are those of [`matvec_quantized`](crate::matvec_quantized) followed
/// by [`quantize_activated`](crate::quantize_activated).
///
/// # Errors
/// Any error of the driver.
///
/// # Panics
/// If shapes or devices do not match, [`takes_quantized`](crate::takes_quantized) does not hold for the type, or the
/// result is to be quantized and its rows are not aligned to 16 bytes.
pub fn gated_quantized<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    gated: &GatedQuantized<'_, D>,
) -> Result<(), Error> {
    let &GatedQuantized { matrix, up_first, bias, x, act, out, to } = gated;
    let (n_batch, n_rows) = (x.n_rows(), out.n_cols());
    assert!(n_batch <= MAX_GATED_ROWS, "{n_batch} rows of activations");
    assert_eq!(matrix.n_rows(), 2 * n_rows, "rows of a gate and of what it lets through");
    x.check(kernels, "x", n_batch, matrix.n_cols());
    out.check(kernels, "out", n_batch, n_rows);
    kernels.check("the matrix", matrix.buffer(), 0);
    if let Some(bias) = bias {
        bias.check(kernels, "bias", 1, 2 * n_rows);
    }
    let quants = match to {
        None => Quantized::<D>::NULL,
        Some(to) => {
            out.check_aligned("out");
            assert!(n_rows <= to.max_cols, "{n_rows} columns, room for {}", to.max_cols);
            let rows = to.rows(n_batch, n_rows);
            rows.check(kernels, "quantized results", n_batch, n_rows);
            rows.check_type("quantized results", x.ty());
            assert!(!rows.is_in_room_of(&x), "the activations are where the results go");
            rows.target()
        }
    };
    let counters = to.map_or(0, |to| to.counters.address());
    let act = activation_argument(act);
    let ([x_quants, x_blocks, x_stride], [to_quants, to_blocks, to_stride, in_bf16]) =
        (x.arguments(), quants);
    let [main, high, head] = matrix.planes();
    let [n_rows_at, n_cols, n_batch_at] =
        [n_rows, matrix.n_cols(), n_batch].map(|n| Argument::I32(n as i32));
    let (own, function, grid, block) = match x.ty() {
        QuantType::Bf16 => {
            let (function, grid, block) = levels::gated(kernels, matrix, n_rows, n_batch)?;
            (in_bf16, function, grid, block)
        }
        QuantType::Int8 => {
            let cols = INT8_COLS.iter().position(|&n| n_batch <= n).unwrap_or(INT8_COLS.len() - 1);
            let Some(int8) = &kernels.of(matrix.ty())?.int8 else {
                panic!("{} has no levels", matrix.ty())
            };
            // Half of a warp's rows are gate rows.
            let n_blocks = n_rows.div_ceil(WARPS * ROWS / 2);
            assert!(n_blocks <= 65535, "{n_blocks} blocks of rows");
            let grid = [n_batch.div_ceil(INT8_COLS[cols]) as u32, n_blocks as u32, 1];
            (Argument::Address(counters), &int8.gated[cols], grid, [32, WARPS as u32])
        }
    };
    let arguments = [
        main,
        high,
        head,
        x_quants,
        x_blocks,
        x_stride,
        optional(bias)[0],
        Argument::I32(i32::from(up_first)),
        act,
        out.address(),
        out.stride(),
        to_quants,
        to_blocks,
        to_stride,
        own,
        n_rows_at,
        n_cols,
        n_batch_at,
    ];
    // SAFETY: the arguments are those of `gated_int8_*` or `gated_levels_*` in order, which differ in one: counters, or
    // whether results are BF16. The planes are those of the matrix, rows lie inside their buffers, and quantized rows
    // and their counters have enough room. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, function, grid, block, &arguments) }
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use realizar_quant::BlockType;

    use super::*;
    use crate::matrix::INTEGER_TYPES;
    use crate::testing::{Random, TestDevice, kernels, on_device, read, weights};
    use crate::{LinearQuantized, matvec_quantized, quantize, quantize_activated};

    struct Case {
        ty: BlockType,
        quants: QuantType,
        act: Activation,
        n_rows: usize,
        n_cols: usize,
        n_batch: usize,
        has_biases: bool,
        up_first: bool,
    }

    /// Compares bit by bit with a separate product and activation.
    fn check(kernels: &Kernels<TestDevice>, stream: &realizar_ptx::Stream, case: &Case) {
        let &Case { ty, quants, act, n_rows, n_cols, n_batch, has_biases, up_first } = case;
        let mut random = Random(7 + n_cols as u64);
        let device = kernels.device();
        let (bytes, _) = weights(ty, 2 * n_rows, n_cols, &mut random);
        let matrix = Matrix::upload(device, stream, "w", ty, 2 * n_rows, n_cols, &bytes).unwrap();
        let x = on_device(device, stream, &random.floats(n_batch * n_cols));
        let bias = on_device(device, stream, &random.floats(2 * n_rows));
        let room = QuantizedRows::new(device, quants, n_batch, n_cols.max(n_rows)).unwrap();
        let of_x = room.rows(0, n_batch, n_cols);
        quantize(kernels, stream, Rows::new(&x, 0, n_batch, n_cols, n_cols), of_x).unwrap();

        let stride = n_rows.next_multiple_of(4) + 4;
        let blank = vec![7.0f32; n_batch * stride];
        let [out, apart] = [(); 2].map(|()| on_device(device, stream, &blank));
        let both = on_device(device, stream, &vec![0.0f32; n_batch * 2 * n_rows]);
        let rows = |buffer| Rows::new(buffer, 0, n_batch, n_rows, stride);
        let bias_at = has_biases.then(|| Rows::vector(&bias, 2 * n_rows));
        let linear = LinearQuantized {
            matrices: &[&matrix],
            x: of_x,
            bias: bias_at,
            residual: None,
            out: Rows::new(&both, 0, n_batch, 2 * n_rows, 2 * n_rows),
        };
        matvec_quantized(kernels, stream, &linear).unwrap();
        let to = GatedRows::new(device, stream, quants, n_rows).unwrap();
        let is_whole = n_rows.is_multiple_of(BLOCK_LEN);
        let gated = GatedQuantized {
            matrix: &matrix,
            up_first,
            bias: bias_at,
            x: of_x,
            act,
            out: rows(&out),
            to: is_whole.then_some(&to),
        };
        let part = |at| Rows::new(&both, at, n_batch, n_rows, 2 * n_rows);
        let [gate, up] = if up_first { [n_rows, 0] } else { [0, n_rows] }.map(part);
        let of_apart = is_whole.then(|| {
            let quantized = QuantizedRows::new(device, quants, n_batch, n_rows).unwrap();
            let to = quantized.rows(0, n_batch, n_rows);
            let out = Some(rows(&apart));
            quantize_activated(kernels, stream, act, gate, Some(up), out, to.into()).unwrap();
            quantized
        });
        if of_apart.is_none() {
            let op = crate::Elementwise::Gated(act, up);
            crate::elementwise(kernels, stream, &op, gate, rows(&apart)).unwrap();
        }
        // The second launch requires that the first has reset the counters.
        for _ in 0..2 {
            gated_quantized(kernels, stream, &gated).unwrap();
            let [found, wanted] = [&out, &apart].map(|at| read(stream, at, blank.len()));
            let bits = |values: Vec<f32>| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(found), bits(wanted), "{ty} [{n_rows}, {n_cols}] x {n_batch}");
            if let Some(apart) = &of_apart {
                let [found, wanted] = [to.rows(n_batch, n_rows), apart.rows(0, n_batch, n_rows)]
                    .map(|q| q.read(stream));
                assert_eq!(found, wanted, "{ty} [{n_rows}, {n_cols}] x {n_batch}");
            }
        }
    }

    #[cfg_attr(test, test)]
    fn every_type_has_the_bits_of_separate_launches() {
        let (kernels, stream) = kernels();
        for (i, ty) in INTEGER_TYPES.into_iter().enumerate() {
            for (n_batch, n_rows) in [(1, 64), (2, 32), (3, 32), (8, 32)] {
                let quants = if n_batch == 3 { QuantType::Bf16 } else { QuantType::Int8 };
                let act = Activation::ALL[(i + n_batch) % Activation::ALL.len()];
                let (has_biases, up_first) = (i % 2 == n_batch % 2, n_batch == 2);
                let n_cols = 512;
                let case = Case { ty, quants, act, n_rows, n_cols, n_batch, has_biases, up_first };
                check(&kernels, &stream, &case);
            }
        }
    }

    #[cfg_attr(test, test)]
    fn rows_that_do_not_fill_blocks_are_not_quantized() {
        let (kernels, stream) = kernels();
        for quants in [QuantType::Int8, QuantType::Bf16] {
            for (n_rows, n_cols, n_batch) in [(1, 256, 1), (13, 1280, 5), (7, 2304, 2)] {
                let (ty, act, has_biases, up_first) =
                    (BlockType::Q4_K, Activation::Silu, true, true);
                let case = Case { ty, quants, act, n_rows, n_cols, n_batch, has_biases, up_first };
                check(&kernels, &stream, &case);
            }
        }
    }

    /// Compares rows of one launch with each row alone.
    fn check_alone(quants: QuantType) {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let (ty, n, n_batch) = (BlockType::Q6_K, 256, 7);
        let mut random = Random(5);
        let (bytes, _) = weights(ty, 2 * n, n, &mut random);
        let matrix = Matrix::upload(device, &stream, "w", ty, 2 * n, n, &bytes).unwrap();
        let x = on_device(device, &stream, &random.floats(n_batch * n));
        let room = QuantizedRows::new(device, quants, n_batch, n).unwrap();
        let x = Rows::new(&x, 0, n_batch, n, n);
        quantize(&kernels, &stream, x, room.rows(0, n_batch, n)).unwrap();
        let [together, alone] =
            [(); 2].map(|()| on_device(device, &stream, &vec![0.0f32; n_batch * n]));
        let to = GatedRows::new(device, &stream, quants, n).unwrap();
        let run = |first: usize, n_rows: usize, out: &Buffer<TestDevice>| {
            let gated = GatedQuantized {
                matrix: &matrix,
                up_first: false,
                bias: None,
                x: room.rows(first, n_rows, n),
                act: Activation::GeluTanh,
                out: Rows::new(out, first * n, n_rows, n, n),
                to: Some(&to),
            };
            gated_quantized(&kernels, &stream, &gated).unwrap();
            to.rows(n_rows, n).read(&stream)
        };
        let all = run(0, n_batch, &together);
        let each: Vec<_> = (0..n_batch).map(|row| run(row, 1, &alone)).collect();
        assert_eq!(all, each.concat());
        let [together, alone] = [&together, &alone].map(|at| read(&stream, at, n_batch * n));
        assert_eq!(together, alone);
    }
    #[cfg_attr(test, test)]
    fn rows_have_the_bits_that_they_have_alone() {
        check_alone(QuantType::Int8);
        check_alone(QuantType::Bf16);
    }

    crate::testing::tests![
        every_type_has_the_bits_of_separate_launches,
        rows_that_do_not_fill_blocks_are_not_quantized,
        rows_have_the_bits_that_they_have_alone,
    ];
}
