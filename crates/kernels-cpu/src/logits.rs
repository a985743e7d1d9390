//! Block-wise passes over a row of logits: the maximum, and the sum of softmax numerators, per 64.
//!
//! The numerator of a softmax term is a *weight* in F32 where few tokens are compared, and a *share*,
//! an integer, where the whole vocabulary is summed. Shares take integer operations only and their
//! sums have no order, so every device computes the same ones from the same logits.
//!
//! The loops are plain Rust over lanes, compiled once for any processor and once for AVX2. Neither
//! form fuses multiply and add, so the bits are the same on every tier.

use crate::{ShareScale, Tier, math};

/// Logits per block.
pub const LOGIT_BLOCK: usize = 64;
const N_LANES: usize = 16;

/// Writes the largest logit of each block, and returns whether there is a NaN. The last block may be
/// shorter.
///
/// # Panics
/// If `maxima` does not have one element per block.
pub fn logit_maxima(
    tier: Tier,
    logits: &[f32],     // [vocab_size]
    maxima: &mut [f32], // [ceil(vocab_size / 64)]
) -> bool {
    assert_eq!(maxima.len(), logits.len().div_ceil(LOGIT_BLOCK), "maxima of the blocks");
    match tier.avx2() {
        None => maxima_of(logits, maxima),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that AVX2, FMA and F16C were detected.
        Some(_) => unsafe { avx2::maxima(logits, maxima) },
    }
}

/// The weight of a logit relative to the largest one: `e^((logit - max) * scale)`, or zero if that is
/// below `e^-87`.
#[inline(always)]
pub fn logit_weight(logit: f32, max: f32, scale: f32) -> f32 {
    math::exp_nonpositive((logit - max) * scale)
}

/// (1 - 2^-x) / x on 0 <= x <= 1 as a polynomial in -x, lowest degree first, in units of 2^-31. It is
/// exact at 0, and within 1.3e-7 of 2^-x relative to it.
const EXP2_POLY: [u64; 5] = [1_488_515_590, 515_789_246, 118_765_909, 19_784_458, 2_034_029];

/// Computes shares relative to the largest logit: `2^39 e^((logit - max) * scale)` as an integer, with a
/// relative error of at most 1.5e-7 plus an absolute one of at most 1.
///
/// Logits are truncated to multiples of a unit: 2^-29 times the power of two in `max` or in the range of
/// nonzero shares, whichever is larger. The distance from the largest logit, times the scale, is a base-2
/// logarithm in units of 2^-25. Its integer part becomes a shift, and a polynomial takes its fraction.
#[derive(Debug, Clone, Copy)]
pub struct LogitShares {
    unit: f32,
    max: i32,
    factor: u64,
    shift: u32,
}

impl LogitShares {
    /// The share of the largest logit.
    pub const ONE: u64 = 1 << 39;

    /// Shares relative to `max`, which must be finite.
    pub fn new(max: f32, scale: ShareScale) -> Self {
        let of_max = (max.to_bits() >> 23 & 255) as i32 - 127;
        let exponent = of_max.max(scale.range);
        let unit = f32::from_bits(((29 - exponent + 127) as u32) << 23);
        Self {
            unit,
            max: (max * unit) as i32,
            factor: u64::from(scale.factor),
            shift: (30 - (exponent - scale.range)).max(0) as u32,
        }
    }

    /// The share of a logit, which must be at most the largest one; zero for minus infinity.
    #[inline(always)]
    pub fn of(self, logit: f32) -> u64 {
        let below = self.max.wrapping_sub((logit * self.unit) as i32).cast_unsigned();
        let log = (u64::from(below) * self.factor) >> self.shift;
        let rest = (log & ((1 << 25) - 1)) << 7; // in units of 2^-32
        let [c1, c2, c3, c4, c5] = EXP2_POLY;
        let times = |x: u64| (rest * x) >> 32;
        let power = (1 << 31) - times(c1 - times(c2 - times(c3 - times(c4 - times(c5)))));
        (power << 8) >> (log >> 25).min(63)
    }
}

/// Writes the sum of the [shares](LogitShares) of each block. `maxima` are the blocks' largest logits.
///
/// # Panics
/// If `maxima` or `sums` does not have one element per block.
pub fn logit_sums(
    tier: Tier,
    logits: &[f32], // [vocab_size], at most the largest that shares are beside
    maxima: &[f32], // [ceil(vocab_size / 64)]
    shares: LogitShares,
    sums: &mut [u64], // [ceil(vocab_size / 64)]
) {
    assert_eq!(maxima.len(), logits.len().div_ceil(LOGIT_BLOCK), "maxima of the blocks");
    assert_eq!(maxima.len(), sums.len(), "sums of the blocks");
    match tier.avx2() {
        None => sums_of(logits, maxima, shares, sums),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that AVX2, FMA and F16C were detected.
        Some(_) => unsafe { avx2::sums(logits, maxima, shares, sums) },
    }
}

/// The last block, padded with minus infinity.
#[inline(always)]
fn padded(tail: &[f32]) -> [f32; LOGIT_BLOCK] {
    let mut block = [f32::NEG_INFINITY; LOGIT_BLOCK];
    block[..tail.len()].copy_from_slice(tail);
    block
}

