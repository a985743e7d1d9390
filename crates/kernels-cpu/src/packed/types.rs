//! The packed formats of the types, with their planes and scales. [`points`](super::points) has those of
//! types with indices of points, [`few_bits`](super::few_bits) those of one or two bits.

use realizar_quant::{BlockType, codebook};

use super::PACKED_ROWS;
pub(super) use super::few_bits::{NVFP4, Q1_0, Q2_0, TQ1_0, TQ2_0};
use super::format::{Format, Integers, Planes, RowQuants, RowScales, ScaleKind};
use super::pack::{
    Block, Word, nibbles_of, pairs_of, singles_of, singles_of_bits, sixes_of_k_scales,
    sixes_of_q3_k,
};

pub(super) use super::points::{IQ1M, IQ1S, IQ2S, IQ2XS, IQ2XXS, IQ3S, IQ3XXS};

/// Evaluates an expression with the [`Format`] of a block type as a type.
macro_rules! with_format {
    ($ty:expr, $F:ident => $body:expr) => {{
        use realizar_quant::BlockType as B;

        use $crate::packed::types as t;
        macro_rules! run {
            ($name:ty) => {{
                type $F = $name;
                $body
            }};
        }
        match $ty {
            B::Q4_0 => run!(t::Q4_0),
            B::Q4_1 => run!(t::Q4_1),
            B::Q4_Z => run!(t::Q4Z),
            B::Q5_0 => run!(t::Q5_0),
            B::Q5_1 => run!(t::Q5_1),
            B::Q8_0 => run!(t::Q8_0),
            B::Q2_K => run!(t::Q2K),
            B::Q3_K => run!(t::Q3K),
            B::Q4_K => run!(t::Q4K),
            B::Q5_K => run!(t::Q5K),
            B::Q6_K => run!(t::Q6K),
            B::IQ4_NL => run!(t::IQ4NL),
            B::IQ4_XS => run!(t::IQ4XS),
            B::MXFP4 => run!(t::MXFP4),
            B::NVFP4 => run!(t::NVFP4),
            B::IQ1_S => run!(t::IQ1S),
            B::IQ1_M => run!(t::IQ1M),
            B::IQ2_XXS => run!(t::IQ2XXS),
            B::IQ2_XS => run!(t::IQ2XS),
            B::IQ2_S => run!(t::IQ2S),
            B::IQ3_XXS => run!(t::IQ3XXS),
            B::IQ3_S => run!(t::IQ3S),
            B::TQ1_0 => run!(t::TQ1_0),
            B::TQ2_0 => run!(t::TQ2_0),
            B::Q1_0 => run!(t::Q1_0),
            B::Q2_0 => run!(t::Q2_0),
            ty => panic!("{ty} weights are not packed"),
        }
    }};
}
pub(super) use with_format;

/// Whether [`with_format`] has the type.
pub(super) const fn is_packed(ty: BlockType) -> bool {
    use BlockType as B;
    matches!(
        ty,
        B::Q4_0
            | B::Q4_1
            | B::Q4_Z
            | B::Q5_0
            | B::Q5_1
            | B::Q8_0
            | B::Q2_K
            | B::Q3_K
            | B::Q4_K
            | B::Q5_K
            | B::Q6_K
            | B::IQ4_NL
            | B::IQ4_XS
            | B::MXFP4
            | B::NVFP4
            | B::IQ1_S
            | B::IQ1_M
            | B::IQ2_XXS
            | B::IQ2_XS
            | B::IQ2_S
            | B::IQ3_XXS
            | B::IQ3_S
            | B::TQ1_0
            | B::TQ2_0
            | B::Q1_0
            | B::Q2_0
    )
}

/// Planes of four bits.
const NIBBLES: Planes = Planes { nibbles: true, ..Planes::NONE };
/// Planes of five bits.
const NIBBLES_AND_SINGLES: Planes = Planes { singles: Some(4), ..NIBBLES };

/// Q4_0: `w = d * (q - 8)`.
pub(super) struct Q4_0;

