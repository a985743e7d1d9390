//! The layout of a packed block: planes of quants, then scales.
//!
//! The 32 columns of a row are eight words of four columns: word `q` has columns `4 q` to `4 q + 3`, one
//! per byte. The bits of a quant are distributed over planes of 4, 2, 1 or 8 bits:
//!
//! | plane | bytes | contents of a stored word |
//! |---|---|---|
//! | nibbles | 256 | words `q` and `q + 4`, in the low and the high nibbles |
//! | pairs | 128 | two bits each of words `q` to `q + 3`, lowest first |
//! | singles | 64 | one bit each of words 0 to 7, lowest first |
//! | bytes | 512 | word `q` |

use realizar_quant::BlockType;

use super::pack::Block;
use super::{GROUP_LEN, PACKED_ROWS};

/// The planes of a type, in storage order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planes {
    /// Whether there is a plane of bits 0 to 3.
    pub(super) nibbles: bool,
    /// The lower of the two bits of a quant in the plane of pairs, if there is one.
    pub(super) pairs: Option<usize>,
    /// The bit of a quant in the plane of singles, if there is one.
    pub(super) singles: Option<usize>,
    /// Whether there is a plane of whole quants, which are signed.
    pub(super) bytes: bool,
    /// The values of quants of 4 bits, if they are indices.
    pub(super) codebook: Option<&'static [i8; 16]>,
}

/// Bytes of the plane of nibbles for 16 rows and 32 columns.
pub(super) const NIBBLES_BYTES: usize = 256;
pub(super) const PAIRS_BYTES: usize = 128;
pub(super) const SINGLES_BYTES: usize = 64;
pub(super) const BYTES_BYTES: usize = 512;

impl Planes {
    pub(super) const NONE: Self =
        Self { nibbles: false, pairs: None, singles: None, bytes: false, codebook: None };

    /// Whether assembled quants are signed bytes.
    pub(super) const fn are_signed(self) -> bool {
        self.bytes || self.codebook.is_some()
    }

    /// Offset of the pairs.
    pub(super) const fn pairs_at(self) -> usize {
        if self.nibbles { NIBBLES_BYTES } else { 0 }
    }

    /// Offset of the singles.
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

/// The storage of a row's block scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScaleKind {
    /// f16.
    Half,
    /// An exponent in a byte (`E8M0`); the scale is half of its power of two.
    Exponent,
    /// No scale: factors are floats.
    One,
}

/// The packed format of a quantized type.
///
/// `w = scale * factor * (quant - offset) + min_scale * min`. `scale` and `min_scale` are floats of a
/// row's block; `min_scale` is negative if minimums are subtracted. Factors and minimums are small
/// integers of 32 or 16 columns, or 1 if the format has none.
pub(super) trait Format {
    /// The type.
    const TY: BlockType;
    /// Columns per block: 32 or 256.
    const LEN: usize = Self::TY.block_len();
    /// Bytes of a row's block in a file.
    const BYTES: usize = Self::TY.block_bytes();
    /// Bytes of a row's packed block: more than in a file whose blocks have indices of points, because planes
    /// hold every element.
    const PACKED_BYTES: usize = Self::BYTES;
    /// The planes of the quants.
    const PLANES: Planes;
    /// The number that is subtracted from a quant. With it, the products of sixteen quants with 8-bit
    /// activations, summed in two lanes, fit 16 bits, except for signed bytes.
    const OFFSET: i16 = 0;
    /// The storage of `scale`.
    const SCALE: ScaleKind = ScaleKind::Half;
    /// The quotient of `scale` and the stored number: a power of two, so that F32 holds the product exactly.
    const SCALE_UNIT: f32 = 1.0;
    /// Whether factors are floats, one per half of 32 columns. They have so few bits that their products
    /// with sums of 16 columns are exact.
    const FLOAT_FACTORS: bool = false;
    /// Number of factors of 32 columns: none, one, or one per half.
    const FACTORS: usize = 0;
    /// Number of minimums of 32 columns: none, one, or one per half.
    const MINS: usize = 0;
    /// `min_scale / scale`, if the file has no list of it. Formats use it to express an offset as a minimum,
    /// which takes fewer instructions.
    const MIN_PER_SCALE: Option<f32> = None;
    /// Whether the second list has the quants that represent zero. `min_scale` is then minus their product
    /// with `scale`, which F32 holds exactly.
    const HAS_ZEROS: bool = false;

    /// Extracts the scales of a block, of one row or of several.
    fn pack_scales<B: Block>(block: &B) -> RowScales<B::Word>;

    /// Calls `put(group, planes)` for each 32 columns of a block, of one row or of several.
    fn pack_quants<B: Block>(block: &B, put: impl FnMut(usize, RowQuants<B::Word>));

    /// The integers of a row in group `group` of a packed block. `bytes` are those after the lists of scales.
    fn integers(_bytes: &[u8], _group: usize, _row: usize) -> Integers {
        Integers::NONE
    }

    /// Offset of the scales in a packed block.
    const SCALES_AT: usize = Self::LEN / GROUP_LEN * Self::PLANES.n_bytes();
    /// Offset of the integers in the scales: after one or two lists.
    const INTEGERS_AT: usize = match Self::SCALE {
        ScaleKind::One => 0,
        ScaleKind::Exponent => PACKED_ROWS,
        ScaleKind::Half if Self::MINS > 0 && Self::MIN_PER_SCALE.is_none() => 2 * HALVES_BYTES,
        ScaleKind::Half => HALVES_BYTES,
    };
}

/// Bytes of a list of f16.
pub(super) const HALVES_BYTES: usize = 2 * PACKED_ROWS;

/// Factors and minimums of a row, for each half of 32 columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Integers {
    pub(super) factors: [i16; 2],
    /// In formats whose factors are floats, these factors, in FP8 (`E4M3`).
    pub(super) mins: [u8; 2],
}

impl Integers {
    pub(super) const NONE: Self = Self { factors: [1; 2], mins: [1; 2] };
}

/// The quants of 32 columns of a row, by plane.
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

/// The scales of a row's block: f16 scales, then bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowScales<W> {
    /// Up to two f16 in a word, and their number.
    pub(super) halves: (W, usize),
    /// Four bytes per word; the last word may have fewer.
    pub(super) bytes: [Option<W>; 4],
}

impl<W> RowScales<W> {
    /// Scales that are `n` f16 only.
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

/// Converts an unsigned FP8 number (`E4M3`) to half of it: the number's bits, shifted by
/// [`E4M3_SHIFT`], are an F32 with a far smaller exponent; the product with this constant is exact.
pub(super) const E4M3_HALF_UNIT: f32 = f32::from_bits((119 + 127) << 23);
/// The shift from the bits of an E4M3 number to exponent and mantissa of an F32.
pub(super) const E4M3_SHIFT: usize = 20;

/// The f16 of row `row` in the `i`-th list of the scales.
pub(super) fn half_at(scales: &[u8], i: usize, row: usize) -> f32 {
    let at = (i * PACKED_ROWS + row) * 2;
    realizar_quant::half_bytes::f16_to_f32([scales[at], scales[at + 1]])
}
