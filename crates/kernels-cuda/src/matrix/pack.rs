//! Blocks of a file taken apart into planes that kernels read 16 bytes at a time. `cuda/blocks.cuh` says
//! the same to the kernels.
//!
//! A matrix has up to three planes: the *main* one in units of 16 bytes, the *high* one with the upper
//! bits of levels, the *head* with scales and minimums. Packed weights have as many bytes as the
//! blocks that they come from, and what fills planes and rows of floats up to 16.

use realizar_quant::BlockType;

/// Bytes of a unit in the main plane.
pub(crate) const UNIT_BYTES: usize = 16;

/// Where a block goes: bytes of it in each plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Planes {
    pub(crate) main: usize,
    pub(crate) high: usize,
    pub(crate) head: usize,
}

/// The planes of a block; none of a type that no kernel takes.
pub(crate) const fn planes(ty: BlockType) -> Option<Planes> {
    let (main, high, head) = match ty {
        BlockType::F32 => (4, 0, 0),
        BlockType::F16 | BlockType::BF16 => (2, 0, 0),
        BlockType::Q4_0 => (16, 0, 2),
        BlockType::Q4_1 => (16, 0, 4),
        BlockType::Q5_0 => (16, 4, 2),
        BlockType::Q5_1 => (16, 4, 4),
        BlockType::Q8_0 => (32, 0, 2),
        BlockType::Q4_K => (128, 0, 16),
        BlockType::Q5_K => (128, 32, 16),
        BlockType::Q6_K => (128, 64, 18),
        _ => return None,
    };
    Some(Planes { main, high, head })
}

/// Takes a block apart. The slices have the bytes that [`planes`] says.
pub(crate) fn pack(ty: BlockType, block: &[u8], main: &mut [u8], high: &mut [u8], head: &mut [u8]) {
    match ty {
        BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Q8_0 => {
            let (scales, levels) = block.split_at(head.len());
            head.copy_from_slice(scales);
            main.copy_from_slice(levels);
        }
        BlockType::Q5_0 | BlockType::Q5_1 => {
            let (scales, levels) = block.split_at(head.len());
            head.copy_from_slice(scales);
            high.copy_from_slice(&levels[..4]);
            main.copy_from_slice(&levels[4..]);
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
                let bits = (0..32).fold(0, |bits, i| bits | u32::from(qh[i] >> j & 1) << i);
                word.copy_from_slice(&bits.to_le_bytes());
            }
        }
        BlockType::Q6_K => {
            let (ql, qh) = (&block[..128], &block[128..192]);
            head[..2].copy_from_slice(&block[208..]);
            head[2..].copy_from_slice(&block[192..208]);
            // Element `e` lies in the half `e / 128`, its quarter `e % 128 / 32` says which bits.
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
        // Plain floats.
        _ => main.copy_from_slice(block),
    }
}

/// The eight sub-blocks of 32 elements, which lie in low and high nibbles of the same bytes in turn, each
/// in 16 bytes of its own.
fn sub_blocks(qs: &[u8], main: &mut [u8]) {
    for (j, unit) in main.chunks_exact_mut(UNIT_BYTES).enumerate() {
        let level = |i: usize| qs[32 * (j / 2) + i] >> (4 * (j % 2)) & 0x0f;
        for (i, byte) in unit.iter_mut().enumerate() {
            *byte = level(i) | level(i + 16) << 4;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_hold_as_many_bytes_as_blocks() {
        for ty in BlockType::all() {
            let Some(planes) = planes(ty) else { continue };
            assert_eq!(planes.main + planes.high + planes.head, ty.block_bytes(), "{ty}");
        }
    }
}
