//! Scale search for the 256-element types with uniform levels.
//!
//! Each sub-block is first fitted alone, with real scales: several roundings of its elements to levels
//! are tried, the least-squares scale (and minimum) of each is computed, and the one with the least
//! squared error is kept. These are then divided by the super-block's scale and rounded, and each
//! sub-block takes the integers of least error nearby. Errors are plain sums of squares.

use crate::half_bytes::{f16_to_f32, f32_to_f16};
use crate::range::{min_max, signed_peak};

/// Distance up to which the final search varies the rounded integer scales.
const REACH: i32 = 2;

fn finite_or(value: f32, other: f32) -> f32 {
    if value.is_finite() { value } else { other }
}

/// Nearest level of `0..=n_max`, ties to even.
#[inline]
fn level(x: f32, n_max: u8) -> f32 {
    x.round_ties_even().clamp(0.0, f32::from(n_max))
}

/// The squared error of `scale * level - min` with the best level for each value.
pub(crate) fn affine_error(values: &[f32], scale: f32, min: f32, n_max: u8) -> f32 {
    let inv = if scale == 0.0 { 0.0 } else { finite_or(1.0 / scale, 0.0) };
    values.iter().fold(0.0, |sum, x| {
        let e = scale * level((x + min) * inv, n_max) - min - x;
        sum + e * e
    })
}

/// The scale and the minimum, both at least 0, for `x ~ scale * level - min`.
pub(crate) fn fit_affine(values: &[f32], n_max: u8) -> (f32, f32) {
    let (lo, hi) = min_max(values);
    let lo = lo.min(0.0);
    let span = hi - lo;
    if span <= 0.0 || !span.is_finite() {
        return (0.0, finite_or(-lo, 0.0));
    }
    let n = values.len() as f32;
    let top = f32::from(n_max);
    let sum_x: f32 = values.iter().sum();
    let mut best = (span / top, -lo);
    let mut best_error = affine_error(values, best.0, best.1, n_max);
    for step in -15..=15 {
        let inv = (top + 0.1 * step as f32) / span;
        let (mut sum_l, mut sum_l2, mut sum_lx) = (0.0f32, 0.0f32, 0.0f32);
        for x in values {
            let l = level((x - lo) * inv, n_max);
            sum_l += l;
            sum_l2 += l * l;
            sum_lx += l * x;
        }
        let det = n * sum_l2 - sum_l * sum_l;
        if det <= 0.0 || sum_l2 <= 0.0 {
            continue;
        }
        let mut scale = (n * sum_lx - sum_x * sum_l) / det;
        let mut min = -(sum_l2 * sum_x - sum_l * sum_lx) / det;
        if min < 0.0 {
            min = 0.0;
            scale = sum_lx / sum_l2;
        }
        if scale <= 0.0 || !scale.is_finite() || !min.is_finite() {
            continue;
        }
        let error = affine_error(values, scale, min, n_max);
        if error < best_error {
            best_error = error;
            best = (scale, min);
        }
    }
    best
}

/// The integer scale and minimum (`0..=q_max`) of least error near `scale / d` and `min / d_min`.
pub(crate) fn refine_affine(
    values: &[f32],
    scale: f32,
    min: f32,
    d: f32,
    d_min: f32,
    q_max: u8,
    n_max: u8,
) -> (u8, u8) {
    let nearest = |x: f32, d: f32| if d > 0.0 { level(x / d, q_max) as i32 } else { 0 };
    let near = |center: i32| (center - REACH).max(0)..=(center + REACH).min(i32::from(q_max));
    let (ls, lm) = (nearest(scale, d), nearest(min, d_min));
    let mut best = (ls as u8, lm as u8);
    let mut best_error = f32::INFINITY;
    for s in near(ls) {
        for m in near(lm) {
            let error = affine_error(values, d * s as f32, d_min * m as f32, n_max);
            if error < best_error {
                best_error = error;
                best = (s as u8, m as u8);
            }
        }
    }
    best
}

/// Levels `0..=n_max` of `values` under a scale and a minimum.
pub(crate) fn affine_levels(values: &[f32], scale: f32, min: f32, n_max: u8, out: &mut [u8]) {
    let inv = if scale == 0.0 { 0.0 } else { finite_or(1.0 / scale, 0.0) };
    for (out, x) in out.iter_mut().zip(values) {
        *out = level((x + min) * inv, n_max) as u8;
    }
}

/// Nearest level of `-half..half`, ties to even.
#[inline]
fn signed_level(x: f32, half: i8) -> f32 {
    x.round_ties_even().clamp(-f32::from(half), f32::from(half - 1))
}

/// The squared error of `scale * level` with the best level for each value.
pub(crate) fn symmetric_error(values: &[f32], scale: f32, half: i8) -> f32 {
    let inv = if scale == 0.0 { 0.0 } else { finite_or(1.0 / scale, 0.0) };
    values.iter().fold(0.0, |sum, x| {
        let e = scale * signed_level(x * inv, half) - x;
        sum + e * e
    })
}

