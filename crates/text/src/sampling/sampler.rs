//! The sampler: one request's state and the choice of its next token.
//!
//! The vocabulary is never sorted: [`Blocks`] reads it once, and the filters work on the tokens
//! that they can keep at all. Weights of the whole vocabulary are computed only where a filter or
//! a draw needs their sum. Buffers are reused, so that no token allocates once they have grown.

use std::hash::{BuildHasher, RandomState};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::candidates::Adjusted;
use super::dry::Dry;
use super::filters::{Nucleus, exclude_top, mean_log, total};
use super::mirostat::Mirostat;
use super::penalties::Penalties;
use super::scan::{Blocks, Weight, pick, sigma_bound, weight_of_shares};
use super::{Error, SamplingParams};
use crate::tokenizer::{TokenBytes, Tokenizer};

/// Chooses tokens by the parameters of one request.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    vocab_size: usize,
    seed: u64,
    rng: ChaCha8Rng,
    penalties: Penalties,
    dry: Option<Dry>,
    mirostat: Option<Mirostat>,
    blocks: Blocks,
    kept: Vec<(f32, u32)>,    // candidates: (logit or weight, id)
    touched: Vec<u32>,        // tokens whose logits are changed, ascending
    changed: Vec<(u32, f32)>, // the same with their logits
    nucleus: Nucleus,
    left: Left,
}

/// What the last token was drawn from.
#[derive(Debug, Clone, Copy)]
enum Left {
    /// Nothing but the best.
    Best(u32),
    /// The tokens in `kept`.
    Kept,
    /// All tokens.
    All(Weight),
}

impl Sampler {
    /// A sampler for logits over `vocab_size` tokens.
    ///
    /// Fails if a parameter is out of its range, a biased token is outside the vocabulary, or DRY
    /// is on with sequence breakers, which only [`with_tokenizer`](Self::with_tokenizer) can find.
    pub fn new(params: SamplingParams, vocab_size: usize) -> Result<Self, Error> {
        Self::with_bytes(params, vocab_size, None)
    }

    /// A sampler for logits over `vocab_size` tokens, which need not all be in the tokenizer's
    /// vocabulary.
    ///
    /// Fails if a parameter is out of its range or a biased token is outside the vocabulary.
    pub fn with_tokenizer(
        params: SamplingParams,
        vocab_size: usize,
        tokenizer: &Tokenizer,
    ) -> Result<Self, Error> {
        Self::with_bytes(params, vocab_size, Some(tokenizer.all_bytes()))
    }

    fn with_bytes(
        params: SamplingParams,
        vocab_size: usize,
        bytes: Option<TokenBytes>,
    ) -> Result<Self, Error> {
        params.validate()?;
        if let Some(&(id, _)) = params.logit_bias.iter().find(|(id, _)| *id as usize >= vocab_size)
        {
            return Err(Error::BiasId { id, vocab_size });
        }
        // Without a seed, the hasher's random keys serve as one. It is below 2^32, so that every
        // reader of JSON keeps it.
        let seed = params.seed.unwrap_or_else(|| RandomState::new().hash_one(0_u64) >> 32);
        Ok(Self {
            vocab_size,
            seed,
            rng: ChaCha8Rng::seed_from_u64(seed),
            penalties: Penalties::new(&params),
            dry: Dry::new(&params, bytes)?,
            mirostat: (params.mirostat == 2)
                .then(|| Mirostat::new(params.mirostat_tau, params.mirostat_eta)),
            blocks: Blocks::default(),
            kept: Vec::new(),
            touched: Vec::new(),
            changed: Vec::new(),
            nucleus: Nucleus::default(),
            left: Left::Best(0),
            params,
        })
    }

    /// The seed in use, given or drawn: with it the same choices can be made again.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Tokens that logits are over.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Whether the tokens whose logits it changes depend on the text.
    pub fn follows_text(&self) -> bool {
        self.penalties.are_on() || self.dry.is_some()
    }

    /// Tells the sampler the tokens of the prompt, which the repetition penalty and DRY look at, and with
    /// [`SamplingParams::penalize_prompt`] the other penalties too.
    pub fn add_prompt(&mut self, ids: &[u32]) {
        if let Some(dry) = &mut self.dry {
            ids.iter().for_each(|&id| dry.push(id));
        }
        self.penalties.add_prompt(ids);
    }

    /// Makes room for `n_tokens` tokens, so that to remember them allocates nothing.
    pub fn reserve(&mut self, n_tokens: usize) {
        self.penalties.reserve(n_tokens, self.vocab_size);
        if let Some(dry) = &mut self.dry {
            dry.reserve(n_tokens);
        }
    }

    /// Tells the sampler that a token was generated.
    pub fn accept(&mut self, id: u32) {
        self.penalties.accept(id);
        if let Some(dry) = &mut self.dry {
            dry.push(id);
        }
        if let Some(mirostat) = &mut self.mirostat {
            mirostat.accept(id);
        }
    }

