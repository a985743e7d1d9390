//! Tokens that are chosen from shortlists of a device are those that the host chooses from the same
//! logits, and no row of the vocabulary's width comes down for them.

use crate::common::gpus::gpus;
use crate::common::requests::{
    Answer, CONTEXT, alone, collect, idle_stats, load_on, request, serving, submit,
};
use realizar_formats::FileWatch;
use realizar_kvcache::{PageCopy, PageId, StateId};
use realizar_runtime::BackendError;
use realizar_runtime::backend::{AsyncExecutable, Backend, Batch, Executable, ExecutableOptions};
use realizar_runtime::constrain::{Constrainer, Grammar};
use realizar_runtime::engine::{Engine, EngineEvent, EngineOptions, Request};
use realizar_runtime::graph::Fusions;
use realizar_runtime::metrics::{DispatchMetrics, OutputSnapshot};
use realizar_runtime::plan::Plan;
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::weights::Weights;
use realizar_runtime::{Event, LoadOptions, MemoryUse, Model};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What happened, in order.
type Log = Arc<Mutex<Vec<&'static str>>>;

/// A device whose rows all come to the host; with a log, a device that notes when it is launched.
#[derive(Debug)]
struct Whole(Box<dyn Backend>, Option<Log>);

#[derive(Debug)]
struct WholeRows(Box<dyn Executable>, Option<Log>);

impl Backend for Whole {
    fn name(&self) -> String {
        self.0.name()
    }

    fn fusions(&self) -> Fusions {
        self.0.fusions()
    }

    fn memory(&self, plan: &Plan, weights: &Weights, options: &ExecutableOptions) -> MemoryUse {
        self.0.memory(plan, weights, options)
    }

    fn load(
        &self,
        plan: Plan,
        weights: Weights,
        options: &ExecutableOptions,
    ) -> Result<Box<dyn Executable>, BackendError> {
        Ok(Box::new(WholeRows(self.0.load(plan, weights, options)?, self.1.clone())))
    }
}

impl Executable for WholeRows {
    fn run(&mut self, batch: &Batch, input: &[f32]) -> Result<&[f32], BackendError> {
        self.0.run(batch, input)
    }

    fn as_async(&mut self) -> Option<&mut dyn AsyncExecutable> {
        if self.1.is_some() { self.0.as_async() } else { None }
    }

    fn launch(&mut self, batch: &Batch, input: &[f32]) -> Result<(), BackendError> {
        self.1.iter().for_each(|log| log.lock().unwrap().push("launch"));
        self.0.launch(batch, input)
    }

    fn copy_pages(&mut self, copies: &[PageCopy]) -> Result<(), BackendError> {
        self.0.copy_pages(copies)
    }

    fn page_bytes(&self, group: usize) -> usize {
        self.0.page_bytes(group)
    }

    fn read_page(
        &mut self,
        group: usize,
        page: PageId,
        out: &mut Vec<u8>,
    ) -> Result<(), BackendError> {
        self.0.read_page(group, page, out)
    }

    fn write_page(&mut self, group: usize, page: PageId, bytes: &[u8]) -> Result<(), BackendError> {
        self.0.write_page(group, page, bytes)
    }

    fn state_bytes(&self) -> usize {
        self.0.state_bytes()
    }

    fn read_state(&mut self, state: StateId, out: &mut Vec<u8>) -> Result<(), BackendError> {
        self.0.read_state(state, out)
    }

    fn write_state(&mut self, state: StateId, bytes: &[u8]) -> Result<(), BackendError> {
        self.0.write_state(state, bytes)
    }

    fn files(&self) -> Vec<FileWatch> {
        self.0.files()
    }

    fn metrics(&self) -> Vec<Arc<DispatchMetrics>> {
        self.0.metrics()
    }
}

