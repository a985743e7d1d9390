//! Warp-level instructions on small matrices: loads and stores of fragments, and products.

use super::access::{Address, Space};
use super::lanes::Reg;
use crate::numeric::format::Format;

/// A matrix instruction.
#[derive(Debug)]
pub(crate) enum Matrix {
    Load(Fragments),
    Store(Fragments),
    Product(Product),
}

/// `ldmatrix` and `stmatrix`, with one register per 8 x 8 matrix of 16-bit elements.
#[derive(Debug)]
pub(crate) struct Fragments {
    pub(crate) space: Space,
    pub(crate) address: Address,
    pub(crate) regs: Box<[Reg]>,
    pub(crate) transposed: bool,
}

/// Element type of A and B.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    Float(Format),
    /// The upper 19 bits of F32.
    Tf32,
    Signed8,
    Unsigned8,
}

impl Element {
    pub(crate) fn per_register(self) -> usize {
        match self {
            Self::Float(format) => 32 / format.bits() as usize,
            Self::Tf32 => 1,
            Self::Signed8 | Self::Unsigned8 => 4,
        }
    }
}

/// Element type of C and D.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sum {
    F32,
    F16,
    /// 32-bit integers, clamped or wrapping.
    Integer {
        clamps: bool,
    },
}

/// `mma.sync`: D = A B + C, with A [m, k] by rows and B [k, 8] by columns.
#[derive(Debug)]
pub(crate) struct Product {
    pub(crate) m: usize,
    pub(crate) k: usize,
    pub(crate) elements: [Element; 2],
    pub(crate) sum: Sum,
    pub(crate) d: Box<[Reg]>,
    pub(crate) a: Box<[Reg]>,
    pub(crate) b: Box<[Reg]>,
    pub(crate) c: Box<[Reg]>,
}
