//! The softmax of attention: from scores to weights, with the soft cap and ALiBi.
//!
//! Scores are kept as base-2 logarithms, so a weight is `2^(score - max)`. The scale of the queries
//! includes the factor `log2(e)`.

use std::ops::Range;

use crate::lanes::Lanes;

/// `exp2` is zero up to here.
const EXP2_LO: f32 = -127.0;
/// (2^r - 1) / r on |r| <= 1/2, highest degree first; the relative error of 2^r is minimal, 2e-9.
const EXP2_POLY: [f32; 6] =
    [1.535_336_2e-4, 1.339_887_5e-3, 9.618_437e-3, 5.550_332_4e-2, 2.402_264_8e-1, 6.931_472e-1];
/// Below this magnitude `tanh` is an odd polynomial.
const TANH_SPLIT: f32 = 0.625;
/// (tanh x - x) / x³ as a polynomial in x², highest degree first (Cephes `tanhf`).
const TANH_POLY: [f32; 5] =
    [-5.704_989e-3, 2.063_908_8e-2, -5.373_971_5e-2, 1.333_144_2e-1, -3.333_328e-1];

/// `2^x` for `x <= 0` within 2 ULP; zero where the result would be subnormal.
#[inline(always)]
pub(super) fn exp2<L: Lanes>(l: L, x: L::W) -> L::W {
    // For NaN the maximum is the second operand, so NaN propagates.
    let x = l.max16(l.splat16(EXP2_LO), x);
    let n = l.round16(x);
    let r = l.sub16(x, n);
    let mut p = l.splat16(EXP2_POLY[0]);
    for c in &EXP2_POLY[1..] {
        p = l.fma16(p, r, l.splat16(*c));
    }
    l.mul16(l.fma16(p, r, l.splat16(1.0)), l.pow2_16(n))
}

/// [`exp2`] of one value.
#[inline(always)]
pub(super) fn exp2_of<L: Lanes>(l: L, x: f32) -> f32 {
    let mut lanes = [0.0; 16];
    l.store16(exp2(l, l.splat16(x)), &mut lanes);
    lanes[0]
}

/// The hyperbolic tangent, within 4 ULP.
#[inline(always)]
fn tanh<L: Lanes>(l: L, x: L::W) -> L::W {
    let one = l.splat16(1.0);
    let a = l.copysign16(x, one);
    let z = l.mul16(x, x);
    let mut p = l.splat16(TANH_POLY[0]);
    for c in &TANH_POLY[1..] {
        p = l.fma16(p, z, l.splat16(*c));
    }
    let near = l.fma16(l.mul16(p, z), x, x);
    // (1 - e) / (1 + e) with e = exp(-2 |x|).
    let e = exp2(l, l.mul16(a, l.splat16(-2.0 * std::f32::consts::LOG2_E)));
    let far = l.copysign16(l.div16(l.sub16(one, e), l.add16(one, e)), x);
    l.select_less16(a, l.splat16(TANH_SPLIT), near, far)
}

/// The conversion of dot products to base-2 scores.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScoreScale {
    /// Factor that queries are multiplied by.
    pub(super) q: f32,
    /// Soft cap; with it, scaled dot products are natural logarithms until they are capped.
    cap: Option<f32>,
}

impl ScoreScale {
    pub(super) fn new(scale: f32, softcap: Option<f32>) -> Self {
        match softcap {
            Some(cap) => Self { q: scale, cap: Some(cap) },
            None => Self { q: scale * std::f32::consts::LOG2_E, cap: None },
        }
    }
}

/// ALiBi (arXiv:2108.12409) of some queries over consecutive keys: a score gets the head's slope times
/// the key's position relative to the query's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alibi<'a> {
    slopes: &'a [f32], // [group], of natural logarithms
    first: i64,        // position of the first key, less that of the first query
}

impl<'a> Alibi<'a> {
    pub(super) fn new(slopes: &'a [f32], first_key: usize, first_query: usize) -> Self {
        Self { slopes, first: first_key as i64 - first_query as i64 }
    }

    /// ALiBi of one query. Queries are ordered by position, then slope.
    pub(super) fn of(&self, query: usize) -> Slope {
        let group = self.slopes.len();
        // Exact, because positions are below 2^24.
        let first = (self.first - (query / group) as i64) as f32;
        Slope { per_key: self.slopes[query % group] * std::f32::consts::LOG2_E, first }
    }
}

