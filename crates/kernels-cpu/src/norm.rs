//! RMS and layer normalization of float rows, with float or 8-bit results.
//!
//! Sums run over eight f32 lanes in an order that depends on the length alone, and the lanes are added
//! in f64, so a row's result depends on that row only.

use crate::elementwise::row_grain;
#[cfg(target_arch = "x86_64")]
use crate::lanes;
use crate::quantize::{BLOCK_LEN, QuantizedRowMut};
use crate::{QuantizedRows, Rows, RowsMut, Team, Tier};

/// A normalization of each run of `group` columns of a row: the whole row, or `head_dim` columns to
/// normalize each head.
#[derive(Clone, Copy, Debug)]
pub enum Norm<'a> {
    /// `x / sqrt(mean(x²) + eps) * weight` (arXiv:1910.07467).
    Rms {
        /// Columns per run.
        group: usize,
        /// Factors, for the columns of a run, or for all columns of a row.
        weight: Option<&'a [f32]>, // [group] or [n_cols]
        /// Added to the mean square.
        eps: f32,
    },
    /// `(x - mean) / sqrt(variance + eps) * weight + bias` (arXiv:1607.06450).
    Layer {
        /// Columns per run.
        group: usize,
        /// Factors, for the columns of a run, or for all columns of a row.
        weight: Option<&'a [f32]>, // [group] or [n_cols]
        /// Summands, for the columns of a run, or for all columns of a row.
        bias: Option<&'a [f32]>, // [group] or [n_cols]
        /// Added to the variance.
        eps: f32,
    },
}

impl<'a> Norm<'a> {
    /// Columns per run.
    fn group(&self) -> usize {
        match *self {
            Self::Rms { group, .. } | Self::Layer { group, .. } => group,
        }
    }

    /// The affine map of the elements of run `g`.
    fn affine(&self, tier: Tier, x: &[f32], g: usize) -> Affine<'a> {
        let n = x.len() as f64;
        let of_run = |vector: &'a [f32]| match vector.len() == x.len() {
            true => vector,
            false => &vector[g * x.len()..][..x.len()],
        };
        match *self {
            Self::Rms { weight, eps, .. } => {
                let mean_square = reduce(tier, Reduction::Squares(0.0), x) / n;
                Affine {
                    mean: 0.0,
                    scale: inverse_root(mean_square, eps),
                    weight: weight.map(of_run),
                    bias: None,
                }
            }
            Self::Layer { weight, bias, eps, .. } => {
                let mean = (reduce(tier, Reduction::Sum, x) / n) as f32;
                let variance = reduce(tier, Reduction::Squares(mean), x) / n;
                let (weight, bias) = (weight.map(of_run), bias.map(of_run));
                Affine { mean, scale: inverse_root(variance, eps), weight, bias }
            }
        }
    }

    fn assert_fits(&self, n_cols: usize) {
        let (group, weight, bias) = match *self {
            Self::Rms { group, weight, .. } => (group, weight, None),
            Self::Layer { group, weight, bias, .. } => (group, weight, bias),
        };
        let fits = group > 0 && n_cols.is_multiple_of(group);
        assert!(fits, "{n_cols} columns are not whole groups of {group}");
        let fits = |v: &[f32]| v.len() == group || v.len() == n_cols;
        assert!(weight.is_none_or(fits), "the norm's weight has {group} factors for each run");
        assert!(bias.is_none_or(fits), "the norm's bias has {group} terms for each run");
    }
}

/// Normalizes each row of `x` into `out`.
///
/// # Panics
/// If the shapes disagree or the columns are not whole groups.
pub fn norm(
    team: &Team,
    tier: Tier,
    norm: &Norm<'_>,
    x: Rows<'_>,      // [n_rows, n_cols]
    out: RowsMut<'_>, // [n_rows, n_cols]
) {
    let shape = (out.n_rows(), out.n_cols());
    assert_eq!((x.n_rows(), x.n_cols()), shape, "shapes of operand and result");
    norm.assert_fits(x.n_cols());
    let grain = row_grain(x.n_cols());
    team.for_each_row_mut(out, grain, |i, out, _thread| norm_row(tier, norm, x.row(i), out));
}

