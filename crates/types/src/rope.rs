//! Pairings of rotary position embeddings.

/// The pairing of a head's columns in a rotary position embedding (arXiv:2104.09864).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Column `i` with column `i + rotary_dim / 2`, as in GPT-NeoX and the models of transformers.
    Neox,
    /// Column `2 i` with column `2 i + 1`, as in GPT-J and Meta's LLaMA.
    Interleaved,
}
