//! Recurrent states of a layer, in slots of equal size.
//!
//! A step reads the slot that a sequence continues from and writes the states after some of its rows to other slots. It
//! does not modify slots that it reads. The host assigns slots in the lists of each step. The layout of a state in its
//! slot is private to the layer's kernel.

use std::sync::Arc;

use crate::device::{Argument, Device};
use crate::{Buffer, Error};

/// The shape of a layer's states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSpec {
    /// Elements of a state, F32; 0 for a convolution with one tap.
    pub len: usize,
    /// Number of slots.
    pub n_slots: usize,
}

impl StateSpec {
    /// Elements from one slot to the next. Slots are aligned to 16 bytes.
    fn stride(&self) -> usize {
        self.len.next_multiple_of(4)
    }

    /// Bytes of a state as the host reads and writes it.
    pub fn slot_bytes(&self) -> usize {
        4 * self.len
    }

    /// Bytes of all slots on the device.
    pub fn n_bytes(&self) -> usize {
        self.stride().saturating_mul(self.n_slots).saturating_mul(4)
    }
}

/// The recurrent states of a layer.
#[derive(Debug)]
pub struct StateLayer<D: Device> {
    spec: StateSpec,
    slots: Buffer<D>, // [n_slots, stride]
}

impl<D: Device> StateLayer<D> {
    /// Allocates slots with undefined content. Messages name them `what`.
    ///
    /// # Errors
    /// [`Error::States`] if a number does not fit in 31 bits; [`Error::OutOfMemory`].
    pub fn new(device: &Arc<D>, what: &str, spec: StateSpec) -> Result<Self, Error> {
        let most = i32::MAX as usize - 3;
        if spec.len > most || spec.n_slots > most {
            let message = format!("{} slots of {} elements", spec.n_slots, spec.len);
            return Err(Error::States { what: what.to_owned(), message });
        }
        Ok(Self { spec, slots: Buffer::new(device, what, spec.n_bytes())? })
    }

    /// Shape of the states.
    pub fn spec(&self) -> &StateSpec {
        &self.spec
    }

    /// Bytes on the device.
    pub fn n_bytes(&self) -> usize {
        self.slots.n_bytes()
    }

    /// Waits for the stream and reads the state of a slot, of [`StateSpec::slot_bytes`] bytes.
    ///
    /// # Errors
    /// Any error of the driver, including that of earlier work.
    ///
    /// # Panics
    /// If the slot does not exist, or `out` has another length.
    pub fn read(&self, stream: &D::Stream, slot: usize, out: &mut [u8]) -> Result<(), Error> {
        let at = self.slot_at(slot, out.len());
        self.slots.read(stream, at, out)
    }

    /// Queues a copy of the output of [`read`](Self::read) to a slot.
    ///
    /// # Errors
    /// Any error of the driver.
    ///
    /// # Panics
    /// If the slot does not exist, or `state` has another length.
    pub fn write(&self, stream: &D::Stream, slot: usize, state: &[u8]) -> Result<(), Error> {
        let at = self.slot_at(slot, state.len());
        self.slots.write(stream, at, state)
    }

    /// Byte offset of a slot.
    fn slot_at(&self, slot: usize, n_bytes: usize) -> usize {
        assert!(slot < self.spec.n_slots, "slot {slot} of {}", self.spec.n_slots);
        assert_eq!(n_bytes, self.spec.slot_bytes(), "bytes of a state");
        4 * slot * self.spec.stride()
    }

    /// The memory of all slots.
    pub(crate) fn buffer(&self) -> &Buffer<D> {
        &self.slots
    }

    /// Address, slot stride in elements, and number of slots as kernel arguments.
    pub(crate) fn arguments(&self) -> [Argument; 3] {
        [
            Argument::Address(self.slots.address()),
            Argument::I32(self.spec.stride() as i32),
            Argument::I32(self.spec.n_slots as i32),
        ]
    }
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use super::*;
    use crate::testing::bench;

    #[cfg_attr(test, test)]
    fn a_slot_is_what_was_written_to_it_and_its_neighbours_stay() {
        let (device, stream) = bench();
        let spec = StateSpec { len: 5, n_slots: 3 };
        let layer = StateLayer::new(&device, "states", spec).unwrap();
        assert_eq!((spec.slot_bytes(), layer.n_bytes()), (20, 96));
        let states = [0u8, 1, 2].map(|slot| [slot + 7; 20]);
        for slot in [2, 0, 1] {
            layer.write(&stream, slot, &states[slot]).unwrap();
        }
        for (slot, state) in states.iter().enumerate() {
            let mut found = [0; 20];
            layer.read(&stream, slot, &mut found).unwrap();
            assert_eq!(&found, state);
        }
        // A layer with empty states.
        let layer = StateLayer::new(&device, "states", StateSpec { len: 0, n_slots: 2 }).unwrap();
        layer.write(&stream, 1, &[]).unwrap();
        layer.read(&stream, 1, &mut []).unwrap();
    }

    #[cfg_attr(test, test)]
    fn what_has_no_room_is_named() {
        let (device, _) = bench();
        for spec in [StateSpec { len: 1 << 31, n_slots: 1 }, StateSpec { len: 1, n_slots: 1 << 31 }]
        {
            let error = StateLayer::new(&device, "layer 3", spec).unwrap_err().to_string();
            assert!(error.starts_with("layer 3: "), "{error}");
        }
    }

    #[cfg_attr(test, test)]
    #[cfg_attr(test, should_panic(expected = "slot 3 of 3"))]
    fn slots_that_do_not_exist_are_not_written() {
        let (device, stream) = bench();
        let spec = StateSpec { len: 1, n_slots: 3 };
        let layer = StateLayer::new(&device, "states", spec).unwrap();
        layer.write(&stream, 3, &[0; 4]).unwrap();
    }

    crate::testing::tests![
        a_slot_is_what_was_written_to_it_and_its_neighbours_stay,
        what_has_no_room_is_named,
        slots_that_do_not_exist_are_not_written => "slot 3 of 3",
    ];
}