/// Normalizes each row of `x` in place, with the same bits as [`norm`].
///
/// # Panics
/// If the columns are not whole groups.
pub fn norm_in_place(
    team: &Team,
    tier: Tier,
    norm: &Norm<'_>,
    x: RowsMut<'_>, // [n_rows, n_cols]
) {
    norm.assert_fits(x.n_cols());
    let grain = row_grain(x.n_cols());
    team.for_each_row_mut(x, grain, |_i, x, _thread| norm_row_in_place(tier, norm, x));
}

/// Normalizes and quantizes the rows of `x` that have one plane in `out`, which the caller has
/// [arranged](QuantizedRows::arrange). The bytes are those of [`norm`] followed by
/// [`QuantizedRows::quantize`].
///
/// # Panics
/// If the columns are not whole groups, or the groups not whole blocks of 32, or `out` is arranged for
/// another shape.
pub fn norm_quantize(
    team: &Team,
    tier: Tier,
    norm: &Norm<'_>,
    x: Rows<'_>, // [n_rows, n_cols]
    out: &mut QuantizedRows,
) {
    norm.assert_fits(x.n_cols());
    let group = norm.group();
    assert!(group.is_multiple_of(BLOCK_LEN), "groups of {group} are not blocks of 32");
    out.assert_arranged(x);
    out.fill(team, |i, mut out| {
        for (g, x) in x.row(i).chunks_exact(group).enumerate() {
            norm.affine(tier, x, g).quantize(tier, x, &mut out, g * group / BLOCK_LEN);
        }
    });
}

/// Normalizes one row.
///
/// # Panics
/// If the lengths disagree.
pub fn norm_row(
    tier: Tier,
    norm: &Norm<'_>,
    x: &[f32],       // [n_cols]
    out: &mut [f32], // [n_cols]
) {
    norm.assert_fits(x.len());
    assert_eq!(x.len(), out.len(), "lengths of a norm");
    let group = norm.group();
    let runs = x.chunks_exact(group).zip(out.chunks_exact_mut(group));
    for (g, (x, out)) in runs.enumerate() {
        norm.affine(tier, x, g).apply(tier, x, out);
    }
}

/// Normalizes one row in place, with the same bits as [`norm_row`].
///
/// # Panics
/// If the lengths disagree.
pub fn norm_row_in_place(
    tier: Tier,
    norm: &Norm<'_>,
    x: &mut [f32], // [n_cols]
) {
    norm.assert_fits(x.len());
    for (g, x) in x.chunks_exact_mut(norm.group()).enumerate() {
        norm.affine(tier, x, g).apply_in_place(tier, x);
    }
}

fn inverse_root(mean: f64, eps: f32) -> f32 {
    (1.0 / (mean + f64::from(eps)).sqrt()) as f32
}

/// A sum over a row.
#[derive(Clone, Copy)]
enum Reduction {
    /// The elements.
    Sum,
    /// The squares of the distances from a value.
    Squares(f32),
}

fn reduce(tier: Tier, what: Reduction, x: &[f32]) -> f64 {
    match tier.avx2() {
        None => match what {
            Reduction::Sum => x.iter().map(|&x| f64::from(x)).sum(),
            Reduction::Squares(mean) => x.iter().map(|&x| f64::from(x - mean).powi(2)).sum(),
        },
        #[cfg(target_arch = "x86_64")]
        Some(_) => lanes::dispatch(tier, vector::Reduce { what, x }),
    }
}

/// The sum of the squares.
pub(crate) fn sum_of_squares(tier: Tier, x: &[f32]) -> f64 {
    reduce(tier, Reduction::Squares(0.0), x)
}

/// `(x - mean) * scale * weight + bias`.
#[derive(Clone, Copy)]
struct Affine<'a> {
    mean: f32,
    scale: f32,
    weight: Option<&'a [f32]>, // [group]
    bias: Option<&'a [f32]>,   // [group]
}

