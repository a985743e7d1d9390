//! Packing in AVX2: words of sixteen rows are transposed to two registers, gathered as [`super::pack`]
//! gathers those of one row, and stored as whole cache lines.

use std::arch::x86_64::*;

use super::PACKED_ROWS;
use super::format::{Format, RowScales};
use super::pack::{Block, Word};
use crate::vec_dot::simd::prefetch;

/// Prefetch distance in a row, in bytes.
const PREFETCH_BYTES: usize = 512;

/// Bytes of a cache line.
const LINE: usize = 64;

/// A word of sixteen rows, eight per register. Constructed only if AVX2 was detected.
#[derive(Clone, Copy)]
struct Word16([__m256i; 2]);

impl Word for Word16 {
    #[inline(always)]
    fn and(self, mask: u32) -> Self {
        let [a, b] = self.0;
        // SAFETY: a value of this type exists only where AVX2 was detected.
        unsafe {
            let mask = _mm256_set1_epi32(mask.cast_signed());
            Self([_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)])
        }
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        let ([a, b], [c, d]) = (self.0, other.0);
        // SAFETY: as in `and`.
        unsafe { Self([_mm256_or_si256(a, c), _mm256_or_si256(b, d)]) }
    }

    #[inline(always)]
    fn down(self, bits: usize) -> Self {
        let [a, b] = self.0;
        // SAFETY: as in `and`.
        unsafe {
            let bits = _mm_cvtsi32_si128(bits as i32);
            Self([_mm256_srl_epi32(a, bits), _mm256_srl_epi32(b, bits)])
        }
    }

    #[inline(always)]
    fn up(self, bits: usize) -> Self {
        let [a, b] = self.0;
        // SAFETY: as in `and`.
        unsafe {
            let bits = _mm_cvtsi32_si128(bits as i32);
            Self([_mm256_sll_epi32(a, bits), _mm256_sll_epi32(b, bits)])
        }
    }

    #[inline(always)]
    fn map(self, f: impl Fn(u32) -> u32) -> Self {
        let mut words = [[0; 8]; 2];
        // SAFETY: as in `and`; the stores and loads are of the array's 32 bytes each.
        unsafe {
            for (word, to) in self.0.into_iter().zip(&mut words) {
                _mm256_storeu_si256(to.as_mut_ptr().cast(), word);
            }
            let [a, b] = words.map(|words| words.map(&f));
            Self([a, b].map(|words| _mm256_loadu_si256(words.as_ptr().cast())))
        }
    }
}

/// The blocks of sixteen rows at the same columns. Constructed only if AVX2 was detected, and while the
/// rows are borrowed.
struct Block16 {
    at: *const u8,
    row_bytes: usize,
    len: usize,
}

impl Block16 {
    /// Loads four words of the eight rows from `row` on: lane `r` of register `q` is word `q` of row
    /// `row + r`.
    ///
    /// # Safety
    /// The processor has AVX2, and the 16 bytes are in the block.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn four_words(&self, at: usize, row: usize) -> [__m256i; 4] {
        let load = |row: usize| {
            // SAFETY: the caller's promise; there are sixteen rows.
            unsafe { _mm_loadu_si128(self.at.add(row * self.row_bytes + at).cast()) }
        };
        let two = |row: usize| _mm256_set_m128i(load(row + 4), load(row));
        let rows = [two(row), two(row + 1), two(row + 2), two(row + 3)];
        let low = |a, b| _mm256_unpacklo_epi32(a, b);
        let high = |a, b| _mm256_unpackhi_epi32(a, b);
        let [a, b] = [low(rows[0], rows[1]), low(rows[2], rows[3])];
        let [c, d] = [high(rows[0], rows[1]), high(rows[2], rows[3])];
        [
            _mm256_unpacklo_epi64(a, b),
            _mm256_unpackhi_epi64(a, b),
            _mm256_unpacklo_epi64(c, d),
            _mm256_unpackhi_epi64(c, d),
        ]
    }

    /// Loads a word of the eight rows from `row` on.
    ///
    /// # Safety
    /// The processor has AVX2, and the 4 bytes are in the block.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn one_word(&self, at: usize, row: usize) -> __m256i {
        let load = |i: usize| {
            // SAFETY: the caller's promise; there are sixteen rows.
            unsafe { self.at.add((row + i) * self.row_bytes + at).cast::<i32>().read_unaligned() }
        };
        let (a, b) = ([load(0), load(1), load(2), load(3)], [load(4), load(5), load(6), load(7)]);
        let four = |v: [i32; 4]| _mm_setr_epi32(v[0], v[1], v[2], v[3]);
        _mm256_set_m128i(four(b), four(a))
    }
}

impl Block for Block16 {
    type Word = Word16;

