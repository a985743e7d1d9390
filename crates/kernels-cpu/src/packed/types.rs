//! The types that can be packed, each with its planes and scales.

use realizar_quant::{BlockType, k_scales};

use super::PACKED_ROWS;
use super::format::{Format, Planes, RowQuants, half_at, put_half};
use super::pack::{bytes_of, nibbles_of, pairs_of, singles_of, singles_of_bits};
use super::panel::GroupScales;

/// Runs an expression with the format of a block type as a type.
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
            B::Q5_0 => run!(t::Q5_0),
            B::Q5_1 => run!(t::Q5_1),
            B::Q8_0 => run!(t::Q8_0),
            B::Q2_K => run!(t::Q2K),
            B::Q3_K => run!(t::Q3K),
            B::Q4_K => run!(t::Q4K),
            B::Q5_K => run!(t::Q5K),
            B::Q6_K => run!(t::Q6K),
            ty => panic!("{ty} weights are not packed"),
        }
    }};
}
pub(super) use with_format;

/// Whether a type is among those of [`with_format`].
pub(super) const fn is_packed(ty: BlockType) -> bool {
    use BlockType as B;
    matches!(
        ty,
        B::Q4_0
            | B::Q4_1
            | B::Q5_0
            | B::Q5_1
            | B::Q8_0
            | B::Q2_K
            | B::Q3_K
            | B::Q4_K
            | B::Q5_K
            | B::Q6_K
    )
}

/// Four bits.
const NIBBLES: Planes = Planes { nibbles: true, ..Planes::NONE };
/// Four bits and a fifth.
const NIBBLES_AND_SINGLES: Planes = Planes { singles: Some(4), ..NIBBLES };

/// Bytes of a list of f16.
pub(super) const HALVES_BYTES: usize = 2 * PACKED_ROWS;

/// The scales of a row from a function of the row.
fn each(f: impl FnMut(usize) -> f32) -> [f32; PACKED_ROWS] {
    let mut f = f;
    std::array::from_fn(&mut f)
}

/// Scales of a type whose only integers are the quants: the scale, and the minimum or
/// what an offset makes of it.
fn plain(scale: impl FnMut(usize) -> f32, min: impl FnMut(usize) -> f32) -> GroupScales {
    GroupScales { scale: each(scale), mins: [each(min), [0.0; 16]], ..GroupScales::ZERO }
}

/// Q4_0: `w = d * (q - 8)`.
pub(super) struct Q4_0;

impl Format for Q4_0 {
    const TY: BlockType = BlockType::Q4_0;
    const PLANES: Planes = NIBBLES;
    const HALVES: usize = 1;
    const DEPTH: usize = 8;
    const HAS_MIN: bool = true;

    fn pack_scales(block: &[u8], row: usize, out: &mut [u8]) {
        put_half(&block[..2], out, 0, row);
    }

    fn pack_quants(block: &[u8], _group: usize) -> RowQuants {
        RowQuants { nibbles: words(&block[2..18]), ..RowQuants::default() }
    }

    fn scales(scales: &[u8], _group: usize) -> GroupScales {
        plain(|row| half_at(scales, 0, row), |row| -8.0 * half_at(scales, 0, row))
    }
}

/// Q4_1: `w = d * q + m`.
pub(super) struct Q4_1;

impl Format for Q4_1 {
    const TY: BlockType = BlockType::Q4_1;
    const PLANES: Planes = NIBBLES;
    const HALVES: usize = 1;
    const DEPTH: usize = 8;
    const HAS_MIN: bool = true;

    fn pack_scales(block: &[u8], row: usize, out: &mut [u8]) {
        put_half(&block[..2], out, 0, row);
        put_half(&block[2..4], out, 1, row);
    }

    fn pack_quants(block: &[u8], _group: usize) -> RowQuants {
        RowQuants { nibbles: words(&block[4..20]), ..RowQuants::default() }
    }

    fn scales(scales: &[u8], _group: usize) -> GroupScales {
        plain(|row| half_at(scales, 0, row), |row| half_at(scales, 1, row))
    }
}

