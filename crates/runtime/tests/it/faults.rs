//! What fails or panics around the engine: sinks, devices. It ends the requests that it concerns,
//! with its text, and changes nothing for the others.

use crate::common::other_load::OtherLoad;
use crate::common::tiny::tiny;
use realizar_formats::FileWatch;
use realizar_kvcache::{PageCopy, PageId, StateId};
use realizar_runtime::BackendError;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::backend::{Batch, Executable, Phase};
use realizar_runtime::engine::{
    EmbeddingRequest, Engine, EngineEvent, EngineOptions, Request, Sink, Ticket,
};
use realizar_runtime::metrics::DispatchMetrics;
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::{
    Chunk, DeviceFault, EmbedParams, Error, GenerateParams, LoadOptions, Model, ModelOutput,
    Outputs, Pooling,
};
use std::ops::ControlFlow;
use std::panic::panic_any;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

/// What a device does next.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    PanicText,
    PanicString,
    PanicOther,
    Fails,
    /// It is lost permanently.
    Lost,
    /// It gives one number where rows are wanted.
    ShortRows,
    /// Its output is not finite.
    NotFinite,
    CopyFails,
}

/// The CPU, unless set otherwise. A fault happens once.
#[derive(Debug, Clone)]
struct Faulty(Arc<Mutex<Fault>>);

#[derive(Debug)]
struct FaultyExecutable {
    inner: Box<dyn Executable>,
    fault: Arc<Mutex<Fault>>,
    rows: Vec<f32>,
}

impl Faulty {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Fault::None)))
    }

    fn set(&self, fault: Fault) {
        *self.0.lock().unwrap() = fault;
    }

    fn load(&self, options: &LoadOptions) -> Model {
        let fault = self.0.clone();
        let then = move |inner| -> Box<dyn Executable> {
            Box::new(FaultyExecutable { inner, fault: fault.clone(), rows: Vec::new() })
        };
        let device = OtherLoad { cpu: cpu(), before: || (), then };
        Model::load(&tiny("llama").join("model-f32.gguf"), &device, options).unwrap()
    }
}

fn cpu() -> CpuBackend {
    CpuBackend::new(Some(1), None).unwrap()
}

fn failed(fault: DeviceFault) -> BackendError {
    let (device, reason) = ("faulty".to_owned(), "no more".to_owned());
    BackendError::Device { device, fault, reason }
}

impl FaultyExecutable {
    fn take(&self, fault: impl Fn(Fault) -> bool) -> Fault {
        let mut next = self.fault.lock().unwrap();
        if fault(*next) { std::mem::replace(&mut next, Fault::None) } else { Fault::None }
    }
}

impl Executable for FaultyExecutable {
    fn run(&mut self, batch: &Batch, input: &[f32]) -> Result<&[f32], BackendError> {
        let fault = self.take(|fault| fault != Fault::CopyFails);
        match fault {
            Fault::PanicText => panic!("the device trips"),
            Fault::PanicString => panic!("the device trips over {} rows", batch.n_rows().min(1)),
            Fault::PanicOther => panic_any(7),
            Fault::Fails => return Err(failed(DeviceFault::Other)),
            Fault::Lost => return Err(failed(DeviceFault::Lost)),
            _ => {}
        }
        let rows = self.inner.run(batch, input)?;
        match fault {
            Fault::ShortRows => Ok(&rows[..1]),
            Fault::NotFinite => {
                self.rows.clear();
                self.rows.resize(rows.len(), f32::NAN);
                Ok(&self.rows)
            }
            _ => Ok(rows),
        }
    }

    fn copy_pages(&mut self, copies: &[PageCopy]) -> Result<(), BackendError> {
        match self.take(|fault| fault == Fault::CopyFails) {
            Fault::CopyFails => Err(failed(DeviceFault::Other)),
            _ => self.inner.copy_pages(copies),
        }
    }

    fn page_bytes(&self, group: usize) -> usize {
        self.inner.page_bytes(group)
    }

    fn read_page(
        &mut self,
        group: usize,
        page: PageId,
        out: &mut Vec<u8>,
    ) -> Result<(), BackendError> {
        self.inner.read_page(group, page, out)
    }

