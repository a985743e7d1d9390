//! State of the barriers in a block's shared memory: arrivals, bytes and phases, and the bulk copies in flight.

use std::collections::BTreeMap;

use crate::fault::{Checked, FaultKind, LaneFault};

/// The maximum number of arrivals of a phase, and of expected bytes.
pub(super) const MAX_COUNT: u64 = (1 << 20) - 1;

/// The barriers in a block's shared memory by offset, and the copies in flight.
#[derive(Debug, Default)]
pub(super) struct Phases {
    pub(super) objects: BTreeMap<usize, Object>,
    pub(super) copies: Vec<Copy>,
    /// Whether a phase may have ended, so that waiting threads must check again.
    pub(super) is_ready: bool,
}

#[derive(Debug)]
pub(super) struct Object {
    pub(super) count: u32,
    /// Pending arrivals and bytes of the phase.
    pub(super) pending: u32,
    pub(super) bytes: i64,
    /// Number of completed phases.
    pub(super) phase: u64,
    /// The warp that initialized it, until a fence makes it visible to copies.
    pub(super) hidden_by: Option<usize>,
    /// The merged vector clocks of the threads that arrived in this phase, and in all previous ones.
    pub(super) knows: Vec<u32>,
    pub(super) knew: Vec<u32>,
}

/// A bulk copy in flight.
#[derive(Debug)]
pub(super) struct Copy {
    /// The warp, lane and instruction that issued it.
    pub(super) by: (usize, usize, usize),
    pub(super) to: usize,
    pub(super) data: Vec<u8>,
    pub(super) barrier: usize,
    pub(super) knows: Vec<u32>,
}

fn add(knows: &mut Vec<u32>, more: &[u32]) {
    knows.resize(knows.len().max(more.len()), 0);
    knows.iter_mut().zip(more).for_each(|(knows, more)| *knows = (*knows).max(*more));
}

impl Object {
    /// Begins the next phase if nothing is pending.
    pub(super) fn advance(&mut self) -> bool {
        let ends = self.pending == 0 && self.bytes == 0;
        if ends {
            self.phase += 1;
            self.pending = self.count;
            add(&mut self.knew, &std::mem::take(&mut self.knows));
        }
        ends
    }

    pub(super) fn expect(&mut self, bytes: u64, lane: usize) -> Checked {
        if bytes > MAX_COUNT || self.bytes + bytes as i64 > MAX_COUNT as i64 {
            return operand(lane, format!("{bytes} more bytes for a barrier in shared memory"));
        }
        self.bytes += bytes as i64;
        Ok(())
    }
}

pub(super) fn operand<T>(lane: usize, message: String) -> Checked<T> {
    Err(LaneFault::new(FaultKind::Operand, lane, message))
}

impl Phases {
    pub(super) fn start(&mut self) {
        *self = Self::default();
    }

    /// Makes the barriers that a warp initialized visible to copies.
    pub(super) fn publish(&mut self, warp: usize) {
        let hidden = self.objects.values_mut().filter(|o| o.hidden_by == Some(warp));
        hidden.for_each(|object| object.hidden_by = None);
    }

    pub(super) fn object(&mut self, offset: usize, lane: usize) -> Checked<&mut Object> {
        let message = || format!("no barrier was made at offset {offset} of shared memory");
        let missing = || LaneFault::new(FaultKind::Uninitialised, lane, message());
        self.objects.get_mut(&offset).ok_or_else(missing)
    }

    /// Completes the copies of a barrier.
    pub(super) fn complete(&mut self, offset: usize, bytes: &mut [u8], written: &mut [bool]) {
        let Some(object) = self.objects.get_mut(&offset) else { return };
        self.copies.retain(|copy| {
            if copy.barrier != offset {
                return true;
            }
            let to = copy.to..copy.to + copy.data.len();
            bytes[to.clone()].copy_from_slice(&copy.data);
            written[to].fill(true);
            object.bytes -= copy.data.len() as i64;
            add(&mut object.knows, &copy.knows);
            false
        });
        self.is_ready |= object.advance();
    }

    /// Checks that no copy is in flight when the block ends.
    pub(super) fn finish(&self) -> Result<(), (usize, usize, LaneFault)> {
        let Some(Copy { by: (warp, lane, at), .. }) = self.copies.first() else { return Ok(()) };
        let message = "the block ends before anybody has waited for this copy";
        Err((*warp, *at, LaneFault::new(FaultKind::Uninitialised, *lane, message)))
    }
}
