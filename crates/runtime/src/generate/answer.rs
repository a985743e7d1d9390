//! One answer as it is generated: from rows of logits to tokens, text and the reason to stop.
//!
//! How the model is run does not matter here: a session does it for one sequence, the engine for many.

use super::params::{FinishReason, GenerateParams, StopCause, TopLogprob};
use crate::Error;
use crate::backend::{Few, Offer, Shortlist};
use crate::run::{GivenList, Results, RowWants};
use crate::text::constrain::{Constraint, TokenMask};
use crate::text::sampling::NextToken;
use crate::text::sampling::logprobs::{LogSoftmax, TopK};
use crate::text::sampling::{Candidates, Deciding, Sampler, SamplingParams, StopMatcher, Weighed};
use crate::text::tokenizer::{StreamDecoder, Tokenizer};
use std::fmt;
use std::sync::Arc;

/// Logits that the sampler may change, and room to find the most likely ones. One serves any
/// number of answers.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    logits: Vec<f32>,
    few: Candidates,
    listed: Vec<u32>,
    top_k: TopK,
}

impl Scratch {
    /// The log-probability of a token and the `k` most likely ones, from lists; `None` if these do not
    /// tell them.
    fn few_logprobs(
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

    /// The distribution of a row of logits, `[vocab_size]`, and its `k` most likely tokens.
    pub(crate) fn logprobs(&mut self, row: &[f32], k: usize) -> (LogSoftmax, Vec<TopLogprob>) {
        let (softmax, top) = self.top_k.read(row, k);
        (softmax, top.map(|(id, logprob)| TopLogprob { id, logprob }).collect())
    }
}

/// The result of a row of logits, before its text is known.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// The token, how likely it was and the most likely ones; `None` if the model ended its answer.
    token: Option<(u32, Option<f32>, Vec<TopLogprob>)>,
    /// Set when the answer is complete, whatever its text.
    finished: Option<FinishReason>,
}

impl Choice {
    /// The token that was chosen.
    pub(crate) fn id(&self) -> Option<u32> {
        self.token.as_ref().map(|token| token.0)
    }

    /// Whether the answer is complete, whatever its text.
    pub(crate) fn is_last(&self) -> bool {
        self.finished.is_some()
    }
}

/// A token that was chosen, with its text.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) id: u32,
    /// The text that it made certain.
    pub(crate) text: String,
    pub(crate) logprob: Option<f32>,
    pub(crate) top_logprobs: Vec<TopLogprob>,
}

