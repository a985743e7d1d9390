//! Generates one answer: from rows of logits to tokens, text and a finish reason.
//!
//! The caller runs the model: a session for one sequence, the engine for many. For each row it may
//! [request](Generator::request_sample) a shortlist, then it [samples](Generator::sample) and
//! [detokenizes](Generator::detokenize).

use super::params::{FinishReason, GenerateParams, StopCause, TopLogprob};
use crate::Error;
use crate::run::{GivenList, Results, RowRequests};
use realizar_backends::{SampleLimits, Shortlist, TopKRequest};
use realizar_text::constrain::{Constraint, TokenMask};
use realizar_text::sampling::NextToken;
use realizar_text::sampling::logprobs::{LogSoftmax, TopK};
use realizar_text::sampling::{
    Candidates, Deciding, Sampler, SamplingParams, StopMatcher, Weighed,
};
use realizar_text::tokenizer::{StreamDecoder, Tokenizer};
use std::fmt;
use std::sync::Arc;

/// Buffers for sampling, which any number of generators share.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    logits: Vec<f32>,
    candidates: Candidates,
    /// Tokens that a shortlist has to list.
    listed: Vec<u32>,
    top_k: TopK,
}

impl Scratch {
    /// The log-probability of a token and the `k` most likely ones, from a shortlist; `None` if that
    /// lacks them.
    fn shortlist_logprobs(
        &mut self,
        given: &GivenList<'_>,
        id: u32,
        k: usize,
    ) -> Option<(f32, Vec<TopLogprob>)> {
        let logit = given.logit(id)?;
        let Shortlist { best, total, .. } = given.logprobs?;
        let best = best?.iter().map(|&[id, bits]| (id, f32::from_bits(bits)));
        let (softmax, top) = self.top_k.of_best(best, total?, k)?;
        let top = top.map(|(id, logprob)| TopLogprob { id, logprob }).collect();
        Some((softmax.of(logit), top))
    }

    /// The distribution of a row of logits, and its `k` most likely tokens.
    pub(crate) fn logprobs(
        &mut self,
        row: &[f32], // [vocab_size]
        k: usize,
    ) -> (LogSoftmax, Vec<TopLogprob>) {
        let (softmax, top) = self.top_k.select(row, k);
        (softmax, top.map(|(id, logprob)| TopLogprob { id, logprob }).collect())
    }
}

/// The result of sampling a row, before its text is known.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    /// The token; `None` if the answer ended without one.
    token: Option<SampledToken>,
    /// Set if the answer is complete, whatever its text.
    finished: Option<FinishReason>,
}

#[derive(Debug)]
struct SampledToken {
    id: u32,
    logprob: Option<f32>,
    top_logprobs: Vec<TopLogprob>,
}

impl Sample {
    /// The end of an answer.
    fn end(reason: FinishReason) -> Self {
        Self { token: None, finished: Some(reason) }
    }

    /// The sampled token.
    pub(crate) fn id(&self) -> Option<u32> {
        self.token.as_ref().map(|token| token.id)
    }

    /// Whether the answer is complete, whatever its text.
    pub(crate) fn is_last(&self) -> bool {
        self.finished.is_some()
    }
}

/// A sampled token with its text.
#[derive(Debug)]
pub(crate) struct OutputToken {
    pub(crate) id: u32,
    /// The text that it completed.
    pub(crate) text: String,
    pub(crate) logprob: Option<f32>,
    pub(crate) top_logprobs: Vec<TopLogprob>,
}

/// A [`Sample`] with its text.
#[derive(Debug)]
pub(crate) struct Output {
    /// The token; `None` if the answer ended without one.
    pub(crate) token: Option<OutputToken>,
    /// Set if the answer is complete.
    pub(crate) finished: Option<FinishReason>,
}

/// See the [module](self).
pub(crate) struct Generator {
    tokenizer: Arc<Tokenizer>,
    sampler: Sampler,
    stops: StopMatcher,
    stop_tokens: Vec<u32>,
    min_tokens: usize,
    decoder: Option<StreamDecoder<Arc<Tokenizer>>>,
    ids: Vec<u32>,
    /// The number of tokens that were detokenized.
    n_detokenized: usize,
    max_tokens: usize,
    ignore_eos: bool,
    logprobs: Option<usize>,
    logprobs_of_sampling: bool,
    constraint: Option<Constraint>,
    /// The constraint's mask for the next token, if it was computed before sampling.
    mask: Option<TokenMask>,
    /// The stop text or stop token that ended the answer.
    stopped_by: Option<StopCause>,
}

