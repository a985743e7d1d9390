//! What the graph of a model ends in.

use crate::Error;

/// What a model is loaded to compute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ModelOutput {
    /// Logits over the vocabulary, for text.
    #[default]
    Logits,
    /// The hidden states behind the final norm, for embeddings. The head is not loaded.
    Embeddings,
}

impl ModelOutput {
    /// Refuses what a model with this output was not loaded for.
    pub(crate) fn require(self, wanted: Self) -> Result<(), Error> {
        let text = match (self, wanted) {
            (Self::Logits, Self::Embeddings) => {
                "the model was loaded for text generation and computes no embeddings"
            }
            (Self::Embeddings, Self::Logits) => {
                "the model was loaded for embeddings and generates no text"
            }
            _ => return Ok(()),
        };
        Err(Error::Request(text.to_owned()))
    }
}
