//! The arithmetic of an instruction, as counted per launch.

/// The arithmetic of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Work {
    /// None.
    #[default]
    None,
    /// Float operations per lane.
    Flops(u32),
    /// Integer operations per lane, in products of packed numbers.
    Dot(u32),
    /// Float operations per warp, in a matrix product.
    Tensor(u32),
    /// Integer operations per warp, in a matrix product.
    TensorInt(u32),
}