/// The result of a row of logits.
#[derive(Debug)]
pub(crate) struct Next {
    /// The token; `None` if the model ended its answer.
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
    /// Of these, whose text is known.
    n_told: usize,
    max_tokens: usize,
    ignore_eos: bool,
    logprobs: Option<usize>,
    logprobs_of_sampling: bool,
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
    /// say, for logits over `vocab_size` tokens of a model with a sampling of its `own`.
    pub(crate) fn new(
        tokenizer: Arc<Tokenizer>,
        (params, own): (&GenerateParams, &SamplingParams),
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
        let mut sampling = params.sampling_or(own).clone();
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
            n_told: 0,
            max_tokens,
            ignore_eos: params.ignore_eos,
            logprobs: params.logprobs,
            logprobs_of_sampling: params.logprobs.is_some() && params.logprobs_of_sampling,
            constraint,
            mask: None,
            stopped_by: None,
        })
    }

    /// The tokens so far.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The maximum number of tokens that it can still get.
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

    /// Computes what the constraint allows next, unless that is known. What fails fails again, with its
    /// error, when a token is chosen.
    pub(crate) fn compute_mask(&mut self) {
        if self.mask.is_none()
            && let Some(constraint) = &mut self.constraint
            && !constraint.is_stopped()
        {
            self.mask = constraint.compute_mask().ok();
        }
    }

    /// Says what it wants of the row number `at.1` of the chunk `at.0`, before which this many tokens of the
    /// chunk are draft tokens: a shortlist, where that decides the choice.
    pub(crate) fn want(
        &mut self,
        at: (usize, usize),
        wants: &mut RowWants<'_>,
        scratch: &mut Scratch,
    ) {
        if self.logprobs_of_sampling {
            return; // all logits tell what is left
        }
        let offer = wants.offer();
        let Some(Deciding { n_best, shares, draws }) = self.sampler.deciding(offer.max_best) else {
            return;
        };
        // After a draft token the text, and so what follows from it, is not known yet.
        let is_known = at.1 == 0 || !(self.constraint.is_some() || self.sampler.follows_text());
        let has_mask = self.constraint.is_none() || self.mask.is_some();
        if self.logprobs.is_some_and(|k| k > offer.max_best) || !is_known || !has_mask {
            return;
        }
        let listed = &mut scratch.listed;
        listed.clear();
        self.sampler.touched(listed);
        listed.extend(self.excluded(self.ids.len() + at.1));
        listed.retain(|&id| (id as usize) < self.sampler.vocab_size());
        listed.sort_unstable();
        listed.dedup();
        if listed.len() <= offer.max_listed {
            let mask = self.mask.as_ref().map(TokenMask::words);
            let few = Few {
                n_best,
                n_tokens: self.tokenizer.vocab_size(),
                shares,
                draw: draws.then(|| self.sampler.place_ahead(at.1)),
                logprobs: self.logprobs,
            };
            wants.shorten(at, few, mask, |list| list.extend_from_slice(listed));
        }
    }

    /// Wants its own draw of a row of which the first answer to the same prompt has said what it wants.
    pub(crate) fn want_draw(&self, at: (usize, usize), wants: &mut RowWants<'_>) {
        wants.draw(at, self.sampler.place_ahead(at.1));
    }

    /// The tokens that may not come as number `n_before` of the answer.
    fn excluded(&self, n_before: usize) -> impl Iterator<Item = u32> {
        let may_end = n_before >= self.min_tokens;
        let eos_ids = self.tokenizer.eos_ids().iter().filter(move |_| self.ignore_eos || !may_end);
        eos_ids.chain(self.stop_tokens.iter().filter(move |_| !may_end)).copied()
    }

    /// How a device finds the next token in the shortlist that [`Self::want`] asks for, if that is one to choose by. A
    /// wrong prediction costs a row of a step.
    pub(crate) fn foreseen(&self, offer: Offer) -> Option<NextToken> {
        let needs_all = self.constraint.is_some() || self.logprobs_of_sampling;
        if needs_all { None } else { self.sampler.foreseen(offer.max_best) }
    }

    /// Chooses the token that follows, by the row number `at.1` of the chunk `at.0`, of which only a shortlist is left:
    /// none where that does not decide. [`Self::tell`] must then be given each choice, in order.
    pub(crate) fn choose_ahead(
        &mut self,
        rows: &mut Results<'_>,
        at: (usize, usize),
        scratch: &mut Scratch,
    ) -> Result<Option<Choice>, Error> {
        assert!(self.constraint.is_none(), "no mask decides");
        if self.remaining() == 0 {
            return self.choose(rows, at, scratch).map(Some);
        }
        let given = rows.shortlist(at.0, at.1).filter(|_| !self.logprobs_of_sampling);
        let Some(given) = given else { return Ok(None) };
        let tells_logprobs = |list: Shortlist<'_>| {
            list.total.is_some() && list.best.is_some_and(|best| !best.is_empty())
        };
        if self.logprobs.is_some() && !given.logprobs.is_some_and(tells_logprobs) {
            return Ok(None);
        }
        match self.choose_of_few(Some(given), None, scratch) {
            Some(id) => self.take(id, rows, at, scratch).map(Some),
            None => Ok(None),
        }
    }

    /// Chooses the token that follows, by the row number `at.1` of the chunk `at.0`. [`Self::tell`] must
    /// then be given each choice, in order.
    pub(crate) fn choose(
        &mut self,
        rows: &mut Results<'_>,
        at: (usize, usize),
        scratch: &mut Scratch,
    ) -> Result<Choice, Error> {
        let end = |reason| Ok(Choice { token: None, finished: Some(reason) });
        if self.constraint.as_ref().is_some_and(Constraint::is_stopped) {
            return end(FinishReason::Stop);
        }
        if self.remaining() == 0 {
            return end(FinishReason::Length);
        }
        let mut mask = None;
        if let Some(constraint) = &mut self.constraint {
            let known = self.mask.take();
            mask = Some(known.map_or_else(|| constraint.compute_mask(), Ok)?);
        }
        if mask.as_ref().is_some_and(TokenMask::is_end) {
            return end(FinishReason::Stop);
        }
        let few = rows.shortlist(at.0, at.1).filter(|_| !self.logprobs_of_sampling);
        let id = match self.choose_of_few(few, mask.as_ref(), scratch) {
            Some(id) => id,
            None => self.choose_of_all(rows.row(at.0, at.1)?, mask.as_ref(), scratch)?,
        };
        self.take(id, rows, at, scratch)
    }

    /// Takes a token that was chosen by a row.
    fn take(
        &mut self,
        id: u32,
        rows: &mut Results<'_>,
        at: (usize, usize),
        scratch: &mut Scratch,
    ) -> Result<Choice, Error> {
        let end = |reason| Ok(Choice { token: None, finished: Some(reason) });
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
        if let Some(k) = self.logprobs.filter(|_| self.logprobs_of_sampling) {
            let (share, most_likely) = self.sampler.shares(id, &scratch.logits, k);
            let top = most_likely.into_iter();
            top_logprobs = top.map(|(id, share)| TopLogprob { id, logprob: share.ln() }).collect();
            logprob = Some(share.ln());
        } else if let Some(k) = self.logprobs {
            let given = rows.shortlist(at.0, at.1);
            let (of_token, most_likely) =
                match given.and_then(|list| scratch.few_logprobs(&list, id, k)) {
                    Some(found) => found,
                    None => {
                        let row = rows.row(at.0, at.1)?;
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
        Ok(Choice { token: Some((id, logprob, top_logprobs)), finished })
    }

    /// Chooses from a shortlist; `None` if that does not decide.
    fn choose_of_few(
        &mut self,
        given: Option<GivenList<'_>>,
        mask: Option<&TokenMask>,
        scratch: &mut Scratch,
    ) -> Option<u32> {
        let given = given?;
        let GivenList { of, ids, list, .. } = given;
        let Few { n_best, n_tokens, .. } = of.few;
        let best = list.best?.iter().map(|&[id, bits]| (id, f32::from_bits(bits)));
        let bits = list.listed.iter().map(|&bits| f32::from_bits(bits));
        let may = |id: u32| {
            (id as usize) < n_tokens
                && mask.is_none_or(|mask| mask.allows(id))
                && self.excluded(self.ids.len()).all(|excluded| excluded != id)
        };
        let weighed = self.weighed(&given);
        scratch.few.fill(n_best, best, ids.iter().copied().zip(bits), may, weighed);
        self.sampler.sample_few(&mut scratch.few)
    }

    /// What all tokens of a shortlist have together, if that was given, with its own draw, if there was one.
    fn weighed(&self, given: &GivenList<'_>) -> Option<Weighed> {
        let total = given.list.total?;
        // Where nothing has a share, nothing is drawn.
        if given.of.few.draw.is_none() || total == 0 {
            return Some(Weighed { total, drawn: None });
        }
        let drawn = given.drawn(self.sampler.place_ahead(0))?;
        Some(Weighed { total, drawn: Some(drawn) })
    }

    /// Chooses from all logits, `[vocab_size]`.
    fn choose_of_all(
        &mut self,
        row: &[f32],
        mask: Option<&TokenMask>,
        scratch: &mut Scratch,
    ) -> Result<u32, Error> {
        scratch.logits.clear();
        scratch.logits.extend_from_slice(row);
        let logits = &mut scratch.logits;
        // Rows that pad the embedding stand for no token.
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

    /// The text of a choice, and whether it ends the answer.
    pub(crate) fn tell(&mut self, choice: Choice) -> Result<Next, Error> {
        let Choice { token, finished } = choice;
        let Some((id, logprob, top_logprobs)) = token else {
            return Ok(Next { token: None, finished });
        };
        self.n_told += 1;
        let decoder = self.decoder.as_mut().expect("an answer decodes until its tail is taken");
        let text = decoder.push(id)?;
        let (text, stop) = if self.n_told < self.min_tokens {
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
        let token = Chosen { id, text, logprob, top_logprobs };
        Ok(Next { token: Some(token), finished })
    }

    /// The end of the text that came with no token, when the answer ends for `reason`.
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
