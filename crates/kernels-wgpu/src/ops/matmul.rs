//! Products with many rows, such as prefill: tiles of outputs and rows, whose weights are decoded once for all
//! rows.
//!
//! An element is one f32 sum over the columns in ascending order, so its bits depend on its two rows alone.

use crate::dispatch::Rows;
use crate::dispatch::shader::{Access, Shader};
use crate::dispatch::{Grid, Kernel};
use crate::ops::linear::{self, Linear};
use crate::storage::matrix;
use crate::{Error, Gpu};
use realizar_quant::BlockType;

/// Outputs per workgroup.
pub(crate) const TILE_OUTPUTS: u32 = 64;

/// Variants of a product with many rows. Only `half_tiles` affects the bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MatmulOptions {
    /// Tiles of 16 rows instead of 64, for products of up to about 32 rows.
    pub few_rows: bool,
    /// Rounds decoded weights to half precision, if the device has it. F16 weights do not change; F32 and BF16
    /// weights, whose range is wider, are never rounded. Other weights saturate at 65504.
    pub half_tiles: bool,
}

impl MatmulOptions {
    /// Rows per tile.
    pub fn tile_rows(self) -> u32 {
        if self.few_rows { 16 } else { 64 }
    }
}

fn is_rounded(ty: BlockType, options: MatmulOptions) -> bool {
    options.half_tiles && !matches!(ty, BlockType::F32 | BlockType::BF16)
}

pub(crate) fn shader(target: &Tiled, ty: BlockType, options: MatmulOptions) -> Shader {
    let (tile, tile_name) = if is_rounded(ty, options) {
        (include_str!("../../shaders/matmul/half_tile.wgsl"), "half")
    } else {
        (include_str!("../../shaders/matmul/float_tile.wgsl"), "float")
    };
    let rows = if options.few_rows {
        include_str!("../../shaders/matmul/few_rows.wgsl")
    } else {
        include_str!("../../shaders/matmul/many_rows.wgsl")
    };
    let matmul = include_str!("../../shaders/matmul.wgsl");
    let mut parts = vec![tile];
    parts.extend(target.parts);
    parts.extend([linear::WORDS, rows, matmul, matrix::decode_part(ty)]);
    Shader {
        name: format!("{} {ty} {tile_name} {} rows", target.name, options.tile_rows()).into(),
        parts,
        bindings: target.bindings,
        constants: Vec::new(),
    }
}

/// The operands of a tiled product: the shader parts that declare constants and buffers and find the rows of a
/// tile, and the buffers.
pub(crate) struct Tiled {
    pub(crate) name: &'static str,
    pub(crate) parts: &'static [&'static str],
    pub(crate) bindings: &'static [Access],
}

/// Consecutive rows and one matrix.
const NEIGHBOURS: Tiled = Tiled {
    name: "matmul",
    parts: &[linear::PART, include_str!("../../shaders/matmul/neighbours.wgsl")],
    bindings: linear::BINDINGS,
};

pub(crate) fn shaders() -> Vec<Shader> {
    shaders_of(&NEIGHBOURS)
}

pub(crate) fn shaders_of(target: &Tiled) -> Vec<Shader> {
    let variants = [(false, false), (true, false), (false, true), (true, true)];
    let every = variants.into_iter().flat_map(|(few_rows, half_tiles)| {
        let options = MatmulOptions { few_rows, half_tiles };
        let types = matrix::TYPES.into_iter();
        types.filter(move |ty| half_tiles == is_rounded(*ty, options)).map(move |ty| (ty, options))
    });
    every.map(|(ty, options)| shader(target, ty, options)).collect()
}

