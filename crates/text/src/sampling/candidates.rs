//! A choice from a few tokens of a row, where no other token of it can matter.
//!
//! A device that keeps the logits gives the best tokens of a row, and those by themselves whose logits
//! bias and penalties change. The sampler's own code does the rest, so that the choice is that from the
//! whole row. Where the few do not decide it, the caller learns so and requests the row.

use super::SamplingParams;
use super::filters::total;
use super::sampler::{Rest, Sampler};
use super::scan::{Weight, best_first, pick};
use realizar_types::{DrawOfBest, NextToken, ShareScale};
use std::cmp::Ordering;

/// Logits that bias and penalties are applied to.
pub(super) trait Adjusted {
    /// The logit of a token; `None` if it is not there.
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
pub struct Candidates {
    /// Tokens that are given by themselves, by ascending id.
    listed: Vec<(u32, f32)>,
    /// Of the others the best, with the listed ones among them once these are adjusted: best first.
    best: Vec<(f32, u32)>,
    /// All other tokens are at minus infinity.
    is_whole: bool,
    /// The largest logit of those that are not listed.
    max: f32,
    /// What those that are not listed have together, and the token that was drawn of them.
    weighed: Option<Weighed>,
}

/// What all tokens of a row that are not listed have together.
#[derive(Debug, Clone, Copy)]
pub struct Weighed {
    /// Their shares beside the largest logit.
    pub total: u64,
    /// The token at the place of the draw.
    pub drawn: Option<u32>,
}

impl Candidates {
    /// Takes tokens of a row: the best `n_best` of those that are not listed, or all that are above
    /// minus infinity, in any order; and those that are listed, in ascending order, of which `may` says
    /// whether they may come at all. `weighed` is of those that are not listed.
    pub fn fill(
        &mut self,
        n_best: usize,
        best: impl Iterator<Item = (u32, f32)>,
        listed: impl Iterator<Item = (u32, f32)>,
        may: impl Fn(u32) -> bool,
        weighed: Option<Weighed>,
    ) {
        self.best.clear();
        self.best.extend(best.map(|(id, logit)| (logit, id)));
        self.best.sort_unstable_by(best_first);
        self.is_whole = self.best.len() < n_best;
        self.max = self.best.first().map_or(f32::NEG_INFINITY, |best| best.0);
        self.weighed = weighed;
        self.listed.clear();
        let allowed = |(id, logit)| (id, if may(id) { logit } else { f32::NEG_INFINITY });
        self.listed.extend(listed.map(allowed));
    }

    fn rest(&self) -> Option<Rest> {
        let Weighed { total, drawn } = self.weighed?;
        Some(Rest { max: self.max, total, drawn })
    }

    /// The most that a token weighs that is not here.
    fn most_unseen(&self, weight: Weight) -> f32 {
        self.best.last().map_or(0.0, |last| weight.of(last.0) * (1.0 + MARGIN))
    }

    /// Puts the listed tokens among the others, as far as it is certain that these are the best.
    /// Returns the best token, the lowest id among equals, and its logit; `None` if that is not
    /// certain, or a logit is unusable.
    fn merge(&mut self) -> Option<(u32, f32)> {
        let Self { listed, best, is_whole, .. } = self;
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

/// What decides a choice, where a few tokens do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Deciding {
    /// How many of the best tokens.
    pub n_best: usize,
    /// What the shares are made by that all tokens have together, where these matter.
    pub shares: Option<ShareScale>,
    /// Whether it is one draw from all of them, at the [place](Sampler::place_ahead).
    pub draws: bool,
}

/// Weights of tokens further down a row are at most so much above the last that is seen, as they are
/// rounded.
const MARGIN: f32 = 1e-6;

impl Sampler {
    /// What decides a choice, with at most `most` of the best tokens; `None` if it takes the whole row.
    pub fn deciding(&self, most: usize) -> Option<Deciding> {
        let params = self.params();
        let by_best = |n_best| Deciding { n_best, shares: None, draws: false };
        if params.temperature == 0.0 {
            return Some(by_best(1));
        }
        let weight = Weight::new(0.0, self.filter_temperature(false));
        let by_shares = Deciding { shares: Some(weight.share_scale()), ..by_best(most) };
        if params.mirostat != 0 {
            return Some(by_shares);
        }
        if params.top_n_sigma > 0.0 {
            return None;
        }
        if self.cuts_by_k() {
            return Some(params.top_k).filter(|&k| k <= most).map(by_best);
        }
        if params.typical_p < 1.0 {
            return None;
        }
        if params.top_p < 1.0 {
            return Some(by_shares);
        }
        if params.min_p > 0.0 {
            return Some(by_best(most));
        }
        // What XTC excludes may be anywhere.
        (!params.uses_xtc()).then_some(Deciding { n_best: 1, draws: true, ..by_shares })
    }