    fn write_page(&mut self, group: usize, page: PageId, bytes: &[u8]) -> Result<(), BackendError> {
        self.inner.write_page(group, page, bytes)
    }

    fn state_bytes(&self) -> usize {
        self.inner.state_bytes()
    }

    fn read_state(&mut self, state: StateId, out: &mut Vec<u8>) -> Result<(), BackendError> {
        self.inner.read_state(state, out)
    }

    fn write_state(&mut self, state: StateId, bytes: &[u8]) -> Result<(), BackendError> {
        self.inner.write_state(state, bytes)
    }

    fn files(&self) -> Vec<FileWatch> {
        self.inner.files()
    }

    fn metrics(&self) -> Vec<Arc<DispatchMetrics>> {
        self.inner.metrics()
    }
}

fn serving() -> LoadOptions {
    LoadOptions {
        max_seq_len: Some(128),
        chunk: Some(48),
        max_seqs: 4,
        prefix_cache: true,
        ..LoadOptions::default()
    }
}

fn request(i: usize) -> Request {
    let token = |pos| 3 + ((pos * 31 + i * 17) % 200) as u32;
    let prompt: Vec<u32> = (0..20 + 7 * i).map(token).collect();
    let params = GenerateParams {
        sampling: Some(SamplingParams::greedy()),
        max_tokens: Some(12),
        ignore_eos: true,
        ..GenerateParams::default()
    };
    Request::new(prompt, params)
}

fn submit(engine: &Engine, request: Request) -> (Ticket, Receiver<EngineEvent>) {
    let (sender, receiver) = channel();
    let sink: Sink = Box::new(move |event| drop(sender.send(event)));
    (engine.submit(request, sink).unwrap(), receiver)
}

/// The tokens of a request of one answer, or how it failed.
fn collect(events: &Receiver<EngineEvent>) -> Result<Vec<u32>, Error> {
    let mut ids = Vec::new();
    loop {
        match events.recv().expect("the request has a last event") {
            EngineEvent::Token(token) => ids.push(token.id),
            EngineEvent::Finished { .. } => return Ok(ids),
            EngineEvent::Failed(error) => return Err(error),
            _ => {}
        }
    }
}

fn answer(engine: &Engine, i: usize) -> Result<Vec<u32>, Error> {
    let (_ticket, events) = submit(engine, request(i));
    collect(&events)
}

#[test]
fn a_device_that_fails_ends_the_requests_of_the_step() {
    const DEFECT: &str = "the step panicked, which is a bug in the engine: ";
    let device = Faulty::new();
    let engine = Engine::start(device.load(&serving()), EngineOptions::default()).unwrap();
    let expected = answer(&engine, 1).unwrap();
    for (fault, want, is_panic) in [
        (Fault::PanicText, "the device trips", true),
        (Fault::PanicString, "the device trips over 1 rows", true),
        (Fault::PanicOther, "a panic without a message", true),
        (Fault::Fails, "faulty: no more", false),
        (Fault::ShortRows, "range end index", true),
    ] {
        device.set(fault);
        let error = answer(&engine, 2).unwrap_err();
        assert!(matches!(error, Error::Step(_)), "{fault:?}: {error:?}");
        let text = error.to_string();
        assert_eq!(text.starts_with(DEFECT), is_panic, "{fault:?}: {text}");
        assert!(text.trim_start_matches(DEFECT).starts_with(want), "{fault:?}: {text}");
        assert!(engine.is_alive());
        assert_eq!(answer(&engine, 1).unwrap(), expected, "{fault:?}");
    }
    engine.shutdown(Duration::from_secs(600));
    assert!(!engine.is_alive());
    let stats = engine.stats();
    assert_eq!((stats.panics, stats.finished.failed, stats.kv_used_pages), (4, 5, 0));
}

#[test]
fn a_device_that_is_lost_ends_the_engine() {
    let device = Faulty::new();
    let engine = Engine::start(device.load(&serving()), EngineOptions::default()).unwrap();
    let (tell, reason) = channel();
    engine.on_failure(move |reason| tell.send(reason.to_owned()).unwrap());
    device.set(Fault::Lost);
    assert_eq!(answer(&engine, 1).unwrap_err().to_string(), "faulty: no more");
    assert_eq!(reason.recv().unwrap(), "faulty: no more");
    assert!(engine.submit(request(1), Box::new(|_| ())).is_err());
}

