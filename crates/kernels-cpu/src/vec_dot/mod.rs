//! Conversion of weight rows to floats, one file per weight type.
//!
//! A type's file unpacks a block to small integers and scales, once in plain Rust and once in AVX2.
//! `small` (blocks of 32) and `large` (blocks of 256) convert these to f32. Float types also have dot
//! products (`float`, `f8_0`); the products of quantized types are in `packed`. Types without a file
//! here are dequantized by `realizar_quant`. Threads and tiles are not known here.

mod bfloat16;
mod f8_0;
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

/// The functions that convert whole blocks of a row to f32.
#[derive(Clone, Copy)]
struct Widen {
    scalar: fn(w: &[u8], out: &mut [f32]),
    #[cfg(target_arch = "x86_64")]
    avx2: unsafe fn(w: &[u8], out: &mut [f32]),
}

/// The functions that multiply 1 or 4 weight rows with 1, 2 or 4 activation rows, to products in order
/// `[weight row][activation row]`. The bits of a product depend on its two rows alone.
#[derive(Clone, Copy)]
struct Dot {
    scalar: fn(w: &[WeightRow<'_>], x: &[&[f32]], out: &mut [f32]),
    #[cfg(target_arch = "x86_64")]
    avx2: unsafe fn(w: &[WeightRow<'_>], x: &[&[f32]], out: &mut [f32]),
}

/// The bytes of a row of weights.
type WeightRow<'a> = &'a [u8];

/// The kernels of a weight type.
#[derive(Clone, Copy)]
struct Kernels {
    widen: Widen,
    /// `None` for quantized types, which are packed for their products.
    dot: Option<Dot>,
}

/// The kernels of a weight type, if it has a file here.
fn kernels(ty: BlockType) -> Option<Kernels> {
    Some(match ty {
        BlockType::F32 => float32::KERNELS,
        BlockType::F16 => float16::KERNELS,
        BlockType::BF16 => bfloat16::KERNELS,
        BlockType::F8_0 => f8_0::KERNELS,
        BlockType::Q4_0 => q4_0::KERNELS,
        BlockType::Q4_1 => q4_1::KERNELS,
        BlockType::Q5_0 => q5_0::KERNELS,
        BlockType::Q5_1 => q5_1::KERNELS,
        BlockType::Q8_0 => q8_0::KERNELS,
        BlockType::Q2_K => q2_k::KERNELS,
        BlockType::Q3_K => q3_k::KERNELS,
        BlockType::Q4_K => q4_k::KERNELS,
        BlockType::Q5_K => q5_k::KERNELS,
        BlockType::Q6_K => q6_k::KERNELS,
        _ => return None,
    })
}

/// Whether matrix products take weights of this type: all types except `Q8_1` and `Q8_K`, which are
/// for activations, and `F8`, which is for keys and values.
pub fn supports_weights(ty: BlockType) -> bool {
    !matches!(ty, BlockType::Q8_1 | BlockType::Q8_K | BlockType::F8)
}

/// Whether [`matmul_rows`](crate::matmul_rows) takes weights of this type: float types only.
pub fn supports_rows(ty: BlockType) -> bool {
    kernels(ty).is_some_and(|kernels| kernels.dot.is_some())
}

/// The products of rows of a float type, see [`Dot`].
pub(crate) fn dot_float(
    ty: BlockType,
    tier: Tier,
    w: &[&[u8]],
    x: &[&[f32]],
    out: &mut [f32], // [w.len() * x.len()]
) {
    let Some(dot) = kernels(ty).and_then(|kernels| kernels.dot) else {
        panic!("{ty} weights have no product with float activations")
    };
    match tier.avx2() {
        None => (dot.scalar)(w, x, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token exists only if the instructions were detected.
        Some(_) => unsafe { (dot.avx2)(w, x, out) },
    }
}

/// Converts whole blocks of a row to f32.
pub(crate) fn widen(ty: BlockType, tier: Tier, w: &[u8], out: &mut [f32]) {
    let Some(Kernels { widen, .. }) = kernels(ty) else {
        realizar_quant::dequantize(ty, w, out).expect("the bytes are those of the blocks");
        return;
    };
    match tier.avx2() {
        None => (widen.scalar)(w, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token exists only if the instructions were detected.
        Some(_) => unsafe { (widen.avx2)(w, out) },
    }
}

/// The little-endian f16 at `at`.
#[inline]
fn f16_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32([block[at], block[at + 1]])
}
