//! Instructions on barriers in shared memory (`mbarrier`), and the bulk copies that complete on them.

use super::access::{Address, Space};
use super::lanes::Reg;

/// An instruction on a barrier in shared memory.
#[derive(Debug)]
pub(crate) struct Mbarrier {
    pub(crate) kind: MbarrierKind,
    pub(crate) space: Space,
    pub(crate) address: Address,
}

#[derive(Debug)]
pub(crate) enum MbarrierKind {
    /// Makes one that so many arrivals end a phase of.
    Init(Reg),
    Invalidate,
    /// Expects more bytes.
    Expect(Reg),
    /// Expects more bytes, where there are some, then arrives: once where there is no count.
    Arrive {
        state: Reg,
        count: Option<Reg>,
        bytes: Option<Reg>,
    },
    /// Whether a phase has ended: that of a parity, or that of a state that an arrival gave.
    Test {
        to: Reg,
        phase: Reg,
        by_parity: bool,
        waits: bool,
    },
}

/// `cp.async.bulk` from global to shared memory.
#[derive(Debug)]
pub(crate) struct CopyBulk {
    pub(crate) to: Address,
    pub(crate) from: Address,
    pub(crate) bytes: Reg,
    pub(crate) barrier: Address,
}
