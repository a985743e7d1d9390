//! Errors of this crate: malformed PTX, unsupported instructions, invalid calls, and faults of kernels.

use crate::Fault;

/// An error of this crate.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text does not follow PTX's grammar.
    #[error("line {line}: {message}")]
    Syntax {
        /// The line of the module, from 1.
        line: u32,
        /// Expected and found values.
        message: String,
    },
    /// An unsupported opcode, modifier or operand.
    #[error("line {line}: `{opcode}`: {message}")]
    Unsupported {
        /// The line of the module, from 1.
        line: u32,
        /// The opcode as written, with its modifiers.
        opcode: String,
        /// The unsupported part.
        message: String,
    },
    /// The module has no such kernel.
    #[error("the module has no kernel `{0}`")]
    NoSuchKernel(String),
    /// The module has no such variable.
    #[error("the module has no variable `{0}` in global or constant memory")]
    NoSuchVariable(String),
    /// Arguments, a grid or memory that do not match the kernel.
    #[error("kernel `{kernel}`: {message}")]
    Launch {
        /// The kernel's name.
        kernel: String,
        /// Expected and found values.
        message: String,
    },
    /// An invalid range or address of a copy or release.
    #[error("device memory: {0}")]
    Memory(String),
    /// Invalid use of a stream or graph.
    #[error("stream: {0}")]
    Stream(String),
    /// Invalid exchange within a group of devices.
    #[error("exchange of ranks: {0}")]
    Exchange(String),
    /// A kernel did something that it must not do.
    #[error("{0}")]
    Fault(Box<Fault>),
}