/// Q5_0: `w = d * (q - 16)`.
pub(super) struct Q5_0;

impl Format for Q5_0 {
    const TY: BlockType = BlockType::Q5_0;
    const PLANES: Planes = NIBBLES_AND_SINGLES;
    const HALVES: usize = 1;
    const DEPTH: usize = 4;
    const HAS_MIN: bool = true;

    fn pack_scales(block: &[u8], row: usize, out: &mut [u8]) {
        put_half(&block[..2], out, 0, row);
    }

    fn pack_quants(block: &[u8], _group: usize) -> RowQuants {
        let [bits] = words(&block[2..6]);
        let singles = singles_of_bits(bits);
        RowQuants { nibbles: words(&block[6..22]), singles, ..RowQuants::default() }
    }

    fn scales(scales: &[u8], _group: usize) -> GroupScales {
        plain(|row| half_at(scales, 0, row), |row| -16.0 * half_at(scales, 0, row))
    }
}

/// Q5_1: `w = d * q + m`.
pub(super) struct Q5_1;

impl Format for Q5_1 {
    const TY: BlockType = BlockType::Q5_1;
    const PLANES: Planes = NIBBLES_AND_SINGLES;
    const HALVES: usize = 1;
    const DEPTH: usize = 4;
    const HAS_MIN: bool = true;

    fn pack_scales(block: &[u8], row: usize, out: &mut [u8]) {
        Q4_1::pack_scales(block, row, out);
    }

    fn pack_quants(block: &[u8], _group: usize) -> RowQuants {
        let [bits] = words(&block[4..8]);
        let singles = singles_of_bits(bits);
        RowQuants { nibbles: words(&block[8..24]), singles, ..RowQuants::default() }
    }

    fn scales(scales: &[u8], group: usize) -> GroupScales {
        Q4_1::scales(scales, group)
    }
}

/// Q8_0: `w = d * q`, signed.
pub(super) struct Q8_0;

impl Format for Q8_0 {
    const TY: BlockType = BlockType::Q8_0;
    const PLANES: Planes = Planes { bytes: true, ..Planes::NONE };
    const HALVES: usize = 1;
    const DEPTH: usize = 0;
    const HAS_MIN: bool = false;

    fn pack_scales(block: &[u8], row: usize, out: &mut [u8]) {
        put_half(&block[..2], out, 0, row);
    }

    fn pack_quants(block: &[u8], _group: usize) -> RowQuants {
        RowQuants { bytes: words(&block[2..34]), ..RowQuants::default() }
    }

    fn scales(scales: &[u8], _group: usize) -> GroupScales {
        plain(|row| half_at(scales, 0, row), |_| 0.0)
    }
}

/// Q2_K: `w = d * scale * q - dmin * min`, scales and minimums of 4 bits for 16 columns.
pub(super) struct Q2K;

impl Format for Q2K {
    const TY: BlockType = BlockType::Q2_K;
    const PLANES: Planes = Planes { pairs: Some(0), ..Planes::NONE };
    const HALVES: usize = 2;
    const DEPTH: usize = 4;
    const HAS_MIN: bool = true;

    fn pack_scales(block: &[u8], row: usize, out: &mut [u8]) {
        put_half(&block[80..82], out, 0, row);
        put_half(&block[82..84], out, 1, row);
        for (i, &byte) in block[..16].iter().enumerate() {
            out[2 * HALVES_BYTES + i * PACKED_ROWS + row] = byte;
        }
    }

    fn pack_quants(block: &[u8], group: usize) -> RowQuants {
        let (half, quarter) = (group / 4, group % 4);
        let pairs = pairs_of(words(&block[16 + 32 * half..][..32]), 2 * quarter);
        RowQuants { pairs, ..RowQuants::default() }
    }

