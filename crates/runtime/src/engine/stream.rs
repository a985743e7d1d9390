//! The events of a request as a stream: an iterator for threads, and a `Stream` for async programs.
//!
//! Events leave the engine's thread through a channel. Its receiver waits on a condition variable or
//! leaves a waker, so it needs no async runtime and works with any.

use super::Engine;
use super::request::{EngineEvent, Request, SubmitError, Ticket};
use crate::Error;
use crate::generate::{FinishReason, GenerateParams, Generation, Timings};
use futures_core::Stream;
use realizar_text::template::Message;
use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// The events of a request: an iterator that blocks on each event, and a [`Stream`] for async
/// programs.
///
/// It ends after the last event of the last answer, or after an error. Dropping it cancels the
/// request, whose pages are freed at the next step. Unread events are kept, so a reader may be slow.
///
/// ```
/// use realizar_runtime::engine::{Engine, EngineOptions};
/// use realizar_runtime::template::Message;
/// use realizar_runtime::{GenerateParams, Model};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = Engine::start(Model::open("examples/alphabet.gguf")?, EngineOptions::default())?;
/// let mut text = String::new();
/// for event in engine.chat(&[Message::user("abc")], GenerateParams::default())? {
///     text.push_str(event?.text());
/// }
/// assert_eq!(text, "defghijklmnopqrstuvwxyz");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct EventStream {
    channel: Arc<Channel>,
    /// The number of answers that are not complete.
    n_open: usize,
    n_answers: usize,
    n_prompt: usize,
    started: Instant,
    _ticket: Ticket,
}

/// An unbounded channel from the engine's thread to one reader.
#[derive(Debug, Default)]
struct Channel {
    state: Mutex<ChannelState>,
    changed: Condvar,
}

#[derive(Default)]
struct ChannelState {
    events: VecDeque<(Instant, EngineEvent)>,
    /// No further events follow.
    is_closed: bool,
    waker: Option<Waker>,
}

impl fmt::Debug for ChannelState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelState").field("n_events", &self.events.len()).finish_non_exhaustive()
    }
}

impl Channel {
    fn lock(&self) -> MutexGuard<'_, ChannelState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the reader.
    fn change(&self, change: impl FnOnce(&mut ChannelState)) {
        let waker = {
            let mut state = self.lock();
            change(&mut state);
            state.waker.take()
        };
        self.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The engine's end of a channel. Dropping it closes the channel.
struct Sender(Arc<Channel>);

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.change(|state| state.is_closed = true);
    }
}

impl Engine {
    /// Submits a request for answers, as [`Self::submit`], and returns its events as a stream.
    ///
    /// # Errors
    /// As for [`Self::submit`].
    pub fn stream(&self, request: Request) -> Result<EventStream, SubmitError> {
        let (n_answers, n_prompt) = (request.n, request.prompt.len());
        let channel = Arc::new(Channel::default());
        let sender = Sender(channel.clone());
        let sink = move |event| {
            sender.0.change(|state| state.events.push_back((Instant::now(), event)));
        };
        let started = Instant::now();
        let ticket = self.submit(request, Box::new(sink))?;
        Ok(EventStream {
            channel,
            n_open: n_answers,
            n_answers,
            n_prompt,
            started,
            _ticket: ticket,
        })
    }

    /// Submits a request for one answer to a conversation, and returns its events as a stream.
    ///
    /// # Errors
    /// As for [`Self::submit`], and if the model has no chat template or its template refuses the conversation.
    pub fn chat(
        &self,
        messages: &[Message],
        params: GenerateParams,
    ) -> Result<EventStream, SubmitError> {
        self.stream(Request::new(self.model().chat_prompt(messages)?, params))
    }
}

impl EventStream {
    /// Takes the next event from the channel. `None` if the reader has to wait, and `Some(None)` after
    /// the last event.
    fn take(&mut self, state: &mut ChannelState) -> Option<Option<Result<Timed, Error>>> {
        if self.n_open == 0 {
            return Some(None);
        }
        let event = state.events.pop_front();
        if event.is_none() && !state.is_closed {
            return None;
        }
        Some(Some(match event {
            Some((_, EngineEvent::Failed(error))) => {
                self.n_open = 0;
                Err(error)
            }
            Some((at, event)) => {
                match event {
                    EngineEvent::Finished { .. } => self.n_open -= 1,
                    EngineEvent::Embedding { .. } => self.n_open = 0,
                    _ => {}
                }
                Ok((at, event))
            }
            None => {
                self.n_open = 0;
                Err(Error::Ended)
            }
        }))
    }

