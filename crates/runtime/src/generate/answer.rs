//! One answer as it is generated: from rows of logits to tokens, text and the reason to stop.
//!
//! Who runs the model is no concern here: a session does it for one sequence, the engine for many.

use super::params::{FinishReason, GenerateParams, StopCause, TopLogprob};
use crate::Error;
use crate::text::constrain::{Constraint, TokenMask};
use crate::text::sampling::logprobs::{LogSoftmax, TopK};
use crate::text::sampling::{Sampler, StopMatcher};
use crate::text::tokenizer::{StreamDecoder, Tokenizer};
use std::fmt;
use std::sync::Arc;

/// Logits that the sampler may change, and room to find the most likely ones. One serves any
/// number of answers.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    logits: Vec<f32>,
    top_k: TopK,
}

impl Scratch {
    /// The distribution of a row of logits, `[vocab_size]`, and its `k` most likely tokens.
    pub(crate) fn logprobs(&mut self, row: &[f32], k: usize) -> (LogSoftmax, Vec<TopLogprob>) {
        let (softmax, top) = self.top_k.read(row, k);
        (softmax, top.map(|(id, logprob)| TopLogprob { id, logprob }).collect())
    }
}

/// A token that was chosen.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) id: u32,
    /// The text that it made certain.
    pub(crate) text: String,
    pub(crate) logprob: Option<f32>,
    pub(crate) top_logprobs: Vec<TopLogprob>,
}

/// What a row of logits led to.
#[derive(Debug)]
pub(crate) struct Next {
    /// The token; none where the model ended its answer.
    pub(crate) token: Option<Chosen>,
    /// Set when the answer is complete.
    pub(crate) finished: Option<FinishReason>,
}

/// See the [module](self).
pub(crate) struct Answer {
    tokenizer: Arc<Tokenizer>,
    sampler: Sampler,
    stops: StopMatcher,
    stop_tokens: Vec<u32>,
    min_tokens: usize,
    decoder: Option<StreamDecoder<Arc<Tokenizer>>>,
    ids: Vec<u32>,
    max_tokens: usize,
    ignore_eos: bool,
    logprobs: Option<usize>,
    constraint: Option<Constraint>,
    /// What the constraint allows next, where that was computed ahead.
    mask: Option<TokenMask>,
    /// What of the request ended it.
    stopped_by: Option<StopCause>,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("n_ids", &self.ids.len()).finish_non_exhaustive()
    }
}

