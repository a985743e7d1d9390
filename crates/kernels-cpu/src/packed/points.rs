//! The packed formats of the types whose files have indices of points: IQ1, IQ2 and IQ3.
//!
//! A point has 4 or 8 elements. Packed, every element has an index of its own into the type's codebook of
//! at most 16 values: 3 bits with the sign for IQ2 and IQ1_M, 4 for IQ3, 2 for IQ1_S, whose shift becomes
//! a minimum. Scales are those of the file.

use realizar_quant::{BlockType, codebook};

use super::PACKED_ROWS;
use super::format::{Format, Integers, Planes, RowQuants, RowScales};
use super::pack::{
    Block, Word, even_signs_of, nibbles_of_fours, pairs_of_bits, signs_of_nibbles, singles_of_bits,
};

/// Planes of the IQ2 types: magnitude and sign.
const IQ2: Planes = three_bits(&codebook::IQ2);

/// Bytes of a row's packed block of 256: `bits` bits per element, plus the bytes of the scales.
const fn packed_bytes(bits: usize, scales: usize) -> usize {
    32 * bits + scales
}

/// Planes of three bits.
const fn three_bits(codebook: &'static [i8; 16]) -> Planes {
    Planes { pairs: Some(0), singles: Some(2), codebook: Some(codebook), ..Planes::NONE }
}

/// Assembles the indices of two points from one byte each and their upper bits.
#[inline(always)]
fn two_indices<W: Word>(bytes: W, first_upper: W, second_upper: W) -> W {
    let lower = bytes.and(0xff).or(bytes.and(0xff00).up(8));
    lower.or(first_upper.up(8)).or(second_upper.up(24))
}

/// Looks up two points by the indices in the halves of a word.
#[inline(always)]
fn two_points<W: Word, const N: usize>(indices: W, points: &[u16; N]) -> W {
    indices.map(|indices| {
        let point = |idx: u32| u32::from(points[idx as usize % N]);
        point(indices & 0xffff) | point(indices >> 16) << 16
    })
}

/// Gathers the upper four bits of the words of eight groups, two per byte.
#[inline(always)]
fn upper_nibbles<B: Block>(block: &B, at: usize, stride: usize) -> B::Word {
    let mut out = block.word(at).down(28);
    for group in 1..8 {
        out = out.or(block.word(at + group * stride).down(28).up(4 * group));
    }
    out
}

/// Scales in one word, and the f16 scale at the start of the block.
#[inline(always)]
fn with_word<B: Block>(block: &B, word: B::Word) -> RowScales<B::Word> {
    let bytes = [Some(word), None, None, None];
    RowScales { bytes, ..RowScales::of_halves(block.word(0), 1) }
}

/// As [`with_word`], with scales in the two words from byte `at` on.
#[inline(always)]
fn with_words<B: Block>(block: &B, at: usize) -> RowScales<B::Word> {
    let bytes = [Some(block.word(at)), Some(block.word(at + 4)), None, None];
    RowScales { bytes, ..RowScales::of_halves(block.word(0), 1) }
}

/// The nibble of a group; two groups share a byte.
fn nibble_at(bytes: &[u8], group: usize, row: usize) -> u8 {
    bytes[group / 2 * PACKED_ROWS + row] >> (group % 2 * 4) & 15
}

/// The odd factor of a group, `2 * nibble + 1`.
fn one_factor(bytes: &[u8], group: usize, row: usize) -> Integers {
    let factor = 2 * i16::from(nibble_at(bytes, group, row)) + 1;
    Integers { factors: [factor; 2], ..Integers::NONE }
}

/// The odd factors of a group's halves, from the nibbles of a byte.
fn two_factors(bytes: &[u8], group: usize, row: usize) -> Integers {
    let byte = i16::from(bytes[group * PACKED_ROWS + row]);
    Integers { factors: [byte & 15, byte >> 4].map(|n| 2 * n + 1), ..Integers::NONE }
}