    /// Chooses a token by its logits, to which bias and penalties are applied in place. The caller
    /// informs the sampler with [`accept`](Self::accept) if the token is used.
    ///
    /// Fails if a logit is NaN or plus infinity, or if no logit is above minus infinity.
    pub fn sample(&mut self, logits: &mut [f32] /* [vocab_size] */) -> Result<u32, Error> {
        if logits.len() != self.vocab_size {
            return Err(Error::Length { expected: self.vocab_size, found: logits.len() });
        }
        if self.params.temperature == 0.0 {
            self.adjust(logits);
            let best = self.blocks.read(logits)?.ok_or(Error::NoToken)?.0;
            self.left = Left::Best(best);
            return Ok(best);
        }
        let draw = self.draw();
        let rest = if self.weighs_all() { Some(self.rest(logits, draw)?) } else { None };
        self.adjust(logits);
        let (best, max) = self.blocks.read(logits)?.ok_or(Error::NoToken)?;
        let weight = Weight::new(max, self.filter_temperature(draw.excludes));
        self.changed.iter_mut().for_each(|(id, logit)| *logit = logits[*id as usize]);
        let sum = rest.as_ref().map_or(0.0, |rest| rest.sum(&self.changed, weight));
        if let Some(mirostat) = &mut self.mirostat {
            let Self { blocks, kept, .. } = self;
            blocks.keep_heavy(logits, weight, mirostat.least(sum), kept);
            self.left = Left::Kept;
            return Ok(mirostat.choose(best, draw.unit, kept));
        }
        let left = self.filter(logits, (max, sum), weight, draw.excludes);
        let left = left.map(|left| self.heat(left, draw.excludes, |id| logits[id as usize]));
        self.left = if left.is_some() { Left::Kept } else { Left::All(weight) };
        let drawn = match (left, rest) {
            (Some(left), _) => pick(self.kept.iter().copied(), draw.unit * left),
            (None, Some(rest)) => rest.pick(&self.changed, (weight, sum), &draw),
            (None, None) => None,
        };
        Ok(drawn.unwrap_or(best))
    }

    /// How likely a token was in the last [`sample`](Self::sample), and the `k` most likely ones: by what
    /// bias, penalties, temperature and filters had left. `logits` are those that it left.
    pub fn shares(
        &self,
        id: u32,
        logits: &[f32], // [vocab_size]
        k: usize,
    ) -> (f32, Vec<(u32, f32)>) {
        let mut tokens: Vec<(f32, u32)> = match self.left {
            Left::Best(best) => vec![(1.0, best)],
            Left::Kept => self.kept.clone(),
            Left::All(weight) => {
                logits.iter().zip(0..).map(|(&logit, id)| (weight.of(logit), id)).collect()
            }
        };
        tokens.retain(|(weight, _)| *weight > 0.0);
        let sum = total(&tokens);
        let share = |weight: f32| (f64::from(weight) / sum) as f32;
        let of_id = tokens.iter().find(|token| token.1 == id).map_or(0.0, |token| share(token.0));
        let by_weight = |a: &(f32, u32), b: &(f32, u32)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        if k < tokens.len() {
            tokens.select_nth_unstable_by(k, by_weight);
            tokens.truncate(k);
        }
        tokens.sort_unstable_by(by_weight);
        (of_id, tokens.into_iter().map(|(weight, id)| (id, share(weight))).collect())
    }

    /// Whether the weight of all tokens matters to a draw.
    pub(super) fn weighs_all(&self) -> bool {
        let SamplingParams { top_n_sigma, typical_p, top_p, min_p, .. } = self.params;
        let is_cut = self.cuts_by_k() || top_n_sigma > 0.0;
        self.mirostat.is_some() || !is_cut && (typical_p < 1.0 || top_p < 1.0 || min_p <= 0.0)
    }

    /// What a draw needs to know of the tokens whose logits nothing changes. Leaves the others in
    /// `changed`.
    fn rest(&mut self, logits: &mut [f32], draw: Draw) -> Result<Rest, Error> {
        let mut touched = std::mem::take(&mut self.touched);
        touched.clear();
        self.touched(&mut touched);
        touched.retain(|&id| (id as usize) < logits.len());
        touched.sort_unstable();
        touched.dedup();
        let temperature = self.filter_temperature(draw.excludes);
        let Self { blocks, changed, .. } = self;
        let mut take =
            |&id: &u32| (id, std::mem::replace(&mut logits[id as usize], f32::NEG_INFINITY));
        changed.clear();
        changed.extend(touched.iter().map(&mut take));
        self.touched = touched;
        let rest = blocks.read(logits)?.map(|(_, max)| {
            let weight = Weight::new(max, temperature);
            let total = blocks.total(logits, weight);
            Rest { max, total, drawn: blocks.pick(logits, weight, (draw.place, total)) }
        });
        changed.iter().for_each(|&(id, logit)| logits[id as usize] = logit);
        Ok(rest.unwrap_or_default())
    }