    /// How the same choice is found by shares, which are weights but for their rounding: `None` if a logit is changed, or
    /// by what shares do not tell.
    pub fn foreseen(&self, most: usize) -> Option<NextToken> {
        let SamplingParams { temperature, top_p, min_p, typical_p, mirostat, .. } = *self.params();
        if !self.params().logit_bias.is_empty() || self.follows_text() {
            return None;
        }
        if temperature == 0.0 {
            return Some(NextToken::Best);
        }
        let Deciding { shares, draws, .. } = self.deciding(most)?;
        if draws {
            return Some(NextToken::Drawn);
        }
        let is_hot_last = self.filter_temperature(false) != temperature;
        if mirostat != 0 || typical_p < 1.0 || self.params().uses_xtc() || is_hot_last {
            return None;
        }
        let part = |x: f32| (f64::from(x) * 4_294_967_296.0) as u32;
        Some(NextToken::OfBest(DrawOfBest {
            scale: Weight::new(0.0, temperature).share_scale(),
            top_p: (top_p < 1.0).then(|| part(top_p)),
            of_row: shares.is_some(),
            min_p: part(min_p),
            draw: self.place_ahead(0),
            by_id: !self.cuts_by_k(),
        }))
    }

    /// [`Self::sample`] from a few tokens; `None` if they do not decide, and the sampler is as before.
    ///
    /// The tokens that [`Self::touched`] gives have to be listed.
    pub fn sample_few(&mut self, few: &mut Candidates) -> Option<u32> {
        self.adjust(&mut Listed(&mut few.listed));
        let rest = few.rest();
        let best = few.merge()?;
        if self.params().temperature == 0.0 {
            return Some(best.0);
        }
        let before = self.clone_draws();
        let drawn = self.draw_few(few, best, rest);
        if drawn.is_none() {
            self.restore_draws(before);
        }
        drawn
    }

    fn draw_few(
        &mut self,
        few: &Candidates,
        (best, max): (u32, f32),
        rest: Option<Rest>,
    ) -> Option<u32> {
        let draw = self.draw();
        let weight = Weight::new(max, self.filter_temperature(draw.excludes));
        let sum = match rest {
            Some(rest) => rest.sum(&few.listed, weight),
            None if self.weighs_all() => return None,
            None => 0.0,
        };
        if self.mirostat().is_some() {
            let least = self.mirostat()?.least(sum);
            if self.keep_heavy(few, weight, least) {
                return None;
            }
            let (mirostat, kept) = self.mirostat_mut()?;
            return Some(mirostat.choose(best, draw.unit, kept));
        }
        if let Some(rest) = rest
            && self.deciding(usize::MAX)?.draws
        {
            return Some(rest.pick(&few.listed, (weight, sum), &draw).unwrap_or(best));
        }
        let sum = self.keep_few(few, weight, sum)?;
        let left = self.narrow(sum, None, draw.excludes);
        let left = self.heat(left, draw.excludes, |id| {
            let found = few.best.iter().find(|token| token.1 == id);
            found.map_or(f32::NEG_INFINITY, |token| token.0)
        });
        Some(pick(self.kept().iter().copied(), draw.unit * left).unwrap_or(best))
    }

