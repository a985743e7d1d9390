//! What a packed block looks like: planes of quants, then scales.
//!
//! A quant is put together from planes of 4, 2, 1 or 8 bits. The four columns of word
//! `q` of 32 columns are `4 q` to `4 q + 3`; a word is a row's.
//!
//! | plane | bytes | a word holds |
//! |---|---|---|
//! | nibbles | 256 | of words `q` and `q + 4` of a row, low and high nibble |
//! | pairs | 128 | two bits each of words `q` to `q + 3`, lowest first |
//! | singles | 64 | a bit each of words 0 to 7, lowest first |
//! | bytes | 512 | word `q` of a row |

use realizar_quant::BlockType;

use super::pack::Block;
use super::{GROUP_LEN, PACKED_ROWS};

/// The planes of a type, in the order in which they lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planes {
    /// Bits 0 to 3 of a quant.
    pub(super) nibbles: bool,
    /// Two bits of a quant, from this bit on.
    pub(super) pairs: Option<usize>,
    /// One bit of a quant, at this place.
    pub(super) singles: Option<usize>,
    /// The whole quant, signed.
    pub(super) bytes: bool,
    /// What the quants of nibbles stand for, if not for themselves.
    pub(super) codebook: Option<&'static [i8; 16]>,
}

/// Bytes of a plane for 16 rows and 32 columns.
pub(super) const NIBBLES_BYTES: usize = 256;
pub(super) const PAIRS_BYTES: usize = 128;
pub(super) const SINGLES_BYTES: usize = 64;
pub(super) const BYTES_BYTES: usize = 512;

impl Planes {
    pub(super) const NONE: Self =
        Self { nibbles: false, pairs: None, singles: None, bytes: false, codebook: None };

    /// Whether quants are signed bytes once they are put together.
    pub(super) const fn are_signed(self) -> bool {
        self.bytes || self.codebook.is_some()
    }

    /// Where the pairs begin.
    pub(super) const fn pairs_at(self) -> usize {
        if self.nibbles { NIBBLES_BYTES } else { 0 }
    }

    /// Where the singles begin.
    pub(super) const fn singles_at(self) -> usize {
        self.pairs_at() + if self.pairs.is_some() { PAIRS_BYTES } else { 0 }
    }

    /// Bytes of all planes of 16 rows and 32 columns.
    pub(super) const fn n_bytes(self) -> usize {
        if self.bytes {
            return BYTES_BYTES;
        }
        self.singles_at() + if self.singles.is_some() { SINGLES_BYTES } else { 0 }
    }
}

/// How the scale of a row's block is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScaleKind {
    /// As f16.
    Half,
    /// As an exponent in a byte, half of whose power of two is meant (`E8M0`).
    Exponent,
    /// There is none: factors are floats.
    One,
}

/// A quantized type as it is packed.
///
/// `w = scale * factor * (quant - offset) + min_scale * min`. The two scales are floats of
/// a row's block, `min_scale` with the sign that the sum needs; factors and minimums are
/// small integers of 32 or 16 columns, 1 where there are none.
pub(super) trait Format {
    /// The type.
    const TY: BlockType;
    /// Columns of a block: 32 or 256.
    const LEN: usize = Self::TY.block_len();
    /// Bytes of a row's block in a file.
    const BYTES: usize = Self::TY.block_bytes();
    /// Bytes of a row's block when it is packed: more where a file has the indices of points, of which
    /// planes hold every element.
    const PACKED_BYTES: usize = Self::BYTES;
    /// Where the bits of a quant are.
    const PLANES: Planes;
    /// What is subtracted from a quant. After it the products of sixteen quants with 8-bit
    /// activations, added in two lanes, fit 16 bits, except those of signed bytes.
    const OFFSET: i16 = 0;
    /// How `scale` is stored.
    const SCALE: ScaleKind = ScaleKind::Half;
    /// What `scale` is times what is stored: a power of two, so that F32 holds it exactly.
    const SCALE_UNIT: f32 = 1.0;
    /// Whether factors are floats, one for each half of 32 columns, of so few bits that their products with
    /// sums of 16 columns are exact.
    const FLOAT_FACTORS: bool = false;
    /// Factors of 32 columns: none, one, or one for each half.
    const FACTORS: usize = 0;
    /// Minimums of 32 columns: none, one, or one for each half.
    const MINS: usize = 0;
    /// `min_scale` in terms of `scale`, where the file has no list of it. An offset becomes
    /// such a minimum where that takes fewer instructions.
    const MIN_PER_SCALE: Option<f32> = None;
    /// Whether the second list is of the quants that stand for zero. `min_scale` is then minus their
    /// product with `scale`, which F32 holds exactly.
    const HAS_ZEROS: bool = false;

