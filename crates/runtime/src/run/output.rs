//! Requests that a model was not loaded for.

use crate::Error;
use realizar_model::ModelOutput;

/// Compares what a request needs with what its model computes.
pub(crate) trait RequireOutput {
    /// # Errors
    /// [`Error::Request`] if the model was loaded for the other output.
    fn require(self, wanted: ModelOutput) -> Result<(), Error>;
}

impl RequireOutput for ModelOutput {
    fn require(self, wanted: ModelOutput) -> Result<(), Error> {
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
