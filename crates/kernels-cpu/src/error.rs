//! What can go wrong before a kernel runs.

use realizar_quant::BlockType;

/// An error about the layout of KV memory or of a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Keys and values of this type cannot be stored.
    #[error("KV memory of type {ty} is not supported, only F32, F16, BF16, F8, Q8_0 and Q4_0")]
    KvType {
        /// The type requested.
        ty: BlockType,
    },
    /// A size is zero, or the sizes overflow.
    #[error("KV pages of {page_len} positions, {n_kv_heads} heads, {head_dim} elements")]
    KvSize {
        /// Positions of a page.
        page_len: usize,
        /// Heads of keys and of values.
        n_kv_heads: usize,
        /// Elements of a head.
        head_dim: usize,
    },
    /// Keys and values overlap or do not fit into the page.
    #[error(
        "K at {k_offset} and V at {v_offset}, of {part_bytes} bytes each, do not fit apart \
         into a page of {page_bytes} bytes"
    )]
    KvLayout {
        /// Where the keys begin.
        k_offset: usize,
        /// Where the values begin.
        v_offset: usize,
        /// Bytes of the keys, and of the values.
        part_bytes: usize,
        /// Bytes of a page.
        page_bytes: usize,
    },
    /// A row is not made of whole blocks of its type.
    #[error(transparent)]
    Block(#[from] realizar_quant::Error),
}
