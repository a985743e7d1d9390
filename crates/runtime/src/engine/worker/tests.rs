//! Recovery from a panic, wherever it happens: the requests of the step end with its text, all others
//! get the answers that they get without it, and nothing is left behind.
//!
//! The worker runs on the test's own thread, so every step is the same each time. It panics in what
//! it is given: its log, which has an event at each part of a step, its sinks, and its devices.

use super::faults::{Fault, FaultyBackend, Log, Place};
use super::{Message, Worker};
use crate::engine::{CacheSink, Engine, EngineEvent, EngineOptions, Request, Ticket};
use crate::{FinishReason, GenerateParams, LoadOptions, Model};
use realizar_backends::Backend;
use realizar_backends::cpu::CpuBackend;
use realizar_text::constrain::{Constrainer, Grammar};
use realizar_text::sampling::SamplingParams;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const N_REQUESTS: usize = 7;

/// A step is planned, and its sequences have pages.
const PLAN: Place = Place::Log("scheduled");
/// The step has run.
const COLLECT: Place = Place::Log("collected");
/// The output of a chunk is about to be read.
const READ: Place = Place::Log("reading the output");
/// All output was read.
const APPLY: Place = Place::Log("applying the output");
/// The answers to a prompt are about to be forked.
const FORK: Place = Place::Log("forked");
/// A complete sequence was removed.
const FINISH: Place = Place::Log("finished");
/// The state is about to be published.
const PUBLISH: Place = Place::Log("publishing the state");

fn model_on(backend: &dyn Backend) -> Model {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/archs/llama/model-f32.gguf");
    let options = LoadOptions {
        max_seq_len: Some(128),
        chunk: Some(48),
        max_seqs: 4,
        max_outputs: 16,
        prefix_cache: true,
        // Few enough that sequences are preempted.
        kv_tokens: Some(256),
        ..LoadOptions::default()
    };
    Model::load(&path, backend, &options).unwrap()
}

/// A model whose device panics at `place` when the fault says so.
fn model(is_async: bool, fault: &Fault, place: Place) -> Model {
    let cpu = CpuBackend::new(Some(1), None).unwrap();
    model_on(&FaultyBackend { cpu, is_async, fault: fault.clone(), place })
}

/// Requests with common prefixes; one has three answers, one a grammar.
fn requests() -> Vec<Request> {
    let model = model(false, &Fault::default(), Place::Device);
    let constrainer = Constrainer::new(model.tokenizer().unwrap()).unwrap();
    let request = |i: usize| {
        let token = |pos: usize| 3 + ((pos * 31 + i / 2 * 17 + pos * pos * 7) % 200) as u32;
        let prompt: Vec<u32> = (0..20 + 13 * i).map(token).collect();
        let sampling = SamplingParams { seed: Some(i as u64), ..SamplingParams::default() };
        let mut params = GenerateParams {
            sampling: Some(sampling),
            max_tokens: Some(12 + i),
            ignore_eos: true,
            ..GenerateParams::default()
        };
        if i == 3 {
            let grammar = Grammar::Regex("[ab]{12,40}".to_owned());
            params.constraint = Some(constrainer.compile(&grammar).unwrap());
        }
        Request { n: if i == 1 { 3 } else { 1 }, ..Request::new(prompt, params) }
    };
    (0..N_REQUESTS).map(request).collect()
}

/// The events of a request: the tokens of its answers, why they ended, and how it failed.
#[derive(Debug, Clone, Default, PartialEq)]
struct Events {
    answers: Vec<(Vec<u32>, Option<FinishReason>)>,
    failed: Vec<String>,
}

impl Events {
    fn note(&mut self, event: EngineEvent) {
        match event {
            EngineEvent::Prompt { .. } => {}
            EngineEvent::Token(token) => self.answers[token.index].0.push(token.id),
            EngineEvent::Finished { index, reason, .. } => {
                assert_eq!(self.answers[index].1.replace(reason), None, "an answer ends once");
            }
            EngineEvent::Failed(error) => self.failed.push(error.to_string()),
            EngineEvent::Embedding { .. } => panic!("no embedding was asked for"),
        }
    }
}

