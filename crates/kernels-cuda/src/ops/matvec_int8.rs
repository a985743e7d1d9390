//! Products of quantized weights with the few rows of a decode step, as 8-bit integers.

use realizar_quant::BlockType;

use super::kernels::Kernels;
use super::quantize::Quantized;
use super::rows::optional;
use crate::device::{Argument, Device};
use crate::image::Image;
use crate::{Error, Matrix, Rows};

const IMAGE: &[u8] = include_bytes!("../../image/matvec_int8.ptx.gz");
/// Types of integer levels, in the order of `FOR_EACH_INTEGER_TYPE`.
pub(crate) const INTEGER_TYPES: [BlockType; 14] = [
    BlockType::Q4_0,
    BlockType::Q4_1,
    BlockType::Q5_0,
    BlockType::Q5_1,
    BlockType::Q8_0,
    BlockType::Q2_K,
    BlockType::Q3_K,
    BlockType::Q4_K,
    BlockType::Q5_K,
    BlockType::Q6_K,
    BlockType::IQ4_NL,
    BlockType::IQ4_XS,
    BlockType::MXFP4,
    BlockType::Q4_Z,
];
/// Rows of activations that weights are read once for: a kernel for each.
const COLS: [usize; 3] = [1, 2, 4];
/// Warps of a block, and rows of the matrix for each of them: as `cuda/matvec_int8.cu` has them.
const WARPS: usize = 4;
const ROWS: usize = 2;
/// The most matrices of a product.
pub const MAX_PARTS: usize = 3;

/// Whether products with matrices of this type can take quantized activations: all types of integer levels do.
pub fn takes_quantized(ty: BlockType) -> bool {
    index(ty).is_some()
}

fn index(ty: BlockType) -> Option<usize> {
    INTEGER_TYPES.iter().position(|&t| t == ty)
}

/// The kernels of these products.
#[derive(Debug)]
pub(crate) struct MatvecInt8Kernels<D: Device> {
    by_type: [[D::Function; COLS.len()]; INTEGER_TYPES.len()],
    mixed: [D::Function; COLS.len()],
}

impl<D: Device> MatvecInt8Kernels<D> {
    pub(crate) fn load(device: &D) -> Result<Self, Error> {
        let image = Image::load(device, "matvec_int8", IMAGE)?;
        let of = |name: &str| image.functions(COLS, |cols| format!("matvec_int8_{name}_{cols}"));
        let by_type: Result<Vec<_>, _> =
            INTEGER_TYPES.iter().map(|ty| of(&ty.name().to_lowercase())).collect();
        let Ok(by_type) = by_type?.try_into() else { unreachable!("one for each type") };
        Ok(Self { by_type, mixed: of("mixed")? })
    }
}

/// `out = matrices * x + bias + residual`, row by row, with the results of the matrices side by side.
#[derive(Debug)]
pub struct LinearInt8<'a, D: Device> {
    /// The weights, each `[n_rows of its own, n_cols]`: one matrix, or up to [`MAX_PARTS`], also of different types.
    pub matrices: &'a [&'a Matrix<D>],
    /// Activations, `[n_batch, n_cols]`.
    pub x: Quantized<'a, D>,
    /// Added to every row, `[1, n_rows]`.
    pub bias: Option<Rows<'a, D>>,
    /// Added row by row, `[n_batch, n_rows]`; it may be `out`.
    pub residual: Option<Rows<'a, D>>,
    /// The result, `[n_batch, n_rows]`.
    pub out: Rows<'a, D>,
}

impl<D: Device> LinearInt8<'_, D> {
    /// Asserts that shapes and devices fit; the types' indices.
    pub(crate) fn check(&self, kernels: &Kernels<D>) -> [usize; MAX_PARTS] {
        let Self { matrices, x, bias, residual, out } = self;
        assert!((1..=MAX_PARTS).contains(&matrices.len()), "{} matrices", matrices.len());
        let n_rows = matrices.iter().map(|matrix| matrix.n_rows()).sum();
        for matrix in *matrices {
            x.check(kernels, "x", x.n_rows(), matrix.n_cols());
            kernels.check("the matrix", matrix.buffer(), 0);
        }
        out.check(kernels, "out", x.n_rows(), n_rows);
        if let Some(bias) = bias {
            bias.check(kernels, "bias", 1, n_rows);
        }
        if let Some(residual) = residual {
            residual.check(kernels, "residual", x.n_rows(), n_rows);
        }
        let index = |matrix: &&Matrix<D>| {
            index(matrix.ty()).unwrap_or_else(|| panic!("{} has no levels", matrix.ty()))
        };
        let mut types = [0; MAX_PARTS];
        for (ty, matrix) in types.iter_mut().zip(*matrices) {
            *ty = index(matrix);
        }
        types
    }
}

