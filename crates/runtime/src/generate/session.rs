//! Generation for one sequence at a time.
//!
//! A [`Session`] keeps its sequence between calls, so a conversation computes only the tokens that are
//! new. If a sliding window has released keys and values that are needed, they are recomputed, unless
//! the model keeps prefixes. Only prefill rows are kept: generated tokens are recomputed when they come
//! back in a prompt, so that an answer does not depend on how its prompt came about.

use super::params::{FinishReason, GenerateParams, TopLogprob};
use super::reply::{Held, Reply};
use super::steps::Steps;
use crate::Error;
use crate::run::{Chunk, Model, Outputs, Rows, Runner, SeqId};
use realizar_backends::Phase;
use realizar_kvcache::Symbol;
use realizar_text::template::Message;
use std::ops::ControlFlow;
use std::time::Duration;

/// An event of a generation.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A chunk of the prompt is computed.
    Prompt {
        /// The number of computed prompt tokens.
        done: usize,
        /// The number of prompt tokens.
        total: usize,
    },
    /// A token was generated.
    Token(TokenEvent<'a>),
}

/// A generated token.
#[derive(Debug)]
pub struct TokenEvent<'a> {
    /// The token id.
    pub id: u32,
    /// The text that it completed: empty while a character or a possible stop text is incomplete, and
    /// then that of several tokens.
    pub text: &'a str,
    /// Its log-probability, if requested.
    pub logprob: Option<f32>,
    /// The most likely tokens, if requested, best first.
    pub top_logprobs: &'a [TopLogprob],
}

/// Token counts and times of a generation.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Timings {
    /// The number of prompt tokens.
    pub prompt_tokens: usize,
    /// The number of prompt tokens that were not computed again.
    pub cached_tokens: usize,
    /// Prefill time, from the call to the first token's logits.
    pub prompt: Duration,
    /// The number of generated tokens.
    pub generated_tokens: usize,
    /// Decode time, from the first token's logits to the end.
    pub generate: Duration,
}

/// The result of a generation.
#[derive(Debug, Clone)]
pub struct Generation {
    /// The token ids, without an end-of-generation token.
    pub ids: Vec<u32>,
    /// Their text, up to a stop text.
    pub text: String,
    /// The end of `text` that came with no [`TokenEvent`], since it was held back as the possible
    /// beginning of a stop text or as an incomplete character.
    pub tail: String,
    /// Why the generation ended.
    pub finish_reason: FinishReason,
    /// The log-probability of each token, if requested.
    pub logprobs: Vec<f32>,
    /// The most likely tokens at each position, if requested.
    pub top_logprobs: Vec<Vec<TopLogprob>>,
    /// Token counts and times.
    pub timings: Timings,
}

/// A sequence that is kept between generations. Dropping it frees its pages of the key-value cache.
#[derive(Debug)]
pub struct Session {
    pub(super) seq: SeqId,
    /// The prefill rows at the front of the sequence.
    pub(super) prompt: Vec<Symbol>,
}

impl Model {
    /// A new session.
    pub fn new_session(&mut self) -> Session {
        Session { seq: self.runner().new_sequence(), prompt: Vec::new() }
    }
}

/// The number of positions that a prompt leaves of `max`.
pub(crate) fn check_len(n_tokens: usize, max: usize) -> Result<usize, Error> {
    if n_tokens == 0 {
        return Err(Error::Request("the prompt has no tokens".to_owned()));
    }
    max.checked_sub(n_tokens).ok_or(Error::PromptTooLong { n_tokens, max })
}

impl Session {
    /// A session over a sequence of prefill rows.
    pub(crate) fn with_prompt(seq: SeqId, prompt: Vec<Symbol>) -> Self {
        Self { seq, prompt }
    }

    /// The sequence, and its prefill rows.
    pub(crate) fn parts(&mut self) -> (&SeqId, &mut Vec<Symbol>) {
        (&self.seq, &mut self.prompt)
    }

    /// Frees the session's pages at once, and not only when the model is next used.
    pub fn close(self, model: &mut Model) {
        model.runner().remove(self.seq);
    }

    /// Generates after a prompt, of tokens or a [`Prompt`](crate::Prompt). Calls `on_event` for each
    /// chunk of the prompt and each token, which may cancel the generation.
    ///
    /// # Errors
    /// If a parameter is out of range; if the prompt is empty, is not supported by the model or does not
    /// fit the context; if no token satisfies the constraint; if the model was loaded for embeddings or
    /// its output is not finite; or if the device fails.
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

    /// Generates the answer to a conversation, as a [`Reply`] that runs as it is read. The session keeps
    /// the conversation, so that the next call computes only its new messages.
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

    /// Runs the prompt without the rows that the session has, and without the last chunk, whose logits
    /// are needed. Returns the number of rows that the session had and the start of the last chunk, or
    /// breaks if the caller cancelled. The session keeps all rows that were run.
    pub(super) fn prefill(
        &mut self,
        runner: &mut Runner,
        rows: Rows<'_>,
        on_event: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<(), (usize, usize)>, Error> {
        let n = rows.len();
        let pairs = self.prompt.iter().zip(rows.symbols());
        let common = pairs.take_while(|(a, b)| *a == b).count();
        // The last token is always run, as its logits are needed.
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
        let max_rows = runner.limits().tokens;
        while n - self.prompt.len() > max_rows {
            let rest = rows.slice(self.prompt.len()..n);
            let chunk = rest.slice(0..rest.cut(max_rows));
            let (phase, outputs) = (Phase::Prefill, Outputs::None);
            runner.step(&[Chunk { seq: &self.seq, rows: chunk, phase, outputs }])?;
            self.prompt.extend(chunk.symbols());
            let event = Event::Prompt { done: self.prompt.len(), total: n };
            if on_event(&event).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue((cached, self.prompt.len())))
    }
}
