//! A step's input and output: chunks of sequences, and rows of output.

use super::prompt::Rows;
use super::seq_id::SeqId;
use realizar_backends::Phase;

/// The rows of a chunk whose output is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outputs<'a> {
    /// None.
    None,
    /// The last.
    Last,
    /// All.
    All,
    /// Those at these indices of the chunk, ascending.
    At(&'a [usize]),
}

impl Outputs<'_> {
    /// How many there are in a chunk of `n_tokens`.
    pub(super) fn count(&self, n_tokens: usize) -> usize {
        match self {
            Self::None => 0,
            Self::Last => 1,
            Self::All => n_tokens,
            Self::At(idx) => idx.len(),
        }
    }
}

/// Rows to append to a sequence.
#[derive(Debug, Clone, Copy)]
pub struct Chunk<'a> {
    /// The sequence.
    pub seq: &'a SeqId,
    /// The rows, tokens or embeddings; at least one.
    pub rows: Rows<'a>,
    /// What they are to their request.
    pub phase: Phase,
    /// Whose output is wanted.
    pub outputs: Outputs<'a>,
}

/// What a step has computed: logits, or hidden states of a model that was loaded for embeddings.
#[derive(Debug, Clone, Copy)]
pub struct OutputRows<'a> {
    pub(super) values: &'a [f32], // [n_rows, width]
    pub(super) width: usize,
    /// Of each chunk, the index of its first row.
    pub(super) first_rows: &'a [usize],
}

impl<'a> OutputRows<'a> {
    /// Row `i` of the chunk's wanted rows: `[output_width]`.
    pub fn row(&self, chunk: usize, i: usize) -> &'a [f32] {
        let row = self.first_rows[chunk] + i;
        &self.values[row * self.width..][..self.width]
    }
}
