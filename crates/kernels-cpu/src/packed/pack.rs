//! Packing: from the blocks of sixteen rows to one packed block.
//!
//! The bits of a row's 32 columns are gathered a word of four columns at a time.

use super::format::{BYTES_BYTES, Format, NIBBLES_BYTES, PAIRS_BYTES, RowQuants, SINGLES_BYTES};
use super::{GROUP_LEN, PACKED_ROWS};
use crate::MatrixRef;

/// Packs the rows of a group; see [`super::pack_group`].
pub(super) fn pack_group<F: Format>(matrix: &MatrixRef<'_>, group: usize, out: &mut [u8]) {
    let first = group * PACKED_ROWS;
    assert!(first < matrix.n_rows(), "group {group} of {} rows", matrix.n_rows());
    let n_blocks = matrix.n_cols() / F::LEN;
    let packed_block = PACKED_ROWS * F::BYTES;
    assert_eq!(out.len(), n_blocks * packed_block, "bytes of a group");
    let n_rows = PACKED_ROWS.min(matrix.n_rows() - first);
    if n_rows < PACKED_ROWS {
        out.fill(0);
    }
    for (b, out) in out.chunks_exact_mut(packed_block).enumerate() {
        let (quants, scales) = out.split_at_mut(F::SCALES_AT);
        for row in 0..n_rows {
            let block = &matrix.row(first + row)[b * F::BYTES..][..F::BYTES];
            F::pack_scales(block, row, scales);
            for (g, planes) in quants.chunks_exact_mut(F::PLANES.n_bytes()).enumerate() {
                put_quants::<F>(&F::pack_quants(block, g), row, planes);
            }
        }
    }
}

/// Puts a row's words in the planes of 32 columns.
#[inline]
fn put_quants<F: Format>(quants: &RowQuants, row: usize, planes: &mut [u8]) {
    if F::PLANES.bytes {
        put_words(&quants.bytes, row, &mut planes[..BYTES_BYTES]);
        return;
    }
    if F::PLANES.nibbles {
        put_words(&quants.nibbles, row, &mut planes[..NIBBLES_BYTES]);
    }
    if F::PLANES.pairs.is_some() {
        put_words(&quants.pairs, row, &mut planes[F::PLANES.pairs_at()..][..PAIRS_BYTES]);
    }
    if F::PLANES.singles.is_some() {
        let plane = &mut planes[F::PLANES.singles_at()..][..SINGLES_BYTES];
        put_words(&[quants.singles], row, plane);
    }
}

/// Puts a row's words, each between those of the other rows.
#[inline]
fn put_words<const N: usize>(words: &[u32; N], row: usize, plane: &mut [u8]) {
    let lines = plane.as_chunks_mut::<{ 4 * PACKED_ROWS }>().0;
    for (word, line) in words.iter().zip(lines) {
        line[4 * row..][..4].copy_from_slice(&word.to_le_bytes());
    }
}

/// Little-endian words of bytes that are as many.
#[inline]
pub(super) fn bytes_of<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let words = bytes.as_chunks::<4>().0;
    assert_eq!(words.len(), N, "words of a block");
    std::array::from_fn(|i| u32::from_le_bytes(words[i]))
}

/// From 32 bytes, one of two nibbles each (0 the low one): those of words `q` and
/// `q + 4` in the low and the high half of a byte.
#[inline]
pub(super) fn nibbles_of(words: [u32; 8], which: usize) -> [u32; 4] {
    let nibble = |q: usize| (words[q] >> (4 * which)) & 0x0f0f_0f0f;
    std::array::from_fn(|q| nibble(q) | nibble(q + 4) << 4)
}

/// From 32 bytes, two bits each from bit `bit` on: those of four words in a byte.
#[inline]
pub(super) fn pairs_of(words: [u32; 8], bit: usize) -> [u32; 2] {
    let pair = |q: usize| (words[q] >> bit) & 0x0303_0303;
    std::array::from_fn(|half| {
        let q = 4 * half;
        pair(q) | pair(q + 1) << 2 | pair(q + 2) << 4 | pair(q + 3) << 6
    })
}

/// From 32 bytes, bit `bit` of each: those of eight words in a byte.
#[inline]
pub(super) fn singles_of(words: [u32; 8], bit: usize) -> u32 {
    let single = |q: usize| (words[q] >> bit & 0x0101_0101) << q;
    (0..GROUP_LEN / 4).fold(0, |all, q| all | single(q))
}

/// As [`singles_of`], from 32 bits in order of their columns.
#[inline]
pub(super) fn singles_of_bits(bits: u32) -> u32 {
    // Bit `4 q + j` to bit `q` of byte `j`.
    let byte = |j: u32| {
        let spread = bits >> j & 0x1111_1111;
        let pairs = (spread | spread >> 3) & 0x0303_0303;
        let fours = (pairs | pairs >> 6) & 0x000f_000f;
        (fours | fours >> 12) & 0xff
    };
    byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24
}
