//! What a kernel did wrong, and where: the report that a run ends with.

use std::fmt;

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultKind {
    /// An access that is not, or not entirely, inside of an allocation.
    OutOfBounds,
    /// An address that is not a multiple of the access's size.
    Misaligned,
    /// An access to memory that was freed.
    Freed,
    /// Shared memory that is read before it was written, or while an asynchronous copy to it is
    /// under way.
    Uninitialised,
    /// A register that is read before it was written, or a shuffle's value from a lane that gave none.
    UndefinedRegister,
    /// Two threads use the same bytes, one of them writes, and nothing orders them.
    Race,
    /// A launch that may start before the one in front of it has ended uses memory that kernels write, or ends, before it
    /// has waited for that one.
    Dependence,
    /// Lanes that a collective names do not arrive at it, or a barrier that not all threads reach.
    Divergence,
    /// An atomic addition of floats where [`Checks::float_atomics`](crate::Checks) forbids them.
    FloatAtomic,
    /// `trap`, or a call of the device's `__assertfail`.
    Trap,
    /// The launch ran more instructions than [`Checks::max_instructions`](crate::Checks) allows.
    Limit,
    /// An operand that the instruction does not allow, such as the number of a barrier above 15.
    Operand,
}

/// A fault of one thread, or of the first one of those that it concerns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// Addresses, sizes and the other thread, as far as the kind has them.
    pub message: String,
    /// The kernel's name.
    pub kernel: String,
    /// The block's index in the grid: x, y, z.
    pub block: [u32; 3],
    /// The thread's index in the block: x, y, z.
    pub thread: [u32; 3],
    /// The line of the module, from 1.
    pub line: u32,
    /// That line of the module's text.
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

/// A fault before its place is known: kind, lane of the warp, message.
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
