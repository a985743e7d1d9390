//! What the graph of a model ends in.

/// What a model is loaded to compute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ModelOutput {
    /// Logits over the vocabulary, for text.
    #[default]
    Logits,
    /// The hidden states behind the final norm, for embeddings. The head is not loaded.
    Embeddings,
}