/// IQ2_XXS: `w = d / 8 * (2 * scale + 1) * magnitude`, scales of 4 bits for 32 columns.
pub(super) struct IQ2XXS;

impl Format for IQ2XXS {
    const TY: BlockType = BlockType::IQ2_XXS;
    const PACKED_BYTES: usize = packed_bytes(3, 6);
    const PLANES: Planes = IQ2;
    const SCALE_UNIT: f32 = 0.125;
    const FACTORS: usize = 1;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        with_word(block, upper_nibbles(block, 6, 8))
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        for group in 0..8 {
            let (bytes, word) = (block.word(2 + 8 * group), block.word(6 + 8 * group));
            let none = bytes.and(0);
            let [a, b] = [bytes, bytes.down(16)].map(|bytes| two_indices(bytes, none, none));
            let [a, b] = [a, b].map(|indices| two_points(indices, &codebook::IQ2_XXS_POINTS));
            let pairs = Some([pairs_of_bits(a), pairs_of_bits(b)]);
            let singles = Some(singles_of_bits(even_signs_of(word)));
            put(group, RowQuants { pairs, singles, ..RowQuants::NONE });
        }
    }

    fn integers(bytes: &[u8], group: usize, row: usize) -> Integers {
        one_factor(bytes, group, row)
    }
}

/// IQ2_XS: as [`IQ2XXS`], with scales for 16 columns.
pub(super) struct IQ2XS;

impl Format for IQ2XS {
    const TY: BlockType = BlockType::IQ2_XS;
    const PACKED_BYTES: usize = packed_bytes(3, 10);
    const PLANES: Planes = IQ2;
    const SCALE_UNIT: f32 = 0.125;
    const FACTORS: usize = 2;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        with_words(block, 66)
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        for group in 0..8 {
            // Each half of a word has an index of 9 bits, and 7 signs above it.
            let (a, b) = (block.word(2 + 8 * group), block.word(6 + 8 * group));
            let signs = a.down(9).and(0x7f).or(a.down(25).up(7));
            let signs = signs.or(b.down(9).and(0x7f).up(14)).or(b.down(25).up(21));
            let [a, b] = [a, b]
                .map(|indices| two_points(indices.and(0x01ff_01ff), &codebook::IQ2_XS_POINTS));
            let pairs = Some([pairs_of_bits(a), pairs_of_bits(b)]);
            let singles = Some(singles_of_bits(even_signs_of(signs)));
            put(group, RowQuants { pairs, singles, ..RowQuants::NONE });
        }
    }

    fn integers(bytes: &[u8], group: usize, row: usize) -> Integers {
        two_factors(bytes, group, row)
    }
}

/// IQ2_S: as [`IQ2XS`], with all signs.
pub(super) struct IQ2S;

impl Format for IQ2S {
    const TY: BlockType = BlockType::IQ2_S;
    const PACKED_BYTES: usize = packed_bytes(3, 10);
    const PLANES: Planes = IQ2;
    const SCALE_UNIT: f32 = 0.125;
    const FACTORS: usize = 2;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        with_words(block, 74)
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        for group in 0..8 {
            let (bytes, upper) = (block.word(2 + 4 * group), block.word(66 + group));
            let two = |bytes: B::Word, upper: B::Word| {
                let indices = two_indices(bytes, upper.and(3), upper.down(2).and(3));
                two_points(indices, &codebook::IQ2_S_POINTS)
            };
            let pairs = [two(bytes, upper), two(bytes.down(16), upper.down(4))];
            let pairs = Some([pairs_of_bits(pairs[0]), pairs_of_bits(pairs[1])]);
            let singles = Some(singles_of_bits(block.word(34 + 4 * group)));
            put(group, RowQuants { pairs, singles, ..RowQuants::NONE });
        }
    }

    fn integers(bytes: &[u8], group: usize, row: usize) -> Integers {
        two_factors(bytes, group, row)
    }
}

