//! Loads, stores, atomics and asynchronous copies of a warp, with their checks.

use super::races::{Actor, Clocks, Granularity, ThreadId};
use super::state::{Context, Warp, check_waited};
use super::transfer::{get, load, put, store};
use crate::fault::{Checked, FaultKind, LaneFault};
use crate::program::access::{
    Access, Address, Atomic, LOCAL_BASE, LOCAL_WINDOW, SHARED_BASE, SHARED_WINDOW, Space, is_local,
    is_shared,
};
use crate::program::lanes::{File, LANES, Registers, lanes_of};
use crate::program::wide::wide;

/// The addresses of all lanes. 32-bit addresses wrap at 32 bits.
#[inline(always)]
fn addresses_of(registers: &Registers, address: Address) -> [u64; LANES] {
    let offset = address.offset;
    match address.base {
        None => [offset as u64; LANES],
        Some(base) if base.file == File::W64 => {
            registers.w64[base.idx as usize].map(|x| x.wrapping_add_signed(offset))
        }
        Some(base) => registers.word(base).map(|x| u64::from(x.wrapping_add(offset as u32))),
    }
}

wide!(addresses_of in pub(super) fn addresses(registers: &Registers, address: Address) -> [u64; LANES]);

/// The lowest and highest address of the active lanes, and the union of all address bits.
#[inline(always)]
fn range_of(at: &[u64; LANES], active: u32) -> [u64; 3] {
    let mut settled = *at;
    if active != u32::MAX {
        let first = at[active.trailing_zeros() as usize & 31];
        for (lane, at) in settled.iter_mut().enumerate() {
            *at = if active >> lane & 1 == 1 { *at } else { first };
        }
    }
    let [mut least, mut most, mut bits] = [settled[0]; 3];
    for at in settled {
        least = least.min(at);
        most = most.max(at);
        bits |= at;
    }
    [least, most, bits]
}

wide!(range_of in fn range(at: &[u64; LANES], active: u32) -> [u64; 3]);

#[inline(always)]
fn less_of(at: &[u64; LANES], start: u64) -> [usize; LANES] {
    at.map(|at| at.wrapping_sub(start) as usize)
}

wide!(less_of in fn less(at: &[u64; LANES], start: u64) -> [usize; LANES]);

/// The properties of an access that checks depend on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    pub(super) bytes: usize,
    pub(super) writes: bool,
    pub(super) reads: bool,
    pub(super) atomic: bool,
}

impl Use {
    fn what(self) -> &'static str {
        match (self.writes, self.reads) {
            (true, true) => "an atomic",
            (true, false) => "a write",
            _ => "a read",
        }
    }

    fn actor<'a>(self, clocks: &'a Clocks, fenced: &'a [bool], warp: usize) -> Actor<'a> {
        Actor { clocks, warp, writes: self.writes, atomic: self.atomic, fenced }
    }
}

