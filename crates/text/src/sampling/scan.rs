//! What the sampler needs to know of a row of logits, without sorting it: the best
//! token, the best few, sums of weights, their spread.
//!
//! One pass finds the largest logit of every block of 64 tokens. What follows looks only into
//! blocks that can matter. Sums have one order, so a choice does not depend on the machine.

use std::cmp::Ordering;

use realizar_kernels_cpu::{
    LOGIT_BLOCK, LogitShares, ShareScale, Tier, logit_maxima, logit_sums, logit_weight,
};

use super::Error;

/// By descending value, then ascending id: a total order, so that ties break the same everywhere.
pub(super) fn best_first(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// `e^((logit - max) / temperature)`: how likely a token is, relative to the best.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weight {
    max: f32,
    scale: f32, // 1 / temperature
}

impl Weight {
    /// For logits of at most `max`. A temperature too small to be inverted counts as the
    /// smallest that is not.
    pub(super) fn new(max: f32, temperature: f32) -> Self {
        Self { max, scale: temperature.max(f32::MIN_POSITIVE).recip() }
    }

    /// The weight of a logit; 1 for the best.
    pub(super) fn of(self, logit: f32) -> f32 {
        logit_weight(logit, self.max, self.scale)
    }

    /// The weights as shares, which add up exactly.
    fn shares(self) -> LogitShares {
        LogitShares::new(self.max, self.share_scale())
    }

    /// What shares are made by, beside the largest logit.
    pub(super) fn share_scale(self) -> ShareScale {
        ShareScale::new(self.scale)
    }

    /// The logarithm of a logit's weight.
    fn log_of(self, logit: f32) -> f32 {
        (logit - self.max) * self.scale
    }

    /// A logit below which every weight is below `least`.
    fn logit_of(self, least: f64) -> f32 {
        // A little less, as both weights and logits are rounded.
        let exponent = least.ln() - 1e-3;
        (f64::from(self.max) + exponent / f64::from(self.scale)) as f32
    }
}

/// The largest logit of every block, and room for what is derived from it. One value
/// serves many rows, so that no token allocates once the room has grown.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    maxima: Vec<f32>, // [n_blocks]
    sums: Vec<u64>,   // [n_blocks], shares
    order: Vec<f32>,  // [n_blocks], maxima in another order
}

impl Blocks {
    /// Reads a row and returns its best token, the lowest id among equals, and its logit;
    /// `None` where every logit is minus infinity.
    ///
    /// Fails if a logit is NaN or plus infinity.
    pub(super) fn read(&mut self, logits: &[f32]) -> Result<Option<(u32, f32)>, Error> {
        self.maxima.resize(logits.len().div_ceil(LOGIT_BLOCK), 0.0);
        let any_nan = logit_maxima(Tier::detect(), logits, &mut self.maxima);
        let (mut best, mut max) = (0, f32::NEG_INFINITY);
        for (b, &block) in self.maxima.iter().enumerate() {
            if block > max {
                (best, max) = (b, block);
            }
        }
        if any_nan || max == f32::INFINITY {
            let unusable = logits.iter().position(|x| x.is_nan() || *x == f32::INFINITY);
            let id = unusable.unwrap_or(0);
            return Err(Error::Logit { id, value: logits[id] });
        }
        let first = best * LOGIT_BLOCK;
        let at = logits[first.min(logits.len())..].iter().position(|&x| x == max);
        let found = at.map(|i| ((first + i) as u32, max));
        Ok(found.filter(|_| max > f32::NEG_INFINITY))
    }

    /// Fills `kept` with the `k` best logits above minus infinity, best first.
    pub(super) fn top_k(&mut self, logits: &[f32], k: usize, kept: &mut Vec<(f32, u32)>) {
        kept.clear();
        if k == 0 {
            return;
        }
        // k blocks have a logit of at least the k-th largest maximum.
        let mut threshold = f32::NEG_INFINITY;
        if k <= self.maxima.len() {
            self.order.clone_from(&self.maxima);
            let (_, kth, _) = self.order.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
            threshold = kth.next_down();
        }
        // The buffer is cut back when it is full, which raises the threshold.
        let room = k.saturating_mul(2).max(256);
        for (b, block) in logits.chunks(LOGIT_BLOCK).enumerate() {
            if self.maxima[b] <= threshold {
                continue;
            }
            for (i, &logit) in block.iter().enumerate() {
                if logit > threshold {
                    kept.push((logit, (b * LOGIT_BLOCK + i) as u32));
                    if kept.len() == room {
                        kept.select_nth_unstable_by(k - 1, best_first);
                        kept.truncate(k);
                        threshold = kept[k - 1].0;
                    }
                }
            }
        }
        if kept.len() > k {
            kept.select_nth_unstable_by(k - 1, best_first);
            kept.truncate(k);
        }
        kept.sort_unstable_by(best_first);
    }

