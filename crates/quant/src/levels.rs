//! Unpacked blocks of the IQ1, IQ2 and IQ3 types and of TQ1_0, with a level and a factor per element, for
//! repacking.

use crate::codebook::{
    IQ1_POINTS, IQ2_S_POINTS, IQ2_XS_POINTS, IQ2_XXS_POINTS, IQ3_S_POINTS, IQ3_XXS_POINTS,
    even_signs,
};
use crate::{
    BlockIQ1M, BlockIQ1S, BlockIQ2S, BlockIQ2XS, BlockIQ2XXS, BlockIQ3S, BlockIQ3XXS, BlockTQ1_0,
    BlockType, codebook,
};

/// A block of 256 elements. Element `i` is
/// `d * unit * (2 * factors[i / 16] + 1) * codebook[levels[i]]`, with unit and codebook of [`meaning`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Scale, binary16.
    pub d: [u8; 2],
    /// One factor per 16 elements, below 16.
    pub factors: [u8; 16],
    /// Codebook indices: below 16 for IQ3, below 8 for IQ1 and IQ2, below 4 for TQ1_0.
    pub levels: [u8; 256],
}

/// The codebook of a type's levels and the unit of its scale; `None` for types that [`of_block`] does not
/// support.
pub fn meaning(ty: BlockType) -> Option<(&'static [i8; 16], f32)> {
    /// `q - 1`.
    const TERNARY: [i8; 16] = [-1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    Some(match ty {
        BlockType::IQ1_S | BlockType::IQ1_M => (&codebook::IQ1_EIGHTHS, 0.125),
        BlockType::IQ2_XXS | BlockType::IQ2_XS | BlockType::IQ2_S => (&codebook::IQ2, 0.125),
        BlockType::IQ3_XXS => (&codebook::IQ3_XXS, 0.25),
        BlockType::IQ3_S => (&codebook::IQ3_S, 1.0),
        BlockType::TQ1_0 => (&TERNARY, 1.0),
        _ => return None,
    })
}

/// Unpacks a block; `None` for other types than those of the module.
///
/// # Panics
/// If the bytes are not those of one block.
pub fn of_block(ty: BlockType, block: &[u8]) -> Option<Levels> {
    Some(match ty {
        BlockType::IQ1_S => of_iq1_s(bytemuck::from_bytes(block)),
        BlockType::IQ1_M => of_iq1_m(bytemuck::from_bytes(block)),
        BlockType::IQ2_XXS => of_iq2_xxs(bytemuck::from_bytes(block)),
        BlockType::IQ2_XS => of_iq2_xs(bytemuck::from_bytes(block)),
        BlockType::IQ2_S => of_iq2_s(bytemuck::from_bytes(block)),
        BlockType::IQ3_XXS => of_iq3_xxs(bytemuck::from_bytes(block)),
        BlockType::IQ3_S => of_iq3_s(bytemuck::from_bytes(block)),
        BlockType::TQ1_0 => {
            let block: &BlockTQ1_0 = bytemuck::from_bytes(block);
            Levels { d: block.d, factors: [0; 16], levels: block.levels() }
        }
        _ => return None,
    })
}

/// A block with these factors and the levels of its points. `point` returns a point's elements, in `BITS`
/// bits each, and a mask with one bit per element that is added to the level at bit `BITS`.
fn of_points<const BITS: usize>(
    d: [u8; 2],
    factor: impl Fn(usize) -> u8, // of 16 elements
    point: impl Fn(usize) -> (u16, u8),
) -> Levels {
    let mut levels = [0; 256];
    // Points of two bits have 8 elements, those of three bits 4, in nibbles.
    let (width, len) = if BITS == 2 { (2, 8) } else { (4, 4) };
    for (i, levels) in levels.chunks_exact_mut(len).enumerate() {
        let (elements, upper) = point(i);
        for (e, level) in levels.iter_mut().enumerate() {
            *level = (elements >> (width * e)) as u8 & ((1 << BITS) - 1) | (upper >> e & 1) << BITS;
        }
    }
    Levels { d, factors: std::array::from_fn(factor), levels }
}

/// Nibble `i` of some bytes, where a byte's low nibble comes first.
fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 2] >> (4 * (i % 2)) & 15
}