    /// The draw of a token. There are as many numbers drawn for every token, whatever is kept, so that
    /// the sequence of draws depends on the seed and the position alone.
    pub(super) fn draw(&mut self) -> Draw {
        let number = self.rng.next_u64();
        let has_xtc = self.mirostat.is_none() && self.params.uses_xtc();
        let excludes =
            has_xtc && unit(self.rng.next_u64()) < f64::from(self.params.xtc_probability);
        Draw { unit: unit(number), place: (number >> 32) as u32, side: number as u32, excludes }
    }

    /// The place of the draw that comes after `n_before` others.
    pub fn place_ahead(&self, n_before: usize) -> u32 {
        let mut ahead = self.clone_draws();
        let of_token = 1 + usize::from(self.mirostat.is_none() && self.params.uses_xtc());
        (0..n_before * of_token).for_each(|_| {
            ahead.next_u64();
        });
        (ahead.next_u64() >> 32) as u32
    }

    /// Where the sequence of draws is.
    pub(super) fn clone_draws(&self) -> ChaCha8Rng {
        self.rng.clone()
    }

    /// Goes back to where the sequence of draws was.
    pub(super) fn restore_draws(&mut self, before: ChaCha8Rng) {
        self.rng = before;
    }

    pub(super) fn params(&self) -> &SamplingParams {
        &self.params
    }

    pub(super) fn mirostat(&self) -> Option<&Mirostat> {
        self.mirostat.as_ref()
    }

    pub(super) fn mirostat_mut(&mut self) -> Option<(&mut Mirostat, &mut Vec<(f32, u32)>)> {
        Some((self.mirostat.as_mut()?, &mut self.kept))
    }

    /// Whether top-p leaves the same of what is kept whatever further tokens there are, of at most the
    /// weight `most`.
    pub(super) fn nucleus_is_within(&mut self, goal: f64, most: f32) -> bool {
        self.nucleus.is_within(&self.kept, goal, most)
    }

    pub(super) fn kept(&self) -> &[(f32, u32)] {
        &self.kept
    }

    pub(super) fn kept_mut(&mut self) -> &mut Vec<(f32, u32)> {
        &mut self.kept
    }

    /// Whether top-k leaves out a token.
    pub(super) fn cuts_by_k(&self) -> bool {
        (1..self.vocab_size).contains(&self.params.top_k)
    }

    /// The temperature of the weights that the filters look at; `excludes` says whether XTC is one of them for this token.
    pub(super) fn filter_temperature(&self, excludes: bool) -> f32 {
        let SamplingParams { temperature, temperature_last, .. } = self.params;
        let SamplingParams { top_n_sigma, typical_p, top_p, min_p, .. } = self.params;
        let is_cut = self.cuts_by_k() || top_n_sigma > 0.0;
        let is_filtered = is_cut || typical_p < 1.0 || top_p < 1.0 || min_p > 0.0 || excludes;
        let is_last = temperature_last && is_filtered && self.mirostat.is_none();
        if is_last { 1.0 } else { temperature }
    }

    /// Applies the temperature to what the filters kept, of the weight `sum`, if it comes last. Returns the
    /// weight of what is kept.
    pub(super) fn heat(&mut self, sum: f64, excludes: bool, logit: impl Fn(u32) -> f32) -> f64 {
        let temperature = self.params.temperature;
        if self.filter_temperature(excludes) == temperature {
            return sum;
        }
        // The best token may have been dropped.
        let logits = self.kept.iter().map(|&(_, id)| logit(id));
        let weight = Weight::new(logits.fold(f32::NEG_INFINITY, f32::max), temperature);
        self.kept.iter_mut().for_each(|(value, id)| *value = weight.of(logit(*id)));
        total(&self.kept)
    }

    /// Fills `kept` with the tokens that the filters leave and returns their weight; `None` if
    /// no filter is on. `sum_of_all` is the weight of all tokens, where that matters. With `exclude`, XTC excludes top choices of this token.
    fn filter(
        &mut self,
        logits: &[f32], // [vocab_size]
        (max, sum_of_all): (f32, f64),
        weight: Weight,
        exclude: bool,
    ) -> Option<f64> {
        let SamplingParams { top_k, top_n_sigma, .. } = self.params;
        let SamplingParams { typical_p, top_p, min_p, .. } = self.params;
        let [typical_p, top_p, min_p] = [typical_p, top_p, min_p].map(f64::from);
        let (by_k, by_sigma) = (self.cuts_by_k(), top_n_sigma > 0.0);
        let by_typical = typical_p < 1.0;
        let Self { blocks, kept, .. } = self;
        let n_tokens = logits.len() as f64;
        let bound =
            if by_sigma { sigma_bound(logits, max, top_n_sigma) } else { f32::NEG_INFINITY };
        // What can be left of the vocabulary; where the next filter asks for them, the weight and
        // the mean logarithm that it starts from.
        let (mut sum, mut mean) = (0.0, None);
        if by_k {
            blocks.top_k(logits, top_k, kept);
            kept.retain(|(logit, _)| *logit >= bound);
            kept.iter_mut().for_each(|(value, _)| *value = weight.of(*value));
            sum = total(kept);
        } else if by_sigma {
            blocks.keep_above(logits, weight, bound, kept);
            sum = total(kept);
        } else if by_typical {
            sum = sum_of_all;
            let of_all = blocks.mean_log(logits, weight, sum);
            mean = Some(of_all);
            // As far below the mean as the best token is above it, all that is heavier is nearer.
            // Further down the most likely come first, and then the share of top-p holds. A
            // little less, as the mean is rounded.
            let share = (1.0 - typical_p) * sum / n_tokens;
            blocks.keep_heavy(logits, weight, 0.999 * share.min((2.0 * of_all).exp()), kept);
        } else if top_p < 1.0 {
            sum = sum_of_all;
            // Tokens below an even share of `1 - top_p` cannot add up to it, so they are outside
            // the nucleus.
            let share = (1.0 - top_p) * sum / n_tokens;
            blocks.keep_heavy(logits, weight, share.max(min_p), kept);
        } else if min_p > 0.0 || exclude {
            blocks.keep_heavy(logits, weight, min_p.max(f64::from(f32::MIN_POSITIVE)), kept);
        } else {
            return None;
        }
        Some(self.narrow(sum, mean, exclude))
    }

