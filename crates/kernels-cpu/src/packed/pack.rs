//! Packing: from the blocks of sixteen rows to packed blocks.
//!
//! Bits are gathered in words of four columns. A [`Word`] belongs to one row, or to sixteen rows side by
//! side, so every format is written once for both. Functions that are generic over words have no
//! closures and are `#[inline(always)]`, so that they are compiled with the instructions of their
//! caller.

use realizar_quant::codebook;

use super::PACKED_ROWS;
use super::format::{Format, Planes, RowQuants, RowScales};
use crate::{MatrixRef, Tier};

/// A 32-bit word of a row, or of several rows side by side.
pub(super) trait Word: Copy {
    /// Bitwise and with a mask.
    fn and(self, mask: u32) -> Self;
    /// Bitwise or.
    fn or(self, other: Self) -> Self;
    /// Shifts right within 32 bits.
    fn down(self, bits: usize) -> Self;
    /// Shifts left within 32 bits.
    fn up(self, bits: usize) -> Self;
    /// Applies a function to each row's word.
    fn map(self, f: impl Fn(u32) -> u32) -> Self;
}

impl Word for u32 {
    fn and(self, mask: u32) -> Self {
        self & mask
    }

    fn or(self, other: Self) -> Self {
        self | other
    }

    fn down(self, bits: usize) -> Self {
        self >> bits
    }

    fn up(self, bits: usize) -> Self {
        self << bits
    }

    fn map(self, f: impl Fn(u32) -> u32) -> Self {
        f(self)
    }
}

/// A block of a row, or the blocks of several rows at the same columns.
pub(super) trait Block {
    /// The type of its words.
    type Word: Word;

    /// The `N` little-endian words from byte `at` on. `N` is 1 or a multiple of 4, and all words are in the
    /// block.
    fn words<const N: usize>(&self, at: usize) -> [Self::Word; N];

    /// The word from byte `at` on.
    #[inline(always)]
    fn word(&self, at: usize) -> Self::Word {
        let [word] = self.words(at);
        word
    }
}

/// A block of one row.
impl Block for &[u8] {
    type Word = u32;

    fn words<const N: usize>(&self, at: usize) -> [u32; N] {
        let words = self[at..][..4 * N].as_chunks::<4>().0;
        std::array::from_fn(|i| u32::from_le_bytes(words[i]))
    }
}

/// Packs the rows of a group; see [`super::pack_group`].
pub(super) fn pack_group<F: Format>(
    tier: Tier,
    matrix: &MatrixRef<'_>,
    group: usize,
    out: &mut [u8],
) {
    let first = group * PACKED_ROWS;
    assert!(first < matrix.n_rows(), "group {group} of {} rows", matrix.n_rows());
    let n_blocks = matrix.n_cols() / F::LEN;
    assert_eq!(out.len(), n_blocks * PACKED_ROWS * F::PACKED_BYTES, "bytes of a group");
    let n_rows = PACKED_ROWS.min(matrix.n_rows() - first);
    let row_bytes = n_blocks * F::BYTES;
    let rows = &matrix.data()[first * row_bytes..][..n_rows * row_bytes];
    match tier.avx2() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token of this tier exists only if its instructions were detected;
        // `rows` are the bytes of sixteen rows, and `out` those of a packed group.
        Some(_) if n_rows == PACKED_ROWS => unsafe { super::pack_avx2::pack_group::<F>(rows, out) },
        _ => pack_rows::<F>(rows, row_bytes, out),
    }
}

/// Packs up to sixteen rows one after the other. Missing rows become zeros.
fn pack_rows<F: Format>(rows: &[u8], row_bytes: usize, out: &mut [u8]) {
    let packed_block = PACKED_ROWS * F::PACKED_BYTES;
    if rows.len() < PACKED_ROWS * row_bytes {
        out.fill(0);
    }
    for (row, blocks) in rows.chunks_exact(row_bytes).enumerate() {
        let packed = out.chunks_exact_mut(packed_block);
        for (block, out) in blocks.chunks_exact(F::BYTES).zip(packed) {
            let (quants, scales) = out.split_at_mut(F::SCALES_AT);
            F::pack_quants(&block, |g, words| {
                let n_bytes = F::PLANES.n_bytes();
                put_quants(F::PLANES, &words, row, &mut quants[g * n_bytes..][..n_bytes]);
            });
            put_scales(&F::pack_scales(&block), row, scales);
        }
    }
}

