//! Matrix products for few rows, such as decode rows, which are bound by reading the matrix.

use crate::dispatch::shader::{Access, Shader};
use crate::dispatch::{Grid, Kernel, Rows};
use crate::ops::linear::{self, Linear};
use crate::ops::quantize::QuantizedRows;
use crate::storage::matrix;
use crate::{Error, Gpu};
use realizar_quant::BlockType;

/// Invocations per workgroup.
const WORKGROUP: u32 = 64;
/// Rows of the matrix per team of invocations.
const OUTPUTS: u32 = 2;
/// Rows of x that share a read of the matrix.
const ROWS: u32 = 4;
/// Invocations per team with f32 activations.
pub(crate) const F32_LANES: u32 = 16;

/// Whether [`matvec_int8`] supports the type: all quantized integer types of matrices.
pub fn takes_quantized(ty: BlockType) -> bool {
    levels_parts(ty).is_some()
}

/// The shader parts that define `weights` and `levels` for a type, see `shaders/levels/levels.wgsl`.
fn levels_parts(ty: BlockType) -> Option<Vec<&'static str>> {
    let (words, vectors) = (linear::WORDS, linear::VECTORS);
    let spread = include_str!("../../shaders/levels/spread.wgsl");
    let k_scale = include_str!("../../shaders/levels/k_scale.wgsl");
    let codebook = include_str!("../../shaders/decode/codebook.wgsl");
    let look_up = include_str!("../../shaders/levels/look_up.wgsl");
    let of_codebook = |levels| vec![words, codebook, look_up, levels];
    let three_bits = include_str!("../../shaders/levels/three_bits.wgsl");
    let four_bits = include_str!("../../shaders/levels/four_bits.wgsl");
    let of_points = |points, levels| vec![words, codebook, look_up, points, levels];
    Some(match ty {
        BlockType::Q4_0 => vec![words, include_str!("../../shaders/levels/q4_0.wgsl")],
        BlockType::Q4_1 => vec![words, include_str!("../../shaders/levels/q4_1.wgsl")],
        BlockType::Q5_0 => vec![words, spread, include_str!("../../shaders/levels/q5_0.wgsl")],
        BlockType::Q5_1 => vec![words, spread, include_str!("../../shaders/levels/q5_1.wgsl")],
        BlockType::Q8_0 => vec![words, include_str!("../../shaders/levels/q8_0.wgsl")],
        BlockType::Q2_K => vec![words, include_str!("../../shaders/levels/q2_k.wgsl")],
        BlockType::Q3_K => vec![words, include_str!("../../shaders/levels/q3_k.wgsl")],
        BlockType::Q4_K => vec![vectors, k_scale, include_str!("../../shaders/levels/q4_k.wgsl")],
        BlockType::Q5_K => vec![vectors, k_scale, include_str!("../../shaders/levels/q5_k.wgsl")],
        BlockType::Q6_K => vec![words, include_str!("../../shaders/levels/q6_k.wgsl")],
        BlockType::IQ4_NL => of_codebook(include_str!("../../shaders/levels/iq4_nl.wgsl")),
        BlockType::IQ4_XS => of_codebook(include_str!("../../shaders/levels/iq4_xs.wgsl")),
        BlockType::MXFP4 => of_codebook(include_str!("../../shaders/levels/mxfp4.wgsl")),
        BlockType::Q4_Z => vec![words, include_str!("../../shaders/levels/q4_z.wgsl")],
        BlockType::IQ1_S | BlockType::IQ1_M => {
            of_points(include_str!("../../shaders/decode/iq1.wgsl"), three_bits)
        }
        BlockType::IQ2_XXS | BlockType::IQ2_XS | BlockType::IQ2_S => {
            of_points(include_str!("../../shaders/decode/iq2.wgsl"), three_bits)
        }
        BlockType::IQ3_XXS => {
            of_points(include_str!("../../shaders/decode/iq3_xxs.wgsl"), four_bits)
        }
        BlockType::IQ3_S => of_points(include_str!("../../shaders/decode/iq3_s.wgsl"), four_bits),
        BlockType::NVFP4 => of_codebook(include_str!("../../shaders/levels/nvfp4.wgsl")),
        BlockType::TQ1_0 | BlockType::TQ2_0 => {
            vec![words, include_str!("../../shaders/levels/ternary.wgsl")]
        }
        BlockType::Q1_0 => vec![words, include_str!("../../shaders/levels/q1_0.wgsl")],
        BlockType::Q2_0 => vec![words, include_str!("../../shaders/levels/q2_0.wgsl")],
        // Floats including FP8, types for activations, and types without decoders.
        _ => return None,
    })
}

