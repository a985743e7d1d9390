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
    /// Initializes a barrier with the number of arrivals per phase.
    Init(Reg),
    Invalidate,
    /// Adds to the expected bytes.
    Expect(Reg),
    /// Adds to the expected bytes, if given, then arrives `count` times (once by default).
    Arrive {
        state: Reg,
        count: Option<Reg>,
        bytes: Option<Reg>,
    },
    /// Tests whether a phase has ended, given by its parity or by the state that an arrival returned.
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
