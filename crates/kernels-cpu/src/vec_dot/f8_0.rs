//! F8_0: an f32 scale and 64 FP8 numbers (`E4M3`), `w = d * e4m3(q)`. As a float type it is multiplied
//! with F32 activations: numbers are widened exactly, and a block's sums are multiplied by its scale.
//!
//! A row is summed in 32 lanes. Lane `i` adds the values `i` and `i + 32` of each block, times the
//! block's scale, in order of the blocks. The lanes are added in a fixed order.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use realizar_quant::small_floats::e4m3;

#[cfg(target_arch = "x86_64")]
use super::simd;
use super::{Dot, Kernels, Widen};
#[cfg(target_arch = "x86_64")]
use crate::lanes;

/// Values per block.
const LEN: usize = 64;
/// Bytes of a block's scale.
const SCALE: usize = 4;
/// Bytes per block.
const BYTES: usize = SCALE + LEN;
/// Number of lanes of a sum.
const LANES: usize = 32;
/// The quotient of an E4M3 number and the binary16 number with the same exponent and mantissa bits.
#[cfg(target_arch = "x86_64")]
const OF_HALF: f32 = 256.0;

pub(super) const KERNELS: Kernels = Kernels {
    widen: Widen {
        scalar: widen,
        #[cfg(target_arch = "x86_64")]
        avx2: widen_avx2,
    },
    dot: Some(Dot {
        scalar: dot,
        #[cfg(target_arch = "x86_64")]
        avx2: dot_avx2,
    }),
};

/// A block's scale and numbers.
#[inline]
fn parts(block: &[u8; BYTES]) -> (f32, &[u8; LEN]) {
    let (scale, numbers) = block.split_at(SCALE);
    let (&[scale], [numbers]) = (scale.as_chunks().0, numbers.as_chunks().0) else {
        unreachable!("the bytes of a block")
    };
    (f32::from_le_bytes(scale), numbers)
}

fn widen(w: &[u8], out: &mut [f32]) {
    for (block, out) in w.as_chunks().0.iter().zip(out.as_chunks_mut::<LEN>().0) {
        let (d, numbers) = parts(block);
        for (out, &q) in out.iter_mut().zip(numbers) {
            *out = d * e4m3(q);
        }
    }
}

fn dot(w: &[&[u8]], x: &[&[f32]], out: &mut [f32]) {
    for (w, out) in w.iter().zip(out.chunks_exact_mut(x.len())) {
        for (x, out) in x.iter().zip(out) {
            let mut lanes = [0.0; LANES];
            for (block, x) in w.as_chunks().0.iter().zip(x.as_chunks::<LEN>().0) {
                let (d, numbers) = parts(block);
                for (i, lane) in lanes.iter_mut().enumerate() {
                    let j = i + LANES;
                    *lane += d * (e4m3(numbers[i]) * x[i] + e4m3(numbers[j]) * x[j]);
                }
            }
            *out = lanes.iter().sum();
        }
    }
}

/// Converts 16 numbers to f32, divided by [`OF_HALF`].
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen16(numbers: &[u8; 16]) -> [__m256; 2] {
    // The sign moves to bit 15 and the other bits to 7..=13; bit 14 is a copy of the sign.
    let halves = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(simd::load16(numbers)));
    let halves = _mm256_and_si256(halves, _mm256_set1_epi16(0xbfff_u16.cast_signed()));
    let (low, high) = (_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
    [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn widen_avx2(w: &[u8], out: &mut [f32]) {
    for (block, out) in w.as_chunks().0.iter().zip(out.as_chunks_mut::<LEN>().0) {
        let (d, numbers) = parts(block);
        let d = _mm256_set1_ps(d * OF_HALF);
        let places = out.as_chunks_mut::<8>().0.as_chunks_mut::<2>().0;
        for (numbers, [low, high]) in numbers.as_chunks().0.iter().zip(places) {
            let [a, b] = widen16(numbers);
            lanes::store(_mm256_mul_ps(d, a), low);
            lanes::store(_mm256_mul_ps(d, b), high);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_avx2(w: &[&[u8]], x: &[&[f32]], out: &mut [f32]) {
    for (w, out) in w.iter().zip(out.chunks_exact_mut(x.len())) {
        let w = w.as_chunks().0;
        match *x {
            [x0] => dot_row(w, [x0], out),
            [x0, x1] => dot_row(w, [x0, x1], out),
            [x0, x1, x2, x3] => {
                dot_row(w, [x0, x1], &mut out[..2]);
                dot_row(w, [x2, x3], &mut out[2..]);
            }
            _ => panic!("no kernel for {} rows", x.len()),
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn dot_row<const N: usize>(w: &[[u8; BYTES]], x: [&[f32]; N], out: &mut [f32]) {
    let x = blocks(x, w.len());
    let mut acc = [[_mm256_setzero_ps(); 4]; N];
    for (b, block) in w.iter().enumerate() {
        let (d, numbers) = parts(block);
        let d = _mm256_set1_ps(d * OF_HALF);
        let numbers = numbers.as_chunks().0;
        for pair in 0..2 {
            let (first, second) = (widen16(&numbers[pair]), widen16(&numbers[pair + 2]));
            for n in 0..N {
                let x = x[n][b].as_chunks::<8>().0;
                for i in 0..2 {
                    let lane = 2 * pair + i;
                    let sum = _mm256_mul_ps(first[i], lanes::load(&x[lane]));
                    let sum = _mm256_fmadd_ps(second[i], lanes::load(&x[lane + 4]), sum);
                    acc[n][lane] = _mm256_fmadd_ps(d, sum, acc[n][lane]);
                }
            }
        }
    }
    for n in 0..N {
        let [a, b, c, d] = acc[n];
        out[n] = lanes::sum(_mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)));
    }
}

/// The first `n_blocks` blocks of each row. A function of its own, because closures in array
/// combinators do not inherit the kernel's target features.
#[cfg(target_arch = "x86_64")]
#[inline]
fn blocks<const N: usize>(x: [&[f32]; N], n_blocks: usize) -> [&[[f32; LEN]]; N] {
    x.map(|x| &x.as_chunks().0[..n_blocks])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tier;

    /// All 256 numbers, in four blocks, on all tiers.
    #[test]
    fn all_numbers_are_widened_exactly() {
        let scales = [1.0_f32, -3.0e-9, 0.37, 2.0e20];
        let blocks: Vec<u8> = scales
            .into_iter()
            .zip(0..)
            .flat_map(|(d, i)| {
                [d.to_le_bytes().to_vec(), (64 * i..=64 * i + 63).collect()].concat()
            })
            .collect();
        for tier in Tier::available() {
            let mut out = [f32::NAN; 256];
            super::super::widen(realizar_quant::BlockType::F8_0, tier, &blocks, &mut out);
            for (bits, found) in (0..=255).zip(out) {
                let expected = scales[usize::from(bits) / 64] * e4m3(bits);
                assert_eq!(found.to_bits(), expected.to_bits(), "{tier}: {bits:#x}");
            }
        }
    }
}