    /// Applies the filters after the first to what it kept, of the weight `sum`, and returns the weight
    /// of what is left. `mean` is the mean logarithm of the weights, where it is not that of what was
    /// kept.
    pub(super) fn narrow(&mut self, mut sum: f64, mean: Option<f64>, exclude: bool) -> f64 {
        let SamplingParams { typical_p, top_p, min_p, xtc_threshold, .. } = self.params;
        let [typical_p, top_p, min_p] = [typical_p, top_p, min_p].map(f64::from);
        let Self { kept, nucleus, .. } = self;
        if typical_p < 1.0 {
            let mean = mean.unwrap_or_else(|| mean_log(kept, sum));
            nucleus.keep_typical(kept, sum * typical_p, mean.exp() as f32);
            sum = total(kept);
        }
        if top_p < 1.0 {
            nucleus.keep(kept, sum * top_p);
        }
        if min_p > 0.0 {
            let best = kept.iter().fold(0.0, |best, (weight, _)| weight.max(best));
            kept.retain(|(weight, _)| f64::from(*weight) >= min_p * f64::from(best));
        }
        if exclude {
            exclude_top(kept, f64::from(xtc_threshold) * total(kept));
        }
        total(kept)
    }

    /// Appends the tokens whose logits bias, penalties and DRY change; some may come twice.
    pub fn touched(&mut self, ids: &mut Vec<u32>) {
        ids.extend(self.params.logit_bias.iter().map(|&(id, _)| id));
        ids.extend(self.penalties.touched());
        if let Some(dry) = &mut self.dry {
            ids.extend(dry.continued());
        }
    }

    /// Applies logit bias, penalties and DRY.
    pub(super) fn adjust(&mut self, logits: &mut (impl Adjusted + ?Sized)) {
        for &(id, bias) in &self.params.logit_bias {
            if let Some(logit) = logits.logit(id) {
                *logit += bias;
            }
        }
        self.penalties.apply(logits);
        if let Some(dry) = &mut self.dry {
            dry.apply(logits);
        }
    }
}

/// A number that was drawn, from zero to below one.
fn unit(number: u64) -> f64 {
    (number >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
}

/// What is drawn for a token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Draw {
    /// From zero to below one, for a draw from what the filters left.
    pub(super) unit: f64,
    /// Where filters leave everything, a place among the tokens that nothing changes, in units of
    /// 2^-32.
    place: u32,
    /// And whether it is one of them, or which of the others, in these units.
    side: u32,
    /// Whether XTC excludes the top choices.
    pub(super) excludes: bool,
}

/// The tokens of a row whose logits nothing changes. All of them are weighed by integers, on whatever
/// device; those that bias and penalties change are weighed beside them, on the host.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rest {
    /// The largest logit.
    pub(super) max: f32,
    /// Their shares beside it.
    pub(super) total: u64,
    /// The token at the place that was drawn.
    pub(super) drawn: Option<u32>,
}

impl Default for Rest {
    /// No tokens.
    fn default() -> Self {
        Self { max: f32::NEG_INFINITY, total: 0, drawn: None }
    }
}

impl Rest {
    /// Their weight.
    fn own_sum(&self, weight: Weight) -> f64 {
        weight_of_shares(self.total) * f64::from(weight.of(self.max))
    }

    /// Their weight with that of the changed tokens.
    pub(super) fn sum(&self, changed: &[(u32, f32)], weight: Weight) -> f64 {
        let changed = changed.iter().map(|&(_, logit)| f64::from(weight.of(logit)));
        self.own_sum(weight) + changed.sum::<f64>()
    }

