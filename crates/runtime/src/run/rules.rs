//! What prompts may be made of, which follows from the model and from how it was loaded.

use super::angles::Offsets;
use super::prompt::{Rows, Source};
use crate::Error;
use realizar_model::architectures::config::MAX_POSITIONS;
use realizar_model::graph::Graph;
use realizar_model::graph::plan::RowLimits;

/// See the [module](self).
#[derive(Debug, Clone, Copy)]
pub(crate) struct PromptRules {
    /// Tokens of the vocabulary.
    pub(crate) vocab_size: usize,
    /// Elements of an embedding.
    dim: usize,
    /// The maximum number of rows of a step.
    max_rows: usize,
    /// Rows may come as embeddings in place of tokens.
    takes_embeddings: bool,
    /// Rows may see further than themselves.
    has_reaches: bool,
    /// Components of the positions that angles are made of; 0 where rows have no angles of their own.
    n_components: usize,
}

impl PromptRules {
    /// The rules of a model with this graph and embeddings of `dim` elements for `vocab_size` tokens.
    pub(crate) fn new(graph: &Graph, (vocab_size, dim): (usize, usize), limits: RowLimits) -> Self {
        Self {
            vocab_size,
            dim,
            max_rows: limits.tokens,
            takes_embeddings: graph.takes_embeddings(),
            has_reaches: graph.has_reaches(),
            n_components: graph.angle_components(),
        }
    }

    /// Whether the model can run these rows, which come next at `pos` in a sequence with these offsets.
    ///
    /// # Errors
    /// If a token is not in the vocabulary, or embeddings are of another width than the model's, or
    /// ask for what it does not have.
    pub(crate) fn check(
        &self,
        rows: Rows<'_>,
        (pos, offsets): (usize, &Offsets),
    ) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Request(text));
        let Self { vocab_size, dim, max_rows, takes_embeddings, has_reaches, n_components } = *self;
        let is_unknown = |source: &Source<'_>| match *source {
            Source::Token(id) => id as usize >= vocab_size,
            Source::Embedded(..) => false,
        };
        if let Some(Source::Token(id)) = rows.sources().find(is_unknown) {
            return refuse(format!("token {id} is not in the vocabulary of {vocab_size}"));
        }
        for segment in rows.segments() {
            let (n, found) = (segment.embeddings.n_rows(), segment.embeddings.dim());
            if !takes_embeddings {
                let reason = "the model looks tokens up in several tables";
                return refuse(format!(
                    "embeddings in place of tokens are not supported: {reason}"
                ));
            }
            if found != dim {
                return refuse(format!("embeddings of {found} elements for a model of {dim}"));
            }
            let positions = segment.embeddings.positions();
            if positions.is_some() && n_components == 0 {
                let text = "explicit positions for a model without rotary embeddings";
                return refuse(format!("embeddings: {text}"));
            }
            let differ = |[t, h, w]: &[u32; 3]| t != h || h != w;
            if n_components == 1 && positions.unwrap_or_default().iter().any(differ) {
                return refuse(
                    "embeddings: positions with three components for a model whose rotary embedding \
                     has one"
                        .to_owned(),
                );
            }
            if !segment.embeddings.is_bidirectional() {
                continue;
            }
            if !has_reaches {
                let text = "rows with bidirectional attention for a model without it";
                return refuse(format!("embeddings: {text}"));
            }
            if n > max_rows {
                return refuse(format!(
                    "embeddings: {n} rows with bidirectional attention do not fit a step of \
                     {max_rows} rows"
                ));
            }
        }
        if offsets.concern(rows) && offsets.largest(pos, rows) > MAX_POSITIONS as i64 {
            return refuse(format!("embeddings: positions beyond {MAX_POSITIONS}"));
        }
        Ok(())
    }
}
