//! Errors of block types and row sizes.

use crate::BlockType;

/// The size or the type of block data is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A row is not a whole number of blocks.
    #[error("{n_elements} elements are not a whole number of {ty} blocks of {}", ty.block_len())]
    PartialBlock {
        /// The block type.
        ty: BlockType,
        /// Elements in the row.
        n_elements: usize,
    },
    /// A byte slice has another length than the elements take.
    #[error("{ty}: {n_elements} elements need {expected} bytes, found {found}")]
    Size {
        /// The block type.
        ty: BlockType,
        /// Elements requested.
        n_elements: usize,
        /// Bytes that these elements take.
        expected: usize,
        /// Bytes in the slice.
        found: usize,
    },
    /// The type can be read but not quantized to.
    #[error(
        "cannot quantize to {ty}: its codebook search needs an importance matrix, which is not \
         supported"
    )]
    NoQuantizer {
        /// The block type.
        ty: BlockType,
    },
    /// A value that no scale can represent.
    #[error("{ty}: value {idx} is not finite")]
    NotFinite {
        /// The block type.
        ty: BlockType,
        /// Index of the first such value.
        idx: usize,
    },
}