impl Context<'_> {
    /// Runs a load or a store for the active lanes.
    pub(super) fn access(&mut self, warp: &mut Warp, access: &Access, active: u32) -> Checked {
        let mut at = addresses(&warp.registers, access.address);
        if access.space != Space::Generic {
            return self.access_in(warp, access, access.space, &at, active);
        }
        for (mask, space, window) in generic_spaces(&at, active) {
            if mask == 0 {
                continue;
            }
            for lane in lanes_of(mask) {
                at[lane] -= window;
            }
            self.access_in(warp, access, space, &at, mask)?;
        }
        Ok(())
    }

    fn access_in(
        &mut self,
        warp: &mut Warp,
        access: &Access,
        space: Space,
        at: &[u64; LANES],
        active: u32,
    ) -> Checked {
        let bytes = access.width * access.regs.len();
        let how =
            Use { bytes, writes: access.is_store, reads: !access.is_store, atomic: access.strong };
        let [least, most, bits] = range(at, active);
        if bits & (bytes as u64 - 1) != 0 {
            check_alignment(at, active, bytes, how)?;
        }
        // The common case: all lanes are inside the allocation that the instruction used last.
        let is_inside = |start: u64, len: usize| {
            let fits = most.wrapping_sub(start).saturating_add(bytes as u64) <= len as u64;
            least >= start && most >= start && fits
        };
        match space {
            Space::Global | Space::Generic => {
                let hint = self.hints[self.at] as usize;
                if let Some((start, _)) = self.memory.extent(hint).filter(|e| is_inside(e.0, e.1)) {
                    let offsets = less(at, start);
                    if self.checks.global_races || self.counter.is_some() || warp.early != 0 {
                        self.check_global(warp, Some(access), hint, &offsets, active, how)?;
                    }
                    if access.is_store {
                        self.memory.note_write(hint);
                    }
                    let (_, piece) = self.memory.piece(hint);
                    transfer(&mut warp.registers, access, piece, &offsets, active);
                    return Ok(());
                }
                let mut rest = active;
                while rest != 0 {
                    let (index, mask, offsets) = self.global_run(at, rest, how)?;
                    self.check_global(warp, Some(access), index, &offsets, mask, how)?;
                    if access.is_store {
                        self.memory.note_write(index);
                    }
                    let (_, piece) = self.memory.piece(index);
                    transfer(&mut warp.registers, access, piece, &offsets, mask);
                    rest &= !mask;
                }
            }
            Space::Shared => {
                let offsets = if is_inside(SHARED_BASE, self.shared.bytes.len()) {
                    less(at, SHARED_BASE)
                } else {
                    self.shared_offsets(at, active, how)?
                };
                self.check_shared(warp, Some(access), &offsets, active, how)?;
                let bytes = &mut self.shared.bytes;
                transfer(&mut warp.registers, access, bytes, &offsets, active);
            }
            Space::Local => {
                let size = self.program.local_bytes;
                let offsets = window(at, active, LOCAL_BASE, size, how, "the thread's memory")?;
                let offsets = std::array::from_fn(|lane| (lane * size).wrapping_add(offsets[lane]));
                transfer(&mut warp.registers, access, &mut warp.local, &offsets, active);
            }
            Space::Param => {
                let size = self.params.len();
                let offsets = if is_inside(0, size) {
                    less(at, 0)
                } else {
                    window(at, active, 0, size, how, "the parameters")?
                };
                load(&mut warp.registers, access, self.params, &offsets, active);
            }
        }
        Ok(())
    }

    /// The allocation of the first lane, the lanes that use the same one, and their offsets.
    pub(super) fn global_run(
        &mut self,
        at: &[u64; LANES],
        active: u32,
        how: Use,
    ) -> Checked<(usize, u32, [usize; LANES])> {
        let first = active.trailing_zeros() as usize;
        let hint = self.hints[self.at] as usize;
        let covers = |extent: Option<(u64, usize)>, address: u64| {
            extent.filter(|&(start, len)| {
                let offset = address.wrapping_sub(start);
                offset < len as u64 && len as u64 - offset >= how.bytes as u64
            })
        };
        let mut index = hint;
        let mut extent = covers(self.memory.extent(hint), at[first]);
        if extent.is_none() {
            let found = self.memory.index(at[first]);
            index = found.unwrap_or(usize::MAX);
            extent = covers(found.and_then(|i| self.memory.extent(i)), at[first]);
            self.hints[self.at] = index as u32;
        }
        let Some((start, len)) = extent else {
            return Err(self.memory.fault(first, how.what(), at[first], how.bytes));
        };
        let last = (len - how.bytes) as u64;
        let mut inside = 0;
        for (lane, at) in at.iter().enumerate() {
            inside |= u32::from(at.wrapping_sub(start) <= last) << lane;
        }
        let offsets = at.map(|at| at.wrapping_sub(start) as usize);
        Ok((index, active & inside, offsets))
    }

    /// Checks and records the accesses of `mask` to an allocation.
    pub(super) fn check_global(
        &mut self,
        warp: &Warp,
        access: Option<&Access>,
        index: usize,
        offsets: &[usize; LANES],
        mask: u32,
        how: Use,
    ) -> Checked {
        if warp.early & mask != 0 && (how.writes || self.memory.is_written(index)) {
            let what = format!("{} of memory that kernels write", how.what());
            check_waited(warp.early & mask, &what)?;
        }
        if let Some(counter) = &mut self.counter {
            counter.access(index, offsets, mask, how.bytes, [how.reads, how.writes]);
        }
        let mut rest = if self.checks.global_races { mask } else { 0 };
        let granularity = Granularity { granule: self.program.granules[1], launch: self.launch };
        while rest != 0 {
            let actor = how.actor(&self.clocks, self.fenced, warp.idx);
            let found = self.memory.touch(index, offsets, rest, how.bytes, granularity, actor);
            let Some((lane, other)) = found else { break };
            let (start, bytes) = self.memory.piece(index);
            let bytes = &bytes[offsets[lane]..];
            let is_same = access.is_some_and(|access| {
                let is_left = same(&warp.registers, access, lane, bytes);
                is_left || agrees(warp, self.block, access, offsets, mask, lane, other)
            });
            if !is_same {
                let at = start + offsets[lane] as u64;
                return Err(race(lane, how, &format!("global memory at {at:#x}"), other));
            }
            rest &= above(lane);
        }
        Ok(())
    }

    pub(super) fn shared_offsets(
        &self,
        at: &[u64; LANES],
        active: u32,
        how: Use,
    ) -> Checked<[usize; LANES]> {
        window(at, active, SHARED_BASE, self.shared.bytes.len(), how, "the block's shared memory")
    }

    /// Checks and records the accesses of `active` to shared memory.
    pub(super) fn check_shared(
        &mut self,
        warp: &Warp,
        access: Option<&Access>,
        offsets: &[usize; LANES],
        active: u32,
        how: Use,
    ) -> Checked {
        if !self.shared.is_written(offsets, active, how.bytes) {
            for lane in lanes_of(active) {
                let written = &mut self.shared.written[offsets[lane]..][..how.bytes];
                if how.reads && self.checks.uninitialised && !written.iter().all(|w| *w) {
                    let message = format!(
                        "{} of {} bytes of shared memory at offset {}, which was not written, or by an \
                         asynchronous copy that was not waited for",
                        how.what(),
                        how.bytes,
                        offsets[lane]
                    );
                    return Err(LaneFault::new(FaultKind::Uninitialised, lane, message));
                }
                if how.writes {
                    written.fill(true);
                }
            }
        }
        if how.writes && !self.shared.unfenced.is_empty() {
            for lane in lanes_of(active) {
                let stored = offsets[lane]..offsets[lane] + how.bytes;
                self.shared.unfenced[stored].fill(warp.idx as u8 + 1);
            }
        }
        let mut rest = if self.checks.shared_races { active } else { 0 };
        let granule = self.program.granules[0];
        while rest != 0 {
            let actor = how.actor(&self.clocks, self.fenced, warp.idx);
            let found = self.shared.touch(offsets, rest, how.bytes, granule, actor);
            let Some((lane, other)) = found else { break };
            let bytes = &self.shared.bytes[offsets[lane]..];
            let is_same = access.is_some_and(|access| {
                let is_left = same(&warp.registers, access, lane, bytes);
                is_left || agrees(warp, self.block, access, offsets, active, lane, other)
            });
            if !is_same {
                let place = format!("shared memory at offset {}", offsets[lane]);
                return Err(race(lane, how, &place, other));
            }
            rest &= above(lane);
        }
        Ok(())
    }

    /// Reads `bytes` of shared memory at each lane's address, for a collective.
    pub(super) fn read_shared(
        &mut self,
        warp: &Warp,
        at: &[u64; LANES],
        active: u32,
        bytes: usize,
    ) -> Checked<[usize; LANES]> {
        let how = Use { bytes, writes: false, reads: true, atomic: false };
        self.use_shared(warp, at, active, how)
    }

    /// Checks a write of `bytes` to shared memory at each lane's address.
    pub(super) fn write_shared(
        &mut self,
        warp: &Warp,
        at: &[u64; LANES],
        active: u32,
        bytes: usize,
    ) -> Checked<[usize; LANES]> {
        let how = Use { bytes, writes: true, reads: false, atomic: false };
        self.use_shared(warp, at, active, how)
    }

    pub(super) fn use_shared(
        &mut self,
        warp: &Warp,
        at: &[u64; LANES],
        active: u32,
        how: Use,
    ) -> Checked<[usize; LANES]> {
        check_alignment(at, active, how.bytes, how)?;
        let offsets = self.shared_offsets(at, active, how)?;
        self.check_shared(warp, None, &offsets, active, how)?;
        Ok(offsets)
    }

    /// The shared-memory addresses of a collective, from shared or generic addresses.
    pub(super) fn shared_addresses(
        &self,
        warp: &Warp,
        address: Address,
        space: Space,
    ) -> [u64; LANES] {
        let at = addresses(&warp.registers, address);
        if space == Space::Generic { at.map(|at| at.wrapping_sub(SHARED_WINDOW)) } else { at }
    }

    /// Runs an atomic for the active lanes in ascending order.
    pub(super) fn atomic(&mut self, warp: &mut Warp, atomic: &Atomic, active: u32) -> Checked {
        if atomic.adds_floats && !self.checks.float_atomics {
            let message =
                "an atomic addition of floats, whose result depends on the order of threads";
            let lane = active.trailing_zeros() as usize;
            return Err(LaneFault::new(FaultKind::FloatAtomic, lane, message));
        }
        let mut at = addresses(&warp.registers, atomic.address);
        let spaces = match atomic.space {
            Space::Generic => generic_spaces(&at, active),
            space => [(active, space, 0), (0, Space::Shared, 0), (0, Space::Local, 0)],
        };
        let how = Use { bytes: atomic.width, writes: true, reads: true, atomic: true };
        for (mask, space, window) in spaces {
            for lane in lanes_of(mask) {
                at[lane] -= window;
                self.atomic_lane(warp, atomic, space, &at, lane, how)?;
            }
        }
        Ok(())
    }

    fn atomic_lane(
        &mut self,
        warp: &mut Warp,
        atomic: &Atomic,
        space: Space,
        at: &[u64; LANES],
        lane: usize,
        how: Use,
    ) -> Checked {
        let mask = 1 << lane;
        check_alignment(at, mask, how.bytes, how)?;
        let bytes = match space {
            Space::Shared => {
                let offsets = self.shared_offsets(at, mask, how)?;
                self.check_shared(warp, None, &offsets, mask, how)?;
                &mut self.shared.bytes[offsets[lane]..]
            }
            Space::Global => {
                let (index, _, offsets) = self.global_run(at, mask, how)?;
                self.check_global(warp, None, index, &offsets, mask, how)?;
                self.memory.note_write(index);
                &mut self.memory.piece(index).1[offsets[lane]..]
            }
            _ => {
                let message = "an atomic on a thread's own memory";
                return Err(LaneFault::new(FaultKind::Operand, lane, message));
            }
        };
        let old = get(bytes, 0, how.bytes);
        let [a, b] = atomic.operands.map(|reg| warp.registers.lane(reg, lane));
        let new = (atomic.combine)(old, a, b);
        put(bytes, 0, how.bytes, new);
        if let Some(to) = atomic.to {
            warp.registers.set_lane(to, lane, old);
        }
        Ok(())
    }
}

