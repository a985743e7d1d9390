//! Tile products compared with exact integer arithmetic, and both implementations with each other.

use super::*;
use crate::testing::{next, tile_tiers};
use crate::{RowsMut, Tier};

/// A finite number `sign * mantissa * 2^exponent`; subnormal ones are zero.
#[derive(Clone, Copy, Debug)]
struct Exact {
    negative: bool,
    mantissa: u128,
    exponent: i32,
}

impl Exact {
    fn new(x: f32) -> Self {
        let bits = x.to_bits();
        let biased = (bits >> 23 & 0xff) as i32;
        assert_ne!(biased, 0xff, "a finite number");
        let mantissa = if biased == 0 { 0 } else { u128::from(bits & 0x7f_ffff | 0x80_0000) };
        Self { negative: x.is_sign_negative(), mantissa, exponent: biased - 150 }
    }

    fn times(self, other: Self) -> Self {
        Self {
            negative: self.negative != other.negative,
            mantissa: self.mantissa * other.mantissa,
            exponent: self.exponent + other.exponent,
        }
    }

    /// The sum. Bits far below the 24th are merged into one sticky bit.
    fn plus(self, other: Self) -> Self {
        let (a, b) = if self.exponent >= other.exponent { (self, other) } else { (other, self) };
        if a.mantissa == 0 || b.mantissa == 0 {
            let negative = a.negative && b.negative;
            let nonzero = if a.mantissa == 0 { b } else { a };
            return if nonzero.mantissa == 0 { Self { negative, ..a } } else { nonzero };
        }
        let apart = (a.exponent - b.exponent) as u32;
        let up = apart.min(76);
        let down = (apart - up).min(127);
        let low = b.mantissa >> down | u128::from(b.mantissa & ((1 << down) - 1) != 0);
        let signed = |negative: bool, m: u128| if negative { -(m as i128) } else { m as i128 };
        let sum = signed(a.negative, a.mantissa << up) + signed(b.negative, low);
        Self { negative: sum < 0, mantissa: sum.unsigned_abs(), exponent: a.exponent - up as i32 }
    }

    /// The nearest F32 of 24 bits, ties to even; zero where it is below the normal numbers.
    fn round(self) -> f32 {
        let sign = u32::from(self.negative) << 31;
        if self.mantissa == 0 {
            return f32::from_bits(sign);
        }
        let shift = 128 - self.mantissa.leading_zeros() as i32 - 24;
        let mut mantissa = if shift <= 0 {
            self.mantissa << -shift
        } else {
            let kept = self.mantissa >> shift;
            let (rest, half) = (self.mantissa & ((1 << shift) - 1), 1 << (shift - 1));
            kept + u128::from(rest > half || (rest == half && kept & 1 == 1))
        };
        let mut exponent = self.exponent + shift;
        if mantissa == 1 << 24 {
            (mantissa, exponent) = (1 << 23, exponent + 1);
        }
        let biased = exponent + 150;
        let bits = match biased {
            ..=0 => 0,
            1..=254 => (biased as u32) << 23 | (mantissa as u32 & 0x7f_ffff),
            _ => 0x7f80_0000,
        };
        f32::from_bits(sign | bits)
    }
}

/// `a b + c` of the instruction.
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    let zero_if_subnormal = |x: f32| if x.is_subnormal() { 0.0_f32.copysign(x) } else { x };
    let [a, b, c] = [a, b, c].map(zero_if_subnormal);
    if [a, b, c].iter().all(|x| x.is_finite()) {
        return Exact::new(a).times(Exact::new(b)).plus(Exact::new(c)).round();
    }
    // Infinities and NaN follow IEEE 754; a product of finite numbers is finite in f64.
    (f64::from(a) * f64::from(b) + f64::from(c)) as f32
}

fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Element `(r, n)` of a product, by the definition.
fn expected(product: &Product<'_>, r: usize, n: usize, c: f32) -> f32 {
    let b = &product.b[n / PAIR_LEN * product.b_stride..][..product.a.len()];
    let mut sum = if product.add { c } else { 0.0 };
    for (a, b) in product.a.iter().zip(b) {
        let a = a[r / TILE_LEN].0[r % TILE_LEN];
        let b = b[n / TILE_LEN % 2].0.map(|row| row[n % TILE_LEN]);
        let dot = |shift: u32| {
            a.iter().zip(b).fold(0.0, |dot, (&a, b)| {
                multiply_add(bf16((a >> shift) as u16), bf16((b >> shift) as u16), dot)
            })
        };
        sum = multiply_add(1.0, sum, multiply_add(1.0, dot(0), dot(16)));
    }
    sum
}

