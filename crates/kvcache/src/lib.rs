//! Paged key-value cache: page pool, block tables, layouts and statistics.
//!
//! The cache is bookkeeping. It says which page holds which positions of which
//! sequence and where keys and values lie inside a page; the memory itself is a
//! backend's. It knows no model: layers come as [`GroupSpec`]s.
//!
//! ```
//! use realizar_kvcache::{BlockTable, BlockType, GroupSpec, KvLayout, PAGE_LEN, PagePool};
//!
//! # fn main() -> Result<(), realizar_kvcache::Error> {
//! // Two layers of 4 key-value heads of 64, stored as F16.
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
//! // A sequence of 40 positions takes two pages.
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
mod state;
mod symbol;

pub use block_table::BlockTable;
pub use cache::{KvCache, PageCopy, SeqPages};
pub use error::Error;
pub use layout::{GroupSpec, KvLayout, PAGE_ALIGN, PAGE_LEN};
pub use pool::{PageId, PagePool, PoolStats, StateId};
pub use prefix::{CacheEvent, PrefixStats};
pub use realizar_quant::BlockType;
pub use state::SeqStates;
pub use symbol::{Symbol, Variant};

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
