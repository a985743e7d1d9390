//! Running decoded kernels: registers and lanes, memory and its checks, warps, blocks and grids.

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