    /// A draw from all tokens, which weigh `sum`: the changed ones in order of id, then these.
    pub(super) fn pick(
        &self,
        changed: &[(u32, f32)],
        (weight, sum): (Weight, f64),
        draw: &Draw,
    ) -> Option<u32> {
        let own = self.own_sum(weight);
        let goal = f64::from(draw.side) / 4_294_967_296.0 * sum;
        let of_changed = changed.iter().map(|&(id, logit)| (weight.of(logit), id));
        let is_changed = own == 0.0 || goal < sum - own;
        if is_changed { pick(of_changed, goal) } else { self.drawn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain() -> SamplingParams {
        SamplingParams {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            seed: Some(1),
            ..SamplingParams::default()
        }
    }

    /// The share of each token among many draws.
    fn shares(params: SamplingParams, logits: &[f32]) -> Vec<f64> {
        let mut sampler = Sampler::new(params, logits.len()).unwrap();
        let mut counts = vec![0.0; logits.len()];
        let n_draws = 20_000;
        for _ in 0..n_draws {
            counts[sampler.sample(&mut logits.to_vec()).unwrap() as usize] += 1.0;
        }
        counts.iter().map(|count| count / f64::from(n_draws)).collect()
    }

    fn check(params: &SamplingParams, probs: &[f64], want: &[f64]) {
        let logits: Vec<f32> = probs.iter().map(|p| p.ln() as f32).collect();
        let got = shares(params.clone(), &logits);
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() < 0.015, "{params:?}: {got} instead of {want}");
            assert!(*want != 0.0 || *got == 0.0, "{params:?}: a dropped token was drawn");
        }
        // What a token was drawn from is told exactly, unless XTC drew what it excludes.
        if params.xtc_probability > 0.0 && params.xtc_probability < 1.0 {
            return;
        }
        let mut sampler = Sampler::new(params.clone(), logits.len()).unwrap();
        let mut row = logits;
        let id = sampler.sample(&mut row).unwrap();
        let (of_id, told) = sampler.shares(id, &row, row.len());
        let share = |id: u32| told.iter().find(|token| token.0 == id).map_or(0.0, |token| token.1);
        for (id, want) in (0..).zip(want) {
            assert!((f64::from(share(id)) - want).abs() < 1e-5, "{params:?}: {told:?}: {want}");
        }
        assert!(of_id == share(id) && told.is_sorted_by(|a, b| a.1 >= b.1), "{params:?}: {told:?}");
        assert_eq!(sampler.shares(id, &row, 1).1, told[..1]);
    }

    #[test]
    fn draws_follow_the_distribution_that_the_filters_leave() {
        let probs = [0.1, 0.4, 0.2, 0.3];
        check(&plain(), &probs, &probs);
        check(&SamplingParams { top_k: 2, ..plain() }, &probs, &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
        check(
            &SamplingParams { top_p: 0.65, ..plain() },
            &probs,
            &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0],
        );
        check(
            &SamplingParams { top_p: 0.75, ..plain() },
            &probs,
            &[0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0],
        );
        check(&SamplingParams { top_p: 0.01, ..plain() }, &probs, &[0.0, 1.0, 0.0, 0.0]);
        check(&SamplingParams { min_p: 0.6, ..plain() }, &probs, &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
        // Top-p looks at the distribution that top-k left: 4/7 reaches 0.55.
        check(&SamplingParams { top_k: 2, top_p: 0.55, ..plain() }, &probs, &[0.0, 1.0, 0.0, 0.0]);
        let squared = probs.map(|p| p * p / 0.3);
        check(&SamplingParams { temperature: 0.5, ..plain() }, &probs, &squared);
        // Tokens whose logits are changed are drawn beside the others, and alone.
        let logit_bias = vec![(1, 0.5_f32.ln()), (3, 2_f32.ln())];
        let changed = SamplingParams { logit_bias, ..plain() };
        check(&changed, &probs, &[1.0, 2.0, 2.0, 6.0].map(|w| w / 11.0));
        check(&changed, &[0.0, 0.4, 0.0, 0.6], &[0.0, 1.0 / 7.0, 0.0, 6.0 / 7.0]);
        check(&SamplingParams { top_p: 0.8, ..changed }, &probs, &[0.0, 0.2, 0.2, 0.6]);
    }

    /// The next token by the documented steps, each over the sorted vocabulary, with the draw
    /// that a sampler of this seed makes first.
    fn by_sorting(params: &SamplingParams, logits: &[f32]) -> u32 {
        let by_weight =
            |a: &(f64, u32), b: &(f64, u32)| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1));
        let mut all: Vec<(f64, u32)> = logits.iter().map(|&x| f64::from(x)).zip(0..).collect();
        all.sort_by(by_weight);
        let max = all[0].0;
        if params.temperature == 0.0 {
            return all[0].1;
        }
        if params.top_n_sigma > 0.0 {
            let mean = all.iter().map(|(x, _)| x).sum::<f64>() / all.len() as f64;
            let squares = all.iter().map(|(x, _)| (x - mean).powi(2)).sum::<f64>();
            let deviation = (squares / all.len() as f64).sqrt();
            all.retain(|(x, _)| *x >= max - f64::from(params.top_n_sigma) * deviation);
        }
        let by_k = (1..logits.len()).contains(&params.top_k);
        all.truncate(if by_k { params.top_k } else { all.len() });
        let temperature = f64::from(params.temperature);
        let (first, last) =
            if params.temperature_last { (1.0, temperature) } else { (temperature, 1.0) };
        all.iter_mut().for_each(|(x, _)| *x = ((*x - max) / first).exp());
        let total = |all: &[(f64, u32)]| -> f64 { all.iter().map(|(w, _)| w).sum() };
        if params.typical_p < 1.0 {
            let sum = total(&all);
            let surprise = |w: f64| -(w / sum).ln();
            let entropy: f64 = all.iter().map(|(w, _)| w / sum * surprise(*w)).sum();
            let distance = |token: &(f64, u32)| (surprise(token.0) - entropy).abs();
            all.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
            let (mut reached, goal) = (0.0, sum * f64::from(params.typical_p));
            let last = all.iter().position(|(w, _)| {
                reached += w;
                reached >= goal
            });
            all.truncate(last.map_or(all.len(), |last| last + 1));
            all.sort_by(by_weight);
        }
        if params.top_p < 1.0 {
            let (mut sum, goal) = (0.0, total(&all) * f64::from(params.top_p));
            let last = all.iter().position(|(w, _)| {
                sum += w;
                sum >= goal
            });
            all.truncate(last.map_or(all.len(), |last| last + 1));
        }
        let best = all[0].0;
        all.retain(|(w, _)| *w >= f64::from(params.min_p) * best);
        let mut rng = ChaCha8Rng::seed_from_u64(params.seed.unwrap());
        let mut unit = || (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let draw = unit();
        if params.uses_xtc() && unit() < f64::from(params.xtc_probability) {
            let least = f64::from(params.xtc_threshold) * total(&all);
            let n_top = all.iter().filter(|(w, _)| *w >= least).count();
            all.drain(..n_top.saturating_sub(1));
        }
        all.iter_mut().for_each(|(w, _)| *w = w.powf(1.0 / last));
        if !by_k {
            all.sort_by_key(|(_, id)| *id);
        }
        let goal = draw * total(&all);
        let mut sum = 0.0;
        let drawn = all.iter().find(|(w, _)| {
            sum += w;
            sum > goal
        });
        drawn.unwrap_or(&all[all.len() - 1]).1
    }

