//! Bookkeeping of a paged key-value cache: page pools, block tables, page layouts, the prefix cache.
//!
//! The crate maps the positions of a sequence to pages and says where keys and values lie inside a
//! page. It allocates no tensor memory, which belongs to the backends, and knows no model: a group of
//! layers is described by a [`GroupSpec`].
//!
//! | modules | what they hold |
//! |---|---|
//! | `pool`, `block_table` | pages, and those of a sequence |
//! | `layout` | the place of a layer's keys and values inside a page |
//! | `prefix` | the prefix cache, a tree of pages |
//! | `state` | recurrent states in slots |
//! | `symbol` | the identity of a prompt's rows |
//! | `cache`, `sequence` | sequences that adopt, grow, fork and share |
//!
//! ```
//! use realizar_kvcache::{BlockTable, BlockType, GroupSpec, KvLayout, PAGE_LEN, PagePool};
//!
//! # fn main() -> Result<(), realizar_kvcache::Error> {
//! // Two layers with 4 key-value heads of 64 elements, stored as F16.
//! let spec = GroupSpec {
//!     n_layers: 2,
//!     n_kv_heads: 4,
//!     head_dim: 64,
//!     window: None,
//!     chunked: false,
//!     values_are_keys: false,
//! };
//! let layout = KvLayout::new(BlockType::F16, spec)?;
//! assert_eq!(layout.page_bytes(), 2 * 2 * 4 * PAGE_LEN * 64 * 2);
//!
//! // 40 positions take two pages.
//! let mut pool = PagePool::new(16);
//! let mut table = BlockTable::default();
//! table.grow(40, &mut pool)?;
//! assert_eq!(table.pages().len(), 2);
//! let (page, idx) = table.locate(33);
//! assert_eq!((page, idx), (table.pages()[1], 1));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod block_table;
mod cache;
mod error;
mod layout;
mod pool;
mod prefix;
mod sequence;
mod state;
mod symbol;

pub use block_table::BlockTable;
pub use cache::{GroupPool, KvCache, PageCopy};
pub use error::Error;
pub use layout::{GroupSpec, KvLayout, PAGE_ALIGN, PAGE_LEN};
pub use pool::{PageId, PagePool, PoolStats, StateId};
pub use prefix::{CacheEvent, PrefixStats};
pub use realizar_quant::BlockType;
pub use sequence::SeqPages;
pub use state::SeqStates;
pub use symbol::{Symbol, Variant};

/// Runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