/// Distributions of test values.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Values {
    /// Around one.
    Usual,
    /// Most products are near the smallest normal number.
    Small,
    /// Any exponents, so that sums overflow and cancel.
    Any,
    /// With infinities and NaN among them.
    Special,
}

impl Values {
    fn draw(self, seed: &mut u64) -> u16 {
        let bits = next(seed);
        let noise = (bits >> 20) as u16;
        let exponent = |from: u64, n: u64| ((from + (bits >> 40) % n) as u16) << 7;
        let usual = noise & 0x807f | exponent(118, 12);
        match self {
            Self::Usual => usual,
            // 2^-126 has the biased exponent 1; two of 64 multiply to it.
            Self::Small if bits & 7 == 0 => noise & 0x807f,
            Self::Small => noise & 0x8003 | exponent(62, 4),
            Self::Any if bits & 7 == 0 => noise & 0x8000,
            Self::Any => noise & 0x807f | exponent(0, 255),
            Self::Special if bits & 127 == 0 => noise & 0x8000 | 0x7f80,
            Self::Special if bits & 127 == 1 => noise | 0x7f81,
            Self::Special => usual,
        }
    }

    fn pairs(self, seed: &mut u64, n: usize) -> Vec<TilePair> {
        let mut word = || u32::from(self.draw(seed)) | u32::from(self.draw(seed)) << 16;
        (0..n)
            .map(|_| [(); 2].map(|()| Tile([(); 16].map(|()| [(); 16].map(|()| word())))))
            .collect()
    }
}

fn multiply(tier: Tier, product: &Product<'_>, c: RowsMut<'_>) {
    match tier {
        #[cfg(target_arch = "x86_64")]
        Tier::AmxBf16(tiles) => tiles.multiply(product, c),
        Tier::AmxBf16Software(tiles) => tiles.multiply(product, c),
        other => panic!("{other} has no tiles"),
    }
}

#[test]
fn products_are_those_of_the_instruction_in_exact_arithmetic() {
    let mut seed = 7;
    for values in [Values::Usual, Values::Small, Values::Any, Values::Special] {
        for (n_rows, n_cols, n_steps, add) in [
            (32, 64_usize, 1, false),
            (17, 33, 2, true),
            (16, 48, 3, true),
            (5, 9, 2, false),
            (32, 80, 1, true),
        ] {
            let a = values.pairs(&mut seed, n_steps);
            let b_stride = n_steps + 1;
            let b = values.pairs(&mut seed, n_cols.div_ceil(PAIR_LEN) * b_stride);
            let product = Product { a: &a, b: &b, b_stride, add, next: &a };
            // The result lies among other values, which stay.
            let stride = n_cols + 5;
            let before: Vec<f32> =
                (0..n_rows * stride).map(|_| bf16(values.draw(&mut seed)) * 1.001).collect();
            for tier in tile_tiers() {
                let mut c = before.clone();
                multiply(tier, &product, RowsMut::with_stride(&mut c, n_rows, n_cols, stride));
                for (i, (&found, &before)) in c.iter().zip(&before).enumerate() {
                    let (r, n) = (i / stride, i % stride);
                    let expected =
                        if n < n_cols { expected(&product, r, n, before) } else { before };
                    let same = found.to_bits() == expected.to_bits()
                        || (found.is_nan() && expected.is_nan());
                    assert!(
                        same,
                        "{tier} on {} {values:?} {n_rows} x {n_cols} ({r}, {n}): {found:e}, not {expected:e}",
                        tier.vectors()
                    );
                }
            }
        }
    }
}

