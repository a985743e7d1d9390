//! The arithmetic of an instruction, as launches count it.

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