impl fmt::Debug for Generator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generator").field("n_ids", &self.ids.len()).finish_non_exhaustive()
    }
}

impl Generator {
    /// A generator of answer number `answer_idx` to `prompt`, of at most `max_tokens` tokens and as
    /// `params` say, from logits over `vocab_size` tokens. `default_sampling` is that of the model.
    ///
    /// # Errors
    /// If a parameter is invalid.
    pub(crate) fn new(
        tokenizer: Arc<Tokenizer>,
        vocab_size: usize,
        default_sampling: &SamplingParams,
        params: &GenerateParams,
        prompt: &[u32],
        answer_idx: usize,
        max_tokens: usize,
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
        let mut sampling = params.sampling_or(default_sampling).clone();
        sampling.seed = sampling.seed.map(|seed| seed.wrapping_add(answer_idx as u64));
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
            n_detokenized: 0,
            max_tokens,
            ignore_eos: params.ignore_eos,
            logprobs: params.logprobs,
            logprobs_of_sampling: params.logprobs.is_some() && params.logprobs_of_sampling,
            constraint,
            mask: None,
            stopped_by: None,
        })
    }

    /// The generated tokens.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The number of tokens that may still be generated.
    pub(crate) fn remaining(&self) -> usize {
        self.max_tokens - self.ids.len()
    }

    /// Takes the constraint out, so that its mask can be computed on another thread. It must come back
    /// by [`Self::put_constraint`] before the next token is sampled.
    pub(crate) fn take_constraint(&mut self) -> Option<Constraint> {
        self.constraint.take()
    }

    /// Puts the constraint back, with its mask for the next token.
    pub(crate) fn put_constraint(&mut self, constraint: Constraint, mask: Option<TokenMask>) {
        (self.constraint, self.mask) = (Some(constraint), mask);
    }

    /// The stop text or stop token that ended the answer.
    pub(crate) fn stopped_by(&self) -> Option<&StopCause> {
        self.stopped_by.as_ref()
    }

    /// Computes the constraint's mask for the next token, unless it is known. If that fails, sampling
    /// fails with the error.
    pub(crate) fn compute_mask(&mut self) {
        if self.mask.is_none()
            && let Some(constraint) = &mut self.constraint
            && !constraint.is_stopped()
        {
            self.mask = constraint.compute_mask().ok();
        }
    }

    /// Requests a shortlist of an output row of a chunk, if that decides the sample. The first `row`
    /// tokens after the chunk's first are draft tokens.
    pub(crate) fn request_sample(
        &mut self,
        chunk: usize,
        row: usize,
        requests: &mut RowRequests<'_>,
        scratch: &mut Scratch,
    ) {
        if self.logprobs_of_sampling {
            return; // The distribution after sampling needs all logits.
        }
        let limits = requests.sample_limits();
        let Some(Deciding { n_best, shares, draws }) = self.sampler.deciding(limits.max_best)
        else {
            return;
        };
        // The text after a draft token is not known yet.
        let is_known = row == 0 || !(self.constraint.is_some() || self.sampler.follows_text());
        let has_mask = self.constraint.is_none() || self.mask.is_some();
        if self.logprobs.is_some_and(|k| k > limits.max_best) || !is_known || !has_mask {
            return;
        }
        let listed = &mut scratch.listed;
        listed.clear();
        self.sampler.touched(listed);
        listed.extend(self.excluded(self.ids.len() + row));
        listed.retain(|&id| (id as usize) < self.sampler.vocab_size());
        listed.sort_unstable();
        listed.dedup();
        if listed.len() <= limits.max_listed {
            let mask = self.mask.as_ref().map(TokenMask::words);
            let few = TopKRequest {
                n_best,
                n_tokens: self.tokenizer.vocab_size(),
                shares,
                draw: draws.then(|| self.sampler.place_ahead(row)),
                logprobs: self.logprobs,
            };
            requests.shorten((chunk, row), few, mask, |list| list.extend_from_slice(listed));
        }
    }

    /// Adds this answer's draw to a row that its sibling already requested.
    pub(crate) fn request_draw(&self, chunk: usize, row: usize, requests: &mut RowRequests<'_>) {
        requests.draw((chunk, row), self.sampler.place_ahead(row));
    }

    /// The tokens that may not follow the first `n_before` tokens of the answer.
    fn excluded(&self, n_before: usize) -> impl Iterator<Item = u32> {
        let may_end = n_before >= self.min_tokens;
        let eos_ids = self.tokenizer.eos_ids().iter().filter(move |_| self.ignore_eos || !may_end);
        eos_ids.chain(self.stop_tokens.iter().filter(move |_| !may_end)).copied()
    }

    /// How a device samples the next token from the shortlist of [`Self::request_sample`]; `None` if it
    /// cannot. A misprediction wastes a row of a step.
    pub(crate) fn device_sampling(&self, limits: SampleLimits) -> Option<NextToken> {
        let needs_host = self.constraint.is_some() || self.logprobs_of_sampling;
        if needs_host { None } else { self.sampler.foreseen(limits.max_best) }
    }

    /// Samples the token after an output row of a chunk of which only the shortlist is left; `None` if
    /// that does not decide. Each sample must be [detokenized](Self::detokenize), in order.
    pub(crate) fn sample_ahead(
        &mut self,
        rows: &mut Results<'_>,
        chunk: usize,
        row: usize,
        scratch: &mut Scratch,
    ) -> Result<Option<Sample>, Error> {
        assert!(self.constraint.is_none(), "a constraint needs a mask");
        if self.remaining() == 0 {
            return self.sample(rows, chunk, row, scratch).map(Some);
        }
        let given = rows.shortlist(chunk, row).filter(|_| !self.logprobs_of_sampling);
        let Some(given) = given else { return Ok(None) };
        let has_logprobs = |list: Shortlist<'_>| {
            list.total.is_some() && list.best.is_some_and(|best| !best.is_empty())
        };
        if self.logprobs.is_some() && !given.logprobs.is_some_and(has_logprobs) {
            return Ok(None);
        }
        match self.sample_shortlist(Some(given), None, scratch) {
            Some(id) => self.accept(id, rows, chunk, row, scratch).map(Some),
            None => Ok(None),
        }
    }

    /// Samples the token after an output row of a chunk. Each sample must be
    /// [detokenized](Self::detokenize), in order.
    pub(crate) fn sample(
        &mut self,
        rows: &mut Results<'_>,
        chunk: usize,
        row: usize,
        scratch: &mut Scratch,
    ) -> Result<Sample, Error> {
        if self.constraint.as_ref().is_some_and(Constraint::is_stopped) {
            return Ok(Sample::end(FinishReason::Stop));
        }
        if self.remaining() == 0 {
            return Ok(Sample::end(FinishReason::Length));
        }
        let mut mask = None;
        if let Some(constraint) = &mut self.constraint {
            let known = self.mask.take();
            mask = Some(known.map_or_else(|| constraint.compute_mask(), Ok)?);
        }
        if mask.as_ref().is_some_and(TokenMask::is_end) {
            return Ok(Sample::end(FinishReason::Stop));
        }
        let given = rows.shortlist(chunk, row).filter(|_| !self.logprobs_of_sampling);
        let id = match self.sample_shortlist(given, mask.as_ref(), scratch) {
            Some(id) => id,
            None => self.sample_logits(rows.row(chunk, row)?, mask.as_ref(), scratch)?,
        };
        self.accept(id, rows, chunk, row, scratch)
    }

    /// Appends a sampled token, unless it ends the answer.
    fn accept(
        &mut self,
        id: u32,
        rows: &mut Results<'_>,
        chunk: usize,
        row: usize,
        scratch: &mut Scratch,
    ) -> Result<Sample, Error> {
        if self.stop_tokens.contains(&id) {
            self.stopped_by = Some(StopCause::Token(id));
            return Ok(Sample::end(FinishReason::Stop));
        }
        if self.tokenizer.is_eos(id) {
            return Ok(Sample::end(FinishReason::Stop));
        }
        self.sampler.accept(id);
        self.ids.push(id);
        let mut is_complete = false;
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(id)?;
            is_complete = constraint.is_stopped();
        }
        let (mut logprob, mut top_logprobs) = (None, Vec::new());
        if let Some(k) = self.logprobs.filter(|_| self.logprobs_of_sampling) {
            let (share, most_likely) = self.sampler.shares(id, &scratch.logits, k);
            let top = most_likely.into_iter();
            top_logprobs = top.map(|(id, share)| TopLogprob { id, logprob: share.ln() }).collect();
            logprob = Some(share.ln());
        } else if let Some(k) = self.logprobs {
            let given = rows.shortlist(chunk, row);
            let (of_token, most_likely) =
                match given.and_then(|list| scratch.shortlist_logprobs(&list, id, k)) {
                    Some(found) => found,
                    None => {
                        let row = rows.row(chunk, row)?;
                        let (softmax, most_likely) = scratch.logprobs(row, k);
                        (softmax.of(row[id as usize]), most_likely)
                    }
                };
            (logprob, top_logprobs) = (Some(of_token), most_likely);
        }
        let finished = match is_complete {
            true => Some(FinishReason::Stop),
            false => (self.ids.len() == self.max_tokens).then_some(FinishReason::Length),
        };
        Ok(Sample { token: Some(SampledToken { id, logprob, top_logprobs }), finished })
    }

    /// Samples from a shortlist; `None` if that does not decide.
    fn sample_shortlist(
        &mut self,
        given: Option<GivenList<'_>>,
        mask: Option<&TokenMask>,
        scratch: &mut Scratch,
    ) -> Option<u32> {
        let given = given?;
        let GivenList { of, ids, list, .. } = given;
        let TopKRequest { n_best, n_tokens, .. } = of.contents;
        let best = list.best?.iter().map(|&[id, bits]| (id, f32::from_bits(bits)));
        let bits = list.listed.iter().map(|&bits| f32::from_bits(bits));
        let is_allowed = |id: u32| {
            (id as usize) < n_tokens
                && mask.is_none_or(|mask| mask.allows(id))
                && self.excluded(self.ids.len()).all(|excluded| excluded != id)
        };
        let weighed = self.weighed(&given);
        let listed = ids.iter().copied().zip(bits);
        scratch.candidates.fill(n_best, best, listed, is_allowed, weighed);
        self.sampler.sample_few(&mut scratch.candidates)
    }

    /// The total weight of a shortlist's row, if that was given, and this answer's draw from it.
    fn weighed(&self, given: &GivenList<'_>) -> Option<Weighed> {
        let total = given.list.total?;
        // Without weights nothing is drawn.
        if given.of.contents.draw.is_none() || total == 0 {
            return Some(Weighed { total, drawn: None });
        }
        let drawn = given.drawn(self.sampler.place_ahead(0))?;
        Some(Weighed { total, drawn: Some(drawn) })
    }

    /// Samples from all logits.
    fn sample_logits(
        &mut self,
        row: &[f32], // [vocab_size]
        mask: Option<&TokenMask>,
        scratch: &mut Scratch,
    ) -> Result<u32, Error> {
        scratch.logits.clear();
        scratch.logits.extend_from_slice(row);
        let logits = &mut scratch.logits;
        // Logits after the vocabulary are padding.
        let n_tokens = self.tokenizer.vocab_size().min(logits.len());
        logits[n_tokens..].fill(f32::NEG_INFINITY);
        for id in self.excluded(self.ids.len()) {
            if (id as usize) < n_tokens {
                logits[id as usize] = f32::NEG_INFINITY;
            }
        }
        if let Some(mask) = mask {
            mask.apply(logits)?;
        }
        Ok(self.sampler.sample(logits)?)
    }

    /// Adds its text to a sample, and detects stop texts.
    pub(crate) fn detokenize(&mut self, sample: Sample) -> Result<Output, Error> {
        let Sample { token, finished } = sample;
        let Some(SampledToken { id, logprob, top_logprobs }) = token else {
            return Ok(Output { token: None, finished });
        };
        self.n_detokenized += 1;
        let decoder = self.decoder.as_mut().expect("text is decoded until the tail is taken");
        let text = decoder.push(id)?;
        let (text, stop) = if self.n_detokenized < self.min_tokens {
            (text.to_owned(), None)
        } else {
            let found = self.stops.push(text);
            (found.text.to_owned(), found.stop)
        };
        let cause = stop.map(|idx| StopCause::Text(self.stops.stop(idx).to_owned()));
        let finished = if cause.is_some() { Some(FinishReason::Stop) } else { finished };
        if cause.is_some() {
            self.stopped_by = cause;
        }
        let token = OutputToken { id, text, logprob, top_logprobs };
        Ok(Output { token: Some(token), finished })
    }

    /// The text that is still held back when the answer ends for `reason`.
    pub(crate) fn tail(&mut self, reason: FinishReason) -> String {
        let mut tail = String::new();
        // The text before a stop text is already emitted, and the text after it is dropped.
        if !matches!(self.stopped_by, Some(StopCause::Text(_))) {
            // An incomplete character is part of the text if the model ended it there, but not if the
            // text was cut.
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
