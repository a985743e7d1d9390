//! Device memory: allocations, and the state that checks of accesses need.
//!
//! Addresses are never reused, and allocations are separated by gaps, so that an address identifies the intended
//! allocation even after it was freed. Loads and stores are in `access`.

use super::races::{Actor, Cell, Granularity, ThreadId};
use crate::fault::{FaultKind, LaneFault};
use crate::program::lanes::{LANES, lanes_of};

/// The first address of global memory. It exceeds 32 bits, so that truncated addresses are detected.
const GLOBAL_BASE: u64 = 0x7_0000_0000;
/// Bytes between two allocations.
const GAP: u64 = 4096;
/// Alignment of allocations, as on a GPU.
const ALIGN: u64 = 256;
/// Granules per page of race-check state.
const PAGE: usize = 1024;

/// An allocation of global memory.
#[derive(Debug)]
struct Allocation {
    start: u64,
    bytes: Vec<u8>,
    /// Whether a kernel has written to it.
    is_written: bool,
    pages: Vec<Option<Page>>,
}

/// Race-check state of [`PAGE`] granules during one launch.
#[derive(Debug)]
struct Page {
    launch: u64,
    cells: Box<[Cell]>,
}

/// Global memory.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Allocations in ascending order of addresses.
    live: Vec<Allocation>,
    /// Address and size of freed allocations, ascending.
    freed: Vec<(u64, u64)>,
    next: u64,
}

impl Default for Memory {
    fn default() -> Self {
        Self { live: Vec::new(), freed: Vec::new(), next: GLOBAL_BASE }
    }
}

impl Memory {
    /// Allocates memory, filled with a pattern because its content is undefined.
    pub(crate) fn allocate(&mut self, bytes: usize) -> u64 {
        let start = self.next;
        self.next = (start + bytes as u64 + GAP).next_multiple_of(ALIGN);
        self.live.push(Allocation {
            start,
            bytes: vec![0xcd; bytes],
            is_written: false,
            pages: Vec::new(),
        });
        start
    }

    /// Frees the allocation at `start`.
    pub(crate) fn free(&mut self, start: u64) -> Result<(), String> {
        let at = self.live.binary_search_by_key(&start, |a| a.start);
        let at = at.map_err(|_| format!("{start:#x} is not the start of an allocation"))?;
        let gone = self.live.remove(at);
        let place = self.freed.partition_point(|f| f.0 < start);
        self.freed.insert(place, (start, gone.bytes.len() as u64));
        Ok(())
    }

    /// Number of allocated bytes.
    pub(crate) fn used(&self) -> usize {
        self.live.iter().map(|a| a.bytes.len()).sum()
    }

    /// Index of the allocation that contains `address`.
    #[inline]
    pub(super) fn index(&self, address: u64) -> Option<usize> {
        let at = self.live.partition_point(|a| a.start <= address).checked_sub(1)?;
        (address - self.live[at].start < self.live[at].bytes.len() as u64).then_some(at)
    }

    /// Address and bytes of an allocation.
    #[inline]
    pub(super) fn piece(&mut self, at: usize) -> (u64, &mut [u8]) {
        let allocation = &mut self.live[at];
        (allocation.start, &mut allocation.bytes)
    }

    /// Records that a kernel writes to an allocation.
    #[inline]
    pub(super) fn note_write(&mut self, at: usize) {
        self.live[at].is_written = true;
    }

    /// Whether kernels have written to an allocation.
    pub(super) fn is_written(&self, at: usize) -> bool {
        self.live[at].is_written
    }

    /// Address and size of an allocation, if the index exists.
    #[inline]
    pub(super) fn extent(&self, at: usize) -> Option<(u64, usize)> {
        self.live.get(at).map(|a| (a.start, a.bytes.len()))
    }

    /// A range for a copy by the host.
    pub(crate) fn slice(&mut self, address: u64, bytes: usize) -> Result<&mut [u8], String> {
        if bytes == 0 {
            return Ok(&mut []);
        }
        let Some(at) = self.index(address) else {
            return Err(format!("{bytes} bytes at {address:#x}: {}", self.describe(address)));
        };
        let (start, all) = self.piece(at);
        let offset = (address - start) as usize;
        let len = all.len();
        all.get_mut(offset..).and_then(|rest| rest.get_mut(..bytes)).ok_or_else(|| {
            format!("{bytes} bytes at offset {offset} of an allocation of {len} bytes")
        })
    }