/// The operands of a product: the shader parts that find a row of x, its matrix and its result.
pub(crate) struct Target {
    /// Prefix of the shaders' names.
    pub(crate) name: &'static str,
    /// The parts, which declare the constants and the buffers.
    pub(crate) parts: &'static [&'static str],
}

/// One matrix.
const ONE: Target = Target {
    name: "matvec",
    parts: &[linear::PART, include_str!("../../shaders/matvec/rows.wgsl")],
};

/// The shader for f32 activations.
pub(crate) fn f32_shader(target: &Target, ty: BlockType) -> Shader {
    let parts = [
        linear::WORDS,
        include_str!("../../shaders/matvec/common.wgsl"),
        include_str!("../../shaders/matvec/f32.wgsl"),
        matrix::decode_part(ty),
    ];
    Shader {
        name: format!("{} f32 {ty}", target.name).into(),
        parts: [target.parts, &parts].concat(),
        bindings: linear::BINDINGS,
        constants: Vec::new(),
    }
}

/// The shader for a type that takes quantized activations.
pub(crate) fn int8_shader(
    target: &Target,
    ty: BlockType,
    lanes: u32,
    packed_dot: bool,
) -> Option<Shader> {
    let (variant, dot4) = if packed_dot {
        ("packed", include_str!("../../shaders/dot4/packed.wgsl"))
    } else {
        ("plain", include_str!("../../shaders/dot4/plain.wgsl"))
    };
    let parts = [
        include_str!("../../shaders/matvec/common.wgsl"),
        include_str!("../../shaders/matvec/int8.wgsl"),
        include_str!("../../shaders/levels/levels.wgsl"),
        dot4,
    ];
    Some(Shader {
        name: format!("{} int8 {ty} {variant}", target.name).into(),
        parts: [target.parts, &parts, &levels_parts(ty)?].concat(),
        bindings: &[
            Access::Read,
            Access::ReadWrite,
            Access::Read,
            Access::Read,
            Access::Read,
            Access::Read,
        ],
        constants: vec![("LANES", f64::from(lanes))],
    })
}

pub(crate) fn shaders() -> Vec<Shader> {
    shaders_of(&ONE)
}

/// All shaders of a target.
pub(crate) fn shaders_of(target: &Target) -> Vec<Shader> {
    let int8 = [true, false].into_iter().flat_map(|packed_dot| {
        matrix::TYPES.into_iter().filter_map(move |ty| int8_shader(target, ty, 16, packed_dot))
    });
    matrix::TYPES.into_iter().map(|ty| f32_shader(target, ty)).chain(int8).collect()
}

/// Invocations per team with quantized activations: more if the matrix has so few rows that the device would
/// idle, as long as each invocation has several groups of columns. The order of sums depends on this number,
/// so it depends on the matrix alone.
pub(crate) fn int8_lanes(n_rows: u32, n_groups: u32) -> u32 {
    let mut lanes = 16;
    while lanes < WORKGROUP && n_rows * lanes < OUTPUTS << 16 && n_groups >= 4 * lanes {
        lanes *= 2;
    }
    lanes
}

/// Number of workgroups for `n_outputs` rows of a matrix.
pub(crate) fn chunks(n_outputs: u32, lanes: u32) -> u32 {
    n_outputs.div_ceil(WORKGROUP / lanes * OUTPUTS)
}

