//! Tests of packing and of the products with packed weights: values against f64, the
//! same bits on every tier and for every number of rows, threads and matrices.

use super::format::Format;
use super::*;
use crate::testing::{random, random_weights};
use crate::vec_dot::widen;
use crate::{Epilogue, PackedScratch, QuantizedRows, Rows, RowsMut, Team, matmul_packed};

/// A matrix in both forms, and activations.
struct Case {
    ty: BlockType,
    n_rows: usize,
    n_cols: usize,
    n_tokens: usize,
    blocks: Vec<u8>,
    packed: Vec<u8>,
    x: Vec<f32>,
}

fn packed_types() -> impl Iterator<Item = BlockType> {
    BlockType::all().filter(|&ty| packs(ty))
}

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|v| v.to_bits()).collect()
}

impl Case {
    fn new(ty: BlockType, n_rows: usize, n_cols: usize, n_tokens: usize) -> Self {
        let mut seed = (n_cols * 31 + ty as usize * 7 + n_rows) as u64;
        let blocks = random_weights(&mut seed, ty, n_rows, n_cols);
        let x = random(&mut seed, n_tokens * n_cols);
        let matrix = MatrixRef::new(ty, n_rows, n_cols, &blocks);
        let n_groups = n_rows.div_ceil(PACKED_ROWS);
        let mut packed = vec![0xaa; packed_bytes(ty, n_rows, n_cols).unwrap()];
        let group_bytes = packed.len() / n_groups;
        for (i, group) in packed.chunks_exact_mut(group_bytes).enumerate() {
            pack_group(Tier::Scalar, &matrix, i, group);
        }
        Self { ty, n_rows, n_cols, n_tokens, blocks, packed, x }
    }

    fn matrix(&self) -> PackedRef<'_> {
        PackedRef::new(self.ty, self.n_rows, self.n_cols, &self.packed)
    }

    /// The product of some rows.
    fn run(&self, tier: Tier, n_threads: usize, tokens: std::ops::Range<usize>) -> Vec<f32> {
        let x = Rows::new(&self.x, self.n_tokens, self.n_cols).slice_rows(tokens);
        let team = Team::new(n_threads);
        let mut q = QuantizedRows::with_capacity(x.n_rows(), self.n_cols);
        q.quantize(&team, tier, x);
        let mut out = vec![f32::NAN; x.n_rows() * self.n_rows];
        let view = RowsMut::new(&mut out, x.n_rows(), self.n_rows);
        let scratch = PackedScratch::new(&team, x.n_rows());
        matmul_packed(&team, tier, &[self.matrix()], &q, view, &scratch, &Epilogue::default());
        out
    }
}

/// The quant of a row and a column of a packed block, by the definition of the planes.
fn planned_quant(planes: format::Planes, block: &[u8], row: usize, col: usize) -> u8 {
    let (group, q, j) = (col / 32, col % 32 / 4, col % 4);
    let plane = &block[group * planes.n_bytes()..];
    let byte = |at: usize, line: usize| plane[at + 64 * line + 4 * row + j];
    if planes.bytes {
        return byte(0, q);
    }
    let nibble = if planes.nibbles { byte(0, q % 4) >> (q / 4 * 4) & 15 } else { 0 };
    let pair = planes.pairs.map(|to| (byte(planes.pairs_at(), q / 4) >> (q % 4 * 2) & 3) << to);
    let single = planes.singles.map(|to| (byte(planes.singles_at(), 0) >> q & 1) << to);
    let quant = nibble | pair.unwrap_or(0) | single.unwrap_or(0);
    planes.codebook.map_or(quant, |codebook| codebook[usize::from(quant)] as u8)
}