/// An engine whose thread was this one, and the events of its requests.
struct Bench {
    engine: Engine,
    events: Vec<Arc<Mutex<Events>>>,
    _tickets: Vec<Ticket>,
}

impl Bench {
    /// Runs all requests. If the device is asynchronous, the output of a step is emitted while the
    /// next one runs.
    fn run(requests: &[Request], with_draft: bool, is_async: bool, fault: &Fault) -> Self {
        let options = EngineOptions {
            max_seqs: Some(5),
            lookup_tokens: 2,
            draft_tokens: 2,
            cache_sink: Some(CacheSink(Arc::new(|events| assert!(!events.is_empty())))),
            ..EngineOptions::default()
        };
        let draft = with_draft.then(|| model(false, fault, Place::DraftDevice));
        let model = model(is_async, fault, Place::Device);
        let (engine, worker) = Engine::create(model, draft, options).unwrap();
        Self::work(requests, engine, worker, fault)
    }

    /// Runs all requests on a device that launches steps ahead.
    #[cfg(feature = "cuda-interpreter")]
    fn run_ahead(model: Model, requests: &[Request], fault: &Fault) -> Self {
        let options = EngineOptions { max_seqs: Some(5), ..EngineOptions::default() };
        let (engine, worker) = Engine::create(model, None, options).unwrap();
        Self::work(requests, engine, worker, fault)
    }

    fn work(requests: &[Request], engine: Engine, worker: Worker, fault: &Fault) -> Self {
        let (mut all_events, mut tickets) = (Vec::new(), Vec::new());
        for request in requests {
            let answers = vec![(Vec::new(), None); request.n];
            let events = Arc::new(Mutex::new(Events { answers, failed: Vec::new() }));
            all_events.push(events.clone());
            let fault = fault.clone();
            let sink = Box::new(move |event| {
                if let EngineEvent::Token(_) = event {
                    fault.reach(Place::Sink);
                }
                events.lock().unwrap().note(event);
            });
            tickets.push(engine.submit(request.clone(), sink).unwrap());
        }
        let deadline = Instant::now() + Duration::from_secs(3600);
        engine.sender.send(Message::Close(deadline)).unwrap();
        tracing::subscriber::with_default(Log(fault.clone()), || worker.run());
        Self { engine, events: all_events, _tickets: tickets }
    }

    fn events(&self) -> Vec<Events> {
        self.events.iter().map(|events| events.lock().unwrap().clone()).collect()
    }
}

#[test]
fn a_panic_ends_the_requests_of_its_step_and_no_others() {
    check_panics(false);
}

#[test]
fn a_panic_while_the_next_step_is_launched_ends_the_requests_of_its_own() {
    check_panics(true);
}

fn check_panics(is_async: bool) {
    let requests = requests();
    let run = |fault: &Fault| Bench::run(&requests, false, is_async, fault);
    let expected = Bench::run(&requests, false, false, &Fault::default()).events();
    assert!(expected.iter().all(|events| events.failed.is_empty()), "{expected:?}");
    let mut n_failed_in = [0; N_REQUESTS + 1];
    for place in [PLAN, Place::Device, COLLECT, READ, Place::Sink, APPLY, FORK, FINISH, PUBLISH] {
        // The state is first published before the loop begins.
        for n in [1, 2, 5, 9] {
            let fault = Fault::after(place, n);
            let bench = run(&fault);
            let case = format!("{place:?} after {n}");
            if (place == FORK && n > 1) || (place == FINISH && n > 8) {
                assert!(fault.is_due(), "{case}: there are two forks and nine answers");
                continue;
            }
            assert!(!fault.is_due(), "{case}: it is never reached");
            let mut n_failed = 0;
            for (i, (events, expected)) in bench.events().iter().zip(&expected).enumerate() {
                let Some(text) = events.failed.first() else {
                    assert_eq!(events, expected, "{case}: request {i}");
                    continue;
                };
                n_failed += 1;
                assert_eq!(events.failed.len(), 1, "{case}: request {i} fails once");
                assert!(text.ends_with(&format!(": injected at {place:?}")), "{case}: {text}");
                for (answer, expected) in events.answers.iter().zip(&expected.answers) {
                    assert!(expected.0.starts_with(&answer.0), "{case}: request {i}");
                    assert!(answer.1.is_none() || answer == expected, "{case}: request {i}");
                }
            }
            n_failed_in[n_failed] += 1;
            let stats = bench.engine.stats();
            assert_eq!(stats.panics, 1, "{case}");
            assert!(stats.finished.failed >= n_failed as u64, "{case}: {stats:?}");
            let left = (stats.running, stats.waiting, stats.waiting_tokens, stats.kv_used_pages);
            assert_eq!(left, (0, 0, 0, 0), "{case}");
        }
    }
    // Five answers at most are in a step.
    assert_eq!(n_failed_in[6..], [0, 0], "{n_failed_in:?}");
    assert!(n_failed_in[1..5].iter().filter(|&&n| n > 0).count() > 1, "{n_failed_in:?}");
}