    /// The shares of all tokens together.
    pub(super) fn total(&mut self, logits: &[f32], weight: Weight) -> u64 {
        let Self { maxima, sums, .. } = self;
        sums.resize(maxima.len(), 0);
        logit_sums(Tier::detect(), logits, maxima, weight.shares(), sums);
        sums.iter().sum()
    }

    /// The weight of all tokens.
    #[cfg(test)]
    pub(super) fn sum(&mut self, logits: &[f32], weight: Weight) -> f64 {
        weight_of_shares(self.total(logits, weight))
    }

    /// The token at the place `draw`, in units of 2^-32, among the `total` of all shares, which was just
    /// computed, in order of id.
    pub(super) fn pick(
        &self,
        logits: &[f32],
        weight: Weight,
        (draw, total): (u32, u64),
    ) -> Option<u32> {
        let mut left = ((u128::from(total) * u128::from(draw)) >> 32) as u64;
        let mut is_here = |share: u64| {
            let is_here = share > left;
            left -= if is_here { 0 } else { share };
            is_here
        };
        let first = self.sums.iter().position(|&sum| is_here(sum))? * LOGIT_BLOCK;
        let shares = weight.shares();
        let at = logits[first..].iter().position(|&logit| is_here(shares.of(logit)));
        at.map(|at| (first + at) as u32)
    }

    /// The mean logarithm of the weights of all tokens, each counted by its weight; `total` is
    /// their sum.
    pub(super) fn mean_log(&self, logits: &[f32], weight: Weight, total: f64) -> f64 {
        let mut sum = 0.0;
        for (block, &block_max) in logits.chunks(LOGIT_BLOCK).zip(&self.maxima) {
            if weight.of(block_max) == 0.0 {
                continue;
            }
            for &logit in block {
                let w = weight.of(logit);
                // Where nothing is weighed, the logarithm may be minus infinity.
                sum += if w > 0.0 { f64::from(w * weight.log_of(logit)) } else { 0.0 };
            }
        }
        sum / total
    }

    /// Fills `kept` with the tokens of at least the weight `least`, in order of id.
    pub(super) fn keep_heavy(
        &self,
        logits: &[f32],
        weight: Weight,
        least: f64,
        kept: &mut Vec<(f32, u32)>,
    ) {
        self.keep(logits, weight, weight.logit_of(least), least, kept);
    }

    /// Fills `kept` with the tokens of at least the logit `threshold`, in order of id.
    pub(super) fn keep_above(
        &self,
        logits: &[f32],
        weight: Weight,
        threshold: f32,
        kept: &mut Vec<(f32, u32)>,
    ) {
        self.keep(logits, weight, threshold, 0.0, kept);
    }

    fn keep(
        &self,
        logits: &[f32],
        weight: Weight,
        threshold: f32,
        least: f64,
        kept: &mut Vec<(f32, u32)>,
    ) {
        kept.clear();
        for (b, block) in logits.chunks(LOGIT_BLOCK).enumerate() {
            if self.maxima[b] < threshold {
                continue;
            }
            // Every token is written, and the next one over it where it does not count: that
            // is faster than a branch on it.
            let (mut found, mut n_found) = ([(0.0, 0); LOGIT_BLOCK], 0);
            for (&logit, id) in block.iter().zip((b * LOGIT_BLOCK) as u32..) {
                found[n_found.min(LOGIT_BLOCK - 1)] = (logit, id);
                n_found += usize::from(logit >= threshold);
            }
            let found = found[..n_found].iter().map(|&(logit, id)| (weight.of(logit), id));
            kept.extend(found.filter(|(weight, _)| f64::from(*weight) >= least));
        }
    }
}

/// The least logit that is within `n` standard deviations of the largest, `max`. Tokens of minus
/// infinity do not count.
///
/// This is the bound of top-nσ (Tang et al. 2024, "Top-nσ: Not All Logits Are You Need"). As the
/// deviation grows with the logits, a temperature does not change which tokens are within it.
pub(super) fn sigma_bound(logits: &[f32], max: f32, n: f32) -> f32 {
    // Sums side by side, as one alone would wait for every addition. Differences from the maximum
    // are small enough for the sum of their squares.
    const N_SUMS: usize = 8;
    let (mut count, mut sum, mut squares) = ([0_u32; N_SUMS], [0.0; N_SUMS], [0.0; N_SUMS]);
    for chunk in logits.chunks(N_SUMS) {
        for (i, &logit) in chunk.iter().enumerate() {
            let counts = logit > f32::NEG_INFINITY;
            let below = if counts { f64::from(max) - f64::from(logit) } else { 0.0 };
            count[i] += u32::from(counts);
            sum[i] += below;
            squares[i] += below * below;
        }
    }
    let count = f64::from(count.iter().sum::<u32>());
    let (sum, squares): (f64, f64) = (sum.iter().sum(), squares.iter().sum());
    let variance = (squares / count - (sum / count).powi(2)).max(0.0);
    let bound = f64::from(max) - f64::from(n) * variance.sqrt();
    let rounded = bound as f32;
    if f64::from(rounded) < bound { rounded.next_up() } else { rounded }
}

