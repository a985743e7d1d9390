//! Errors of layouts and tables, found before a kernel runs.

use realizar_quant::BlockType;

/// A layout of KV memory or a row of a table is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// KV memory cannot have this element type.
    #[error("KV memory of type {ty} is not supported, only F32, F16, BF16, F8, Q8_0 and Q4_0")]
    KvType {
        /// The requested type.
        ty: BlockType,
    },
    /// A size is zero, or the bytes of a page overflow.
    #[error("KV pages of {page_len} positions, {n_kv_heads} heads, {head_dim} elements")]
    KvSize {
        /// Positions per page.
        page_len: usize,
        /// Number of key-value heads.
        n_kv_heads: usize,
        /// Elements per head.
        head_dim: usize,
    },
    /// Keys and values overlap, or end past the page.
    #[error(
        "K at {k_offset} and V at {v_offset}, of {part_bytes} bytes each, do not fit apart \
         into a page of {page_bytes} bytes"
    )]
    KvLayout {
        /// Byte offset of the keys in a page.
        k_offset: usize,
        /// Byte offset of the values in a page.
        v_offset: usize,
        /// Bytes of the keys; the values have as many.
        part_bytes: usize,
        /// Bytes per page.
        page_bytes: usize,
    },
    /// A row's length is not a multiple of the type's block length.
    #[error(transparent)]
    Block(#[from] realizar_quant::Error),
}
