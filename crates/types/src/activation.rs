//! Activation functions by name.

/// An activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`, also called swish.
    Silu,
    /// `x * (1 + erf(x / sqrt 2)) / 2` (arXiv:1606.08415).
    Gelu,
    /// GELU by its tanh approximation, `gelu_pytorch_tanh` and `gelu_new`.
    GeluTanh,
    /// `x * sigmoid(1.702 x)`.
    GeluQuick,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)` squared.
    ReluSquared,
    /// The hyperbolic tangent.
    Tanh,
    /// The logistic function.
    Sigmoid,
    /// `x * tanh(ln(1 + e^x))` (arXiv:1908.08681).
    Mish,
}

impl Activation {
    /// Every activation, in declaration order. Shaders and CUDA kernels number activations by this order.
    pub const ALL: [Self; 9] = [
        Self::Silu,
        Self::Gelu,
        Self::GeluTanh,
        Self::GeluQuick,
        Self::Relu,
        Self::ReluSquared,
        Self::Tanh,
        Self::Sigmoid,
        Self::Mish,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_in_declaration_order() {
        for (idx, activation) in Activation::ALL.into_iter().enumerate() {
            assert_eq!(activation as usize, idx, "{activation:?}");
        }
    }
}
