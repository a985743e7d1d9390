//! Loads, stores, atomics and `cp.async`, and the spaces of addresses that they name.

use super::lanes::Reg;

/// Where shared memory begins in its own space: a null pointer is outside.
pub(crate) const SHARED_BASE: u64 = 0x400;
/// Where the memory of a thread begins in its own space.
pub(crate) const LOCAL_BASE: u64 = 0x100;
/// Generic addresses of shared memory are this much above its own.
pub(crate) const SHARED_WINDOW: u64 = 0x5000_0000_0000;
/// Generic addresses of a thread's memory are this much above its own.
pub(crate) const LOCAL_WINDOW: u64 = 0x6000_0000_0000;
pub(crate) fn is_shared(generic: u64) -> bool {
    generic >> 32 == SHARED_WINDOW >> 32
}

pub(crate) fn is_local(generic: u64) -> bool {
    generic >> 32 == LOCAL_WINDOW >> 32
}

/// A space of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Shared,
    Local,
    Param,
    Generic,
}

/// A register and a number; no register of an absolute address.
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
    /// The bytes of one element.
    pub(crate) width: usize,
    /// A register per element.
    pub(crate) regs: Box<[Reg]>,
    /// Elements are extended by their sign.
    pub(crate) signed: bool,
    /// Volatile, or with a memory order: no race with atomics.
    pub(crate) strong: bool,
    /// One, two or four words to or from registers of 32 bits.
    pub(crate) is_words: bool,
}

/// What an atomic makes of the old value and its operands.
pub(crate) type Combine = Box<dyn Fn(u64, u64, u64) -> u64 + Send + Sync>;

/// An atomic operation, with its old value as the result where that is requested.
pub(crate) struct Atomic {
    pub(crate) space: Space,
    pub(crate) address: Address,
    pub(crate) width: usize,
    pub(crate) to: Option<Reg>,
    pub(crate) operands: [Reg; 2],
    pub(crate) combine: Combine,
    /// An addition of floats, whose result depends on the order.
    pub(crate) adds_floats: bool,
}

/// `cp.async` from global to shared memory.
#[derive(Debug)]
pub(crate) struct CopyAsync {
    pub(crate) to: Address,
    pub(crate) from: Address,
    pub(crate) bytes: usize,
    /// How many bytes are read; the rest is zero.
    pub(crate) size: Option<Reg>,
    /// The predicate that makes it all zeros, and whether it is negated.
    pub(crate) ignore: Option<(Reg, bool)>,
}
