//! Loads, stores, atomics and `cp.async`, with their address spaces.

use super::lanes::Reg;

/// Start of the shared address space. A null pointer is outside.
pub(crate) const SHARED_BASE: u64 = 0x400;
/// Start of the local address space.
pub(crate) const LOCAL_BASE: u64 = 0x100;
/// Offset of generic addresses of shared memory.
pub(crate) const SHARED_WINDOW: u64 = 0x5000_0000_0000;
/// Offset of generic addresses of local memory.
pub(crate) const LOCAL_WINDOW: u64 = 0x6000_0000_0000;
pub(crate) fn is_shared(generic: u64) -> bool {
    generic >> 32 == SHARED_WINDOW >> 32
}

pub(crate) fn is_local(generic: u64) -> bool {
    generic >> 32 == LOCAL_WINDOW >> 32
}

/// An address space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Shared,
    Local,
    Param,
    Generic,
}

/// A base register and an offset. Absolute addresses have no base.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    pub(crate) base: Option<Reg>,
    pub(crate) offset: i64,
}

/// A load or a store.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) is_store: bool,
    pub(crate) space: Space,
    pub(crate) address: Address,
    /// Bytes per element.
    pub(crate) width: usize,
    /// One register per element.
    pub(crate) regs: Box<[Reg]>,
    /// Whether elements are sign-extended.
    pub(crate) signed: bool,
    /// Whether it is volatile or has a memory order, and so does not race with atomics.
    pub(crate) strong: bool,
    /// Whether it moves one, two or four words from or to 32-bit registers.
    pub(crate) is_words: bool,
}

/// A function from the old value and the operands to the new value.
pub(crate) type Combine = Box<dyn Fn(u64, u64, u64) -> u64 + Send + Sync>;

/// An atomic operation, which returns the old value if `to` is given.
pub(crate) struct Atomic {
    pub(crate) space: Space,
    pub(crate) address: Address,
    pub(crate) width: usize,
    pub(crate) to: Option<Reg>,
    pub(crate) operands: [Reg; 2],
    pub(crate) combine: Combine,
    /// Whether it is a float addition, whose result depends on the order.
    pub(crate) adds_floats: bool,
}

/// `cp.async` from global to shared memory.
#[derive(Debug)]
pub(crate) struct CopyAsync {
    pub(crate) to: Address,
    pub(crate) from: Address,
    pub(crate) bytes: usize,
    /// Number of bytes that are read; the rest is zero-filled.
    pub(crate) size: Option<Reg>,
    /// The predicate that zero-fills all bytes, and whether it is negated.
    pub(crate) ignore: Option<(Reg, bool)>,
}
