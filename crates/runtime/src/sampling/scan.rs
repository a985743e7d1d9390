//! What the sampler needs to know of a row of logits, without sorting it: the best
//! token, the best few, sums of weights.
//!
//! One pass finds the largest logit of every block of [`BLOCK_LEN`] tokens. What
//! follows looks only into blocks that can matter. Loops run over sixteen lanes of plain
//! Rust, which compilers turn into vectors on any processor, and sums have one order,
//! so a choice does not depend on the machine.

use std::cmp::Ordering;

use realizar_kernels_cpu::math::exp;

use super::Error;

/// Tokens of a block.
pub(super) const BLOCK_LEN: usize = 64;
const N_LANES: usize = 16;

/// Below this `exp` is zero.
const EXP_LO: f32 = -104.0;

/// Bounds from a block's largest logit are loosened by this share, as weights are rounded.
const SLACK: f64 = 1.0 - 1e-5;

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

    /// The exponent.
    #[inline]
    fn exponent(self, logit: f32) -> f32 {
        (logit - self.max) * self.scale
    }

    /// The weight of a logit; 1 for the best.
    #[inline]
    pub(super) fn of(self, logit: f32) -> f32 {
        exp(self.exponent(logit))
    }
}

/// The largest logit of every block, and room for what is derived from it. One value
/// serves many rows, so that no token allocates once the room has grown.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    maxima: Vec<f32>, // [n_blocks]
    sums: Vec<f32>,   // [n_blocks], weights
    order: Vec<f32>,  // [n_blocks], maxima in another order
}

/// The blocks of a row, the last padded with minus infinity.
fn for_each_block(logits: &[f32], mut f: impl FnMut(&[f32; BLOCK_LEN])) {
    let (whole, tail) = logits.as_chunks::<BLOCK_LEN>();
    whole.iter().for_each(&mut f);
    if !tail.is_empty() {
        let mut padded = [f32::NEG_INFINITY; BLOCK_LEN];
        padded[..tail.len()].copy_from_slice(tail);
        f(&padded);
    }
}

/// The larger one. Unlike [`f32::max`] it is one instruction; NaN is never the larger one.
#[inline]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// The largest value of a block, and whether it has a NaN.
#[inline]
fn block_max(block: &[f32; BLOCK_LEN]) -> (f32, bool) {
    let mut max = [f32::NEG_INFINITY; N_LANES];
    let mut nan = [0_u32; N_LANES];
    for x in block.as_chunks::<N_LANES>().0 {
        for i in 0..N_LANES {
            max[i] = larger(x[i], max[i]);
            nan[i] |= u32::from(x[i].is_nan());
        }
    }
    (max.into_iter().fold(f32::NEG_INFINITY, larger), nan != [0; N_LANES])
}

/// The sum of a block's weights, of four at a time in each lane, then of the lanes in pairs.
#[inline]
fn block_sum(block: &[f32; BLOCK_LEN], weight: Weight) -> f32 {
    let mut sums = [0.0; N_LANES];
    for x in block.as_chunks::<N_LANES>().0 {
        for i in 0..N_LANES {
            sums[i] += weight.of(x[i]);
        }
    }
    let mut n = N_LANES / 2;
    while n > 0 {
        for i in 0..n {
            sums[i] += sums[i + n];
        }
        n /= 2;
    }
    sums[0]
}

impl Blocks {
    /// Reads a row and returns its best token, the lowest id among equals, and its logit;
    /// `None` where every logit is minus infinity.
    ///
    /// Fails if a logit is NaN or plus infinity.
    pub(super) fn read(&mut self, logits: &[f32]) -> Result<Option<(u32, f32)>, Error> {
        self.maxima.clear();
        let (mut best, mut max, mut any_nan) = (0, f32::NEG_INFINITY, false);
        for_each_block(logits, |block| {
            let (block_max, nan) = block_max(block);
            any_nan |= nan;
            if block_max > max {
                (best, max) = (self.maxima.len(), block_max);
            }
            self.maxima.push(block_max);
        });
        if any_nan || max == f32::INFINITY {
            let unusable = logits.iter().position(|x| x.is_nan() || *x == f32::INFINITY);
            let id = unusable.unwrap_or(0);
            return Err(Error::Logit { id, value: logits[id] });
        }
        let first = best * BLOCK_LEN;
        let at = logits[first.min(logits.len())..].iter().position(|&x| x == max);
        let found = at.map(|i| ((first + i) as u32, max));
        Ok(found.filter(|_| max > f32::NEG_INFINITY))
    }

