//! Common parts of the operations with a recurrent state: the lists of a step.

use super::List;
use crate::StateLayer;
use crate::device::Device;
use crate::kernels::Kernels;

/// Threads of a block.
pub(super) const THREADS: u32 = 128;

/// The states that a step reads and writes. No slot is both read and written in a step.
#[derive(Debug)]
pub struct StateLists<'a, D: Device> {
    /// Three words per sequence: its first row, its number of rows (possibly 0), and the slot that it continues from or
    /// [`StateLists::NONE`]. `[n_seqs, 3]`
    pub seqs: List<'a, D>,
    /// The sequence of each row, or [`StateLists::NONE`] for rows that are skipped. `[n_rows]`
    pub seq_of_row: List<'a, D>,
    /// The slot that the state after each row is written to, or [`StateLists::NONE`]. `[n_rows]`
    pub writes: List<'a, D>,
    /// Number of sequences of the step.
    pub n_seqs: usize,
}

impl<D: Device> Clone for StateLists<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for StateLists<'_, D> {}

impl<D: Device> StateLists<'_, D> {
    /// Stands for no slot and no sequence.
    pub const NONE: u32 = u32::MAX;
    /// Words per sequence in `seqs`.
    pub const SEQ_WORDS: usize = 3;

    /// Asserts that the lists cover `n_rows` rows and that states have `len` elements.
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