    fn scales(scales: &[u8], group: usize) -> GroupScales {
        let byte = |half: usize, row: usize| {
            scales[2 * HALVES_BYTES + (2 * group + half) * PACKED_ROWS + row]
        };
        let min =
            |half: usize, row: usize| -(half_at(scales, 1, row) * f32::from(byte(half, row) >> 4));
        GroupScales {
            scale: each(|row| half_at(scales, 0, row)),
            mins: [each(|row| min(0, row)), each(|row| min(1, row))],
            factors: factors(|half, row| i16::from(byte(half, row) & 15)),
        }
    }
}

/// Q3_K: `w = d * scale * (q - 4)`, signed scales of 6 bits for 16 columns.
pub(super) struct Q3K;

impl Format for Q3K {
    const TY: BlockType = BlockType::Q3_K;
    const PLANES: Planes = Planes { pairs: Some(0), singles: Some(2), ..Planes::NONE };
    const HALVES: usize = 2;
    const DEPTH: usize = 4;
    const HAS_MIN: bool = true;

    fn pack_scales(block: &[u8], row: usize, out: &mut [u8]) {
        put_half(&block[108..110], out, 0, row);
        let packed = &block[96..108];
        let scale = |i: usize| {
            let low = (packed[i % 8] >> (i / 8 * 4)) & 15;
            let high = (packed[8 + i % 4] >> (i / 4 * 2)) & 3;
            low | high << 4
        };
        put_sixes(&mut out[HALVES_BYTES..], row, |g| [scale(2 * g), scale(2 * g + 1)]);
    }

    fn pack_quants(block: &[u8], group: usize) -> RowQuants {
        let (half, quarter) = (group / 4, group % 4);
        let pairs = pairs_of(words(&block[32 + 32 * half..][..32]), 2 * quarter);
        let singles = singles_of(words(&block[..32]), group);
        RowQuants { pairs, singles, ..RowQuants::default() }
    }

    fn scales(scales: &[u8], group: usize) -> GroupScales {
        let factor = |half: usize, row: usize| {
            i16::from(six_at(&scales[HALVES_BYTES..], group, row)[half]) - 32
        };
        let min =
            |half: usize, row: usize| -(half_at(scales, 0, row) * f32::from(4 * factor(half, row)));
        GroupScales {
            scale: each(|row| half_at(scales, 0, row)),
            mins: [each(|row| min(0, row)), each(|row| min(1, row))],
            factors: factors(factor),
        }
    }
}

/// Q4_K: `w = d * scale * q - dmin * min`, scales and minimums of 6 bits.
pub(super) struct Q4K;

impl Format for Q4K {
    const TY: BlockType = BlockType::Q4_K;
    const PLANES: Planes = NIBBLES;
    const HALVES: usize = 1;
    const DEPTH: usize = 8;
    const HAS_MIN: bool = true;

    fn pack_scales(block: &[u8], row: usize, out: &mut [u8]) {
        put_half(&block[..2], out, 0, row);
        put_half(&block[2..4], out, 1, row);
        let (scales, mins) = k_scales::unpack(block[4..].first_chunk().expect("twelve bytes"));
        put_sixes(&mut out[2 * HALVES_BYTES..], row, |g| [scales[g], mins[g]]);
    }

    fn pack_quants(block: &[u8], group: usize) -> RowQuants {
        let bytes = &block[16 + 32 * (group / 2)..][..32];
        RowQuants { nibbles: nibbles_of(words(bytes), group % 2), ..RowQuants::default() }
    }

    fn scales(scales: &[u8], group: usize) -> GroupScales {
        let six = |row: usize| six_at(&scales[2 * HALVES_BYTES..], group, row);
        plain(
            |row| half_at(scales, 0, row) * f32::from(six(row)[0]),
            |row| -(half_at(scales, 1, row) * f32::from(six(row)[1])),
        )
    }
}

/// Q5_K: as [`Q4K`], with quants of 5 bits.
pub(super) struct Q5K;

impl Format for Q5K {
    const TY: BlockType = BlockType::Q5_K;
    const PLANES: Planes = NIBBLES_AND_SINGLES;
    const HALVES: usize = 1;
    const DEPTH: usize = 4;
    const HAS_MIN: bool = true;

