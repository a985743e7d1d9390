//! Generation: a prompt in, tokens and text out, one sequence at a time.
//!
//! A [`Session`] keeps its sequence between calls, so a conversation pays only
//! for what is new, unless a sliding window has let go of what it would need. What it keeps was written by prompt rows; tokens that the
//! model generated are run again when they come back in a prompt, so that an
//! answer never depends on how its prompt came about.

use crate::Error;
use crate::backend::Role;
use crate::constrain::{Constraint, TokenMask};
use crate::model::Model;
use crate::runner::{Chunk, Outputs, Runner, SeqId};
use crate::sampling::logprobs::LogSoftmax;
use crate::sampling::{Sampler, SamplingParams, StopMatcher};
use serde::Serialize;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// What is wanted of a generation.
#[derive(Debug, Clone)]
pub struct GenerateParams {
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// The most tokens to generate; `None` goes on to the end of the context.
    pub max_tokens: Option<usize>,
    /// Texts that end the generation; they are not part of it.
    pub stop: Vec<String>,
    /// Never chooses an end-of-generation token.
    pub ignore_eos: bool,
    /// How many of the most likely tokens to report at each step.
    pub logprobs: Option<usize>,
    /// What the answer must look like: the beginning of an answer, which is cloned for each. The
    /// answer ends where nothing can follow; short of that it may only be cut by `max_tokens`, a
    /// stop text or the caller.
    pub constraint: Option<Constraint>,
}

impl Default for GenerateParams {
    fn default() -> Self {
        let sampling = SamplingParams::default();
        Self {
            sampling,
            max_tokens: None,
            stop: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            constraint: None,
        }
    }
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model's end-of-generation token, or a stop text.
    Stop,
    /// The most tokens, or the end of the context.
    Length,
    /// The caller.
    Cancelled,
}

/// A likely token at one step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TopLogprob {
    /// The token.
    pub id: u32,
    /// Its log-probability before any sampling parameter.
    pub logprob: f32,
}

/// What happens during a generation.
#[derive(Debug)]
pub enum Event<'a> {
    /// A part of the prompt was run.
    Prompt {
        /// Tokens of the prompt that are done.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
    },
    /// A token was generated.
    Token(TokenEvent<'a>),
}

/// A token, as it is generated.
#[derive(Debug)]
pub struct TokenEvent<'a> {
    /// The token.
    pub id: u32,
    /// The text that it made certain, which may be none, or that of several.
    pub text: &'a str,
    /// Its log-probability, when they were asked for.
    pub logprob: Option<f32>,
    /// The most likely tokens, when they were asked for, best first.
    pub top_logprobs: &'a [TopLogprob],
}

/// Where the time went.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Timings {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, how many the session still held.
    pub cached_tokens: usize,
    /// From the call to the first token's logits.
    pub prompt: Duration,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// From the first token's logits to the end.
    pub generate: Duration,
}

/// The result of a generation.
#[derive(Debug, Clone)]
pub struct Generation {
    /// The tokens, without the end-of-generation token that stopped it.
    pub ids: Vec<u32>,
    /// Their text, up to a stop text.
    pub text: String,
    /// The end of `text` that no [`TokenEvent`] told of: it was held back as the
    /// possible beginning of a stop text or of a character.
    pub tail: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The log-probability of each token, when they were asked for.
    pub logprobs: Vec<f32>,
    /// The most likely tokens at each step, when they were asked for.
    pub top_logprobs: Vec<Vec<TopLogprob>>,
    /// Where the time went.
    pub timings: Timings,
}

/// A sequence that is kept between generations.
#[derive(Debug)]
pub struct Session {
    seq: SeqId,
    /// The tokens at the front of the sequence that were run as prompts.
    prompt: Vec<u32>,
}

impl Model {
    /// A new session.
    pub fn new_session(&mut self) -> Session {
        Session { seq: self.runner().new_sequence(), prompt: Vec::new() }
    }
}

impl Session {
    /// Frees the session's part of the key-value cache.
    pub fn close(self, model: &mut Model) {
        model.runner().remove(self.seq);
    }

