//! Products of BF16 tiles with F32 sums, as AMX computes them.
//!
//! Loops over tiles are written once, over [`Tiles`]. `amx` has the instructions, and `software` their
//! exact semantics in plain Rust, so that tests run on any processor. Sums are in the order of the
//! instruction TDPBF16PS: within 32 columns, fused multiply-adds from zero sum the even columns in
//! order, and likewise the odd ones; the two sums are added, and the result is added to the previous
//! sum. An element's bits therefore do not depend on how a product is divided.

#[cfg(target_arch = "x86_64")]
mod amx;
mod rows;
mod software;
mod widen;

use bytemuck::{Pod, Zeroable};

pub use rows::Bf16Rows;
pub(crate) use rows::Strip;
#[cfg(target_arch = "x86_64")]
pub(crate) use rows::{interleave, pairs_of, store};
#[cfg(target_arch = "x86_64")]
pub(crate) use widen::transpose;
pub(crate) use widen::widen_rows;

use crate::RowsMut;

/// Activation rows, or weight rows, per tile.
pub(crate) const TILE_LEN: usize = 16;
/// Columns per tile, which are one step of a product.
pub(crate) const STEP_LEN: usize = 32;
/// Rows of two tiles.
pub(crate) const PAIR_LEN: usize = 2 * TILE_LEN;

/// An operand: sixteen rows of sixteen pairs of BF16, with the first one in the low half of a word.
///
/// In a tile of activations, `tile[r][k]` has columns `2 k` and `2 k + 1` of row `r`. In a tile of
/// weights, `tile[k][n]` has these columns of weight row `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Tile(pub(crate) [[u32; TILE_LEN]; TILE_LEN]);

/// Two tiles at the same columns: 32 rows of activations, or of weights.
pub(crate) type TilePair = [Tile; 2];

/// Values split into two BF16: tiles of the nearest BF16, and of the BF16 nearest to the rounding error.
pub(crate) type SplitPair = [TilePair; 2];

/// The operands of a product of up to 32 rows with any number of rows, both split.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SplitProduct<'a> {
    pub(crate) a: &'a [SplitPair], // [n_steps], at least one
    pub(crate) b: &'a [SplitPair], // [n_cols / 32, n_steps]
}

impl SplitProduct<'_> {
    /// Checks the operands against the shape of a result.
    ///
    /// # Panics
    /// If they do not fit.
    fn check(&self, c: &RowsMut<'_>) {
        assert!(c.n_rows() <= PAIR_LEN, "{} rows of a product of tiles", c.n_rows());
        assert!(c.n_cols().is_multiple_of(PAIR_LEN), "whole pairs of tiles");
        assert!(!self.a.is_empty(), "no steps");
        assert!(c.n_cols() / PAIR_LEN * self.a.len() <= self.b.len(), "tiles of the weights");
    }
}

/// The operands of a product of up to 32 activation rows with any number of weight rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product<'a> {
    /// Activations.
    pub(crate) a: &'a [TilePair], // [n_steps]
    /// Weights, one run of steps per 32 rows.
    pub(crate) b: &'a [TilePair], // [n_cols / 32 rounded up, b_stride]
    /// Steps from 32 weight rows to the next 32. The product uses the first `a.len()` of them.
    pub(crate) b_stride: usize,
    /// Whether the products are added to the result.
    pub(crate) add: bool,
    /// The next product's `a`, for prefetching.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "the software form fetches nothing ahead")
    )]
    pub(crate) next: &'a [TilePair],
}

impl Product<'_> {
    /// Checks the operands against the shape of a result.
    ///
    /// # Panics
    /// If they do not fit.
    fn check(&self, c: &RowsMut<'_>) {
        assert!(c.n_rows() <= PAIR_LEN, "{} rows of a product of tiles", c.n_rows());
        assert!(self.a.len() <= self.b_stride, "steps of the weights");
        let last = c.n_cols().div_ceil(PAIR_LEN).saturating_sub(1);
        assert!(last * self.b_stride + self.a.len() <= self.b.len(), "tiles of the weights");
    }
}

/// An implementation of tile products.
pub(crate) trait Tiles: Copy + Sync {
    /// `c = a bᵀ`, or `c += a bᵀ`.
    ///
    /// # Panics
    /// If the operands do not fit the result.
    fn multiply(self, product: &Product<'_>, c: RowsMut<'_>);

    /// `c = a bᵀ` without the products of two lower halves. Each step adds `a`'s lower halves times `b`'s
    /// upper ones, then upper times upper, then `a`'s upper times `b`'s lower ones.
    ///
    /// # Panics
    /// If the operands do not fit the result.
    fn multiply_split(self, product: &SplitProduct<'_>, c: RowsMut<'_>);
}

/// The nearest BF16, ties to even, as VCVTNEPS2BF16 rounds (Intel SDM): subnormal values become zero,
/// and NaN becomes quiet NaN.
#[inline(always)]
pub(crate) fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let high = (bits >> 16) as u16;
    if x.is_nan() {
        return high | 0x40;
    }
    if bits & 0x7f80_0000 == 0 {
        return high & 0x8000;
    }
    ((bits + 0x7fff + u32::from(high & 1)) >> 16) as u16
}

/// Rounds two values to a pair of BF16, with the first one in the low half.
#[inline(always)]
pub(crate) fn to_pair(low: f32, high: f32) -> u32 {
    u32::from(to_bf16(low)) | u32::from(to_bf16(high)) << 16
}

#[cfg(test)]
mod tests;
