//! Generation: a prompt in, tokens and text out, one sequence at a time.
//!
//! A [`Session`] keeps its sequence between calls, so a conversation pays only
//! for what is new. Where a sliding window has let go of what it would need, it
//! pays again, unless the model keeps prefixes. What it keeps was written by prompt
//! rows; tokens that the model generated are run again when they come back in a
//! prompt, so that an answer never depends on how its prompt came about.

use super::answer::{Answer, Chosen, Next, Scratch};
use super::params::{FinishReason, GenerateParams, TopLogprob};
use crate::Error;
use crate::architectures::ModelOutput;
use crate::backend::Role;
use crate::run::{Chunk, Model, Outputs, Runner, SeqId};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

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

/// A sequence that is kept between generations. Dropping it frees its part of the key-value cache.
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

/// The positions that a prompt leaves of `max`.
pub(crate) fn check_len(n_tokens: usize, max: usize) -> Result<usize, Error> {
    if n_tokens == 0 {
        return Err(Error::Request("the prompt has no tokens".to_owned()));
    }
    max.checked_sub(n_tokens).ok_or(Error::PromptTooLong { n_tokens, max })
}

impl Session {
    /// A session over a sequence whose tokens were run as a prompt.
    pub(crate) fn with_prompt(seq: SeqId, prompt: Vec<u32>) -> Self {
        Self { seq, prompt }
    }

    /// The sequence, and its tokens that were run as a prompt.
    pub(crate) fn parts(&mut self) -> (&SeqId, &mut Vec<u32>) {
        (&self.seq, &mut self.prompt)
    }

    /// Frees the session's part of the key-value cache at once, and not when the model is next used.
    pub fn close(self, model: &mut Model) {
        model.runner().remove(self.seq);
    }

    /// Generates after the prompt `ids` and tells `on_event` of each part of the
    /// prompt and of each token; it may cancel at any of them.
    ///
    /// # Errors
    /// If a parameter is out of range, the prompt is empty or does not fit the
    /// context, no token continues the answer as its constraint wants it, the model
    /// was loaded for embeddings or its output is not finite, or the device fails.
    pub fn generate(
        &mut self,
        model: &mut Model,
        ids: &[u32],
        params: &GenerateParams,
        on_event: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> Result<Generation, Error> {
        let started = Instant::now();
        let path = model.path().to_owned();
        let (tokenizer, runner) = model.parts()?;
        runner.output().require(ModelOutput::Logits)?;
        let room = check_len(ids.len(), runner.max_seq_len())?;
        // The last token's own row needs no room: its logits are not wanted.
        let limits = (0, room + 1);
        let mut answer = Answer::new(tokenizer.clone(), params, ids, limits, runner.vocab_size())?;
        let mut scratch = Scratch::default();
        let mut logits = vec![0.0; runner.vocab_size()];
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

        loop {
            let next = answer.next(&logits, &mut scratch);
            let Next { token, finished } = next.map_err(|error| error.of_model(&path))?;
            let mut flow = ControlFlow::Continue(());
            if let Some(Chosen { id, text, logprob, top_logprobs }) = &token {
                out.text.push_str(text);
                out.logprobs.extend(logprob);
                let event = TokenEvent { id: *id, text, logprob: *logprob, top_logprobs };
                flow = on_event(&Event::Token(event));
            }
            if params.logprobs.is_some() {
                out.top_logprobs.extend(token.map(|token| token.top_logprobs));
            }
            if let Some(reason) = finished {
                out.finish_reason = reason;
                break;
            }
            if flow.is_break() {
                out.finish_reason = FinishReason::Cancelled;
                break;
            }
            let last = answer.ids().len() - 1;
            let (role, outputs) = (Role::Generated, Outputs::Last);
            let rows = answer.ids()[last..].into();
            let step = Chunk { seq: &self.seq, rows, role, outputs };
            logits.copy_from_slice(runner.step(&[step])?.row(0, 0));
        }
        out.tail = answer.tail(out.finish_reason);
        out.text.push_str(&out.tail);
        out.ids = answer.ids().to_vec();
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
        let mut cached = runner.truncate(&self.seq, common.min(ids.len() - 1));
        if cached == 0 {
            cached = runner.adopt(&self.seq, ids.into(), ids.len() - 1);
        } else {
            runner.expect_prompt(&self.seq, ids.len());
        }
        self.prompt.clear();
        self.prompt.extend_from_slice(&ids[..cached]);
        let chunk = runner.limits().tokens;
        for tokens in ids[cached..].chunks(chunk) {
            let last = self.prompt.len() + tokens.len() == ids.len();
            let outputs = if last { Outputs::Last } else { Outputs::None };
            let rows = tokens.into();
            let step = Chunk { seq: &self.seq, rows, role: Role::Prompt, outputs };
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
