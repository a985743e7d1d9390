//! Reproducible random data, and the tile tiers, for the tests of several modules.

use realizar_quant::BlockType;

use crate::{PackedArithmetic, SoftwareTiles, Tier};

/// All tile tiers that run here: in software on each vector tier, as selected by name, then AMX.
pub(crate) fn tile_tiers() -> Vec<Tier> {
    let vectors: Vec<Tier> = Tier::available().map(Tier::vectors).collect();
    let vectors: &'static [Tier] = vectors.leak();
    let software = vectors.iter().map(|tier| Tier::AmxBf16Software(SoftwareTiles::on(tier)));
    software
        .chain([Tier::software_tiles()])
        .chain(Tier::available().filter(|t| t.prompt_arithmetic() == PackedArithmetic::Bf16))
        .collect()
}

/// The next number of a xorshift generator.
pub(crate) fn next(seed: &mut u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed
}

/// `n` values, most within ±1, with a few outliers.
pub(crate) fn random(seed: &mut u64, n: usize) -> Vec<f32> {
    let mut value = || {
        let bits = next(seed) >> 16;
        let v = (bits & 0xffff) as f32 / 32768.0 - 1.0;
        if bits >> 16 & 63 == 0 { v * 10.0 } else { v }
    };
    (0..n).map(|_| value()).collect()
}

/// `n_rows` rows of random weights of a type: every bit of the integers is
/// random, and the scales are small finite numbers of either sign.
pub(crate) fn random_weights(
    seed: &mut u64,
    ty: BlockType,
    n_rows: usize,
    n_cols: usize,
) -> Vec<u8> {
    let n_blocks = n_rows * n_cols / ty.block_len();
    let half = |seed: &mut u64| {
        let v = (next(seed) >> 40) as f32 / (1 << 24) as f32 - 0.4;
        half::f16::from_f32(v * 0.02).to_le_bytes()
    };
    let mut out = Vec::new();
    for _ in 0..n_blocks {
        let mut block: Vec<u8> = (0..ty.block_bytes()).map(|_| (next(seed) >> 32) as u8).collect();
        let half_positions: &[usize] = match ty {
            BlockType::F32 => {
                block.copy_from_slice(&(random(seed, 1)[0] * 0.1).to_le_bytes());
                &[]
            }
            BlockType::BF16 => {
                let v = half::bf16::from_f32(random(seed, 1)[0] * 0.1);
                block.copy_from_slice(&v.to_le_bytes());
                &[]
            }
            BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4_K | BlockType::Q5_K => &[0, 2],
            BlockType::Q4_Z => {
                let zero = half::f16::from_f32(f32::from(block[2] % 17));
                block[2..4].copy_from_slice(&zero.to_le_bytes());
                &[0]
            }
            BlockType::F8_0 => {
                block[..4].copy_from_slice(&(random(seed, 1)[0] * 1e-3).to_le_bytes());
                &[]
            }
            BlockType::Q2_K => &[80, 82],
            BlockType::Q3_K => &[108],
            BlockType::Q6_K => &[208],
            BlockType::TQ1_0 => &[52],
            BlockType::TQ2_0 => &[64],
            BlockType::MXFP4 => {
                block[0] = 120 + block[0] % 4;
                &[]
            }
            BlockType::NVFP4 => {
                block[..4].iter_mut().for_each(|scale| *scale &= 31);
                &[]
            }
            BlockType::IQ1_M => {
                // A nibble of the scale in the upper bits of each of the last four words.
                let d = u16::from_le_bytes(half(seed));
                for k in 0..4 {
                    let nibble = (d >> (4 * k) & 15) as u8;
                    block[49 + 2 * k] = block[49 + 2 * k] & 15 | nibble << 4;
                }
                &[]
            }
            _ => &[0],
        };
        for &at in half_positions {
            block[at..at + 2].copy_from_slice(&half(seed));
        }
        out.extend(block);
    }
    out
}
