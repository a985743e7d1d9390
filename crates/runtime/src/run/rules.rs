//! What prompts may be made of, which follows from the model and from how it was loaded.

use super::prompt::{Rows, Source};
use crate::Error;
use crate::graph::Graph;
use crate::graph::plan::RowLimits;

/// See the [module](self).
#[derive(Debug, Clone, Copy)]
pub(crate) struct PromptRules {
    /// Tokens of the vocabulary.
    pub(crate) vocab_size: usize,
    /// Elements of an embedding.
    dim: usize,
    /// The most rows of a step.
    max_rows: usize,
    /// Rows may see further than themselves.
    has_reaches: bool,
}

impl PromptRules {
    /// The rules of a model with this graph and embeddings of `dim` elements for `vocab_size` tokens.
    pub(crate) fn new(graph: &Graph, (vocab_size, dim): (usize, usize), limits: RowLimits) -> Self {
        Self { vocab_size, dim, max_rows: limits.tokens, has_reaches: graph.has_reaches() }
    }

    /// Whether the model can run these rows.
    ///
    /// # Errors
    /// If a token is not in the vocabulary, or embeddings are of another width than the model's, or
    /// ask for what it does not have.
    pub(crate) fn check(&self, rows: Rows<'_>) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Request(text));
        let Self { vocab_size, dim, max_rows, has_reaches } = *self;
        let is_unknown = |source: &Source<'_>| match *source {
            Source::Token(id) => id as usize >= vocab_size,
            Source::Embedded(..) => false,
        };
        if let Some(Source::Token(id)) = rows.sources().find(is_unknown) {
            return refuse(format!("token {id} is not in the vocabulary of {vocab_size}"));
        }
        for segment in rows.segments() {
            let (n, found) = (segment.embeddings.n_rows(), segment.embeddings.dim());
            if found != dim {
                return refuse(format!("embeddings of {found} elements for a model of {dim}"));
            }
            if !segment.embeddings.is_bidirectional() {
                continue;
            }
            if !has_reaches {
                let text = "rows that see each other in both directions for a model without them";
                return refuse(format!("embeddings: {text}"));
            }
            if n > max_rows {
                return refuse(format!(
                    "embeddings: {n} rows that see each other do not fit a step of {max_rows} rows"
                ));
            }
        }
        Ok(())
    }
}