    /// Calls `f(id, logit)` for the tokens of every block whose largest logit `wanted` is
    /// true of. The row is the one that was read.
    fn visit(&self, logits: &[f32], wanted: impl Fn(f32) -> bool, mut f: impl FnMut(u32, f32)) {
        for (b, block) in logits.chunks(BLOCK_LEN).enumerate() {
            if wanted(self.maxima[b]) {
                let first = (b * BLOCK_LEN) as u32;
                block.iter().zip(first..).for_each(|(&logit, id)| f(id, logit));
            }
        }
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
        for (b, block) in logits.chunks(BLOCK_LEN).enumerate() {
            if self.maxima[b] <= threshold {
                continue;
            }
            for (i, &logit) in block.iter().enumerate() {
                if logit > threshold {
                    kept.push((logit, (b * BLOCK_LEN + i) as u32));
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

    /// The weight of all tokens.
    pub(super) fn sum(&mut self, logits: &[f32], weight: Weight) -> f64 {
        let Self { maxima, sums, .. } = self;
        sums.clear();
        for_each_block(logits, |block| {
            let none = weight.exponent(maxima[sums.len()]) < EXP_LO;
            sums.push(if none { 0.0 } else { block_sum(block, weight) });
        });
        sums.iter().map(|&sum| f64::from(sum)).sum()
    }

    /// The token at the share `draw` of the weight of all tokens, in order of id.
    pub(super) fn pick(&mut self, logits: &[f32], weight: Weight, draw: f64) -> Option<u32> {
        let goal = draw * self.sum(logits, weight);
        let mut sum = 0.0;
        let b = self.sums.iter().position(|&block| {
            let reached = sum + f64::from(block) > goal;
            sum += if reached { 0.0 } else { f64::from(block) };
            reached
        })?;
        let first = b * BLOCK_LEN;
        let block = &logits[first..logits.len().min(first + BLOCK_LEN)];
        let weights = block.iter().map(|&logit| weight.of(logit)).zip(first as u32..);
        pick(weights, goal - sum)
    }

    /// Fills `kept` with the tokens of at least the weight `least`, in order of id.
    pub(super) fn keep_heavy(
        &self,
        logits: &[f32],
        weight: Weight,
        least: f64,
        kept: &mut Vec<(f32, u32)>,
    ) {
        kept.clear();
        let heavy = |max| f64::from(weight.of(max)) >= least * SLACK;
        self.visit(logits, heavy, |id, logit| {
            let weight = weight.of(logit);
            if f64::from(weight) >= least {
                kept.push((weight, id));
            }
        });
    }
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

/// Cuts `kept` down to the fewest tokens, most likely first, whose weight reaches `goal`.
/// Those that are left stay in their order. `room` is for a copy to select in.
pub(super) fn keep_nucleus(kept: &mut Vec<(f32, u32)>, goal: f64, room: &mut Vec<(f32, u32)>) {
    /// So few are sorted.
    const FEW: usize = 128;
    room.clone_from(kept);
    let mut rest = &mut room[..];
    let mut sum = 0.0_f64;
    // Each round decides for a head of a quarter of what is left whether it is enough.
    while rest.len() > FEW {
        let n = rest.len() / 4;
        rest.select_nth_unstable_by(n, best_first);
        let head: f64 = rest[..n].iter().map(|(weight, _)| f64::from(*weight)).sum();
        if sum + head >= goal {
            rest = &mut rest[..n];
        } else {
            sum += head;
            rest = &mut rest[n..];
        }
    }
    rest.sort_unstable_by(best_first);
    let last = rest.iter().find(|(weight, _)| {
        sum += f64::from(*weight);
        sum >= goal
    });
    if let Some(last) = last {
        kept.retain(|token| best_first(token, last) != Ordering::Greater);
    }
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
    fn a_nucleus_matches_a_full_sort() {
        // Peaked, flat, and with many equals.
        let shapes: [fn(usize) -> f32; 3] =
            [|i| (i % 5000) as f32 / 700.0, |i| (i % 5000) as f32 * 1e-5, |i| (i % 3) as f32];
        for shape in shapes {
            let logits: Vec<f32> = (0..5000).map(|i| shape(i * 7919)).collect();
            let mut blocks = Blocks::default();
            let (_, max) = blocks.read(&logits).unwrap().unwrap();
            let weight = Weight::new(max, 1.0);
            let weights: Vec<f32> = logits.iter().map(|&x| weight.of(x)).collect();
            let all = sorted(&weights);
            let total = blocks.sum(&logits, weight);
            for top_p in [0.001, 0.2, 0.9, 0.999] {
                let (mut kept, mut room) = (Vec::new(), Vec::new());
                let goal = total * top_p;
                blocks.keep_heavy(&logits, weight, (1.0 - top_p) * total / 5000.0, &mut kept);
                keep_nucleus(&mut kept, goal, &mut room);
                let mut sum = 0.0;
                let n = all.iter().position(|(w, _)| {
                    sum += f64::from(*w);
                    sum >= goal
                });
                let mut want = all[..=n.unwrap()].to_vec();
                want.sort_by_key(|(_, id)| *id);
                assert_eq!(kept, want, "top_p = {top_p}");
            }
        }
    }
}
