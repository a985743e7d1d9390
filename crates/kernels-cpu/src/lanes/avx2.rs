//! Eight f32 lanes in one AVX2 register, and sixteen in two.
//!
//! Every operation takes the tier's token, which proves that the processor has the instructions.
//! Operations are inlined into the function that [`Lanes::run`] compiles for AVX2.

use std::arch::x86_64::{
    __m256, _CMP_EQ_OQ, _CMP_LT_OQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _MM_HINT_T0,
    _MM_HINT_T1, _mm_add_ps, _mm_add_ss, _mm_and_si128, _mm_cvtepi8_epi16, _mm_cvtss_f32,
    _mm_loadl_epi64, _mm_loadu_si128, _mm_max_ps, _mm_max_ss, _mm_movehl_ps, _mm_prefetch,
    _mm_set1_epi16, _mm_shuffle_ps, _mm_slli_epi16, _mm_storeu_ps, _mm256_add_epi32, _mm256_add_ps,
    _mm256_and_ps, _mm256_and_si256, _mm256_andnot_ps, _mm256_blendv_ps, _mm256_castps256_ps128,
    _mm256_castsi256_ps, _mm256_cmp_ps, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps,
    _mm256_cvtepu8_epi32, _mm256_cvtepu16_epi32, _mm256_cvtph_ps, _mm256_cvtps_epi32,
    _mm256_div_ps, _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_hadd_ps, _mm256_loadu_ps,
    _mm256_max_ps, _mm256_mul_ps, _mm256_or_ps, _mm256_permute2f128_ps, _mm256_round_ps,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_shuffle_ps, _mm256_slli_epi32, _mm256_srli_epi32,
    _mm256_storeu_ps, _mm256_sub_epi32, _mm256_sub_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps,
};

use super::{Eight, Kernel, Lanes};
use crate::Avx2;

/// Evaluates an expression of intrinsics. The call site has a token of [`Avx2`].
macro_rules! avx2 {
    ($e:expr) => {{
        // SAFETY: the token proves that AVX2, FMA and F16C were detected. Loads and
        // stores in the expression go through references to arrays of their size.
        unsafe { $e }
    }};
}

impl Eight for Avx2 {
    type V = __m256;

    #[inline(always)]
    fn splat(self, x: f32) -> __m256 {
        avx2!(_mm256_set1_ps(x))
    }

    #[inline(always)]
    fn load(self, x: &[f32; 8]) -> __m256 {
        avx2!(_mm256_loadu_ps(x.as_ptr()))
    }

    #[inline(always)]
    fn store(self, v: __m256, out: &mut [f32; 8]) {
        avx2!(_mm256_storeu_ps(out.as_mut_ptr(), v));
    }

    #[inline(always)]
    fn add(self, a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_add_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: __m256, b: __m256) -> __m256 {
        avx2!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        avx2!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn sum(self, v: __m256) -> f32 {
        avx2!({
            let pairs = _mm256_hadd_ps(v, v);
            let fours = _mm256_hadd_ps(pairs, pairs);
            let high = _mm256_extractf128_ps::<1>(fours);
            _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(fours), high))
        })
    }

    #[inline(always)]
    fn sums(self, v: [__m256; 4]) -> [f32; 4] {
        let mut out = [0.0; 4];
        avx2!({
            let halves = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
            let high = _mm256_extractf128_ps::<1>(halves);
            _mm_storeu_ps(out.as_mut_ptr(), _mm_add_ps(_mm256_castps256_ps128(halves), high));
        });
        out
    }

    #[inline(always)]
    fn transpose(self, v: [__m256; 8]) -> [__m256; 8] {
        avx2!({
            // Pairs of rows, then groups of four, then the halves.
            let mut pairs = v;
            for i in 0..4 {
                pairs[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
                pairs[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
            }
            let mut fours = v;
            for (i, four) in [(0, 0), (4, 4)] {
                fours[four] = _mm256_shuffle_ps::<0b01_00_01_00>(pairs[i], pairs[i + 2]);
                fours[four + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(pairs[i], pairs[i + 2]);
                fours[four + 2] = _mm256_shuffle_ps::<0b01_00_01_00>(pairs[i + 1], pairs[i + 3]);
                fours[four + 3] = _mm256_shuffle_ps::<0b11_10_11_10>(pairs[i + 1], pairs[i + 3]);
            }
            let mut out = v;
            for i in 0..4 {
                out[i] = _mm256_permute2f128_ps::<0x20>(fours[i], fours[i + 4]);
                out[i + 4] = _mm256_permute2f128_ps::<0x31>(fours[i], fours[i + 4]);
            }
            out
        })
    }

    #[inline(always)]
    fn widen_f16(self, bytes: &[u8; 16]) -> __m256 {
        avx2!(_mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().cast())))
    }

    #[inline(always)]
    fn widen_bf16(self, bytes: &[u8; 16]) -> __m256 {
        avx2!({
            let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves))
        })
    }

    #[inline(always)]
    fn widen_i8(self, bytes: &[u8; 8]) -> __m256 {
        avx2!({
            let bytes = _mm_loadl_epi64(bytes.as_ptr().cast());
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
        })
    }

    #[inline(always)]
    fn widen_e4m3(self, bytes: &[u8; 8]) -> __m256 {
        avx2!({
            // The sign moves to bit 15 and the other bits to 7..=13: the number divided by 256.
            let words = _mm_cvtepi8_epi16(_mm_loadl_epi64(bytes.as_ptr().cast()));
            let halves =
                _mm_and_si128(_mm_slli_epi16::<7>(words), _mm_set1_epi16(0xbfff_u16.cast_signed()));
            let values = _mm256_mul_ps(_mm256_cvtph_ps(halves), _mm256_set1_ps(256.0));
            // The bits of NaN convert to 480.
            let size = _mm256_andnot_ps(_mm256_set1_ps(-0.0), values);
            let is_nan = _mm256_cmp_ps::<_CMP_EQ_OQ>(size, _mm256_set1_ps(480.0));
            _mm256_or_ps(values, is_nan)
        })
    }

    #[inline(always)]
    fn low_nibbles(self, bytes: &[u8; 8]) -> __m256 {
        avx2!({
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.as_ptr().cast()));
            let low = _mm256_and_si256(bytes, _mm256_set1_epi32(15));
            _mm256_cvtepi32_ps(_mm256_sub_epi32(low, _mm256_set1_epi32(8)))
        })
    }

    #[inline(always)]
    fn high_nibbles(self, bytes: &[u8; 8]) -> __m256 {
        avx2!({
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.as_ptr().cast()));
            let high = _mm256_srli_epi32::<4>(bytes);
            _mm256_cvtepi32_ps(_mm256_sub_epi32(high, _mm256_set1_epi32(8)))
        })
    }

    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        // A prefetch touches no memory that the program sees, whatever the address.
        avx2!(_mm_prefetch::<_MM_HINT_T0>(at.cast()));
    }

    #[inline(always)]
    fn prefetch_far(self, at: *const u8) {
        // As above.
        avx2!(_mm_prefetch::<_MM_HINT_T1>(at.cast()));
    }
}