/// ALiBi of one query.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slope {
    per_key: f32,
    /// Position of the first key relative to the query's.
    first: f32,
}

/// The running softmax of one query.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    /// The largest score so far.
    pub(super) max: f32,
    /// The sum of the weights, relative to `max`.
    pub(super) sum: f32,
}

impl Running {
    /// The state before any key. A sink, given as a natural logarithm, counts as a key without a value.
    pub(super) fn new(sink: Option<f32>) -> Self {
        match sink {
            Some(sink) => Self { max: sink * std::f32::consts::LOG2_E, sum: 1.0 },
            None => Self { max: f32::NEG_INFINITY, sum: 0.0 },
        }
    }

    /// Turns the scores of the keys in `seen` into weights, and adds these to the sum. If the maximum grew,
    /// returns the factor that rescales earlier results. Weights outside `seen` in the same vectors of
    /// sixteen become zero.
    #[inline(always)]
    pub(super) fn add<L: Lanes>(
        &mut self,
        l: L,
        scores: &mut [f32], // [n_keys], a multiple of 16
        seen: &Range<usize>,
        scale: ScoreScale,
        slope: Option<Slope>,
    ) -> Option<f32> {
        let factor = self.meet(l, scores, seen, scale, slope);
        self.weigh(l, scores, seen);
        factor
    }

    /// The first half of [`Self::add`]: converts the scores to base-2 logarithms, minus infinity outside
    /// `seen`, and updates the maximum.
    #[inline(always)]
    pub(super) fn meet<L: Lanes>(
        &mut self,
        l: L,
        scores: &mut [f32],
        seen: &Range<usize>,
        scale: ScoreScale,
        slope: Option<Slope>,
    ) -> Option<f32> {
        let first = seen.start / 16;
        let scores = &mut scores.as_chunks_mut::<16>().0[first..seen.end.div_ceil(16)];
        if let Some(cap) = scale.cap {
            let (inv, factor) = (l.splat16(1.0 / cap), l.splat16(cap * std::f32::consts::LOG2_E));
            for s in scores.iter_mut() {
                l.store16(l.mul16(factor, tanh(l, l.mul16(l.load16(s), inv))), s);
            }
        }
        if let Some(Slope { per_key, first: first_key }) = slope {
            let per_key = l.splat16(per_key);
            let lanes = l.load16(&std::array::from_fn(|lane| lane as f32));
            for (i, s) in scores.iter_mut().enumerate() {
                let at = l.add16(lanes, l.splat16(first_key + (16 * (first + i)) as f32));
                l.store16(l.fma16(per_key, at, l.load16(s)), s);
            }
        }
        let n = scores.len();
        for i in [0, n - 1] {
            let at = 16 * (first + i);
            if at < seen.start || seen.end < at + 16 {
                let kept = l.keep16(l.load16(&scores[i]), at, seen, f32::NEG_INFINITY);
                l.store16(kept, &mut scores[i]);
            }
        }
        let mut max = l.splat16(f32::NEG_INFINITY);
        for s in scores.iter() {
            max = l.max16(max, l.load16(s));
        }
        let max = l.max_lane16(max);
        if max > self.max {
            let factor = exp2_of(l, self.max - max);
            *self = Self { max, sum: self.sum * factor };
            return Some(factor);
        }
        None
    }

    /// The second half of [`Self::add`]: converts the logarithms to weights and sums them in sixteen lanes.
    #[inline(always)]
    pub(super) fn weigh<L: Lanes>(&mut self, l: L, scores: &mut [f32], seen: &Range<usize>) {
        let vectors = seen.start / 16..seen.end.div_ceil(16);
        let scores = &mut scores.as_chunks_mut::<16>().0[vectors];
        if self.max == f32::NEG_INFINITY {
            // All scores so far are minus infinity, so all weights are zero.
            scores.as_flattened_mut().fill(0.0);
            return;
        }
        let max = l.splat16(self.max);
        let mut sum = l.splat16(0.0);
        for s in scores.iter_mut() {
            let weights = exp2(l, l.sub16(l.load16(s), max));
            sum = l.add16(sum, weights);
            l.store16(weights, s);
        }
        let [low, high] = l.halves(sum);
        self.sum += l.sum(l.add(low, high));
    }
}