    fn pack_scales(block: &[u8], row: usize, out: &mut [u8]) {
        Q4K::pack_scales(block, row, out);
    }

    fn pack_quants(block: &[u8], group: usize) -> RowQuants {
        let bytes = &block[48 + 32 * (group / 2)..][..32];
        let singles = singles_of(words(&block[16..48]), group);
        RowQuants { nibbles: nibbles_of(words(bytes), group % 2), singles, ..RowQuants::default() }
    }

    fn scales(scales: &[u8], group: usize) -> GroupScales {
        Q4K::scales(scales, group)
    }
}

/// Q6_K: `w = d * scale * (q - 32)`, signed scales of 8 bits for 16 columns.
pub(super) struct Q6K;

impl Format for Q6K {
    const TY: BlockType = BlockType::Q6_K;
    const PLANES: Planes = Planes { pairs: Some(4), ..NIBBLES };
    const HALVES: usize = 2;
    const DEPTH: usize = 2;
    const HAS_MIN: bool = true;

    fn pack_scales(block: &[u8], row: usize, out: &mut [u8]) {
        put_half(&block[208..210], out, 0, row);
        for (i, &byte) in block[192..208].iter().enumerate() {
            out[HALVES_BYTES + i * PACKED_ROWS + row] = byte;
        }
    }

    fn pack_quants(block: &[u8], group: usize) -> RowQuants {
        let (half, quarter) = (group / 4, group % 4);
        let low = words(&block[64 * half + quarter % 2 * 32..][..32]);
        let pairs = pairs_of(words(&block[128 + 32 * half..][..32]), 2 * quarter);
        RowQuants { nibbles: nibbles_of(low, quarter / 2), pairs, ..RowQuants::default() }
    }

    fn scales(scales: &[u8], group: usize) -> GroupScales {
        let factor = |half: usize, row: usize| {
            let byte = scales[HALVES_BYTES + (2 * group + half) * PACKED_ROWS + row];
            i16::from(byte.cast_signed())
        };
        let min = |half: usize, row: usize| {
            -(half_at(scales, 0, row) * f32::from(32 * factor(half, row)))
        };
        GroupScales {
            scale: each(|row| half_at(scales, 0, row)),
            mins: [each(|row| min(0, row)), each(|row| min(1, row))],
            factors: factors(factor),
        }
    }
}

/// Little-endian words of bytes that are as many.
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    bytes_of(bytes)
}

/// Factors of both halves, each twice.
fn factors(f: impl Fn(usize, usize) -> i16) -> [[[i16; 2]; PACKED_ROWS]; 2] {
    std::array::from_fn(|half| std::array::from_fn(|row| [f(half, row); 2]))
}

/// Bytes of the low nibbles of the numbers of [`put_sixes`].
pub(super) const SIXES_LOW: usize = 8 * PACKED_ROWS;

/// Puts two numbers of 6 bits for each of a row's 8 groups of 32 columns: low nibbles
/// of both in a byte, then the high bits of two groups in a byte.
fn put_sixes(out: &mut [u8], row: usize, six: impl Fn(usize) -> [u8; 2]) {
    let (low, high) = out.split_at_mut(SIXES_LOW);
    for pair in 0..4 {
        let [[a, b], [c, d]] = [six(2 * pair), six(2 * pair + 1)];
        low[2 * pair * PACKED_ROWS + row] = a & 15 | b << 4;
        low[(2 * pair + 1) * PACKED_ROWS + row] = c & 15 | d << 4;
        high[pair * PACKED_ROWS + row] = a >> 4 | (b >> 4) << 2 | (c >> 4) << 4 | (d >> 4) << 6;
    }
}

/// The two numbers of a group that [`put_sixes`] put.
fn six_at(scales: &[u8], group: usize, row: usize) -> [u8; 2] {
    let low = scales[group * PACKED_ROWS + row];
    let high = scales[SIXES_LOW + group / 2 * PACKED_ROWS + row] >> (group % 2 * 4);
    [low & 15 | (high & 3) << 4, low >> 4 | (high >> 2 & 3) << 4]
}