/// Groups the active lanes by the space of their generic addresses, with that space's window.
fn generic_spaces(at: &[u64; LANES], active: u32) -> [(u32, Space, u64); 3] {
    let (mut shared, mut local) = (0, 0);
    for (lane, &at) in at.iter().enumerate() {
        shared |= u32::from(is_shared(at)) << lane;
        local |= u32::from(is_local(at)) << lane;
    }
    [
        (active & !shared & !local, Space::Global, 0),
        (active & shared, Space::Shared, SHARED_WINDOW),
        (active & local, Space::Local, LOCAL_WINDOW),
    ]
}

pub(super) fn check_alignment(at: &[u64; LANES], active: u32, bytes: usize, how: Use) -> Checked {
    let low = bytes as u64 - 1;
    let mut off = 0;
    for (lane, at) in at.iter().enumerate() {
        off |= u32::from(at & low != 0) << lane;
    }
    if off & active == 0 {
        return Ok(());
    }
    let lane = (off & active).trailing_zeros() as usize;
    let message =
        format!("{} of {bytes} bytes at {:#x}, which is no multiple", how.what(), at[lane]);
    Err(LaneFault::new(FaultKind::Misaligned, lane, message))
}

/// Offsets in a space that begins at `base` and has `size` bytes.
fn window(
    at: &[u64; LANES],
    active: u32,
    base: u64,
    size: usize,
    how: Use,
    whose: &str,
) -> Checked<[usize; LANES]> {
    let offsets = at.map(|at| at.wrapping_sub(base));
    for lane in lanes_of(active) {
        if offsets[lane].saturating_add(how.bytes as u64) > size as u64 {
            let offset = offsets[lane] as i64;
            let message = format!(
                "{} of {} bytes at offset {offset} of {whose}, which has {size} bytes",
                how.what(),
                how.bytes
            );
            return Err(LaneFault::new(FaultKind::OutOfBounds, lane, message));
        }
    }
    Ok(offsets.map(|offset| offset as usize))
}