/// A sum of shares as a weight.
pub(super) fn weight_of_shares(total: u64) -> f64 {
    total as f64 / LogitShares::ONE as f64
}

/// The token at which the sum of the weights, in the order given, exceeds `goal`; else the
/// last that has a weight.
pub(super) fn pick(weights: impl Iterator<Item = (f32, u32)>, goal: f64) -> Option<u32> {
    let mut sum = 0.0_f64;
    let mut last = None;
    for (weight, id) in weights {
        if weight > 0.0 {
            sum += f64::from(weight);
            last = Some(id);
            if sum > goal {
                break;
            }
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(logits: &[f32]) -> Vec<(f32, u32)> {
        let mut all: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
        all.sort_by(best_first);
        all
    }

    #[test]
    fn the_best_token_is_the_first_of_the_largest() {
        let check = |logits: &[f32], want: Option<(u32, f32)>| {
            assert_eq!(Blocks::default().read(logits), Ok(want));
        };
        check(&[], None);
        check(&[f32::NEG_INFINITY; 100], None);
        check(&[f32::NEG_INFINITY, -5.0, -5.0], Some((1, -5.0)));
        for (n, at) in [(1, 0), (64, 63), (65, 64), (300, 129)] {
            let mut logits = vec![-1.0; n];
            logits[at] = 2.0;
            check(&logits, Some((at as u32, 2.0)));
            logits.push(2.0);
            check(&logits, Some((at as u32, 2.0)));
        }
        for bad in [f32::NAN, f32::INFINITY] {
            let mut logits = vec![0.0; 200];
            (logits[150], logits[151]) = (bad, f32::NAN);
            let error = Blocks::default().read(&logits);
            assert!(matches!(error, Err(Error::Logit { id: 150, .. })));
        }
    }

    #[test]
    fn top_k_of_a_large_vocabulary_keeps_the_lowest_ids_among_equals() {
        let logits: Vec<f32> = (0..5000).map(|i| ((i * 7919) % 1000) as f32).collect();
        let want = sorted(&logits);
        let (mut blocks, mut kept) = (Blocks::default(), Vec::new());
        blocks.read(&logits).unwrap();
        for k in [1, 3, 78, 79, 80, 300, 4999, 6000] {
            blocks.top_k(&logits, k, &mut kept);
            assert_eq!(kept, want[..k.min(5000)], "k = {k}");
        }
        let few = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, 1.0];
        blocks.read(&few).unwrap();
        blocks.top_k(&few, 3, &mut kept);
        assert_eq!(kept, [(1.0, 1), (1.0, 3)]);
    }

    #[test]
    fn sums_match_f64() {
        for n in [1, 63, 64, 5000] {
            let logits: Vec<f32> = (0..n).map(|i| ((i * 7919) % 997) as f32 / 9.0).collect();
            let mut blocks = Blocks::default();
            let (_, max) = blocks.read(&logits).unwrap().unwrap();
            let sum = blocks.sum(&logits, Weight::new(max, 0.7));
            let weight = |x: f32| ((f64::from(x) - f64::from(max)) / 0.7).exp();
            let want: f64 = logits.iter().map(|&x| weight(x)).sum();
            assert!((sum - want).abs() < 4e-6 * want, "{sum} for {want}");
        }
    }

    #[test]
    fn the_bound_of_sigmas_is_that_of_the_finite_logits() {
        let check = |logits: &[f32], n: f32, want: f32| {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let got = sigma_bound(logits, max, n);
            assert!((got - want).abs() < 1e-5, "{got} for {n} of {logits:?}");
            assert!(got <= max);
        };
        // The mean is 5, the deviation 2.
        let logits = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        check(&logits, 1.0, 7.0);
        check(&logits, 2.5, 4.0);
        check(&[&logits[..], &[f32::NEG_INFINITY; 9][..]].concat(), 1.0, 7.0);
        check(&[3.0; 20], 1.0, 3.0);
        check(&[-7.0], 3.0, -7.0);
    }

    #[test]
    fn the_mean_logarithm_is_the_entropy_less_that_of_the_sum() {
        for temperature in [0.05, 1.0, 3.0] {
            let mut logits: Vec<f32> = (0..500).map(|i| ((i * 7919) % 997) as f32 / 50.0).collect();
            logits.push(f32::NEG_INFINITY);
            let mut blocks = Blocks::default();
            let (_, max) = blocks.read(&logits).unwrap().unwrap();
            let weight = Weight::new(max, temperature);
            let total = blocks.sum(&logits, weight);
            let got = blocks.mean_log(&logits, weight, total);
            let logs = logits[..500].iter().map(|&x| f64::from((x - max) / temperature));
            let sum: f64 = logs.clone().map(f64::exp).sum();
            let want: f64 = logs.map(|x| x * x.exp() / sum).sum();
            assert!((got - want).abs() < 1e-5 * want.abs().max(1.0), "{got} for {want}");
        }
    }
}