impl Format for Q4_0 {
    const TY: BlockType = BlockType::Q4_0;
    const PLANES: Planes = NIBBLES;
    const MINS: usize = 1;
    const MIN_PER_SCALE: Option<f32> = Some(-8.0);

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        RowScales::of_halves(block.word(0), 1)
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        put(0, RowQuants { nibbles: Some(block.words(2)), ..RowQuants::NONE });
    }
}

/// Q4_1: `w = d * q + m`.
pub(super) struct Q4_1;

impl Format for Q4_1 {
    const TY: BlockType = BlockType::Q4_1;
    const PLANES: Planes = NIBBLES;
    const MINS: usize = 1;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        RowScales::of_halves(block.word(0), 2)
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        put(0, RowQuants { nibbles: Some(block.words(4)), ..RowQuants::NONE });
    }
}

/// Q4_Z: `w = d * (q - z)`.
pub(super) struct Q4Z;

impl Format for Q4Z {
    const TY: BlockType = BlockType::Q4_Z;
    const PLANES: Planes = NIBBLES;
    const MINS: usize = 1;
    const HAS_ZEROS: bool = true;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        Q4_1::pack_scales(block)
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, put: impl FnMut(usize, RowQuants<B::Word>)) {
        Q4_1::pack_quants(block, put);
    }
}

/// Q5_0: `w = d * (q - 16)`.
pub(super) struct Q5_0;

impl Format for Q5_0 {
    const TY: BlockType = BlockType::Q5_0;
    const PLANES: Planes = NIBBLES_AND_SINGLES;
    const MINS: usize = 1;
    const MIN_PER_SCALE: Option<f32> = Some(-16.0);

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        RowScales::of_halves(block.word(0), 1)
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        let singles = Some(singles_of_bits(block.word(2)));
        put(0, RowQuants { nibbles: Some(block.words(6)), singles, ..RowQuants::NONE });
    }
}

/// Q5_1: `w = d * q + m`.
pub(super) struct Q5_1;

impl Format for Q5_1 {
    const TY: BlockType = BlockType::Q5_1;
    const PLANES: Planes = NIBBLES_AND_SINGLES;
    const MINS: usize = 1;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        Q4_1::pack_scales(block)
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        let singles = Some(singles_of_bits(block.word(4)));
        put(0, RowQuants { nibbles: Some(block.words(8)), singles, ..RowQuants::NONE });
    }
}

/// Q8_0: `w = d * q`, signed.
pub(super) struct Q8_0;

impl Format for Q8_0 {
    const TY: BlockType = BlockType::Q8_0;
    const PLANES: Planes = Planes { bytes: true, ..Planes::NONE };

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        RowScales::of_halves(block.word(0), 1)
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        put(0, RowQuants { bytes: Some(block.words(2)), ..RowQuants::NONE });
    }
}

/// Q2_K: `w = d * scale * q - dmin * min`, scales and minimums of 4 bits for 16 columns.
pub(super) struct Q2K;

impl Format for Q2K {
    const TY: BlockType = BlockType::Q2_K;
    const PLANES: Planes = Planes { pairs: Some(0), ..Planes::NONE };
    const FACTORS: usize = 2;
    const MINS: usize = 2;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        let [a, b, c, d] = block.words(0);
        let bytes = [Some(a), Some(b), Some(c), Some(d)];
        RowScales { bytes, ..RowScales::of_halves(block.word(80), 2) }
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        for half in 0..2 {
            let words = block.words(16 + 32 * half);
            for quarter in 0..4 {
                let pairs = Some(pairs_of(words, 2 * quarter));
                put(4 * half + quarter, RowQuants { pairs, ..RowQuants::NONE });
            }
        }
    }

    fn integers(bytes: &[u8], group: usize, row: usize) -> Integers {
        let [a, b] = [0, 1].map(|half| bytes[(2 * group + half) * PACKED_ROWS + row]);
        Integers { factors: [a, b].map(|byte| byte & 15).map(i16::from), mins: [a >> 4, b >> 4] }
    }
}

/// Q3_K: `w = d * scale * (q - 4)`, signed scales of 6 bits for 16 columns.
pub(super) struct Q3K;