#[test]
fn a_sink_that_panics_ends_its_step_and_the_engine_goes_on() {
    let device = Faulty::new();
    let options = EngineOptions { max_seqs: Some(1), ..EngineOptions::default() };
    let engine = Engine::start(device.load(&serving()), options).unwrap();
    let expected: Vec<_> = (0..3).map(|i| answer(&engine, i).unwrap()).collect();
    // At the prompt, at a token, at the end; and again when it is told of that.
    for n_events in [0, 1, 5, 13] {
        let (sender, failed) = channel();
        let mut n_left = n_events;
        let sink: Sink = Box::new(move |event| {
            if let EngineEvent::Failed(error) = &event {
                sender.send(error.to_string()).unwrap();
            }
            assert!(n_left > 0, "the sink trips");
            n_left -= 1;
        });
        let _ticket = engine.submit(request(3), sink).unwrap();
        // These wait, as one answer is worked on at a time.
        let others: Vec<_> = (0..3).map(|i| submit(&engine, request(i))).collect();
        for ((_ticket, events), expected) in others.iter().zip(&expected) {
            assert_eq!(&collect(events).unwrap(), expected, "{n_events} events");
        }
        // The last event is not followed by another.
        let told = failed.try_recv();
        assert_eq!(told.is_ok(), n_events < 13, "{n_events} events: {told:?}");
        if let Ok(text) = told {
            assert!(text.ends_with("the sink trips"), "{text}");
        }
    }
    engine.shutdown(Duration::from_secs(600));
    let stats = engine.stats();
    assert_eq!((stats.panics, stats.kv_used_pages, stats.running), (4, 0, 0));
}

#[test]
fn a_sink_may_read_the_statistics_and_finds_its_event_counted() {
    let shared: Arc<OnceLock<Weak<Engine>>> = Arc::default();
    let engine =
        Arc::new(Engine::start(Faulty::new().load(&serving()), EngineOptions::default()).unwrap());
    shared.set(Arc::downgrade(&engine)).unwrap();
    let (sender, seen) = channel();
    let sink: Sink = Box::new(move |event| {
        // Not kept while the event is told of: the test may drop the engine then.
        let stats = shared.get().and_then(Weak::upgrade).unwrap().stats();
        sender.send((event, stats)).unwrap();
    });
    let request = request(1);
    let (n_prompt, n_tokens) = (request.prompt.len() as u64, 12);
    let _ticket = engine.submit(request, sink).unwrap();
    let (event, stats) = seen.recv().unwrap();
    assert!(matches!(event, EngineEvent::Prompt { .. }), "{event:?}");
    assert_eq!((stats.prompt_tokens, stats.running, stats.queue.count()), (n_prompt, 1, 1));
    for n in 1..=n_tokens {
        let (event, stats) = seen.recv().unwrap();
        assert!(matches!(event, EngineEvent::Token(_)), "{event:?}");
        assert_eq!((stats.generated_tokens, stats.ttft.count()), (n, 1));
        assert_eq!(stats.inter_token.count(), n - 1);
    }
    let (event, stats) = seen.recv().unwrap();
    assert!(matches!(event, EngineEvent::Finished { .. }), "{event:?}");
    assert_eq!((stats.finished.length, stats.e2e.count(), stats.decode.count()), (1, 1, 1));
}

#[test]
fn an_embedding_that_is_not_finite_is_the_models_fault() {
    let device = Faulty::new();
    let options = LoadOptions { output: ModelOutput::Embeddings, ..serving() };
    let model = device.load(&options);
    let path = model.path().to_owned();
    let engine = Engine::start(model, EngineOptions::default()).unwrap();
    for pooling in [Pooling::Last, Pooling::Mean] {
        device.set(Fault::NotFinite);
        let params = EmbedParams { pooling: Some(pooling), ..EmbedParams::default() };
        let (sender, events) = channel();
        let sink: Sink = Box::new(move |event| drop(sender.send(event)));
        let request = EmbeddingRequest::new(vec![5, 6, 7], params);
        let _ticket = engine.submit_embedding(request, sink).unwrap();
        let event = events.recv().unwrap();
        let EngineEvent::Failed(Error::NotFinite { path: of }) = event else {
            panic!("{pooling}: {event:?}")
        };
        assert_eq!(of, path);
    }
}

