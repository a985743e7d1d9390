//! Products of activation rows with weight matrices, computed by the whole team.
//!
//! `out[r][n] = x[r] · w[n] + bias[n] + residual[r][n]`. Each element is computed from its own two rows
//! in one order, so its bits depend neither on the other rows and matrices nor on the number of
//! threads.
//!
//! | file | activations | weights | rows |
//! |---|---|---|---|
//! | `packed` | 8-bit | quantized and packed ([`packs`](crate::packs)) | any |
//! | `rows` | F32 | float | few |
//! | `float` | F32 | any | many; any for quantized types that are not packed |
//! | `bf16` | BF16 | packed or float, widened to BF16 tiles | many |
//!
//! `experts` has these products for rows that are multiplied with some of several matrices.

mod bf16;
mod experts;
mod float;
mod packed;
mod rows;

use realizar_quant::BlockType;

pub use bf16::{Bf16Scratch, WeightsRef, matmul_bf16};
pub use experts::{
    ExpertParts, ExpertScratch, experts_bf16, experts_f32, experts_packed, experts_rows,
};
pub use float::{PanelScratch, matmul_f32};
pub use packed::{PackedScratch, matmul_packed};
pub use rows::matmul_rows;

use crate::{Rows, RowsMut, supports_weights};

/// A weight matrix in the blocks of its type, row after row.
#[derive(Clone, Copy, Debug)]
pub struct MatrixRef<'a> {
    ty: BlockType,
    n_rows: usize,
    n_cols: usize,
    row_bytes: usize,
    data: &'a [u8], // [n_rows * row_bytes]
}

impl<'a> MatrixRef<'a> {
    /// A matrix of `n_rows` outputs and `n_cols` inputs.
    ///
    /// # Panics
    /// If the type is not one of weights ([`supports_weights`]), the rows are not whole blocks, or `data` has
    /// another length than the rows.
    pub fn new(ty: BlockType, n_rows: usize, n_cols: usize, data: &'a [u8]) -> Self {
        assert!(supports_weights(ty), "{ty} is not a type of weights");
        let row_bytes = ty.row_bytes(n_cols).expect("the rows are whole blocks");
        let n_bytes = row_bytes.checked_mul(n_rows);
        assert_eq!(n_bytes, Some(data.len()), "bytes of {n_rows} x {n_cols} {ty} weights");
        Self { ty, n_rows, n_cols, row_bytes, data }
    }

    /// The type of the blocks.
    pub const fn ty(&self) -> BlockType {
        self.ty
    }

    /// Number of rows, which are outputs.
    pub const fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Number of columns, which are inputs.
    pub const fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// The bytes of all rows.
    pub const fn data(&self) -> &'a [u8] {
        self.data
    }

    /// The bytes of row `i`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, i: usize) -> &'a [u8] {
        assert!(i < self.n_rows, "row {i} of {}", self.n_rows);
        &self.data[i * self.row_bytes..][..self.row_bytes]
    }
}

/// Summands of a product, added before it is stored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Epilogue<'a> {
    /// Added to every row.
    pub bias: Option<&'a [f32]>, // [n]
    /// Added element by element.
    pub residual: Option<Rows<'a>>, // [n_tokens, n]
}

impl Epilogue<'_> {
    /// The summand of element `(r, n)`.
    #[inline]
    fn at(&self, r: usize, n: usize) -> f32 {
        let bias = self.bias.map_or(0.0, |bias| bias[n]);
        self.residual.map_or(bias, |residual| bias + residual.row(r)[n])
    }

    /// Checks the shapes against that of a product.
    ///
    /// # Panics
    /// If they differ.
    fn check(&self, n_rows: usize, n_cols: usize) {
        if let Some(bias) = self.bias {
            assert_eq!(bias.len(), n_cols, "length of the bias");
        }
        if let Some(residual) = self.residual {
            let shape = (residual.n_rows(), residual.n_cols());
            assert_eq!(shape, (n_rows, n_cols), "shape of the residual");
        }
    }

    /// Adds bias and residual to the sixteen sums of row `r` from column `n` on, and stores them.
    #[inline]
    fn store_group(&self, r: usize, n: usize, sums: &[f32; 16], out: &mut [f32; 16]) {
        *out = *sums;
        if let Some(bias) = self.bias {
            out.iter_mut().zip(&bias[n..n + 16]).for_each(|(out, x)| *out += x);
        }
        if let Some(residual) = self.residual {
            let residual = &residual.row(r)[n..n + 16];
            out.iter_mut().zip(residual).for_each(|(out, x)| *out += x);
        }
    }

    /// As [`Self::store_group`], for the first `out.len()` sums.
    #[inline]
    fn store(&self, r: usize, n: usize, sums: &[f32; 16], out: &mut [f32]) {
        if let Ok(out) = <&mut [f32; 16]>::try_from(&mut *out) {
            self.store_group(r, n, sums, out);
            return;
        }
        for (i, (out, sum)) in out.iter_mut().zip(sums).enumerate() {
            let sum = self.bias.map_or(*sum, |bias| sum + bias[n + i]);
            *out = self.residual.map_or(sum, |residual| sum + residual.row(r)[n + i]);
        }
    }
}

/// Checks the shapes of a product of `n_tokens` rows, and returns the number of output columns of all
/// parts.
///
/// # Panics
/// If they do not fit each other.
fn check_shapes(
    parts: &[MatrixRef<'_>],
    n_tokens: usize,
    n_cols: usize,
    out: &RowsMut<'_>,
    epilogue: &Epilogue<'_>,
) -> usize {
    for part in parts {
        assert_eq!(part.n_cols, n_cols, "columns of the weights and of the activations");
    }
    let n: usize = parts.iter().map(|p| p.n_rows).sum();
    assert_eq!((out.n_rows(), out.n_cols()), (n_tokens, n), "shape of the output");
    epilogue.check(n_tokens, n);
    n
}

/// Calls `f(part, first row in the part, number of rows, first column)` for each part that overlaps the
/// output columns `col..end`.
fn for_each_segment<'a>(
    parts: &[MatrixRef<'a>],
    col: usize,
    end: usize,
    mut f: impl FnMut(&MatrixRef<'a>, usize, usize, usize),
) {
    let mut part_start = 0;
    for part in parts {
        let part_end = part_start + part.n_rows;
        let (a, b) = (col.max(part_start), end.min(part_end));
        if a < b {
            f(part, a - part_start, b - a, a);
        }
        part_start = part_end;
    }
}

#[cfg(test)]
mod tests;
