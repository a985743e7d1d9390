//! Execution of barriers in shared memory (`mbarrier`), and of the bulk copies that complete on them.
//!
//! A barrier counts arrivals and bytes, and a phase ends when neither is pending. An arriving thread publishes its
//! vector clock, and a thread that has waited for the phase receives it, as at a barrier of the block. A bulk copy
//! reads when it is issued and writes when a thread waits for its barrier, the latest moment that PTX allows; until
//! then its bytes count as unwritten. A warp's arrival publishes all of its lanes, so a lane that arrives for others
//! without waiting for them is not detected.

use super::access::{Use, addresses};
use super::phases::{Copy, MAX_COUNT, Object, operand};
use super::state::{Context, Wait, Warp};
use crate::fault::{Checked, FaultKind, LaneFault};
use crate::program::access::SHARED_BASE;
use crate::program::lanes::{LANES, Reg, lanes_of};
use crate::program::mbarrier::{CopyBulk, Mbarrier, MbarrierKind};

/// Size of a barrier.
const BYTES: usize = 8;
impl Context<'_> {
    /// Runs an instruction on a barrier for the active lanes. Returns those that continue; the others wait.
    pub(super) fn mbarrier(
        &mut self,
        warp: &mut Warp,
        mbarrier: &Mbarrier,
        place: usize,
        active: u32,
    ) -> Checked<u32> {
        let at = self.shared_addresses(warp, mbarrier.address, mbarrier.space);
        let makes = matches!(mbarrier.kind, MbarrierKind::Init(_) | MbarrierKind::Invalidate);
        // Counting is not a write: everything is ordered after the initialization.
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

    /// Wakes lanes that wait for a phase that may have ended. Returns whether there may be any.
    pub(super) fn release_phases(&mut self, warps: &mut [Warp]) -> bool {
        let any = std::mem::take(&mut self.phases.is_ready);
        if any {
            let splits = warps.iter_mut().flat_map(|w| &mut w.splits);
            let waiting = splits.filter(|s| s.wait == Wait::Phase);
            waiting.for_each(|split| split.wait = Wait::Nothing);
        }
        any
    }

    /// Describes what the barrier that a lane waits at is missing.
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

    /// Issues `cp.async.bulk`, which reads now and writes when a thread waits for its barrier.
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
            // Bytes of copies in flight cannot be read, and are no ordinary stores.
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
            // Waiting for the barrier lets the copy write.
            self.phases.is_ready = true;
            self.phases.copies.push(Copy { by, to: offsets[lane], data, barrier, knows });
        }
        Ok(())
    }
}
