//! Filters over candidates, which are tokens with their weights: the nucleus of top-p, locally
//! typical tokens, the exclusion of top choices.
//!
//! None of them sorts more than a few candidates, and what is left stays in its order. What
//! needs the whole row of logits is in [`scan`](super::scan).

use std::cmp::Ordering;

use super::scan::best_first;

/// Finds the fewest candidates, in some order of preference, that have a given weight together.
/// One value serves many rows.
#[derive(Debug, Default)]
pub(super) struct Nucleus {
    sums: Vec<f64>,        // [N_CLASSES]
    rest: Vec<(f32, u32)>, // candidates of one class
}

/// Bits of a rank that do not decide its class.
const CLASS_SHIFT: u32 = 18;
/// Classes of ranks from zero to one.
const N_CLASSES: usize = (1_f32.to_bits() >> CLASS_SHIFT) as usize + 1;

/// The class of a rank, which grows with it: its exponent and the first bits after.
fn class(rank: f32) -> usize {
    ((rank.to_bits() >> CLASS_SHIFT) as usize).min(N_CLASSES - 1)
}

impl Nucleus {
    /// Cuts `kept` down to the fewest tokens, most likely first, whose weight reaches `goal`.
    pub(super) fn keep(&mut self, kept: &mut Vec<(f32, u32)>, goal: f64) {
        self.keep_ranked(kept, goal, |weight| weight);
    }

    /// Whether [`Self::keep`] leaves the same of `kept` whatever further tokens there are, none of which
    /// weighs more than `most`.
    pub(super) fn is_within(&mut self, kept: &[(f32, u32)], goal: f64, most: f32) -> bool {
        let found = self.last_class(kept, goal, |weight| weight);
        found.is_some_and(|(last_class, _)| class(most) < last_class)
    }

    /// The class in which the goal is reached, and the weight of those above it.
    fn last_class(
        &mut self,
        kept: &[(f32, u32)],
        goal: f64,
        rank: impl Fn(f32) -> f32,
    ) -> Option<(usize, f64)> {
        self.sums.clear();
        self.sums.resize(N_CLASSES, 0.0);
        for &(weight, _) in kept {
            self.sums[class(rank(weight))] += f64::from(weight);
        }
        let mut sum = 0.0;
        let last_class = self.sums.iter().rposition(|class| {
            let reached = sum + class >= goal;
            sum += if reached { 0.0 } else { *class };
            reached
        })?;
        Some((last_class, sum))
    }

    /// Cuts `kept` down to the fewest tokens, those first whose log-probability is nearest to
    /// its mean, whose weight reaches `goal`. The mean is given as a weight, `centre`.
    ///
    /// This is locally typical sampling (Meister et al. 2022, "Locally Typical Sampling"): a
    /// token's distance is that of its surprise from the entropy, and the sum of the weights
    /// cancels in the difference.
    pub(super) fn keep_typical(&mut self, kept: &mut Vec<(f32, u32)>, goal: f64, centre: f32) {
        // The ratio to the centre falls from one as the logarithms move apart.
        self.keep_ranked(kept, goal, |weight| (weight / centre).min(centre / weight));
    }

    /// Cuts `kept` down to the fewest tokens, highest rank first, whose weight reaches `goal`.
    /// Ranks are from zero to one; of equal ranks the most likely token comes first.
    fn keep_ranked(
        &mut self,
        kept: &mut Vec<(f32, u32)>,
        goal: f64,
        rank: impl Fn(f32) -> f32 + Copy,
    ) {
        /// So few are sorted.
        const FEW: usize = 128;
        let order = |a: &(f32, u32), b: &(f32, u32)| {
            rank(b.0).total_cmp(&rank(a.0)).then_with(|| best_first(a, b))
        };
        // The class in which the goal is reached; of the others, all or nothing is kept.
        let Some((last_class, mut sum)) = self.last_class(kept, goal, rank) else { return };
        self.rest.clear();
        self.rest.extend(kept.iter().filter(|(weight, _)| class(rank(*weight)) == last_class));
        let mut rest = &mut self.rest[..];
        // Each round decides for a head of a quarter of what is left whether it is enough.
        while rest.len() > FEW {
            let n = rest.len() / 4;
            rest.select_nth_unstable_by(n, order);
            let head: f64 = rest[..n].iter().map(|(weight, _)| f64::from(*weight)).sum();
            if sum + head >= goal {
                rest = &mut rest[..n];
            } else {
                sum += head;
                rest = &mut rest[n..];
            }
        }
        rest.sort_unstable_by(order);
        let last = rest.iter().find(|(weight, _)| {
            sum += f64::from(*weight);
            sum >= goal
        });
        // Rounding may leave the goal of this class just out of reach: all of it is kept.
        if let Some(last) = last.or(rest.last()) {
            kept.retain(|token| order(token, last) != Ordering::Greater);
        }
    }
}

/// The weight of all candidates.
pub(super) fn total(kept: &[(f32, u32)]) -> f64 {
    kept.iter().map(|(weight, _)| f64::from(*weight)).sum()
}

/// The mean logarithm of the candidates' weights, each counted by its weight.
pub(super) fn mean_log(kept: &[(f32, u32)], total: f64) -> f64 {
    let weights = kept.iter().map(|(weight, _)| f64::from(*weight)).filter(|weight| *weight > 0.0);
    weights.map(|weight| weight * weight.ln()).sum::<f64>() / total
}