/// Greedy and seeded samplings by the best tokens and by all, with what changes logits, and with what
/// forbids tokens.
fn samplings() -> Vec<SamplingParams> {
    let warm = SamplingParams { temperature: 1.3, seed: Some(5), ..SamplingParams::default() };
    let penalties = SamplingParams {
        repetition_penalty: 1.2,
        presence_penalty: 0.5,
        frequency_penalty: 0.2,
        logit_bias: vec![(20, 3.0), (77, f32::NEG_INFINITY)],
        dry_multiplier: 0.8,
        ..SamplingParams::default()
    };
    let plain = SamplingParams { top_k: 0, top_p: 1.0, min_p: 0.0, ..warm.clone() };
    vec![
        SamplingParams::greedy(),
        SamplingParams { temperature: 0.0, ..penalties.clone() },
        warm.clone(),
        SamplingParams { top_k: 1, ..warm.clone() },
        SamplingParams { top_k: 100, top_p: 0.99, min_p: 0.01, ..warm.clone() },
        SamplingParams { seed: Some(6), ..penalties.clone() },
        SamplingParams { min_p: 0.6, ..plain.clone() },
        SamplingParams { xtc_probability: 0.5, xtc_threshold: 0.02, ..warm },
        SamplingParams { top_p: 0.8, ..plain.clone() },
        SamplingParams { top_k: 0, top_p: 0.9, seed: Some(7), ..penalties.clone() },
        plain.clone(),
        SamplingParams {
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            temperature: 1.5,
            seed: Some(8),
            ..penalties
        },
        SamplingParams { mirostat: 2, mirostat_tau: 3.0, ..plain },
    ]
}

/// A request that samples so, of some ends and some that may not end yet.
fn sampled(i: usize, sampling: SamplingParams) -> Request {
    let mut request = request(i);
    request.params.sampling = Some(sampling);
    request.params.logprobs = (i % 4 == 1 || i >= 10).then_some(i % 7);
    request.params.max_tokens = Some(24);
    request.params.ignore_eos = i.is_multiple_of(2);
    request.params.min_tokens = if i.is_multiple_of(3) { 10 } else { 0 };
    request
}

/// What came down so far.
fn output(model: &Model) -> OutputSnapshot {
    model.metrics().devices.last().unwrap().output
}

fn answers(model: &mut Model, requests: &[Request]) -> Vec<Answer> {
    requests.iter().map(|request| alone(model, request, 0)).collect()
}

#[test]
fn shortlists_give_the_tokens_of_whole_rows() {
    let requests: Vec<Request> =
        samplings().into_iter().enumerate().map(|(i, params)| sampled(i, params)).collect();
    for (gpu, same) in gpus().into_iter().zip(gpus()) {
        let whole = Whole(same, None);
        for name in ["llama", "gpt2"] {
            let mut model = load_on(&whole, name, LoadOptions::default());
            let expected = answers(&mut model, &requests);
            let of_whole = output(&model);
            let row = 4 * model.config().vocab_size as u64;
            assert_eq!((of_whole.shortlists, of_whole.bytes), (0, of_whole.whole_rows * row));

            let mut model = load_on(&*gpu, name, LoadOptions::default());
            assert_eq!(answers(&mut model, &requests), expected, "{name}");
            let of_lists = output(&model);
            assert_eq!(of_lists.whole_rows, 0, "{name}: a row came down: {of_lists:?}");
            assert_eq!(of_lists.shortlists, of_whole.whole_rows, "{name}");
        }
        // A greedy choice is a length, a token and its logit, and the logit of the token that may not come.
        let mut model = load_on(&*gpu, "llama", LoadOptions::default());
        alone(&mut model, &sampled(4, SamplingParams::greedy()), 0);
        let of_lists = output(&model);
        assert_eq!(of_lists.bytes, of_lists.shortlists * 16);
        assert_eq!(of_lists.whole_rows, 0);
    }
}

