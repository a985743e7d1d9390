//! Execution of decoded kernels: grids, blocks and warps, memory and its checks.

mod access;
mod barriers;
mod block;
mod collective;
mod copies;
pub(crate) mod counts;
pub(crate) mod grid;
mod matrix;
mod mbarrier;
pub(crate) mod memory;
mod phases;
mod products;
mod races;
pub(crate) mod state;
mod transfer;
mod wgmma;
