//! What can go wrong: text that is no PTX, instructions that are not known, calls that do not fit,
//! and faults of kernels that ran.

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
        /// What was expected and found.
        message: String,
    },
    /// An opcode, modifier or operand that the interpreter does not know.
    #[error("line {line}: `{opcode}`: {message}")]
    Unsupported {
        /// The line of the module, from 1.
        line: u32,
        /// The opcode as written, with its modifiers.
        opcode: String,
        /// What of it is not known.
        message: String,
    },
    /// The module has no such kernel.
    #[error("the module has no kernel `{0}`")]
    NoSuchKernel(String),
    /// The module has no such variable.
    #[error("the module has no variable `{0}` in global or constant memory")]
    NoSuchVariable(String),
    /// Parameters, a grid or memory that do not fit the kernel.
    #[error("kernel `{kernel}`: {message}")]
    Launch {
        /// The kernel's name.
        kernel: String,
        /// What was expected and found.
        message: String,
    },
    /// A copy or release of memory that is not allocated as the caller thinks.
    #[error("device memory: {0}")]
    Memory(String),
    /// Streams or graphs used out of order.
    #[error("stream: {0}")]
    Stream(String),
    /// Devices of a group that do not exchange bytes as they should.
    #[error("exchange of ranks: {0}")]
    Exchange(String),
    /// A kernel did what it must not do.
    #[error("{0}")]
    Fault(Box<Fault>),
}
