//! What comes after a panic, wherever it happens: the requests of the step end with its text, all
//! others get the answers that they get without it, and nothing is left behind. The worker runs on
//! the test's own thread, so every step is the same each time.

use crate::backend::Backend;
use crate::backend::cpu::CpuBackend;
use crate::engine::faults::{self, Place};
use crate::engine::late::Lates;
use crate::engine::worker::Worker;
use crate::engine::{CacheSink, Engine, EngineEvent, EngineOptions, Message, Request, Ticket};
use crate::text::constrain::{Constrainer, Grammar};
use crate::text::sampling::SamplingParams;
use crate::{FinishReason, GenerateParams, LoadOptions, Model};
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const N_REQUESTS: usize = 7;

fn model() -> Model {
    model_on(&CpuBackend::new(Some(1), None).unwrap())
}

fn model_on(backend: &dyn Backend) -> Model {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/archs/llama/model-f32.gguf");
    let options = LoadOptions {
        max_seq_len: Some(128),
        chunk: Some(48),
        max_seqs: 4,
        max_outputs: 16,
        prefix_cache: true,
        // Little enough that answers are preempted.
        kv_tokens: Some(256),
        ..LoadOptions::default()
    };
    Model::load(&path, backend, &options).unwrap()
}

/// Requests with common beginnings; one has three answers, one a grammar.
fn requests() -> Vec<Request> {
    let constrainer = Constrainer::new(model().tokenizer().unwrap()).unwrap();
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

/// What became of a request: the tokens of its answers and why they ended, and how it failed.
#[derive(Debug, Clone, Default, PartialEq)]
struct Told {
    answers: Vec<(Vec<u32>, Option<FinishReason>)>,
    failed: Vec<String>,
}

impl Told {
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

/// An engine whose thread is this one, and the events of its requests.
struct Bench {
    engine: Engine,
    told: Vec<Arc<Mutex<Told>>>,
    _tickets: Vec<Ticket>,
}

impl Bench {
    /// Works on all requests, with a panic at `fault` after it was passed so many times.
    fn run(requests: &[Request], with_draft: bool, fault: Option<(Place, usize)>) -> Self {
        Self::run_telling(false, requests, with_draft, fault)
    }

    /// The same, where `late` emits the results of a step when the next one is launched.
    fn run_telling(
        late: bool,
        requests: &[Request],
        with_draft: bool,
        fault: Option<(Place, usize)>,
    ) -> Self {
        let options = EngineOptions {
            max_seqs: Some(5),
            lookup_tokens: 2,
            draft_tokens: 2,
            cache_sink: Some(CacheSink(Arc::new(|events| assert!(!events.is_empty())))),
            ..EngineOptions::default()
        };
        let draft = with_draft.then(model);
        let (engine, mut worker, receiver) = Engine::make(model(), draft, options).unwrap();
        worker.lates = late.then(Lates::default);
        Self::work(requests, engine, (worker, &receiver), fault)
    }

    /// The same on a device that launches steps ahead.
    #[cfg(feature = "cuda-interpreter")]
    fn run_ahead(model: Model, requests: &[Request], fault: Option<(Place, usize)>) -> Self {
        let options = EngineOptions { max_seqs: Some(5), ..EngineOptions::default() };
        let (engine, worker, receiver) = Engine::make(model, None, options).unwrap();
        Self::work(requests, engine, (worker, &receiver), fault)
    }

    fn work(
        requests: &[Request],
        engine: Engine,
        (worker, receiver): (Worker, &Receiver<Message>),
        fault: Option<(Place, usize)>,
    ) -> Self {
        let (mut told, mut tickets) = (Vec::new(), Vec::new());
        for request in requests {
            let answers = vec![(Vec::new(), None); request.n];
            let log = Arc::new(Mutex::new(Told { answers, failed: Vec::new() }));
            told.push(log.clone());
            let sink = Box::new(move |event| log.lock().unwrap().note(event));
            tickets.push(engine.submit(request.clone(), sink).unwrap());
        }
        let deadline = Instant::now() + Duration::from_secs(3600);
        engine.sender.send(Message::Close(deadline)).unwrap();
        if let Some((place, n)) = fault {
            faults::inject(place, n);
        }
        worker.run(receiver);
        Self { engine, told, _tickets: tickets }
    }

    fn told(&self) -> Vec<Told> {
        self.told.iter().map(|told| told.lock().unwrap().clone()).collect()
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

fn check_panics(late: bool) {
    use Place::{Ended, Fork, Plan, Publish, Rows, Run, Settle, Token};
    let requests = requests();
    let expected = Bench::run(&requests, false, None).told();
    assert!(expected.iter().all(|told| told.failed.is_empty()), "{expected:?}");
    let mut n_failed_in = [0; N_REQUESTS + 1];
    for place in [Plan, Run, Rows, Token, Settle, Fork, Ended, Publish] {
        // The first comes before the loop begins where the state is published.
        for n in [1, 2, 5, 9] {
            let bench = Bench::run_telling(late, &requests, false, Some((place, n)));
            let case = format!("{place:?} after {n}");
            if (place == Fork && n > 1) || (place == Ended && n > 8) {
                assert!(faults::is_due(), "{case}: there are two forks and nine answers");
                continue;
            }
            assert!(!faults::is_due(), "{case}: it is never reached");
            let mut n_failed = 0;
            for (i, (told, expected)) in bench.told().iter().zip(&expected).enumerate() {
                let Some(text) = told.failed.first() else {
                    assert_eq!(told, expected, "{case}: request {i}");
                    continue;
                };
                n_failed += 1;
                assert_eq!(told.failed.len(), 1, "{case}: request {i} fails once");
                assert!(text.ends_with(&format!(": injected at {place:?}")), "{case}: {text}");
                for (answer, expected) in told.answers.iter().zip(&expected.answers) {
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
    use crate::backend::cuda::CudaBackend;
    use Place::{Plan, Publish, Rows, Run, Settle, Token};
    let device = realizar_kernels_cuda::Interpreter::new(realizar_ptx::Checks::FAST, usize::MAX);
    let backend = CudaBackend::new(device).unwrap();
    // All of them may run ahead of the host.
    let plain = |request: &Request| request.params.constraint.is_none();
    let mut requests: Vec<Request> = requests().into_iter().filter(plain).take(4).collect();
    for Request { params, .. } in &mut requests {
        let sampling = params.sampling.get_or_insert_default();
        (sampling.top_k, sampling.top_p, sampling.min_p) = (0, 1.0, 0.0);
    }
    let run = |fault| Bench::run_ahead(model_on(&backend), &requests, fault);
    let bench = run(None);
    let (expected, stats) = (bench.told(), bench.engine.stats());
    assert!(stats.ahead_rows > 20, "{stats:?}");
    for (place, n) in [(Plan, 7), (Run, 8), (Rows, 14), (Token, 15), (Settle, 9), (Publish, 10)] {
        let bench = run(Some((place, n)));
        assert!(!faults::is_due(), "{place:?}: it is never reached");
        for (told, expected) in bench.told().iter().zip(&expected) {
            match told.failed.first() {
                Some(text) => {
                    assert!(text.ends_with(&format!(": injected at {place:?}")), "{text}");
                }
                None => assert_eq!(told, expected, "{place:?}"),
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
    let expected = Bench::run(&requests, false, None).told();
    for n in [0, 3] {
        let bench = Bench::run(&requests, true, Some((Place::Draft, n)));
        assert!(!faults::is_due());
        assert_eq!(bench.told(), expected);
        assert_eq!(bench.engine.stats().panics, 0);
    }
}

#[test]
fn a_panic_that_nothing_catches_ends_the_engine_and_tells_everyone() {
    let requests = requests();
    // Outside of every turn: before the first.
    let bench = Bench::run(&requests, false, Some((Place::Publish, 0)));
    for told in bench.told() {
        assert_eq!(told.failed, ["the engine is shutting down"]);
    }
    assert!(!bench.engine.is_alive());
    let refused = bench.engine.submit(requests[0].clone(), Box::new(|_| ())).unwrap_err();
    assert_eq!(refused.to_string(), "the engine accepts no more requests");
}