/// Writes a row's words to the planes of 32 columns.
fn put_quants(planes: Planes, quants: &RowQuants<u32>, row: usize, out: &mut [u8]) {
    let mut put = |at: usize, words: &[u32]| {
        let lines = out[at..].as_chunks_mut::<{ 4 * PACKED_ROWS }>().0;
        for (word, line) in words.iter().zip(lines) {
            line[4 * row..][..4].copy_from_slice(&word.to_le_bytes());
        }
    };
    put(0, quants.bytes.as_ref().map_or(&[], |words| words));
    put(0, quants.nibbles.as_ref().map_or(&[], |words| words));
    put(planes.pairs_at(), quants.pairs.as_ref().map_or(&[], |words| words));
    put(planes.singles_at(), quants.singles.as_slice());
}

/// Writes a row's scales to their lists.
fn put_scales(scales: &RowScales<u32>, row: usize, out: &mut [u8]) {
    let (word, n_halves) = scales.halves;
    let (halves, lists) = out.split_at_mut(n_halves * 2 * PACKED_ROWS);
    for (list, half) in halves.chunks_exact_mut(2 * PACKED_ROWS).zip([word, word >> 16]) {
        list[2 * row..][..2].copy_from_slice(&half.to_le_bytes()[..2]);
    }
    let lists = lists.as_chunks_mut::<PACKED_ROWS>().0;
    let words = scales.bytes.iter().map_while(|word| *word);
    for (list, byte) in lists.iter_mut().zip(words.flat_map(u32::to_le_bytes)) {
        list[row] = byte;
    }
}

/// Gathers the low (`which` 0) or high nibbles of 32 bytes: those of words `q` and `q + 4` go to the low
/// and the high nibbles of result `q`.
#[inline(always)]
pub(super) fn nibbles_of<W: Word>(words: [W; 8], which: usize) -> [W; 4] {
    let (low, high) = (0x0f0f_0f0f, 0xf0f0_f0f0);
    let mut out = [words[0]; 4];
    for (q, out) in out.iter_mut().enumerate() {
        let (a, b) = (words[q], words[q + 4]);
        *out = match which {
            0 => a.and(low).or(b.up(4).and(high)),
            _ => a.down(4).and(low).or(b.and(high)),
        };
    }
    out
}

/// Gathers two bits, from bit `bit` on, of each of 32 bytes: those of four words share a byte.
#[inline(always)]
pub(super) fn pairs_of<W: Word>(words: [W; 8], bit: usize) -> [W; 2] {
    let mut out = [words[0]; 2];
    for (half, out) in out.iter_mut().enumerate() {
        let at = 4 * half;
        *out = words[at].down(bit).and(0x0303_0303);
        for q in 1..4 {
            *out = out.or(words[at + q].down(bit).and(0x0303_0303).up(2 * q));
        }
    }
    out
}

/// Gathers bit `bit` of each of 32 bytes: those of eight words share a byte.
#[inline(always)]
pub(super) fn singles_of<W: Word>(words: [W; 8], bit: usize) -> W {
    let mut out = words[0].down(bit).and(0x0101_0101);
    for (q, word) in words.iter().enumerate().skip(1) {
        out = out.or(word.down(bit).and(0x0101_0101).up(q));
    }
    out
}

/// As [`singles_of`], from 32 bits in order of columns.
#[inline(always)]
pub(super) fn singles_of_bits<W: Word>(bits: W) -> W {
    // Bit `4 q + j` moves to bit `q` of byte `j`.
    let mut out = bits.and(0);
    for j in 0..4 {
        let spread = bits.down(j).and(0x1111_1111);
        let pairs = spread.or(spread.down(3)).and(0x0303_0303);
        let fours = pairs.or(pairs.down(6)).and(0x000f_000f);
        out = out.or(fours.or(fours.down(12)).and(0xff).up(8 * j));
    }
    out
}

/// Spreads the lowest byte of a word to four bytes of two bits each.
#[inline(always)]
fn spread_pairs<W: Word>(byte: W) -> W {
    let fours = byte.and(0xff);
    let fours = fours.or(fours.up(12)).and(0x000f_000f);
    fours.or(fours.up(6)).and(0x0303_0303)
}

/// Gathers two bits of each of 16 columns, which are in order: those of four words share a byte.
#[inline(always)]
pub(super) fn pairs_of_bits<W: Word>(bits: W) -> W {
    let mut out = spread_pairs(bits);
    for q in 1..4 {
        out = out.or(spread_pairs(bits.down(8 * q)).up(2 * q));
    }
    out
}

/// Gathers the nibbles of eight words, each with four columns in its lower half: those of words `q` and
/// `q + 4` go to the low and the high nibbles of result `q`.
#[inline(always)]
pub(super) fn nibbles_of_fours<W: Word>(words: [W; 8]) -> [W; 4] {
    let mut out = [words[0]; 4];
    for (q, out) in out.iter_mut().enumerate() {
        *out = spread_nibbles(words[q]).or(spread_nibbles(words[q + 4]).up(4));
    }
    out
}