#[test]
fn packing_is_the_same_on_every_tier_and_keeps_every_weight() {
    for ty in packed_types() {
        for (n_rows, n_cols) in [(16, 256), (35, 768), (48, 2304)] {
            let case = Case::new(ty, n_rows, n_cols, 1);
            let matrix = MatrixRef::new(ty, n_rows, n_cols, &case.blocks);
            for tier in Tier::available() {
                let mut packed = vec![0x55; case.packed.len()];
                let group_bytes = packed.len() / n_rows.div_ceil(PACKED_ROWS);
                for (i, group) in packed.chunks_exact_mut(group_bytes).enumerate() {
                    pack_group(tier, &matrix, i, group);
                }
                assert!(packed == case.packed, "{ty} {n_rows} x {n_cols}: {tier}");
            }
            // Weights from planes and scales, against those from the file's blocks.
            let mut weights = vec![0.0; n_rows * n_cols];
            widen(ty, Tier::Scalar, &case.blocks, &mut weights);
            with_format!(ty, F => {
                let packed_block = PACKED_ROWS * F::PACKED_BYTES;
                for (i, &weight) in weights.iter().enumerate() {
                    let (row, col) = (i / n_cols, i % n_cols);
                    let block = row / PACKED_ROWS * (n_cols / F::LEN) + col / F::LEN;
                    let block = &case.packed[block * packed_block..][..packed_block];
                    let (row, col) = (row % PACKED_ROWS, col % F::LEN);
                    let quant = planned_quant(F::PLANES, block, row, col);
                    let quant = if F::PLANES.are_signed() {
                        i16::from(quant as i8)
                    } else {
                        i16::from(quant)
                    };
                    let scales =
                        scalar::group_scales::<F>(&block[F::SCALES_AT..], col / 32);
                    let half = col % 32 / 16;
                    let factor = scales.factors[half][row][0];
                    let min = scales.min_scale[row] * scales.mins[half][row];
                    let mut scale = scales.scale[row] * f32::from(factor);
                    if F::FLOAT_FACTORS {
                        scale *= scales.mins[half][row];
                    }
                    let found = scale * f32::from(quant - F::OFFSET) + min;
                    let error = (found - weight).abs() / (min.abs() + weight.abs() + 1e-3);
                    assert!(error < 1e-5, "{ty} {row} {col}: {found}, not {weight}");
                }
            });
        }
    }
}