#[test]
fn a_limit_of_zero_is_named() {
    let path = tiny("llama").join("model-f32.gguf");
    for (want, options) in [
        ("chunk", LoadOptions { chunk: Some(0), ..serving() }),
        ("max_outputs", LoadOptions { max_outputs: 0, ..serving() }),
        ("max_seqs", LoadOptions { max_seqs: 0, ..serving() }),
    ] {
        let error = Model::load(&path, &cpu(), &options).unwrap_err();
        assert!(matches!(error, Error::Option { option, .. } if option == want), "{error:?}");
    }
    let empty = Faulty::new().load(&LoadOptions { kv_tokens: Some(0), ..serving() });
    let error = Engine::start(empty, EngineOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Option { option: "kv-tokens", .. }), "{error:?}");
    let none = EngineOptions { max_seqs: Some(0), ..EngineOptions::default() };
    let error = Engine::start(Faulty::new().load(&serving()), none).unwrap_err();
    assert!(matches!(error, Error::Option { option: "parallel", .. }), "{error:?}");
}

/// The logits of the last of `tokens`, which are appended to a sequence.
fn last_row(model: &mut Model, seq: &realizar_runtime::SeqId, tokens: &[u32]) -> Vec<u32> {
    let step = Chunk { seq, rows: tokens.into(), phase: Phase::Prefill, outputs: Outputs::Last };
    let rows = model.runner().step(&[step]).unwrap();
    rows.row(0, 0).iter().map(|x| x.to_bits()).collect()
}

#[test]
fn pages_that_cannot_be_copied_leave_their_sequences_as_they_were() {
    let device = Faulty::new();
    let mut model = device.load(&serving());
    let prompt: Vec<u32> = (0..40).map(|pos| 3 + pos * 7 % 200).collect();
    let fresh = model.runner().new_sequence();
    last_row(&mut model, &fresh, &prompt);
    let expected = last_row(&mut model, &fresh, &[9, 10]);
    drop(fresh);
    model.runner().clear_prefixes();

    let first = model.runner().new_sequence();
    last_row(&mut model, &first, &prompt);
    let runner = model.runner();
    let forks = [runner.fork(&first), runner.fork(&first)];
    let before = runner.pool_stats();
    assert_eq!(before[0].used, 2, "two pages that all share");
    let rows = (&[9, 10]).into();
    let step = |seq| Chunk { seq, rows, phase: Phase::Prefill, outputs: Outputs::Last };
    for _ in 0..3 {
        device.set(Fault::CopyFails);
        let chunks = forks.each_ref().map(step);
        let error = runner.step(&chunks).map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), "faulty: no more");
        assert_eq!(runner.pool_stats()[0].used, 2, "what was grown is given back");
        assert_eq!(forks.each_ref().map(|seq| runner.seq_len(seq)), [40, 40]);
    }
    // What they share was not lost, and is not written to by one for the others.
    for seq in forks.iter().chain([&first]) {
        assert_eq!(last_row(&mut model, seq, &[9, 10]), expected);
    }
    drop((first, forks));
    model.runner().clear_prefixes();
    assert_eq!(model.runner().pool_stats()[0].used, 0);
}

#[test]
fn a_session_that_is_dropped_gives_its_pages_back() {
    let options = LoadOptions { max_seqs: 1, prefix_cache: false, ..serving() };
    let mut model = Faulty::new().load(&options);
    let params = GenerateParams { max_tokens: Some(4), ..request(0).params };
    for i in 0..10 {
        let prompt: Vec<u32> = (0..100).map(|pos| 3 + (pos * 7 + i) % 200).collect();
        let mut session = model.new_session();
        let mut go = |_: &realizar_runtime::Event<'_>| ControlFlow::Continue(());
        // The cache has room for one session of this length.
        session.generate(&mut model, &prompt, &params, &mut go).unwrap();
        assert_eq!(model.runner().pool_stats()[0].used, 4, "session {i}");
    }
    assert_eq!(model.runner().pool_stats()[0].used, 0);
    // One that outlives its model has nothing to give back.
    let session = model.new_session();
    drop(model);
    drop(session);
}
