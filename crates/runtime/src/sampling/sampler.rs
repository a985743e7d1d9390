//! The sampler: one request's state and the choice of its next token.
//!
//! The vocabulary is never sorted. Top-k keeps a buffer of a few times k tokens and a threshold
//! that rises as the buffer is cut back; top-p sorts growing heads of the tokens that can be in
//! the nucleus at all. Buffers are reused, so that no token allocates once they have grown.

use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::{Error, SamplingParams};

/// Chooses tokens by the parameters of one request.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    vocab_size: usize,
    seed: u64,
    rng: ChaCha8Rng,
    recent: VecDeque<u32>,        // the last `repeat_last_n` tokens
    generated: HashMap<u32, u32>, // occurrences of generated tokens
    marks: Vec<u64>,              // one bit per token, all clear between calls
    kept: Vec<(f32, u32)>,        // candidates: (logit or weight, id)
}

/// By descending value, then ascending id: a total order, so that ties break the same everywhere.
fn best_first(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

impl Sampler {
    /// A sampler for logits over `vocab_size` tokens.
    ///
    /// Fails if a parameter is out of its range or a biased token is outside the vocabulary.
    pub fn new(params: SamplingParams, vocab_size: usize) -> Result<Self, Error> {
        params.validate()?;
        if let Some(&(id, _)) = params.logit_bias.iter().find(|(id, _)| *id as usize >= vocab_size)
        {
            return Err(Error::BiasId { id, vocab_size });
        }
        // Without a seed, the hasher's random keys serve as one. It is below 2^32, so that every
        // reader of JSON keeps it.
        let seed = params.seed.unwrap_or_else(|| RandomState::new().hash_one(0_u64) >> 32);
        let n_marks = if params.repetition_penalty == 1.0 { 0 } else { vocab_size.div_ceil(64) };
        Ok(Self {
            vocab_size,
            seed,
            rng: ChaCha8Rng::seed_from_u64(seed),
            recent: VecDeque::new(),
            generated: HashMap::new(),
            marks: vec![0; n_marks],
            kept: Vec::new(),
            params,
        })
    }

    /// The seed in use, given or drawn: with it the same choices can be made again.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Tells the sampler the tokens of the prompt, which only the repetition penalty looks at.
    pub fn add_prompt(&mut self, ids: &[u32]) {
        let start = ids.len().saturating_sub(self.params.repeat_last_n);
        for &id in &ids[start..] {
            self.remember(id);
        }
    }

    /// Tells the sampler that a token was generated.
    pub fn accept(&mut self, id: u32) {
        self.remember(id);
        if self.params.presence_penalty != 0.0 || self.params.frequency_penalty != 0.0 {
            *self.generated.entry(id).or_insert(0) += 1;
        }
    }

    fn remember(&mut self, id: u32) {
        if self.params.repetition_penalty == 1.0 || self.params.repeat_last_n == 0 {
            return;
        }
        if self.recent.len() == self.params.repeat_last_n {
            self.recent.pop_front();
        }
        self.recent.push_back(id);
    }

    /// Chooses a token by its logits, which the steps change in place. The caller tells the
    /// sampler by [`accept`](Self::accept) if the token is used.
    ///
    /// Fails if a logit is NaN or plus infinity, or if no logit is above minus infinity.
    pub fn sample(&mut self, logits: &mut [f32] /* [vocab_size] */) -> Result<u32, Error> {
        if logits.len() != self.vocab_size {
            return Err(Error::Length { expected: self.vocab_size, found: logits.len() });
        }
        self.adjust(logits);
        let (best, max) = best(logits)?;
        if self.params.temperature == 0.0 {
            return Ok(best);
        }
        // One draw per token, whatever is kept, so that the sequence of draws depends on the seed
        // and the position alone.
        let draw = (self.rng.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64);
        let SamplingParams { temperature, top_k, top_p, min_p, .. } = self.params;
        let weight = |logit: f32| ((logit - max) / temperature).exp();

        let total = if (1..logits.len()).contains(&top_k) {
            keep_top_k(&mut self.kept, logits, top_k);
            self.kept.iter_mut().for_each(|(value, _)| *value = weight(*value));
            self.kept.iter().map(|(weight, _)| f64::from(*weight)).sum()
        } else {
            logits.iter_mut().for_each(|logit| *logit = weight(*logit));
            if top_p == 1.0 && min_p == 0.0 {
                let weights = logits.iter().copied().enumerate().map(|(id, w)| (w, id as u32));
                return Ok(pick(weights, draw).unwrap_or(best));
            }
            keep_possible(&mut self.kept, logits, top_p, min_p)
        };
        if top_p < 1.0 {
            let kept_len = nucleus_len(&mut self.kept, total * f64::from(top_p));
            self.kept.truncate(kept_len);
        }
        if min_p > 0.0 {
            self.kept.retain(|(weight, _)| *weight >= min_p); // the best token has weight 1
        }
        Ok(pick(self.kept.iter().copied(), draw).unwrap_or(best))
    }

    /// Applies logit bias and penalties.
    fn adjust(&mut self, logits: &mut [f32]) {
        for &(id, bias) in &self.params.logit_bias {
            logits[id as usize] += bias;
        }
        let penalty = self.params.repetition_penalty;
        if penalty != 1.0 {
            for &id in &self.recent {
                let (word, bit) = (id as usize / 64, 1_u64 << (id % 64));
                let Some(logit) = logits.get_mut(id as usize) else { continue };
                if self.marks[word] & bit == 0 {
                    self.marks[word] |= bit;
                    *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
                }
            }
            for &id in &self.recent {
                if let Some(word) = self.marks.get_mut(id as usize / 64) {
                    *word = 0;
                }
            }
        }
        for (&id, &count) in &self.generated {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit -=
                    self.params.presence_penalty + self.params.frequency_penalty * count as f32;
            }
        }
    }
}

