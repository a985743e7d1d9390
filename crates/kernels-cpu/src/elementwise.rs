//! Elementwise kernels over rows: add, multiply, scale, soft cap, clamp, bias, copy and gather.
//!
//! Each result depends on its own operands alone, so the division into tasks does not affect the bits.

#[cfg(target_arch = "x86_64")]
use crate::lanes;
use crate::{Rows, RowsMut, Team, Tier, math};

/// Minimum number of elements per task: waking a thread costs more than computing fewer.
const TASK_LEN: usize = 4096;

/// Calls `f(row, first column, piece of the row)` for pieces that cover `out`.
pub(crate) fn for_each_piece<F>(team: &Team, out: RowsMut<'_>, f: F)
where
    F: Fn(usize, usize, &mut [f32]) + Sync,
{
    let col_grain = out.n_cols().clamp(1, TASK_LEN);
    team.for_each_tile_mut(out, TASK_LEN / col_grain, col_grain, |mut tile, row, col, _thread| {
        for i in 0..tile.n_rows() {
            f(row + i, col, tile.row_mut(i));
        }
    });
}

/// Rows per task of a kernel that needs whole rows.
pub(crate) fn row_grain(n_cols: usize) -> usize {
    TASK_LEN.div_ceil(n_cols.max(1))
}

fn assert_same_shape(x: &Rows<'_>, out: &RowsMut<'_>) {
    let (x, out) = ((x.n_rows(), x.n_cols()), (out.n_rows(), out.n_cols()));
    assert_eq!(x, out, "shapes of operand and result");
}

/// `out = a + b`, all of one shape.
pub fn add(team: &Team, tier: Tier, a: Rows<'_>, b: Rows<'_>, out: RowsMut<'_>) {
    assert_same_shape(&a, &out);
    assert_same_shape(&b, &out);
    for_each_piece(team, out, |row, col, out| {
        let cols = col..col + out.len();
        add_piece(tier, &a.row(row)[cols.clone()], &b.row(row)[cols], out);
    });
}

/// `x += y`, both of one shape.
pub fn add_in_place(team: &Team, tier: Tier, x: RowsMut<'_>, y: Rows<'_>) {
    assert_same_shape(&y, &x);
    for_each_piece(team, x, |row, col, x| {
        add_piece_in_place(tier, x, &y.row(row)[col..col + x.len()]);
    });
}

/// Adds `bias` to every row of `x`.
pub fn add_bias_in_place(
    team: &Team,
    tier: Tier,
    x: RowsMut<'_>, // [n_rows, n_cols]
    bias: &[f32],   // [n_cols]
) {
    assert_eq!(bias.len(), x.n_cols(), "length of the bias");
    for_each_piece(team, x, |_row, col, x| add_piece_in_place(tier, x, &bias[col..col + x.len()]));
}

/// `out = a * b`, all of one shape.
pub fn mul(team: &Team, tier: Tier, a: Rows<'_>, b: Rows<'_>, out: RowsMut<'_>) {
    assert_same_shape(&a, &out);
    assert_same_shape(&b, &out);
    for_each_piece(team, out, |row, col, out| {
        let cols = col..col + out.len();
        mul_piece(tier, &a.row(row)[cols.clone()], &b.row(row)[cols], out);
    });
}

/// `x *= y`, both of one shape.
pub fn mul_in_place(team: &Team, tier: Tier, x: RowsMut<'_>, y: Rows<'_>) {
    assert_same_shape(&y, &x);
    for_each_piece(team, x, |row, col, x| {
        mul_piece_in_place(tier, x, &y.row(row)[col..col + x.len()]);
    });
}

/// `x *= factor`.
pub fn scale_in_place(team: &Team, tier: Tier, x: RowsMut<'_>, factor: f32) {
    for_each_piece(team, x, |_row, _col, x| scale_piece(tier, x, factor));
}

/// `x = cap * tanh(x / cap)`, which limits values to `-cap..cap` (Gemma 2, arXiv:2408.00118, section 2).
///
/// # Panics
/// If `cap` is not above zero.
pub fn softcap_in_place(team: &Team, tier: Tier, x: RowsMut<'_>, cap: f32) {
    assert!(cap > 0.0, "a soft cap of {cap}");
    for_each_piece(team, x, |_row, _col, x| softcap_piece(tier, x, cap));
}

/// `x = min(max(x, min), max)`; NaN stays NaN.
///
/// # Panics
/// Unless `min <= max`.
pub fn clamp_in_place(team: &Team, tier: Tier, x: RowsMut<'_>, min: f32, max: f32) {
    assert!(min <= max, "a clamp to {min}..{max}");
    for_each_piece(team, x, |_row, _col, x| clamp_piece(tier, x, min, max));
}

/// `out = x`, both of one shape.
pub fn copy_rows(team: &Team, x: Rows<'_>, out: RowsMut<'_>) {
    assert_same_shape(&x, &out);
    for_each_piece(team, out, |row, col, out| {
        out.copy_from_slice(&x.row(row)[col..col + out.len()]);
    });
}

/// Copies row `ids[i]` of `x` to row `i` of `out`.
///
/// # Panics
/// If an id is not a row of `x`.
pub fn gather_rows(
    team: &Team,
    x: Rows<'_>,      // [n_x_rows, n_cols]
    ids: &[u32],      // [n_rows]
    out: RowsMut<'_>, // [n_rows, n_cols]
) {
    assert_eq!((ids.len(), x.n_cols()), (out.n_rows(), out.n_cols()), "shape of gathered rows");
    for_each_piece(team, out, |row, col, out| {
        out.copy_from_slice(&x.row(ids[row] as usize)[col..col + out.len()]);
    });
}

/// Copies column `order[c]` of `x` to column `c` of `out`, in every row.
///
/// # Panics
/// If the shapes do not match, or `order` has a number that is not a column of `x`.
pub fn reorder_columns(
    team: &Team,
    x: Rows<'_>,      // [n_rows, n_x_cols]
    order: &[f32],    // [n_cols], whole numbers
    out: RowsMut<'_>, // [n_rows, n_cols]
) {
    assert_eq!((x.n_rows(), order.len()), (out.n_rows(), out.n_cols()), "shape of other columns");
    for_each_piece(team, out, |row, col, out| {
        let x = x.row(row);
        for (out, &from) in out.iter_mut().zip(&order[col..]) {
            *out = x[from as usize];
        }
    });
}

fn add_piece(tier: Tier, a: &[f32], b: &[f32], out: &mut [f32]) {
    match tier.avx2() {
        None => {
            for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                *out = a + b;
            }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that AVX2, FMA and F16C were detected.
        Some(_) => unsafe { avx2::add(a, b, out) },
    }
}

pub(crate) fn add_piece_in_place(tier: Tier, x: &mut [f32], y: &[f32]) {
    match tier.avx2() {
        None => x.iter_mut().zip(y).for_each(|(x, y)| *x += y),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that AVX2, FMA and F16C were detected.
        Some(_) => unsafe { avx2::add_in_place(x, y) },
    }
}

fn mul_piece(tier: Tier, a: &[f32], b: &[f32], out: &mut [f32]) {
    match tier.avx2() {
        None => {
            for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                *out = a * b;
            }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that AVX2, FMA and F16C were detected.
        Some(_) => unsafe { avx2::mul(a, b, out) },
    }
}

fn mul_piece_in_place(tier: Tier, x: &mut [f32], y: &[f32]) {
    match tier.avx2() {
        None => x.iter_mut().zip(y).for_each(|(x, y)| *x *= y),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that AVX2, FMA and F16C were detected.
        Some(_) => unsafe { avx2::mul_in_place(x, y) },
    }
}

/// `x *= factor` on one row or a piece of one.
pub(crate) fn scale_piece(tier: Tier, x: &mut [f32], factor: f32) {
    match tier.avx2() {
        None => x.iter_mut().for_each(|x| *x *= factor),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that AVX2, FMA and F16C were detected.
        Some(_) => unsafe { avx2::scale(x, factor) },
    }
}

fn softcap_piece(tier: Tier, x: &mut [f32], cap: f32) {
    match tier.avx2() {
        None => x.iter_mut().for_each(|x| *x = cap * math::tanh(*x / cap)),
        #[cfg(target_arch = "x86_64")]
        Some(_) => lanes::dispatch(tier, Softcap { x, cap }),
    }
}

fn clamp_piece(tier: Tier, x: &mut [f32], min: f32, max: f32) {
    match tier.avx2() {
        None => x.iter_mut().for_each(|x| *x = x.clamp(min, max)),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the token proves that AVX2, FMA and F16C were detected.
        Some(_) => unsafe { avx2::clamp(x, min, max) },
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        _mm256_add_ps, _mm256_max_ps, _mm256_min_ps, _mm256_mul_ps, _mm256_set1_ps,
    };

    use crate::lanes::{map_in_place, zip, zip_in_place};

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn add(a: &[f32], b: &[f32], out: &mut [f32]) {
        zip(a, b, out, |a, b| _mm256_add_ps(a, b));
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn add_in_place(x: &mut [f32], y: &[f32]) {
        zip_in_place(x, y, |x, y| _mm256_add_ps(x, y));
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn mul(a: &[f32], b: &[f32], out: &mut [f32]) {
        zip(a, b, out, |a, b| _mm256_mul_ps(a, b));
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn mul_in_place(x: &mut [f32], y: &[f32]) {
        zip_in_place(x, y, |x, y| _mm256_mul_ps(x, y));
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn scale(x: &mut [f32], factor: f32) {
        let factor = _mm256_set1_ps(factor);
        map_in_place(x, |x| _mm256_mul_ps(x, factor));
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) fn clamp(x: &mut [f32], min: f32, max: f32) {
        let (min, max) = (_mm256_set1_ps(min), _mm256_set1_ps(max));
        // For NaN and a number, and for two zeros, the instructions return the second operand.
        map_in_place(x, |x| _mm256_min_ps(max, _mm256_max_ps(min, x)));
    }
}

/// `x = cap * tanh(x / cap)`.
#[cfg(target_arch = "x86_64")]
struct Softcap<'a> {
    x: &'a mut [f32],
    cap: f32,
}

#[cfg(target_arch = "x86_64")]
impl lanes::Kernel for Softcap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: lanes::Lanes>(self, l: L) {
        let cap = l.splat16(self.cap);
        for at in (0..self.x.len()).step_by(16) {
            let x = l.div16(lanes::load_from(l, self.x, at), cap);
            lanes::store_to(l, l.mul16(cap, math::vector::tanh(l, x)), self.x, at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: [(usize, usize); 5] = [(0, 8), (1, 1), (3, 37), (5, 1024), (2, 9001)];

    fn values(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32).map(|i| ((i * 37 + seed * 101) % 2003) as f32 / 100.0 - 10.0).collect()
    }

    /// Runs a kernel on strided views of every shape and compares with `expected(a, b)`.
    fn check(
        kernel: impl Fn(&Team, Tier, Rows<'_>, Rows<'_>, RowsMut<'_>),
        expected: impl Fn(f32, f32) -> f64,
        bound: f64,
    ) {
        for tier in Tier::available() {
            for (n_rows, n_cols) in SHAPES {
                let (a_stride, out_stride) = (n_cols + 3, n_cols + 1);
                let a = values(n_rows * a_stride, 1);
                let b = values(n_rows * n_cols, 2);
                let mut out = vec![-99.0; n_rows * out_stride];
                kernel(
                    &Team::new(2),
                    tier,
                    Rows::with_stride(&a, n_rows, n_cols, a_stride),
                    Rows::new(&b, n_rows, n_cols),
                    RowsMut::with_stride(&mut out, n_rows, n_cols, out_stride),
                );
                for i in 0..n_rows {
                    assert_eq!(out[i * out_stride + n_cols], -99.0, "past the row");
                    for j in 0..n_cols {
                        let e = expected(a[i * a_stride + j], b[i * n_cols + j]);
                        let found = f64::from(out[i * out_stride + j]);
                        assert!((found - e).abs() <= bound, "{tier} {i},{j}: {found} for {e}");
                    }
                }
            }
        }
    }

    #[test]
    fn columns_are_put_in_another_order() {
        let (n_rows, n_cols) = (5, 1031);
        let x: Vec<f32> = (0..n_rows * (n_cols + 2)).map(|i| i as f32).collect();
        let view = Rows::with_stride(&x, n_rows, n_cols, n_cols + 2);
        let order: Vec<f32> = (0..n_cols).map(|c| (c * 10 + 3) as f32 % n_cols as f32).collect();
        for n_threads in [1, 3] {
            let mut out = vec![-1.0; n_rows * n_cols];
            let rows = RowsMut::new(&mut out, n_rows, n_cols);
            reorder_columns(&Team::new(n_threads), view, &order, rows);
            for (i, value) in out.into_iter().enumerate() {
                let (row, col) = (i / n_cols, i % n_cols);
                assert_eq!(value, (row * (n_cols + 2) + (col * 10 + 3) % n_cols) as f32);
            }
        }
    }

    #[test]
    fn sums_and_products_are_rounded_once() {
        let sum = |a: f32, b: f32| f64::from(a + b);
        let product = |a: f32, b: f32| f64::from(a * b);
        check(add, sum, 0.0);
        check(mul, product, 0.0);
        let in_place = |f: fn(&Team, Tier, RowsMut<'_>, Rows<'_>)| {
            move |team: &Team, tier, a: Rows<'_>, b: Rows<'_>, mut out: RowsMut<'_>| {
                copy_rows(team, a, out.reborrow());
                f(team, tier, out, b);
            }
        };
        check(in_place(add_in_place), sum, 0.0);
        check(in_place(mul_in_place), product, 0.0);
    }

    #[test]
    fn scale_and_softcap_match_f64() {
        check(
            |team, tier, a, _b, mut out| {
                copy_rows(team, a, out.reborrow());
                scale_in_place(team, tier, out, 0.3);
            },
            |a, _| f64::from(a * 0.3),
            0.0,
        );
        check(
            |team, tier, a, _b, mut out| {
                copy_rows(team, a, out.reborrow());
                softcap_in_place(team, tier, out, 3.0);
            },
            |a, _| 3.0 * (f64::from(a) / 3.0).tanh(),
            1e-6,
        );
    }

    #[test]
    fn a_clamp_keeps_what_is_inside() {
        for (min, max) in [(-2.5, 2.5), (0.0, 1.0), (-20.0, 20.0), (3.0, 3.0)] {
            check(
                |team, tier, a, _b, mut out| {
                    copy_rows(team, a, out.reborrow());
                    clamp_in_place(team, tier, out, min, max);
                },
                |a, _| f64::from(a).clamp(f64::from(min), f64::from(max)),
                0.0,
            );
        }
        // The bits of what no comparison tells apart, in whole vectors and in a tail.
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0, 0.5];
        let expected = [f32::NAN, 1.0, 0.0, -0.0, 0.0, 0.5];
        for tier in Tier::available() {
            let mut x = [special; 3];
            let x_rows = RowsMut::new(x.as_flattened_mut(), 1, 18);
            clamp_in_place(&Team::new(1), tier, x_rows, 0.0, 1.0);
            assert_eq!(x.map(|x| x.map(f32::to_bits)), [expected.map(f32::to_bits); 3], "{tier}");
        }
    }

    #[test]
    fn a_bias_reaches_every_row() {
        for tier in Tier::available() {
            let bias = values(5000, 3);
            let mut x = values(2 * 5000, 4);
            let expected: Vec<f32> =
                x.chunks(5000).flat_map(|r| r.iter().zip(&bias).map(|(x, b)| x + b)).collect();
            add_bias_in_place(&Team::new(2), tier, RowsMut::new(&mut x, 2, 5000), &bias);
            assert_eq!(x, expected);
        }
    }

    #[test]
    fn rows_are_gathered_by_id() {
        let x: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let mut out = vec![0.0; 9];
        let ids = [3, 0, 3];
        let out_rows = RowsMut::new(&mut out, 3, 3);
        gather_rows(&Team::new(1), Rows::new(&x, 4, 3), &ids, out_rows);
        assert_eq!(out, [9.0, 10.0, 11.0, 0.0, 1.0, 2.0, 9.0, 10.0, 11.0]);
    }
}
