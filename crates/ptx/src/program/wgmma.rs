//! Instructions of groups of four warps on matrices (`wgmma`).

use super::lanes::Reg;
use crate::numeric::format::Format;

/// An instruction of a group of warps.
#[derive(Debug)]
pub(crate) enum Wgmma {
    Fence,
    Product(GroupProduct),
    Commit,
    /// Until so many of the last groups of products are left.
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
    /// Whether D is added.
    pub(crate) adds: Reg,
    /// The signs of A and B.
    pub(crate) negates: bool,
}

/// Where A is.
#[derive(Debug)]
pub(crate) enum Source {
    /// Four registers of each lane.
    Registers(Box<[Reg]>),
    /// A descriptor.
    Shared(Reg),
}
