//! Passes over a row of logits: the largest value and the sum of the weights of every
//! block of 64.
//!
//! The loops are plain Rust over sixteen lanes, compiled once for any processor and once
//! for AVX2. Neither form fuses multiply and add, so every tier gives the same bits.

use crate::{Tier, math};

/// Logits of a block.
pub const LOGIT_BLOCK: usize = 64;
const N_LANES: usize = 16;

/// Writes the largest logit of every block, the last of which may be shorter, and returns
/// whether there is a NaN.
///
/// # Panics
/// If there is not one maximum for each block.
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

/// The weight of a logit beside one of `max`: `e^((logit - max) * scale)`, and zero where
/// that is below `e^-87`.
#[inline(always)]
pub fn logit_weight(logit: f32, max: f32, scale: f32) -> f32 {
    math::exp_nonpositive((logit - max) * scale)
}

/// Writes the sum of the weights ([`logit_weight`]) of every block, whose largest logits
/// are `maxima`.
///
/// # Panics
/// If there is not one maximum and one sum for each block.
pub fn logit_sums(
    tier: Tier,
    logits: &[f32], // [vocab_size], at most `max`
    maxima: &[f32], // [ceil(vocab_size / 64)]
    max: f32,
    scale: f32,
    sums: &mut [f32], // [ceil(vocab_size / 64)]
) {
    assert_eq!(maxima.len(), logits.len().div_ceil(LOGIT_BLOCK), "maxima of the blocks");
    assert_eq!(maxima.len(), sums.len(), "sums of the blocks");
    match tier.avx2() {
        None => sums_of(logits, maxima, max, scale, sums),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that AVX2, FMA and F16C were detected.
        Some(_) => unsafe { avx2::sums(logits, maxima, max, scale, sums) },
    }
}

/// A last block, padded with minus infinity.
#[inline(always)]
fn padded(tail: &[f32]) -> [f32; LOGIT_BLOCK] {
    let mut block = [f32::NEG_INFINITY; LOGIT_BLOCK];
    block[..tail.len()].copy_from_slice(tail);
    block
}

/// The larger one. Unlike [`f32::max`] it is one instruction; NaN is never the larger one.
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

/// The largest logit of a block; `nan` becomes one where a lane has a NaN.
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

/// The sum of a block's weights.
#[inline(always)]
fn sum_of(block: &[f32; LOGIT_BLOCK], block_max: f32, max: f32, scale: f32) -> f32 {
    // Where the largest weighs nothing, none does.
    if logit_weight(block_max, max, scale) == 0.0 {
        return 0.0;
    }
    let mut sum = [0.0; N_LANES];
    for x in block.as_chunks::<N_LANES>().0 {
        for i in 0..N_LANES {
            sum[i] += logit_weight(x[i], max, scale);
        }
    }
    fold(sum, |a, b| a + b)
}

#[inline(always)]
fn sums_of(logits: &[f32], maxima: &[f32], max: f32, scale: f32, sums: &mut [f32]) {
    let (whole, tail) = logits.as_chunks::<LOGIT_BLOCK>();
    for ((block, &block_max), sum) in whole.iter().zip(maxima).zip(&mut *sums) {
        *sum = sum_of(block, block_max, max, scale);
    }
    if let (Some(sum), Some(&block_max)) = (sums.get_mut(whole.len()), maxima.last()) {
        *sum = sum_of(&padded(tail), block_max, max, scale);
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn maxima(logits: &[f32], maxima: &mut [f32]) -> bool {
        super::maxima_of(logits, maxima)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn sums(logits: &[f32], maxima: &[f32], max: f32, scale: f32, sums: &mut [f32]) {
        super::sums_of(logits, maxima, max, scale, sums);
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
                let (mut maxima, mut sums) = (vec![0.0; n_blocks], vec![0.0; n_blocks]);
                assert!(!logit_maxima(tier, &logits, &mut maxima));
                logit_sums(tier, &logits, &maxima, max, 0.7, &mut sums);
                for (b, block) in logits.chunks(LOGIT_BLOCK).enumerate() {
                    let largest = block.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    assert_eq!(maxima[b], largest);
                    let weight = |x: &f32| (f64::from(x - max) * f64::from(0.7_f32)).exp();
                    let want: f64 = block.iter().map(weight).sum();
                    assert!((f64::from(sums[b]) - want).abs() < 1e-5 * want + 1e-36, "{tier}");
                }
                bits.push(sums.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
            }
            assert!(bits.windows(2).all(|pair| pair[0] == pair[1]));
            logits[n - 1] = f32::NAN;
            for tier in Tier::available() {
                assert!(logit_maxima(tier, &logits, &mut vec![0.0; n_blocks]));
            }
        }
    }
}
