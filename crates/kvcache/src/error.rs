//! Errors of the key-value cache.

/// The cache is exhausted, or a layout is not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Too few free pages in the pool of a layer group.
    #[error(
        "the key-value cache is full: {needed} more pages are needed, {free} of {total} are free"
    )]
    OutOfPages {
        /// Pages requested.
        needed: usize,
        /// Free pages in the pool.
        free: usize,
        /// All pages of the pool.
        total: usize,
    },
    /// Too few free recurrent states.
    #[error("no recurrent state is left: {needed} more are needed, {free} of {total} are free")]
    OutOfStates {
        /// States requested.
        needed: usize,
        /// Free states in the pool.
        free: usize,
        /// All states of the pool.
        total: usize,
    },
    /// The element type does not suit the cache or the head size.
    #[error("key-value cache of type {ty}: {reason}")]
    Layout {
        /// The element type requested.
        ty: realizar_quant::BlockType,
        /// The requirement that it violates.
        reason: String,
    },
}
