//! The engine: continuous batching of many requests on one model, for text or for embeddings.
//!
//! One thread owns the model and iterates. Requests reach it through a channel, and their events
//! leave through the sink of each request.
//!
//! ```text
//!  Engine::submit                                                    Sink, EventStream
//!       │ channel                                                            ▲
//!       ▼                                                                    │ events
//!  ┌─────────┐  admit  ┌─────────┐ schedule ┌──────┐ launch ┌────────┐ collect │
//!  │ waiting ├────────►│ running ├─────────►│ plan ├───────►│ device ├─────────┤ emit
//!  │         │◄────────┤         │          └──────┘        └────────┘         │
//!  └─────────┘ preempt └────┬────┘◄────────────────────────────────────────────┘
//!                           │ finish                 next token
//! ```
//!
//! | module | state |
//! |---|---|
//! | `worker` | the loop, its channel and its deadline |
//! | `queue` | active requests; waiting and running sequences |
//! | `schedule` | from running sequences to the plan of a step |
//! | `speculate` | draft tokens: prompt lookup, a draft model, the model's own heads |
//! | `step` | a step: launch, collect, emit |
//! | `masks` | the thread that computes grammar masks |
//!
//! The answer to a request has the same bits alone and among others, with and without cached
//! prefixes, preempted or not.
//!
//! ```
//! use realizar_runtime::backend::cpu::CpuBackend;
//! use realizar_runtime::engine::{Engine, EngineOptions};
//! use realizar_runtime::template::Message;
//! use realizar_runtime::{GenerateParams, LoadOptions, Model};
//! use std::path::Path;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let options = LoadOptions { max_seqs: 8, prefix_cache: true, ..LoadOptions::default() };
//! let backend = CpuBackend::new(None, None)?;
//! let model = Model::load(Path::new("examples/alphabet.gguf"), &backend, &options)?;
//! let engine = Engine::start(model, EngineOptions::default())?;
//! let ask = |text: &str| engine.chat(&[Message::user(text)], GenerateParams::default());
//! // Both run at once, token by token.
//! let (first, second) = (ask("abc")?, ask("xy")?);
//! assert_eq!(second.finish()?.text, "z");
//! assert_eq!(first.finish()?.text, "defghijklmnopqrstuvwxyz");
//! # Ok(())
//! # }
//! ```
//!
//! [`Engine::chat`] and [`Engine::stream`] return the events as an [`EventStream`], which is an
//! iterator and an async stream.

mod active;
mod info;
mod masks;
mod queue;
mod request;
mod schedule;
mod sequence;
mod shared;
mod speculate;
mod stats;
mod step;
mod stream;
mod worker;

pub use info::ModelInfo;
pub use realizar_kvcache::{CacheEvent, PAGE_LEN};
pub use request::{
    AnswerToken, EmbeddingRequest, EngineEvent, PromptLogprob, Request, Sink, SubmitError, Ticket,
};
pub use stats::{DraftCounts, EngineStats, FinishCounts, Histogram};
pub use stream::{EventStream, Finish};

use crate::Error;
use crate::generate::check_len;
use crate::generate::generator::Generator;
use crate::run::require_output;
use crate::run::{Model, Offsets, Prompt};
use active::{Submission, Work};
use masks::Masks;
use realizar_backends::metrics::DispatchMetrics;
use realizar_base::panics;
use realizar_model::architectures::ModelOutput;
use schedule::StepLimits;
use shared::Shared;
use speculate::Drafter;
use speculate::draft_model::DraftModel;
use speculate::heads::Heads;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use step::{Core, Settings};
use worker::{Message, Worker};

/// A subscriber to changes of the prefix cache. It gets them after the step that made them, on the
/// engine's thread, and must not block.
#[derive(Clone)]
pub struct CacheSink(pub Arc<dyn Fn(Vec<CacheEvent>) + Send + Sync>);

impl fmt::Debug for CacheSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CacheSink")
    }
}