impl Format for Q3K {
    const TY: BlockType = BlockType::Q3_K;
    const PLANES: Planes = Planes { pairs: Some(0), singles: Some(2), ..Planes::NONE };
    const OFFSET: i16 = 4;
    const FACTORS: usize = 2;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        // The scale is the last two bytes of the block.
        let halves = RowScales::of_halves(block.word(106).down(16), 1);
        let [_, a, b, high] = block.words(92);
        RowScales { bytes: sixes(sixes_of_q3_k([a, b, high])), ..halves }
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        let high = block.words(0);
        for half in 0..2 {
            let words = block.words(32 + 32 * half);
            for quarter in 0..4 {
                let group = 4 * half + quarter;
                let pairs = Some(pairs_of(words, 2 * quarter));
                let singles = Some(singles_of(high, group));
                put(group, RowQuants { pairs, singles, ..RowQuants::NONE });
            }
        }
    }

    fn integers(bytes: &[u8], group: usize, row: usize) -> Integers {
        let factors = six_at(bytes, group, row).map(|six| i16::from(six) - 32);
        Integers { factors, ..Integers::NONE }
    }
}

/// Q4_K: `w = d * scale * q - dmin * min`, scales and minimums of 6 bits.
pub(super) struct Q4K;

impl Format for Q4K {
    const TY: BlockType = BlockType::Q4_K;
    const PLANES: Planes = NIBBLES;
    const FACTORS: usize = 1;
    const MINS: usize = 1;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        let [halves, a, b, c] = block.words(0);
        let bytes = sixes(sixes_of_k_scales([a, b, c]));
        RowScales { bytes, ..RowScales::of_halves(halves, 2) }
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        for pair in 0..4 {
            let words = block.words(16 + 32 * pair);
            for which in 0..2 {
                let nibbles = Some(nibbles_of(words, which));
                put(2 * pair + which, RowQuants { nibbles, ..RowQuants::NONE });
            }
        }
    }

    fn integers(bytes: &[u8], group: usize, row: usize) -> Integers {
        let [factor, min] = six_at(bytes, group, row);
        Integers { factors: [i16::from(factor); 2], mins: [min; 2] }
    }
}

/// Q5_K: as [`Q4K`], with quants of 5 bits.
pub(super) struct Q5K;

impl Format for Q5K {
    const TY: BlockType = BlockType::Q5_K;
    const PLANES: Planes = NIBBLES_AND_SINGLES;
    const FACTORS: usize = 1;
    const MINS: usize = 1;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        Q4K::pack_scales(block)
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        let high = block.words(16);
        for pair in 0..4 {
            let words = block.words(48 + 32 * pair);
            for which in 0..2 {
                let group = 2 * pair + which;
                let nibbles = Some(nibbles_of(words, which));
                let singles = Some(singles_of(high, group));
                put(group, RowQuants { nibbles, singles, ..RowQuants::NONE });
            }
        }
    }

    fn integers(bytes: &[u8], group: usize, row: usize) -> Integers {
        Q4K::integers(bytes, group, row)
    }
}

/// Q6_K: `w = d * scale * (q - 32)`, signed scales of 8 bits for 16 columns.
pub(super) struct Q6K;

impl Format for Q6K {
    const TY: BlockType = BlockType::Q6_K;
    const PLANES: Planes = Planes { pairs: Some(4), ..NIBBLES };
    const OFFSET: i16 = 32;
    const FACTORS: usize = 2;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        // The scale is the last two bytes of the block.
        let halves = RowScales::of_halves(block.word(206).down(16), 1);
        let [a, b, c, d] = block.words(192);
        RowScales { bytes: [Some(a), Some(b), Some(c), Some(d)], ..halves }
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        for half in 0..2 {
            let low = [block.words(64 * half), block.words(64 * half + 32)];
            let high = block.words(128 + 32 * half);
            for quarter in 0..4 {
                let nibbles = Some(nibbles_of(low[quarter % 2], quarter / 2));
                let pairs = Some(pairs_of(high, 2 * quarter));
                put(4 * half + quarter, RowQuants { nibbles, pairs, ..RowQuants::NONE });
            }
        }
    }

    fn integers(bytes: &[u8], group: usize, row: usize) -> Integers {
        let byte = |half: usize| bytes[(2 * group + half) * PACKED_ROWS + row];
        let factors = [0, 1].map(|half| i16::from(byte(half).cast_signed()));
        Integers { factors, ..Integers::NONE }
    }
}