    #[test]
    fn choices_are_those_of_a_sorted_vocabulary() {
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        for vocab_size in [1, 50, 64, 1000, 20_011] {
            for temperature in [0.0, 0.3, 1.0, 5.0] {
                for top_k in [0, 1, 40, 700] {
                    for (top_p, min_p) in
                        [(1.0, 0.0), (0.95, 0.0), (0.3, 0.0), (1.0, 0.05), (0.9, 0.01)]
                    {
                        let seed = Some(rng.next_u64());
                        let temperature_last = rng.next_u64().is_multiple_of(2);
                        let order = SamplingParams { temperature_last, ..plain() };
                        let params =
                            SamplingParams { temperature, top_k, top_p, min_p, seed, ..order };
                        let unit = |x: u64| (x >> 40) as f32 / (1 << 24) as f32;
                        let mut logit = || unit(rng.next_u64()) * 4.0 + unit(rng.next_u64()) * 8.0;
                        let mut logits: Vec<f32> = (0..vocab_size).map(|_| logit()).collect();
                        let mut sampler = Sampler::new(params.clone(), vocab_size).unwrap();
                        let want = by_sorting(&params, &logits);
                        assert_eq!(sampler.sample(&mut logits), Ok(want), "{params:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn choices_of_further_filters_are_those_of_a_sorted_vocabulary() {
        let mut rng = ChaCha8Rng::seed_from_u64(10);
        let unit = |x: u64| (x >> 40) as f32 / (1 << 24) as f32;
        let typical = |typical_p| SamplingParams { typical_p, ..plain() };
        let sigma = |top_n_sigma| SamplingParams { top_n_sigma, ..plain() };
        let xtc = |xtc_probability, xtc_threshold| SamplingParams {
            xtc_probability,
            xtc_threshold,
            ..plain()
        };
        let all = SamplingParams { top_n_sigma: 2.0, typical_p: 0.9, ..xtc(0.7, 0.02) };
        for further in [
            typical(0.01),
            typical(0.5),
            typical(0.95),
            typical(0.999),
            sigma(0.1),
            sigma(1.0),
            sigma(3.0),
            xtc(0.5, 0.01),
            xtc(1.0, 0.1),
            xtc(1.0, 0.0),
            xtc(1.0, 0.6),
            all,
        ] {
            for vocab_size in [1, 50, 64, 1000, 20_011] {
                for temperature in [0.0, 0.3, 1.0, 5.0] {
                    for (top_k, top_p, min_p) in [
                        (0, 1.0, 0.0),
                        (40, 1.0, 0.0),
                        (0, 0.9, 0.0),
                        (0, 1.0, 0.1),
                        (40, 0.9, 0.1),
                    ] {
                        let seed = Some(rng.next_u64());
                        let temperature_last = rng.next_u64().is_multiple_of(2);
                        let further = SamplingParams { temperature_last, ..further.clone() };
                        let params =
                            SamplingParams { temperature, top_k, top_p, min_p, seed, ..further };
                        let mut logit = || unit(rng.next_u64()) * 4.0 + unit(rng.next_u64()) * 8.0;
                        let mut logits: Vec<f32> = (0..vocab_size).map(|_| logit()).collect();
                        let mut sampler = Sampler::new(params.clone(), vocab_size).unwrap();
                        let want = by_sorting(&params, &logits);
                        let got = sampler.sample(&mut logits);
                        assert_eq!(got, Ok(want), "{params:?} of {vocab_size}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_temperature_that_comes_last_changes_what_is_drawn_and_not_what_is_kept() {
        let probs = [0.1, 0.4, 0.2, 0.3];
        let last = |temperature| SamplingParams { temperature, temperature_last: true, ..plain() };
        // Of 0.4 and 0.3, whose squares and roots are drawn by.
        let kept = |temperature| SamplingParams { min_p: 0.6, ..last(temperature) };
        check(&kept(0.5), &probs, &[0.0, 16.0 / 25.0, 0.0, 9.0 / 25.0]);
        let roots = [0.4_f64, 0.3].map(f64::sqrt);
        let sum = roots[0] + roots[1];
        check(&kept(2.0), &probs, &[0.0, roots[0] / sum, 0.0, roots[1] / sum]);
        // Typical-p drops the best token; what is left must not vanish beside it.
        let typical = SamplingParams { typical_p: 0.2, ..last(0.001) };
        check(&typical, &probs, &[0.0, 0.0, 0.0, 1.0]);
        // Without a filter there is one order.
        let squared = probs.map(|p| p * p / 0.3);
        check(&last(0.5), &probs, &squared);
    }

    #[test]
    fn further_filters_leave_their_distributions() {
        let probs = [0.1, 0.4, 0.2, 0.3];
        // The entropy is 1.280; the surprises are 2.303, 0.916, 1.609 and 1.204.
        let typical = |typical_p| SamplingParams { typical_p, ..plain() };
        check(&typical(0.2), &probs, &[0.0, 0.0, 0.0, 1.0]);
        check(&typical(0.4), &probs, &[0.0, 0.0, 0.4, 0.6]);
        check(&typical(0.8), &probs, &[0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0]);
        // The best token went, so min-p is relative to the one of 0.3.
        let relative = SamplingParams { min_p: 0.65, ..typical(0.4) };
        check(&relative, &probs, &[0.0, 0.0, 0.4, 0.6]);
        // The logarithms' deviation is 0.512, and the best is 0.288, 0.693 and 1.386 above the
        // others.
        let sigma = |top_n_sigma| SamplingParams { top_n_sigma, ..plain() };
        check(&sigma(0.5), &probs, &[0.0, 1.0, 0.0, 0.0]);
        check(&sigma(1.0), &probs, &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
        check(&sigma(2.0), &probs, &[0.0, 4.0 / 9.0, 2.0 / 9.0, 3.0 / 9.0]);
        check(&sigma(-1.0), &probs, &probs);
        // Two are at least as likely as 0.25, and the better one is excluded half of the time.
        let xtc = |xtc_probability, xtc_threshold| SamplingParams {
            xtc_probability,
            xtc_threshold,
            ..plain()
        };
        check(&xtc(1.0, 0.25), &probs, &[1.0 / 6.0, 0.0, 2.0 / 6.0, 3.0 / 6.0]);
        let mean = [0.4 / 3.0, 0.2, 0.8 / 3.0, 0.4];
        check(&xtc(0.5, 0.25), &probs, &mean);
        check(&xtc(1.0, 0.35), &probs, &probs);
        check(&xtc(1.0, 0.6), &probs, &probs);
        // The threshold is compared with what top-k left: 0.3 has become 0.43.
        let two = SamplingParams { top_k: 2, ..xtc(1.0, 0.42) };
        check(&two, &probs, &[0.0, 0.0, 0.0, 1.0]);
        // Mirostat keeps what has at most two bits of surprise, whatever the filters say.
        let mirostat = SamplingParams { mirostat: 2, mirostat_tau: 1.0, top_k: 1, ..xtc(1.0, 0.1) };
        check(&mirostat, &probs, &[0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
    }

    #[test]
    fn what_is_off_draws_nothing() {
        let run = |params: SamplingParams| -> Vec<u32> {
            let mut sampler = Sampler::new(params, 50).unwrap();
            (0..40).map(|_| sampler.sample(&mut [0.0; 50]).unwrap()).collect()
        };
        let want = run(plain());
        assert_eq!(run(SamplingParams { xtc_threshold: 0.01, ..plain() }), want);
        let above = SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.51, ..plain() };
        assert_eq!(run(above), want);
        // One that never finds two top choices still draws, so that it changes what follows.
        let xtc = SamplingParams { xtc_probability: 0.5, xtc_threshold: 0.5, ..plain() };
        let got = run(xtc.clone());
        assert_eq!(got[0], want[0]);
        assert_ne!(got, want);
        assert_eq!(run(xtc), got);
        let mirostat = SamplingParams { mirostat: 2, ..plain() };
        assert_eq!(run(mirostat), want);
    }

    #[test]
    fn mirostat_follows_the_tokens_that_are_accepted() {
        // Three bits each, so that a bound below is met by the best token alone.
        let params =
            SamplingParams { mirostat: 2, mirostat_tau: 2.0, mirostat_eta: 1.0, ..plain() };
        let mut sampler = Sampler::new(params, 8).unwrap();
        let mut next = || {
            let id = sampler.sample(&mut [1.0; 8]).unwrap();
            sampler.accept(id);
            id
        };
        // From 4, the bound falls by 1 to 3, which still allows all, and then to 2. The best token
        // alone has no surprise: it rises to 4 again.
        let ids: Vec<u32> = (0..60).map(|_| next()).collect();
        assert!(ids.iter().skip(2).step_by(3).all(|&id| id == 0), "{ids:?}");
        assert!((1..8).all(|id| ids.contains(&id)), "{ids:?}");
    }

    #[test]
    fn dry_looks_at_prompt_and_answer_after_the_penalties() {
        let params = SamplingParams {
            dry_multiplier: 1.5,
            dry_base: 2.0,
            presence_penalty: 0.5,
            ..SamplingParams::greedy()
        };
        let adjusted = |params: &SamplingParams| {
            let bytes = TokenBytes::of(&["a", "b", "c", ":"]);
            let mut sampler = Sampler::with_bytes(params.clone(), 4, Some(bytes)).unwrap();
            sampler.add_prompt(&[0, 1, 2, 3, 0, 1, 2]);
            [0, 1].into_iter().for_each(|id| sampler.accept(id));
            let mut logits = [1.0; 4];
            sampler.sample(&mut logits).unwrap();
            logits
        };
        // "a b" was followed by "c" twice and is preceded by "c" now, but not before.
        assert_eq!(adjusted(&params), [0.5, 0.5, -0.5, 1.0]);
        let off = SamplingParams { dry_multiplier: 0.0, ..params.clone() };
        assert_eq!(adjusted(&off), [0.5, 0.5, 1.0, 1.0]);
        assert_eq!(Sampler::new(params, 4).err(), Some(Error::NoTokenizer));
    }

    #[test]
    fn greedy_takes_the_lowest_id_among_equals() {
        let mut sampler = Sampler::new(SamplingParams::greedy(), 4).unwrap();
        assert_eq!(sampler.sample(&mut [1.0, 3.0, 3.0, 2.0]), Ok(1));
        assert_eq!(sampler.sample(&mut [f32::NEG_INFINITY, -5.0, -5.0, -6.0]), Ok(1));
    }

    #[test]
    fn bias_changes_the_choice() {
        let bias = SamplingParams { logit_bias: vec![(2, -1.5)], ..SamplingParams::greedy() };
        let mut sampler = Sampler::new(bias, 3).unwrap();
        let mut logits = [1.0, 2.0, 3.0];
        assert_eq!(sampler.sample(&mut logits), Ok(1));
        assert_eq!(logits, [1.0, 2.0, 1.5]);
    }

    #[test]
    fn same_seed_same_choices() {
        let run = |seed| {
            let mut sampler = Sampler::new(SamplingParams { seed, ..plain() }, 50).unwrap();
            let ids: Vec<u32> = (0..40).map(|_| sampler.sample(&mut [0.0; 50]).unwrap()).collect();
            (ids, sampler.seed())
        };
        let (ids, seed) = run(Some(42));
        assert_eq!(seed, 42);
        assert_eq!(run(Some(42)).0, ids);
        assert_ne!(run(Some(43)).0, ids);
        let (drawn, seed) = run(None);
        assert_eq!(run(Some(seed)).0, drawn);
    }

    #[test]
    fn unusable_logits_are_errors() {
        let mut sampler = Sampler::new(plain(), 2).unwrap();
        let nan = sampler.sample(&mut [0.0, f32::NAN]);
        assert!(matches!(nan, Err(Error::Logit { id: 1, .. })));
        let none = sampler.sample(&mut [f32::NEG_INFINITY; 2]);
        assert_eq!(none, Err(Error::NoToken));
        assert_eq!(sampler.sample(&mut [0.0]), Err(Error::Length { expected: 2, found: 1 }));
        let bias = SamplingParams { logit_bias: vec![(2, 1.0)], ..plain() };
        let error = Sampler::new(bias, 2).err();
        assert_eq!(error, Some(Error::BiasId { id: 2, vocab_size: 2 }));
    }
}