/// The grid for `n_outputs` rows of a matrix. A piece has at most as many rows as a dispatch has workgroups.
fn grid(n_outputs: u32, lanes: u32) -> Grid {
    Grid { x: chunks(n_outputs, lanes), rows: ROWS, z: 1 }
}

/// The product with f32 activations, with one kernel per piece of the matrix.
///
/// # Errors
/// If the device refuses a kernel.
pub fn matvec(gpu: &Gpu, rows: Rows<'_>, linear: &Linear<'_>) -> Result<Vec<Kernel>, Error> {
    let shader = f32_shader(&ONE, linear.matrix.ty());
    linear.bind(gpu, rows, &shader, |n_outputs| grid(n_outputs, F32_LANES))
}

/// The product with quantized activations, with one kernel per piece of the matrix. `x` is `linear.x`, quantized
/// by [`quantize`](crate::quantize()).
///
/// # Errors
/// Unless [`takes_quantized`] the type, or if the device refuses a kernel.
pub fn matvec_int8(
    gpu: &Gpu,
    rows: Rows<'_>,
    linear: &Linear<'_>,
    x: &QuantizedRows,
) -> Result<Vec<Kernel>, Error> {
    assert!(linear.x.width <= x.max_cols(), "{} columns of x", linear.x.width);
    let matrix = linear.matrix;
    let lanes = int8_lanes(matrix.n_rows(), matrix.n_groups());
    let shader = int8_shader(&ONE, matrix.ty(), lanes, gpu.caps().packed_dot)
        .ok_or_else(|| Error::Unsupported(format!("8-bit products of {} weights", matrix.ty())))?;
    linear.bind_on(gpu, rows, &shader, Some(x), |n_outputs| grid(n_outputs, lanes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Bench};
    use crate::{Matrix, View, quantize};

    /// A product of a random matrix with a bias and the residual in the place of
    /// the result, among rows and columns that must stay as they are.
    struct Case {
        ty: BlockType,
        n_out: u32,
        n_in: u32,
        weights: Vec<f32>,
        data: Vec<u8>,
        bias: Vec<f32>,
        values: Vec<f32>,
        x: View,
        out: View,
    }

    /// Rows of x and out that there are; not all are computed.
    const N_ROWS: u32 = 12;

    impl Case {
        fn new(ty: BlockType, n_out: u32, n_in: u32) -> Self {
            let data = testing::blocks(ty, n_out as usize, n_in as usize, 5);
            let x = View { start: 3, stride: n_in + 6, width: n_in };
            let out = View { start: 3 + N_ROWS * x.stride, stride: n_out + 5, width: n_out };
            let n = (out.start + N_ROWS * out.stride) as usize;
            Self {
                ty,
                n_out,
                n_in,
                weights: testing::dequantized(ty, n_in as usize, &data),
                data,
                bias: testing::noise(n_out as usize + 2, 8),
                values: testing::noise(n, 9),
                x,
                out,
            }
        }

        /// Pieces of `rows_per_piece` rows.
        fn matrix(&self, gpu: &Gpu, rows_per_piece: u64) -> Matrix {
            let row_bytes = crate::packed_row_bytes(self.ty, self.n_in as usize) as u64;
            let n_bytes = rows_per_piece * row_bytes;
            let matrix =
                Matrix::with_piece_bytes(gpu, "w", self.ty, self.n_out, self.n_in, n_bytes);
            let matrix = matrix.unwrap();
            matrix.pack_and_write(gpu, &self.data).unwrap();
            matrix
        }

        /// What the rows `[first, first + n)` of the values become, and how much of
        /// rounding that allows: products of the weights with `x`.
        fn expected(&self, first: u32, n: u32, x: impl Fn(u32, u32) -> f64) -> Vec<(f64, f64)> {
            let mut all: Vec<(f64, f64)> =
                self.values.iter().map(|&v| (f64::from(v), 0.0)).collect();
            for row in first..first + n {
                for col in 0..self.n_out {
                    let w = &self.weights[(col * self.n_in) as usize..][..self.n_in as usize];
                    let (mut sum, mut size) = (f64::from(self.bias[col as usize + 2]), 0.0);
                    for (k, &w) in (0..).zip(w) {
                        let product = f64::from(w) * x(row, k);
                        sum += product;
                        size += product.abs();
                    }
                    let at = (self.out.start + row * self.out.stride + col) as usize;
                    all[at].0 += sum;
                    all[at].1 = size + 1.0;
                }
            }
            all
        }
    }

    fn assert_close(found: &[f32], expected: &[(f64, f64)], what: &str) {
        for (i, (&found, &(wanted, size))) in found.iter().zip(expected).enumerate() {
            let apart = (f64::from(found) - wanted).abs();
            assert!(apart <= 1e-6 * size, "{what}: {i}: {found} for {wanted}, of {size}");
        }
    }

    fn runs(kernels: &[Kernel], n: u32) -> Vec<(&Kernel, u32)> {
        kernels.iter().map(|kernel| (kernel, n)).collect()
    }

    #[test]
    fn products_of_every_type() {
        for gpu in testing::gpus() {
            for ty in matrix::TYPES {
                let n_in = if ty.block_len() == 1 { 557 } else { ty.block_len() as u32 * 19 };
                let case = Case::new(ty, 23, n_in);
                let vectors = testing::filled(&gpu, &case.bias);
                for (rows_per_piece, first, n) in [(23, 0, 9), (9, 2, 3), (10, 1, 1)] {
                    let what = format!("{ty}, {n} rows");
                    let matrix = case.matrix(&gpu, rows_per_piece);
                    let linear = Linear {
                        matrix: &matrix,
                        vectors: &vectors,
                        bias: Some(2),
                        x: case.x,
                        residual: Some(case.out),
                        out: case.out,
                    };
                    let bench = Bench::new(&gpu, &case.values, &[7, first, n]);
                    let rows = bench.rows(1);
                    let kernels = matvec(&gpu, rows, &linear).unwrap();
                    assert_eq!(kernels.len() as u64, 23u64.div_ceil(rows_per_piece));
                    let found = bench.run(&runs(&kernels, n));
                    let x = |row: u32, k: u32| {
                        f64::from(case.values[(case.x.start + row * case.x.stride + k) as usize])
                    };
                    assert_close(&found, &case.expected(first, n, x), &what);

                    let to = QuantizedRows::new(&gpu, N_ROWS, n_in + 40).unwrap();
                    let kernels = matvec_int8(&gpu, rows, &linear, &to);
                    if !takes_quantized(ty) {
                        assert!(matches!(kernels, Err(Error::Unsupported(_))), "{ty}");
                        continue;
                    }
                    let bench = Bench::new(&gpu, &case.values, &[7, first, n]);
                    let rows = bench.rows(1);
                    let kernels = matvec_int8(&gpu, rows, &linear, &to).unwrap();
                    let quantized = quantize(&gpu, rows, case.x, &to).unwrap();
                    let all = [&[(&quantized, n)][..], &runs(&kernels, n)].concat();
                    let found = bench.run(&all);
                    let n_blocks = (N_ROWS * to.max_blocks) as usize;
                    let quants: Vec<i8> = testing::contents(&gpu, &to.quants, n_blocks * 32);
                    let blocks: Vec<[f32; 2]> = testing::contents(&gpu, &to.blocks, n_blocks);
                    let x = |row: u32, k: u32| {
                        let at = (row * to.max_cols() + k) as usize;
                        f64::from(quants[at]) * f64::from(blocks[at / 32][0])
                    };
                    assert_close(&found, &case.expected(first, n, x), &format!("{what}, int8"));
                }
            }
        }
    }

    /// Every variant for the lanes, long rows, no bias, no residual; and each row
    /// alone has the bits that it has among others.
    #[test]
    fn bits_of_a_row_depend_on_it_alone() {
        let shapes = [(BlockType::Q4_1, 1030u32, 288u32), (BlockType::Q4_K, 40, 2304)];
        let shapes = shapes.into_iter().chain([(BlockType::Q8_0, 7, 32 * 1030)]);
        for gpu in testing::gpus() {
            for ((ty, n_out, n_in), lanes) in shapes.clone().zip([16, 32, 64]) {
                assert_eq!(int8_lanes(n_out, n_in.div_ceil(32)), lanes);
                let case = Case::new(ty, n_out, n_in);
                let matrix = case.matrix(&gpu, u64::from(n_out));
                let linear = Linear {
                    matrix: &matrix,
                    vectors: &testing::filled(&gpu, &[0.0f32]),
                    bias: None,
                    x: case.x,
                    residual: None,
                    out: case.out,
                };
                let to = QuantizedRows::new(&gpu, N_ROWS, n_in).unwrap();
                let run = |first: u32, n: u32| {
                    let bench = Bench::new(&gpu, &case.values, &[first, n]);
                    let rows = bench.rows(0);
                    let kernels = matvec(&gpu, rows, &linear).unwrap();
                    let exact = bench.run(&runs(&kernels, n));
                    let quantized = quantize(&gpu, rows, case.x, &to).unwrap();
                    let kernels = matvec_int8(&gpu, rows, &linear, &to).unwrap();
                    let all = [&[(&quantized, n)][..], &runs(&kernels, n)].concat();
                    (exact, bench.run(&all))
                };
                let (exact, int8) = run(0, 9);
                let col = (n_out - 1) as usize;
                for row in 0..9 {
                    let at = (case.out.start + row * case.out.stride) as usize;
                    let w = &case.weights[col * n_in as usize..];
                    let x = &case.values[(case.x.start + row * case.x.stride) as usize..];
                    let products = w.iter().zip(&x[..n_in as usize]);
                    let products = products.map(|(&w, &x)| f64::from(w) * f64::from(x));
                    let sum: f64 = products.clone().sum();
                    let size = products.map(f64::abs).sum::<f64>();
                    assert!((f64::from(exact[at + col]) - sum).abs() <= 1e-6 * size, "{ty} {row}");
                    assert!((f64::from(int8[at + col]) - sum).abs() <= 4e-3 * size, "{ty} {row}");

                    let alone = run(row, 1);
                    let row = at..at + n_out as usize;
                    assert_eq!(exact[row.clone()], alone.0[row.clone()], "{ty}");
                    assert_eq!(int8[row.clone()], alone.1[row], "{ty}");
                }
            }
        }
    }

    /// More rows than one dimension of a grid has workgroups.
    #[test]
    fn matrices_of_very_many_rows() {
        let (n_out, n_in) = (262_200, 32);
        for gpu in testing::gpus() {
            let data: Vec<u8> = (0..n_out)
                .flat_map(|r: u32| [[0, 0x3c].as_slice(), &[r as u8; 32]].concat())
                .collect();
            let matrix = Matrix::upload(&gpu, "w", BlockType::Q8_0, n_out, n_in, &data).unwrap();
            let linear = Linear {
                matrix: &matrix,
                vectors: &testing::filled(&gpu, &[0.0f32]),
                bias: None,
                x: View::dense(0, n_in),
                residual: None,
                out: View::dense(n_in, n_out),
            };
            let mut values = vec![0.0; (n_in + n_out) as usize];
            values[..n_in as usize].fill(1.0);
            let bench = Bench::new(&gpu, &values, &[0, 1]);
            let to = QuantizedRows::new(&gpu, 1, n_in).unwrap();
            let quantized = quantize(&gpu, bench.rows(0), linear.x, &to).unwrap();
            let exact = matvec(&gpu, bench.rows(0), &linear).unwrap();
            let int8 = matvec_int8(&gpu, bench.rows(0), &linear, &to).unwrap();
            for kernels in [runs(&exact, 1), [&[(&quantized, 1)][..], &runs(&int8, 1)].concat()] {
                let found = bench.run(&kernels);
                for (r, &found) in found[n_in as usize..].iter().enumerate() {
                    let wanted = 32.0 * f32::from(r as u8 as i8);
                    assert!((found - wanted).abs() <= 1e-3, "{r}: {found} for {wanted}");
                }
            }
        }
    }
}
