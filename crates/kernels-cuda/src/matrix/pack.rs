//! Splits the blocks of files into planes that kernels read 16 bytes at a time. `cuda/blocks.cuh` describes the same
//! format for the kernels.
//!
//! A matrix has up to three planes: the *main* plane in units of 16 bytes, the *high* plane with the upper bits of
//! levels, and the *head* plane with scales and minimums. Packed weights have as many bytes as their blocks, plus the
//! padding of planes and of float rows to 16 bytes. Blocks of IQ1, IQ2 and IQ3 (which files store as indices of grid
//! points), TQ1_0 and Q1_0 grow: they become levels of two, three or four bits. A *piece* is four consecutive elements,
//! which a kernel unpacks into the bytes of a word.

use realizar_quant::BlockType;
use realizar_quant::levels::{self, Levels};

/// Bytes of a unit in the main plane.
pub(crate) const UNIT_BYTES: usize = 16;

/// Bytes of a block in each plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Planes {
    pub(crate) main: usize,
    pub(crate) high: usize,
    pub(crate) head: usize,
}

/// Plane sizes of a block; none for a type without kernels.
pub(crate) const fn planes(ty: BlockType) -> Option<Planes> {
    let (main, high, head) = match ty {
        BlockType::F32 => (4, 0, 0),
        BlockType::F16 | BlockType::BF16 => (2, 0, 0),
        BlockType::Q4_0 | BlockType::IQ4_NL => (16, 0, 2),
        BlockType::Q4_1 | BlockType::Q4_Z => (16, 0, 4),
        BlockType::Q5_0 => (16, 4, 2),
        BlockType::Q5_1 => (16, 4, 4),
        BlockType::Q8_0 => (32, 0, 2),
        BlockType::Q2_K => (64, 0, 20),
        BlockType::Q3_K => (64, 32, 14),
        BlockType::Q4_K => (128, 0, 16),
        BlockType::Q5_K => (128, 32, 16),
        BlockType::Q6_K => (128, 64, 18),
        BlockType::IQ4_XS => (128, 0, 8),
        BlockType::MXFP4 => (16, 0, 1),
        BlockType::F8_0 => (64, 0, 4),
        BlockType::IQ1_S
        | BlockType::IQ1_M
        | BlockType::IQ2_XXS
        | BlockType::IQ2_XS
        | BlockType::IQ2_S => (64, 32, 10),
        BlockType::IQ3_XXS | BlockType::IQ3_S => (128, 0, 6),
        BlockType::TQ1_0 | BlockType::TQ2_0 => (64, 0, 2),
        BlockType::NVFP4 => (32, 0, 4),
        BlockType::Q1_0 => (32, 0, 2),
        BlockType::Q2_0 => (16, 0, 2),
        _ => return None,
    };
    Some(Planes { main, high, head })
}

/// Plane sizes of a row. Float rows are padded with zeros to whole units.
///
/// # Panics
/// If the type has no planes.
pub(crate) fn row_planes(ty: BlockType, n_cols: usize) -> Planes {
    let Planes { main, high, head } = planes(ty).unwrap_or_else(|| panic!("a matrix of {ty}"));
    let n_blocks = n_cols / ty.block_len();
    Planes {
        main: (n_blocks * main).next_multiple_of(UNIT_BYTES),
        high: n_blocks * high,
        head: n_blocks * head,
    }
}

/// Bytes of a packed row of `n_cols` columns.
///
/// # Panics
/// If the type has no kernels.
pub fn packed_row_bytes(ty: BlockType, n_cols: usize) -> usize {
    let Planes { main, high, head } = row_planes(ty, n_cols);
    main + high + head
}

