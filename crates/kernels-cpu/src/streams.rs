//! The order in which products of few rows read their weights. Such products are bound by memory
//! bandwidth.
//!
//! On some processors a core gets more bandwidth when it reads several distant streams in turn, because
//! each hardware prefetcher follows one stream. Others prefetch furthest ahead of a single stream. The
//! order does not affect results.

use std::ops::Range;
use std::sync::LazyLock;

/// Number of streams that are read side by side, unless one is faster ([`prefers_one`]).
pub(crate) const STREAMS: usize = 4;

/// Prefetch distance of a single stream, into the L2 cache, which has more outstanding requests than
/// L1.
pub(crate) const PREFETCH_FAR_BYTES: usize = 6144;

/// Calls `visit` with all indices of the range, in groups that are read side by side: [`STREAMS`]
/// indices a quarter of the range apart, and single ones for the remainder. Where one stream is
/// fastest, all groups are single indices in ascending order.
pub(crate) fn for_each_group(range: Range<usize>, mut visit: impl FnMut(&[usize])) {
    let apart = if prefers_one() { 0 } else { range.len() / STREAMS };
    for i in 0..apart {
        visit(&std::array::from_fn::<_, STREAMS, _>(|s| range.start + i + s * apart));
    }
    for i in range.start + apart * STREAMS..range.end {
        visit(&[i]);
    }
}

/// Whether a single stream is fastest on this processor: on AMD's Zen 4 and later. On Zen 4 it
/// reached 1.4 to 1.9 times the bandwidth of four streams, on one thread and on two. Four streams were
/// faster on older AMD and on Intel processors.
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
