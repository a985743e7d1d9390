//! How much arithmetic an instruction is, for counts.

use crate::exec::matrix::{Matrix, Sum};
use crate::exec::program::Op;
use crate::exec::wgmma::Wgmma;

use super::types::{Opcode, Type};

/// The arithmetic of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Work {
    /// None that is counted.
    #[default]
    None,
    /// Operations of floats of each lane.
    Flops(u32),
    /// Operations of integers of each lane, in products of packed numbers.
    Dot(u32),
    /// Operations of floats of the warp, in a product of fragments.
    Tensor(u32),
    /// Operations of integers of the warp, in a product of fragments.
    TensorInt(u32),
}

/// What `op`, made of `opcode`, is.
pub(super) fn of(opcode: &Opcode<'_>, ty: Option<Type>, op: &Op) -> Work {
    if let Op::Matrix(Matrix::Product(product)) = op {
        // A product and a sum for each of 8 columns.
        let n = (2 * product.m * product.k * 8) as u32;
        return match product.sum {
            Sum::Integer { .. } => Work::TensorInt(n),
            _ => Work::Tensor(n),
        };
    }
    if let Op::Wgmma(Wgmma::Product(product)) = op {
        // A warp has 16 rows of 16 columns.
        return Work::Tensor((2 * 16 * 16 * product.n) as u32);
    }
    let pairs = if matches!(ty, Some(Type::F16x2 | Type::BF16x2)) { 2 } else { 1 };
    let is_float = ty.is_some_and(Type::is_float);
    match opcode.base {
        "dp4a" => Work::Dot(8),
        "dp2a" => Work::Dot(4),
        "fma" | "mad" if is_float => Work::Flops(2 * pairs),
        "add" | "sub" | "mul" | "div" | "min" | "max" | "rcp" | "sqrt" | "rsqrt" | "sin"
        | "cos" | "lg2" | "ex2" | "tanh"
            if is_float =>
        {
            Work::Flops(pairs)
        }
        _ => Work::None,
    }
}
