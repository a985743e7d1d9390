//! The recurrent states of a layer on the device, in slots of equal size.
//!
//! A step reads the slot that a sequence continues from, and writes the states after some of its rows to
//! other slots; it never writes a slot that it reads. The host assigns the slots, in the words of each step.
//! The layout of a state in its slot belongs to the layer's kernel.

use crate::Error;
use crate::device::{Buffer, Gpu};

/// The shape of a layer's states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSpec {
    /// f32 elements per state.
    pub len: u32,
    /// Number of slots.
    pub n_slots: u32,
}

impl StateSpec {
    /// Bytes of a state.
    pub fn slot_bytes(&self) -> u64 {
        u64::from(self.len) * size_of::<f32>() as u64
    }

    /// Bytes of all slots on the device. Buffers are never empty.
    pub fn n_bytes(&self) -> u64 {
        self.slot_bytes().saturating_mul(u64::from(self.n_slots)).max(4)
    }
}

/// Indices in `batch` of a step's words about states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLists {
    /// `batch[seq_of_row_at + row]` is the index of the row's sequence.
    pub seq_of_row_at: u32,
    /// Three words per sequence: its first row, its number of rows, and the slot of its initial state or
    /// [`Self::NONE`].
    pub seqs_at: u32,
    /// `batch[writes_at + row]` is the slot for the state after the row, or [`Self::NONE`].
    pub writes_at: u32,
}

impl StateLists {
    /// No slot.
    pub const NONE: u32 = u32::MAX;
    /// Words per sequence.
    pub const SEQ_WORDS: u32 = 3;
}

/// The states of a layer.
#[derive(Debug, Clone)]
pub struct StateLayer {
    pub(crate) slots: Buffer, // [n_slots][len]
    pub(crate) spec: StateSpec,
}

impl StateLayer {
    /// Creates zeroed slots. Errors name them `what`.
    ///
    /// # Errors
    /// If they are larger than the device allows, or memory runs out.
    pub fn new(gpu: &Gpu, what: &str, spec: StateSpec) -> Result<Self, Error> {
        Ok(Self { slots: gpu.buffer(what, spec.n_bytes())?, spec })
    }

    /// Checks whether a device supports so many states, without allocating.
    ///
    /// # Errors
    /// If they exceed the largest binding.
    pub fn check(gpu: &Gpu, what: &str, spec: StateSpec) -> Result<(), Error> {
        gpu.check_binding(what, spec.n_bytes())
    }

    /// Bytes of a state.
    pub fn slot_bytes(&self) -> u64 {
        self.spec.slot_bytes()
    }

    /// Appends the state in a slot to `out`, through `room`, a readback buffer of [`Self::slot_bytes`].
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(
        &self,
        gpu: &Gpu,
        slot: u32,
        room: &Buffer,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let n_bytes = self.slot_bytes();
        if n_bytes == 0 {
            return Ok(());
        }
        let mut recorder = gpu.record();
        recorder.copy((&self.slots, u64::from(slot) * n_bytes), (room, 0), n_bytes);
        recorder.submit()?;
        let at = out.len();
        out.resize(at + n_bytes as usize, 0);
        gpu.read(room, &mut out[at..])
    }

    /// Writes the bytes that [`Self::read`] read to a slot.
    ///
    /// # Errors
    /// If the device fails.
    pub fn write(&self, gpu: &Gpu, slot: u32, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        gpu.write(&self.slots, u64::from(slot) * self.slot_bytes(), bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_slot_is_what_was_written_to_it_and_its_neighbours_stay() {
        let Some(gpu) = testing::gpu() else { return };
        let spec = StateSpec { len: 5, n_slots: 3 };
        let layer = StateLayer::new(&gpu, "states", spec).unwrap();
        let state: Vec<f32> = (0..5).map(|i| i as f32 - 1.5).collect();
        layer.write(&gpu, 1, bytemuck::cast_slice(&state)).unwrap();
        let zero = [0.0_f32; 5];
        let room = gpu.readback_buffer("a state", layer.slot_bytes()).unwrap();
        for (slot, expected) in [(0, &zero[..]), (1, &state), (2, &zero)] {
            let mut bytes = vec![7];
            layer.read(&gpu, slot, &room, &mut bytes).unwrap();
            assert_eq!(bytes[0], 7, "what was there stays");
            assert_eq!(bytemuck::pod_collect_to_vec::<u8, f32>(&bytes[1..]), expected);
        }
    }

    #[test]
    fn more_states_than_a_kernel_sees_are_refused() {
        let Some(gpu) = testing::gpu() else { return };
        let fits = StateSpec { len: 1 << 10, n_slots: 4 };
        assert_eq!((fits.slot_bytes(), fits.n_bytes()), (4096, 16384));
        assert_eq!(StateLayer::check(&gpu, "layer 3", fits), Ok(()));
        let large = StateSpec { len: u32::MAX, n_slots: u32::MAX };
        let error = StateLayer::check(&gpu, "layer 3", large).unwrap_err();
        assert!(matches!(&error, Error::Limit { what, .. } if what == "layer 3"), "{error}");
    }
}
