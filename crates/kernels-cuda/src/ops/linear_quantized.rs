//! The operands of products with quantized activations, and their arguments for kernels.

use super::quantize::Quantized;
use crate::device::{Argument, Device};
use crate::kernels::Kernels;
use crate::{Matrix, Rows};

/// The maximum number of matrices of a product.
pub const MAX_PARTS: usize = 3;

/// `out = matrices * x + bias + residual` by rows. The results of the matrices are concatenated.
#[derive(Debug)]
pub struct LinearQuantized<'a, D: Device> {
    /// One to [`MAX_PARTS`] weight matrices, each `[n_rows of its own, n_cols]`, possibly of different types.
    pub matrices: &'a [&'a Matrix<D>],
    /// Activations, `[n_batch, n_cols]`.
    pub x: Quantized<'a, D>,
    /// Added to every row, `[1, n_rows]`.
    pub bias: Option<Rows<'a, D>>,
    /// Added by rows, `[n_batch, n_rows]`; it may be `out`.
    pub residual: Option<Rows<'a, D>>,
    /// The result, `[n_batch, n_rows]`.
    pub out: Rows<'a, D>,
}

/// Kernel arguments for the bias, residual and result of a matrix: addresses, and strides of the latter two.
pub(crate) struct Epilogue {
    pub(crate) bias: Argument,
    pub(crate) residual: [Argument; 2],
    pub(crate) out: [Argument; 2],
}

impl Epilogue {
    /// The arguments of a product with one matrix, in the order of all kernels for quantized rows.
    pub(crate) fn arguments<D: Device>(
        &self,
        matrix: &Matrix<D>,
        x: &Quantized<'_, D>,
    ) -> [Argument; 14] {
        let [main, high, head] = matrix.planes();
        let [quants, blocks, stride] = x.arguments();
        let &Self { bias, residual: [residual, residual_stride], out: [out, out_stride] } = self;
        [
            main,
            high,
            head,
            quants,
            blocks,
            stride,
            bias,
            residual,
            residual_stride,
            out,
            out_stride,
            Argument::I32(matrix.n_rows() as i32),
            Argument::I32(matrix.n_cols() as i32),
            Argument::I32(x.n_rows() as i32),
        ]
    }
}

impl<D: Device> LinearQuantized<'_, D> {
    /// Asserts that shapes and devices match.
    pub(crate) fn check(&self, kernels: &Kernels<D>) {
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
    }

    /// Each matrix with its columns of the bias, residual and result.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&Matrix<D>, Epilogue)> {
        let mut at = 0;
        self.matrices.iter().map(move |matrix| {
            let columns = |rows: Rows<'_, D>| rows.columns(at, matrix.n_rows()).arguments();
            let null = [Argument::Address(0), Argument::I32(0)];
            let epilogue = Epilogue {
                bias: self.bias.map_or(null, columns)[0],
                residual: self.residual.map_or(null, columns),
                out: columns(self.out),
            };
            at += matrix.n_rows();
            (*matrix, epilogue)
        })
    }
}
