//! The repetition, presence and frequency penalties, and the tokens that they count.
//!
//! The repetition penalty counts the last `repeat_last_n` tokens, prompt included. The other two count all
//! generated tokens, as OpenAI and vLLM do, or with [`SamplingParams::penalize_prompt`] the tokens of that
//! window too, as llama.cpp does.

use super::SamplingParams;
use super::candidates::Adjusted;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

/// The counts of one request.
#[derive(Debug)]
pub(super) struct Penalties {
    repetition: f32,
    presence: f32,
    frequency: f32,
    last_n: usize,
    counts_window: bool,          // presence and frequency count the window
    recent: VecDeque<u32>,        // the last `last_n` tokens, unless the window has no end
    window: HashMap<u32, u32>,    // occurrences in the window
    generated: HashMap<u32, u32>, // occurrences of generated tokens
}

impl Penalties {
    pub(super) fn new(params: &SamplingParams) -> Self {
        let SamplingParams { repetition_penalty, presence_penalty, frequency_penalty, .. } =
            *params;
        Self {
            repetition: repetition_penalty,
            presence: presence_penalty,
            frequency: frequency_penalty,
            last_n: params.repeat_last_n,
            counts_window: params.penalize_prompt,
            recent: VecDeque::new(),
            window: HashMap::new(),
            generated: HashMap::new(),
        }
    }

    /// Whether they change a logit.
    pub(super) fn are_on(&self) -> bool {
        self.needs_window() || self.needs_generated()
    }

    fn counts(&self) -> bool {
        self.presence != 0.0 || self.frequency != 0.0
    }

    fn needs_window(&self) -> bool {
        self.last_n > 0 && (self.repetition != 1.0 || self.counts_window && self.counts())
    }

    fn needs_generated(&self) -> bool {
        !self.counts_window && self.counts()
    }

    /// Makes room for `n_tokens` tokens of a vocabulary, so that to count them allocates nothing.
    pub(super) fn reserve(&mut self, n_tokens: usize, vocab_size: usize) {
        let n_ids = n_tokens.min(vocab_size);
        if self.needs_generated() {
            self.generated.reserve(n_ids);
        }
        if self.needs_window() && self.last_n == usize::MAX {
            self.window.reserve(n_ids);
        } else if self.needs_window() {
            self.recent.reserve(n_tokens.min(self.last_n));
            // A table that tokens leave is cleaned up in place if it is at most half full.
            self.window.reserve(n_ids.min(self.last_n).saturating_add(1).saturating_mul(2));
        }
    }

    /// Counts the tokens of a prompt.
    pub(super) fn add_prompt(&mut self, ids: &[u32]) {
        let start = ids.len().saturating_sub(self.last_n);
        ids[start..].iter().for_each(|&id| self.push(id));
    }

    /// Counts a generated token.
    pub(super) fn accept(&mut self, id: u32) {
        self.push(id);
        if self.needs_generated() {
            *self.generated.entry(id).or_insert(0) += 1;
        }
    }

