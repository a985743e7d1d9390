//! Kinds of normalization.

/// The kind of a normalization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps) * weight + bias` (RMSNorm, arXiv:1910.07467).
    Rms,
    /// `(x - mean(x)) / sqrt(variance(x) + eps) * weight + bias` (layer norm, arXiv:1607.06450).
    Layer,
}
