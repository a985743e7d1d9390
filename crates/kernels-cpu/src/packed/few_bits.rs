//! The packed formats of the types with one or two bits per element and no indices, and of NVFP4.

use realizar_quant::{BlockType, codebook};

use super::PACKED_ROWS;
use super::format::{Format, Integers, Planes, RowQuants, RowScales, ScaleKind};
use super::pack::{Block, Word, digits_of, pairs_of, pairs_of_bits, singles_of_bits};

/// Planes of two bits.
const PAIRS: Planes = Planes { pairs: Some(0), ..Planes::NONE };

/// TQ1_0: `w = d * (q - 1)`. Packed as [`TQ2_0`].
pub(super) struct TQ1_0;

impl Format for TQ1_0 {
    const TY: BlockType = BlockType::TQ1_0;
    const PACKED_BYTES: usize = TQ2_0::PACKED_BYTES;
    const PLANES: Planes = PAIRS;
    const OFFSET: i16 = 1;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        // The scale is the last two bytes of the block.
        RowScales::of_halves(block.word(50).down(16), 1)
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        let words = block.words::<8>(0);
        for group in 0..5 {
            let digits = words.map(|word| digits_of(word, group));
            let pairs = Some(pairs_of(digits, 0));
            put(group, RowQuants { pairs, ..RowQuants::NONE });
        }
        // Five halves of groups; in the last half, each digit of one word is four columns.
        let [a, b, c, d] = block.words(32);
        let last = block.word(48);
        let half = |k: usize| [a, b, c, d].map(|word| digits_of(word, k));
        let ends = [half(0), half(1), half(2), half(3), half(4), {
            let digit = |k: usize| digits_of(last, k);
            [digit(0), digit(1), digit(2), digit(3)]
        }];
        for group in 5..8 {
            let ([a, b, c, d], [e, f, g, h]) = (ends[2 * group - 10], ends[2 * group - 9]);
            let pairs = Some(pairs_of([a, b, c, d, e, f, g, h], 0));
            put(group, RowQuants { pairs, ..RowQuants::NONE });
        }
    }
}

/// TQ2_0: `w = d * (q - 1)`.
pub(super) struct TQ2_0;

impl Format for TQ2_0 {
    const TY: BlockType = BlockType::TQ2_0;
    const PLANES: Planes = PAIRS;
    const OFFSET: i16 = 1;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        // The scale is the last two bytes of the block.
        RowScales::of_halves(block.word(62).down(16), 1)
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        for half in 0..2 {
            let words = block.words(32 * half);
            for quarter in 0..4 {
                let pairs = Some(pairs_of(words, 2 * quarter));
                put(4 * half + quarter, RowQuants { pairs, ..RowQuants::NONE });
            }
        }
    }
}

/// Q2_0: `w = d * (q - 1)`.
pub(super) struct Q2_0;

impl Format for Q2_0 {
    const TY: BlockType = BlockType::Q2_0;
    const PLANES: Planes = PAIRS;
    const OFFSET: i16 = 1;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        RowScales::of_halves(block.word(0), 1)
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        for group in 0..2 {
            let words = [block.word(2 + 8 * group), block.word(6 + 8 * group)];
            let pairs = Some([pairs_of_bits(words[0]), pairs_of_bits(words[1])]);
            put(group, RowQuants { pairs, ..RowQuants::NONE });
        }
    }
}

/// Q1_0: `w = d * (q - 1)` with `q` of 0 or 2.
pub(super) struct Q1_0;

impl Format for Q1_0 {
    const TY: BlockType = BlockType::Q1_0;
    const PLANES: Planes = Planes { singles: Some(1), ..Planes::NONE };
    const OFFSET: i16 = 1;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        RowScales::of_halves(block.word(0), 1)
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        for group in 0..4 {
            let singles = Some(singles_of_bits(block.word(2 + 4 * group)));
            put(group, RowQuants { singles, ..RowQuants::NONE });
        }
    }
}

/// NVFP4: `w = scale / 2 * codebook[q]`, scales of FP8 for 16 columns.
pub(super) struct NVFP4;

impl Format for NVFP4 {
    const TY: BlockType = BlockType::NVFP4;
    const PLANES: Planes = Planes { nibbles: true, codebook: Some(&codebook::FP4), ..Planes::NONE };
    const SCALE: ScaleKind = ScaleKind::One;
    const FLOAT_FACTORS: bool = true;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        // 127 encodes zero, and the highest bit is ignored.
        let scales = block.word(0).map(|word| {
            let scales = word.to_le_bytes();
            u32::from_le_bytes(scales.map(|scale| if scale == 0x7f { 0 } else { scale & 0x7f }))
        });
        RowScales { bytes: [Some(scales), None, None, None], ..RowScales::of_halves(scales, 0) }
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        let (low, high) = (0x0f0f_0f0f, 0xf0f0_f0f0);
        for group in 0..2 {
            // The first 8 of 16 columns are in the low nibbles of two words.
            let [a, b, c, d] = block.words(4 + 16 * group);
            let nibbles = Some([
                a.and(low).or(c.up(4).and(high)),
                b.and(low).or(d.up(4).and(high)),
                a.down(4).and(low).or(c.and(high)),
                b.down(4).and(low).or(d.and(high)),
            ]);
            put(group, RowQuants { nibbles, ..RowQuants::NONE });
        }
    }

    fn integers(bytes: &[u8], group: usize, row: usize) -> Integers {
        let mins = [0, 1].map(|half| bytes[(2 * group + half) * PACKED_ROWS + row]);
        Integers { mins, ..Integers::NONE }
    }
}
