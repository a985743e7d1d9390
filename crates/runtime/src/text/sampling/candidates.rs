//! A choice from a few tokens of a row, where no other token of it can matter.
//!
//! A device that keeps the logits gives the best tokens of a row, and those by themselves whose logits
//! bias and penalties change. The sampler's own code does the rest, so that the choice is that from the
//! whole row. Where the few do not decide it, that is said, and the row is asked for.

use super::sampler::Sampler;
use super::scan::{Weight, best_first, pick};
use std::cmp::Ordering;

/// Logits that bias and penalties are applied to.
pub(super) trait Adjusted {
    /// The logit of a token; none where it is not there.
    fn logit(&mut self, id: u32) -> Option<&mut f32>;
}

impl Adjusted for [f32] {
    fn logit(&mut self, id: u32) -> Option<&mut f32> {
        self.get_mut(id as usize)
    }
}

/// Tokens by ascending id, with their logits.
struct Listed<'a>(&'a mut [(u32, f32)]);

impl Adjusted for Listed<'_> {
    fn logit(&mut self, id: u32) -> Option<&mut f32> {
        let at = self.0.binary_search_by_key(&id, |token| token.0).ok()?;
        Some(&mut self.0[at].1)
    }
}

/// Tokens of a row that a choice is made from. One value serves many rows.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    /// Tokens that are given by themselves, by ascending id.
    listed: Vec<(u32, f32)>,
    /// Of the others the best, with the listed ones among them once these are adjusted: best first.
    best: Vec<(f32, u32)>,
    /// All other tokens are at minus infinity.
    is_whole: bool,
}

impl Candidates {
    /// Takes tokens of a row: the best `n_best` of those that are not listed, or all that are above
    /// minus infinity, in any order; and those that are listed, in ascending order, of which `may` says
    /// whether they may come at all.
    pub(crate) fn fill(
        &mut self,
        n_best: usize,
        best: impl Iterator<Item = (u32, f32)>,
        listed: impl Iterator<Item = (u32, f32)>,
        may: impl Fn(u32) -> bool,
    ) {
        self.best.clear();
        self.best.extend(best.map(|(id, logit)| (logit, id)));
        self.best.sort_unstable_by(best_first);
        self.is_whole = self.best.len() < n_best;
        self.listed.clear();
        let allowed = |(id, logit)| (id, if may(id) { logit } else { f32::NEG_INFINITY });
        self.listed.extend(listed.map(allowed));
    }

    /// Puts the listed tokens among the others, as far as it is certain that these are the best.
    /// Returns the best token, the lowest id among equals, and its logit; none where that is not
    /// certain, or a logit is none to choose by.
    fn merge(&mut self) -> Option<(u32, f32)> {
        let Self { listed, best, is_whole } = self;
        let last = best.last().copied();
        let n_best = best.len();
        for &(id, logit) in &*listed {
            if logit.is_nan() || logit == f32::INFINITY {
                return None;
            }
            let token = (logit, id);
            let is_certain =
                *is_whole || last.is_some_and(|last| best_first(&token, &last) == Ordering::Less);
            if logit > f32::NEG_INFINITY && is_certain {
                best.push(token);
            }
        }
        if best.len() > n_best {
            best.sort_unstable_by(best_first);
        }
        let (max, _) = *best.first()?;
        let equals = best.iter().take_while(|(logit, _)| *logit == max);
        let found = equals.map(|&(_, id)| id).min()?;
        // Zeros of either sign are equals that are not neighbours.
        let may_go_on = max == 0.0 && !*is_whole && best.last().is_some_and(|last| last.0 == max);
        (!may_go_on).then_some((found, max))
    }
}

impl Sampler {
    /// How many of the best tokens decide a choice, at most `most` where there is no certain number;
    /// none where it takes the whole row.
    pub(crate) fn n_deciding(&self, most: usize) -> Option<usize> {
        let params = self.params();
        if params.temperature == 0.0 {
            return Some(1);
        }
        if params.mirostat != 0 || params.top_n_sigma > 0.0 {
            return None;
        }
        if self.cuts_by_k() {
            return Some(params.top_k).filter(|&k| k <= most);
        }
        (params.typical_p >= 1.0 && params.top_p >= 1.0 && params.min_p > 0.0).then_some(most)
    }