/// Removes the tokens of at least the weight `least` but the least likely of them, so that
/// nothing changes where there are fewer than two.
///
/// This is XTC by p-e-w (oobabooga/text-generation-webui, pull request 6335).
pub(super) fn exclude_top(kept: &mut Vec<(f32, u32)>, least: f64) {
    let is_top = |(weight, _): &(f32, u32)| *weight > 0.0 && f64::from(*weight) >= least;
    let tops = kept.iter().filter(|token| is_top(token));
    if let Some(&last) = tops.max_by(|a, b| best_first(a, b)) {
        kept.retain(|token| !is_top(token) || *token == last);
    }
}

#[cfg(test)]
mod tests {
    use super::super::scan::{Blocks, Weight};
    use super::*;

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
            let mut all: Vec<(f32, u32)> = logits.iter().map(|&x| weight.of(x)).zip(0..).collect();
            all.sort_by(best_first);
            let total = blocks.sum(&logits, weight);
            for top_p in [0.001, 0.2, 0.9, 0.999] {
                let mut kept = Vec::new();
                let goal = total * top_p;
                blocks.keep_heavy(&logits, weight, (1.0 - top_p) * total / 5000.0, &mut kept);
                Nucleus::default().keep(&mut kept, goal);
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

    /// Applies `filter` to probabilities in tenths and returns the ids that it leaves.
    fn left(tenths: &[u32], filter: impl Fn(&mut Vec<(f32, u32)>)) -> Vec<u32> {
        let mut kept: Vec<(f32, u32)> = tenths.iter().map(|&p| p as f32 / 10.0).zip(0..).collect();
        filter(&mut kept);
        kept.into_iter().map(|(_, id)| id).collect()
    }

    #[test]
    fn typical_tokens_are_those_of_a_surprise_near_the_entropy() {
        let check = |tenths: &[u32], p: f64, want: &[u32]| {
            let got = left(tenths, |kept| {
                let centre = mean_log(kept, total(kept)).exp() as f32;
                let goal = p * total(kept);
                Nucleus::default().keep_typical(kept, goal, centre);
            });
            assert_eq!(got, want, "{p} of {tenths:?}");
        };
        // 0.1, 0.7, 0.2: the entropy is 0.802, the surprises 2.303, 0.357 and 1.609, and the
        // distances 1.501, 0.445 and 0.808.
        check(&[1, 7, 2], 0.6, &[1]);
        check(&[1, 7, 2], 0.8, &[1, 2]);
        check(&[1, 7, 2], 0.95, &[0, 1, 2]);
        // 0.5, 0.3, 0.1, 0.1: the entropy is 1.168, the distances 0.475, 0.036, 1.135 twice. The
        // most likely token is not the most typical one.
        check(&[5, 3, 1, 1], 0.2, &[1]);
        check(&[5, 3, 1, 1], 0.7, &[0, 1]);
        check(&[5, 3, 1, 1], 0.85, &[0, 1, 2]);
        // What has no weight is never typical.
        check(&[0, 10, 0], 1.0, &[1]);
    }

    #[test]
    fn many_typical_tokens_match_a_full_sort() {
        for spread in [0.5, 4.0, 30.0] {
            let weights = (0..5000).map(|i| (-spread * ((i * 7919) % 5000) as f32 / 5000.0).exp());
            let all: Vec<(f32, u32)> = weights.zip(0..).collect();
            let sum = total(&all);
            let mean = mean_log(&all, sum);
            let distance = |token: &(f32, u32)| (f64::from(token.0).ln() - mean).abs();
            let mut nearest = all.clone();
            nearest.sort_by(|a, b| distance(a).total_cmp(&distance(b)).then(best_first(a, b)));
            for p in [0.001, 0.2, 0.9, 0.999] {
                let mut reached = 0.0;
                let n = nearest.iter().position(|(weight, _)| {
                    reached += f64::from(*weight);
                    reached >= p * sum
                });
                let mut want = nearest[..=n.unwrap()].to_vec();
                want.sort_by_key(|(_, id)| *id);
                let mut kept = all.clone();
                Nucleus::default().keep_typical(&mut kept, p * sum, mean.exp() as f32);
                assert_eq!(kept, want, "{p} of a spread of {spread}");
            }
        }
    }

    #[test]
    fn the_least_likely_of_two_top_choices_is_left() {
        let check = |tenths: &[u32], least: f64, want: &[u32]| {
            assert_eq!(left(tenths, |kept| exclude_top(kept, least)), want, "{least}: {tenths:?}");
        };
        check(&[1, 4, 2, 3], 0.15, &[0, 2]);
        check(&[1, 4, 2, 3], 0.25, &[0, 2, 3]);
        check(&[1, 4, 2, 3], 0.35, &[0, 1, 2, 3]); // only one
        check(&[1, 4, 2, 3], 0.5, &[0, 1, 2, 3]); // none
        check(&[1, 4, 2, 3], 0.0, &[0]);
        check(&[3, 3, 3, 0], 0.0, &[2, 3]); // what has no weight is no choice
        check(&[], 0.1, &[]);
    }
}