#[test]
fn split_products_are_those_of_their_halves_in_order() {
    let mut seed = 9;
    for values in [Values::Usual, Values::Small, Values::Any, Values::Special] {
        for (n_rows, n_cols, n_steps) in [(32, 64_usize, 2), (17, 32, 1), (16, 96, 3), (5, 64, 2)] {
            let split = |pairs: Vec<TilePair>| pairs.as_chunks::<2>().0.to_vec();
            let a: Vec<SplitPair> = split(values.pairs(&mut seed, 2 * n_steps));
            let n_pairs = n_cols / PAIR_LEN * n_steps;
            let b: Vec<SplitPair> = split(values.pairs(&mut seed, 2 * n_pairs));
            // Upper halves come first.
            let one_after_other = |split: &[SplitPair], order: [usize; 3]| -> Vec<TilePair> {
                split.iter().flat_map(|halves| order.map(|half| halves[half])).collect()
            };
            let (a3, b3) = (one_after_other(&a, [1, 0, 0]), one_after_other(&b, [0, 0, 1]));
            let whole = Product { a: &a3, b: &b3, b_stride: 3 * n_steps, add: false, next: &a3 };
            let product = SplitProduct { a: &a, b: &b };
            let stride = n_cols + 3;
            let element = |i: usize| {
                let (r, n) = (i / stride, i % stride);
                if n < n_cols { expected(&whole, r, n, 0.0) } else { 7.0 }
            };
            let expected: Vec<f32> = (0..n_rows * stride).map(element).collect();
            for tier in tile_tiers() {
                let mut c = vec![7.0; n_rows * stride];
                let rows = RowsMut::with_stride(&mut c, n_rows, n_cols, stride);
                match tier {
                    #[cfg(target_arch = "x86_64")]
                    Tier::AmxBf16(tiles) => tiles.multiply_split(&product, rows),
                    Tier::AmxBf16Software(tiles) => tiles.multiply_split(&product, rows),
                    other => panic!("{other} has no tiles"),
                }
                for (i, (found, expected)) in c.iter().zip(&expected).enumerate() {
                    let same = found.to_bits() == expected.to_bits()
                        || (found.is_nan() && expected.is_nan());
                    assert!(same, "{tier} {values:?} {i}: {found:e}, not {expected:e}");
                }
            }
        }
    }
}

#[test]
fn numbers_that_round_up_to_the_smallest_normal_one_are_told_from_it() {
    // 2^-126 (1 - 2^-24) has 24 bits and is subnormal; in steps of subnormal numbers it would
    // round up. 2^-126 (1 - 2^-26) rounds up in 24 bits as well.
    let tiny = f32::MIN_POSITIVE;
    let cases =
        [(2.0_f32.powi(-75), 2.0_f32.powi(-75), 0.0), (2.0_f32.powi(-76), 2.0_f32.powi(-76), tiny)];
    for (product, flushed, expected) in cases {
        // Two steps of one pair each: 2^-126, then less the small product.
        let mut pairs = vec![[Tile([[0; 16]; 16]); 2]; 2];
        let word = |x: f32| x.to_bits() >> 16;
        pairs[0][0].0[0][0] = word(2.0_f32.powi(-63));
        pairs[0][0].0[0][1] = word(-product);
        let mut b = pairs.clone();
        b[0][0].0 = [[0; 16]; 16];
        b[0][0].0[0][0] = word(2.0_f32.powi(-63));
        b[0][0].0[1][0] = word(flushed);
        let product = Product { a: &pairs[..1], b: &b[..1], b_stride: 1, add: false, next: &[] };
        for tier in tile_tiers() {
            let mut c = [f32::NAN];
            multiply(tier, &product, RowsMut::new(&mut c, 1, 1));
            assert_eq!(c[0].to_bits(), expected.to_bits(), "{tier} on {}", tier.vectors());
        }
    }
}

#[test]
fn both_forms_have_the_same_bits() {
    let mut seed = 99;
    let has_amx = Tier::available().any(|tier| tier.name() == "amx-bf16");
    if !has_amx {
        println!("skipped: this processor has no AMX-BF16, or the system does not permit it");
        return;
    }
    for (n_rows, n_cols, n_steps, add) in
        [(32, 256_usize, 64, false), (31, 47, 18, true), (3, 500, 9, true)]
    {
        let a = Values::Usual.pairs(&mut seed, n_steps);
        let b = Values::Usual.pairs(&mut seed, n_cols.div_ceil(PAIR_LEN) * n_steps);
        let product = Product { a: &a, b: &b, b_stride: n_steps, add, next: &[] };
        let results: Vec<Vec<u32>> = tile_tiers()
            .into_iter()
            .map(|tier| {
                let mut c = vec![0.25; n_rows * n_cols];
                multiply(tier, &product, RowsMut::new(&mut c, n_rows, n_cols));
                c.iter().map(|x| x.to_bits()).collect()
            })
            .collect();
        assert!(results.iter().all(|bits| *bits == results[0]));
    }
}

