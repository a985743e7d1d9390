//! Models whose layers carry a state: the engine gives their requests the answers that they get alone, and
//! prompts continue from the states that were kept.

use crate::common::gpus::gpus;
use crate::common::requests::{
    Answer, alone, collect, idle_stats, load_on, request, serving, submit,
};
use realizar_runtime::backend::Backend;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::engine::{Engine, EngineOptions, Request};
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::{GenerateParams, LoadOptions};

const MODELS: [&str; 2] = ["lfm2", "qwen3_5_text"];

/// Each model on the CPU, and on the first GPU if there is one.
fn cases() -> impl Iterator<Item = (&'static str, Box<dyn Backend>)> {
    MODELS.into_iter().flat_map(|name| {
        let cpu: Box<dyn Backend> = Box::new(CpuBackend::new(Some(2), None).unwrap());
        let devices = std::iter::once(cpu).chain(gpus().into_iter().take(1));
        devices.map(move |device| (name, device))
    })
}

#[test]
fn answers_are_those_that_requests_get_alone() {
    for (name, device) in cases() {
        let case = format!("{name} on {}", device.name());
        let n = if device.name().starts_with("cpu") { 24 } else { 10 };
        let mut model = load_on(&*device, name, LoadOptions::default());
        let wanted: Vec<Answer> = (0..n).map(|i| alone(&mut model, &request(i), 0)).collect();
        // With room for all, with preemption, with drafts.
        for (kv_tokens, lookup_tokens) in [(None, 0), (Some(320), 0), (Some(320), 4)] {
            let options = EngineOptions { lookup_tokens, ..EngineOptions::default() };
            let model = load_on(&*device, name, serving(kv_tokens));
            let engine = Engine::start(model, options).unwrap();
            for _ in 0..2 {
                let pending: Vec<_> = (0..n).map(|i| submit(&engine, request(i))).collect();
                for (i, (_ticket, events)) in pending.iter().enumerate() {
                    let got = collect(1, events).0;
                    assert_eq!(got, wanted[i..=i], "{case}, {kv_tokens:?}: request {i}");
                }
            }
            let stats = idle_stats(&engine);
            assert_eq!(stats.kv_used_pages, 0);
            assert!(stats.prefix_hits > 100, "{case}: {stats:?}");
            assert_eq!(stats.preemptions > 0, kv_tokens.is_some(), "{case}: {stats:?}");
            assert_eq!(stats.draft_tokens > 0, lookup_tokens > 0, "{case}: {stats:?}");
        }
    }
}

#[test]
fn several_answers_share_a_prompt_and_a_draft_model_changes_none() {
    for (name, device) in cases() {
        let case = format!("{name} on {}", device.name());
        let mut model = load_on(&*device, name, LoadOptions::default());
        let [served, draft] = [0, 1].map(|_| load_on(&*device, name, serving(None)));
        let options = EngineOptions { draft_tokens: 3, ..EngineOptions::default() };
        let engine = Engine::start_with_draft(served, Some(draft), options).unwrap();
        let request = Request { n: 4, ..request(7) };
        for _ in 0..2 {
            let (_ticket, events) = submit(&engine, request.clone());
            for (i, answer) in collect(4, &events).0.iter().enumerate() {
                assert_eq!(*answer, alone(&mut model, &request, i as u64), "{case}: answer {i}");
            }
        }
        let stats = idle_stats(&engine);
        assert_eq!(stats.kv_used_pages, 0);
        assert!(stats.accepted_tokens > 0, "{case}: {stats:?}");
    }
}

/// `n` greedy tokens after a prompt.
fn greedy(prompt: Vec<u32>, n: usize) -> Request {
    let params = GenerateParams {
        sampling: Some(SamplingParams::greedy()),
        max_tokens: Some(n),
        ignore_eos: true,
        ..GenerateParams::default()
    };
    Request::new(prompt, params)
}

fn message(turn: u32) -> impl Iterator<Item = u32> {
    (0..9).map(move |i| 3 + (turn * 37 + i * 11) % 200)
}

#[test]
fn a_turn_computes_the_last_answer_and_the_new_message() {
    for (name, device) in cases() {
        let case = format!("{name} on {}", device.name());
        let mut model = load_on(&*device, name, LoadOptions::default());
        let served = load_on(&*device, name, serving(None));
        let engine = Engine::start(served, EngineOptions::default()).unwrap();
        let mut prompt: Vec<u32> = Vec::new();
        let mut known = 0;
        for turn in 0..10 {
            prompt.extend(message(turn));
            let request = greedy(prompt.clone(), 5);
            let (_ticket, events) = submit(&engine, request.clone());
            let (answers, cached) = collect(1, &events);
            assert_eq!(cached, known, "{case}: turn {turn}");
            assert_eq!(answers[0], alone(&mut model, &request, 0), "{case}: turn {turn}");
            known = prompt.len();
            prompt.extend(&answers[0].ids);
        }
    }
}

#[test]
fn a_shared_beginning_is_computed_once_by_requests_that_come_together() {
    let shared: Vec<u32> = (0..100).map(|i| 3 + i * i * 7 % 200).collect();
    for (name, device) in cases() {
        let served = load_on(&*device, name, serving(None));
        let engine = Engine::start(served, EngineOptions::default()).unwrap();
        let prompts = (0..16).map(|i| shared.iter().copied().chain(message(i)).collect());
        let pending: Vec<_> =
            prompts.map(|prompt: Vec<u32>| submit(&engine, greedy(prompt, 3))).collect();
        let cached: Vec<usize> =
            pending.iter().map(|(_ticket, events)| collect(1, events).1).collect();
        // Of the shared tokens those up to the last whole page.
        assert_eq!(cached[0], 0, "{name}");
        assert!(cached[1..].iter().all(|&n| n >= 96), "{name}: {cached:?}");
    }
}

#[test]
fn a_saved_session_goes_on_from_its_state() {
    use realizar_runtime::Event;
    use std::ops::ControlFlow;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("session");
    let mut go = |_: &Event<'_>| ControlFlow::Continue(());
    for (name, device) in cases() {
        let (first, second): (Vec<u32>, Vec<u32>) = (message(1).collect(), message(2).collect());
        let mut model = load_on(&*device, name, LoadOptions::default());
        let params = greedy(Vec::new(), 4).params;
        let mut session = model.new_session();
        let answer = session.generate(&mut model, &first, &params, &mut go).unwrap();
        session.save(&mut model, &path).unwrap();
        let prompt = [&first[..], &answer.ids, &second].concat();
        let expected = session.generate(&mut model, &prompt, &params, &mut go).unwrap();

        let mut model = load_on(&*device, name, LoadOptions::default());
        let mut restored = model.restore_session(&path).unwrap();
        let got = restored.generate(&mut model, &prompt, &params, &mut go).unwrap();
        assert_eq!(got.ids, expected.ids, "{name}");
        assert_eq!(got.timings.cached_tokens, first.len(), "{name}");
    }
}
