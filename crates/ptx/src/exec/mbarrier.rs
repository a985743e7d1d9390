//! Barriers in shared memory (`mbarrier`), and the bulk copies that complete on them.
//!
//! A barrier counts arrivals and bytes, and a phase ends when none of either is missing. An arriving thread publishes
//! what it knows of the others' clocks, and a thread that has waited for the phase learns it, as at a barrier of the
//! block. A bulk copy reads when it is issued and writes when a thread waits for its barrier, the latest moment that
//! PTX allows; until then its bytes count as not written. A warp's arrival publishes all of its lanes, so a lane that
//! arrives for others which it has not waited for is not found.

use std::collections::BTreeMap;

use crate::fault::{FaultKind, LaneFault};

use super::access::{Checked, Use, addresses};
use super::block::{Context, Wait, Warp};
use super::lanes::{LANES, Reg, lanes_of};
use super::memory::{Address, SHARED_BASE, Space};

/// An instruction on a barrier in shared memory.
#[derive(Debug)]
pub(crate) struct Mbarrier {
    pub(crate) kind: MbarrierKind,
    pub(crate) space: Space,
    pub(crate) address: Address,
}

#[derive(Debug)]
pub(crate) enum MbarrierKind {
    /// Makes one that so many arrivals end a phase of.
    Init(Reg),
    Invalidate,
    /// Expects more bytes.
    Expect(Reg),
    /// Expects more bytes, where there are some, then arrives: once where there is no count.
    Arrive {
        state: Reg,
        count: Option<Reg>,
        bytes: Option<Reg>,
    },
    /// Whether a phase has ended: that of a parity, or that of a state that an arrival gave.
    Test {
        to: Reg,
        phase: Reg,
        by_parity: bool,
        waits: bool,
    },
}

/// `cp.async.bulk` from global to shared memory.
#[derive(Debug)]
pub(crate) struct CopyBulk {
    pub(crate) to: Address,
    pub(crate) from: Address,
    pub(crate) bytes: Reg,
    pub(crate) barrier: Address,
}

/// The bytes of a barrier.
const BYTES: usize = 8;
/// Arrivals of a phase, and bytes that may be expected.
const MAX_COUNT: u64 = (1 << 20) - 1;

/// The barriers of a block that lie in its shared memory, by their offset, and the copies under way.
#[derive(Debug, Default)]
pub(crate) struct Phases {
    objects: BTreeMap<usize, Object>,
    copies: Vec<Copy>,
    /// A phase has ended, or may: threads that wait look again.
    pub(super) is_ready: bool,
}

#[derive(Debug)]
struct Object {
    count: u32,
    /// Arrivals and bytes that the phase misses.
    pending: u32,
    bytes: i64,
    /// Phases that have ended.
    phase: u64,
    /// The warp that made it, until it has made it visible to copies.
    hidden_by: Option<usize>,
    /// What the threads that arrived at this phase know of the others' clocks, and those of all phases before.
    knows: Vec<u32>,
    knew: Vec<u32>,
}

/// A bulk copy under way.
#[derive(Debug)]
struct Copy {
    /// The warp, the lane and the instruction that issued it.
    by: (usize, usize, usize),
    to: usize,
    data: Vec<u8>,
    barrier: usize,
    knows: Vec<u32>,
}

fn add(knows: &mut Vec<u32>, more: &[u32]) {
    knows.resize(knows.len().max(more.len()), 0);
    knows.iter_mut().zip(more).for_each(|(knows, more)| *knows = (*knows).max(*more));
}

impl Object {
    /// Begins the next phase if nothing is missing of this one.
    fn advance(&mut self) -> bool {
        let ends = self.pending == 0 && self.bytes == 0;
        if ends {
            self.phase += 1;
            self.pending = self.count;
            add(&mut self.knew, &std::mem::take(&mut self.knows));
        }
        ends
    }

