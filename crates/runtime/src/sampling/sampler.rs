//! The sampler: one request's state and the choice of its next token.
//!
//! The vocabulary is never sorted: [`Blocks`] reads it once, and the filters work on the tokens
//! that they can keep at all. Weights of the whole vocabulary are computed only where top-p or a
//! draw needs their sum. Buffers are reused, so that no token allocates once they have grown.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::scan::{Blocks, Nucleus, Weight, pick};
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
    blocks: Blocks,
    kept: Vec<(f32, u32)>, // candidates: (logit or weight, id)
    nucleus: Nucleus,
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
            blocks: Blocks::default(),
            kept: Vec::new(),
            nucleus: Nucleus::default(),
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

    /// Chooses a token by its logits, to which bias and penalties are applied in place. The caller
    /// tells the sampler by [`accept`](Self::accept) if the token is used.
    ///
    /// Fails if a logit is NaN or plus infinity, or if no logit is above minus infinity.
    pub fn sample(&mut self, logits: &mut [f32] /* [vocab_size] */) -> Result<u32, Error> {
        if logits.len() != self.vocab_size {
            return Err(Error::Length { expected: self.vocab_size, found: logits.len() });
        }
        self.adjust(logits);
        let (best, max) = self.blocks.read(logits)?.ok_or(Error::NoToken)?;
        if self.params.temperature == 0.0 {
            return Ok(best);
        }
        // One draw per token, whatever is kept, so that the sequence of draws depends on the seed
        // and the position alone.
        let draw = (self.rng.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64);
        let SamplingParams { temperature, top_k, top_p, min_p, .. } = self.params;
        let (top_p, min_p) = (f64::from(top_p), f64::from(min_p));
        let weight = Weight::new(max, temperature);
        let Self { blocks, kept, nucleus, .. } = self;
        // What is left of the vocabulary, and its weight where top-p asks for it.
        let total = if (1..logits.len()).contains(&top_k) {
            blocks.top_k(logits, top_k, kept);
            kept.iter_mut().for_each(|(value, _)| *value = weight.of(*value));
            kept.iter().map(|(weight, _)| f64::from(*weight)).sum()
        } else if top_p < 1.0 {
            let total = blocks.sum(logits, weight);
            // Tokens below an even share of `1 - top_p` cannot add up to it, so they are outside
            // the nucleus.
            let share = (1.0 - top_p) * total / logits.len() as f64;
            blocks.keep_heavy(logits, weight, share.max(min_p), kept);
            total
        } else if min_p > 0.0 {
            blocks.keep_heavy(logits, weight, min_p, kept);
            0.0
        } else {
            return Ok(blocks.pick(logits, weight, draw).unwrap_or(best));
        };
        if top_p < 1.0 {
            nucleus.keep(kept, total * top_p);
        }
        if min_p > 0.0 {
            kept.retain(|(weight, _)| f64::from(*weight) >= min_p); // the best token has weight 1
        }
        let left: f64 = kept.iter().map(|(weight, _)| f64::from(*weight)).sum();
        Ok(pick(kept.iter().copied(), draw * left).unwrap_or(best))
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
        let by_k = (1..all.len()).contains(&params.top_k);
        all.truncate(if by_k { params.top_k } else { all.len() });
        all.iter_mut().for_each(|(x, _)| *x = ((*x - max) / f64::from(params.temperature)).exp());
        let total = |all: &[(f64, u32)]| -> f64 { all.iter().map(|(w, _)| w).sum() };
        if params.top_p < 1.0 {
            let (mut sum, goal) = (0.0, total(&all) * f64::from(params.top_p));
            let last = all.iter().position(|(w, _)| {
                sum += w;
                sum >= goal
            });
            all.truncate(last.map_or(all.len(), |last| last + 1));
        }
        all.retain(|(w, _)| *w >= f64::from(params.min_p));
        if !by_k {
            all.sort_by_key(|(_, id)| *id);
        }
        let mut rng = ChaCha8Rng::seed_from_u64(params.seed.unwrap());
        let goal = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 * total(&all);
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
                        let params =
                            SamplingParams { temperature, top_k, top_p, min_p, seed, ..plain() };
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