/// The scale, of either sign, for `x ~ scale * level` with levels `-half..half`.
pub(crate) fn fit_symmetric(values: &[f32], half: i8) -> f32 {
    let peak = signed_peak(values);
    if peak == 0.0 || !peak.is_finite() {
        return 0.0;
    }
    let mut best = -peak / f32::from(half);
    let mut best_error = symmetric_error(values, best, half);
    // Scales of both signs, because there is one more negative level.
    for toward in [-1.0f32, 1.0] {
        for step in -15..=15 {
            let inv = toward * (f32::from(half) + 0.1 * step as f32) / peak;
            let (mut sum_l2, mut sum_lx) = (0.0f32, 0.0f32);
            for x in values {
                let l = signed_level(x * inv, half);
                sum_l2 += l * l;
                sum_lx += l * x;
            }
            if sum_l2 <= 0.0 {
                continue;
            }
            let scale = sum_lx / sum_l2;
            let error = symmetric_error(values, scale, half);
            if error < best_error {
                best_error = error;
                best = scale;
            }
        }
    }
    best
}

/// The integer scale (`-q_half..q_half`) of least error near `scale / d`.
fn refine_signed(scale: f32, d: f32, q_half: i32, error: impl Fn(f32) -> f32) -> i32 {
    if d == 0.0 {
        return 0;
    }
    let (low, high) = (-q_half, q_half - 1);
    let center = ((scale / d).round_ties_even() as i32).clamp(low, high);
    let mut best = center;
    let mut best_error = f32::INFINITY;
    // The negated scale is a candidate too: it moves the extra level to the other side.
    for center in [center, (-center).clamp(low, high)] {
        for s in (center - REACH).max(low)..=(center + REACH).min(high) {
            let error = error(d * s as f32);
            if error < best_error {
                best_error = error;
                best = s;
            }
        }
    }
    best
}

/// Levels of `values` under a scale, raised by `half` to be at least 0.
pub(crate) fn symmetric_levels(values: &[f32], scale: f32, half: i8, out: &mut [u8]) {
    let inv = if scale == 0.0 { 0.0 } else { finite_or(1.0 / scale, 0.0) };
    for (out, x) in out.iter_mut().zip(values) {
        *out = (signed_level(x * inv, half) + f32::from(half)) as u8;
    }
}

/// The scales of `N` symmetric sub-blocks: the super-block's scale in binary16 and the integers.
pub(crate) fn symmetric_scales<const N: usize>(
    values: &[f32],
    q_half: i32,
    half: i8,
) -> ([u8; 2], [i32; N]) {
    let fit = |values: &[f32]| fit_symmetric(values, half);
    signed_scales(values, q_half, fit, |values, scale| symmetric_error(values, scale, half))
}

/// The scales of `N` sub-blocks, as integers in `-q_half..q_half`, and the super-block's scale in
/// binary16. `fit` finds the scale of a sub-block alone, and `error` is its squared error under a scale.
///
/// Rounding the super-block's scale is a systematic error of all elements. So the largest scale is mapped
/// to each of a few integers, the quotient is rounded to several adjacent binary16 numbers, and the
/// super-block's scale of least error is kept.
pub(crate) fn signed_scales<const N: usize>(
    values: &[f32],
    q_half: i32,
    fit: impl Fn(&[f32]) -> f32,
    error: impl Fn(&[f32], f32) -> f32,
) -> ([u8; 2], [i32; N]) {
    let len = values.len() / N;
    let sub = |i: usize| &values[i * len..][..len];
    let fitted: [f32; N] = std::array::from_fn(|i| fit(sub(i)));
    let peak = signed_peak(&fitted);
    let mut best = (f32_to_f16(-peak / q_half as f32), [0; N]);
    let mut best_error = f32::INFINITY;
    for (target, step) in (0..4).flat_map(|t| [(q_half - t, -1), (q_half - t, 0), (q_half - t, 1)])
    {
        let bits = u16::from_le_bytes(f32_to_f16(-peak / target as f32));
        let bits = bits.wrapping_add_signed(step).to_le_bytes();
        let d = f16_to_f32(bits);
        if !d.is_finite() {
            continue;
        }
        let scales = std::array::from_fn(|i| {
            refine_signed(fitted[i], d, q_half, |scale| error(sub(i), scale))
        });
        let errors = scales.iter().enumerate();
        let total = errors.map(|(i, s)| error(sub(i), d * *s as f32)).sum();
        if total < best_error {
            best_error = total;
            best = (bits, scales);
        }
    }
    best
}

/// The scales of `N` affine sub-blocks: both super-block scales in binary16 and the integers.
pub(crate) fn affine_scales<const N: usize>(
    values: &[f32],
    q_max: u8,
    n_max: u8,
) -> ([u8; 2], [u8; 2], [u8; N], [u8; N]) {
    let len = values.len() / N;
    let sub = |i: usize| &values[i * len..][..len];
    let fitted: [(f32, f32); N] = std::array::from_fn(|i| fit_affine(sub(i), n_max));
    let (top_scale, top_min) =
        fitted.iter().fold((0.0f32, 0.0f32), |(s, m), f| (s.max(f.0), m.max(f.1)));
    let d = f32_to_f16(top_scale / f32::from(q_max));
    let d_min = f32_to_f16(top_min / f32::from(q_max));
    let (unit, min_unit) = (f16_to_f32(d), f16_to_f32(d_min));
    let (mut scales, mut mins) = ([0; N], [0; N]);
    for i in 0..N {
        let (scale, min) = fitted[i];
        (scales[i], mins[i]) = refine_affine(sub(i), scale, min, unit, min_unit, q_max, n_max);
    }
    (d, d_min, scales, mins)
}
