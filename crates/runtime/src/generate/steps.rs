//! A generation that runs a step at a time: first the prompt, then a token per step.
//!
//! [`Session::generate`] runs it in one go, a [`Reply`](super::Reply) as it is read.

use super::generator::{Generator, Output, OutputToken, Sample, Scratch};
use super::params::{FinishReason, GenerateParams};
use super::session::{Event, Generation, Session, Timings, TokenEvent, check_len};
use crate::Error;
use crate::run::require_output;
use crate::run::{Chunk, Model, Offsets, Outputs, Rows};
use realizar_backends::Phase;
use realizar_model::architectures::ModelOutput;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Steps {
    generator: Generator,
    scratch: Scratch,
    /// The last sample, if it is not detokenized yet.
    pending: Option<Sample>,
    out: Generation,
    /// Whether the most likely tokens are reported.
    has_top_logprobs: bool,
    started: Instant,
}

impl Steps {
    /// A generation after `prompt`.
    pub(super) fn new(
        model: &mut Model,
        prompt: Rows<'_>,
        params: &GenerateParams,
    ) -> Result<Self, Error> {
        let started = Instant::now();
        let sampling = model.sampling().clone();
        let (tokenizer, runner) = model.parts()?;
        require_output(runner.output(), ModelOutput::Logits)?;
        let room = check_len(prompt.len(), runner.max_seq_len())?;
        runner.rules().check(prompt, (0, &Offsets::default()))?;
        // The last token is not run, so it needs no position.
        let max_tokens = room + 1;
        let ids: Vec<u32> = prompt.tokens().collect();
        let (tokenizer, vocab_size) = (tokenizer.clone(), runner.vocab_size());
        let generator =
            Generator::new(tokenizer, vocab_size, &sampling, params, &ids, 0, max_tokens)?;
        let out = Generation {
            ids: Vec::new(),
            text: String::new(),
            tail: String::new(),
            finish_reason: FinishReason::Length,
            logprobs: Vec::new(),
            top_logprobs: Vec::new(),
            timings: Timings { prompt_tokens: prompt.len(), ..Timings::default() },
        };
        let has_top_logprobs = params.logprobs.is_some();
        let scratch = Scratch::default();
        Ok(Self { generator, scratch, pending: None, out, has_top_logprobs, started })
    }

    /// Runs the prompt or the last token, and samples the next one. Breaks when the generation is over.
    /// No step may follow a break or an error.
    pub(super) fn step(
        &mut self,
        session: &mut Session,
        model: &mut Model,
        prompt: Rows<'_>,
        on_event: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Error> {
        let (_, runner) = model.parts()?;
        let last = self.generator.ids().last().map(|&id| [id]);
        let (rows, phase) = match &last {
            Some(last) => (last.into(), Phase::Decode),
            None => match session.prefill(runner, prompt, on_event)? {
                ControlFlow::Continue((cached_tokens, last_chunk)) => {
                    self.out.timings.cached_tokens = cached_tokens;
                    (prompt.slice(last_chunk..prompt.len()), Phase::Prefill)
                }
                ControlFlow::Break(()) => {
                    self.out.timings.prompt = self.started.elapsed();
                    return Ok(self.end(FinishReason::Cancelled));
                }
            },
        };
        let step = [Chunk { seq: &session.seq, rows, phase, outputs: Outputs::Last }];
        runner.launch(step.iter().copied())?;
        // The previous sample is detokenized and emitted while the device runs.
        if let Some(sample) = self.pending.take() {
            let finished =
                self.generator.detokenize(sample).map(|output| self.emit(output, on_event));
            if !matches!(finished, Ok(None)) {
                runner.discard();
                return Ok(self.end(finished?.unwrap_or(FinishReason::Cancelled)));
            }
        }
        if let Some(mut requests) = runner.wants() {
            self.generator.compute_mask();
            self.generator.request_sample(0, 0, &mut requests, &mut self.scratch);
        }
        let runs_beside = runner.runs_beside();
        let mut results = runner.collect(step.iter().copied())?;
        if last.is_none() {
            session.prompt.extend(rows.symbols());
            self.out.timings.prompt = self.started.elapsed();
            let event = Event::Prompt { done: prompt.len(), total: prompt.len() };
            if on_event(&event).is_break() {
                return Ok(self.end(FinishReason::Cancelled));
            }
        }
        let sample = self.generator.sample(&mut results, 0, 0, &mut self.scratch);
        let sample = sample.map_err(|error| error.of_model(model.path()))?;
        if runs_beside && !sample.is_last() {
            self.pending = Some(sample);
            return Ok(ControlFlow::Continue(()));
        }
        let output = self.generator.detokenize(sample)?;
        Ok(match self.emit(output, on_event) {
            Some(reason) => self.end(reason),
            None => ControlFlow::Continue(()),
        })
    }

    fn end(&mut self, reason: FinishReason) -> ControlFlow<()> {
        self.out.finish_reason = reason;
        ControlFlow::Break(())
    }

    /// The result.
    pub(super) fn finish(self) -> Generation {
        let Self { mut generator, mut out, started, .. } = self;
        out.tail = generator.tail(out.finish_reason);
        out.text.push_str(&out.tail);
        out.timings.generated_tokens = out.ids.len();
        out.timings.generate = match out.ids.len() {
            0 if out.finish_reason == FinishReason::Cancelled => Duration::ZERO,
            _ => started.elapsed() - out.timings.prompt,
        };
        out
    }

    /// Emits a token and adds it to the result. Returns why the generation is over, if it is.
    fn emit(
        &mut self,
        Output { token, finished }: Output,
        on_event: &mut dyn FnMut(&Event<'_>) -> ControlFlow<()>,
    ) -> Option<FinishReason> {
        let mut flow = ControlFlow::Continue(());
        if let Some(OutputToken { id, text, logprob, top_logprobs }) = token {
            let out = &mut self.out;
            out.ids.push(id);
            out.text.push_str(&text);
            out.logprobs.extend(logprob);
            let top = &*top_logprobs;
            let event = TokenEvent { id, text: &text, logprob, top_logprobs: top };
            flow = on_event(&Event::Token(event));
            if self.has_top_logprobs {
                out.top_logprobs.push(top_logprobs);
            }
        }
        finished.or(flow.is_break().then_some(FinishReason::Cancelled))
    }
}