    /// [`Self::sample`] from a few tokens; none where they do not decide, and the sampler is as before.
    ///
    /// The tokens that [`Self::touched`] gives have to be listed.
    pub(crate) fn sample_few(&mut self, few: &mut Candidates) -> Option<u32> {
        self.adjust(&mut Listed(&mut few.listed));
        let (best, max) = few.merge()?;
        if self.params().temperature == 0.0 {
            return Some(best);
        }
        let before = self.save_draws();
        let weight = Weight::new(max, self.params().temperature);
        let (draw, exclude) = self.draw();
        let Some(sum) = self.keep_few(few, weight) else {
            self.restore_draws(before);
            return None;
        };
        let left = self.narrow(sum, None, exclude);
        Some(pick(self.kept().iter().copied(), draw * left).unwrap_or(best))
    }

    /// What the first filter keeps, and its weight; none where there may be more of it.
    fn keep_few(&mut self, few: &Candidates, weight: Weight) -> Option<f64> {
        let top_k = self.params().top_k;
        let least = f64::from(self.params().min_p.max(f32::MIN_POSITIVE));
        let by_k = self.cuts_by_k();
        let tokens = few.best.iter().map(|&(logit, id)| (weight.of(logit), id));
        let kept = self.kept_mut();
        kept.clear();
        if by_k {
            kept.extend(tokens.take(top_k));
            return (few.is_whole || kept.len() == top_k)
                .then(|| kept.iter().map(|(weight, _)| f64::from(*weight)).sum());
        }
        kept.extend(tokens.take_while(|(weight, _)| f64::from(*weight) >= least));
        if !few.is_whole && kept.len() == few.best.len() {
            return None;
        }
        kept.sort_unstable_by_key(|&(_, id)| id);
        Some(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::sampling::SamplingParams;

    /// What a device gives of a row.
    fn few(logits: &[f32], n_best: usize, listed: &[u32]) -> Candidates {
        let rest =
            (0..).zip(logits).filter(|(id, x)| !listed.contains(id) && **x > f32::NEG_INFINITY);
        let mut rest: Vec<(u32, f32)> = rest.map(|(id, &x)| (id, x)).collect();
        rest.sort_by(|a, b| best_first(&(a.1, a.0), &(b.1, b.0)));
        rest.truncate(n_best);
        rest.reverse();
        let mut few = Candidates::default();
        let listed = listed.iter().map(|&id| (id, logits[id as usize]));
        few.fill(n_best, rest.into_iter(), listed, |_| true);
        few
    }

    /// Rows with few and many equals, spread and flat.
    fn rows(n: usize) -> Vec<Vec<f32>> {
        let row = |seed: usize| {
            let value = move |i: usize| match (i * 7919 + seed * 31) % 997 {
                _ if seed % 5 == 3 => ((i + seed) % 4) as f32 - 3.0,
                k if k % 13 == seed % 13 => f32::NEG_INFINITY,
                k => (k as f32 / 60.0) * if seed.is_multiple_of(2) { 1.0 } else { 0.1 },
            };
            (0..n).map(value).collect()
        };
        (0..40).map(row).collect()
    }

    #[test]
    fn a_few_tokens_give_the_choices_of_the_whole_row() {
        let plain = SamplingParams {
            seed: Some(7),
            temperature: 0.9,
            top_k: 0,
            top_p: 1.0,
            ..SamplingParams::default()
        };
        let by_k = SamplingParams { top_k: 40, ..plain.clone() };
        let penalties = SamplingParams {
            repetition_penalty: 1.3,
            presence_penalty: 0.4,
            frequency_penalty: -0.3,
            logit_bias: vec![(3, 2.5), (11, f32::NEG_INFINITY), (499, -1.0)],
            dry_multiplier: 0.8,
            dry_sequence_breakers: Vec::new(),
            ..plain.clone()
        };
        let cases = [
            SamplingParams::greedy(),
            SamplingParams { temperature: 0.0, ..penalties.clone() },
            by_k.clone(),
            SamplingParams { top_k: 1, ..plain.clone() },
            SamplingParams { top_p: 0.9, ..by_k.clone() },
            SamplingParams { top_p: 0.95, min_p: 0.05, typical_p: 0.9, ..by_k.clone() },
            SamplingParams { xtc_probability: 0.5, xtc_threshold: 0.05, ..by_k.clone() },
            SamplingParams { top_k: 40, top_p: 0.9, ..penalties.clone() },
            SamplingParams { min_p: 0.1, ..plain.clone() },
            SamplingParams { min_p: 0.1, xtc_probability: 0.5, ..penalties },
        ];
        for n in [1, 7, 64, 500, 3000] {
            for params in &cases {
                let bias = params.logit_bias.iter().filter(|(id, _)| (*id as usize) < n);
                let logit_bias = bias.copied().collect();
                let params = SamplingParams { logit_bias, ..params.clone() };
                let new = || Sampler::new(params.clone(), n).unwrap();
                let (mut of_all, mut of_few) = (new(), new());
                let mut n_undecided = 0;
                for row in rows(n) {
                    let want = of_all.sample(&mut row.clone());
                    let mut listed = Vec::new();
                    of_few.touched(&mut listed);
                    listed.sort_unstable();
                    listed.dedup();
                    // Where top-k leaves out nothing, it decides nothing.
                    let Some(n_best) = of_few.n_deciding(256) else {
                        assert!(params.top_k >= n, "{n} {params:?}");
                        break;
                    };
                    let mut few = few(&row, n_best, &listed);
                    let found = match of_few.sample_few(&mut few) {
                        Some(id) => Ok(id),
                        None => {
                            n_undecided += 1;
                            of_few.sample(&mut row.clone())
                        }
                    };
                    assert_eq!(found, want, "{n} {params:?}");
                    if let Ok(id) = want {
                        of_all.accept(id);
                        of_few.accept(id);
                    }
                }
                // Within a share of the best, flat rows have more tokens than are given.
                let is_few = n < 64 || params.min_p > 0.0 && params.top_k == 0 || n_undecided <= 8;
                assert!(is_few, "{n} {params:?}: {n_undecided} of 40");
            }
        }
    }

    #[test]
    fn what_needs_the_whole_row_is_not_decided_by_a_few() {
        let plain = SamplingParams { top_k: 0, top_p: 1.0, ..SamplingParams::default() };
        for (params, want) in [
            (SamplingParams::greedy(), Some(1)),
            (SamplingParams { top_k: 40, ..plain.clone() }, Some(40)),
            (SamplingParams { top_k: 257, ..plain.clone() }, None),
            (SamplingParams { min_p: 0.1, ..plain.clone() }, Some(256)),
            (SamplingParams { top_p: 0.9, min_p: 0.1, ..plain.clone() }, None),
            (SamplingParams { typical_p: 0.9, min_p: 0.1, ..plain.clone() }, None),
            (SamplingParams { top_k: 40, top_n_sigma: 1.0, ..plain.clone() }, None),
            (SamplingParams { top_k: 40, mirostat: 2, ..plain.clone() }, None),
            (SamplingParams { temperature: 0.0, mirostat: 2, ..plain.clone() }, Some(1)),
            (plain, None),
        ] {
            assert_eq!(
                Sampler::new(params.clone(), 1000).unwrap().n_deciding(256),
                want,
                "{params:?}"
            );
        }
        let mut sampler = Sampler::new(SamplingParams::greedy(), 4).unwrap();
        for (row, want) in [
            ([0.0, -0.0, -1.0, -2.0], None), // a zero that is not seen may come first
            ([-1.0, -1.0, -2.0, -3.0], Some(0)),
            ([f32::NEG_INFINITY; 4], None),
        ] {
            assert_eq!(sampler.sample_few(&mut few(&row, 1, &[])), want, "{row:?}");
        }
        let mut unusable = few(&[1.0, f32::NAN, 0.0, 0.0], 1, &[1]);
        assert_eq!(sampler.sample_few(&mut unusable), None);
    }
}
