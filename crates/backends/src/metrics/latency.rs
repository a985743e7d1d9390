//! Latencies of one op class: sum, sum of squares, extremes and a histogram.
//!
//! The histogram has four buckets per power of two from 64 ns to 17 s, one below
//! and one above. A bucket is at most a quarter wider than its lower end, which
//! is the resolution of the percentiles.

use super::nanoseconds;
use super::snapshot::{Bucket, LatencySnapshot};
use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The first bucket ends at 2^6 ns, the last begins at 2^34 ns.
const FIRST_EXPONENT: u32 = 6;
const LAST_EXPONENT: u32 = 34;
/// Buckets per power of two, as a power of two.
const SPLIT_BITS: u32 = 2;
const N_BUCKETS: usize = 2 + (((LAST_EXPONENT - FIRST_EXPONENT) as usize) << SPLIT_BITS);

/// Latencies in nanoseconds. Their number is the sum of the histogram.
#[derive(Debug)]
pub(super) struct Latencies {
    sum: AtomicU64,
    /// An f64 by its bits: squares of seconds in nanoseconds outgrow 64 bits.
    sum_squares: AtomicU64,
    min: AtomicU64,
    max: AtomicU64,
    buckets: [AtomicU64; N_BUCKETS],
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            sum: AtomicU64::new(0),
            sum_squares: AtomicU64::new(0.0_f64.to_bits()),
            min: AtomicU64::new(u64::MAX),
            max: AtomicU64::new(0),
            buckets: array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Latencies {
    /// Adds one latency. The bucket comes last and is read first, so that a
    /// snapshot's sums hold at least what its histogram counts.
    pub(super) fn record(&self, latency: Duration) {
        let ns = nanoseconds(latency);
        self.sum.fetch_add(ns, Ordering::Relaxed);
        let square = (ns as f64) * (ns as f64);
        self.sum_squares.update(Ordering::Relaxed, Ordering::Relaxed, |bits| {
            (f64::from_bits(bits) + square).to_bits()
        });
        // Extremes are rare; a load is cheaper than an exchange.
        if ns < self.min.load(Ordering::Relaxed) {
            self.min.fetch_min(ns, Ordering::Relaxed);
        }
        if ns > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(ns, Ordering::Relaxed);
        }
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Release);
    }

    /// Forgets all latencies.
    pub(super) fn reset(&self) {
        for bucket in &self.buckets {
            bucket.store(0, Ordering::Relaxed);
        }
        self.sum.store(0, Ordering::Relaxed);
        self.sum_squares.store(0.0_f64.to_bits(), Ordering::Relaxed);
        self.min.store(u64::MAX, Ordering::Relaxed);
        self.max.store(0, Ordering::Relaxed);
    }

    /// The numbers as they are now; `None` without latencies.
    pub(super) fn snapshot(&self) -> Option<LatencySnapshot> {
        let counts: [u64; N_BUCKETS] = array::from_fn(|i| self.buckets[i].load(Ordering::Acquire));
        let count: u64 = counts.iter().sum();
        if count == 0 {
            return None;
        }
        let n = count as f64;
        let sum = self.sum.load(Ordering::Relaxed) as f64;
        let sum_squares = f64::from_bits(self.sum_squares.load(Ordering::Relaxed));
        let min = self.min.load(Ordering::Relaxed) as f64;
        let max = self.max.load(Ordering::Relaxed) as f64;
        // The sums may hold a latency more than the histogram.
        let mean = (sum / n).clamp(min, max);
        let variance = (sum_squares - sum * (sum / n)) / (n - 1.0).max(1.0);
        let percentile = |q: f64| percentile(&counts, count, (min, max), q).clamp(min, max) / 1e3;
        let bound_us = |idx| (idx + 1 < N_BUCKETS).then(|| lower_bound(idx + 1) as f64 / 1e3);
        let filled = counts.iter().enumerate().filter(|&(_, &count)| count > 0);
        Some(LatencySnapshot {
            count,
            sum_us: sum / 1e3,
            sum_squares_us2: sum_squares / 1e6,
            min_us: min / 1e3,
            max_us: max / 1e3,
            mean_us: mean / 1e3,
            std_us: variance.max(0.0).sqrt() / 1e3,
            p50_us: percentile(0.5),
            p90_us: percentile(0.9),
            p95_us: percentile(0.95),
            p99_us: percentile(0.99),
            buckets: filled
                .map(|(idx, &count)| Bucket { below_us: bound_us(idx), count })
                .collect(),
        })
    }
}

/// The bucket of a latency.
fn bucket(ns: u64) -> usize {
    if ns < 1 << FIRST_EXPONENT {
        return 0;
    }
    let exponent = ns.ilog2();
    // The bits after the leading one choose among the buckets of a power of two.
    let split = (ns >> (exponent - SPLIT_BITS)) & ((1 << SPLIT_BITS) - 1);
    let idx = 1 + (((exponent - FIRST_EXPONENT) as usize) << SPLIT_BITS) + split as usize;
    idx.min(N_BUCKETS - 1)
}

/// The smallest latency of a bucket, in nanoseconds.
fn lower_bound(idx: usize) -> u64 {
    if idx == 0 {
        return 0;
    }
    let (octave, split) = ((idx - 1) >> SPLIT_BITS, (idx - 1) & ((1 << SPLIT_BITS) - 1));
    ((1 << SPLIT_BITS) + split as u64) << (octave as u32 + FIRST_EXPONENT - SPLIT_BITS)
}

