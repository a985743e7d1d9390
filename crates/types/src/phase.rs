//! The two phases of a sequence.

/// The phase of a row: part of a prompt, or a token that the model generated. It decides the row's arithmetic, so that
/// a sequence's result never depends on what else is in the batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// A row of a prompt.
    Prefill,
    /// A generated token.
    Decode,
}