    #[inline(always)]
    fn words<const N: usize>(&self, at: usize) -> [Word16; N] {
        assert!(at + 4 * N <= self.len, "words of a block");
        const { assert!(N == 1 || N.is_multiple_of(4)) };
        if N == 1 {
            // SAFETY: the type's promise; the word is in the block.
            return [Word16(unsafe { [self.one_word(at, 0), self.one_word(at, 8)] }); N];
        }
        // SAFETY: every bit pattern is a register.
        let mut words = [Word16(unsafe { std::mem::zeroed() }); N];
        for (i, four) in words.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            // SAFETY: the type's promise; the words are in the block.
            let (a, b) =
                unsafe { (self.four_words(at + 16 * i, 0), self.four_words(at + 16 * i, 8)) };
            for (q, word) in four.iter_mut().enumerate() {
                *word = Word16([a[q], b[q]]);
            }
        }
        words
    }
}

/// Packs sixteen rows.
///
/// # Safety
/// The processor has AVX2, FMA and F16C; `rows` are the blocks of sixteen rows, and `out`
/// has the bytes of them packed.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn pack_group<F: Format>(rows: &[u8], out: &mut [u8]) {
    let row_bytes = rows.len() / PACKED_ROWS;
    for (b, out) in out.chunks_exact_mut(PACKED_ROWS * F::PACKED_BYTES).enumerate() {
        let at = rows.as_ptr().wrapping_add(b * F::BYTES);
        // Each cache line is prefetched once.
        let (first, end) = ((b * F::BYTES).div_ceil(LINE), ((b + 1) * F::BYTES).div_ceil(LINE));
        for line in first..end {
            for row in 0..PACKED_ROWS {
                let offset = row * row_bytes + line * LINE + PREFETCH_BYTES;
                prefetch(rows.as_ptr().wrapping_add(offset));
            }
        }
        let block = Block16 { at, row_bytes, len: F::BYTES };
        let (quants, scales) = out.split_at_mut(F::SCALES_AT);
        F::pack_quants(&block, |g, words| {
            let n_bytes = F::PLANES.n_bytes();
            let out = &mut quants[g * n_bytes..][..n_bytes];
            if let Some(words) = words.bytes {
                store_lines(&words, out);
            }
            if let Some(words) = words.nibbles {
                store_lines(&words, out);
            }
            if let Some(words) = words.pairs {
                store_lines(&words, &mut out[F::PLANES.pairs_at()..]);
            }
            if let Some(word) = words.singles {
                store_lines(&[word], &mut out[F::PLANES.singles_at()..]);
            }
        });
        store_scales(&F::pack_scales(&block), scales);
    }
}

/// Stores words of sixteen rows, one cache line per word.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store_lines<const N: usize>(words: &[Word16; N], out: &mut [u8]) {
    let lines = &mut out.as_chunks_mut::<LINE>().0[..N];
    for (word, line) in words.iter().zip(lines) {
        let at = line.as_mut_ptr();
        // SAFETY: a line has the 64 bytes.
        unsafe {
            _mm256_storeu_si256(at.cast(), word.0[0]);
            _mm256_storeu_si256(at.add(32).cast(), word.0[1]);
        }
    }
}

/// Stores scales, one list of sixteen rows per number.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store_scales(scales: &RowScales<Word16>, out: &mut [u8]) {
    let (word, n_halves) = scales.halves;
    let (lists, bytes) = out.split_at_mut(n_halves * 2 * PACKED_ROWS);
    for (list, word) in lists.as_chunks_mut::<32>().0.iter_mut().zip([word, word.down(16)]) {
        let [a, b] = word.and(0xffff).0;
        // The 64-bit parts are those of a, b, a, b.
        let halves = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(a, b));
        // SAFETY: the list has the 32 bytes.
        unsafe { _mm256_storeu_si256(list.as_mut_ptr().cast(), halves) };
    }
    for (word, lists) in scales.bytes.iter().zip(bytes.chunks_mut(4 * PACKED_ROWS)) {
        let Some(word) = word else { break };
        store_bytes(word, lists);
    }
}

/// Stores the four bytes of each row in four lists, or the first ones if there are fewer lists.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store_bytes(word: &Word16, out: &mut [u8]) {
    // Gather byte `i` of four rows in 32 bits, then of all rows.
    let order = _mm256_setr_epi8(
        0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, //
        0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,
    );
    let [a, b] = word.0.map(|v| _mm256_shuffle_epi8(v, order));
    let (a, c) = (_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
    let (b, d) = (_mm256_castsi256_si128(b), _mm256_extracti128_si256::<1>(b));
    // a, c, b, d begin at rows 0, 4, 8 and 12.
    let [ac, ac_high] = [_mm_unpacklo_epi32(a, c), _mm_unpackhi_epi32(a, c)];
    let [bd, bd_high] = [_mm_unpacklo_epi32(b, d), _mm_unpackhi_epi32(b, d)];
    let lists = [
        _mm_unpacklo_epi64(ac, bd),
        _mm_unpackhi_epi64(ac, bd),
        _mm_unpacklo_epi64(ac_high, bd_high),
        _mm_unpackhi_epi64(ac_high, bd_high),
    ];
    for (list, out) in lists.into_iter().zip(out.as_chunks_mut::<PACKED_ROWS>().0) {
        // SAFETY: a list has the 16 bytes.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), list) };
    }
}