#[test]
fn products_are_close_to_f64_on_every_tier() {
    for ty in packed_types() {
        for (n_rows, n_cols) in [(7, 256), (16, 512), (37, 1280)] {
            let case = Case::new(ty, n_rows, n_cols, 3);
            let mut weights = vec![0.0; n_rows * n_cols];
            widen(ty, Tier::Scalar, &case.blocks, &mut weights);
            for tier in Tier::available() {
                for tokens in [0..1, 0..3] {
                    let out = case.run(tier, 2, tokens);
                    for (i, &value) in out.iter().enumerate() {
                        let (w, x) =
                            (&weights[i % n_rows * n_cols..], &case.x[i / n_rows * n_cols..]);
                        let (w, x) = (&w[..n_cols], &x[..n_cols]);
                        let exact = |(&w, &x): (&f32, &f32)| f64::from(w) * f64::from(x);
                        let expected: f64 = w.iter().zip(x).map(exact).sum();
                        // f32 sums, and half a step for every activation.
                        let mut bound = 1e-6;
                        for (w, x) in w.chunks(32).zip(x.chunks(32)) {
                            let amax = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
                            for (w, x) in w.iter().zip(x) {
                                let error = x.abs() * 2e-6 + amax / 254.0 * 1.001;
                                bound += f64::from(w.abs() + 0.1) * f64::from(error);
                            }
                        }
                        assert!(
                            (f64::from(value) - expected).abs() <= bound,
                            "{ty} {n_rows} x {n_cols} {tier}: {value}, not {expected} ± {bound}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn bits_depend_on_neither_tier_rows_nor_threads() {
    for ty in packed_types() {
        // More columns than a panel, more groups than streams, a group with few rows.
        let case = Case::new(ty, 101, 1536, 19);
        let expected: Vec<u32> =
            (0..19).flat_map(|r| bits(&case.run(Tier::Scalar, 1, r..r + 1))).collect();
        for tier in Tier::available() {
            // As the weights lie, and in panels.
            for n_tokens in [1, 2, 3, 4, 7, 13, 19] {
                for n_threads in 1..=3 {
                    assert_eq!(
                        bits(&case.run(tier, n_threads, 0..n_tokens)),
                        expected[..101 * n_tokens],
                        "{ty} {tier}: {n_tokens} rows, {n_threads} threads"
                    );
                }
            }
        }
    }
}

#[test]
fn groups_side_by_side_have_the_bits_of_single_ones() {
    for ty in packed_types() {
        let case = Case::new(ty, 4 * PACKED_ROWS, 1536, 6);
        let team = Team::new(1);
        let mut q = QuantizedRows::with_capacity(6, 1536);
        q.quantize(&team, Tier::Scalar, Rows::new(&case.x, 6, 1536));
        let rows: [_; 6] = std::array::from_fn(|i| q.row(i));
        let groups: [_; 4] = std::array::from_fn(|g| case.matrix().group(g));
        for tier in Tier::available() {
            for n_rows in 1..=rows.len() {
                let rows = &rows[..n_rows];
                let mut together = vec![[f32::NAN; PACKED_ROWS]; 4 * n_rows];
                dot_groups(tier, ty, &groups, rows, &mut together);
                for (group, together) in groups.iter().zip(together.chunks_exact(n_rows)) {
                    for (row, together) in rows.iter().zip(together) {
                        let mut alone = [[f32::NAN; PACKED_ROWS]];
                        dot_groups(Tier::Scalar, ty, &[group], &[*row], &mut alone);
                        assert_eq!(bits(together), bits(&alone[0]), "{ty} {tier}: {n_rows} rows");
                    }
                }
            }
        }
    }
}

#[test]
#[expect(clippy::single_range_in_vec_init, reason = "a list of ranges that may hold one")]
fn a_row_of_two_planes_is_the_sum_of_its_planes() {
    for ty in packed_types() {
        let case = Case::new(ty, 101, 1536, 61);
        let bias: Vec<f32> = (0..101).map(|i| i as f32).collect();
        let epilogue = Epilogue { bias: Some(&bias), residual: None };
        for (n_tokens, pairs) in
            [(1, &[0..1][..]), (2, &[1..2]), (3, &[0..3]), (13, &[2..5, 7..12]), (61, &[0..32])]
        {
            let x = Rows::new(&case.x, 61, 1536).slice_rows(0..n_tokens);
            let run = |tier: Tier, n_threads: usize| {
                let team = Team::new(n_threads);
                let n_rows = 2 * n_tokens;
                let mut q = QuantizedRows::with_capacity(n_rows, 1536);
                q.quantize_in_planes(&team, tier, x, pairs);
                let mut out = vec![f32::NAN; n_tokens * 101];
                let view = RowsMut::new(&mut out, n_tokens, 101);
                let scratch = PackedScratch::new(&team, n_rows);
                matmul_packed(&team, tier, &[case.matrix()], &q, view, &scratch, &epilogue);
                (out, q)
            };
            // Of each row, the planes as rows of their own.
            let (out, q) = run(Tier::detect(), 1);
            let product = |row: usize| {
                let mut sums = [0.0; 7 * PACKED_ROWS];
                for (g, sums) in sums.as_chunks_mut::<PACKED_ROWS>().0.iter_mut().enumerate() {
                    let group = [case.matrix().group(g)];
                    dot_groups(Tier::Scalar, ty, &group, &[q.row(row)], std::slice::from_mut(sums));
                }
                sums
            };
            for (i, &r) in q.tokens().iter().enumerate() {
                let (r, n_pairs) = (r as usize, q.n_pairs());
                let found = &out[r * 101..][..101];
                let expected: Vec<f32> = if i >= n_pairs {
                    let single = product(n_pairs + i);
                    single.iter().zip(&bias).map(|(sum, bias)| sum + bias).collect()
                } else {
                    let planes = [0, 1].map(|plane| product(2 * i + plane));
                    let sums = planes[0].iter().zip(&planes[1]).map(|(a, b)| a + b);
                    sums.zip(&bias).map(|(sum, bias)| sum + bias).collect()
                };
                assert_eq!(bits(found), bits(&expected), "{ty}: row {r} of {n_tokens}");
            }
            for tier in Tier::available() {
                for n_threads in [1, 3] {
                    let other = run(tier, n_threads).0;
                    assert_eq!(bits(&other), bits(&out), "{ty} {tier}: {n_tokens} rows");
                }
            }
        }
    }
}

#[test]
#[expect(clippy::single_range_in_vec_init, reason = "a list of ranges that may hold one")]
fn a_second_plane_brings_products_close_to_f64() {
    for ty in packed_types() {
        let (n_rows, n_cols) = (37, 1280);
        let case = Case::new(ty, n_rows, n_cols, 1);
        let mut weights = vec![0.0; n_rows * n_cols];
        widen(ty, Tier::Scalar, &case.blocks, &mut weights);
        let team = Team::new(1);
        let mut q = QuantizedRows::with_capacity(2, n_cols);
        q.quantize_in_planes(&team, Tier::detect(), Rows::new(&case.x, 1, n_cols), &[0..1]);
        let mut out = vec![f32::NAN; n_rows];
        let view = RowsMut::new(&mut out, 1, n_rows);
        let scratch = PackedScratch::new(&team, 2);
        let epilogue = Epilogue::default();
        matmul_packed(&team, Tier::detect(), &[case.matrix()], &q, view, &scratch, &epilogue);
        for (w, &found) in weights.chunks(n_cols).zip(&out) {
            let exact = |(&w, &x): (&f32, &f32)| f64::from(w) * f64::from(x);
            let expected: f64 = w.iter().zip(&case.x).map(exact).sum();
            let mut bound = 1e-6;
            for (w, x) in w.chunks(32).zip(case.x.chunks(32)) {
                let amax = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
                for (w, x) in w.iter().zip(x) {
                    let error = x.abs() * 2e-6 + amax / 254.0 / 254.0 * 1.01;
                    bound += f64::from(w.abs() + 0.1) * f64::from(error);
                }
            }
            let error = (f64::from(found) - expected).abs();
            assert!(error <= bound, "{ty}: {found}, not {expected} ± {bound}");
        }
    }
}

#[test]
fn the_largest_quants_do_not_overflow() {
    for ty in packed_types() {
        let mut case = Case::new(ty, 16, 256, 2);
        // All quants at their largest, and activations at theirs.
        let scales: &[usize] = match ty {
            BlockType::Q4_1
            | BlockType::Q5_1
            | BlockType::Q4_K
            | BlockType::Q5_K
            | BlockType::Q4_Z => &[0, 2],
            BlockType::Q2_K => &[80, 82],
            BlockType::Q3_K => &[108],
            BlockType::Q6_K => &[208],
            BlockType::TQ1_0 => &[52],
            BlockType::TQ2_0 => &[64],
            BlockType::MXFP4 | BlockType::NVFP4 | BlockType::IQ1_M => &[],
            _ => &[0],
        };
        let fill = match ty {
            BlockType::Q8_0 => 0x80,
            // The first level of the codebook, and the least factor.
            BlockType::IQ4_NL | BlockType::IQ4_XS => 0,
            _ => 0xff,
        };
        for block in case.blocks.chunks_exact_mut(ty.block_bytes()) {
            block.fill(fill);
            if ty == BlockType::MXFP4 {
                block[0] = 127;
            }
            if ty == BlockType::NVFP4 {
                block[..4].fill(0x7e);
            }
            if ty == BlockType::IQ1_M {
                // The nibbles of 1 in binary16, 0x3c00, in four words.
                for (byte, nibble) in [49, 51, 53, 55].into_iter().zip([0x0f, 0x0f, 0xcf, 0x3f]) {
                    block[byte] = nibble;
                }
            }
            for &at in scales {
                block[at..at + 2].copy_from_slice(&half::f16::ONE.to_le_bytes());
            }
        }
        let matrix = MatrixRef::new(ty, 16, 256, &case.blocks);
        pack_group(Tier::Scalar, &matrix, 0, &mut case.packed);
        case.x[..256].fill(1.0);
        case.x[256..].fill(-1.0);
        let mut weights = vec![0.0; 256];
        widen(ty, Tier::Scalar, &case.blocks[..ty.row_bytes(256).unwrap()], &mut weights);
        let expected: f32 = weights.iter().sum();
        for tier in Tier::available() {
            for tokens in [0..1, 1..2, 0..2] {
                for (value, token) in case.run(tier, 1, tokens.clone()).chunks(16).zip(tokens) {
                    let expected = if token == 0 { expected } else { -expected };
                    for value in value {
                        let error = (value - expected).abs() / expected.abs();
                        assert!(error < 1e-5, "{ty} {tier}: {value}, not {expected}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_exponent_is_its_power_of_two() {
    for first in (0..256).step_by(PACKED_ROWS) {
        // A level of 1 and zeros, so that powers at both ends of the floats stay finite.
        let mut blocks = vec![0; PACKED_ROWS * BlockType::MXFP4.block_bytes()];
        for (i, block) in blocks.chunks_exact_mut(BlockType::MXFP4.block_bytes()).enumerate() {
            (block[0], block[1]) = ((first + i) as u8, 1);
        }
        let matrix = MatrixRef::new(BlockType::MXFP4, PACKED_ROWS, GROUP_LEN, &blocks);
        for tier in Tier::available() {
            let mut packed = vec![0; blocks.len()];
            pack_group(tier, &matrix, 0, &mut packed);
            let mut panel = [PanelGroup::ZERO];
            expand(tier, BlockType::MXFP4, &packed, 0, &mut panel);
            for (i, scale) in panel[0].scales.scale.iter().enumerate() {
                let expected = 2.0_f64.powi((first + i) as i32 - 128);
                assert_eq!(f64::from(*scale), expected, "{tier}: exponent {}", first + i);
            }
        }
    }
}

#[test]
fn parts_are_side_by_side_and_the_epilogue_is_added() {
    let cases = [
        Case::new(BlockType::Q4_K, 33, 512, 3),
        Case::new(BlockType::Q5_0, 5, 512, 3),
        Case::new(BlockType::Q6_K, 18, 512, 3),
    ];
    let parts: Vec<_> = cases.iter().map(Case::matrix).collect();
    let n = 56;
    let bias: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let residual: Vec<f32> = (0..3 * n).map(|i| i as f32 * 100.0).collect();
    for tier in Tier::available() {
        for n_tokens in [1, 3] {
            let team = Team::new(2);
            let mut q = QuantizedRows::with_capacity(n_tokens, 512);
            q.quantize(&team, tier, Rows::new(&cases[0].x, 3, 512).slice_rows(0..n_tokens));
            let mut out = vec![1000.0; n_tokens * (n + 2)];
            let view = RowsMut::with_stride(&mut out, n_tokens, n, n + 2);
            let residual = Rows::new(&residual, 3, n).slice_rows(0..n_tokens);
            let epilogue = Epilogue { bias: Some(&bias), residual: Some(residual) };
            let scratch = PackedScratch::new(&team, n_tokens);
            matmul_packed(&team, tier, &parts, &q, view, &scratch, &epilogue);
            for (r, row) in out.chunks(n + 2).enumerate() {
                assert_eq!(row[n..], [1000.0; 2], "the gap between rows is untouched");
                let mut col = 0;
                for case in &cases {
                    let part = MatrixRef::new(case.ty, case.n_rows, 512, &case.blocks);
                    let single = Case {
                        x: cases[0].x.clone(),
                        blocks: part.data().to_vec(),
                        packed: case.packed.clone(),
                        ..*case
                    };
                    for product in single.run(tier, 1, r..r + 1) {
                        assert_eq!(row[col], product + bias[col] + residual.row(r)[col]);
                        col += 1;
                    }
                }
            }
        }
    }
}