/// Packs whole rows. The function uses no device, so any thread may call it.
///
/// `rows` has the format of files, `[n, ty.row_bytes(n_cols)]` bytes. `out` has that of
/// [`Matrix::write_rows`](crate::Matrix::write_rows), `n * packed_row_bytes(ty, n_cols)` bytes: the first plane of all
/// rows, then the second, then the third.
///
/// # Panics
/// If the lengths do not match, `n_cols` is not a multiple of the block length, or the type has no kernels.
pub fn pack_rows(ty: BlockType, n_cols: usize, rows: &[u8], out: &mut [u8]) {
    let from = ty.row_bytes(n_cols).unwrap_or_else(|error| panic!("{error}"));
    let (planes, to) = (planes(ty), row_planes(ty, n_cols));
    let Some(planes) = planes else { unreachable!("its rows have planes") };
    if from == 0 {
        return;
    }
    let n_rows = rows.len() / from;
    let n_bytes = n_rows * (to.main + to.high + to.head);
    assert!(rows.len() == n_rows * from && out.len() == n_bytes, "rows of {ty} to pack");
    let n_blocks = n_cols / ty.block_len();
    let (main, rest) = out.split_at_mut(n_rows * to.main);
    let (high, head) = rest.split_at_mut(n_rows * to.high);
    for (row, (blocks, main)) in
        rows.chunks_exact(from).zip(main.chunks_exact_mut(to.main)).enumerate()
    {
        if ty.block_len() == 1 {
            main[..from].copy_from_slice(blocks);
            main[from..].fill(0);
            continue;
        }
        for (i, block) in blocks.chunks_exact(ty.block_bytes()).enumerate() {
            let at = row * n_blocks + i;
            pack(
                ty,
                block,
                &mut main[i * planes.main..][..planes.main],
                &mut high[at * planes.high..][..planes.high],
                &mut head[at * planes.head..][..planes.head],
            );
        }
    }
}

