//! Requests of an engine, and the answers that a session alone gives to them.

use crate::common::tiny::tiny;
use realizar_runtime::backend::Backend;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::engine::{Engine, EngineEvent, EngineOptions, EngineStats, Request, Ticket};
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::{FinishReason, GenerateParams, LoadOptions, Model, TopLogprob};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

pub(crate) const CONTEXT: usize = 200;

pub(crate) fn load(name: &str, options: LoadOptions) -> Model {
    load_on(&CpuBackend::new(Some(2), None).unwrap(), name, options)
}

pub(crate) fn load_on(backend: &dyn Backend, name: &str, options: LoadOptions) -> Model {
    let options = LoadOptions { max_seq_len: Some(CONTEXT), chunk: Some(48), ..options };
    Model::load(&tiny(name).join("model-f32.gguf"), backend, &options).unwrap()
}

pub(crate) fn serving(kv_tokens: Option<usize>) -> LoadOptions {
    LoadOptions {
        max_seqs: 8,
        max_outputs: 16,
        prefix_cache: true,
        kv_tokens,
        ..LoadOptions::default()
    }
}

pub(crate) fn engine(name: &str, kv_tokens: Option<usize>, options: EngineOptions) -> Engine {
    Engine::start(load(name, serving(kv_tokens)), options).unwrap()
}

/// The CPU as it is chosen, and with prompts on tiles of BF16, in software.
pub(crate) fn cpus() -> [CpuBackend; 2] {
    [None, Some("amx-bf16-software")].map(|tier| CpuBackend::new(Some(2), tier).unwrap())
}

/// Request `i`: prompts with common beginnings, greedy and seeded.
pub(crate) fn request(i: usize) -> Request {
    let shared = [0, 40, 64, 90][i % 4];
    let token = |pos: usize| {
        let salt = if pos < shared { i % 2 } else { i };
        3 + ((pos * 31 + salt * 17 + pos * pos * 7) % 200) as u32
    };
    let prompt: Vec<u32> = (0..shared + 1 + (i * 13) % 40).map(token).collect();
    let sampling = match i % 3 {
        0 => SamplingParams::greedy(),
        _ => SamplingParams { temperature: 1.5, seed: Some(i as u64), ..SamplingParams::default() },
    };
    let params = GenerateParams {
        sampling: Some(sampling),
        max_tokens: Some(5 + (i * 7) % 30),
        ignore_eos: !i.is_multiple_of(5),
        logprobs: Some(1),
        ..GenerateParams::default()
    };
    Request::new(prompt, params)
}

/// What an answer is compared by.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) ids: Vec<u32>,
    pub(crate) text: String,
    pub(crate) logprob_bits: Vec<u32>,
    /// Of each token, the most likely ones with the bits of their log-probabilities.
    pub(crate) likely: Vec<Vec<(u32, u32)>>,
    pub(crate) reason: Option<FinishReason>,
}

/// The answer of a session that has the model for itself.
pub(crate) fn alone(model: &mut Model, request: &Request, index: u64) -> Answer {
    let mut params = request.params.clone();
    let sampling = params.sampling.get_or_insert_default();
    sampling.seed = sampling.seed.map(|seed| seed + index);
    let mut session = model.new_session();
    let prompt: Vec<u32> = request.prompt.tokens().collect();
    let out =
        session.generate(model, &prompt, &params, &mut |_| ControlFlow::Continue(())).unwrap();
    session.close(model);
    Answer {
        ids: out.ids,
        text: out.text,
        logprob_bits: out.logprobs.iter().map(|x| x.to_bits()).collect(),
        likely: out.top_logprobs.iter().map(|top| likely(top)).collect(),
        reason: Some(out.finish_reason),
    }
}

fn likely(top: &[TopLogprob]) -> Vec<(u32, u32)> {
    top.iter().map(|one| (one.id, one.logprob.to_bits())).collect()
}

pub(crate) fn submit(engine: &Engine, request: Request) -> (Ticket, Receiver<EngineEvent>) {
    let (sender, receiver) = channel();
    let sink = Box::new(move |event| drop(sender.send(event)));
    (engine.submit(request, sink).unwrap(), receiver)
}

/// The answers of a request, once it is complete, and the tokens that were cached.
pub(crate) fn collect(n: usize, events: &Receiver<EngineEvent>) -> (Vec<Answer>, usize) {
    let (mut answers, mut cached) = (vec![Answer::default(); n], None);
    while answers.iter().any(|answer| answer.reason.is_none()) {
        match events.recv().expect("the request is not complete") {
            EngineEvent::Prompt { cached_tokens, .. } => cached = Some(cached_tokens),
            EngineEvent::Token(token) => {
                let answer = &mut answers[token.index];
                answer.ids.push(token.id);
                answer.text.push_str(&token.text);
                answer.logprob_bits.extend(token.logprob.map(f32::to_bits));
                answer.likely.extend(token.logprob.map(|_| likely(&token.top_logprobs)));
            }
            EngineEvent::Finished { index, reason, tail, .. } => {
                answers[index].text.push_str(&tail);
                answers[index].reason = Some(reason);
            }
            event => panic!("{event:?}"),
        }
    }
    (answers, cached.expect("a prompt is run before its answers are complete"))
}

/// The statistics once nothing is running any longer.
pub(crate) fn idle_stats(engine: &Engine) -> EngineStats {
    engine.shutdown(Duration::from_secs(600));
    engine.stats()
}
