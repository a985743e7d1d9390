//! Float arithmetic as documented by PTX, where it differs from Rust's operators.

pub(crate) mod approx;
pub(crate) mod fma;
pub(crate) mod format;
pub(crate) mod round;

/// The NaN that F32 instructions return, whatever their inputs.
pub(crate) const NAN32: u32 = 0x7fff_ffff;

/// The bits of `x`, or of the canonical NaN. The choice is among integers, because a compiler may replace a NaN by any
/// other.
#[inline]
pub(crate) fn canonical(x: f32) -> u32 {
    let bits = x.to_bits();
    if bits & 0x7fff_ffff > 0x7f80_0000 { NAN32 } else { bits }
}

/// `.ftz`: flushes subnormal numbers to zero, keeping the sign.
#[inline]
pub(crate) fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(x) } else { x }
}

/// `.sat`: clamps to [0, 1]; NaN becomes 0.
#[inline]
pub(crate) fn saturate(x: f32) -> f32 {
    if x > 0.0 { x.min(1.0) } else { 0.0 }
}