    /// Keeps what weighs at least `least`, in order of id, and says whether there may be more of it.
    fn keep_heavy(&mut self, few: &Candidates, weight: Weight, least: f64) -> bool {
        let tokens = few.best.iter().map(|&(logit, id)| (weight.of(logit), id));
        let kept = self.kept_mut();
        kept.clear();
        kept.extend(tokens.filter(|(weight, _)| f64::from(*weight) >= least));
        kept.sort_unstable_by_key(|&(_, id)| id);
        !few.is_whole && f64::from(few.most_unseen(weight)) >= least
    }

    /// What the first filter keeps, and the weight that the next one starts from, of all tokens of the
    /// weight `sum`; `None` if more tokens matter.
    fn keep_few(&mut self, few: &Candidates, weight: Weight, sum: f64) -> Option<f64> {
        let SamplingParams { top_k, top_p, min_p, .. } = *self.params();
        let [top_p, min_p] = [top_p, min_p].map(f64::from);
        if self.cuts_by_k() {
            let tokens = few.best.iter().map(|&(logit, id)| (weight.of(logit), id));
            let kept = self.kept_mut();
            kept.clear();
            kept.extend(tokens.take(top_k));
            return (few.is_whole || kept.len() == top_k).then(|| total(kept));
        }
        if top_p >= 1.0 {
            let least = min_p.max(f64::from(f32::MIN_POSITIVE));
            return (!self.keep_heavy(few, weight, least)).then_some(0.0);
        }
        let share = (1.0 - top_p) * sum / self.vocab_size() as f64;
        let is_cut = self.keep_heavy(few, weight, share.max(min_p));
        let is_decided = !is_cut || self.nucleus_is_within(sum * top_p, few.most_unseen(weight));
        is_decided.then_some(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use realizar_kernels_cpu::LogitShares;
    /// What a device gives of a row.
    fn few(logits: &[f32], of: Deciding, listed: &[u32], place: u32) -> Candidates {
        let n_best = of.n_best;
        let rest =
            (0..).zip(logits).filter(|(id, x)| !listed.contains(id) && **x > f32::NEG_INFINITY);
        let mut rest: Vec<(u32, f32)> = rest.map(|(id, &x)| (id, x)).collect();
        rest.sort_by(|a, b| best_first(&(a.1, a.0), &(b.1, b.0)));
        rest.truncate(n_best);
        rest.reverse();
        let weighed = of.shares.map(|scale| {
            let max = rest.last().map_or(0.0, |best| best.1);
            let shares = LogitShares::new(max, scale);
            let share = |&id: &u32| match listed.contains(&id) {
                true => 0,
                false => shares.of(logits[id as usize]),
            };
            let ids = 0..logits.len() as u32;
            let total = ids.clone().map(|id| share(&id)).sum::<u64>();
            let goal = ((u128::from(total) * u128::from(place)) >> 32) as u64;
            let mut sum = 0;
            let mut ids = ids.filter(|_| of.draws);
            let drawn = ids.find(|id| {
                sum += share(id);
                sum > goal
            });
            Weighed { total, drawn }
        });
        let mut few = Candidates::default();
        let listed = listed.iter().map(|&id| (id, logits[id as usize]));
        few.fill(n_best, rest.into_iter(), listed, |_| true, weighed);
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

    /// Parameters of every kind that few tokens can decide.
    fn cases() -> Vec<SamplingParams> {
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
        vec![
            SamplingParams::greedy(),
            SamplingParams { temperature: 0.0, ..penalties.clone() },
            by_k.clone(),
            SamplingParams { top_k: 1, ..plain.clone() },
            SamplingParams { top_p: 0.9, ..by_k.clone() },
            SamplingParams { top_p: 0.9, temperature_last: true, temperature: 1.5, ..by_k.clone() },
            SamplingParams { top_p: 0.95, min_p: 0.05, typical_p: 0.9, ..by_k.clone() },
            SamplingParams { xtc_probability: 0.5, xtc_threshold: 0.05, ..by_k.clone() },
            SamplingParams { top_k: 40, top_p: 0.9, ..penalties.clone() },
            SamplingParams { min_p: 0.1, ..plain.clone() },
            SamplingParams {
                min_p: 0.1,
                temperature_last: true,
                temperature: 0.3,
                ..plain.clone()
            },
            SamplingParams { min_p: 0.1, xtc_probability: 0.5, ..penalties.clone() },
            SamplingParams { top_p: 0.9, ..plain.clone() },
            SamplingParams { top_p: 0.9, temperature_last: true, ..penalties.clone() },
            SamplingParams { top_p: 0.5, temperature: 0.2, ..penalties.clone() },
            SamplingParams { top_p: 0.99, min_p: 0.01, xtc_probability: 0.5, ..penalties.clone() },
            plain.clone(),
            SamplingParams { temperature_last: true, ..plain.clone() },
            SamplingParams { temperature: 2.0, ..penalties.clone() },
            SamplingParams { mirostat: 2, ..plain.clone() },
            SamplingParams { mirostat: 2, mirostat_tau: 3.0, ..penalties },
        ]
    }

    /// Asserts that what `few` gives of rows decides as the rows do.
    fn check_choices(
        sizes: &[usize],
        n_rows: usize,
        of_size: impl Fn(usize) -> Box<dyn FnMut(&[f32], Deciding, &[u32], u32) -> Candidates>,
    ) {
        for &n in sizes {
            let mut few = of_size(n);
            for params in cases() {
                let bias = params.logit_bias.iter().filter(|(id, _)| (*id as usize) < n);
                let logit_bias = bias.copied().collect();
                let params = SamplingParams { logit_bias, ..params.clone() };
                let new = || Sampler::new(params.clone(), n).unwrap();
                let (mut of_all, mut of_few) = (new(), new());
                let mut n_undecided = 0;
                for row in rows(n).into_iter().take(n_rows) {
                    let want = of_all.sample(&mut row.clone());
                    let mut listed = Vec::new();
                    of_few.touched(&mut listed);
                    listed.sort_unstable();
                    listed.dedup();
                    // Where top-k leaves out nothing, XTC may exclude anything.
                    let Some(deciding) = of_few.deciding(256) else {
                        assert!(params.top_k >= n, "{n} {params:?}");
                        break;
                    };
                    let mut few = few(&row, deciding, &listed, of_few.place_ahead(0));
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
                // Flat rows have more tokens within a share of the best, or of all, than are given.
                let by_weight = params.min_p > 0.0 || params.top_p < 1.0 || params.mirostat != 0;
                let is_few = n < 64 || by_weight && params.top_k == 0 || n_undecided <= 8;
                assert!(is_few, "{n} {params:?}: {n_undecided} of {n_rows}");
            }
        }
    }

    #[test]
    fn a_few_tokens_give_the_choices_of_the_whole_row() {
        check_choices(&[1, 7, 64, 500, 3000], 40, |_| Box::new(few));
    }

    #[test]
    fn what_needs_the_whole_row_is_not_decided_by_a_few() {
        let plain =
            SamplingParams { top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplingParams::default() };
        let best = |n_best| Some((n_best, false, false));
        let weighed = Some((256, true, false));
        for (params, want) in [
            (SamplingParams::greedy(), best(1)),
            (SamplingParams { top_k: 40, ..plain.clone() }, best(40)),
            (SamplingParams { top_k: 257, ..plain.clone() }, None),
            (SamplingParams { min_p: 0.1, ..plain.clone() }, best(256)),
            (SamplingParams { top_p: 0.9, min_p: 0.1, ..plain.clone() }, weighed),
            (SamplingParams { typical_p: 0.9, min_p: 0.1, ..plain.clone() }, None),
            (SamplingParams { top_k: 40, top_n_sigma: 1.0, ..plain.clone() }, None),
            (SamplingParams { top_k: 40, mirostat: 2, ..plain.clone() }, weighed),
            (SamplingParams { temperature: 0.0, mirostat: 2, ..plain.clone() }, best(1)),
            (SamplingParams { xtc_probability: 0.5, ..plain.clone() }, None),
            (plain, Some((1, true, true))),
        ] {
            let found = Sampler::new(params.clone(), 1000).unwrap().deciding(256);
            let found = found.map(|of| (of.n_best, of.shares.is_some(), of.draws));
            assert_eq!(found, want, "{params:?}");
        }
        let one = Deciding { n_best: 1, shares: None, draws: false };
        let mut sampler = Sampler::new(SamplingParams::greedy(), 4).unwrap();
        for (row, want) in [
            ([0.0, -0.0, -1.0, -2.0], None), // a zero that is not seen may come first
            ([-1.0, -1.0, -2.0, -3.0], Some(0)),
            ([f32::NEG_INFINITY; 4], None),
        ] {
            assert_eq!(sampler.sample_few(&mut few(&row, one, &[], 0)), want, "{row:?}");
        }
        let mut unusable = few(&[1.0, f32::NAN, 0.0, 0.0], one, &[1], 0);
        assert_eq!(sampler.sample_few(&mut unusable), None);
    }

    mod cuda {
        use super::*;
        use realizar_kernels_cuda::{
            Buffer, Device, Interpreter, Kernels, Rows, SharesOf, ShortlistLimits, ShortlistRow,
            ShortlistScratch, Shortlists,
        };
        use std::sync::Arc;

        /// The kernels of a GPU on the interpreter of their instructions, and room for lists of one row.
        struct Cuda {
            kernels: Kernels<Interpreter>,
            stream: <Interpreter as Device>::Stream,
            scratch: ShortlistScratch<Interpreter>,
            lists: Shortlists<Interpreter>,
            logits: Buffer<Interpreter>,
            n: usize,
        }

        impl Cuda {
            fn new(n: usize) -> Self {
                let device =
                    Arc::new(Interpreter::new(realizar_ptx::Checks::default(), usize::MAX));
                let (kernels, stream) = (Kernels::load(&device).unwrap(), device.stream().unwrap());
                let limits = ShortlistLimits { rows: 1, listed: 1024, draws: 1, masks: false };
                Self {
                    scratch: ShortlistScratch::new(&device, &stream, n as u32, 1).unwrap(),
                    lists: Shortlists::new(&device, n as u32, limits).unwrap(),
                    logits: Buffer::new(&device, "logits", 4 * n).unwrap(),
                    kernels,
                    stream,
                    n,
                }
            }

            /// What they give of a row.
            fn few(&mut self, row: &[f32], of: Deciding, listed: &[u32], place: u32) -> Candidates {
                let Self { kernels, stream, scratch, lists, logits, n } = self;
                logits.write(stream, 0, row).unwrap();
                let (place, draws) = ([place], usize::from(of.draws));
                lists.clear();
                lists.push(&ShortlistRow {
                    row: 0,
                    n_best: of.n_best as u32,
                    n_tokens: *n as u32,
                    listed,
                    mask: None,
                    shares: of.shares.map(|scale| SharesOf { scale, draws: &place[..draws] }),
                });
                lists.upload(stream).unwrap();
                let rows = Rows::vector(logits, *n);
                lists.queue(kernels, stream, rows, scratch, 1, lists.has_shares()).unwrap();
                lists.read(stream).unwrap();
                let list = lists.list(0);
                let token = |&[id, bits]: &[u32; 2]| (id, f32::from_bits(bits));
                let best = list.best.expect("usable logits").iter().map(token);
                let drawn = list.drawn.first().map(|token| token[0]);
                let weighed = list.total.map(|total| Weighed { total, drawn });
                let listed =
                    listed.iter().zip(list.listed).map(|(&id, &x)| (id, f32::from_bits(x)));
                let mut few = Candidates::default();
                few.fill(of.n_best, best, listed, |_| true, weighed);
                few
            }
        }

        #[test]
        fn lists_of_the_cuda_kernels_give_the_choices_of_the_whole_row() {
            check_choices(&[65, 5000], 6, |n| {
                let mut cuda = Cuda::new(n);
                Box::new(move |row, of, listed, place| cuda.few(row, of, listed, place))
            });
        }
    }
}