#[test]
fn values_round_to_the_nearest_of_eight_bits() {
    for (x, expected) in [
        (1.0, 0x3f80),
        (-0.0, 0x8000),
        (1.0 + 1.0 / 256.0, 0x3f80),
        (1.0 + 3.0 / 256.0, 0x3f82),
        (1.0 + 1.01 / 256.0, 0x3f81),
        (f32::MAX, 0x7f80),
        (f32::NEG_INFINITY, 0xff80),
        (f32::MIN_POSITIVE, 0x0080),
        (-f32::MIN_POSITIVE / 2.0, 0x8000),
        (f32::from_bits(0x7f80_0001), 0x7fc0),
        (f32::from_bits(0xffc1_2345), 0xffc1),
    ] {
        assert_eq!(to_bf16(x), expected, "{x:e}");
    }
    let mut seed = 3;
    for _ in 0..10_000 {
        let x = f32::from_bits(next(&mut seed) as u32);
        let expected = half::bf16::from_f32(if x.is_subnormal() { 0.0_f32.copysign(x) } else { x });
        assert_eq!(to_bf16(x), expected.to_bits(), "{x:e}");
    }
}

#[test]
fn rows_and_weights_are_the_same_tiles_on_every_tier() {
    use crate::testing::{random, random_weights};
    use crate::{Bf16Rows, MatrixRef, Rows, Team};
    use realizar_quant::BlockType;

    for (n_rows, n_cols) in [(1, 1), (33, 70), (64, 1024), (17, 31)] {
        let mut seed = (n_rows * 100 + n_cols) as u64;
        let mut x = random(&mut seed, n_rows * n_cols);
        x[n_cols / 2] = f32::MIN_POSITIVE / 4.0;
        x[n_rows * n_cols - 1] = f32::NAN;
        for tier in tile_tiers() {
            let mut packed = Bf16Rows::with_capacity(70, 1024).expect("some kilobytes");
            // What was there before shows nowhere.
            packed.pack(&Team::new(1), tier, Rows::new(&vec![9.0; 70 * 1024], 70, 1024));
            packed.pack(&Team::new(3), tier, Rows::new(&x, n_rows, n_cols));
            for row in 0..n_rows {
                let pairs = packed.block(row / PAIR_LEN, 0..n_cols.div_ceil(STEP_LEN));
                for col in 0..pairs.len() * STEP_LEN {
                    let tile = &pairs[col / STEP_LEN][row / TILE_LEN % 2];
                    let word = tile.0[row % TILE_LEN][col % STEP_LEN / 2];
                    let found = (word >> (col % 2 * 16)) as u16;
                    let value = if col < n_cols { x[row * n_cols + col] } else { 0.0 };
                    assert_eq!(found, to_bf16(value), "{tier} ({row}, {col})");
                }
            }
        }
        for ty in [BlockType::F32, BlockType::F16, BlockType::BF16] {
            let w = random_weights(&mut seed, ty, n_rows, n_cols);
            let mut values = vec![0.0; n_rows * n_cols];
            crate::vec_dot::widen(ty, Tier::Scalar, &w, &mut values);
            let matrix = MatrixRef::new(ty, n_rows, n_cols, &w);
            for tier in tile_tiers() {
                let first = (n_rows - 1) / TILE_LEN * TILE_LEN;
                let mut tiles = vec![Tile([[7; 16]; 16]); n_cols.div_ceil(STEP_LEN)];
                widen_rows(tier, &matrix, first, 0, tiles.iter_mut());
                for (step, tile) in tiles.iter().enumerate() {
                    for (i, word) in tile.0.as_flattened().iter().enumerate() {
                        let (k, n) = (i / TILE_LEN, first + i % TILE_LEN);
                        for j in 0..2 {
                            let col = step * STEP_LEN + 2 * k + j;
                            let inside = n < n_rows && col < n_cols;
                            let value = if inside { values[n * n_cols + col] } else { 0.0 };
                            let found = (word >> (16 * j)) as u16;
                            assert_eq!(found, to_bf16(value), "{tier} {ty} ({n}, {col})");
                        }
                    }
                }
            }
        }
    }
}
