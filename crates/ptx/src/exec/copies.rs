//! `cp.async`: copies that write when they are waited for.
//!
//! Until then their bytes of shared memory count as not written, and to write there, or read, is a
//! race. So a wait that is missing, or for too few groups, is found.

use crate::fault::{FaultKind, LaneFault};

use super::access::{Checked, Use, addresses, check_alignment};
use super::block::{Context, Pending, Warp};
use super::lanes::{LANES, lanes_of};
use super::memory::CopyAsync;

impl Context<'_> {
    /// Issues `cp.async`: reads now, writes when it is waited for.
    pub(super) fn copy_async(&mut self, warp: &mut Warp, copy: &CopyAsync, active: u32) -> Checked {
        let to = addresses(&warp.registers, copy.to);
        let from = addresses(&warp.registers, copy.from);
        let read = Use { bytes: copy.bytes, writes: false, reads: true, atomic: false };
        check_alignment(&from, active, copy.bytes, read)?;
        let offsets = self.write_shared(warp, &to, active, copy.bytes)?;
        for lane in lanes_of(active) {
            // What is under way cannot be read.
            self.shared.written[offsets[lane]..offsets[lane] + copy.bytes].fill(false);
            let is_ignored = copy
                .ignore
                .is_some_and(|(p, negated)| (warp.registers.lane(p, lane) == 1) != negated);
            let size = copy.size.map_or(copy.bytes as u64, |size| warp.registers.lane(size, lane));
            if size > copy.bytes as u64 {
                let message = format!("{size} bytes to read of a copy of {}", copy.bytes);
                return Err(LaneFault::new(FaultKind::Operand, lane, message));
            }
            let size = if is_ignored { 0 } else { size as usize };
            let mut data = [0; 16];
            if size > 0 {
                let how = Use { bytes: size, ..read };
                let (index, mask, places) = self.global_run(&from, 1 << lane, how)?;
                self.check_global(warp, None, index, &places, mask, how)?;
                let place = places[lane];
                data[..size].copy_from_slice(&self.memory.piece(index).1[place..place + size]);
            }
            let group = warp.groups[lane];
            let offset = offsets[lane];
            warp.copies[lane].push(Pending { group, offset, bytes: copy.bytes, data });
        }
        Ok(())
    }

    /// Completes the copies of the active lanes but those of the last `left` groups; all of them
    /// where that is none.
    pub(super) fn wait_copies(
        &mut self,
        warp: &mut Warp,
        left: Option<u32>,
        active: u32,
    ) -> Checked {
        for lane in lanes_of(active) {
            let end = left.map_or(u32::MAX, |left| warp.groups[lane].saturating_sub(left));
            let n = warp.copies[lane].iter().take_while(|copy| copy.group < end).count();
            for i in 0..n {
                let Pending { offset, bytes, data, .. } = warp.copies[lane][i];
                let how = Use { bytes, writes: true, reads: false, atomic: false };
                let mut offsets = [0; LANES];
                offsets[lane] = offset;
                self.check_shared(warp, None, &offsets, 1 << lane, how)?;
                self.shared.bytes[offset..offset + bytes].copy_from_slice(&data[..bytes]);
            }
            warp.copies[lane].drain(..n);
        }
        Ok(())
    }
}
