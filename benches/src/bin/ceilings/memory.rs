//! How fast memory and caches are read: in several streams at once, from small and from huge pages.
//!
//! Every thread reads a part of its own, so that no byte is read twice.

use std::hint::black_box;
use std::io;

use crate::{Row, caches, timing};

/// Bytes that one stream reads before the next one's turn.
const STEP: usize = 512;

/// Memory of its own pages.
struct Pages {
    ptr: *mut u8,
    n_bytes: usize,
}

// SAFETY: the memory is read alone once it was filled in `Pages::new`, and unmapped when dropped.
unsafe impl Sync for Pages {}

impl Pages {
    /// Mapped, filled memory, in huge pages where the kernel has them and `huge` is set.
    #[cfg(unix)]
    fn new(n_bytes: usize, huge: bool) -> io::Result<Self> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory in use.
        let ptr = unsafe { libc::mmap(std::ptr::null_mut(), n_bytes, protection, flags, -1, 0) };
        if ptr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        #[cfg(target_os = "linux")]
        {
            let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
            // SAFETY: the range is the mapping just made. A kernel without huge pages refuses, and
            // pages stay small.
            let _ = unsafe { libc::madvise(ptr, n_bytes, advice) };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = huge;
        let ptr = ptr.cast::<u8>();
        // SAFETY: the mapping has `n_bytes` writable bytes.
        unsafe { ptr.write_bytes(1, n_bytes) };
        Ok(Self { ptr, n_bytes })
    }

    /// Filled memory; pages are what the allocator gives.
    #[cfg(not(unix))]
    fn new(n_bytes: usize, _huge: bool) -> io::Result<Self> {
        let memory = Box::leak(vec![1_u8; n_bytes].into_boxed_slice());
        Ok(Self { ptr: memory.as_mut_ptr(), n_bytes })
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has `n_bytes` filled bytes and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.ptr, self.n_bytes) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        #[cfg(unix)]
        // SAFETY: `new` mapped exactly this range, and no slice of it outlives `self`.
        unsafe {
            libc::munmap(self.ptr.cast(), self.n_bytes);
        }
    }
}

/// Bytes that all threads read in a sample of memory. It lasts a millisecond or two, so that some samples
/// are not disturbed on a machine that does other things too.
const SAMPLE: usize = 32 << 20;

/// Rates of reading by `n_threads` threads.
pub(crate) fn measure(n_threads: usize, n_samples: usize) -> io::Result<Vec<Row>> {
    let (l2, l3) = (caches::size(2), caches::size(3));
    let mut rows = Vec::new();
    // Sample after sample reads on in the pages, each thread in its part of the sample's bytes.
    let mut add = |what, how, sample: usize, pages: &Pages, n_streams: usize, n_passes: usize| {
        let unit = STEP * n_streams;
        let part = sample / n_threads / unit * unit;
        let n_parts = pages.n_bytes / part;
        let seconds = timing::seconds(n_threads, n_samples, &|i, thread| {
            let bytes = &pages.bytes()[(i * n_threads + thread) % n_parts * part..][..part];
            for _ in 0..n_passes {
                black_box(read(black_box(bytes), n_streams));
            }
        });
        let value = (part * n_passes * n_threads) as f64 / seconds / 1e9;
        rows.push(Row { what, how, threads: n_threads, value, unit: "GB/s" });
    };
    for huge in [false, true] {
        let pages = Pages::new((4 * l3).max(8 * SAMPLE), huge)?;
        let name = if huge { "huge pages" } else { "small pages" };
        for n_streams in [1, 2, 4, 8] {
            let plural = if n_streams > 1 { "s" } else { "" };
            let how = format!("{n_streams} stream{plural}, {name}");
            add("DRAM read", how, SAMPLE, &pages, n_streams, 1);
        }
    }
    // Every core has an L2 of its own, and all share the L3.
    for (what, size) in [("L3 read", l3 / 2), ("L2 read", l2 / 2 * n_threads)] {
        let size = size / n_threads / STEP * STEP * n_threads;
        let pages = Pages::new(size, true)?;
        let n_passes = SAMPLE.div_ceil(size);
        add(what, "half of it".to_owned(), size, &pages, 1, n_passes);
    }
    Ok(rows)
}

/// Reads all bytes, `n_streams` parts in turn. The sum keeps the loads from being left out.
fn read(bytes: &[u8], n_streams: usize) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was just detected.
        return unsafe {
            match n_streams {
                1 => x86::read::<1>(bytes),
                2 => x86::read::<2>(bytes),
                4 => x86::read::<4>(bytes),
                _ => x86::read::<8>(bytes),
            }
        };
    }
    let words = |chunk: &[u8]| -> u64 {
        let (words, _) = chunk.as_chunks::<8>();
        words.iter().fold(0, |sum, word| sum | u64::from_le_bytes(*word))
    };
    let len = bytes.len() / n_streams;
    let mut sum = 0;
    for at in (0..len).step_by(STEP) {
        for stream in 0..n_streams {
            sum |= words(&bytes[stream * len + at..][..STEP.min(len - at)]);
        }
    }
    sum
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::STEP;
    use std::arch::x86_64::*;

    /// How far ahead of a load its cache line is asked for.
    const AHEAD: usize = 2 * STEP;

    /// Reads `N` parts in turn, [`STEP`] bytes of each at a time, and asks for what follows.
    #[target_feature(enable = "avx2")]
    pub(super) fn read<const N: usize>(bytes: &[u8]) -> u64 {
        let len = bytes.len() / N;
        let mut sums = [_mm256_setzero_si256(); 8];
        for at in (0..len / STEP).map(|i| i * STEP) {
            for stream in 0..N {
                let block = &bytes[stream * len + at..][..STEP];
                let (lines, _) = block.as_chunks::<256>();
                for line in lines {
                    let ptr = line.as_ptr();
                    for prefetch in 0..4 {
                        _mm_prefetch::<_MM_HINT_T0>(ptr.wrapping_add(AHEAD + prefetch * 64).cast());
                    }
                    for (k, sum) in sums.iter_mut().enumerate() {
                        // SAFETY: `line` has 256 bytes, eight vectors of 32.
                        let v = unsafe { _mm256_loadu_si256(ptr.add(k * 32).cast()) };
                        *sum = _mm256_or_si256(*sum, v);
                    }
                }
            }
        }
        let all = sums.iter().fold(_mm256_setzero_si256(), |all, sum| _mm256_or_si256(all, *sum));
        _mm256_extract_epi64::<0>(all).cast_unsigned()
    }
}
