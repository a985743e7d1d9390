//! The state of the barriers in a block's shared memory: arrivals, bytes and phases, and the bulk copies under way.

use std::collections::BTreeMap;

use crate::fault::{Checked, FaultKind, LaneFault};

/// Arrivals of a phase, and bytes that may be expected.
pub(super) const MAX_COUNT: u64 = (1 << 20) - 1;

/// The barriers of a block that lie in its shared memory, by their offset, and the copies under way.
#[derive(Debug, Default)]
pub(super) struct Phases {
    pub(super) objects: BTreeMap<usize, Object>,
    pub(super) copies: Vec<Copy>,
    /// A phase has ended, or may: threads that wait look again.
    pub(super) is_ready: bool,
}

#[derive(Debug)]
pub(super) struct Object {
    pub(super) count: u32,
    /// Arrivals and bytes that the phase misses.
    pub(super) pending: u32,
    pub(super) bytes: i64,
    /// Phases that have ended.
    pub(super) phase: u64,
    /// The warp that made it, until it has made it visible to copies.
    pub(super) hidden_by: Option<usize>,
    /// What the threads that arrived at this phase know of the others' clocks, and those of all phases before.
    pub(super) knows: Vec<u32>,
    pub(super) knew: Vec<u32>,
}

/// A bulk copy under way.
#[derive(Debug)]
pub(super) struct Copy {
    /// The warp, the lane and the instruction that issued it.
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
    /// Begins the next phase if nothing is missing of this one.
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

    /// A warp makes the barriers that it has made visible to copies.
    pub(super) fn publish(&mut self, warp: usize) {
        let hidden = self.objects.values_mut().filter(|o| o.hidden_by == Some(warp));
        hidden.for_each(|object| object.hidden_by = None);
    }

    pub(super) fn object(&mut self, offset: usize, lane: usize) -> Checked<&mut Object> {
        let message = || format!("no barrier was made at offset {offset} of shared memory");
        let missing = || LaneFault::new(FaultKind::Uninitialised, lane, message());
        self.objects.get_mut(&offset).ok_or_else(missing)
    }

    /// Lets the copies of a barrier write.
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

    /// That nothing is under way when the block ends.
    pub(super) fn finish(&self) -> Result<(), (usize, usize, LaneFault)> {
        let Some(Copy { by: (warp, lane, at), .. }) = self.copies.first() else { return Ok(()) };
        let message = "the block ends before anybody has waited for this copy";
        Err((*warp, *at, LaneFault::new(FaultKind::Uninitialised, *lane, message)))
    }
}
