//! Dot products of weight rows with activation rows, one file per weight type.
//!
//! A type's file says how a block becomes small integers and scales, once in plain
//! Rust and once in registers. The dot products and the conversion to f32 that are
//! made of that live in `small` (blocks of 32), `large` (blocks of 256) and `float`.
//! Nothing here knows threads or tiles.

mod bfloat16;

mod float;
mod float16;
mod float32;
mod large;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
#[cfg(target_arch = "x86_64")]
pub(crate) mod simd;
mod small;

use realizar_quant::BlockType;
use realizar_quant::half_bytes::f16_to_f32;

use crate::Tier;
use crate::quantize::QuantizedRow;

/// Weight rows that one call of a dot product may take.
pub(crate) const MAX_WEIGHT_ROWS: usize = 4;

/// The kernels of a type whose dot products take activations of type `$x`.
macro_rules! kernels {
    ($(#[$doc:meta])* $name:ident, $x:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        struct $name {
            /// The dot product of each weight row with each activation row, in order
            /// `[weight row][activation row]`: 1 or 4 weight rows with 1, 2 or 4
            /// activation rows. The bits of a product depend on its two rows alone.
            dot: fn(w: &[&[u8]], x: &[$x], out: &mut [f32]),
            #[cfg(target_arch = "x86_64")]
            dot_avx2: unsafe fn(w: &[&[u8]], x: &[$x], out: &mut [f32]),
            /// Whole blocks of a row to f32.
            widen: fn(w: &[u8], out: &mut [f32]),
            #[cfg(target_arch = "x86_64")]
            widen_avx2: unsafe fn(w: &[u8], out: &mut [f32]),
        }

        impl $name {
            fn dot(&self, tier: Tier, w: &[&[u8]], x: &[$x], out: &mut [f32]) {
                match tier.avx2() {
                    None => (self.dot)(w, x, out),
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: the token of this tier exists only if its instructions
                    // were detected.
                    Some(_) => unsafe { (self.dot_avx2)(w, x, out) },
                }
            }

            fn widen(&self, tier: Tier, w: &[u8], out: &mut [f32]) {
                match tier.avx2() {
                    None => (self.widen)(w, out),
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: the token of this tier exists only if its instructions
                    // were detected.
                    Some(_) => unsafe { (self.widen_avx2)(w, out) },
                }
            }
        }
    };
}

kernels!(
    /// Kernels of a quantized type.
    QuantKernels,
    QuantizedRow<'_>
);
kernels!(
    /// Kernels of a float type.
    FloatKernels,
    &[f32]
);

/// A row of the table.
#[derive(Clone, Copy)]
enum Kernels {
    Quant(QuantKernels),
    Float(FloatKernels),
}

/// The kernels of a weight type, if it is one.
fn kernels(ty: BlockType) -> Option<Kernels> {
    Some(match ty {
        BlockType::F32 => Kernels::Float(float32::KERNELS),
        BlockType::F16 => Kernels::Float(float16::KERNELS),
        BlockType::BF16 => Kernels::Float(bfloat16::KERNELS),
        BlockType::Q4_0 => Kernels::Quant(q4_0::KERNELS),
        BlockType::Q4_1 => Kernels::Quant(q4_1::KERNELS),
        BlockType::Q5_0 => Kernels::Quant(q5_0::KERNELS),
        BlockType::Q5_1 => Kernels::Quant(q5_1::KERNELS),
        BlockType::Q8_0 => Kernels::Quant(q8_0::KERNELS),
        BlockType::Q2_K => Kernels::Quant(q2_k::KERNELS),
        BlockType::Q3_K => Kernels::Quant(q3_k::KERNELS),
        BlockType::Q4_K => Kernels::Quant(q4_k::KERNELS),
        BlockType::Q5_K => Kernels::Quant(q5_k::KERNELS),
        BlockType::Q6_K => Kernels::Quant(q6_k::KERNELS),
        _ => return None,
    })
}

/// Whether matrix products take weights of this type. Those that do not are the
/// types made for activations, `Q8_1` and `Q8_K`.
pub fn supports_weights(ty: BlockType) -> bool {
    kernels(ty).is_some()
}

/// Whether the integer arithmetic of a weight type takes quantized activations
/// rather than floats.
pub fn takes_quantized(ty: BlockType) -> bool {
    matches!(kernels(ty), Some(Kernels::Quant(_)))
}

/// The products of rows of a quantized type, see [`QuantKernels`].
pub(crate) fn dot_quantized(
    ty: BlockType,
    tier: Tier,
    w: &[&[u8]],
    x: &[QuantizedRow<'_>],
    out: &mut [f32], // [w.len() * x.len()]
) {
    match kernels(ty) {
        Some(Kernels::Quant(k)) => k.dot(tier, w, x, out),
        _ => panic!("{ty} weights have no product with quantized activations"),
    }
}

/// The products of rows of a float type, see [`FloatKernels`].
pub(crate) fn dot_float(
    ty: BlockType,
    tier: Tier,
    w: &[&[u8]],
    x: &[&[f32]],
    out: &mut [f32], // [w.len() * x.len()]
) {
    match kernels(ty) {
        Some(Kernels::Float(k)) => k.dot(tier, w, x, out),
        _ => panic!("{ty} weights have no product with float activations"),
    }
}

/// Whole blocks of a row to f32.
pub(crate) fn widen(ty: BlockType, tier: Tier, w: &[u8], out: &mut [f32]) {
    match kernels(ty) {
        Some(Kernels::Quant(k)) => k.widen(tier, w, out),
        Some(Kernels::Float(k)) => k.widen(tier, w, out),
        None => panic!("{ty} is not a type of weights"),
    }
}

/// The little-endian f16 at `at`.
#[inline]
fn f16_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32([block[at], block[at + 1]])
}