/// The product for any number of rows, with one kernel per piece of the matrix.
///
/// # Errors
/// If the device refuses a kernel.
pub fn matmul(
    gpu: &Gpu,
    rows: Rows<'_>,
    linear: &Linear<'_>,
    mut options: MatmulOptions,
) -> Result<Vec<Kernel>, Error> {
    options.half_tiles &= gpu.caps().f16;
    let shader = shader(&NEIGHBOURS, linear.matrix.ty(), options);
    linear.bind(gpu, rows, &shader, |n_outputs| Grid {
        x: n_outputs.div_ceil(TILE_OUTPUTS),
        rows: options.tile_rows(),
        z: 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::View;
    use crate::storage::matrix::Matrix;
    use crate::testing::{self, Bench};

    const OPTIONS: [MatmulOptions; 4] = [
        MatmulOptions { few_rows: false, half_tiles: false },
        MatmulOptions { few_rows: true, half_tiles: false },
        MatmulOptions { few_rows: false, half_tiles: true },
        MatmulOptions { few_rows: true, half_tiles: true },
    ];

    /// A product with a bias and a residual, in the middle of NaNs.
    struct Case {
        n_inputs: usize,
        n_outputs: usize,
        weights: Vec<f32>,
        values: Vec<f32>,
        bias: Vec<f32>,
        x: View,
        out: View,
    }

    /// Before the bias in `vectors`.
    const BIAS_AT: u32 = 3;

    impl Case {
        fn new(n_inputs: usize, n_outputs: usize, n_rows: usize, weights: Vec<f32>) -> Self {
            let (k, n) = (n_inputs as u32, n_outputs as u32);
            let x = View { start: 7, stride: k + 5, width: k };
            let out = View { start: 7 + n_rows as u32 * x.stride, stride: n + 3, width: n };
            let len = (out.start + n_rows as u32 * out.stride) as usize;
            let mut values = vec![f32::NAN; len];
            let noise = testing::noise(len, 11);
            for view in [x, out] {
                for row in 0..n_rows {
                    let at = view.start as usize + row * view.stride as usize;
                    let range = at..at + view.width as usize;
                    values[range.clone()].copy_from_slice(&noise[range]);
                }
            }
            let bias = testing::noise(n_outputs + BIAS_AT as usize, 5);
            Self { n_inputs, n_outputs, weights, values, bias, x, out }
        }

        fn place(&self, row: usize, col: usize) -> usize {
            (self.out.start + row as u32 * self.out.stride) as usize + col
        }

        /// The value that is expected, and how far from it the found one may be.
        fn expected(&self, row: usize, col: usize, half: bool) -> (f64, f64) {
            let x = &self.values[(self.x.start + row as u32 * self.x.stride) as usize..];
            let w = &self.weights[col * self.n_inputs..][..self.n_inputs];
            let (mut sum, mut size) = (0.0, 0.0);
            for (x, w) in x.iter().zip(w) {
                let product = f64::from(*x) * f64::from(*w);
                (sum, size) = (sum + product, size + product.abs());
            }
            let added = f64::from(self.bias[BIAS_AT as usize + col])
                + f64::from(self.values[self.place(row, col)]);
            // Rounding a weight to half costs 2^-11 of it, or 2^-25 where it is tiny.
            let rounding = if half { 2f64.powi(-11) } else { 1e-6 };
            (sum + added, rounding * size + 1e-6 * added.abs() + 1e-5 * rounding)
        }

        /// Checks rows `rows` of `found`, and that nothing else has changed.
        fn check(&self, what: &str, found: &[f32], rows: std::ops::Range<usize>, half: bool) {
            let mut written = vec![false; found.len()];
            for row in rows {
                for col in 0..self.n_outputs {
                    let at = self.place(row, col);
                    let (wanted, bound) = self.expected(row, col, half);
                    let apart = (f64::from(found[at]) - wanted).abs();
                    assert!(apart <= bound, "{what} [{row}, {col}]: {apart:e} > {bound:e}");
                    written[at] = true;
                }
            }
            for (i, (found, before)) in found.iter().zip(&self.values).enumerate() {
                assert!(written[i] || found.to_bits() == before.to_bits(), "{what}: element {i}");
            }
        }
    }

    #[test]
    fn every_type_at_odd_shapes_across_pieces() {
        let n_rows = 70;
        for gpu in testing::gpus() {
            for ty in matrix::TYPES {
                // 71 outputs in pieces of 67 and 4.
                let n_outputs = 71;
                let n_inputs = if ty.block_len() == 1 { 77 } else { ty.block_len() * 3 };
                let data = testing::blocks(ty, n_outputs, n_inputs, 3);
                let weights = testing::dequantized(ty, n_inputs, &data);
                let case = Case::new(n_inputs, n_outputs, n_rows, weights);
                let (r, c) = (n_outputs as u32, n_inputs as u32);
                let piece_bytes = 64 * crate::packed_row_bytes(ty, n_inputs) as u64;
                let matrix = Matrix::with_piece_bytes(&gpu, "w", ty, r, c, piece_bytes).unwrap();
                matrix.pack_and_write(&gpu, &data).unwrap();
                assert_eq!(matrix.pieces().len(), 2);
                let vectors = testing::filled(&gpu, &case.bias);
                let linear = Linear {
                    matrix: &matrix,
                    vectors: &vectors,
                    bias: Some(BIAS_AT),
                    x: case.x,
                    residual: Some(case.out),
                    out: case.out,
                };
                for options in OPTIONS {
                    let what = format!("{ty} {options:?}");
                    let half = gpu.caps().f16 && is_rounded(ty, options);
                    if options.half_tiles && !half {
                        continue; // The same kernel as without.
                    }
                    let mut whole = None;
                    // The bits of a row do not depend on what is computed with it.
                    for (first, n) in [(0, n_rows), (1, 69), (3, 17), (37, 1), (20, 0)] {
                        let batch = [9, first as u32, n as u32];
                        let bench = Bench::new(&gpu, &case.values, &batch);
                        let kernels = matmul(&gpu, bench.rows(1), &linear, options).unwrap();
                        let runs: Vec<_> = kernels.iter().map(|k| (k, n as u32)).collect();
                        let found = bench.run(&runs);
                        let Some(whole) = &whole else {
                            let is_inexact = half && ty != BlockType::F16;
                            case.check(&what, &found, 0..n_rows, is_inexact);
                            whole = Some(found);
                            continue;
                        };
                        for row in 0..n_rows {
                            let is_in = (first..first + n).contains(&row);
                            let wanted = if is_in { whole } else { &case.values };
                            let range = case.place(row, 0)..case.place(row, n_outputs);
                            let same = found[range.clone()] == wanted[range];
                            assert!(same, "{what}: row {row} of {first} and {n} more");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn neither_bias_nor_residual() {
        for gpu in testing::gpus() {
            // W is [[1, 2, 3], [4, 5, 6]]; x has two rows.
            let data: Vec<u8> = (1..7).flat_map(|i| (i as f32).to_le_bytes()).collect();
            let matrix = Matrix::upload(&gpu, "w", BlockType::F32, 2, 3, &data).unwrap();
            let vectors = testing::filled(&gpu, &[f32::NAN; 4]);
            let values = [1.0, 0.0, -1.0, 2.0, 3.0, 5.0, f32::NAN, 0.0, 0.0, 0.0, 0.0, f32::NAN];
            let linear = Linear {
                matrix: &matrix,
                vectors: &vectors,
                bias: None,
                x: View::dense(0, 3),
                residual: None,
                out: View::dense(7, 2),
            };
            for options in OPTIONS {
                let bench = Bench::new(&gpu, &values, &[0, 2]);
                let kernels = matmul(&gpu, bench.rows(0), &linear, options).unwrap();
                let found = bench.run(&[(&kernels[0], 2)]);
                assert_eq!(found[7..11], [-2.0, -2.0, 23.0, 53.0]);
            }
        }
    }

    #[test]
    fn outputs_of_a_float_type_are_not_rounded() {
        let half = MatmulOptions { half_tiles: true, ..Default::default() };
        assert!(!is_rounded(BlockType::F32, half) && !is_rounded(BlockType::BF16, half));
        assert!(is_rounded(BlockType::F16, half) && is_rounded(BlockType::Q4_K, half));
    }
}