#[test]
#[cfg(feature = "cuda-interpreter")]
fn a_panic_while_a_step_runs_ahead_ends_the_requests_of_its_own() {
    use realizar_backends::cuda::CudaBackend;
    let device = realizar_kernels_cuda::Interpreter::new(realizar_ptx::Checks::FAST, usize::MAX);
    let backend = CudaBackend::new(device).unwrap();
    // All of them may run ahead of the host.
    let plain = |request: &Request| request.params.constraint.is_none();
    let mut requests: Vec<Request> = requests().into_iter().filter(plain).take(4).collect();
    for Request { params, .. } in &mut requests {
        let sampling = params.sampling.get_or_insert_default();
        (sampling.top_k, sampling.top_p, sampling.min_p) = (0, 1.0, 0.0);
    }
    let run = |fault: &Fault| Bench::run_ahead(model_on(&backend), &requests, fault);
    let bench = run(&Fault::default());
    let (expected, stats) = (bench.events(), bench.engine.stats());
    assert!(stats.ahead_rows > 20, "{stats:?}");
    let places =
        [(PLAN, 7), (COLLECT, 8), (READ, 14), (Place::Sink, 15), (APPLY, 9), (PUBLISH, 10)];
    for (place, n) in places {
        let fault = Fault::after(place, n);
        let bench = run(&fault);
        assert!(!fault.is_due(), "{place:?}: it is never reached");
        for (events, expected) in bench.events().iter().zip(&expected) {
            match events.failed.first() {
                Some(text) => {
                    assert!(text.ends_with(&format!(": injected at {place:?}")), "{text}");
                }
                None => assert_eq!(events, expected, "{place:?}"),
            }
        }
        let stats = bench.engine.stats();
        assert_eq!((stats.panics, stats.kv_used_pages), (1, 0), "{place:?}");
        assert!(stats.ahead_rows > 0, "{place:?}: {stats:?}");
    }
}

#[test]
fn a_panic_of_the_draft_model_ends_no_request() {
    let requests = requests();
    let expected = Bench::run(&requests, false, false, &Fault::default()).events();
    for n in [0, 3] {
        let fault = Fault::after(Place::DraftDevice, n);
        let bench = Bench::run(&requests, true, false, &fault);
        assert!(!fault.is_due());
        assert_eq!(bench.events(), expected);
        assert_eq!(bench.engine.stats().panics, 0);
    }
}

#[test]
fn a_panic_that_nothing_catches_ends_the_engine_and_tells_everyone() {
    let requests = requests();
    // Before the first iteration, so outside of its guard.
    let bench = Bench::run(&requests, false, false, &Fault::after(PUBLISH, 0));
    for events in bench.events() {
        assert_eq!(events.failed, ["the engine is shutting down"]);
    }
    assert!(!bench.engine.is_alive());
    let refused = bench.engine.submit(requests[0].clone(), Box::new(|_| ())).unwrap_err();
    assert_eq!(refused.to_string(), "the engine accepts no more requests");
}