    fn wait(&mut self) -> Option<Result<Timed, Error>> {
        let channel = self.channel.clone();
        let mut state = channel.lock();
        loop {
            if let Some(event) = self.take(&mut state) {
                return event;
            }
            state = channel.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn poll(&mut self, context: &Context<'_>) -> Poll<Option<Result<Timed, Error>>> {
        let channel = self.channel.clone();
        let mut state = channel.lock();
        if let Some(event) = self.take(&mut state) {
            return Poll::Ready(event);
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Waits for the answer of a request for one answer. In async programs, `stream.await` does the
    /// same. Events that were read before are missing in the result.
    ///
    /// # Errors
    /// If the request was for several answers, or fails.
    pub fn finish(mut self) -> Result<Generation, Error> {
        let mut collected = Collected::new(&self)?;
        while let Some(event) = self.wait() {
            collected.add(event?);
        }
        Ok(collected.out)
    }
}

/// An event and the time of its emission.
type Timed = (Instant, EngineEvent);

/// The events so far of a request for one answer.
#[derive(Debug)]
struct Collected {
    started: Instant,
    first: Option<Instant>,
    out: Generation,
}

impl Collected {
    fn new(stream: &EventStream) -> Result<Self, Error> {
        if stream.n_answers != 1 {
            let text = format!(
                "a stream of {} answers has no single result; read its events instead",
                stream.n_answers
            );
            return Err(Error::Request(text));
        }
        let out = Generation {
            ids: Vec::new(),
            text: String::new(),
            tail: String::new(),
            finish_reason: FinishReason::Cancelled,
            logprobs: Vec::new(),
            top_logprobs: Vec::new(),
            timings: Timings { prompt_tokens: stream.n_prompt, ..Timings::default() },
        };
        Ok(Self { started: stream.started, first: None, out })
    }

    fn add(&mut self, (at, event): Timed) {
        let out = &mut self.out;
        out.text.push_str(event.text());
        match event {
            EngineEvent::Prompt { cached_tokens, .. } => {
                out.timings.cached_tokens = cached_tokens;
                out.timings.prompt = at - self.started;
                self.first = Some(at);
            }
            EngineEvent::Token(token) => {
                out.ids.push(token.id);
                if let Some(logprob) = token.logprob {
                    out.logprobs.push(logprob);
                    out.top_logprobs.push(token.top_logprobs);
                }
            }
            EngineEvent::Finished { reason, tail, .. } => {
                out.finish_reason = reason;
                out.tail = tail;
                out.timings.generated_tokens = out.ids.len();
                out.timings.generate = at - self.first.unwrap_or(self.started);
            }
            EngineEvent::Embedding { .. } | EngineEvent::Failed(_) => {}
        }
    }
}

impl Iterator for EventStream {
    type Item = Result<EngineEvent, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.wait().map(|event| event.map(|(_, event)| event))
    }
}

impl std::iter::FusedIterator for EventStream {}

impl Stream for EventStream {
    type Item = Result<EngineEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(context).map(|event| event.map(|event| event.map(|(_, event)| event)))
    }
}

impl IntoFuture for EventStream {
    type Output = Result<Generation, Error>;
    type IntoFuture = Finish;

    fn into_future(self) -> Finish {
        let collected = Collected::new(&self).map_err(Some);
        Finish { stream: self, collected }
    }
}

/// The future of the answer to a request for one; see [`EventStream::finish`]. It must not be polled
/// again after it is ready.
#[derive(Debug)]
pub struct Finish {
    stream: EventStream,
    /// The error is taken when the future returns it.
    collected: Result<Collected, Option<Error>>,
}

impl Future for Finish {
    type Output = Result<Generation, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { stream, collected } = self.get_mut();
        let collected = match collected {
            Ok(collected) => collected,
            Err(error) => return Poll::Ready(Err(error.take().unwrap_or(Error::Ended))),
        };
        loop {
            match stream.poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => return Poll::Ready(Ok(collected.out.clone())),
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                Poll::Ready(Some(Ok(event))) => collected.add(event),
            }
        }
    }
}
