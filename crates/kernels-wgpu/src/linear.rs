//! A linear layer: what the matrix products compute.

use crate::Buffer;
use crate::matrix::Matrix;
use crate::rows::View;

/// `out = x W^T (+ bias) (+ residual)`.
#[derive(Debug, Clone, Copy)]
pub struct Linear<'a> {
    /// W, `[n_out, n_in]`.
    pub matrix: &'a Matrix,
    /// Every bias, f32.
    pub vectors: &'a Buffer,
    /// Where the bias begins in `vectors`. `[n_out]`
    pub bias: Option<u32>,
    /// `[n_rows, n_in]`
    pub x: View,
    /// What is added; may be the place of `out`. `[n_rows, n_out]`
    pub residual: Option<View>,
    /// `[n_rows, n_out]`
    pub out: View,
}
