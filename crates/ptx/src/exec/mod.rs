//! Running decoded kernels: registers and lanes, memory and its checks, warps, blocks and grids.

mod access;
pub(crate) mod block;
pub(crate) mod collective;
mod copies;
pub(crate) mod counts;
pub(crate) mod grid;
pub(crate) mod lanes;
pub(crate) mod matrix;
pub(crate) mod mbarrier;
pub(crate) mod memory;
pub(crate) mod program;
mod races;
mod transfer;
pub(crate) mod wgmma;
pub(crate) mod wide;