/// Options of an engine.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The maximum number of concurrent sequences; `None` is the number of output rows of a step.
    pub max_seqs: Option<usize>,
    /// The maximum number of waiting requests; further ones are rejected at once.
    pub max_queue: usize,
    /// The maximum number of prefill rows in a step with decode rows, or as many as it has decode
    /// rows if these are more. It bounds the inter-token latency. `None` is the limit of the step.
    pub prompt_tokens: Option<usize>,
    /// The maximum number of draft tokens of prompt lookup per sequence and step; 0 disables it. It
    /// pauses for sequences that reject most of them. Answers do not depend on it.
    pub lookup_tokens: usize,
    /// The maximum number of draft tokens of a draft model per sequence and step, or of the model's own
    /// multi-token prediction layer if it was loaded ([`DraftHead`](crate::DraftHead)). The layer
    /// drafts as many as pay off at the recent acceptance rate.
    pub draft_tokens: usize,
    /// Whether the layer drafts [`Self::draft_tokens`] in every step, whatever is accepted, to measure
    /// the cost of drafting.
    pub draft_always: bool,
    /// The subscriber to changes of the prefix cache.
    pub cache_sink: Option<CacheSink>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            max_seqs: None,
            max_queue: 256,
            prompt_tokens: Some(32),
            lookup_tokens: 0,
            draft_tokens: 4,
            draft_always: false,
            cache_sink: None,
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Engine {
    model: ModelInfo,
    options: EngineOptions,
    max_seqs: usize,
    drafts: bool,
    shared: Arc<Shared>,
    dispatch: Vec<Arc<DispatchMetrics>>,
    sender: mpsc::Sender<Message>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Starts an engine for a model, on a thread of its own.
    ///
    /// # Errors
    /// If the model has no tokenizer, an option cannot be met, or no thread can be started.
    pub fn start(model: Model, options: EngineOptions) -> Result<Self, Error> {
        Self::start_with_draft(model, None, options)
    }

    /// Starts an engine with a smaller model for draft tokens, even if the model has a layer for them.
    ///
    /// # Errors
    /// As for [`Self::start`], or if the draft model has another vocabulary.
    pub fn start_with_draft(
        model: Model,
        draft: Option<Model>,
        options: EngineOptions,
    ) -> Result<Self, Error> {
        let (engine, worker) = Self::create(model, draft, options)?;
        let thread = std::thread::Builder::new().name("engine".to_owned());
        let thread = thread.spawn(move || worker.run());
        let thread = thread.map_err(|source| Error::Thread { name: "engine", source })?;
        *engine.lock_thread() = Some(thread);
        Ok(engine)
    }

    /// An engine whose thread is not started, and that thread's loop.
    fn create(
        model: Model,
        draft_model: Option<Model>,
        options: EngineOptions,
    ) -> Result<(Self, Worker), Error> {
        if let Some(draft_model) = &draft_model {
            check_draft_model(&model, draft_model)?;
        }
        let mut info = ModelInfo::new(&model, draft_model.as_ref())?;
        let dispatch = model.dispatch_metrics();
        let draft_bytes = model.draft_bytes();
        let mut runner = model.into_runner();
        if options.cache_sink.is_some() {
            runner.keep_cache_events();
        }
        info.limit_to(&runner);
        let limits = runner.limits();
        let max_seqs = options.max_seqs.unwrap_or(limits.outputs).min(limits.tokens);
        if info.max_seq_len() == 0 {
            let reason = "the key-value cache has no room for a single token".to_owned();
            return Err(Error::Option { option: "kv-tokens", reason });
        }
        if max_seqs == 0 || max_seqs > limits.outputs {
            let reason = format!(
                "{max_seqs} parallel sequences do not fit steps of {} tokens and {} output rows",
                limits.tokens, limits.outputs
            );
            return Err(Error::Option { option: "parallel", reason });
        }
        let n_drafts = options.draft_tokens;
        let drafter = match draft_model {
            Some(model) => {
                let draft_model = DraftModel::new(model.into_runner(), n_drafts);
                Some(Drafter::Model(Box::new(draft_model)))
            }
            None => {
                Heads::new(&runner, draft_bytes, n_drafts, options.draft_always).map(Drafter::Heads)
            }
        };
        let limits = StepLimits {
            drafts: if drafter.is_some() { n_drafts } else { 0 },
            lookups: options.lookup_tokens,
            prompt_tokens: options.prompt_tokens.unwrap_or(usize::MAX).max(1),
        };
        let cache_sink = options.cache_sink.clone();
        let settings = Settings { max_seqs, limits, cache_sink, path: info.path().to_owned() };
        let shared = Arc::new(Shared::default());
        let core = Core::new(runner, drafter, Masks::start()?, settings, shared.clone());
        let (sender, receiver) = mpsc::channel();
        let worker = Worker::new(core, receiver, shared.clone());
        let engine = Self {
            model: info,
            options,
            max_seqs,
            drafts: limits.has_drafts(),
            shared,
            dispatch,
            sender,
            thread: Mutex::new(None),
        };
        Ok((engine, worker))
    }

    fn lock_thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the engine's thread runs. A step that panics does not end it. If it has ended without
    /// [`Self::shutdown`], a new engine has to be started.
    pub fn is_alive(&self) -> bool {
        self.lock_thread().as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Sets the function that is called with the reason when the engine ends on its own: a file that
    /// the model reads from was truncated, its device is lost, or the engine panicked outside of a
    /// step. It is called on the engine's thread, or at once if the engine has ended. A function that
    /// was set before is dropped.
    pub fn on_failure(&self, listener: impl FnOnce(&str) + Send + 'static) {
        self.shared.on_failure(Box::new(listener));
    }

    /// The metadata of the model.
    pub fn model(&self) -> &ModelInfo {
        &self.model
    }

    /// The maximum number of concurrent sequences.
    pub fn max_seqs(&self) -> usize {
        self.max_seqs
    }

    /// Whether any tokens are drafted.
    pub fn drafts(&self) -> bool {
        self.drafts
    }

    /// The state of the engine and its counters.
    pub fn stats(&self) -> EngineStats {
        let waiting = self.shared.waiting.load(Ordering::Relaxed);
        EngineStats { waiting, ..self.shared.stats.read() }
    }

    /// The counters of the devices that the model runs on.
    pub fn dispatch_metrics(&self) -> &[Arc<DispatchMetrics>] {
        &self.dispatch
    }

    /// Submits a request for answers. Its events go to `sink` on the engine's thread, until it is
    /// complete or the ticket is dropped.
    ///
    /// # Errors
    /// If the request is invalid, the queue is full, or the engine is shutting down.
    pub fn submit(&self, request: Request, sink: Sink) -> Result<Ticket, SubmitError> {
        let answers = self.create_answers(&request)?;
        let Request { prompt, priority, prompt_logprobs, reuses_prefix, .. } = request;
        let work = Work::Answers { answers, prompt_logprobs, reuses_prefix };
        self.enqueue(prompt, priority, work, sink)
    }

    /// Submits a request for an embedding. Its event goes to `sink` on the engine's thread, unless the
    /// ticket is dropped before.
    ///
    /// # Errors
    /// As for [`Self::submit`].
    pub fn submit_embedding(
        &self,
        request: EmbeddingRequest,
        sink: Sink,
    ) -> Result<Ticket, SubmitError> {
        let EmbeddingRequest { prompt, params, priority } = request;
        require_output(self.model.output(), ModelOutput::Embeddings)?;
        self.check_prompt(&prompt)?;
        let pooler = self.model.pooler(&params)?;
        self.enqueue(prompt, priority, Work::Embedding(pooler), sink)
    }

    fn enqueue(
        &self,
        prompt: Prompt,
        priority: i32,
        work: Work,
        sink: Sink,
    ) -> Result<Ticket, SubmitError> {
        if self.shared.closed.load(Ordering::Relaxed) {
            return Err(SubmitError::Closed);
        }
        let taken = self.shared.waiting.try_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
            (n < self.options.max_queue).then_some(n + 1)
        });
        if let Err(waiting) = taken {
            return Err(SubmitError::QueueFull { waiting, retry_after: self.retry_after(waiting) });
        }
        let cancelled = Arc::new(AtomicBool::new(false));
        let submission = Submission {
            prompt,
            priority,
            work,
            sink,
            cancelled: cancelled.clone(),
            arrived: Instant::now(),
        };
        if self.sender.send(Message::Submit(Box::new(submission))).is_err() {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(SubmitError::Closed);
        }
        Ok(Ticket { cancelled })
    }

    fn check_prompt(&self, prompt: &Prompt) -> Result<(), Error> {
        check_len(prompt.len(), self.model.max_seq_len())?;
        self.model.rules.check(prompt.rows(), (0, &Offsets::default()))
    }

    /// Validates a request, and creates the state of each answer.
    fn create_answers(&self, request: &Request) -> Result<Vec<Generator>, Error> {
        require_output(self.model.output(), ModelOutput::Logits)?;
        self.check_prompt(&request.prompt)?;
        let vocab_size = self.model.vocab_size();
        if request.n == 0 || request.n > self.max_seqs {
            let (n, max) = (request.n, self.max_seqs);
            let text = format!("`n` is {n}; it must be from 1 to {max}");
            return Err(Error::Request(text));
        }
        if request.prompt_logprobs.is_some() && request.prompt.has_embeddings() {
            let text = "prompt rows given as embeddings have no log-probabilities";
            return Err(Error::Request(text.to_owned()));
        }
        let prompt: Vec<u32> = request.prompt.tokens().collect();
        // The last token is not run, so it needs no position.
        let max_tokens = self.model.max_seq_len() - request.prompt.len() + 1;
        let answer = |index| {
            let tokenizer = self.model.tokenizer().clone();
            let (sampling, params) = (self.model.sampling(), &request.params);
            Generator::new(tokenizer, vocab_size, sampling, params, &prompt, index, max_tokens)
        };
        (0..request.n).map(answer).collect()
    }

    /// The estimated time until a full queue has room, from the mean time of a request.
    fn retry_after(&self, waiting: usize) -> Duration {
        let mean = self.shared.stats.update(|s| s.e2e.sum / s.e2e.count().max(1) as f64);
        let seconds = mean * waiting as f64 / self.max_seqs as f64 / 2.0;
        Duration::from_secs_f64(seconds.clamp(1.0, 60.0))
    }

    /// Stops accepting requests.
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::Relaxed);
    }

    /// Stops accepting requests, finishes the active ones within `grace`, fails the rest, and returns
    /// when the thread has ended.
    pub fn shutdown(&self, grace: Duration) {
        self.close();
        // Sending fails if the thread has ended.
        let _ = self.sender.send(Message::Close(Instant::now() + grace));
        let thread = self.lock_thread().take();
        if let Some(thread) = thread
            && let Err(panic) = thread.join()
        {
            tracing::error!("the engine's thread panicked: {}", panics::text(&*panic));
        }
    }
}

/// Checks that a draft model has the model's vocabulary.
fn check_draft_model(model: &Model, draft: &Model) -> Result<(), Error> {
    let refuse = |reason: String| Err(Error::Option { option: "draft-model", reason });
    let (ours, theirs) = (model.tokenizer()?, draft.tokenizer()?);
    if ours.vocab_size() != theirs.vocab_size() {
        let (n, other) = (ours.vocab_size(), theirs.vocab_size());
        return refuse(format!("its vocabulary has {other} tokens, the model's {n}"));
    }
    for id in 0..ours.vocab_size() as u32 {
        if ours.token_bytes(id)? != theirs.token_bytes(id)? {
            return refuse(format!("its token {id} differs from the model's"));
        }
    }
    Ok(())
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shutdown(Duration::ZERO);
    }
}
