//! Zeroed memory for weights, keys and values, in huge pages if the system has them.
//!
//! A processor's TLB covers little memory with pages of 4 KiB, so large matrices are read faster from
//! pages of 2 MiB. The system provides each page when it is first touched, on the NUMA node of the
//! touching thread.

use std::fmt;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

/// Bytes of a cache line, the alignment of small allocations.
const LINE: usize = 64;

/// Bytes of a huge page on x86-64 and AArch64.
const HUGE_PAGE: usize = 2 << 20;

/// Huge pages are requested for allocations of at least this size.
const HUGE_FROM: usize = 2 * HUGE_PAGE;

enum Memory {
    Heap(Vec<u8>),
    Mapped(MmapMut),
}

/// Zeroed bytes, aligned to a cache line, and to a huge page if they are large. Pages that are never
/// touched take no memory.
///
/// ```
/// use realizar_kernels_cpu::Pages;
///
/// let mut pages = Pages::zeroed(5 << 20).expect("five mebibytes");
/// pages[7] = 1;
/// assert_eq!(pages.iter().map(|&b| u32::from(b)).sum::<u32>(), 1);
/// ```
pub struct Pages {
    memory: Memory,
    start: usize,
    len: usize,
    is_huge: bool,
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_huge { ", huge pages" } else { "" };
        write!(f, "{} bytes{kind}", self.len)
    }
}

impl Pages {
    /// `len` zeroed bytes; `None` if there is too little memory.
    pub fn zeroed(len: usize) -> Option<Self> {
        if len >= HUGE_FROM {
            let size = len.checked_add(HUGE_PAGE)?;
            if let Ok(map) = MmapMut::map_anon(size) {
                let start = map.as_ptr().align_offset(HUGE_PAGE);
                let is_huge = ask_for_huge_pages(&map, start, len);
                return Some(Self { memory: Memory::Mapped(map), start, len, is_huge });
            }
        }
        // The allocator is asked for an alignment of 1: for larger ones it would write the zeros itself
        // instead of using fresh zero pages.
        let bytes: Vec<u8> = bytemuck::allocation::try_zeroed_vec(len.checked_add(LINE)?).ok()?;
        let start = bytes.as_ptr().align_offset(LINE);
        Some(Self { memory: Memory::Heap(bytes), start, len, is_huge: false })
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        let bytes = match &self.memory {
            Memory::Heap(bytes) => bytes.as_slice(),
            Memory::Mapped(map) => map,
        };
        &bytes[self.start..][..self.len]
    }

    /// The bytes, mutable.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let bytes = match &mut self.memory {
            Memory::Heap(bytes) => bytes.as_mut_slice(),
            Memory::Mapped(map) => map,
        };
        &mut bytes[self.start..][..self.len]
    }

    /// Whether huge pages were requested and granted. Some pages may still be small if memory is
    /// fragmented.
    pub fn is_huge(&self) -> bool {
        self.is_huge
    }
}

impl Deref for Pages {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl DerefMut for Pages {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

/// Requests huge pages for a part of a mapping; returns whether the system grants them.
#[cfg(target_os = "linux")]
fn ask_for_huge_pages(map: &MmapMut, start: usize, len: usize) -> bool {
    crate::topology::huge_pages().is_some_and(|mode| mode.on_request())
        && map.advise_range(memmap2::Advice::HugePage, start, len).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_map: &MmapMut, _start: usize, _len: usize) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_aligned_and_writable() {
        for len in [0, 1, 63, 4096, HUGE_FROM - 1, HUGE_FROM, HUGE_FROM + 12_345] {
            let mut pages = Pages::zeroed(len).expect("some mebibytes");
            let align = if len >= HUGE_FROM && cfg!(unix) { HUGE_PAGE } else { LINE };
            assert!(pages.as_ptr().addr().is_multiple_of(align), "{len}");
            assert_eq!(pages.len(), len);
            assert!(pages.iter().all(|&b| b == 0));
            for (i, b) in pages.iter_mut().enumerate() {
                *b = (i % 251) as u8;
            }
            assert!(pages.iter().enumerate().all(|(i, &b)| usize::from(b) == i % 251));
        }
    }

    #[test]
    fn too_much_memory_is_none() {
        assert!(Pages::zeroed(usize::MAX).is_none());
        assert!(Pages::zeroed(usize::MAX / 2).is_none());
    }

    #[test]
    fn pages_cross_threads() {
        fn check<T: Send + Sync>() {}
        check::<Pages>();
    }
}
