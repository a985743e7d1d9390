//! Returning freed memory to the system, for allocators that would keep it (glibc).

/// Returns freed memory to the system.
///
/// glibc keeps freed memory below a block in use, in one heap per thread: after a large request that may
/// be many times the memory in use. Does nothing with other allocators.
pub fn give_back_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    trim();
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "a function of C")]
fn trim() {
    // SAFETY: it takes no pointers, locks each heap that it looks at, and may be called whenever
    // memory may be allocated.
    unsafe { libc::malloc_trim(0) };
}

/// Makes glibc map blocks of at least 1 MiB separately, so that freeing them returns them to the system
/// and growing them copies nothing.
///
/// By default glibc raises this threshold, up to 32 MiB, whenever such a block is freed, and then keeps
/// blocks below it in the heap of each thread. Does nothing with other allocators.
pub fn give_back_large_blocks() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fix_threshold();
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "a function of C")]
fn fix_threshold() {
    // SAFETY: it takes two numbers, and may be called whenever memory may be allocated. It fails
    // for numbers that are too large alone.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20) };
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    fn resident_bytes() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").expect("the process's memory");
        let pages = text.split(' ').nth(1).expect("a second number");
        pages.parse::<usize>().expect("a number") * 4096
    }

    #[test]
    fn freed_memory_is_given_back() {
        // Small blocks; the last one stays in use.
        let mut blocks: Vec<Vec<u8>> = (0..1 << 16).map(|_| vec![1; 1 << 10]).collect();
        let last = blocks.pop();
        drop(blocks);
        let before = resident_bytes();
        give_back_freed_memory();
        let after = resident_bytes();
        assert!(before.saturating_sub(after) > 32 << 20, "{before} and {after} bytes");
        drop(last);
    }

    #[test]
    fn large_blocks_are_given_back_when_they_are_freed() {
        give_back_large_blocks();
        // On a thread of its own, with its own heap.
        let freed = std::thread::spawn(|| {
            for n_bytes in [16 << 20, 30 << 20] {
                drop(vec![1_u8; n_bytes]);
            }
            let small = vec![vec![1_u8; 8 << 20]; 4];
            let before = resident_bytes();
            drop(small);
            before.saturating_sub(resident_bytes())
        });
        let freed = freed.join().expect("a number");
        assert!(freed > 24 << 20, "{freed} bytes");
    }
}