    fn expect(&mut self, bytes: u64, lane: usize) -> Checked {
        if bytes > MAX_COUNT || self.bytes + bytes as i64 > MAX_COUNT as i64 {
            return operand(lane, format!("{bytes} more bytes for a barrier in shared memory"));
        }
        self.bytes += bytes as i64;
        Ok(())
    }
}

fn operand<T>(lane: usize, message: String) -> Checked<T> {
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

    fn object(&mut self, offset: usize, lane: usize) -> Checked<&mut Object> {
        let message = || format!("no barrier was made at offset {offset} of shared memory");
        let missing = || LaneFault::new(FaultKind::Uninitialised, lane, message());
        self.objects.get_mut(&offset).ok_or_else(missing)
    }

    /// Lets the copies of a barrier write.
    fn complete(&mut self, offset: usize, bytes: &mut [u8], written: &mut [bool]) {
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

impl Context<'_> {
    /// Runs an instruction on a barrier for the active lanes; those that continue are returned, the others wait.
    pub(super) fn mbarrier(
        &mut self,
        warp: &mut Warp,
        mbarrier: &Mbarrier,
        place: usize,
        active: u32,
    ) -> Checked<u32> {
        let at = self.shared_addresses(warp, mbarrier.address, mbarrier.space);
        let makes = matches!(mbarrier.kind, MbarrierKind::Init(_) | MbarrierKind::Invalidate);
        // Counting is no write: everything is ordered after the making.
        let how = Use { bytes: BYTES, writes: makes, reads: !makes, atomic: !makes };
        let mut done = active;
        for lane in lanes_of(active) {
            let offset = self.use_shared(warp, &at, 1 << lane, how)?[lane];
            let value = |reg: Reg| warp.registers.lane(reg, lane);
            match mbarrier.kind {
                MbarrierKind::Init(count) => self.make(warp.idx, lane, offset, value(count))?,
                MbarrierKind::Invalidate => {
                    self.phases.object(offset, lane)?;
                    self.phases.objects.remove(&offset);
                    self.shared.written[offset..offset + BYTES].fill(false);
                }
                MbarrierKind::Expect(bytes) => {
                    self.phases.object(offset, lane)?.expect(value(bytes), lane)?;
                }
                MbarrierKind::Arrive { state, count, bytes } => {
                    let count = count.map_or(1, value);
                    let bytes = bytes.map_or(0, value);
                    let object = self.phases.object(offset, lane)?;
                    object.expect(bytes, lane)?;
                    if count == 0 || count > u64::from(object.pending) {
                        let (of, left) = (object.count, object.pending);
                        let message =
                            format!("{count} arrivals at a barrier of {of} that misses {left}");
                        return operand(lane, message);
                    }
                    object.pending -= count as u32;
                    self.clocks.arrive(warp.idx, &mut object.knows);
                    let phase = object.phase;
                    let ends = object.advance();
                    self.phases.is_ready |= ends;
                    warp.registers.set_lane(state, lane, phase);
                }
                MbarrierKind::Test { to, phase, by_parity, waits } => {
                    let asked = value(phase);
                    let has_ended = |object: &Object| match by_parity {
                        true => object.phase & 1 != asked & 1,
                        false => object.phase != asked,
                    };
                    let mut ended = has_ended(self.phases.object(offset, lane)?);
                    if !ended {
                        self.phases.complete(
                            offset,
                            &mut self.shared.bytes,
                            &mut self.shared.written,
                        );
                        ended = has_ended(self.phases.object(offset, lane)?);
                    }
                    if ended {
                        self.clocks.leave(warp.idx, &self.phases.object(offset, lane)?.knew);
                    } else if waits {
                        done &= !(1 << lane);
                        continue;
                    }
                    warp.registers.set_lane(to, lane, u64::from(ended));
                }
            }
        }
        warp.put(place, active & !done, Wait::Phase);
        Ok(done)
    }

    fn make(&mut self, warp: usize, lane: usize, offset: usize, count: u64) -> Checked {
        if count == 0 || count > MAX_COUNT {
            return operand(lane, format!("a barrier in shared memory of {count} arrivals"));
        }
        let count = count as u32;
        let object = Object {
            count,
            pending: count,
            bytes: 0,
            phase: 0,
            hidden_by: Some(warp),
            knows: Vec::new(),
            knew: Vec::new(),
        };
        if self.phases.objects.insert(offset, object).is_some() {
            return operand(
                lane,
                format!("offset {offset} of shared memory has a barrier already"),
            );
        }
        Ok(())
    }

    /// Lets lanes that wait for phases look again, where one may have ended. Tells whether there is one.
    pub(super) fn release_phases(&mut self, warps: &mut [Warp]) -> bool {
        let any = std::mem::take(&mut self.phases.is_ready);
        if any {
            let splits = warps.iter_mut().flat_map(|w| &mut w.splits);
            let waiting = splits.filter(|s| s.wait == Wait::Phase);
            waiting.for_each(|split| split.wait = Wait::Nothing);
        }
        any
    }

    /// What the barrier that a lane waits at misses.
    pub(super) fn missing(&self, warp: &Warp, mbarrier: &Mbarrier, lane: usize) -> String {
        let at = self.shared_addresses(warp, mbarrier.address, mbarrier.space)[lane];
        let offset = at.wrapping_sub(SHARED_BASE) as usize;
        self.phases.objects.get(&offset).map_or_else(String::new, |object| {
            format!(
                "a phase that never ends of the barrier at offset {offset} of shared memory: {} of \
                 {} arrivals and {} bytes are missing",
                object.pending, object.count, object.bytes
            )
        })
    }

    /// Issues `cp.async.bulk`: reads now, writes when somebody waits for its barrier.
    pub(super) fn copy_bulk(&mut self, warp: &mut Warp, copy: &CopyBulk, active: u32) -> Checked {
        let [to, from, barrier] =
            [copy.to, copy.from, copy.barrier].map(|a| addresses(&warp.registers, a));
        for lane in lanes_of(active) {
            let bytes = warp.registers.lane(copy.bytes, lane) as usize;
            if bytes == 0 || !bytes.is_multiple_of(16) {
                return operand(lane, format!("a bulk copy of {bytes} bytes"));
            }
            if (to[lane] | from[lane]) % 16 != 0 {
                let message = format!(
                    "a bulk copy from {:#x} to {:#x}, which are not both multiples of 16",
                    from[lane], to[lane]
                );
                return Err(LaneFault::new(FaultKind::Misaligned, lane, message));
            }
            let (mask, read) =
                (1 << lane, Use { bytes, writes: false, reads: true, atomic: false });
            let write = Use { writes: true, reads: false, ..read };
            let offsets: [usize; LANES] = self.shared_offsets(&to, mask, write)?;
            self.check_shared(warp, None, &offsets, mask, write)?;
            let range = offsets[lane]..offsets[lane] + bytes;
            // What is under way cannot be read, and is no ordinary store.
            self.shared.written[range.clone()].fill(false);
            if let Some(unfenced) = self.shared.unfenced.get_mut(range) {
                unfenced.fill(0);
            }
            let (index, _, places) = self.global_run(&from, mask, read)?;
            self.check_global(warp, None, index, &places, mask, read)?;
            let data = self.memory.piece(index).1[places[lane]..places[lane] + bytes].to_vec();
            let signal = Use { bytes: BYTES, writes: false, reads: true, atomic: true };
            let barrier = self.use_shared(warp, &barrier, mask, signal)?[lane];
            if self.phases.object(barrier, lane)?.hidden_by.is_some() {
                let message = "a copy to a barrier that was not made visible to copies, by \
                               `fence.mbarrier_init` or `fence.proxy.async`";
                return Err(LaneFault::new(FaultKind::Race, lane, message));
            }
            let mut knows = Vec::new();
            self.clocks.arrive(warp.idx, &mut knows);
            let by = (warp.idx, lane, self.at);
            // Waiting for it allows it to write.
            self.phases.is_ready = true;
            self.phases.copies.push(Copy { by, to: offsets[lane], data, barrier, knows });
        }
        Ok(())
    }
}
