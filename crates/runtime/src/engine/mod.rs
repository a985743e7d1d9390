//! The engine: many requests at once on one model, for text or for embeddings.
//!
//! One thread owns the model and repeats three things: it plans a step (`schedule`), runs it, and
//! emits the results. Requests reach it through a channel, and their events leave through
//! the sink that each carries. A request's answer has the same bits alone and among others,
//! with and without what the prefix cache had of its prompt, preempted or not.
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
//! [`Engine::chat`] and [`Engine::stream`] give the events as an [`EventStream`], which is an iterator and an async stream.

mod ahead;
mod draft;
#[cfg(test)]
mod faults;
mod head;
mod job;
mod late;
mod lookup;
mod masks;
mod outcome;
mod request;
mod schedule;
mod stats;
mod stream;
mod worker;

pub use realizar_kvcache::{CacheEvent, PAGE_LEN};
pub use request::{
    AnswerToken, EmbeddingRequest, EngineEvent, PromptLogprob, Request, Sink, SubmitError, Ticket,
};
pub use stats::{DraftCounts, EngineStats, FinishCounts, Histogram};
pub use stream::{EventStream, Finish};

use crate::Error;
use crate::architectures::ModelOutput;
use crate::architectures::config::Config;
use crate::backend::MemoryUse;
use crate::backend::metrics::DispatchMetrics;
use crate::base::panics;
use crate::checkpoint::Pooling;
use crate::generate::answer::Answer;
use crate::generate::check_len;
use crate::generate::embedding::Pooler;
use crate::run::{Model, Offsets, Prompt, PromptRules};
use crate::text::sampling::SamplingParams;
use crate::text::template::ChatTemplate;
use crate::text::tokenizer::Tokenizer;
use draft::Draft;
use head::Head;
use job::{Submission, Work};
use masks::Masks;
use schedule::Most;
use stats::Counters;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use worker::{Settings, Worker};

/// Where the changes of the prefix cache go, after the step that made them. It is called by the
/// engine's thread and must not wait.
#[derive(Clone)]
pub struct CacheSink(pub Arc<dyn Fn(Vec<CacheEvent>) + Send + Sync>);

impl fmt::Debug for CacheSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CacheSink")
    }
}

/// How an engine works.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The maximum number of concurrent sequences. `None` is as many as a step has rows of
    /// logits for.
    pub max_seqs: Option<usize>,
    /// The maximum number of waiting requests; further ones are rejected at once.
    pub max_queue: usize,
    /// The maximum number of tokens of prompts in a step that also generates, unless it generates for more
    /// answers than that: it bounds how long answers wait between two tokens, and prompts get half
    /// of a large step anyway. `None` leaves it to the step's own limit.
    pub prompt_tokens: Option<usize>,
    /// The maximum number of tokens drafted by prompt lookup, for answers
    /// where that has been right often enough. 0 is off. Answers do not depend on it.
    pub lookup_tokens: usize,
    /// The maximum number of tokens that a draft model drafts, or the model itself if it was loaded with a layer for that
    /// ([`DraftHead`](crate::DraftHead)): those as many as are worth it by what was accepted lately.
    pub draft_tokens: usize,
    /// Whether the model itself drafts as many in every step, whatever was accepted: to measure what drafting
    /// costs.
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

/// What there is to know of an engine's model.
#[derive(Debug)]
pub struct ModelInfo {
    path: PathBuf,
    architecture: &'static str,
    backend: String,
    config: Config,
    max_seq_len: usize,
    output: ModelOutput,
    output_width: usize,
    pooling: Pooling,
    sampling: SamplingParams,
    vocab_size: usize,
    rules: PromptRules,
    n_params: usize,
    quantization: String,
    weight_bytes: usize,
    memory: MemoryUse,
    tokenizer: Arc<Tokenizer>,
    template: Result<Option<Arc<ChatTemplate>>, Error>,
}