/// Packs a block. The slices have the lengths of [`planes`].
fn pack(ty: BlockType, block: &[u8], main: &mut [u8], high: &mut [u8], head: &mut [u8]) {
    match ty {
        BlockType::Q5_0 | BlockType::Q5_1 => {
            let (scales, levels) = block.split_at(head.len());
            let (qh, qs) = levels.split_at(4);
            head.copy_from_slice(scales);
            main.copy_from_slice(qs);
            let bits = u32::from_le_bytes([qh[0], qh[1], qh[2], qh[3]]);
            fifth_bits(|i| bits >> i & 1, high);
        }
        BlockType::IQ4_NL | BlockType::MXFP4 => {
            let (scale, levels) = block.split_at(head.len());
            head.copy_from_slice(scale);
            halves(levels, main);
        }
        BlockType::IQ4_XS => {
            let (scales, levels) = block.split_at(8);
            head.copy_from_slice(scales);
            for (levels, unit) in levels.chunks_exact(16).zip(main.chunks_exact_mut(UNIT_BYTES)) {
                halves(levels, unit);
            }
        }
        BlockType::Q2_K => {
            let (scales, rest) = block.split_at(16);
            let (qs, d) = rest.split_at(64);
            head[..16].copy_from_slice(scales);
            head[16..].copy_from_slice(d);
            pairs(qs, main);
        }
        BlockType::Q3_K => {
            let (hmask, rest) = block.split_at(32);
            let (qs, rest) = rest.split_at(64);
            let (scales, d) = rest.split_at(12);
            pairs(qs, main);
            // Bit `e / 32` of byte `e % 32` belongs to element `e`.
            high.fill(0);
            for e in 0..256 {
                let (piece, bit) = (e / 4, hmask[e % 32] >> (e / 32) & 1);
                high[4 * (piece / 8) + e % 4] |= bit << (piece % 8);
            }
            // For the four sub-blocks of a unit: the low nibbles, then the upper two bits.
            head.fill(0);
            for j in 0..16 {
                let low = scales[j % 8] >> (4 * (j / 8)) & 0x0f;
                let upper = scales[8 + j % 4] >> (2 * (j / 4)) & 3;
                head[j / 2] |= low << (4 * (j % 2));
                head[8 + j / 4] |= upper << (2 * (j % 4));
            }
            head[12..].copy_from_slice(d);
        }
        BlockType::Q4_K => {
            head.copy_from_slice(&block[..16]);
            sub_blocks(&block[16..], main);
        }
        BlockType::Q5_K => {
            let (scales, levels) = block.split_at(16);
            let (qh, qs) = levels.split_at(32);
            head.copy_from_slice(scales);
            sub_blocks(qs, main);
            // Bit `j` of byte `i` belongs to element `i` of sub-block `j`.
            for (j, word) in high.chunks_exact_mut(4).enumerate() {
                fifth_bits(|i| u32::from(qh[i] >> j & 1), word);
            }
        }
        BlockType::Q6_K => {
            let (ql, qh) = (&block[..128], &block[128..192]);
            head[..2].copy_from_slice(&block[208..]);
            head[2..].copy_from_slice(&block[192..208]);
            // Element `e` is in half `e / 128`; its quarter `e % 128 / 32` selects the bits.
            let low = |e: usize| ql[64 * (e / 128) + e % 64] >> (4 * (e % 128 / 64)) & 0x0f;
            let upper = |e: usize| qh[32 * (e / 128) + e % 32] >> (2 * (e % 128 / 32)) & 3;
            high.fill(0);
            for unit in 0..8 {
                for i in 0..16 {
                    let e = 32 * unit + i;
                    main[UNIT_BYTES * unit + i] = low(e) | low(e + 16) << 4;
                }
                for i in 0..32 {
                    let piece = i / 4;
                    high[8 * unit + 4 * (piece / 4) + i % 4] |=
                        upper(32 * unit + i) << (2 * (piece % 4));
                }
            }
        }
        BlockType::IQ1_S
        | BlockType::IQ1_M
        | BlockType::IQ2_XXS
        | BlockType::IQ2_XS
        | BlockType::IQ2_S => {
            let Levels { d, factors, levels } = levels_of(ty, block);
            lower_pairs(|e| levels[e] & 3, main);
            high.fill(0);
            for (e, level) in levels.iter().enumerate() {
                let piece = e / 4;
                high[4 * (piece / 8) + e % 4] |= (level >> 2) << (piece % 8);
            }
            for (byte, two) in head.iter_mut().zip(factors.as_chunks::<2>().0) {
                *byte = two[0] | two[1] << 4;
            }
            head[8..].copy_from_slice(&d);
        }
        BlockType::IQ3_XXS | BlockType::IQ3_S => {
            let Levels { d, factors, levels } = levels_of(ty, block);
            for (levels, unit) in levels.chunks_exact(32).zip(main.chunks_exact_mut(UNIT_BYTES)) {
                pieces(|e| levels[e], unit);
            }
            // Each factor applies to two groups of 16 elements.
            for (byte, four) in head.iter_mut().zip(factors.as_chunks::<4>().0) {
                *byte = four[0] | four[2] << 4;
            }
            head[4..].copy_from_slice(&d);
        }
        BlockType::TQ1_0 => {
            let Levels { d, levels, .. } = levels_of(ty, block);
            lower_pairs(|e| levels[e], main);
            head.copy_from_slice(&d);
        }
        BlockType::TQ2_0 => {
            pairs(&block[..64], main);
            head.copy_from_slice(&block[64..]);
        }
        BlockType::NVFP4 => {
            let (scales, levels) = block.split_at(4);
            head.copy_from_slice(scales);
            // Of 16 elements, the first 8 are in the low nibbles.
            let level = |e: usize| levels[e / 16 * 8 + e % 8] >> (e / 8 % 2 * 4) & 15;
            for (unit, main) in main.chunks_exact_mut(UNIT_BYTES).enumerate() {
                pieces(|e| level(32 * unit + e), main);
            }
        }
        BlockType::Q1_0 => {
            let (scale, bits) = block.split_at(2);
            head.copy_from_slice(scale);
            lower_pairs(|e| (bits[e / 8] >> (e % 8) & 1) << 1, main);
        }
        BlockType::Q2_0 => {
            let (scale, levels) = block.split_at(2);
            head.copy_from_slice(scale);
            lower_pairs(|e| levels[e / 4] >> (e % 4 * 2) & 3, main);
        }
        // Scales, then unchanged levels.
        _ => {
            let (scales, levels) = block.split_at(head.len());
            head.copy_from_slice(scales);
            main.copy_from_slice(levels);
        }
    }
}

/// Packs eight sub-blocks of 32 elements into 16 bytes each. In files, pairs of sub-blocks share bytes, as low and high
/// nibbles.
fn sub_blocks(qs: &[u8], main: &mut [u8]) {
    for (j, unit) in main.chunks_exact_mut(UNIT_BYTES).enumerate() {
        let level = |i: usize| qs[32 * (j / 2) + i] >> (4 * (j % 2)) & 0x0f;
        for (i, byte) in unit.iter_mut().enumerate() {
            *byte = level(i) | level(i + 16) << 4;
        }
    }
}