#[test]
fn what_shortlists_do_not_decide_comes_from_whole_rows() {
    let plain = SamplingParams {
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: Some(3),
        ..SamplingParams::default()
    };
    let requests: Vec<Request> = [
        SamplingParams { typical_p: 0.9, ..plain.clone() },
        SamplingParams { top_n_sigma: 1.0, ..plain.clone() },
        SamplingParams { mirostat: 2, mirostat_tau: 20.0, ..plain.clone() },
        // So flat that most of the vocabulary may come.
        SamplingParams { temperature: 50.0, min_p: 0.5, ..plain.clone() },
        SamplingParams { temperature: 50.0, top_p: 0.99, ..plain.clone() },
        SamplingParams { xtc_probability: 0.5, ..plain },
    ]
    .into_iter()
    .enumerate()
    .map(|(i, params)| sampled(i, params))
    .collect();
    for (gpu, same) in gpus().into_iter().zip(gpus()) {
        let mut model = load_on(&Whole(same, None), "llama", LoadOptions::default());
        let expected = answers(&mut model, &requests);
        let mut model = load_on(&*gpu, "llama", LoadOptions::default());
        let mut n_before = 0;
        for (request, expected) in requests.iter().zip(&expected) {
            assert_eq!(alone(&mut model, request, 0), *expected);
            let n_rows = output(&model).whole_rows;
            assert!(n_rows > n_before, "{:?}", request.params.sampling);
            n_before = n_rows;
        }
    }
}

#[test]
fn an_engine_and_grammars_choose_from_shortlists() {
    let grammars = ["[ab]{3,12}", "(yes|no|perhaps)( [a-z]+){2,4}"]
        .map(|text| Grammar::Regex(text.to_owned()));
    for (gpu, same) in gpus().into_iter().zip(gpus()) {
        let mut model = load_on(&Whole(same, None), "llama", LoadOptions::default());
        let constrainer = Constrainer::new(model.tokenizer().unwrap()).unwrap();
        let mut requests: Vec<Request> = Vec::new();
        for (i, params) in samplings().into_iter().enumerate() {
            requests.push(sampled(i, params.clone()));
            let mut request = sampled(i + 13, params);
            request.params.ignore_eos = false;
            request.params.constraint = Some(constrainer.compile(&grammars[i % 2]).unwrap());
            requests.push(request);
        }
        // Some end by their text, of which a part is common in their answers.
        let expected = answers(&mut model, &requests);
        for (request, answer) in requests.iter_mut().zip(&expected).step_by(3) {
            let stop: String = answer.text.chars().skip(answer.text.chars().count() / 2).collect();
            request.params.stop = if stop.is_empty() { Vec::new() } else { vec![stop] };
        }
        let expected = answers(&mut model, &requests);
        let mut model = load_on(&*gpu, "llama", LoadOptions::default());
        assert_eq!(answers(&mut model, &requests), expected, "alone");
        assert_eq!(output(&model).whole_rows, 0, "alone");
        // With room for all, and with so little that answers lose their pages.
        for (kv_tokens, lookup_tokens) in [(None, 0), (Some(320), 0), (Some(320), 3)] {
            let mut model = load_on(&*gpu, "llama", serving(kv_tokens));
            assert_eq!(model.max_seq_len(), CONTEXT);
            let metrics = model.runner().dispatch_metrics();
            let options = EngineOptions { lookup_tokens, ..EngineOptions::default() };
            let engine = Engine::start(model, options).unwrap();
            let pending: Vec<_> = requests.iter().map(|r| submit(&engine, r.clone())).collect();
            for (i, (_ticket, events)) in pending.iter().enumerate() {
                assert_eq!(collect(1, events).0, expected[i..=i], "request {i}");
            }
            let output = metrics[0].snapshot().output;
            assert!(output.shortlists > 100, "{output:?}");
            // What follows a draft token is not known where the text or a grammar decides.
            assert_eq!(output.whole_rows > 0, lookup_tokens > 0, "{output:?}");
        }
    }
}