/// Combines four words with two points each and the signs of 32 columns to nibbles.
#[inline(always)]
fn signed_nibbles<W: Word>(points: [W; 4], signs: W) -> [W; 4] {
    let mut words = [points[0]; 8];
    for (q, word) in words.iter_mut().enumerate() {
        let magnitudes = points[q / 2].down(q % 2 * 16).and(0xffff);
        *word = magnitudes.or(signs_of_nibbles(signs.down(4 * q)));
    }
    nibbles_of_fours(words)
}

/// IQ3_XXS: `w = d / 4 * (2 * scale + 1) * magnitude`, scales of 4 bits for 32 columns.
pub(super) struct IQ3XXS;

impl Format for IQ3XXS {
    const TY: BlockType = BlockType::IQ3_XXS;
    const PACKED_BYTES: usize = packed_bytes(4, 6);
    const PLANES: Planes =
        Planes { nibbles: true, codebook: Some(&codebook::IQ3_XXS), ..Planes::NONE };
    const SCALE_UNIT: f32 = 0.25;
    const FACTORS: usize = 1;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        with_word(block, upper_nibbles(block, 66, 4))
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        for group in 0..8 {
            let (a, b) = (block.word(2 + 8 * group), block.word(6 + 8 * group));
            let none = a.and(0);
            let points = [a, a.down(16), b, b.down(16)]
                .map(|bytes| two_points(two_indices(bytes, none, none), &codebook::IQ3_XXS_POINTS));
            let signs = even_signs_of(block.word(66 + 4 * group));
            let nibbles = Some(signed_nibbles(points, signs));
            put(group, RowQuants { nibbles, ..RowQuants::NONE });
        }
    }

    fn integers(bytes: &[u8], group: usize, row: usize) -> Integers {
        one_factor(bytes, group, row)
    }
}

/// IQ3_S: `w = d * (2 * scale + 1) * magnitude`, scales of 4 bits for 32 columns.
pub(super) struct IQ3S;

impl Format for IQ3S {
    const TY: BlockType = BlockType::IQ3_S;
    const PACKED_BYTES: usize = packed_bytes(4, 6);
    const PLANES: Planes =
        Planes { nibbles: true, codebook: Some(&codebook::IQ3_S), ..Planes::NONE };
    const FACTORS: usize = 1;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        with_word(block, block.word(106))
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        for group in 0..8 {
            let (a, b) = (block.word(2 + 8 * group), block.word(6 + 8 * group));
            let upper = block.word(66 + group);
            let two = |bytes: B::Word, upper: B::Word| {
                let indices = two_indices(bytes, upper.and(1), upper.down(1).and(1));
                two_points(indices, &codebook::IQ3_S_POINTS)
            };
            let points = [
                two(a, upper),
                two(a.down(16), upper.down(2)),
                two(b, upper.down(4)),
                two(b.down(16), upper.down(6)),
            ];
            let nibbles = Some(signed_nibbles(points, block.word(74 + 4 * group)));
            put(group, RowQuants { nibbles, ..RowQuants::NONE });
        }
    }

    fn integers(bytes: &[u8], group: usize, row: usize) -> Integers {
        one_factor(bytes, group, row)
    }
}

/// IQ1_S: `w = d * (2 * scale + 1) * (q - 1 ± 1 / 8)`, scales of 3 bits and the sign of the shift for 32
/// columns. The number subtracted from `q`, 7 / 8 or 9 / 8, times the factor is the minimum.
pub(super) struct IQ1S;

