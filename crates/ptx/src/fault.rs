//! Faults: errors of a kernel, with their location.

use std::fmt;

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// An access that is not entirely inside an allocation.
    OutOfBounds,
    /// An address that is not a multiple of the access size.
    Misaligned,
    /// An access to freed memory.
    Freed,
    /// A read of shared memory that was not written, or that an asynchronous copy is about to write.
    Uninitialised,
    /// A read of a register that was not written, or of a shuffle's value from an inactive lane.
    UndefinedRegister,
    /// Unordered accesses of two threads to the same bytes, at least one of which writes.
    Race,
    /// A dependent launch that accesses memory written by kernels, or ends, before it has waited for the launch before.
    Dependence,
    /// Lanes of a collective's mask that do not arrive at it, or a barrier that not all threads reach.
    Divergence,
    /// A float atomic addition without [`Checks::float_atomics`](crate::Checks).
    FloatAtomic,
    /// `trap`, or a call of the device's `__assertfail`.
    Trap,
    /// The launch exceeded [`Checks::max_instructions`](crate::Checks).
    Limit,
    /// An operand that the instruction does not allow, such as a barrier number above 15.
    Operand,
}

/// A fault of one thread, or of the first of several threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Kind of the fault.
    pub kind: FaultKind,
    /// Details: addresses, sizes and the other thread, as far as they apply.
    pub message: String,
    /// Name of the kernel.
    pub kernel: String,
    /// The block's index in the grid: x, y, z.
    pub block: [u32; 3],
    /// The thread's index in the block: x, y, z.
    pub thread: [u32; 3],
    /// Line of the module, from 1.
    pub line: u32,
    /// Text of that line.
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [bx, by, bz] = self.block;
        let [tx, ty, tz] = self.thread;
        write!(
            f,
            "kernel `{}`, block ({bx}, {by}, {bz}), thread ({tx}, {ty}, {tz}), line {}: {}: `{}`",
            self.kernel, self.line, self.message, self.text
        )
    }
}

/// The result of a step of a warp.
pub(crate) type Checked<T = ()> = Result<T, LaneFault>;

/// A fault without its location: kind, lane and message.
#[derive(Debug)]
pub(crate) struct LaneFault {
    pub(crate) kind: FaultKind,
    pub(crate) lane: usize,
    pub(crate) message: String,
}

impl LaneFault {
    pub(crate) fn new(kind: FaultKind, lane: usize, message: impl Into<String>) -> Self {
        Self { kind, lane, message: message.into() }
    }
}