#[test]
fn the_next_step_is_launched_before_a_token_is_told() {
    // Its prompt is one step.
    let mut request = sampled(4, SamplingParams::greedy());
    request.params.max_tokens = Some(4);
    // No step follows the last token.
    let expected =
        ["launch", "launch", "token", "launch", "token", "launch", "token", "token", "end"];
    for gpu in gpus() {
        let log = Log::default();
        let device = Whole(gpu, Some(log.clone()));
        let mut model = load_on(&device, "llama", LoadOptions::default());
        let prompt: Vec<u32> = request.prompt.tokens().collect();
        let told = log.clone();
        let mut session = model.new_session();
        let note = &mut |event: &Event<'_>| {
            if let Event::Token(_) = event {
                told.lock().unwrap().push("token");
            }
            ControlFlow::Continue(())
        };
        session.generate(&mut model, &prompt, &request.params, note).unwrap();
        log.lock().unwrap().push("end");
        assert_eq!(std::mem::take(&mut *log.lock().unwrap()), expected, "a session");
        session.close(&mut model);

        let engine = Engine::start(model, EngineOptions::default()).unwrap();
        let told = log.clone();
        let sink = Box::new(move |event| match event {
            EngineEvent::Token(_) => told.lock().unwrap().push("token"),
            EngineEvent::Finished { .. } => told.lock().unwrap().push("end"),
            _ => {}
        });
        let _ticket = engine.submit(request.clone(), sink).unwrap();
        engine.shutdown(Duration::from_secs(600));
        // Where the device finds the tokens, the engine's further steps are launched after one that runs.
        let expected = match device.name().contains("cuda") {
            true => &["launch", "launch", "token", "token", "token", "token", "end"][..],
            false => &expected,
        };
        assert_eq!(*log.lock().unwrap(), expected, "an engine");
    }
}

#[test]
fn a_caller_that_breaks_off_leaves_the_session_usable() {
    let request = sampled(2, SamplingParams::greedy());
    let prompt: Vec<u32> = request.prompt.tokens().collect();
    for gpu in gpus() {
        let mut model = load_on(&*gpu, "llama", LoadOptions::default());
        let expected = alone(&mut model, &request, 0).ids;
        let mut session = model.new_session();
        for most in [1, 3, 99] {
            let mut n = 0;
            let breaks = &mut |event: &Event<'_>| {
                n += usize::from(matches!(event, Event::Token(_)));
                if n == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let out = session.generate(&mut model, &prompt, &request.params, breaks).unwrap();
            assert_eq!(out.ids, expected[..most.min(expected.len())]);
        }
        session.close(&mut model);
        assert!(model.runner().pool_stats().iter().all(|pool| pool.used == 0));
    }
}

#[test]
fn several_answers_and_dropped_tickets_leave_nothing_behind() {
    let warm = SamplingParams { temperature: 1.3, seed: Some(5), ..SamplingParams::default() };
    let plain = SamplingParams { top_k: 0, top_p: 1.0, min_p: 0.0, ..warm.clone() };
    for (gpu, sampling) in gpus().into_iter().flat_map(|gpu| {
        let gpu: Arc<dyn Backend> = gpu.into();
        [(gpu.clone(), warm.clone()), (gpu, plain.clone())]
    }) {
        let request = Request { n: 5, ..sampled(7, sampling) };
        let mut model = load_on(&*gpu, "llama", LoadOptions::default());
        let expected: Vec<Answer> = (0..5).map(|i| alone(&mut model, &request, i)).collect();
        // Each answer has a draw of its own, from one row.
        let metrics = model.runner().dispatch_metrics();
        assert_eq!(metrics[0].snapshot().output.whole_rows, 0);
        assert!(expected.iter().any(|answer| answer.ids != expected[0].ids), "seeds differ");
        let mut model = load_on(&*gpu, "llama", serving(None));
        let metrics = model.runner().dispatch_metrics();
        let engine = Engine::start(model, EngineOptions::default()).unwrap();
        let mut endless = request.clone();
        (endless.params.max_tokens, endless.params.ignore_eos) = (None, true);
        let (ticket, events) = submit(&engine, endless.clone());
        let (_kept, kept_events) = submit(&engine, request.clone());
        // Dropped while its tokens are told, and before it is begun.
        while !matches!(events.recv(), Ok(EngineEvent::Token(_))) {}
        drop(ticket);
        assert_eq!(collect(5, &kept_events).0, expected);
        drop(submit(&engine, endless));
        let stats = idle_stats(&engine);
        assert_eq!((stats.finished.cancelled, stats.finished.failed), (10, 0));
        assert_eq!((stats.kv_used_pages, stats.running, stats.waiting), (0, 0, 0));
        assert_eq!(metrics[0].snapshot().output.whole_rows, 0);
    }
}
