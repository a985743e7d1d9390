//! Generation: a prompt in, tokens and text out, one sequence at a time.
//!
//! A [`Session`] keeps its sequence between calls, so a conversation pays only
//! for what is new. Where a sliding window has released what it would need, it
//! pays again, unless the model keeps prefixes. What it keeps was written by prompt
//! rows; tokens that the model generated are recomputed when they come back in a
//! prompt, so that an answer never depends on how its prompt came about.

use super::params::{FinishReason, GenerateParams, TopLogprob};
use super::reply::{Held, Reply};
use super::steps::Steps;
use crate::Error;
use crate::backend::Role;
use crate::run::{Chunk, Model, Outputs, Rows, Runner, SeqId};
use crate::text::template::Message;
use realizar_kvcache::Symbol;
use std::ops::ControlFlow;
use std::time::Duration;

/// What happens during a generation.
#[derive(Debug)]
#[non_exhaustive]
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
    /// Its log-probability, when they were requested.
    pub logprob: Option<f32>,
    /// The most likely tokens, when they were requested, best first.
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
    /// The end of `text` that came with no [`TokenEvent`]: it was held back as the
    /// possible beginning of a stop text or of a character.
    pub tail: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The log-probability of each token, when they were requested.
    pub logprobs: Vec<f32>,
    /// The most likely tokens at each step, when they were requested.
    pub top_logprobs: Vec<Vec<TopLogprob>>,
    /// Where the time went.
    pub timings: Timings,
}

/// A sequence that is kept between generations. Dropping it frees its part of the key-value cache.
#[derive(Debug)]
pub struct Session {
    pub(super) seq: SeqId,
    /// The rows at the front of the sequence that were run as prompts.
    pub(super) prompt: Vec<Symbol>,
}

impl Model {
    /// A new session.
    pub fn new_session(&mut self) -> Session {
        Session { seq: self.runner().new_sequence(), prompt: Vec::new() }
    }
}

/// The positions that a prompt leaves of `max`.
pub(crate) fn check_len(n_tokens: usize, max: usize) -> Result<usize, Error> {
    if n_tokens == 0 {
        return Err(Error::Request("the prompt has no tokens".to_owned()));
    }
    max.checked_sub(n_tokens).ok_or(Error::PromptTooLong { n_tokens, max })
}

impl Session {
    /// A session over a sequence whose rows were run as a prompt.
    pub(crate) fn with_prompt(seq: SeqId, prompt: Vec<Symbol>) -> Self {
        Self { seq, prompt }
    }

    /// The sequence, and its rows that were run as a prompt.
    pub(crate) fn parts(&mut self) -> (&SeqId, &mut Vec<Symbol>) {
        (&self.seq, &mut self.prompt)
    }

    /// Frees the session's part of the key-value cache at once, and not when the model is next used.
    pub fn close(self, model: &mut Model) {
        model.runner().remove(self.seq);
    }

    /// Generates after a prompt, of tokens or a [`Prompt`](crate::Prompt), and calls `on_event` for each
    /// part of the prompt and of each token; it may cancel at any of them.
    ///
    /// # Errors
    /// If a parameter is out of range, the prompt is empty, has what the model cannot run or does not fit
    /// the context, no token continues the answer as its constraint wants it, the model
    /// was loaded for embeddings or its output is not finite, or the device fails.
    pub fn generate<'r>(
        &mut self,
        model: &mut Model,
        prompt: impl Into<Rows<'r>>,
        params: &GenerateParams,
        on_event: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> Result<Generation, Error> {
        let rows = prompt.into();
        let mut steps = Steps::new(model, rows, params)?;
        while steps.step(self, model, rows, on_event)?.is_continue() {}
        Ok(steps.finish())
    }

    /// Generates the answer to a conversation, as a [`Reply`] that is run as far as it is read. The session
    /// keeps the conversation, so that the next call pays only for what is new.
    ///
    /// # Errors
    /// As for [`Self::generate`], and if the model has no chat template or its template refuses the
    /// conversation.
    pub fn chat<'m>(
        &'m mut self,
        model: &'m mut Model,
        messages: &[Message],
        params: &GenerateParams,
    ) -> Result<Reply<'m>, Error> {
        let prompt = model.chat_prompt(messages)?;
        Reply::new(model, Held::Lent(self), prompt.into(), params)
    }

    /// Runs the part of `rows` that the session does not hold as a prompt already, but for the last chunk,
    /// whose logits are wanted. Returns the tokens that it held and where the last chunk begins, or a
    /// break when the caller cancelled; the session keeps what was run.
    pub(super) fn prefill(
        &mut self,
        runner: &mut Runner,
        rows: Rows<'_>,
        on_event: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<(), (usize, usize)>, Error> {
        let n = rows.len();
        let pairs = self.prompt.iter().zip(rows.symbols());
        let common = pairs.take_while(|(a, b)| *a == b).count();
        // The last token is run in any case: its logits are wanted.
        let mut cached = rows.cut(common.min(n - 1));
        loop {
            let left = runner.truncate(&self.seq, cached);
            cached = rows.cut(left);
            if cached == left {
                break;
            }
        }
        if cached == 0 {
            cached = runner.adopt(&self.seq, rows, n - 1);
        } else {
            runner.expect_prompt(&self.seq, n);
        }
        self.prompt.clear();
        self.prompt.extend(rows.slice(0..cached).symbols());
        let most = runner.limits().tokens;
        while n - self.prompt.len() > most {
            let rest = rows.slice(self.prompt.len()..n);
            let chunk = rest.slice(0..rest.cut(most));
            let (role, outputs) = (Role::Prompt, Outputs::None);
            runner.step(&[Chunk { seq: &self.seq, rows: chunk, role, outputs }])?;
            self.prompt.extend(chunk.symbols());
            let event = Event::Prompt { done: self.prompt.len(), total: n };
            if on_event(&event).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue((cached, self.prompt.len())))
    }
}
