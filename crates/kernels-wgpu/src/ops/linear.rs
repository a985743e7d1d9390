//! The operands and constants of the kernels that multiply rows with a matrix (`shaders/linear.wgsl`).

use crate::dispatch::shader::{Access, Shader};
use crate::dispatch::{Grid, Kernel};
use crate::dispatch::{Rows, View};
use crate::ops::quantize::QuantizedRows;
use crate::storage::matrix::{Matrix, Piece};
use crate::{Buffer, Error, Gpu};

/// `out = x W^T + bias + residual`.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a> {
    /// W, `[n_outputs, n_inputs]`.
    pub matrix: &'a Matrix,
    /// f32 vectors, such as biases and norm weights.
    pub vectors: &'a Buffer,
    /// Index in `vectors` of the bias, `[n_outputs]`.
    pub bias: Option<u32>,
    /// `[n_rows, n_inputs]`.
    pub x: View,
    /// `[n_rows, n_outputs]`; may be `out`.
    pub residual: Option<View>,
    /// `[n_rows, n_outputs]`; must not overlap `x`.
    pub out: View,
}

/// The constants of a kernel for a piece of a matrix.
#[repr(C)]
#[derive(Debug, Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct Params {
    groups: u32,
    row_words: u32,
    n_outputs: u32,
    n_cols: u32,
    rows_at: u32,
    flags: u32,
    bias: u32,
    x_blocks: u32,
    x: [u32; 2], // start, stride
    residual: [u32; 2],
    out: [u32; 2],
    _end: [u32; 2],
}

/// The shader part that declares [`Params`] and the buffers.
pub(crate) const PART: &str = include_str!("../../shaders/linear.wgsl");

/// The shader part that declares the weights as words.
pub(crate) const WORDS: &str = include_str!("../../shaders/weights/words.wgsl");

/// The shader part that declares the weights as vectors of four words.
pub(crate) const VECTORS: &str = include_str!("../../shaders/weights/vectors.wgsl");

/// The buffers of [`PART`]: batch, values, vectors, weights.
pub(crate) const BINDINGS: &[Access] =
    &[Access::Read, Access::ReadWrite, Access::Read, Access::Read];

impl Linear<'_> {
    fn params(&self, rows: Rows<'_>, piece: &Piece, x_blocks: u32) -> Params {
        let place = |view: View| [view.start + piece.first_row, view.stride];
        let flags = u32::from(self.bias.is_some()) | u32::from(self.residual.is_some()) << 1;
        Params {
            groups: self.matrix.n_groups(),
            row_words: self.matrix.row_words(),
            n_outputs: piece.n_rows,
            n_cols: self.matrix.n_cols(),
            rows_at: rows.at.0,
            flags,
            bias: self.bias.map_or(0, |start| start + piece.first_row),
            x_blocks,
            x: [self.x.start, self.x.stride],
            residual: self.residual.map_or([0; 2], place),
            out: place(self.out),
            _end: [0; 2],
        }
    }

    /// Binds `shader`, which begins with [`PART`], to every piece of the matrix. `grid` maps a number of outputs
    /// to workgroups.
    ///
    /// # Errors
    /// If the device refuses a kernel.
    pub(crate) fn bind(
        &self,
        gpu: &Gpu,
        rows: Rows<'_>,
        shader: &Shader,
        grid: impl Fn(u32) -> Grid,
    ) -> Result<Vec<Kernel>, Error> {
        self.bind_on(gpu, rows, shader, None, grid)
    }

    /// As [`Self::bind`], with quantized activations, whose quants and blocks follow the other buffers.
    ///
    /// # Errors
    /// If the device refuses a kernel.
    pub(crate) fn bind_on(
        &self,
        gpu: &Gpu,
        rows: Rows<'_>,
        shader: &Shader,
        quantized: Option<&QuantizedRows>,
        grid: impl Fn(u32) -> Grid,
    ) -> Result<Vec<Kernel>, Error> {
        let (n_inputs, n_outputs) = (self.matrix.n_cols(), self.matrix.n_rows());
        assert_eq!(self.x.width, n_inputs, "the inputs of a product");
        assert_eq!(self.out.width, n_outputs, "the outputs of a product");
        assert!(self.residual.is_none_or(|r| r.width == n_outputs), "the residual of a product");
        let bind = |piece: &Piece| {
            let mut buffers = vec![rows.batch, rows.values, self.vectors, &piece.buffer];
            buffers.extend(quantized.iter().flat_map(|x| [&x.quants, &x.blocks]));
            let x_blocks = quantized.map_or(0, |x| x.max_blocks);
            gpu.kernel(shader, &self.params(rows, piece, x_blocks), &buffers, grid(piece.n_rows))
        };
        self.matrix.pieces().iter().map(bind).collect()
    }
}
