//! Tile products in plain Rust with the bits of TDPBF16PS (Intel SDM, volume 2): multiply-adds are fused
//! and round to nearest even, and subnormal operands and results are zero. A NaN may have other bits.

use super::{PAIR_LEN, Product, SplitProduct, TILE_LEN, Tile, Tiles};
use crate::{RowsMut, SoftwareTiles};

/// Sixteen sums side by side.
type Sums = [f32; TILE_LEN];

impl Tiles for SoftwareTiles {
    fn multiply(self, product: &Product<'_>, c: RowsMut<'_>) {
        product.check(&c);
        self.dispatch(product, c);
    }

    fn multiply_split(self, product: &SplitProduct<'_>, c: RowsMut<'_>) {
        product.check(&c);
        self.dispatch(product, c);
    }
}

/// The operands of an element.
trait Operands {
    /// Adds the products of row `r` with sixteen columns from `first` on.
    fn add_to(&self, sums: &mut Sums, r: usize, first: usize);

    /// Whether the products are added to the result.
    fn adds(&self) -> bool;
}

impl Operands for Product<'_> {
    #[inline(always)]
    fn add_to(&self, sums: &mut Sums, r: usize, first: usize) {
        let b = &self.b[first / PAIR_LEN * self.b_stride..][..self.a.len()];
        let half = first / TILE_LEN % 2;
        for (a, b) in self.a.iter().zip(b) {
            add_dots(&a[r / TILE_LEN].0[r % TILE_LEN], &b[half], sums);
        }
    }

    #[inline(always)]
    fn adds(&self) -> bool {
        self.add
    }
}

impl Operands for SplitProduct<'_> {
    #[inline(always)]
    fn add_to(&self, sums: &mut Sums, r: usize, first: usize) {
        let n_steps = self.a.len();
        let b = &self.b[first / PAIR_LEN * n_steps..][..n_steps];
        let half = first / TILE_LEN % 2;
        for (a, b) in self.a.iter().zip(b) {
            let [upper, lower] = [0, 1].map(|i| &a[i][r / TILE_LEN].0[r % TILE_LEN]);
            for (a, b) in [(lower, &b[0]), (upper, &b[0]), (upper, &b[1])] {
                add_dots(a, &b[half], sums);
            }
        }
    }

    #[inline(always)]
    fn adds(&self) -> bool {
        false
    }
}

impl SoftwareTiles {
    fn dispatch(self, operands: &impl Operands, c: RowsMut<'_>) {
        match self.vectors() {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the token exists only if its instructions were detected.
            crate::Tier::Avx512(_) => unsafe { multiply_avx512(operands, c) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above; every tier with this token has AVX2 and FMA.
            tier if tier.avx2().is_some() => unsafe { multiply_avx2(operands, c) },
            _ => multiply(operands, c),
        }
    }
}

/// [`multiply`], compiled for registers of 512 bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn multiply_avx512(operands: &impl Operands, c: RowsMut<'_>) {
    multiply(operands, c);
}

/// [`multiply`], compiled for fused multiply-adds in registers of 256 bits.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn multiply_avx2(operands: &impl Operands, c: RowsMut<'_>) {
    multiply(operands, c);
}

#[inline(always)]
fn multiply(operands: &impl Operands, mut c: RowsMut<'_>) {
    for first in (0..c.n_cols()).step_by(TILE_LEN) {
        for r in 0..c.n_rows() {
            let out = c.row_mut(r);
            let end = out.len().min(first + TILE_LEN);
            let out = &mut out[first..end];
            let mut sums = [0.0; TILE_LEN];
            if operands.adds() {
                sums[..out.len()].copy_from_slice(out);
            }
            operands.add_to(&mut sums, r, first);
            out.copy_from_slice(&sums[..out.len()]);
        }
    }
}

/// Adds the products of 32 columns of a row with those of sixteen weight rows.
#[inline(always)]
fn add_dots(a: &[u32; TILE_LEN], b: &Tile, sums: &mut Sums) {
    let (mut even, mut odd) = ([0.0; TILE_LEN], [0.0; TILE_LEN]);
    let mut is_edge = false;
    for (&a, b) in a.iter().zip(&b.0) {
        let (low, high) = (low_of(a), high_of(a));
        for n in 0..TILE_LEN {
            even[n] = low.mul_add(low_of(b[n]), even[n]);
            odd[n] = high.mul_add(high_of(b[n]), odd[n]);
            is_edge |= even[n].abs() == f32::MIN_POSITIVE || odd[n].abs() == f32::MIN_POSITIVE;
            (even[n], odd[n]) = (flush(even[n]), flush(odd[n]));
        }
    }
    if is_edge {
        (even, odd) = dots_at_the_edge(a, b);
    }
    for n in 0..TILE_LEN {
        sums[n] = flush(flush(sums[n]) + flush(even[n] + odd[n]));
    }
}

/// The two sums of [`add_dots`], computed exactly, for the case that an intermediate one was the smallest
/// normal number, which may have been rounded up from a subnormal number that counts as zero.
#[cold]
#[inline(never)]
fn dots_at_the_edge(a: &[u32; TILE_LEN], b: &Tile) -> (Sums, Sums) {
    let (mut even, mut odd) = ([0.0; TILE_LEN], [0.0; TILE_LEN]);
    for (&a, b) in a.iter().zip(&b.0) {
        for n in 0..TILE_LEN {
            even[n] = multiply_add(low_of(a), low_of(b[n]), even[n]);
            odd[n] = multiply_add(high_of(a), high_of(b[n]), odd[n]);
        }
    }
    (even, odd)
}

/// `a b + c`, rounded once to 24 bits with unbounded exponent, and zero if the rounded value is below the
/// normal numbers: x86 processors detect tininess after rounding (Intel SDM, volume 1, section
/// 4.9.1.5).
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    let sum = a.mul_add(b, c);
    if sum.abs() != f32::MIN_POSITIVE {
        return flush(sum);
    }
    // The limit is halfway between the smallest normal number and the next lower number of 24 bits; a tie
    // rounds up. The product is exact in f64, and the sum is together with its error (Knuth's two-sum).
    let limit = f64::from(f32::MIN_POSITIVE) * (1.0 - f64::EPSILON * f64::from(1 << 27));
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let near = product + c;
    let of_c = near - product;
    let error = (product - (near - of_c)) + (c - of_c);
    let (near, error) = if near < 0.0 { (-near, -error) } else { (near, error) };
    let is_tiny = near < limit || (near == limit && error < 0.0);
    if is_tiny { 0.0_f32.copysign(sum) } else { sum }
}

/// The first value of a pair; zero if it is subnormal.
#[inline(always)]
fn low_of(pair: u32) -> f32 {
    flush(f32::from_bits(pair << 16))
}

/// The second value of a pair; zero if it is subnormal.
#[inline(always)]
fn high_of(pair: u32) -> f32 {
    flush(f32::from_bits(pair & 0xffff_0000))
}

/// Replaces a subnormal number by zero of the same sign.
#[inline(always)]
fn flush(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(x) } else { x }
}