impl Format for IQ1S {
    const TY: BlockType = BlockType::IQ1_S;
    const PACKED_BYTES: usize = packed_bytes(2, 6);
    const PLANES: Planes = Planes { pairs: Some(0), ..Planes::NONE };
    const FACTORS: usize = 1;
    const MINS: usize = 1;
    const MIN_PER_SCALE: Option<f32> = Some(-0.125);

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        let mut out = block.word(0).and(0);
        for two in 0..4 {
            let word = block.word(34 + 4 * two);
            out = out.or(word.down(12).and(0xf).or(word.down(28).up(4)).up(8 * two));
        }
        with_word(block, out)
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        for group in 0..8 {
            let bytes = block.word(2 + 4 * group);
            let upper = block.word(34 + 4 * (group / 2)).down(16 * (group % 2));
            let two = |bytes: B::Word, upper: B::Word| {
                let indices = two_indices(bytes, upper.and(7), upper.down(3).and(7));
                two_points(indices, &codebook::IQ1_POINTS)
            };
            let pairs = [two(bytes, upper), two(bytes.down(16), upper.down(6))];
            let pairs = Some([pairs_of_bits(pairs[0]), pairs_of_bits(pairs[1])]);
            put(group, RowQuants { pairs, ..RowQuants::NONE });
        }
    }

    fn integers(bytes: &[u8], group: usize, row: usize) -> Integers {
        let [factor, min] = iq1_s_integers(nibble_at(bytes, group, row));
        Integers { factors: [i16::from(factor); 2], mins: [min; 2] }
    }
}

/// Factor and minimum of an IQ1_S nibble: a scale of 3 bits, and above it a bit that is set if the shift
/// is negative.
pub(super) fn iq1_s_integers(nibble: u8) -> [u8; 2] {
    let factor = 2 * (nibble & 7) + 1;
    [factor, if nibble & 8 == 8 { 9 * factor } else { 7 * factor }]
}

/// IQ1_M: `w = d / 8 * (2 * scale + 1) * (8 * (q - 1) ± 1)`, scales of 3 bits for 16 columns and a sign of the
/// shift for 8.
pub(super) struct IQ1M;

impl Format for IQ1M {
    const TY: BlockType = BlockType::IQ1_M;
    const PACKED_BYTES: usize = packed_bytes(3, 10);
    const PLANES: Planes = three_bits(&codebook::IQ1_EIGHTHS);
    const SCALE_UNIT: f32 = 0.125;
    const FACTORS: usize = 2;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        // Each of four 16-bit halves has four scales of three bits, and above them a nibble of the f16 scale.
        let (a, b) = (block.word(48), block.word(52));
        let d = a.down(12).and(0xf).or(a.down(28).up(4));
        let d = d.or(b.down(12).and(0xf).up(8)).or(b.down(28).up(12));
        let nibbles = |word: B::Word| {
            let mut out = word.and(0x0007_0007);
            for i in 1..4 {
                out = out.or(word.down(3 * i).and(0x0007_0007).up(4 * i));
            }
            Some(out)
        };
        RowScales { bytes: [nibbles(a), nibbles(b), None, None], ..RowScales::of_halves(d, 1) }
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        for group in 0..8 {
            let (bytes, upper) = (block.word(4 * group), block.word(32 + 2 * group));
            let two = |bytes: B::Word, upper: B::Word| {
                let indices = two_indices(bytes, upper.and(7), upper.down(4).and(7));
                two_points(indices, &codebook::IQ1_POINTS)
            };
            let pairs = [two(bytes, upper), two(bytes.down(16), upper.down(8))];
            let pairs = Some([pairs_of_bits(pairs[0]), pairs_of_bits(pairs[1])]);
            // A point's shift is that of two words.
            let singles = upper.map(|upper| {
                let two = |l: u32| ((upper >> (4 * l + 3) & 1) * 3) << (2 * l);
                (two(0) | two(1) | two(2) | two(3)) * 0x0101_0101
            });
            put(group, RowQuants { pairs, singles: Some(singles), ..RowQuants::NONE });
        }
    }

    fn integers(bytes: &[u8], group: usize, row: usize) -> Integers {
        two_factors(bytes, group, row)
    }
}