/// The most likely token, the lowest id among equals, and its logit.
fn best(logits: &[f32]) -> Result<(u32, f32), Error> {
    let mut best = (0, f32::NEG_INFINITY);
    for (id, &logit) in logits.iter().enumerate() {
        if logit.is_nan() || logit == f32::INFINITY {
            return Err(Error::Logit { id, value: logit });
        }
        if logit > best.1 {
            best = (id as u32, logit);
        }
    }
    if best.1 == f32::NEG_INFINITY { Err(Error::NoToken) } else { Ok(best) }
}

/// Fills `kept` with the `k` best logits, best first.
pub(super) fn keep_top_k(kept: &mut Vec<(f32, u32)>, logits: &[f32], k: usize) {
    kept.clear();
    let room = k.saturating_mul(2).max(256);
    let mut threshold = f32::NEG_INFINITY;
    for (id, &logit) in logits.iter().enumerate() {
        if logit > threshold {
            kept.push((logit, id as u32));
            if kept.len() == room {
                kept.select_nth_unstable_by(k - 1, best_first);
                kept.truncate(k);
                threshold = kept[k - 1].0;
            }
        }
    }
    if kept.len() > k {
        kept.select_nth_unstable_by(k - 1, best_first);
        kept.truncate(k);
    }
    kept.sort_unstable_by(best_first);
}

/// Fills `kept` with the tokens that top-p or, without it, min-p can keep, in order of id, and
/// returns the weight of all tokens. Tokens below an even share of `1 - top_p` cannot add up to it
/// and so are outside the nucleus.
fn keep_possible(
    kept: &mut Vec<(f32, u32)>,
    weights: &[f32], // [vocab_size], relative to the most likely token
    top_p: f32,
    min_p: f32,
) -> f64 {
    let total: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
    let threshold = if top_p < 1.0 {
        (1.0 - f64::from(top_p)) * total / weights.len() as f64
    } else {
        f64::from(min_p)
    };
    kept.clear();
    let possible = weights.iter().copied().zip(0..).filter(|(w, _)| f64::from(*w) >= threshold);
    kept.extend(possible);
    total
}

/// Orders a head of `kept` best first and returns the length of the shortest head whose weight
/// reaches `goal`.
fn nucleus_len(kept: &mut [(f32, u32)], goal: f64) -> usize {
    let (mut sum, mut sorted, mut head_len) = (0.0_f64, 0, 256);
    while sorted < kept.len() {
        let rest = &mut kept[sorted..];
        let n = head_len.min(rest.len());
        if n < rest.len() {
            rest.select_nth_unstable_by(n - 1, best_first);
        }
        rest[..n].sort_unstable_by(best_first);
        for (i, (weight, _)) in rest[..n].iter().enumerate() {
            sum += f64::from(*weight);
            if sum >= goal {
                return sorted + i + 1;
            }
        }
        sorted += n;
        head_len *= 2;
    }
    kept.len()
}

