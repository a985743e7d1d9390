//! The arithmetic of each instruction, for counts.

use super::types::{Opcode, Type};
use crate::program::Op;
use crate::program::matrix::{Matrix, Sum};
use crate::program::wgmma::Wgmma;
use crate::program::work::Work;

/// The arithmetic of `op`, which was decoded from `opcode`.
pub(super) fn of(opcode: &Opcode<'_>, ty: Option<Type>, op: &Op) -> Work {
    if let Op::Matrix(Matrix::Product(product)) = op {
        // A multiplication and an addition for each of 8 columns.
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
