//! The work of a call: the processor time of the process and the bytes that it allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that were allocated, freed or not.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

struct Counting;

fn count(n_bytes: usize) {
    ALLOCATED.fetch_add(n_bytes as u64, Ordering::Relaxed);
}

// SAFETY: every call is passed on to the system allocator unchanged; the counter allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size.saturating_sub(layout.size()));
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from this allocator with the same layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The costs of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) nanoseconds: u64,
    pub(crate) bytes: u64,
}

impl Work {
    pub(crate) fn min(self, other: Self) -> Self {
        Self {
            nanoseconds: self.nanoseconds.min(other.nanoseconds),
            bytes: self.bytes.min(other.bytes),
        }
    }
}

/// Processor time of all threads.
fn processor_time() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the value that it is given, which outlives it.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    assert_eq!(failed, 0, "the clock of the process");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Calls it, and says what that took.
pub(crate) fn of(call: impl FnOnce()) -> Work {
    let (time, bytes) = (processor_time(), ALLOCATED.load(Ordering::Relaxed));
    call();
    let bytes = ALLOCATED.load(Ordering::Relaxed) - bytes;
    Work { nanoseconds: processor_time() - time, bytes }
}
