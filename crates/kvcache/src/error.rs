//! What can go wrong in the key-value cache.

/// An error of the page pool or of a block table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Every page is in use.
    #[error(
        "the key-value cache is full: {needed} more pages are needed, {free} of {total} are free"
    )]
    OutOfPages {
        /// Pages requested.
        needed: usize,
        /// Pages that are free.
        free: usize,
        /// Pages in the pool.
        total: usize,
    },
    /// Every recurrent state is in use.
    #[error("no recurrent state is left: {needed} more are needed, {free} of {total} are free")]
    OutOfStates {
        /// States requested.
        needed: usize,
        /// States that are free.
        free: usize,
        /// States in the pool.
        total: usize,
    },
    /// A layout that the cache cannot hold.
    #[error("key-value cache of type {ty}: {reason}")]
    Layout {
        /// The element type requested.
        ty: realizar_quant::BlockType,
        /// What is wrong with it.
        reason: String,
    },
}
