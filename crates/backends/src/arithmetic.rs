//! The arithmetic of matrix products, as users choose it.

/// The arithmetic of matrix products.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Arithmetic {
    /// 8-bit activations for quantized weights: on the CPU in all rows, on a GPU in
    /// decode rows, where reading the matrix is all. Prompt rows on a GPU, and float
    /// weights everywhere, have F32 activations; on CUDA, decode rows have 16 bits of them
    /// for float weights of 8 or 16 bits, and prompt rows those of half precision.
    #[default]
    Auto,
    /// F32 activations for all weights and in both phases.
    F32,
}
