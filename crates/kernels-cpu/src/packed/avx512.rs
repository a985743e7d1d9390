//! The kernels in AVX-512 with VNNI: 8-bit dot products in registers of 512 bits, one
//! to a group.

use std::arch::x86_64::{
    __m512, __m512i, _mm512_and_si512 as and, _mm512_cvtepi32_ps as to_float,
    _mm512_dpbusd_epi32 as dpbusd, _mm512_fmadd_ps as fmadd, _mm512_loadu_ps as load_f,
    _mm512_loadu_si512 as load, _mm512_mul_ps as mul, _mm512_or_si512 as or,
    _mm512_set1_epi8 as set1_8, _mm512_set1_epi32 as set1_32, _mm512_set1_ps as set1_f,
    _mm512_setzero_ps as zero_f, _mm512_setzero_si512 as zero, _mm512_sll_epi16 as sll_16,
    _mm512_srai_epi32 as srai_32, _mm512_srl_epi16 as srl_16, _mm512_srli_epi16 as srli_16,
    _mm512_store_si512 as store, _mm512_storeu_ps as store_f, _mm512_xor_si512 as xor,
};

use super::avx512_scales::{BlockScales, FormatAvx512, Integers};

super::vnni::vnni_kernels!(
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c",
    1,
    __m512,
    __m512i,
    FormatAvx512::integers_avx512
);

/// See [`super::expand`].
///
/// # Safety
/// The processor has the features; the bytes are those of the panel's columns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn expand<F: FormatAvx512>(bytes: &[u8], panel: &mut [PanelGroup]) {
    let blocks = bytes.chunks_exact(PACKED_ROWS * F::BYTES);
    for (block, panel) in blocks.zip(panel.chunks_exact_mut(F::LEN / GROUP_LEN)) {
        let scales = block[F::SCALES_AT..].as_ptr();
        // SAFETY: the block's scales follow its planes.
        let block_scales = unsafe { BlockScales::unpack::<F>(scales) };
        for line in 0..block.len().div_ceil(64) {
            prefetch(block.as_ptr().wrapping_add(2 * PREFETCH_BYTES + 64 * line));
        }
        for (g, panel) in panel.iter_mut().enumerate() {
            let planes = &block[g * F::PLANES.n_bytes()..][..F::PLANES.n_bytes()];
            let out = panel.quants.as_mut_ptr().cast::<__m512i>();
            for q in 0..8 {
                // SAFETY: the planes are whole, and the panel has eight words of 64 bytes
                // on cache lines.
                unsafe {
                    let [word] = plane_word::<F>(planes.as_ptr(), q);
                    store(out.add(q), word);
                }
            }
            block_scales.store::<F>(&mut panel.scales);
            // SAFETY: the block's scales follow its planes.
            unsafe { F::integers_avx512(scales, g).store::<F>(&mut panel.scales) };
        }
    }
}