    /// Moves the window on by a token.
    fn push(&mut self, id: u32) {
        if !self.needs_window() {
            return;
        }
        if self.last_n < usize::MAX {
            if self.recent.len() == self.last_n
                && let Some(oldest) = self.recent.pop_front()
                && let Entry::Occupied(mut count) = self.window.entry(oldest)
            {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
            self.recent.push_back(id);
        }
        *self.window.entry(id).or_insert(0) += 1;
    }

    /// The tokens whose logits they change; some may come twice.
    pub(super) fn touched(&self) -> impl Iterator<Item = &u32> {
        self.window.keys().chain(self.generated.keys())
    }

    /// Changes the logits of the counted tokens.
    pub(super) fn apply(&self, logits: &mut (impl Adjusted + ?Sized)) {
        if self.repetition != 1.0 {
            for &id in self.window.keys() {
                if let Some(logit) = logits.logit(id) {
                    let by = self.repetition;
                    *logit = if *logit > 0.0 { *logit / by } else { *logit * by };
                }
            }
        }
        if !self.counts() {
            return;
        }
        let counts = if self.counts_window { &self.window } else { &self.generated };
        for (&id, &count) in counts {
            if let Some(logit) = logits.logit(id) {
                *logit -= self.presence + self.frequency * count as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::Sampler;

    /// The logits that penalties leave of `logits`.
    fn adjusted(
        params: &SamplingParams,
        prompt: &[u32],
        generated: &[u32],
        mut logits: [f32; 4],
    ) -> [f32; 4] {
        let mut sampler = Sampler::new(params.clone(), 4).expect("parameters");
        sampler.add_prompt(prompt);
        generated.iter().for_each(|&id| sampler.accept(id));
        sampler.sample(&mut logits).expect("a token");
        logits
    }

    #[test]
    fn the_repetition_penalty_counts_the_last_tokens_of_prompt_and_answer_once() {
        let check = |last_n: usize, prompt: &[u32], generated: &[u32], want: [f32; 4]| {
            let params = SamplingParams {
                repetition_penalty: 2.0,
                repeat_last_n: last_n,
                ..SamplingParams::greedy()
            };
            for penalize_prompt in [false, true] {
                let params = SamplingParams { penalize_prompt, ..params.clone() };
                assert_eq!(adjusted(&params, prompt, generated, [1.0, 2.0, -3.0, 4.0]), want);
            }
        };
        check(2, &[0, 1], &[2, 2], [1.0, 2.0, -6.0, 4.0]);
        check(3, &[0, 1], &[2, 2], [1.0, 1.0, -6.0, 4.0]);
        check(64, &[0, 1], &[2], [0.5, 1.0, -6.0, 4.0]);
        check(0, &[0, 1], &[2], [1.0, 2.0, -3.0, 4.0]);
        let long: Vec<u32> = [3].into_iter().chain([0; 200]).collect();
        check(64, &long, &[], [0.5, 2.0, -3.0, 4.0]);
        check(usize::MAX, &long, &[1], [0.5, 1.0, -3.0, 2.0]);
    }

    #[test]
    fn presence_and_frequency_count_generated_tokens_or_the_window() {
        let check = |penalize_prompt, last_n, prompt: &[u32], generated: &[u32], want| {
            let params = SamplingParams {
                presence_penalty: 0.5,
                frequency_penalty: 0.25,
                repeat_last_n: last_n,
                penalize_prompt,
                ..SamplingParams::greedy()
            };
            assert_eq!(adjusted(&params, prompt, generated, [4.0; 4]), want);
        };
        // As vLLM: token 0 is in the prompt alone, and no window ends.
        check(false, 64, &[0, 1], &[1, 1, 2], [4.0, 3.0, 3.25, 4.0]);
        check(false, 0, &[0, 1], &[1, 1, 2], [4.0, 3.0, 3.25, 4.0]);
        check(false, 2, &[0, 1], &[1, 1, 2, 2], [4.0, 3.0, 3.0, 4.0]);
        // As llama.cpp: the prompt counts, and what left the window does not; without a window, nothing does.
        check(true, 64, &[0, 1], &[1, 1, 2], [3.25, 2.75, 3.25, 4.0]);
        check(true, 3, &[0, 1], &[1, 1, 2], [4.0, 3.0, 3.25, 4.0]);
        check(true, usize::MAX, &[0; 100], &[1], [-21.5, 3.25, 4.0, 4.0]);
        check(true, 0, &[0, 1], &[1, 1, 2], [4.0; 4]);
    }

    #[test]
    fn all_penalties_of_a_token_add_up_in_llama_cpps_order() {
        let params = SamplingParams {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            penalize_prompt: true,
            ..SamplingParams::greedy()
        };
        // 4 / 2 - 0.5 - 2 * 0.25.
        assert_eq!(adjusted(&params, &[0], &[0], [4.0; 4]), [1.0, 4.0, 4.0, 4.0]);
    }
}
