//! A generation that is run a step at a time: first its prompt, then a token with each step.
//!
//! The caller decides when it runs: [`Session::generate`] in one go, a [`Reply`](super::Reply) as it is read.

use super::answer::{Answer, Choice, Chosen, Next, Scratch};
use super::params::{FinishReason, GenerateParams};
use super::session::{Event, Generation, Session, Timings, TokenEvent, check_len};
use crate::Error;
use crate::architectures::ModelOutput;
use crate::backend::Role;
use crate::run::{Chunk, Model, Offsets, Outputs, Rows};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Steps {
    answer: Answer,
    scratch: Scratch,
    /// The choice whose text is not known yet.
    untold: Option<Choice>,
    out: Generation,
    /// Whether the most likely tokens are wanted.
    tells_likely: bool,
    started: Instant,
}

impl Steps {
    /// A generation after `all`.
    pub(super) fn new(
        model: &mut Model,
        all: Rows<'_>,
        params: &GenerateParams,
    ) -> Result<Self, Error> {
        let started = Instant::now();
        let own = model.sampling().clone();
        let (tokenizer, runner) = model.parts()?;
        runner.output().require(ModelOutput::Logits)?;
        let room = check_len(all.len(), runner.max_seq_len())?;
        runner.rules().check(all, (0, &Offsets::default()))?;
        // The last token's own row needs no room: its logits are not wanted.
        let limits = (0, room + 1);
        let tokens: Vec<u32> = all.tokens().collect();
        let vocab_size = runner.vocab_size();
        let answer = Answer::new(tokenizer.clone(), (params, &own), &tokens, limits, vocab_size)?;
        let out = Generation {
            ids: Vec::new(),
            text: String::new(),
            tail: String::new(),
            finish_reason: FinishReason::Length,
            logprobs: Vec::new(),
            top_logprobs: Vec::new(),
            timings: Timings { prompt_tokens: all.len(), ..Timings::default() },
        };
        let tells_likely = params.logprobs.is_some();
        let scratch = Scratch::default();
        Ok(Self { answer, scratch, untold: None, out, tells_likely, started })
    }

    /// Runs `all`, the prompt, or the token that was chosen last, and chooses the next one. A break says that the
    /// generation is over; there is no step after it, nor after an error.
    pub(super) fn step(
        &mut self,
        session: &mut Session,
        model: &mut Model,
        all: Rows<'_>,
        on_event: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Error> {
        let (_, runner) = model.parts()?;
        let last = self.answer.ids().last().map(|&id| [id]);
        let (rows, role) = match &last {
            Some(last) => (last.into(), Role::Generated),
            None => match session.prefill(runner, all, on_event)? {
                ControlFlow::Continue((cached_tokens, last_chunk)) => {
                    self.out.timings.cached_tokens = cached_tokens;
                    (all.slice(last_chunk..all.len()), Role::Prompt)
                }
                ControlFlow::Break(()) => {
                    self.out.timings.prompt = self.started.elapsed();
                    return Ok(self.end(FinishReason::Cancelled));
                }
            },
        };
        let step = [Chunk { seq: &session.seq, rows, role, outputs: Outputs::Last }];
        runner.launch(step.iter().copied())?;
        // What the choice before leads to is found out while the device runs.
        if let Some(choice) = self.untold.take() {
            let told = self.answer.tell(choice).map(|next| self.add(next, on_event));
            if !matches!(told, Ok(None)) {
                runner.discard();
                return Ok(self.end(told?.unwrap_or(FinishReason::Cancelled)));
            }
        }
        if let Some(mut wants) = runner.wants() {
            self.answer.compute_mask();
            self.answer.want((0, 0), &mut wants, &mut self.scratch);
        }
        let runs_beside = runner.runs_beside();
        let mut results = runner.collect(step.iter().copied())?;
        if last.is_none() {
            session.prompt.extend(rows.symbols());
            self.out.timings.prompt = self.started.elapsed();
            let event = Event::Prompt { done: all.len(), total: all.len() };
            if on_event(&event).is_break() {
                return Ok(self.end(FinishReason::Cancelled));
            }
        }
        let choice = self.answer.choose(&mut results, (0, 0), &mut self.scratch);
        let choice = choice.map_err(|error| error.of_model(model.path()))?;
        if runs_beside && !choice.is_last() {
            self.untold = Some(choice);
            return Ok(ControlFlow::Continue(()));
        }
        let next = self.answer.tell(choice)?;
        Ok(match self.add(next, on_event) {
            Some(reason) => self.end(reason),
            None => ControlFlow::Continue(()),
        })
    }

    fn end(&mut self, reason: FinishReason) -> ControlFlow<()> {
        self.out.finish_reason = reason;
        ControlFlow::Break(())
    }

    /// What was generated.
    pub(super) fn finish(self) -> Generation {
        let Self { mut answer, mut out, started, .. } = self;
        out.tail = answer.tail(out.finish_reason);
        out.text.push_str(&out.tail);
        out.timings.generated_tokens = out.ids.len();
        out.timings.generate = match out.ids.len() {
            0 if out.finish_reason == FinishReason::Cancelled => Duration::ZERO,
            _ => started.elapsed() - out.timings.prompt,
        };
        out
    }

    /// Adds the result of a sampled token and emits it; returns why the generation is over, if it is.
    fn add(
        &mut self,
        Next { token, finished }: Next,
        on_event: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> Option<FinishReason> {
        let mut flow = ControlFlow::Continue(());
        if let Some(Chosen { id, text, logprob, top_logprobs }) = token {
            let out = &mut self.out;
            out.ids.push(id);
            out.text.push_str(&text);
            out.logprobs.extend(logprob);
            let top = &*top_logprobs;
            let event = TokenEvent { id, text: &text, logprob, top_logprobs: top };
            flow = on_event(&Event::Token(event));
            if self.tells_likely {
                out.top_logprobs.push(top_logprobs);
            }
        }
        finished.or(flow.is_break().then_some(FinishReason::Cancelled))
    }
}
