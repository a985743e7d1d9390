//! Warp-group matrix instructions (`wgmma`).

use super::lanes::Reg;
use crate::numeric::format::Format;

/// A warp-group instruction.
#[derive(Debug)]
pub(crate) enum Wgmma {
    Fence,
    Product(GroupProduct),
    Commit,
    /// Waits until at most this many groups of products are pending.
    Wait(u32),
}

/// `wgmma.mma_async`: D = A B + D, with A [64, 16] by rows and B [16, n] by columns, D in F32.
#[derive(Debug)]
pub(crate) struct GroupProduct {
    pub(crate) n: usize,
    pub(crate) format: Format,
    pub(crate) d: Box<[Reg]>,
    pub(crate) a: Source,
    pub(crate) b: Reg,
    /// Whether D is accumulated.
    pub(crate) adds: Reg,
    /// Whether A and B are negated.
    pub(crate) negates: bool,
}

/// Location of A.
#[derive(Debug)]
pub(crate) enum Source {
    /// Four registers per lane.
    Registers(Box<[Reg]>),
    /// A descriptor of shared memory.
    Shared(Reg),
}
