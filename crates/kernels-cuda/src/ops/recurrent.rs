//! What the operations with a recurrent state have in common: their kernels, and the lists of a step.

use super::List;
use super::kernels::Kernels;
use crate::device::Device;
use crate::image::Image;
use crate::{Error, StateLayer};

const IMAGE: &[u8] = include_bytes!("../../image/recurrent.ptx.br");
/// Threads of a block.
pub(super) const THREADS: u32 = 128;
/// The longest keys of each kernel of the delta rule, in pieces of 32.
pub(super) const KEY_PIECES: [usize; 4] = [1, 2, 4, 8];

/// The kernels of these operations.
#[derive(Debug)]
pub(crate) struct RecurrentKernels<D: Device> {
    /// For one channel of a thread, and for four.
    pub(super) short_conv: [D::Function; 2],
    /// For one column of a thread and for two, by [`KEY_PIECES`].
    pub(super) delta_net: [[D::Function; KEY_PIECES.len()]; 2],
}

impl<D: Device> RecurrentKernels<D> {
    pub(crate) fn load(device: &D) -> Result<Self, Error> {
        let image = Image::load(device, "recurrent", IMAGE)?;
        let delta_net =
            |cols| image.functions(KEY_PIECES, |pieces| format!("delta_net_{pieces}_{cols}"));
        Ok(Self {
            short_conv: image.functions([1, 4], |n| format!("short_conv_{n}"))?,
            delta_net: [delta_net(1)?, delta_net(2)?],
        })
    }
}

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