    /// The scales of a row's block, or of those of several rows.
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word>;

    /// Calls `put` with the planes of each 32 columns of a row's block, or of those of
    /// several rows.
    fn pack_quants<B: Block>(block: &B, put: impl FnMut(usize, RowQuants<B::Word>));

    /// The integers of a row in group `group` of a packed block, from the bytes that
    /// follow the lists of its scales.
    fn integers(_bytes: &[u8], _group: usize, _row: usize) -> Integers {
        Integers::NONE
    }

    /// Where the scales begin in a packed block.
    const SCALES_AT: usize = Self::LEN / GROUP_LEN * Self::PLANES.n_bytes();
    /// Where the bytes of integers begin among the scales: after one list of them or two.
    const INTEGERS_AT: usize = match Self::SCALE {
        ScaleKind::One => 0,
        ScaleKind::Exponent => PACKED_ROWS,
        ScaleKind::Half if Self::MINS > 0 && Self::MIN_PER_SCALE.is_none() => 2 * HALVES_BYTES,
        ScaleKind::Half => HALVES_BYTES,
    };
}

/// Bytes of a list of f16.
pub(super) const HALVES_BYTES: usize = 2 * PACKED_ROWS;

/// Factors and minimums of the halves of 32 columns of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Integers {
    pub(super) factors: [i16; 2],
    /// In formats with factors that are floats, these, as bytes of FP8 (`E4M3`).
    pub(super) mins: [u8; 2],
}

impl Integers {
    pub(super) const NONE: Self = Self { factors: [1; 2], mins: [1; 2] };
}

/// The quants of 32 columns of a row, as the planes of its format hold them.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowQuants<W> {
    pub(super) nibbles: Option<[W; 4]>,
    pub(super) pairs: Option<[W; 2]>,
    pub(super) singles: Option<W>,
    pub(super) bytes: Option<[W; 8]>,
}

impl<W> RowQuants<W> {
    pub(super) const NONE: Self = Self { nibbles: None, pairs: None, singles: None, bytes: None };
}

/// The scales of a row's block: first f16, then bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowScales<W> {
    /// None, one or two f16 in a word, and how many.
    pub(super) halves: (W, usize),
    /// Four bytes to a word; the last may have fewer.
    pub(super) bytes: [Option<W>; 4],
}

impl<W> RowScales<W> {
    /// No scales but `n` f16.
    #[inline(always)]
    pub(super) fn of_halves(word: W, n: usize) -> Self {
        Self { halves: (word, n), bytes: [None, None, None, None] }
    }
}

/// The scale of row `row`, from the scales of a packed block.
pub(super) fn scale_at<F: Format>(scales: &[u8], row: usize) -> f32 {
    match F::SCALE {
        ScaleKind::Half => F::SCALE_UNIT * half_at(scales, 0, row),
        ScaleKind::Exponent => realizar_quant::small_floats::e8m0_half(scales[row]),
        ScaleKind::One => 1.0,
    }
}

/// Half of a number of FP8 (`E4M3`) without a sign: the exponent and the mantissa of an F32 of a far smaller
/// exponent, which the product brings in place, exactly.
pub(super) const E4M3_HALF_UNIT: f32 = f32::from_bits((119 + 127) << 23);
/// Where the bits of such a number go.
pub(super) const E4M3_SHIFT: usize = 20;

/// Number `row` of the `i`-th list of f16 in the scales.
pub(super) fn half_at(scales: &[u8], i: usize, row: usize) -> f32 {
    let at = (i * PACKED_ROWS + row) * 2;
    realizar_quant::half_bytes::f16_to_f32([scales[at], scales[at + 1]])
}
