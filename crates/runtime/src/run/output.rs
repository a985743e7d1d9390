//! Requests that a model was not loaded for.

use crate::Error;
use realizar_model::ModelOutput;

/// Checks that a model loaded for `loaded` computes what a request needs.
///
/// # Errors
/// [`Error::Request`] if it was loaded for the other output.
pub(crate) fn require_output(loaded: ModelOutput, needed: ModelOutput) -> Result<(), Error> {
    let text = match (loaded, needed) {
        (ModelOutput::Logits, ModelOutput::Embeddings) => {
            "the model was loaded for text generation and computes no embeddings"
        }
        (ModelOutput::Embeddings, ModelOutput::Logits) => {
            "the model was loaded for embeddings and generates no text"
        }
        _ => return Ok(()),
    };
    Err(Error::Request(text.to_owned()))
}