impl Answer {
    /// The answer number `index` to `prompt`, of at most `max_tokens` tokens beside what `params`
    /// say, for logits over `vocab_size` tokens.
    pub(crate) fn new(
        tokenizer: Arc<Tokenizer>,
        params: &GenerateParams,
        prompt: &[u32],
        (index, max_tokens): (usize, usize),
        vocab_size: usize,
    ) -> Result<Self, Error> {
        let constraint = params.constraint.clone();
        if let Some(found) = constraint.as_ref().map(Constraint::vocab_size)
            && found != tokenizer.vocab_size()
        {
            let expected = tokenizer.vocab_size();
            return Err(Error::Request(format!(
                "the constraint is for a vocabulary of {found} tokens, the model's has {expected}"
            )));
        }
        if let Some(id) = params.stop_tokens.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(Error::Request(format!(
                "the stop token {id} is not in the vocabulary of {vocab_size} tokens"
            )));
        }
        let mut sampling = params.sampling.clone();
        sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(index as u64));
        let mut sampler = Sampler::with_tokenizer(sampling, vocab_size, &tokenizer)?;
        sampler.add_prompt(prompt);
        let max_tokens = params.max_tokens.unwrap_or(usize::MAX).min(max_tokens);
        sampler.reserve(max_tokens);
        let decoder = StreamDecoder::new(tokenizer.clone()).continuing();
        Ok(Self {
            decoder: Some(decoder.with_specials(&params.shown_tokens)),
            tokenizer,
            sampler,
            stops: StopMatcher::new(params.stop.clone())?,
            stop_tokens: params.stop_tokens.clone(),
            min_tokens: params.min_tokens,
            ids: Vec::with_capacity(max_tokens),
            max_tokens,
            ignore_eos: params.ignore_eos,
            logprobs: params.logprobs,
            constraint,
            mask: None,
            stopped_by: None,
        })
    }

    /// The tokens so far.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The most tokens that it can still get.
    pub(crate) fn remaining(&self) -> usize {
        self.max_tokens - self.ids.len()
    }

    /// Takes the constraint out, so that it can be worked on while the model runs; it must come
    /// back by [`Self::put_constraint`] before the next token is chosen.
    pub(crate) fn take_constraint(&mut self) -> Option<Constraint> {
        self.constraint.take()
    }

    /// Puts the constraint back, with what it allows next.
    pub(crate) fn put_constraint(&mut self, constraint: Constraint, mask: Option<TokenMask>) {
        (self.constraint, self.mask) = (Some(constraint), mask);
    }

    /// What of the request ended it.
    pub(crate) fn stopped_by(&self) -> Option<&StopCause> {
        self.stopped_by.as_ref()
    }

    /// Chooses the token that follows, by its row of logits, `[vocab_size]`.
    pub(crate) fn next(&mut self, row: &[f32], scratch: &mut Scratch) -> Result<Next, Error> {
        let end = |reason| Ok(Next { token: None, finished: Some(reason) });
        if self.constraint.as_ref().is_some_and(Constraint::is_stopped) {
            return end(FinishReason::Stop);
        }
        if self.remaining() == 0 {
            return end(FinishReason::Length);
        }
        scratch.logits.clear();
        scratch.logits.extend_from_slice(row);
        let logits = &mut scratch.logits;
        // Rows that pad the embedding stand for no token.
        let n_tokens = self.tokenizer.vocab_size().min(logits.len());
        logits[n_tokens..].fill(f32::NEG_INFINITY);
        let may_end = self.ids.len() >= self.min_tokens;
        let eos_ids = self.tokenizer.eos_ids().iter().filter(|_| self.ignore_eos || !may_end);
        for &id in eos_ids.chain(self.stop_tokens.iter().filter(|_| !may_end)) {
            if (id as usize) < n_tokens {
                logits[id as usize] = f32::NEG_INFINITY;
            }
        }
        if let Some(constraint) = &mut self.constraint {
            let mask = match self.mask.take() {
                Some(mask) => mask,
                None => constraint.compute_mask()?,
            };
            if mask.is_end() {
                return end(FinishReason::Stop);
            }
            mask.apply(logits)?;
        }
        let id = self.sampler.sample(logits)?;
        if self.stop_tokens.contains(&id) {
            self.stopped_by = Some(StopCause::Token(id));
            return end(FinishReason::Stop);
        }
        if self.tokenizer.is_eos(id) {
            return end(FinishReason::Stop);
        }
        self.sampler.accept(id);
        self.ids.push(id);
        let mut is_complete = false;
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(id)?;
            is_complete = constraint.is_stopped();
        }
        let (mut logprob, mut top_logprobs) = (None, Vec::new());
        if let Some(k) = self.logprobs {
            let softmax;
            (softmax, top_logprobs) = scratch.logprobs(row, k);
            logprob = Some(softmax.of(row[id as usize]));
        }
        let decoder = self.decoder.as_mut().expect("an answer decodes until its tail is taken");
        let text = decoder.push(id)?;
        let text = if self.ids.len() < self.min_tokens {
            text.to_owned()
        } else {
            let found = self.stops.push(text);
            let (text, stop) = (found.text.to_owned(), found.stop);
            self.stopped_by = stop.map(|idx| StopCause::Text(self.stops.stop(idx).to_owned()));
            text
        };
        let finished = if self.stopped_by.is_some() || is_complete {
            Some(FinishReason::Stop)
        } else {
            (self.ids.len() == self.max_tokens).then_some(FinishReason::Length)
        };
        let token = Chosen { id, text, logprob, top_logprobs };
        Ok(Next { token: Some(token), finished })
    }

    /// The end of the text that no token told of, when the answer ends for `reason`.
    pub(crate) fn tail(&mut self, reason: FinishReason) -> String {
        let mut tail = String::new();
        // What was held back before a stop text is known, and nothing after it.
        if !matches!(self.stopped_by, Some(StopCause::Text(_))) {
            // Where the model ended the text, a character that it left incomplete is part of it;
            // where the text was cut, it is not.
            if reason == FinishReason::Stop
                && let Some(decoder) = self.decoder.take()
            {
                tail.push_str(self.stops.push(&decoder.finish()).text);
            }
            tail.push_str(&self.stops.finish());
        }
        tail
    }
}