impl ModelInfo {
    /// The path that it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The name of its architecture, as GGUF files spell it.
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// The backend that it runs on, or `first + last`.
    pub fn backend(&self) -> &str {
        &self.backend
    }

    /// Its dimensions and constants.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The maximum number of tokens of a prompt and its answer together.
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// What it was loaded to compute: whether the engine gives text or embeddings.
    pub fn output(&self) -> ModelOutput {
        self.output
    }

    /// How embeddings are pooled unless a request says otherwise, and how many elements they
    /// have; none if it was not loaded for them.
    pub fn embedding(&self) -> Option<(Pooling, usize)> {
        (self.output == ModelOutput::Embeddings).then_some((self.pooling, self.output_width))
    }

    /// The model's own sampling; see [`Model::sampling`].
    pub fn sampling(&self) -> &SamplingParams {
        &self.sampling
    }

    /// Tokens of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Elements of all weights.
    pub fn n_params(&self) -> usize {
        self.n_params
    }

    /// The type of the weights; see [`Model::quantization`].
    pub fn quantization(&self) -> &str {
        &self.quantization
    }

    /// Bytes of all weights as they are stored.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// The memory that it takes on its devices, with its draft model's.
    pub fn memory(&self) -> MemoryUse {
        self.memory
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Its chat template, if it came with one.
    ///
    /// # Errors
    /// If the template cannot be read.
    pub fn chat_template(&self) -> Result<Option<&Arc<ChatTemplate>>, &Error> {
        self.template.as_ref().map(Option::as_ref)
    }
}

/// What the engine's thread shares with its callers.
#[derive(Debug, Default)]
struct Shared {
    stats: Counters,
    /// Requests that were taken and are not being worked on yet.
    waiting: AtomicUsize,
    closed: AtomicBool,
    failure: Mutex<Failure>,
}

/// What is called with the reason of a failure.
type Tell = Box<dyn FnOnce(&str) + Send>;

/// That the engine has ended on its own.
#[derive(Default)]
struct Failure {
    reason: Option<String>,
    /// What is told of it.
    tell: Option<Tell>,
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock_failure(&self) -> MutexGuard<'_, Failure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine has ended on its own.
    fn fail(&self, reason: &str) {
        let tell = {
            let mut failure = self.lock_failure();
            failure.reason = Some(reason.to_owned());
            failure.tell.take()
        };
        if let Some(tell) = tell {
            tell(reason);
        }
    }
}

/// What reaches the engine's thread.
enum Message {
    Submit(Box<Submission>),
    /// Finish what there is until then, and end.
    Close(Instant),
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
    /// Starts an engine's thread, which takes the model.
    ///
    /// # Errors
    /// If the model has no tokenizer, an option cannot be met, or the system gives no thread.
    pub fn start(model: Model, options: EngineOptions) -> Result<Self, Error> {
        Self::start_with_draft(model, None, options)
    }

    /// As [`Self::start`], with a smaller model that drafts tokens.
    ///
    /// # Errors
    /// As for [`Self::start`], or if the draft model has another vocabulary.
    pub fn start_with_draft(
        model: Model,
        draft: Option<Model>,
        options: EngineOptions,
    ) -> Result<Self, Error> {
        let (engine, worker, receiver) = Self::make(model, draft, options)?;
        let thread = std::thread::Builder::new().name("engine".to_owned());
        let thread = thread.spawn(move || worker.run(&receiver));
        let thread = thread.map_err(|source| Error::Thread { name: "engine", source })?;
        *engine.lock_thread() = Some(thread);
        Ok(engine)
    }