    /// Generates after the prompt `ids` and tells `on_event` of each part of the
    /// prompt and of each token; it may cancel at any of them.
    ///
    /// # Errors
    /// If a parameter is out of range, the prompt is empty or does not fit the
    /// context, no token continues the answer as its constraint wants it, or the
    /// device fails.
    pub fn generate(
        &mut self,
        model: &mut Model,
        ids: &[u32],
        params: &GenerateParams,
        on_event: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> Result<Generation, Error> {
        let started = Instant::now();
        let (tokenizer, runner) = model.parts()?;
        let mut sampler = Sampler::new(params.sampling.clone(), runner.vocab_size())?;
        let mut stops = StopMatcher::new(params.stop.clone())?;
        if ids.is_empty() {
            return Err(Error::Request("the prompt has no tokens".to_owned()));
        }
        let room = runner.max_seq_len().checked_sub(ids.len()).ok_or_else(|| {
            let (n, max) = (ids.len(), runner.max_seq_len());
            Error::Request(format!("a prompt of {n} tokens does not fit the context of {max}"))
        })?;
        let mut constraint = params.constraint.clone();
        if let Some(found) = constraint.as_ref().map(Constraint::vocab_size)
            && found != tokenizer.vocab_size()
        {
            let expected = tokenizer.vocab_size();
            return Err(Error::Request(format!(
                "the constraint is for a vocabulary of {found} tokens, the model's has {expected}"
            )));
        }
        sampler.add_prompt(ids);
        let mut logits = vec![0.0; runner.vocab_size()];
        // The logits before the sampler changes them, when they are reported.
        let mut raw = vec![0.0; if params.logprobs.is_some() { logits.len() } else { 0 }];
        let mut out = Generation {
            ids: Vec::new(),
            text: String::new(),
            tail: String::new(),
            finish_reason: FinishReason::Length,
            logprobs: Vec::new(),
            top_logprobs: Vec::new(),
            timings: Timings { prompt_tokens: ids.len(), ..Timings::default() },
        };
        let cached_tokens = match self.prefill(runner, ids, &mut logits, on_event)? {
            ControlFlow::Continue(cached_tokens) => cached_tokens,
            ControlFlow::Break(()) => {
                out.finish_reason = FinishReason::Cancelled;
                out.timings.prompt = started.elapsed();
                return Ok(out);
            }
        };
        let prompt = started.elapsed();

        let mut decoder = tokenizer.stream().continuing();
        let mut stopped_by_text = false;
        // The last token's own row needs no room: its logits are not wanted.
        let max_tokens = params.max_tokens.unwrap_or(usize::MAX).min(room + 1);
        let mut complete = constraint.as_ref().is_some_and(Constraint::is_stopped);
        while !complete && out.ids.len() < max_tokens {
            let softmax = params.logprobs.map(|k| {
                raw.copy_from_slice(&logits);
                let (softmax, top) = LogSoftmax::with_top_k(&raw, k);
                let top = top.into_iter().map(|(id, logprob)| TopLogprob { id, logprob });
                out.top_logprobs.push(top.collect());
                softmax
            });
            // Rows that pad the embedding stand for no token.
            let n_tokens = tokenizer.vocab_size().min(logits.len());
            logits[n_tokens..].fill(f32::NEG_INFINITY);
            if params.ignore_eos {
                let eos_ids = tokenizer.eos_ids().iter().map(|&id| id as usize);
                eos_ids.filter(|&id| id < n_tokens).for_each(|id| logits[id] = f32::NEG_INFINITY);
            }
            let mask = constraint.as_mut().map(Constraint::compute_mask).transpose()?;
            let must_end = mask.as_ref().is_some_and(TokenMask::is_end);
            if let Some(mask) = mask.filter(|_| !must_end) {
                mask.apply(&mut logits)?;
            }
            let id = if must_end { None } else { Some(sampler.sample(&mut logits)?) };
            let Some(id) = id.filter(|&id| !tokenizer.is_eos(id)) else {
                out.top_logprobs.truncate(out.ids.len());
                out.finish_reason = FinishReason::Stop;
                break;
            };
            sampler.accept(id);
            if let Some(constraint) = &mut constraint {
                constraint.accept(id)?;
                complete = constraint.is_stopped();
            }
            out.ids.push(id);
            let logprob = softmax.map(|softmax| softmax.of(raw[id as usize]));
            out.logprobs.extend(logprob);
            let found = stops.push(decoder.push(id)?);
            out.text.push_str(found.text);
            stopped_by_text = found.stop.is_some();
            let top_logprobs = out.top_logprobs.last().map_or(&[][..], Vec::as_slice);
            let flow =
                on_event(&Event::Token(TokenEvent { id, text: found.text, logprob, top_logprobs }));
            if stopped_by_text {
                out.finish_reason = FinishReason::Stop;
                break;
            }
            if flow.is_break() {
                out.finish_reason = FinishReason::Cancelled;
                break;
            }
            if !complete && out.ids.len() < max_tokens {
                let tokens = [id];
                let (role, outputs) = (Role::Generated, Outputs::Last);
                let step = Chunk { seq: &self.seq, tokens: &tokens, role, outputs };
                logits.copy_from_slice(runner.step(&[step])?.row(0, 0));
            }
        }
        if complete && out.finish_reason == FinishReason::Length {
            out.finish_reason = FinishReason::Stop;
        }
        if !stopped_by_text {
            // Where the model ended the text, a character that it left incomplete
            // is part of it; where the text was cut, it is not.
            if out.finish_reason == FinishReason::Stop {
                out.tail.push_str(stops.push(&decoder.finish()).text);
            }
            out.tail.push_str(&stops.finish());
            out.text.push_str(&out.tail);
        }
        out.timings = Timings {
            prompt_tokens: ids.len(),
            cached_tokens,
            prompt,
            generated_tokens: out.ids.len(),
            generate: started.elapsed() - prompt,
        };
        Ok(out)
    }

    /// Runs the part of `ids` that the session does not hold as a prompt already,
    /// and gives the logits of its last token. Returns the tokens that it held, or
    /// a break when the caller cancelled; the session keeps what was run.
    fn prefill(
        &mut self,
        runner: &mut Runner,
        ids: &[u32],
        logits: &mut [f32],
        on_event: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<(), usize>, Error> {
        let common = self.prompt.iter().zip(ids).take_while(|(a, b)| a == b).count();
        // The last token is run in any case: its logits are wanted.
        let cached = runner.truncate(&self.seq, common.min(ids.len() - 1));
        self.prompt.truncate(cached);
        let chunk = runner.limits().tokens;
        for tokens in ids[cached..].chunks(chunk) {
            let last = self.prompt.len() + tokens.len() == ids.len();
            let outputs = if last { Outputs::Last } else { Outputs::None };
            let step = Chunk { seq: &self.seq, tokens, role: Role::Prompt, outputs };
            let rows = runner.step(&[step])?;
            if last {
                logits.copy_from_slice(rows.row(0, 0));
            }
            self.prompt.extend_from_slice(tokens);
            let event = Event::Prompt { done: self.prompt.len(), total: ids.len() };
            if on_event(&event).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(cached))
    }
}
