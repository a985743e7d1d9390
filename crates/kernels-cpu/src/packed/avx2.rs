//! The kernels in AVX2: eight rows to a register, two registers to a group.
//!
//! Products of unsigned quants and activations are added in pairs to 16 bits, sixteen columns of
//! them, and then to 32 bits by an instruction that multiplies by the factors. Signed quants give
//! their sign to the activations; they have 8 bits, so only a pair of products fits 16 bits.

use std::arch::asm;
use std::arch::x86_64::{
    __m256, __m256i, _mm_cvtsi32_si128, _mm_loadu_si128, _mm256_abs_epi8, _mm256_add_epi16,
    _mm256_add_epi32, _mm256_and_si256 as and, _mm256_broadcastsi128_si256,
    _mm256_cvtepi32_ps as to_float, _mm256_fmadd_ps as fmadd, _mm256_loadu_ps as load_f,
    _mm256_loadu_si256 as load, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_mul_ps as mul,
    _mm256_or_si256 as or, _mm256_set1_epi8 as set1_8, _mm256_set1_epi32 as set1_32,
    _mm256_set1_ps as set1_f, _mm256_setzero_ps as zero_f, _mm256_setzero_si256 as zero,
    _mm256_shuffle_epi8, _mm256_sign_epi8, _mm256_sll_epi16, _mm256_srl_epi16,
    _mm256_store_si256 as store, _mm256_storeu_ps as store_f, _mm256_sub_epi16,
};

use super::avx2_scales::{BlockScales, FormatAvx2, Integers};
use crate::vec_dot::simd::{prefetch, prefetch_far};

const DIRECT_ROWS: usize = 2;
const TILE_ROWS: usize = 3;
const REST_ROWS: usize = 2;
const MINS_APART: bool = true;
const FETCH_ROWS: bool = true;

super::dot::dot_kernels!("avx2,fma,f16c", 2, __m256, __m256i, FormatAvx2::integers_avx2);

impl<const T: usize, const G: usize> BlockSums<T, G> {
    /// Adds the products of 32 columns of the groups, in panels or in planes, with the first 32
    /// columns of the activation rows.
    ///
    /// # Safety
    /// Words and rows can be read.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add_products<F: FormatAvx2, const PANEL: bool>(
        &mut self,
        words: [*const u8; G],
        integers: &[Integers; G],
        x: &[XRow; T],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            self.add_half::<F, PANEL, 0>(words, integers, x);
            self.add_half::<F, PANEL, 1>(words, integers, x);
        }
    }

    /// Adds the products of half `HALF` of the columns.
    ///
    /// # Safety
    /// As [`Self::add_products`].
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn add_half<F: FormatAvx2, const PANEL: bool, const HALF: usize>(
        &mut self,
        words: [*const u8; G],
        integers: &[Integers; G],
        x: &[XRow; T],
    ) {
        // 32-bit sums with the factors if quants are signed, otherwise 16-bit sums without them.
        let mut sums = [[[zero(); 2]; G]; T];
        for i in 0..4 {
            let q = 4 * HALF + i;
            let mut w = [[zero(); 2]; G];
            for (w, words) in w.iter_mut().zip(words) {
                // SAFETY: the caller's promise.
                *w = unsafe { word::<F, PANEL>(words, q) };
            }
            for t in 0..T {
                // SAFETY: a row has eight words of 32 columns.
                let x = unsafe { x[t].quants.add(4 * q).cast::<i32>().read_unaligned() };
                let x = set1_32(x);
                for g in 0..G {
                    let factors = integers[g].factors[HALF];
                    for r in 0..2 {
                        let (sum, w) = (&mut sums[t][g][r], w[g][r]);
                        if F::PLANES.are_signed() {
                            let x = _mm256_sign_epi8(x, w);
                            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), x);
                            let fours = _mm256_madd_epi16(pairs, factors[r]);
                            *sum = if i == 0 { fours } else { _mm256_add_epi32(*sum, fours) };
                        } else {
                            let pairs = _mm256_maddubs_epi16(w, x);
                            *sum = if i == 0 { pairs } else { _mm256_add_epi16(*sum, pairs) };
                        }
                    }
                }
            }
            keep(sums.as_flattened_mut().as_flattened_mut());
        }
        for t in 0..T {
            // SAFETY: a row has sums and a scale for each half.
            let (scale, pair_sums) =
                unsafe { (*x[t].scales.add(HALF), x[t].pair_sums.add(HALF).cast::<i32>()) };
            let scale = set1_f(scale);
            for g in 0..G {
                for r in [0, 1] {
                    let mut sum = sums[t][g][r];
                    if !F::PLANES.are_signed() {
                        if F::OFFSET > 0 {
                            // SAFETY: as above; the pointer is to two sums of 16 bits.
                            let offset = unsafe { set1_32(pair_sums.read_unaligned()) };
                            let by = F::OFFSET.trailing_zeros() as usize;
                            sum = _mm256_sub_epi16(sum, up_16(offset, by));
                        }
                        sum = _mm256_madd_epi16(sum, integers[g].factors[HALF][r]);
                    }
                    let mut sum = to_float(sum);
                    if F::FLOAT_FACTORS {
                        sum = mul(sum, integers[g].mins[HALF][r]);
                    }
                    self.totals[t][g][r] = fmadd(scale, sum, self.totals[t][g][r]);
                }
            }
        }
    }
}

/// A word of quants as [`BlockSums::add_products`] takes it: as it is.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn operand<F: FormatAvx2>(word: Ints) -> Ints {
    word
}

/// Makes sums opaque to the compiler. It would otherwise reorder the additions so that those of a row
/// are neighbors, and run out of registers.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn keep(sums: &mut [__m256i]) {
    // SAFETY: the blocks have no instructions.
    unsafe {
        match sums {
            [a, b, c, d, e, f] => asm!(
                "/* {0} {1} {2} {3} {4} {5} */",
                inout(ymm_reg) * a,
                inout(ymm_reg) * b,
                inout(ymm_reg) * c,
                inout(ymm_reg) * d,
                inout(ymm_reg) * e,
                inout(ymm_reg) * f,
                options(pure, nomem, nostack, preserves_flags)
            ),
            [a, b, c, d] => asm!(
                "/* {0} {1} {2} {3} */",
                inout(ymm_reg) * a,
                inout(ymm_reg) * b,
                inout(ymm_reg) * c,
                inout(ymm_reg) * d,
                options(pure, nomem, nostack, preserves_flags)
            ),
            _ => {}
        }
    }
}

/// The codebook's values at indices of one byte each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn look_up(codebook: &[i8; 16], levels: __m256i) -> __m256i {
    // SAFETY: the load reads the array.
    let codebook = unsafe { _mm_loadu_si128(codebook.as_ptr().cast()) };
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(codebook), levels)
}

/// Shifts each 16 bits right.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn down_16(v: __m256i, bits: usize) -> __m256i {
    _mm256_srl_epi16(v, _mm_cvtsi32_si128(bits as i32))
}

/// Shifts each 16 bits left.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn up_16(v: __m256i, bits: usize) -> __m256i {
    _mm256_sll_epi16(v, _mm_cvtsi32_si128(bits as i32))
}