    /// An engine whose thread is still to be started, with what that thread does.
    fn make(
        model: Model,
        draft: Option<Model>,
        options: EngineOptions,
    ) -> Result<(Self, Worker, mpsc::Receiver<Message>), Error> {
        if let Some(draft) = &draft {
            check_draft(&model, draft)?;
        }
        let tokenizer = model.tokenizer()?.clone();
        let template = model.chat_template().map(Option::<&_>::cloned);
        let dispatch = model.dispatch_metrics();
        let mut info = ModelInfo {
            path: model.path().to_owned(),
            architecture: model.architecture(),
            backend: model.backend().to_owned(),
            config: model.config().clone(),
            max_seq_len: model.max_seq_len(),
            output: model.output(),
            output_width: 0,
            pooling: model.default_pooling(),
            sampling: model.sampling().clone(),
            vocab_size: 0,
            rules: model.rules(),
            n_params: model.n_params(),
            quantization: model.quantization().to_owned(),
            weight_bytes: model.weight_bytes(),
            memory: model.memory() + draft.as_ref().map(Model::memory).unwrap_or_default(),
            tokenizer,
            template,
        };
        let draft_bytes = model.draft_bytes();
        let mut runner = model.into_runner();
        if options.cache_sink.is_some() {
            runner.keep_cache_events();
        }
        (info.vocab_size, info.output_width) = (runner.vocab_size(), runner.output_width());
        // What the cache cannot hold for one sequence alone is not promised to any.
        while info.max_seq_len > 0 && !runner.could_hold(info.max_seq_len) {
            info.max_seq_len -= 1;
        }
        let limits = runner.limits();
        let max_seqs = options.max_seqs.unwrap_or(limits.outputs).min(limits.tokens);
        if info.max_seq_len == 0 {
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
        let shared = Arc::new(Shared::default());
        let (sender, receiver) = mpsc::channel();
        // A draft model was requested, so it drafts also where the model could.
        let head = match &draft {
            Some(_) => None,
            None => Head::new(&runner, draft_bytes, (options.draft_tokens, options.draft_always)),
        };
        let draft = draft.map(|model| Draft::new(model.into_runner(), options.draft_tokens));
        let settings = Settings {
            max_seqs,
            most: Most {
                drafts: if draft.is_some() || head.is_some() { options.draft_tokens } else { 0 },
                lookups: options.lookup_tokens,
                prompt_tokens: options.prompt_tokens.unwrap_or(usize::MAX).max(1),
            },
            cache_sink: options.cache_sink.clone(),
            path: info.path.clone(),
        };
        let drafts = !settings.most.is_without_drafts();
        let worker = Worker::new(runner, settings, (draft, head), Masks::start()?, shared.clone());
        let thread = Mutex::new(None);
        let engine =
            Self { model: info, options, max_seqs, drafts, shared, dispatch, sender, thread };
        Ok((engine, worker, receiver))
    }

    fn lock_thread(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its thread runs. A step that panics does not end it; when it has ended without a
    /// [`Self::shutdown`], the engine has to be created again.
    pub fn is_alive(&self) -> bool {
        self.lock_thread().as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Has `tell` called with the reason when the engine ends on its own, on its thread: because a
    /// file that the model reads from was truncated, its device is gone, or it panicked outside of a
    /// step. At once, if it has ended. In place of what was to be called before.
    pub fn on_failure(&self, tell: impl FnOnce(&str) + Send + 'static) {
        let mut failure = self.shared.lock_failure();
        match failure.reason.clone() {
            None => failure.tell = Some(Box::new(tell)),
            Some(reason) => {
                drop(failure);
                tell(&reason);
            }
        }
    }

    /// The model.
    pub fn model(&self) -> &ModelInfo {
        &self.model
    }

    /// The maximum number of concurrent sequences.
    pub fn max_seqs(&self) -> usize {
        self.max_seqs
    }

    /// Whether tokens are drafted and verified, in whatever way.
    pub fn drafts(&self) -> bool {
        self.drafts
    }

    /// The state of the engine and what it did so far.
    pub fn stats(&self) -> EngineStats {
        let waiting = self.shared.waiting.load(Ordering::Relaxed);
        EngineStats { waiting, ..self.shared.stats.read() }
    }

    /// The counters of the devices that it runs on.
    pub fn dispatch_metrics(&self) -> &[Arc<DispatchMetrics>] {
        &self.dispatch
    }

    /// Asks for answers. Events go to `sink` from the engine's thread, until the request is
    /// complete or the ticket is dropped.
    ///
    /// # Errors
    /// If the request cannot be met as it is, if as many requests wait as are allowed to, or if
    /// the engine is shutting down.
    pub fn submit(&self, request: Request, sink: Sink) -> Result<Ticket, SubmitError> {
        let answers = self.check(&request)?;
        let Request { prompt, priority, prompt_logprobs, reuses_prefix, .. } = request;
        let work = Work::Answers { answers, prompt_logprobs, reuses_prefix };
        self.enqueue((prompt, priority), work, sink)
    }

    /// Asks for an embedding. Its event goes to `sink` from the engine's thread, unless the ticket
    /// is dropped before.
    ///
    /// # Errors
    /// As for [`Self::submit`].
    pub fn submit_embedding(
        &self,
        request: EmbeddingRequest,
        sink: Sink,
    ) -> Result<Ticket, SubmitError> {
        let EmbeddingRequest { prompt, params, priority } = request;
        let ModelInfo { output, output_width, pooling, .. } = self.model;
        output.require(ModelOutput::Embeddings)?;
        self.check_prompt(&prompt)?;
        let pooler = Pooler::new(&params, pooling, output_width)?;
        self.enqueue((prompt, priority), Work::Embedding(pooler), sink)
    }

    fn enqueue(
        &self,
        (prompt, priority): (Prompt, i32),
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
        check_len(prompt.len(), self.model.max_seq_len)?;
        self.model.rules.check(prompt.rows(), (0, &Offsets::default()))
    }

    /// Makes the answers' states, which finds what is wrong with the parameters.
    fn check(&self, request: &Request) -> Result<Vec<Answer>, Error> {
        self.model.output.require(ModelOutput::Logits)?;
        self.check_prompt(&request.prompt)?;
        let vocab_size = self.model.vocab_size;
        if request.n == 0 || request.n > self.max_seqs {
            let (n, most) = (request.n, self.max_seqs);
            let text = format!("`n` is {n}; it must be from 1 to {most}");
            return Err(Error::Request(text));
        }
        if request.prompt_logprobs.is_some() && request.prompt.has_embeddings() {
            let text = "prompt rows given as embeddings have no log-probabilities";
            return Err(Error::Request(text.to_owned()));
        }
        let prompt: Vec<u32> = request.prompt.tokens().collect();
        // The last token's own row needs no room: its logits are not wanted.
        let max_tokens = self.model.max_seq_len - request.prompt.len() + 1;
        let answer = |index| {
            let tokenizer = self.model.tokenizer.clone();
            let limits = (index, max_tokens);
            let params = (&request.params, &self.model.sampling);
            Answer::new(tokenizer, params, &prompt, limits, vocab_size)
        };
        (0..request.n).map(answer).collect()
    }

    /// When there may be room in a queue that is full: after what the mean request takes.
    fn retry_after(&self, waiting: usize) -> Duration {
        let mean = self.shared.stats.update(|s| s.e2e.sum / s.e2e.count().max(1) as f64);
        let seconds = mean * waiting as f64 / self.max_seqs as f64 / 2.0;
        Duration::from_secs_f64(seconds.clamp(1.0, 60.0))
    }

    /// Stops accepting requests.
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::Relaxed);
    }

    /// Takes no more requests, finishes those that there are within `grace`, cancels the rest,
    /// and returns when the thread has ended.
    pub fn shutdown(&self, grace: Duration) {
        self.close();
        // A thread that has ended needs no message.
        let _ = self.sender.send(Message::Close(Instant::now() + grace));
        let thread = self.lock_thread().take();
        if let Some(thread) = thread
            && let Err(panic) = thread.join()
        {
            tracing::error!("the engine's thread panicked: {}", panics::text(&*panic));
        }
    }
}

/// Checks that a draft model has the same tokens as the model.
fn check_draft(model: &Model, draft: &Model) -> Result<(), Error> {
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