/// The larger one, in one instruction, unlike [`f32::max`]. NaN is never the larger one.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Combines sixteen lanes in pairs.
#[inline(always)]
fn fold(mut lanes: [f32; N_LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut n = N_LANES / 2;
    while n > 0 {
        for i in 0..n {
            lanes[i] = f(lanes[i], lanes[i + n]);
        }
        n /= 2;
    }
    lanes[0]
}

/// The largest logit of a block. Sets `nan` to 1 in lanes with a NaN.
#[inline(always)]
fn max_of(block: &[f32; LOGIT_BLOCK], nan: &mut [u32; N_LANES]) -> f32 {
    let mut max = [f32::NEG_INFINITY; N_LANES];
    for x in block.as_chunks::<N_LANES>().0 {
        for i in 0..N_LANES {
            max[i] = larger(x[i], max[i]);
            nan[i] |= u32::from(x[i].is_nan());
        }
    }
    fold(max, larger)
}

#[inline(always)]
fn maxima_of(logits: &[f32], maxima: &mut [f32]) -> bool {
    let mut nan = [0_u32; N_LANES];
    let (whole, tail) = logits.as_chunks::<LOGIT_BLOCK>();
    for (block, max) in whole.iter().zip(&mut *maxima) {
        *max = max_of(block, &mut nan);
    }
    if let Some(max) = maxima.get_mut(whole.len()) {
        *max = max_of(&padded(tail), &mut nan);
    }
    nan != [0; N_LANES]
}

/// The sum of a block's shares.
#[inline(always)]
fn sum_of(block: &[f32; LOGIT_BLOCK], block_max: f32, shares: LogitShares) -> u64 {
    // If the largest logit of the block has no share, the others have none.
    if shares.of(block_max) == 0 {
        return 0;
    }
    block.iter().map(|&logit| shares.of(logit)).sum()
}

#[inline(always)]
fn sums_of(logits: &[f32], maxima: &[f32], shares: LogitShares, sums: &mut [u64]) {
    let (whole, tail) = logits.as_chunks::<LOGIT_BLOCK>();
    for ((block, &block_max), sum) in whole.iter().zip(maxima).zip(&mut *sums) {
        *sum = sum_of(block, block_max, shares);
    }
    if let (Some(sum), Some(&block_max)) = (sums.get_mut(whole.len()), maxima.last()) {
        *sum = sum_of(&padded(tail), block_max, shares);
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::LogitShares;

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn maxima(logits: &[f32], maxima: &mut [f32]) -> bool {
        super::maxima_of(logits, maxima)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn sums(logits: &[f32], maxima: &[f32], shares: LogitShares, sums: &mut [u64]) {
        super::sums_of(logits, maxima, shares, sums);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_match_f64_and_every_tier_has_the_same_bits() {
        let mut seed = 11;
        for n in [1, 63, 64, 65, 1000] {
            let mut logits = crate::testing::random(&mut seed, n);
            logits.iter_mut().for_each(|x| *x *= 20.0);
            logits[n / 2] = f32::NEG_INFINITY;
            let n_blocks = n.div_ceil(LOGIT_BLOCK);
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max).max(0.0);
            let mut bits = Vec::new();
            for tier in Tier::available() {
                let (mut maxima, mut sums) = (vec![0.0; n_blocks], vec![0; n_blocks]);
                assert!(!logit_maxima(tier, &logits, &mut maxima));
                let shares = LogitShares::new(max, ShareScale::new(0.7));
                logit_sums(tier, &logits, &maxima, shares, &mut sums);
                for (b, block) in logits.chunks(LOGIT_BLOCK).enumerate() {
                    let largest = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    assert_eq!(maxima[b], largest);
                    let weight = |x: &f32| (f64::from(x - max) * f64::from(0.7_f32)).exp();
                    let want: f64 = block.iter().map(weight).sum();
                    let found = sums[b] as f64 / LogitShares::ONE as f64;
                    assert!((found - want).abs() < 2e-7 * want + 64.0 / LogitShares::ONE as f64);
                }
                bits.push(sums);
            }
            assert!(bits.windows(2).all(|pair| pair[0] == pair[1]));
            logits[n - 1] = f32::NAN;
            for tier in Tier::available() {
                assert!(logit_maxima(tier, &logits, &mut vec![0.0; n_blocks]));
            }
        }
    }

    #[test]
    fn shares_are_near_exponentials_and_fall_with_the_logits() {
        let one = LogitShares::ONE as f64;
        for scale in [1e-3, 0.5, std::f32::consts::LN_2, 1.0, 1.25, 10.0, 100.0, 1e4] {
            let of_scale = ShareScale::new(scale);
            assert!(of_scale.factor >> 31 == 1, "{scale}");
            for max in [0.0, -0.0, 1e-30, 0.3, -0.7, 17.3, -17.3, 255.9, -3000.0, 1e6, 1e30, -1e38]
            {
                let shares = LogitShares::new(max, of_scale);
                assert_eq!(shares.of(max), LogitShares::ONE);
                assert_eq!(shares.of(f32::NEG_INFINITY), 0);
                let mut last = LogitShares::ONE;
                for i in 0..40_000 {
                    let logit = (f64::from(max) - f64::from(i) * 1e-3 / f64::from(scale)) as f32;
                    let exponent = (f64::from(logit) - f64::from(max)) * f64::from(scale);
                    let found = shares.of(logit);
                    assert!(found <= last, "{logit} beside {max} times {scale}");
                    last = found;
                    let want = exponent.exp();
                    let error = (found as f64 / one - want).abs();
                    assert!(error <= 3e-7 * want + 1.0 / one, "{logit} beside {max} times {scale}");
                }
                let far = (f64::from(max) - 1e3 / f64::from(scale)) as f32;
                assert_eq!(shares.of(far.min(max.next_down())) > 0, far > max - 28.0 / scale);
            }
        }
    }

    #[test]
    fn shares_have_these_bits() {
        // The definition in rational numbers of Python.
        let shares = LogitShares::new(17.25, ShareScale::new(1.0));
        let found = [17.25, 17.0, 16.7, 1.0, -3.5, -1e30].map(|logit| shares.of(logit));
        assert_eq!(found, [549_755_813_888, 428_150_257_408, 317_181_723_648, 48_181, 535, 0]);
    }
}