/// The latency of rank `q * count`, in nanoseconds, taking latencies as evenly
/// spread over the part of their bucket that lies between the extremes.
fn percentile(counts: &[u64; N_BUCKETS], count: u64, (min, max): (f64, f64), q: f64) -> f64 {
    let rank = ((count as f64 * q).ceil() as u64).clamp(1, count);
    let mut before = 0;
    for (idx, &n) in counts.iter().enumerate() {
        if before + n >= rank {
            let low = (lower_bound(idx) as f64).max(min);
            let high = if idx + 1 < N_BUCKETS { lower_bound(idx + 1) as f64 } else { max };
            let part = ((rank - before) as f64 - 0.5) / n as f64;
            return low + (high.min(max) - low) * part;
        }
        before += n;
    }
    max
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(latencies_ns: impl IntoIterator<Item = u64>) -> LatencySnapshot {
        let latencies = Latencies::default();
        for ns in latencies_ns {
            latencies.record(Duration::from_nanos(ns));
        }
        latencies.snapshot().unwrap()
    }

    #[test]
    fn buckets_join_and_hold_what_they_bound() {
        for idx in 0..N_BUCKETS {
            let low = lower_bound(idx);
            assert_eq!(bucket(low), idx);
            if idx > 0 {
                assert_eq!(bucket(low - 1), idx - 1);
            }
            if idx > 0 && idx + 1 < N_BUCKETS {
                let width = (lower_bound(idx + 1) - low) as f64;
                assert!(width <= 0.25 * low as f64, "bucket {idx} of {low} ns is {width} wide");
            }
        }
        assert_eq!((lower_bound(1), lower_bound(N_BUCKETS - 1)), (64, 1 << 34));
        assert_eq!(bucket(u64::MAX), N_BUCKETS - 1);
    }

    #[test]
    fn percentiles_of_known_distributions() {
        let uniform: Vec<u64> = (1..=100_000).map(|i| i * 100).collect(); // up to 10 ms
        let exponential: Vec<u64> = (0..100_000)
            .map(|i| (-((f64::from(i) + 0.5) / 1e5).ln() * 2e5) as u64) // mean 200 us
            .collect();
        let two_kinds: Vec<u64> =
            (0..1000).map(|i| if i % 10 < 8 { 3_000 } else { 5_000_000_000 }).collect();
        for (name, mut values) in
            [("uniform", uniform), ("exponential", exponential), ("two kinds", two_kinds)]
        {
            let got = snapshot(values.iter().copied());
            values.sort_unstable();
            let n = values.len();
            for (q, got) in
                [(0.5, got.p50_us), (0.9, got.p90_us), (0.95, got.p95_us), (0.99, got.p99_us)]
            {
                let want = values[(n as f64 * q).ceil() as usize - 1] as f64 / 1e3;
                assert!((got - want).abs() <= 0.25 * want, "{name}: p{q} is {got}, not {want}");
            }
        }
    }

    #[test]
    fn even_spread_in_buckets_makes_percentiles_exact() {
        // Latencies that are even inside each bucket are interpolated to 0.1 %.
        let got = snapshot((1..=100_000).map(|i| i * 100));
        for (got, want) in
            [(got.p50_us, 5e3), (got.p90_us, 9e3), (got.p95_us, 9.5e3), (got.p99_us, 9.9e3)]
        {
            assert!((got - want).abs() <= 1e-3 * want, "{got}, not {want}");
        }
    }

    #[test]
    fn mean_and_deviation_against_two_passes() {
        let spread: Vec<u64> = (0..5_000_u64).map(|i| 1_000 + i * i % 7_919 * 31).collect();
        let narrow: Vec<u64> = (0..5_000).map(|i| 1_000_000_000 + i % 3 * 20_000).collect();
        let long: Vec<u64> = (1..=40).map(|i| i * 5_000_000_000).collect();
        for values in [spread, narrow, long, vec![42]] {
            let got = snapshot(values.iter().copied());
            let n = values.len() as f64;
            let mean = values.iter().map(|&x| x as f64).sum::<f64>() / n;
            let squares = values.iter().map(|&x| (x as f64 - mean).powi(2)).sum::<f64>();
            let std = (squares / (n - 1.0).max(1.0)).sqrt();
            assert!((got.mean_us * 1e3 - mean).abs() <= 1e-12 * mean, "{} {mean}", got.mean_us);
            assert!((got.std_us * 1e3 - std).abs() <= 1e-4 * std, "{} {std}", got.std_us);
            let sum_squares: f64 = values.iter().map(|&x| (x as f64 / 1e3).powi(2)).sum();
            assert!((got.sum_squares_us2 / sum_squares - 1.0).abs() <= 1e-12);
            assert_eq!(got.count, values.len() as u64);
            assert_eq!(got.min_us, *values.iter().min().unwrap() as f64 / 1e3);
            assert_eq!(got.max_us, *values.iter().max().unwrap() as f64 / 1e3);
        }
    }

    #[test]
    fn the_histogram_lists_filled_buckets_with_their_bounds() {
        let got = snapshot([10, 1_000, 1_010, 1_100, 20_000_000_000]);
        let list: Vec<_> = got.buckets.iter().map(|b| (b.below_us, b.count)).collect();
        assert_eq!(list, [(Some(0.064), 1), (Some(1.024), 2), (Some(1.28), 1), (None, 1)]);
        // The median is in the middle of its bucket, the last rank in that of the last.
        assert_eq!((got.p50_us, got.p90_us), (0.992, 18_589_934.592));
    }
}
