//! Sixteen f32 lanes in one AVX-512 register. Operations on eight lanes are those of AVX2.
//!
//! As in `avx2.rs`, the tier's token proves that the processor has the instructions.

use std::arch::x86_64::{
    __m256, __m512, _CMP_LT_OQ, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128,
    _mm256_castsi128_si256, _mm256_inserti128_si256, _mm512_add_epi32, _mm512_add_ps,
    _mm512_and_ps, _mm512_andnot_ps, _mm512_castps256_ps512, _mm512_castps512_ps256,
    _mm512_castsi512_ps, _mm512_cmp_ps_mask, _mm512_cvtph_ps, _mm512_cvtps_epi32, _mm512_div_ps,
    _mm512_extractf32x8_ps, _mm512_fmadd_ps, _mm512_insertf32x8, _mm512_loadu_ps,
    _mm512_mask_blend_ps, _mm512_max_ps, _mm512_mul_ps, _mm512_or_ps, _mm512_roundscale_ps,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_slli_epi32, _mm512_storeu_ps, _mm512_sub_ps,
};

use super::{Eight, Kernel, Lanes};
use crate::Avx512;

/// Evaluates an expression of intrinsics. The call site has a token of [`Avx512`].
macro_rules! avx512 {
    ($e:expr) => {{
        // SAFETY: the token proves that AVX-512 F, BW, DQ and VL were detected. Loads and
        // stores in the expression go through references to arrays of their size.
        unsafe { $e }
    }};
}

/// Forwards operations to those of AVX2.
macro_rules! as_avx2 {
    ($(fn $name:ident(self $(, $arg:ident: $ty:ty)*) $(-> $out:ty)?;)+) => {$(
        #[inline(always)]
        fn $name(self $(, $arg: $ty)*) $(-> $out)? {
            self.avx2().$name($($arg),*)
        }
    )+};
}

impl Eight for Avx512 {
    type V = __m256;

    as_avx2! {
        fn splat(self, x: f32) -> __m256;
        fn load(self, x: &[f32; 8]) -> __m256;
        fn store(self, v: __m256, out: &mut [f32; 8]);
        fn add(self, a: __m256, b: __m256) -> __m256;
        fn mul(self, a: __m256, b: __m256) -> __m256;
        fn fma(self, a: __m256, b: __m256, c: __m256) -> __m256;
        fn sum(self, v: __m256) -> f32;
        fn sums(self, v: [__m256; 4]) -> [f32; 4];
        fn transpose(self, v: [__m256; 8]) -> [__m256; 8];
        fn widen_f16(self, bytes: &[u8; 16]) -> __m256;
        fn widen_bf16(self, bytes: &[u8; 16]) -> __m256;
        fn widen_i8(self, bytes: &[u8; 8]) -> __m256;
        fn widen_e4m3(self, bytes: &[u8; 8]) -> __m256;
        fn low_nibbles(self, bytes: &[u8; 8]) -> __m256;
        fn high_nibbles(self, bytes: &[u8; 8]) -> __m256;
        fn prefetch(self, at: *const u8);
        fn prefetch_far(self, at: *const u8);
    }
}

impl Lanes for Avx512 {
    type W = __m512;

    const IS_WIDE: bool = true;

    #[inline(always)]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn compiled<K: Kernel>(token: Avx512, kernel: K) -> K::Output {
            kernel.run(token)
        }
        avx512!(compiled(self, kernel))
    }

    #[inline(always)]
    fn splat16(self, x: f32) -> __m512 {
        avx512!(_mm512_set1_ps(x))
    }

    #[inline(always)]
    fn load16(self, x: &[f32; 16]) -> __m512 {
        avx512!(_mm512_loadu_ps(x.as_ptr()))
    }

    #[inline(always)]
    fn store16(self, v: __m512, out: &mut [f32; 16]) {
        avx512!(_mm512_storeu_ps(out.as_mut_ptr(), v));
    }

    #[inline(always)]
    fn halves(self, v: __m512) -> [__m256; 2] {
        avx512!([_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)])
    }

    #[inline(always)]
    fn join(self, halves: [__m256; 2]) -> __m512 {
        avx512!(_mm512_insertf32x8::<1>(_mm512_castps256_ps512(halves[0]), halves[1]))
    }

    #[inline(always)]
    fn widen16_f16(self, a: &[u8; 16], b: &[u8; 16]) -> __m512 {
        avx512!({
            let (a, b) = (_mm_loadu_si128(a.as_ptr().cast()), _mm_loadu_si128(b.as_ptr().cast()));
            _mm512_cvtph_ps(_mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b))
        })
    }

    #[inline(always)]
    fn add16(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub16(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul16(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div16(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn max16(self, a: __m512, b: __m512) -> __m512 {
        avx512!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn fma16(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        avx512!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn round16(self, v: __m512) -> __m512 {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        avx512!(_mm512_roundscale_ps::<NEAREST>(v))
    }

    #[inline(always)]
    fn pow2_16(self, n: __m512) -> __m512 {
        avx512!({
            let n = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(n))
        })
    }

    #[inline(always)]
    fn copysign16(self, a: __m512, b: __m512) -> __m512 {
        avx512!({
            let sign = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(sign, a), _mm512_and_ps(sign, b))
        })
    }

    #[inline(always)]
    fn select_less16(self, a: __m512, b: __m512, yes: __m512, no: __m512) -> __m512 {
        avx512!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes))
    }

    #[inline(always)]
    fn max_lane16(self, v: __m512) -> f32 {
        self.avx2().max_lane16(self.halves(v))
    }
}
