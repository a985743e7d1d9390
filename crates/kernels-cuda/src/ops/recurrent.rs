//! What the operations with a recurrent state have in common: their kernels, and the lists of a step.

use super::List;
use crate::StateLayer;
use crate::device::Device;
use crate::kernels::Kernels;

/// Threads of a block.
pub(super) const THREADS: u32 = 128;

/// Where a step says which states are read and written. A slot that is read is not written in the same step.
#[derive(Debug)]
pub struct StateLists<'a, D: Device> {
    /// Three words of each sequence: its first row, its number of rows, and the slot that they continue from or
    /// [`StateLists::NONE`]. A sequence may have no rows. `[n_seqs, 3]`
    pub seqs: List<'a, D>,
    /// Of each row the index of its sequence; [`StateLists::NONE`] is a row that nothing is computed for. `[n_rows]`
    pub seq_of_row: List<'a, D>,
    /// Of each row the slot that the state after it goes to, or [`StateLists::NONE`]. `[n_rows]`
    pub writes: List<'a, D>,
    /// Sequences of the step.
    pub n_seqs: usize,
}

impl<D: Device> Clone for StateLists<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for StateLists<'_, D> {}

impl<D: Device> StateLists<'_, D> {
    /// No slot, and no sequence.
    pub const NONE: u32 = u32::MAX;
    /// Words of a sequence.
    pub const SEQ_WORDS: usize = 3;

    /// Asserts that they have numbers for `n_rows` rows, and that states have `len` elements.
    pub(super) fn check(
        &self,
        kernels: &Kernels<D>,
        n_rows: usize,
        states: &StateLayer<D>,
        len: usize,
    ) {
        assert!((1..=65535).contains(&self.n_seqs), "{} sequences", self.n_seqs);
        self.seqs.check(kernels, "the sequences", self.n_seqs * Self::SEQ_WORDS);
        self.seq_of_row.check(kernels, "the sequences of the rows", n_rows);
        self.writes.check(kernels, "the slots that are written", n_rows);
        kernels.check("the states", states.buffer(), 0);
        assert_eq!(states.spec().len, len, "elements of the layer's state");
    }
}
