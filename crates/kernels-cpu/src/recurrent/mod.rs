//! Recurrent layers, which carry a state along a sequence: short convolutions and the gated delta rule.
//!
//! States are stored in slots. A step reads the slot that a sequence continues from, and writes the
//! states after some of its rows to other slots; it never writes a slot that it reads. The rows of a
//! sequence are computed one after the other, so the bits do not depend on how it is cut into steps.

mod conv;
mod delta;

use std::marker::PhantomData;
use std::ops::Range;

pub use conv::{ShortConv, short_conv};
pub use delta::{DeltaInputs, DeltaNet, DeltaScratch, delta_net};

/// The slot of a row whose state is not written.
pub const NO_STATE: u32 = u32::MAX;

/// The rows of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSeq {
    /// The sequence's rows in the batch.
    pub rows: Range<usize>,
    /// The slot of the state before the first row; `None` at the start of a sequence, where the state is
    /// zero.
    pub from: Option<u32>,
}

/// The slots that a step reads and writes.
#[derive(Clone, Debug, Default)]
pub struct StateSteps {
    seqs: Vec<StateSeq>,
    writes: Vec<u32>, // [n_rows]
    n_slots: usize,
}

impl StateSteps {
    /// An empty list with room for `max_rows` rows.
    pub fn with_capacity(max_rows: usize) -> Self {
        Self {
            seqs: Vec::with_capacity(max_rows),
            writes: Vec::with_capacity(max_rows),
            n_slots: 0,
        }
    }

    /// Sets the sequences of a batch, and per row the slot for the state after it, or [`NO_STATE`].
    ///
    /// # Panics
    /// If rows are outside the batch or in two sequences, or a slot does not exist, is written twice, or is
    /// both read and written.
    pub fn fill(
        &mut self,
        seqs: impl IntoIterator<Item = StateSeq>,
        writes: impl IntoIterator<Item = u32>,
        n_slots: usize,
    ) {
        self.seqs.clear();
        self.seqs.extend(seqs);
        self.writes.clear();
        self.writes.extend(writes);
        self.n_slots = n_slots;
        let Self { seqs, writes, .. } = self;
        let mut end = 0;
        for seq in &*seqs {
            assert!(seq.rows.start >= end && seq.rows.end <= writes.len(), "rows {:?}", seq.rows);
            assert!(seq.from.is_none_or(|slot| (slot as usize) < n_slots), "slot {:?}", seq.from);
            end = seq.rows.end;
        }
        let written = |from: usize| writes[from..].iter().filter(|&&slot| slot != NO_STATE);
        for (i, &slot) in writes.iter().enumerate().filter(|&(_, &slot)| slot != NO_STATE) {
            assert!((slot as usize) < n_slots, "slot {slot} of {n_slots}");
            assert!(written(i + 1).all(|&other| other != slot), "slot {slot} is written twice");
            assert!(
                seqs.iter().all(|seq| seq.from != Some(slot)),
                "slot {slot} is read and written"
            );
        }
    }

    /// The sequence of a row.
    fn seq(&self, row: usize) -> Option<&StateSeq> {
        // Sequences are in order of their rows.
        let at = self.seqs.partition_point(|seq| seq.rows.end <= row);
        self.seqs.get(at).filter(|seq| seq.rows.contains(&row))
    }

    /// The slot for the state after a row.
    fn write(&self, row: usize) -> Option<usize> {
        Some(self.writes[row]).filter(|&slot| slot != NO_STATE).map(|slot| slot as usize)
    }
}

/// One layer's part of all slots.
#[derive(Debug)]
pub struct LayerStates<'a> {
    /// Start of the layer's part in the first slot.
    ptr: *mut f32,
    n_slots: usize,
    slot_len: usize,
    len: usize,
    _data: PhantomData<&'a mut [f32]>,
}

// SAFETY: it is an exclusive borrow of f32 elements, of which `read` and `write` give out parts
// under the conditions of their callers.
unsafe impl Sync for LayerStates<'_> {}

impl<'a> LayerStates<'a> {
    /// The `len` elements from `at` on in each slot of `slot_len` elements.
    ///
    /// # Panics
    /// If the slots are not whole, or the part does not lie in a slot.
    pub fn new(slots: &'a mut [f32], slot_len: usize, at: usize, len: usize) -> Self {
        assert!(slot_len > 0 && slots.len().is_multiple_of(slot_len), "slots of {slot_len}");
        assert!(at.checked_add(len).is_some_and(|end| end <= slot_len), "{at} + {len}");
        let n_slots = slots.len() / slot_len;
        // `wrapping_add`: an empty part may begin at the end of the slots.
        let ptr = slots.as_mut_ptr().wrapping_add(at);
        Self { ptr, n_slots, slot_len, len, _data: PhantomData }
    }

    fn check(&self, steps: &StateSteps, len: usize) {
        assert!(steps.n_slots <= self.n_slots, "{} slots of {}", steps.n_slots, self.n_slots);
        assert_eq!(len, self.len, "elements of the layer's state");
    }

    /// The layer's part of a slot.
    ///
    /// # Safety
    /// The slot must not be written while the slice lives.
    unsafe fn read(&self, slot: u32) -> &[f32] {
        debug_assert!((slot as usize) < self.n_slots);
        // SAFETY: the slot exists, as `StateSteps` has checked; the caller's promise.
        unsafe { std::slice::from_raw_parts(self.ptr.add(slot as usize * self.slot_len), self.len) }
    }

    /// A range of the layer's part of a slot.
    ///
    /// # Safety
    /// The range must not be accessed in another way while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "disjoint ranges are written by several threads")]
    unsafe fn write(&self, slot: usize, range: Range<usize>) -> &mut [f32] {
        assert!(slot < self.n_slots && range.end <= self.len);
        // SAFETY: the range exists; the caller's promise.
        unsafe {
            let start = self.ptr.add(slot * self.slot_len + range.start);
            std::slice::from_raw_parts_mut(start, range.len())
        }
    }
}

#[cfg(test)]
mod tests;
