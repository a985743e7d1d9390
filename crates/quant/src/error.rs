//! What can go wrong with blocks.

use crate::BlockType;

/// An error about the size or the type of block data.
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
    /// The byte slice does not hold what the element count asks for.
    #[error("{ty}: {n_elements} elements need {expected} bytes, found {found}")]
    Size {
        /// The block type.
        ty: BlockType,
        /// Elements requested.
        n_elements: usize,
        /// Bytes those elements take.
        expected: usize,
        /// Bytes that were given.
        found: usize,
    },
    /// A type that can be read but not made.
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