/// IQ4_NL: `w = d * codebook[q]`.
pub(super) struct IQ4NL;

impl Format for IQ4NL {
    const TY: BlockType = BlockType::IQ4_NL;
    const PLANES: Planes = Planes { codebook: Some(&codebook::IQ4), ..NIBBLES };

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        RowScales::of_halves(block.word(0), 1)
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        put(0, RowQuants { nibbles: Some(block.words(2)), ..RowQuants::NONE });
    }
}

/// IQ4_XS: `w = d * scale * codebook[q]`, signed scales of 6 bits for 32 columns.
pub(super) struct IQ4XS;

impl Format for IQ4XS {
    const TY: BlockType = BlockType::IQ4_XS;
    const PLANES: Planes = IQ4NL::PLANES;
    const FACTORS: usize = 1;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        // The scale, then the high bits of the integers, which are two bytes per row.
        let word = block.word(0);
        let bytes = [Some(block.word(4)), Some(word.down(16)), None, None];
        RowScales { bytes, ..RowScales::of_halves(word, 1) }
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        for group in 0..8 {
            let nibbles = Some(block.words(8 + 16 * group));
            put(group, RowQuants { nibbles, ..RowQuants::NONE });
        }
    }

    fn integers(bytes: &[u8], group: usize, row: usize) -> Integers {
        let low = bytes[group / 2 * PACKED_ROWS + row] >> (group % 2 * 4) & 15;
        let high = bytes[SIX_LOW + group / 4 * PACKED_ROWS + row] >> (group % 4 * 2) & 3;
        Integers { factors: [i16::from(low | high << 4) - 32; 2], ..Integers::NONE }
    }
}

/// Bytes of the low nibbles of 6-bit numbers, for one number per group of 32 columns.
pub(super) const SIX_LOW: usize = 4 * PACKED_ROWS;

/// MXFP4: `w = 2^(e - 127) / 2 * codebook[q]`.
pub(super) struct MXFP4;

impl Format for MXFP4 {
    const TY: BlockType = BlockType::MXFP4;
    const PLANES: Planes = Planes { codebook: Some(&codebook::FP4), ..NIBBLES };
    const SCALE: ScaleKind = ScaleKind::Exponent;

    #[inline(always)]
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word> {
        // Only the lowest byte of the word is stored.
        let word = block.word(0);
        RowScales { bytes: [Some(word), None, None, None], ..RowScales::of_halves(word, 0) }
    }

    #[inline(always)]
    fn pack_quants<B: Block>(block: &B, mut put: impl FnMut(usize, RowQuants<B::Word>)) {
        put(0, RowQuants { nibbles: Some(block.words(1)), ..RowQuants::NONE });
    }
}

/// Two 6-bit numbers per group of 32 columns, as bytes of scales: the low nibbles of both share a byte,
/// and then the high bits of two groups share a byte.
#[inline(always)]
fn sixes<W>([a, b, high]: [W; 3]) -> [Option<W>; 4] {
    [Some(a), Some(b), Some(high), None]
}

/// Bytes of the low nibbles of [`sixes`].
pub(super) const SIXES_LOW: usize = 8 * PACKED_ROWS;

/// The two numbers of a group in [`sixes`].
pub(super) fn six_at(scales: &[u8], group: usize, row: usize) -> [u8; 2] {
    let low = scales[group * PACKED_ROWS + row];
    let high = scales[SIXES_LOW + group / 2 * PACKED_ROWS + row] >> (group % 2 * 4);
    [low & 15 | (high & 3) << 4, low >> 4 | (high >> 2 & 3) << 4]
}