fn race(lane: usize, how: Use, place: &str, other: ThreadId) -> LaneFault {
    let ThreadId { block, thread } = other;
    let message = format!(
        "{} of {} bytes of {place}, which thread {thread} of block {block} uses too, with nothing that \
         orders the two",
        how.what(),
        how.bytes
    );
    LaneFault::new(FaultKind::Race, lane, message)
}

/// The lanes above a lane.
fn above(lane: usize) -> u32 {
    u32::MAX.checked_shl(lane as u32 + 1).unwrap_or(0)
}

/// Whether the other thread is a lane of this instruction that stores the same value to the same address.
fn agrees(
    warp: &Warp,
    own_block: usize,
    access: &Access,
    offsets: &[usize; LANES],
    mask: u32,
    lane: usize,
    ThreadId { block, thread }: ThreadId,
) -> bool {
    let other = thread % LANES;
    let is_here = block == own_block && thread / LANES == warp.idx && mask >> other & 1 == 1;
    let r = &warp.registers;
    access.is_store
        && is_here
        && offsets[other] == offsets[lane]
        && access.regs.iter().all(|&reg| r.lane(reg, other) == r.lane(reg, lane))
}

/// Whether a store leaves `bytes` unchanged.
fn same(registers: &Registers, access: &Access, lane: usize, bytes: &[u8]) -> bool {
    let mask = if access.width == 8 { u64::MAX } else { (1 << (8 * access.width)) - 1 };
    let mut elements = access.regs.iter().enumerate();
    access.is_store
        && elements.all(|(i, &reg)| {
            get(bytes, i * access.width, access.width) == registers.lane(reg, lane) & mask
        })
}

/// Moves elements between registers and memory.
fn transfer(
    registers: &mut Registers,
    access: &Access,
    bytes: &mut [u8],
    offsets: &[usize; LANES],
    mask: u32,
) {
    if access.is_store {
        store(registers, access, bytes, offsets, mask);
    } else {
        load(registers, access, bytes, offsets, mask);
    }
}