/// Packs one bit of 32 elements: that of element `4 * p + i` becomes bit `p` of byte `i`.
fn fifth_bits(bit: impl Fn(usize) -> u32, high: &mut [u8]) {
    let bits = (0..32).fold(0, |bits, e| bits | bit(e) << (8 * (e % 4) + e / 4));
    high.copy_from_slice(&bits.to_le_bytes());
}

fn levels_of(ty: BlockType, block: &[u8]) -> Levels {
    levels::of_block(ty, block).unwrap_or_else(|| unreachable!("{ty} has levels of its own"))
}

/// Packs 32 four-bit levels, of which the first 16 are in low nibbles, as [`pieces`] does.
fn halves(qs: &[u8], unit: &mut [u8]) {
    pieces(|e| qs[e % 16] >> (4 * (e / 16)) & 0x0f, unit);
}

/// Packs 32 four-bit levels. Word `p % 4` has those of piece `p`, in half `p / 4`.
fn pieces(level: impl Fn(usize) -> u8, unit: &mut [u8]) {
    for (p, half) in (0..8).map(|p| (p, 4 * (p % 4) + 2 * (p / 4))) {
        let level = |i: usize| level(4 * p + i);
        unit[half] = level(0) | level(1) << 4;
        unit[half + 1] = level(2) | level(3) << 4;
    }
}

/// Packs 256 two-bit levels. Of the 64 levels of a unit, that of element `4 * p + i` goes to bits `2 * (p / 4)` of byte
/// `i` of word `p % 4`.
fn pairs(qs: &[u8], main: &mut [u8]) {
    // Of 128 elements, number `32 * k + l` is in bits `2 * k` of byte `l` of 32.
    lower_pairs(|e| qs[32 * (e / 128) + e % 32] >> (2 * (e % 128 / 32)) & 3, main);
}

/// As [`pairs`], with as many levels as `main` holds.
fn lower_pairs(level: impl Fn(usize) -> u8, main: &mut [u8]) {
    main.fill(0);
    for e in 0..4 * main.len() {
        let level = level(e);
        let (unit, piece) = (e / 64, e % 64 / 4);
        main[UNIT_BYTES * unit + 4 * (piece % 4) + e % 4] |= level << (2 * (piece / 4));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_hold_as_many_bytes_as_blocks() {
        for ty in BlockType::all() {
            let Some(planes) = planes(ty) else { continue };
            let n_bytes = match ty {
                // Types whose elements are packed as levels.
                BlockType::IQ1_S
                | BlockType::IQ1_M
                | BlockType::IQ2_XXS
                | BlockType::IQ2_XS
                | BlockType::IQ2_S => 106,
                BlockType::IQ3_XXS | BlockType::IQ3_S => 134,
                BlockType::TQ1_0 => 66,
                BlockType::Q1_0 => 34,
                _ => ty.block_bytes(),
            };
            assert_eq!(planes.main + planes.high + planes.head, n_bytes, "{ty}");
        }
    }

    #[test]
    fn sizes_of_packed_rows() {
        let sizes = [
            (BlockType::F32, 33, 144),
            (BlockType::F16, 1, 16),
            (BlockType::BF16, 64, 128),
            (BlockType::Q4_0, 96, 54),
            (BlockType::Q3_K, 512, 220),
            (BlockType::Q6_K, 768, 630),
            (BlockType::MXFP4, 96, 51),
            (BlockType::F8_0, 192, 204),
        ];
        for (ty, n_cols, n_bytes) in sizes {
            assert_eq!(packed_row_bytes(ty, n_cols), n_bytes, "{ty}");
        }
    }

    #[test]
    fn rows_packed_together_have_the_planes_of_rows_packed_alone() {
        let (ty, n_cols) = (BlockType::Q3_K, 512);
        let rows: Vec<u8> = (0..3 * 220).map(|i| (i * 37 % 251) as u8).collect();
        let mut together = vec![0xee; 3 * 220];
        pack_rows(ty, n_cols, &rows, &mut together);
        let (main, rest) = together.split_at(3 * 128);
        let (high, head) = rest.split_at(3 * 64);
        for (i, row) in rows.chunks_exact(220).enumerate() {
            let mut alone = vec![0xee; 220];
            pack_rows(ty, n_cols, row, &mut alone);
            assert_eq!(alone[..128], main[128 * i..][..128]);
            assert_eq!(alone[128..192], high[64 * i..][..64]);
            assert_eq!(alone[192..], head[28 * i..][..28]);
        }
    }
}