/// An operation on both registers of sixteen lanes.
#[inline(always)]
fn both(f: impl Fn(usize) -> __m256) -> [__m256; 2] {
    [f(0), f(1)]
}

impl Lanes for Avx2 {
    type W = [__m256; 2];

    const IS_WIDE: bool = false;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma,f16c")]
        fn compiled<K: Kernel>(token: Avx2, kernel: K) -> K::Output {
            kernel.run(token)
        }
        avx2!(compiled(self, kernel))
    }

    #[inline(always)]
    fn splat16(self, x: f32) -> Self::W {
        [self.splat(x); 2]
    }

    #[inline(always)]
    fn load16(self, x: &[f32; 16]) -> Self::W {
        let (halves, _) = x.as_chunks::<8>();
        both(|i| self.load(&halves[i]))
    }

    #[inline(always)]
    fn store16(self, v: Self::W, out: &mut [f32; 16]) {
        let (halves, _) = out.as_chunks_mut::<8>();
        self.store(v[0], &mut halves[0]);
        self.store(v[1], &mut halves[1]);
    }

    #[inline(always)]
    fn halves(self, v: Self::W) -> [__m256; 2] {
        v
    }

    #[inline(always)]
    fn join(self, halves: [__m256; 2]) -> Self::W {
        halves
    }

    #[inline(always)]
    fn widen16_f16(self, a: &[u8; 16], b: &[u8; 16]) -> Self::W {
        [self.widen_f16(a), self.widen_f16(b)]
    }

    #[inline(always)]
    fn add16(self, a: Self::W, b: Self::W) -> Self::W {
        both(|i| avx2!(_mm256_add_ps(a[i], b[i])))
    }

    #[inline(always)]
    fn sub16(self, a: Self::W, b: Self::W) -> Self::W {
        both(|i| avx2!(_mm256_sub_ps(a[i], b[i])))
    }

    #[inline(always)]
    fn mul16(self, a: Self::W, b: Self::W) -> Self::W {
        both(|i| avx2!(_mm256_mul_ps(a[i], b[i])))
    }

    #[inline(always)]
    fn div16(self, a: Self::W, b: Self::W) -> Self::W {
        both(|i| avx2!(_mm256_div_ps(a[i], b[i])))
    }

    #[inline(always)]
    fn max16(self, a: Self::W, b: Self::W) -> Self::W {
        both(|i| avx2!(_mm256_max_ps(a[i], b[i])))
    }

    #[inline(always)]
    fn fma16(self, a: Self::W, b: Self::W, c: Self::W) -> Self::W {
        both(|i| avx2!(_mm256_fmadd_ps(a[i], b[i], c[i])))
    }

    #[inline(always)]
    fn round16(self, v: Self::W) -> Self::W {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        both(|i| avx2!(_mm256_round_ps::<NEAREST>(v[i])))
    }

    #[inline(always)]
    fn pow2_16(self, n: Self::W) -> Self::W {
        both(|i| {
            avx2!({
                let n = _mm256_add_epi32(_mm256_cvtps_epi32(n[i]), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(n))
            })
        })
    }

    #[inline(always)]
    fn copysign16(self, a: Self::W, b: Self::W) -> Self::W {
        both(|i| {
            avx2!({
                let sign = _mm256_set1_ps(-0.0);
                _mm256_or_ps(_mm256_andnot_ps(sign, a[i]), _mm256_and_ps(sign, b[i]))
            })
        })
    }

    #[inline(always)]
    fn select_less16(self, a: Self::W, b: Self::W, yes: Self::W, no: Self::W) -> Self::W {
        both(|i| avx2!(_mm256_blendv_ps(no[i], yes[i], _mm256_cmp_ps::<_CMP_LT_OQ>(a[i], b[i]))))
    }

    #[inline(always)]
    fn max_lane16(self, v: Self::W) -> f32 {
        avx2!({
            let v = _mm256_max_ps(v[0], v[1]);
            let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }
}
