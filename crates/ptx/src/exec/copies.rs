//! `cp.async`: copies that write when they are waited for.
//!
//! Until then their bytes of shared memory count as unwritten, and an access to them is a race. This detects missing
//! waits and waits for too few groups.

use super::access::{Use, addresses, check_alignment};
use super::state::{Context, Pending, Warp};
use crate::fault::{Checked, FaultKind, LaneFault};
use crate::program::access::CopyAsync;
use crate::program::lanes::{LANES, lanes_of};

impl Context<'_> {
    /// Issues `cp.async`: reads now, writes when it is waited for.
    pub(super) fn copy_async(&mut self, warp: &mut Warp, copy: &CopyAsync, active: u32) -> Checked {
        let to = addresses(&warp.registers, copy.to);
        let from = addresses(&warp.registers, copy.from);
        let read = Use { bytes: copy.bytes, writes: false, reads: true, atomic: false };
        check_alignment(&from, active, copy.bytes, read)?;
        let offsets = self.write_shared(warp, &to, active, copy.bytes)?;
        let mut sizes = [0; LANES];
        for lane in lanes_of(active) {
            // Bytes of copies in flight cannot be read.
            self.shared.written[offsets[lane]..offsets[lane] + copy.bytes].fill(false);
            let is_ignored = copy
                .ignore
                .is_some_and(|(p, negated)| (warp.registers.lane(p, lane) == 1) != negated);
            let size = copy.size.map_or(copy.bytes as u64, |size| warp.registers.lane(size, lane));
            if size > copy.bytes as u64 {
                let message = format!("{size} bytes to read of a copy of {}", copy.bytes);
                return Err(LaneFault::new(FaultKind::Operand, lane, message));
            }
            sizes[lane] = if is_ignored { 0 } else { size as usize };
        }
        let mut data = [[0; 16]; LANES];
        let mut rest = lanes_of(active).filter(|&l| sizes[l] > 0).fold(0u32, |m, l| m | 1 << l);
        while rest != 0 {
            // Lanes that read equally many bytes of one allocation are processed together.
            let size = sizes[rest.trailing_zeros() as usize];
            let alike = lanes_of(rest).filter(|&l| sizes[l] == size).fold(0u32, |m, l| m | 1 << l);
            let how = Use { bytes: size, ..read };
            let (index, mask, places) = self.global_run(&from, alike, how)?;
            self.check_global(warp, None, index, &places, mask, how)?;
            let piece = self.memory.piece(index).1;
            for lane in lanes_of(mask) {
                data[lane][..size].copy_from_slice(&piece[places[lane]..places[lane] + size]);
            }
            rest &= !mask;
        }
        let (bytes, groups) = (copy.bytes, warp.groups);
        warp.copies.push(Pending { mask: active, groups, offsets, bytes, data });
        Ok(())
    }

    /// Completes the copies of the active lanes except the last `left` groups; all copies if that is none.
    pub(super) fn wait_copies(
        &mut self,
        warp: &mut Warp,
        left: Option<u32>,
        active: u32,
    ) -> Checked {
        if warp.copies.is_empty() {
            return Ok(());
        }
        let ends = warp.groups.map(|group| left.map_or(u32::MAX, |l| group.saturating_sub(l)));
        let mut copies = std::mem::take(&mut warp.copies);
        for Pending { mask, groups, offsets, bytes, data } in &mut copies {
            let done = lanes_of(*mask & active).filter(|&lane| groups[lane] < ends[lane]);
            let done = done.fold(0u32, |done, lane| done | 1 << lane);
            if done == 0 {
                continue;
            }
            let how = Use { bytes: *bytes, writes: true, reads: false, atomic: false };
            self.check_shared(warp, None, offsets, done, how)?;
            for lane in lanes_of(done) {
                let to = &mut self.shared.bytes[offsets[lane]..offsets[lane] + *bytes];
                to.copy_from_slice(&data[lane][..*bytes]);
            }
            *mask &= !done;
        }
        copies.retain(|copy| copy.mask != 0);
        warp.copies = copies;
        Ok(())
    }
}
