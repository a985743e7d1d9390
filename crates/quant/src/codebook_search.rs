//! Scale search for the types whose levels are a codebook of 16 values.
//!
//! As in `k_search`, several roundings of a block's elements to levels are tried; the least-squares scale
//! of each is computed, and the one with the least squared error is kept.

use crate::codebook::{FP4, IQ4};
use crate::range::signed_peak;

/// Midpoints of adjacent codebook values.
const IQ4_MIDDLES: [f32; 15] = {
    let mut middles = [0.0; 15];
    let mut i = 0;
    while i < 15 {
        middles[i] = (IQ4[i] as f32 + IQ4[i + 1] as f32) / 2.0;
        i += 1;
    }
    middles
};

/// Midpoints of adjacent FP4 magnitudes, in units of the halved scale.
const FP4_MIDDLES: [f32; 7] = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0];

/// `1 / scale`; 0 if `scale` is 0.
fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The level nearest to `x`; the higher one on ties.
#[inline]
fn iq4_level(x: f32) -> u8 {
    IQ4_MIDDLES.iter().map(|middle| u8::from(x >= *middle)).sum()
}

/// The value of the level nearest to `x`, as the sum of the steps below it.
#[inline]
fn iq4_value(x: f32) -> f32 {
    let mut value = f32::from(IQ4[0]);
    for i in 0..15 {
        let step = f32::from(IQ4[i + 1]) - f32::from(IQ4[i]);
        value += if x >= IQ4_MIDDLES[i] { step } else { 0.0 };
    }
    value
}

/// The squared error of `scale * IQ4[level]` with the best level for each value.
pub(crate) fn iq4_error(values: &[f32], scale: f32) -> f32 {
    let inv = inverse(scale);
    values.iter().fold(0.0, |sum, x| {
        let e = scale * iq4_value(x * inv) - x;
        sum + e * e
    })
}

/// The scale, of either sign, for `x ~ scale * IQ4[level]`.
pub(crate) fn fit_iq4(values: &[f32]) -> f32 {
    let peak = signed_peak(values);
    if peak == 0.0 || !peak.is_finite() {
        return 0.0;
    }
    let mut best = peak / f32::from(IQ4[0]);
    let mut best_error = iq4_error(values, best);
    // Scales of both signs, because the codebook has larger negative than positive values.
    for end in [IQ4[0], IQ4[15]] {
        for step in -7..=7 {
            let inv = (f32::from(end) + step as f32) / peak;
            let (mut sum_q2, mut sum_qx) = (0.0f32, 0.0f32);
            for x in values {
                let q = iq4_value(x * inv);
                sum_q2 += q * q;
                sum_qx += q * x;
            }
            let scale = sum_qx / sum_q2;
            let error = iq4_error(values, scale);
            if error < best_error {
                best_error = error;
                best = scale;
            }
        }
    }
    best
}

/// Levels of `values` under a scale.
pub(crate) fn iq4_levels(values: &[f32], scale: f32, out: &mut [u8]) {
    let inv = inverse(scale);
    for (out, x) in out.iter_mut().zip(values) {
        *out = iq4_level(x * inv);
    }
}

/// The FP4 level nearest to `x`, in units of the codebook; the smaller magnitude on ties.
#[inline]
fn fp4_level(x: f32) -> u8 {
    let level: u8 = FP4_MIDDLES.iter().map(|middle| u8::from(x.abs() > *middle)).sum();
    level | u8::from(x < 0.0 && level > 0) << 3
}

/// Levels of `values` under a halved scale.
pub(crate) fn fp4_levels(values: &[f32], scale: f32, out: &mut [u8]) {
    let inv = inverse(scale);
    for (out, x) in out.iter_mut().zip(values) {
        *out = fp4_level(x * inv);
    }
}

/// The candidate whose halved scale has the least squared error; the earlier one on ties.
pub(crate) fn fp4_scale(
    values: &[f32],
    candidates: impl Iterator<Item = u8>,
    scale_of: fn(u8) -> f32,
) -> u8 {
    let (mut best, mut best_error) = (None, f32::INFINITY);
    for candidate in candidates {
        let scale = scale_of(candidate);
        let inv = inverse(scale);
        let error = values.iter().fold(0.0, |sum, x| {
            let e = scale * f32::from(FP4[usize::from(fp4_level(x * inv))]) - x;
            sum + e * e
        });
        if best.is_none() || error < best_error {
            best_error = error;
            best = Some(candidate);
        }
    }
    best.unwrap_or(0)
}
