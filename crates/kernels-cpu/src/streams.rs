//! In which order the product of few rows reads its weights, which is most of the time that
//! it takes where the weights come from memory.
//!
//! Some processors are given more by memory when a core reads several distant places in turn, as
//! each of their prefetchers follows a stream of its own. Others fetch furthest ahead of a single
//! one. Which weights are read when shows in no result.

use std::ops::Range;
use std::sync::LazyLock;

/// Runs of weights that are read side by side, where that is faster than one.
pub(crate) const STREAMS: usize = 4;

/// How far ahead of a single stream memory is fetched into the second cache, which takes more
/// requests at a time than the nearest.
pub(crate) const PREFETCH_FAR_BYTES: usize = 6144;

/// Calls `visit` with all indices of the range, in groups that are read side by side:
/// [`STREAMS`] of them, a quarter of the range apart, and single ones for what is left; or
/// single ones alone, in ascending order, where one stream is fastest.
pub(crate) fn for_each_group(range: Range<usize>, mut visit: impl FnMut(&[usize])) {
    let apart = if prefers_one() { 0 } else { range.len() / STREAMS };
    for i in 0..apart {
        visit(&std::array::from_fn::<_, STREAMS, _>(|s| range.start + i + s * apart));
    }
    for i in range.start + apart * STREAMS..range.end {
        visit(&[i]);
    }
}

/// Whether a single stream is fastest here. Measured on AMD's Zen 4 (1.4 to 1.9 times what four
/// streams give, on one thread and on two); there and on later processors of AMD it is so. Four
/// streams were faster on older ones of AMD, and on Intel's.
pub(crate) fn prefers_one() -> bool {
    static IS_ZEN_4: LazyLock<bool> = LazyLock::new(is_amd_with_avx512);
    *IS_ZEN_4
}

#[cfg(target_arch = "x86_64")]
fn is_amd_with_avx512() -> bool {
    let id = std::arch::x86_64::__cpuid(0);
    let vendor = [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes);
    vendor.as_flattened() == b"AuthenticAMD" && std::arch::is_x86_feature_detected!("avx512f")
}

#[cfg(not(target_arch = "x86_64"))]
fn is_amd_with_avx512() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_index_is_visited_once() {
        for len in [0, 1, 3, 4, 5, 16, 23] {
            let mut seen = Vec::new();
            for_each_group(7..7 + len, |group| {
                assert!(group.len() == 1 || group.len() == STREAMS, "{group:?}");
                seen.extend_from_slice(group);
            });
            seen.sort_unstable();
            assert_eq!(seen, (7..7 + len).collect::<Vec<_>>());
        }
    }
}