/// Queues a product. The bits of a row of the result depend on its own row of activations alone, and are the same
/// whatever the other matrices.
///
/// # Errors
/// What the driver reports.
///
/// # Panics
/// If shapes or devices do not fit, or a type is none that [`takes_quantized`].
pub fn matvec_int8<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    linear: &LinearInt8<'_, D>,
) -> Result<(), Error> {
    let types = linear.check(kernels);
    let LinearInt8 { matrices, x, bias, residual, out } = linear;
    let n_batch = x.n_rows();
    let cols = COLS.iter().position(|&cols| n_batch <= cols).unwrap_or(COLS.len() - 1);
    let [quants, blocks, stride] = x.arguments();
    let [residual, residual_stride] = optional(*residual);
    let shared = (
        quants,
        blocks,
        stride,
        optional(*bias)[0],
        residual,
        residual_stride,
        out.address(),
        out.stride(),
    );
    let n_cols = Argument::I32(x.n_cols() as i32);
    let n_batch_at = Argument::I32(n_batch as i32);
    let n_blocks: usize = matrices.iter().map(|m| m.n_rows().div_ceil(WARPS * ROWS)).sum();
    assert!(n_blocks <= 65535, "{n_blocks} blocks of rows");
    let grid = [n_batch.div_ceil(COLS[cols]) as u32, n_blocks as u32, 1];
    let (q, b, s, bias, r, rs, o, os) = shared;
    if let [matrix] = matrices {
        let [main, high, head] = matrix.planes();
        let n_rows = Argument::I32(matrix.n_rows() as i32);
        let arguments = [main, high, head, q, b, s, bias, r, rs, o, os, n_rows, n_cols, n_batch_at];
        let function = &kernels.matvec_int8.by_type[types[0]][cols];
        // SAFETY: the arguments are those of `matvec_int8_*` in order. The planes are those of the matrix, and rows
        // were checked to be inside of their buffers when they were made, their shapes above. As `matvec` says,
        // buffers outlive queued work.
        return unsafe { kernels.launch(stream, function, grid, [32, WARPS as u32], &arguments) };
    }
    let part = |i: usize| matrices.get(i).copied();
    let planes = |i| part(i).map_or([Argument::Address(0); 3], Matrix::planes);
    let [[m0, h0, d0], [m1, h1, d1], [m2, h2, d2]] = [planes(0), planes(1), planes(2)];
    let [t0, t1, t2] = types.map(|ty| Argument::I32(ty as i32));
    let [n0, n1, n2] =
        [0, 1, 2].map(|i| Argument::I32(part(i).map_or(0, |matrix| matrix.n_rows() as i32)));
    let arguments = [
        m0, h0, d0, m1, h1, d1, m2, h2, d2, t0, t1, t2, n0, n1, n2, q, b, s, bias, r, rs, o, os,
        n_cols, n_batch_at,
    ];
    let function = &kernels.matvec_int8.mixed[cols];
    // SAFETY: as above, for each of the matrices; one that is not there has no rows.
    unsafe { kernels.launch(stream, function, grid, [32, WARPS as u32], &arguments) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Interpreter, Random, kernels, on_device, read, rounded, weights};
    use crate::{Buffer, QuantizedRows, quantize};

    struct Case<'a> {
        types: &'a [BlockType],
        n_rows: &'a [usize],
        n_cols: usize,
        n_batch: usize,
    }

    fn check(kernels: &Kernels<Interpreter>, stream: &realizar_ptx::Stream, case: &Case<'_>) {
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
        let room = QuantizedRows::new(device, n_batch + 1, n_cols + 32).unwrap();
        let all = room.rows(1, n_batch, n_cols);
        quantize(kernels, stream, Rows::new(&x_at, 0, n_batch, n_cols, x_stride), all).unwrap();
        let run = |parts: &[&Matrix<_>], from: usize, n: usize, at: usize, out: &Buffer<_>| {
            let n_rows = parts.iter().map(|part| part.n_rows()).sum();
            let out = Rows::new(out, from * out_stride + at, n, n_rows, out_stride);
            let linear = LinearInt8 {
                matrices: parts,
                x: room.rows(1 + from, n, n_cols),
                bias: Some(Rows::vector_at(&bias_at, at, n_rows)),
                residual: Some(out),
                out,
            };
            matvec_int8(kernels, stream, &linear).unwrap();
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
            // What is between the rows stays as it was.
            let between = b * out_stride + n_rows..(b + 1) * out_stride;
            assert_eq!(found[between.clone()], first[between]);
        }
        // Each row by each matrix alone has the same bits.
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

    #[test]
    fn every_type_by_one_row_and_by_several() {
        let (kernels, stream) = kernels();
        for ty in INTEGER_TYPES {
            for (n_batch, n_cols) in [(1, 256), (2, 512), (4, 256), (7, 256)] {
                let case = Case { types: &[ty], n_rows: &[11], n_cols, n_batch };
                check(&kernels, &stream, &case);
            }
        }
    }

    #[test]
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

    #[test]
    fn matrices_of_different_types_in_one_launch() {
        use BlockType::*;
        let (kernels, stream) = kernels();
        for types in [[Q4_K, Q4_K, Q6_K], [Q8_0, Q2_K, IQ4_NL], [Q5_K, Q3_K, MXFP4]] {
            for n_batch in [1, 2, 3, 5] {
                for n in [2, 3] {
                    let (types, n_rows) = (&types[..n], &[16, 9, 7][..n]);
                    check(&kernels, &stream, &Case { types, n_rows, n_cols: 512, n_batch });
                }
            }
        }
    }

    #[test]
    fn a_row_that_is_not_finite_shows_it() {
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let (bytes, _) = weights(BlockType::Q4_K, 2, 256, &mut Random(1));
        let matrix = Matrix::upload(device, &stream, "w", BlockType::Q4_K, 2, 256, &bytes).unwrap();
        let mut x = Random(2).floats(512);
        x[300] = f32::NAN;
        let x = on_device(device, &stream, &x);
        let out = on_device(device, &stream, &[0.0f32; 4]);
        let room = QuantizedRows::new(device, 2, 256).unwrap();
        let to = room.rows(0, 2, 256);
        quantize(&kernels, &stream, Rows::new(&x, 0, 2, 256, 256), to).unwrap();
        let out_rows = Rows::new(&out, 0, 2, 2, 2);
        let linear =
            LinearInt8 { matrices: &[&matrix], x: to, bias: None, residual: None, out: out_rows };
        matvec_int8(&kernels, &stream, &linear).unwrap();
        let found = read(&stream, &out, 4).iter().map(|x| x.is_finite()).collect::<Vec<_>>();
        assert_eq!(found, [true, true, false, false]);
    }
}