fn of_iq2_xxs(block: &BlockIQ2XXS) -> Levels {
    let word = |j: usize| {
        let [.., a, b, c, e] = block.qs[j];
        u32::from_le_bytes([a, b, c, e])
    };
    of_points::<2>(
        block.d,
        |i| (word(i / 2) >> 28) as u8,
        |i| {
            let signs = even_signs((word(i / 4) >> (7 * (i % 4))) as u8);
            (IQ2_XXS_POINTS[usize::from(block.qs[i / 4][i % 4])], signs)
        },
    )
}

fn of_iq2_xs(block: &BlockIQ2XS) -> Levels {
    of_points::<2>(
        block.d,
        |i| nibble(&block.scales, i),
        |i| {
            let word = u16::from_le_bytes(block.qs[i]);
            (IQ2_XS_POINTS[usize::from(word & 0x1ff)], even_signs((word >> 9) as u8))
        },
    )
}

fn of_iq2_s(block: &BlockIQ2S) -> Levels {
    of_points::<2>(
        block.d,
        |i| nibble(&block.scales, i),
        |i| {
            let high = usize::from(block.qh[i / 4] >> (2 * (i % 4)) & 3);
            (IQ2_S_POINTS[usize::from(block.qs[i]) | high << 8], block.signs[i])
        },
    )
}

fn of_iq3_xxs(block: &BlockIQ3XXS) -> Levels {
    let word = |j: usize| u32::from_le_bytes(block.scales[j]);
    of_points::<3>(
        block.d,
        |i| (word(i / 2) >> 28) as u8,
        |i| {
            let signs = even_signs((word(i / 8) >> (7 * (i / 2 % 4))) as u8);
            (IQ3_XXS_POINTS[usize::from(block.qs[i])], signs >> (4 * (i % 2)))
        },
    )
}

fn of_iq3_s(block: &BlockIQ3S) -> Levels {
    of_points::<3>(
        block.d,
        |i| nibble(&block.scales, i / 2),
        |i| {
            let high = usize::from(block.qh[i / 8] >> (i % 8) & 1);
            let signs = block.signs[i / 2] >> (4 * (i % 2));
            (IQ3_S_POINTS[usize::from(block.qs[i]) | high << 8], signs)
        },
    )
}

fn of_iq1_s(block: &BlockIQ1S) -> Levels {
    let word = |j: usize| u16::from_le_bytes(block.qh[j]);
    of_points::<2>(
        block.d,
        |i| (word(i / 2) >> 12 & 7) as u8,
        |i| {
            let high = usize::from(word(i / 4) >> (3 * (i % 4)) & 7);
            let shift = if word(i / 4) >> 15 == 1 { 0xff } else { 0 };
            (IQ1_POINTS[usize::from(block.qs[i]) | high << 8], shift)
        },
    )
}

fn of_iq1_m(block: &BlockIQ1M) -> Levels {
    let word = |j: usize| u16::from_le_bytes(block.scales[j]);
    let d = (0..4).fold(0, |bits, k| bits | word(k) >> 12 << (4 * k));
    of_points::<2>(
        d.to_le_bytes(),
        |i| (word(i / 4) >> (3 * (i % 4)) & 7) as u8,
        |i| {
            let high = nibble(&block.qh, i);
            let shift = if high & 8 == 8 { 0xff } else { 0 };
            (IQ1_POINTS[usize::from(block.qs[i]) | usize::from(high & 7) << 8], shift)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::half_bytes::f16_to_f32;

    #[test]
    fn levels_and_factors_make_the_same_numbers() {
        let mut seed = 1u64;
        let mut byte = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 32) as u8
        };
        let types: Vec<_> = BlockType::all().filter(|ty| meaning(*ty).is_some()).collect();
        assert_eq!(types.len(), 8);
        for ty in types {
            let (codebook, unit) = meaning(ty).unwrap();
            for _ in 0..50 {
                let mut block: Vec<u8> = (0..ty.block_bytes()).map(|_| byte()).collect();
                match ty {
                    BlockType::IQ1_M => block[55] &= 0x3f,
                    BlockType::TQ1_0 => block[53] &= 0x3f,
                    _ => block[1] &= 0x3f,
                }
                let mut expected = vec![0.0; 256];
                crate::dequantize(ty, &block, &mut expected).unwrap();
                let Levels { d, factors, levels } = of_block(ty, &block).unwrap();
                for (i, expected) in expected.into_iter().enumerate() {
                    let scale = f16_to_f32(d) * unit * f32::from(2 * factors[i / 16] + 1);
                    let found = scale * f32::from(codebook[usize::from(levels[i])]);
                    assert_eq!(found, expected, "{ty} {i}");
                }
            }
        }
    }
}