impl Affine<'_> {
    fn apply(&self, tier: Tier, x: &[f32], out: &mut [f32]) {
        match tier.avx2() {
            None => {
                out.iter_mut().zip(x).for_each(|(out, x)| *out = (x - self.mean) * self.scale);
                self.weigh(out);
            }
            #[cfg(target_arch = "x86_64")]
            Some(_) => lanes::dispatch(tier, vector::Apply { affine: self, x, out }),
        }
    }

    fn apply_in_place(&self, tier: Tier, x: &mut [f32]) {
        match tier.avx2() {
            None => {
                x.iter_mut().for_each(|x| *x = (*x - self.mean) * self.scale);
                self.weigh(x);
            }
            #[cfg(target_arch = "x86_64")]
            Some(_) => lanes::dispatch(tier, vector::ApplyInPlace { affine: self, x }),
        }
    }

    /// Applies the map to a run, and quantizes the result to the blocks from `first` on.
    fn quantize(&self, tier: Tier, x: &[f32], out: &mut QuantizedRowMut<'_>, first: usize) {
        out.produce(tier, first, x.len(), |cols, out| {
            let weight = self.weight.map(|w| &w[cols.clone()]);
            let bias = self.bias.map(|b| &b[cols.clone()]);
            Affine { weight, bias, ..*self }.apply(tier, &x[cols], out);
        });
    }

    /// Applies weight and bias in plain Rust.
    fn weigh(&self, x: &mut [f32]) {
        if let Some(weight) = self.weight {
            x.iter_mut().zip(weight).for_each(|(x, w)| *x *= w);
        }
        if let Some(bias) = self.bias {
            x.iter_mut().zip(bias).for_each(|(x, b)| *x += b);
        }
    }
}

/// Vector twins of the scalar loops.
#[cfg(target_arch = "x86_64")]
mod vector {
    use super::{Affine, Reduction};
    use crate::lanes::{Kernel, Lanes, load_from, store_to};