/// The token at the share `draw` of the total weight, in the order given.
fn pick(weights: impl Iterator<Item = (f32, u32)> + Clone, draw: f64) -> Option<u32> {
    let total: f64 = weights.clone().map(|(weight, _)| f64::from(weight)).sum();
    let goal = draw * total;
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
    }

    #[test]
    fn top_k_of_a_large_vocabulary_keeps_the_lowest_ids_among_equals() {
        let logits: Vec<f32> = (0..5000).map(|i| ((i * 7919) % 1000) as f32).collect();
        let mut want: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
        want.sort_by(best_first);
        for k in [1, 3, 300, 4999] {
            let mut kept = Vec::new();
            keep_top_k(&mut kept, &logits, k);
            assert_eq!(kept, want[..k], "k = {k}");
        }
    }

    #[test]
    fn nucleus_of_a_large_vocabulary_matches_a_full_sort() {
        let logits: Vec<f32> = (0..5000).map(|i| ((i * 7919) % 5000) as f32 / 700.0).collect();
        let max = logits.iter().copied().fold(0.0, f32::max);
        let mut all: Vec<(f32, u32)> = logits.iter().map(|l| (l - max).exp()).zip(0..).collect();
        all.sort_by(best_first);
        let total: f64 = all.iter().map(|(w, _)| f64::from(*w)).sum();
        for top_p in [0.2, 0.9, 0.999] {
            let mut sum = 0.0;
            let want = all.iter().position(|(w, _)| {
                sum += f64::from(*w);
                sum >= total * f64::from(top_p)
            });
            let mut kept = Vec::new();
            let weights: Vec<f32> = logits.iter().map(|l| (l - max).exp()).collect();
            let total = keep_possible(&mut kept, &weights, top_p, 0.0);
            let len = nucleus_len(&mut kept, total * f64::from(top_p));
            assert_eq!(Some(len), want.map(|n| n + 1), "top_p = {top_p}");
            assert_eq!(kept[..len], all[..len]);
        }
    }

    #[test]
    fn greedy_takes_the_lowest_id_among_equals() {
        let mut sampler = Sampler::new(SamplingParams::greedy(), 4).unwrap();
        assert_eq!(sampler.sample(&mut [1.0, 3.0, 3.0, 2.0]), Ok(1));
        assert_eq!(sampler.sample(&mut [f32::NEG_INFINITY, -5.0, -5.0, -6.0]), Ok(1));
    }

    #[test]
    fn bias_and_penalties_change_the_choice() {
        let pick = |params: SamplingParams, prompt: &[u32], generated: &[u32], logits: [f32; 3]| {
            let mut sampler = Sampler::new(params, 3).unwrap();
            sampler.add_prompt(prompt);
            generated.iter().for_each(|&id| sampler.accept(id));
            let mut logits = logits;
            sampler.sample(&mut logits).unwrap();
            logits
        };
        let base = SamplingParams::greedy();
        let bias = SamplingParams { logit_bias: vec![(2, -1.5)], ..base.clone() };
        assert_eq!(pick(bias, &[], &[], [1.0, 2.0, 3.0]), [1.0, 2.0, 1.5]);
        let repeat = SamplingParams { repetition_penalty: 2.0, repeat_last_n: 2, ..base.clone() };
        assert_eq!(pick(repeat, &[0, 1], &[2, 2], [1.0, 2.0, -3.0]), [1.0, 2.0, -6.0]);
        let repeat = SamplingParams { repetition_penalty: 2.0, ..base.clone() };
        assert_eq!(pick(repeat, &[0, 1], &[2], [1.0, 2.0, -3.0]), [0.5, 1.0, -6.0]);
        let counts = SamplingParams { presence_penalty: 0.5, frequency_penalty: 0.25, ..base };
        assert_eq!(pick(counts, &[0], &[1, 1], [1.0, 2.0, 3.0]), [1.0, 1.0, 3.0]);
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