/// Spreads the four nibbles of a word's lower half to four bytes.
#[inline(always)]
fn spread_nibbles<W: Word>(word: W) -> W {
    let twos = word.and(0xffff);
    let twos = twos.or(twos.up(8)).and(0x00ff_00ff);
    twos.or(twos.up(4)).and(0x0f0f_0f0f)
}

/// Spreads the lowest four bits of a word to the highest bits of the four nibbles of its lower half.
#[inline(always)]
pub(super) fn signs_of_nibbles<W: Word>(signs: W) -> W {
    let twos = signs.and(0xf);
    let twos = twos.or(twos.up(6)).and(0x0303);
    twos.or(twos.up(3)).and(0x1111).up(3)
}

/// Expands 28 bits to the signs of 32 columns: after every seven, a bit is inserted that makes the number
/// of set bits even.
#[inline(always)]
pub(super) fn even_signs_of<W: Word>(stored: W) -> W {
    stored.map(|stored| {
        let signs = |i: u32| u32::from(codebook::even_signs((stored >> (7 * i)) as u8));
        signs(0) | signs(1) << 8 | signs(2) << 16 | signs(3) << 24
    })
}

/// Digit `k` of each byte of base-3 digits; see `realizar_quant::tq1_0`.
#[inline(always)]
pub(super) fn digits_of<W: Word>(bytes: W, k: usize) -> W {
    const POWERS: [u32; 5] = [1, 3, 9, 27, 81];
    bytes.map(|bytes| {
        // Two bytes at a time, because their products have 16 bits.
        let two = |bytes: u32| {
            let front = ((bytes & 0x00ff_00ff) * POWERS[k]) & 0x00ff_00ff;
            (front * 3) >> 8 & 0x0003_0003
        };
        two(bytes) | two(bytes >> 8) << 8
    })
}

/// Moves bytes 0 and 2 of a word to bytes 0 and 1.
#[inline(always)]
fn evens<W: Word>(word: W) -> W {
    word.and(0xff).or(word.down(8).and(0xff00))
}

/// Combines the low nibbles of two words of bytes.
#[inline(always)]
fn two_nibbles<W: Word>(a: W, b: W) -> W {
    a.and(0x0f0f_0f0f).or(b.and(0x0f0f_0f0f).up(4))
}

/// Combines the two low bits of two words of bytes, and then of two adjacent bytes.
#[inline(always)]
fn four_pairs<W: Word>(a: W, b: W) -> W {
    let pairs = a.and(0x0303_0303).or(b.and(0x0303_0303).up(2));
    evens(pairs.or(pairs.down(4)))
}

/// Converts the 12 bytes of 6-bit scales and minimums of Q4_K and Q5_K to the form that
/// [`super::types::six_at`] reads.
#[inline(always)]
pub(super) fn sixes_of_k_scales<W: Word>([a, b, c]: [W; 3]) -> [W; 3] {
    // Four groups at a time; see `realizar_quant::k_scales`.
    let high = four_pairs(a.down(4), b.down(4));
    let high = high.or(four_pairs(a.down(6), b.down(6)).up(16));
    [two_nibbles(a, b), two_nibbles(c, c.down(4)), high]
}

/// Converts the 12 bytes of 6-bit scales of Q3_K to the form that [`super::types::six_at`] reads.
#[inline(always)]
pub(super) fn sixes_of_q3_k<W: Word>([a, b, high]: [W; 3]) -> [W; 3] {
    // Scales 0 to 7 are in low nibbles, 8 to 15 in high ones.
    let low = adjacent_nibbles(a).or(adjacent_nibbles(b).up(16));
    let low_of_8 = adjacent_nibbles(a.down(4)).or(adjacent_nibbles(b.down(4)).up(16));
    // The upper bits of scales `4 p` to `4 p + 3` are bits `2 p` of the four bytes.
    let mut upper = high.and(0);
    for p in 0..4 {
        let bits = high.down(2 * p).and(0x0303_0303);
        let bits = bits.or(bits.down(6)).or(bits.down(12)).or(bits.down(18));
        upper = upper.or(bits.and(0xff).up(8 * p));
    }
    [low, low_of_8, upper]
}

/// Combines the low nibbles of adjacent bytes.
#[inline(always)]
fn adjacent_nibbles<W: Word>(word: W) -> W {
    evens(word.and(0x000f_000f).or(word.down(4).and(0x00f0_00f0)))
}