    /// Records the accesses of the lanes of `mask` for race checks. Returns the first lane that races and the thread
    /// that it races with.
    pub(super) fn touch(
        &mut self,
        at: usize,
        offsets: &[usize; LANES],
        mask: u32,
        bytes: usize,
        Granularity { granule, launch }: Granularity,
        actor: Actor<'_>,
    ) -> Option<(usize, ThreadId)> {
        let pages = &mut self.live[at].pages;
        let shift = granule.trailing_zeros();
        for lane in lanes_of(mask) {
            let now = actor.stamp(lane);
            let (mut cell, last) = (offsets[lane] >> shift, (offsets[lane] + bytes - 1) >> shift);
            while cell <= last {
                let page = cell / PAGE;
                if pages.len() <= page {
                    pages.resize_with(page + 1, || None);
                }
                let page = pages[page]
                    .get_or_insert_with(|| Page { launch, cells: vec![[0; 3]; PAGE].into() });
                if page.launch != launch {
                    page.launch = launch;
                    page.cells.fill([0; 3]);
                }
                let end = last.min(cell / PAGE * PAGE + PAGE - 1);
                if let Some(stamp) = actor.touch(&mut page.cells[cell % PAGE..=end % PAGE], now) {
                    return Some((lane, ThreadId::of_stamp(stamp)));
                }
                cell = end + 1;
            }
        }
        None
    }

    /// Describes an access to `address`, which is outside every allocation.
    pub(super) fn fault(&self, lane: usize, what: &str, address: u64, bytes: usize) -> LaneFault {
        let is_freed = self.freed_at(address).is_some();
        let kind = if is_freed { FaultKind::Freed } else { FaultKind::OutOfBounds };
        let message =
            format!("{what} of {bytes} bytes at {address:#x}: {}", self.describe(address));
        LaneFault::new(kind, lane, message)
    }

    fn freed_at(&self, address: u64) -> Option<(u64, u64)> {
        let at = self.freed.partition_point(|f| f.0 <= address).checked_sub(1)?;
        let (start, len) = self.freed[at];
        (address - start < len).then_some((start, len))
    }

    fn describe(&self, address: u64) -> String {
        if let Some((start, len)) = self.freed_at(address) {
            let offset = address - start;
            return format!("offset {offset} of freed memory, {len} bytes at {start:#x}");
        }
        let behind = self.live.partition_point(|a| a.start <= address);
        let before = behind.checked_sub(1).map(|at| &self.live[at]);
        if let Some(a) = before.filter(|a| address - a.start < a.bytes.len() as u64 + GAP) {
            let (start, len) = (a.start, a.bytes.len());
            let offset = address - start;
            return format!("offset {offset} of an allocation of {len} bytes at {start:#x}");
        }
        if let Some(a) = self.live.get(behind).filter(|a| a.start - address <= GAP) {
            let (start, len) = (a.start, a.bytes.len());
            let before = start - address;
            return format!("{before} bytes before an allocation of {len} bytes at {start:#x}");
        }
        "no allocation is near".to_owned()
    }
}

/// Shared memory of a block.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(super) bytes: Vec<u8>,
    /// Which bytes were written.
    pub(super) written: Vec<bool>,
    pub(super) cells: Vec<Cell>,
    /// For each byte, the warp (from 1) whose ordinary store has not been followed by a proxy fence yet; empty if no
    /// products read shared memory.
    pub(super) unfenced: Vec<u8>,
}

impl Shared {
    /// Prepares shared memory for a block: `granule` is that of race checks, if any, and `has_groups` says whether
    /// products read it.
    pub(crate) fn start(&mut self, bytes: usize, granule: Option<usize>, has_groups: bool) {
        self.bytes.clear();
        self.bytes.resize(bytes, 0xcd);
        self.written.clear();
        self.written.resize(bytes, false);
        self.cells.clear();
        self.cells.resize(granule.map_or(0, |g| bytes.div_ceil(g)), [0; 3]);
        self.unfenced.clear();
        self.unfenced.resize(if has_groups { bytes } else { 0 }, 0);
    }

    /// Whether the whole range of the lanes of `mask` has been written. Long ranges return false.
    pub(super) fn is_written(&self, offsets: &[usize; LANES], mask: u32, bytes: usize) -> bool {
        let first = offsets[mask.trailing_zeros() as usize & 31];
        let (mut least, mut most) = (first, first);
        for (lane, &offset) in offsets.iter().enumerate() {
            let offset = if mask >> lane & 1 == 1 { offset } else { first };
            least = least.min(offset);
            most = most.max(offset);
        }
        let range = least..most + bytes;
        range.len() <= 4096 && self.written[range].iter().fold(true, |all, w| all & w)
    }

    /// Records the accesses of the lanes of `mask` for race checks. Returns the first lane that races and the thread
    /// that it races with.
    pub(super) fn touch(
        &mut self,
        offsets: &[usize; LANES],
        mask: u32,
        bytes: usize,
        granule: usize,
        actor: Actor<'_>,
    ) -> Option<(usize, ThreadId)> {
        let shift = granule.trailing_zeros();
        lanes_of(mask).find_map(|lane| {
            let offset = offsets[lane];
            let cells = &mut self.cells[offset >> shift..=(offset + bytes - 1) >> shift];
            let stamp = actor.touch(cells, actor.stamp(lane))?;
            Some((lane, ThreadId::of_stamp(stamp)))
        })
    }
}
