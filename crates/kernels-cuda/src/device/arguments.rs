//! Kernel arguments of a launch.

use std::ops::Deref;

use super::Address;

/// The maximum number of arguments of a launch.
pub const MAX_ARGUMENTS: usize = 48;

/// One argument of a kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Argument {
    /// A pointer; 0 is null.
    Address(Address),
    /// `int`.
    I32(i32),
    /// `float`.
    F32(f32),
}

/// A list of arguments that is built without an allocation.
#[derive(Debug)]
pub(crate) struct Arguments {
    all: [Argument; MAX_ARGUMENTS],
    len: usize,
}

impl Arguments {
    /// Concatenates lists of arguments.
    pub(crate) fn of(parts: &[&[Argument]]) -> Self {
        let mut all = [Argument::I32(0); MAX_ARGUMENTS];
        let mut len = 0;
        for part in parts {
            all[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        }
        Self { all, len }
    }
}

impl Deref for Arguments {
    type Target = [Argument];

    fn deref(&self) -> &[Argument] {
        &self.all[..self.len]
    }
}