    /// Sums a row in four accumulators of eight lanes.
    pub(super) struct Reduce<'a> {
        pub(super) what: Reduction,
        pub(super) x: &'a [f32],
    }

    impl Kernel for Reduce<'_> {
        type Output = f64;

        #[inline(always)]
        fn run<L: Lanes>(self, l: L) -> f64 {
            let (mean, squares) = match self.what {
                Reduction::Sum => (0.0, false),
                Reduction::Squares(mean) => (mean, true),
            };
            let mean16 = l.splat16(mean);
            let mut sums = [l.splat16(0.0); 2];
            macro_rules! add {
                ($x32:expr) => {
                    for (sum, x16) in sums.iter_mut().zip($x32.as_chunks::<16>().0) {
                        let x = l.load16(x16);
                        *sum = if squares {
                            let d = l.sub16(x, mean16);
                            l.fma16(d, d, *sum)
                        } else {
                            l.add16(*sum, x)
                        };
                    }
                };
            }
            let (whole, tail) = self.x.as_chunks::<32>();
            for x32 in whole {
                add!(x32);
            }
            if !tail.is_empty() {
                let mut padded = [mean; 32];
                padded[..tail.len()].copy_from_slice(tail);
                add!(padded);
            }
            let mut total = [0.0_f64; 4];
            for sum in sums {
                let mut lanes = [0.0; 16];
                l.store16(sum, &mut lanes);
                for eight in lanes.as_chunks::<8>().0 {
                    for (i, total) in total.iter_mut().enumerate() {
                        *total += f64::from(eight[i]) + f64::from(eight[i + 4]);
                    }
                }
            }
            (total[0] + total[2]) + (total[1] + total[3])
        }
    }

    /// Applies an affine map to a run.
    pub(super) struct Apply<'a> {
        pub(super) affine: &'a Affine<'a>,
        pub(super) x: &'a [f32],
        pub(super) out: &'a mut [f32], // as long as x
    }

    impl Kernel for Apply<'_> {
        type Output = ();

        #[inline(always)]
        fn run<L: Lanes>(self, l: L) {
            let Self { affine, x, out } = self;
            let mut done = 0;
            if let (Some(weight), None) = (affine.weight, affine.bias) {
                // The usual case, with weights and without biases, needs no checks inside the loop.
                let (mean, scale) = (l.splat16(affine.mean), l.splat16(affine.scale));
                let chunks = x.as_chunks::<16>().0.iter().zip(weight.as_chunks::<16>().0);
                for ((x, w), out) in chunks.zip(out.as_chunks_mut::<16>().0) {
                    let y = l.mul16(l.sub16(l.load16(x), mean), scale);
                    l.store16(l.mul16(y, l.load16(w)), out);
                }
                done = x.len() / 16 * 16;
            }
            for at in (done..out.len()).step_by(16) {
                let y = apply_at(l, affine, load_from(l, x, at), at);
                store_to(l, y, out, at);
            }
        }
    }

    /// [`Apply`] in place.
    pub(super) struct ApplyInPlace<'a> {
        pub(super) affine: &'a Affine<'a>,
        pub(super) x: &'a mut [f32],
    }

    impl Kernel for ApplyInPlace<'_> {
        type Output = ();

        #[inline(always)]
        fn run<L: Lanes>(self, l: L) {
            for at in (0..self.x.len()).step_by(16) {
                let y = apply_at(l, self.affine, load_from(l, self.x, at), at);
                store_to(l, y, self.x, at);
            }
        }
    }

    /// The affine map of the elements from column `at` on.
    #[inline(always)]
    fn apply_at<L: Lanes>(l: L, affine: &Affine<'_>, x: L::W, at: usize) -> L::W {
        let mut y = l.mul16(l.sub16(x, l.splat16(affine.mean)), l.splat16(affine.scale));
        if let Some(weight) = affine.weight {
            y = l.mul16(y, load_from(l, weight, at));
        }
        if let Some(bias) = affine.bias {
            y = l.add16(y, load_from(l, bias, at));
        }
        y
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize, seed: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 7919 + seed * 104_729) % 4001) as f32 / 500.0 - 3.0).collect()
    }

    /// One run by the definition, in f64.
    fn expected(norm: &Norm<'_>, x: &[f32]) -> Vec<f64> {
        let (mean_of_row, weight, bias, eps) = match *norm {
            Norm::Rms { weight, eps, .. } => (false, weight, None, eps),
            Norm::Layer { weight, bias, eps, .. } => (true, weight, bias, eps),
        };
        let n = x.len() as f64;
        let x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        let mean = if mean_of_row { x.iter().sum::<f64>() / n } else { 0.0 };
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let scale = 1.0 / (variance + f64::from(eps)).sqrt();
        let at = |v: Option<&[f32]>, i: usize, default| v.map_or(default, |v| f64::from(v[i]));
        x.iter()
            .enumerate()
            .map(|(i, x)| (x - mean) * scale * at(weight, i, 1.0) + at(bias, i, 0.0))
            .collect()
    }

    #[test]
    fn norms_match_f64() {
        let team = Team::new(2);
        for tier in Tier::available() {
            for (n_rows, group, n_groups) in
                [(1, 1, 1), (3, 5, 1), (4, 64, 9), (2, 576, 1), (2, 80, 3), (9, 2051, 1)]
            {
                let n_cols = group * n_groups;
                let x = values(n_rows * n_cols, 1);
                let x = Rows::new(&x, n_rows, n_cols);
                let (weight, bias) = (values(group, 2), values(group, 3));
                for (weight, bias, layer) in [
                    (Some(&weight[..]), None, false),
                    (None, None, false),
                    (Some(&weight[..]), Some(&bias[..]), true),
                    (Some(&weight[..]), None, true),
                    (None, None, true),
                ] {
                    let eps = 1e-5;
                    let mut out = vec![0.0; n_rows * n_cols];
                    let out_rows = RowsMut::new(&mut out, n_rows, n_cols);
                    let kind = if layer {
                        Norm::Layer { group, weight, bias, eps }
                    } else {
                        Norm::Rms { group, weight, eps }
                    };
                    norm(&team, tier, &kind, x, out_rows);
                    for i in 0..n_rows {
                        let out = &out[i * n_cols..][..n_cols];
                        for (x, out) in x.row(i).chunks(group).zip(out.chunks(group)) {
                            for (e, &out) in expected(&kind, x).iter().zip(out) {
                                let error = (f64::from(out) - e).abs();
                                assert!(error < 4e-6, "{tier} {kind:?}: {out} for {e}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn runs_may_have_vectors_of_their_own() {
        let (group, n_groups) = (37, 3);
        let n_cols = group * n_groups;
        let (x, weight, bias) = (values(n_cols, 1), values(n_cols, 2), values(n_cols, 3));
        for tier in Tier::available() {
            let (mut whole, mut in_place, mut apart) = (vec![0.0; n_cols], x.clone(), Vec::new());
            let eps = 1e-5;
            let all = Norm::Layer { group, weight: Some(&weight), bias: Some(&bias), eps };
            norm_row(tier, &all, &x, &mut whole);
            norm_row_in_place(tier, &all, &mut in_place);
            for g in 0..n_groups {
                let run = g * group..(g + 1) * group;
                let (weight, bias) = (Some(&weight[run.clone()]), Some(&bias[run.clone()]));
                let mut out = vec![0.0; group];
                norm_row(tier, &Norm::Layer { group, weight, bias, eps }, &x[run], &mut out);
                apart.extend(out);
            }
            assert_eq!(whole, apart, "{tier}");
            assert_eq!(in_place, apart, "{tier} in place");
        }
    }

    #[test]
    fn quantized_norms_have_the_bytes_of_the_two_steps() {
        let team = Team::new(2);
        for (n_rows, group, n_groups) in [(1, 576, 1), (3, 64, 9), (20, 1056, 1), (2, 32, 1)] {
            let n_cols = group * n_groups;
            let x = values(n_rows * n_cols, 1);
            let x = Rows::new(&x, n_rows, n_cols);
            let (w, b) = (values(group, 2), values(group, 3));
            let (w, b, eps) = (Some(&w[..]), Some(&b[..]), 1e-5);
            for tier in Tier::available() {
                for kind in [
                    Norm::Rms { group, weight: w, eps },
                    Norm::Rms { group, weight: None, eps },
                    Norm::Layer { group, weight: w, bias: b, eps },
                    Norm::Layer { group, weight: w, bias: None, eps },
                ] {
                    let mut y = vec![0.0; n_rows * n_cols];
                    norm(&team, tier, &kind, x, RowsMut::new(&mut y, n_rows, n_cols));
                    let mut apart = QuantizedRows::with_capacity(n_rows, n_cols);
                    apart.quantize(&team, tier, Rows::new(&y, n_rows, n_cols));
                    let mut fused = QuantizedRows::with_capacity(n_rows, n_cols);
                    fused.arrange(n_rows, n_cols, &[]);
                    norm_quantize(&team, tier, &kind, x, &mut fused);
                    fused.assert_same_bytes(&apart);
                }
            }
        }
    }

    #[test]
    fn in_place_gives_the_same_bits_on_any_team() {
        let (n_rows, group, n_cols) = (33, 80, 240);
        let x = values(n_rows * n_cols, 5);
        let weight = values(group, 6);
        for tier in Tier::available() {
            let mut out = vec![0.0; x.len()];
            let x_rows = Rows::new(&x, n_rows, n_cols);
            let out_rows = RowsMut::new(&mut out, n_rows, n_cols);
            let rms = Norm::Rms { group, weight: Some(&weight), eps: 1e-6 };
            norm(&Team::new(1), tier, &rms, x_rows, out_rows);
            for n_threads in [1, 2, 3] {
                let mut y = x.clone();
                let y_rows = RowsMut::new(&mut y, n_rows, n_cols);
                norm_in_place(&Team::new(n_threads), tier, &rms, y_rows);
                assert_eq!(y, out);
            }
        }
    }
}
