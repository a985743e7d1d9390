//! The engine gives every request the answer that it would get alone, whatever else it works on,
//! and gives everything back that a request held.

use crate::common::gpus::gpus;
use crate::common::quantized::write_quantized;
use crate::common::requests::{
    Answer, CONTEXT, alone, collect, cpus, engine, idle_stats, load, load_on, request, serving,
    submit,
};
use crate::common::tiny::tiny;
use realizar_runtime::backend::Backend;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::constrain::{Constrainer, Grammar};
use realizar_runtime::engine::{
    CacheEvent, CacheSink, Engine, EngineEvent, EngineOptions, Request, SubmitError,
};
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::{Error, FinishReason, GenerateParams, LoadOptions, Model, StopCause};
use std::slice::from_ref;
use std::sync::mpsc::{channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn answers_are_those_that_requests_get_alone() {
    let [cpu, with_tiles] = cpus();
    let models = ["llama", "gemma3_text", "gpt2"].map(|name| (name, cpu));
    for (name, backend) in models.into_iter().chain([("gemma3_text", with_tiles)]) {
        let mut model = load_on(&backend, name, LoadOptions::default());
        let wanted: Vec<Answer> = (0..40).map(|i| alone(&mut model, &request(i), 0)).collect();
        // With room for all, and with so little that answers lose their pages to others.
        for (kv_tokens, lookup_tokens) in [(None, 0), (Some(320), 0), (Some(320), 4)] {
            let options = EngineOptions { lookup_tokens, ..EngineOptions::default() };
            let model = load_on(&backend, name, serving(kv_tokens));
            let engine = Engine::start(model, options).unwrap();
            let mut pending = Vec::new();
            for (i, wanted) in wanted.iter().enumerate() {
                pending.push((i, wanted, submit(&engine, request(i))));
                // Let some end before others come.
                if i % 11 == 10 {
                    let (i, wanted, (_ticket, events)) = pending.remove(0);
                    assert_eq!(collect(1, &events).0, from_ref(wanted), "{name}: request {i}");
                }
            }
            for (i, wanted, (_ticket, events)) in pending {
                let got = collect(1, &events).0;
                assert_eq!(got, from_ref(wanted), "{name}, {kv_tokens:?}: request {i}");
            }
            let stats = idle_stats(&engine);
            let prompts = (0..40).map(|i| request(i).prompt.len() as u64).sum::<u64>();
            let generated = wanted.iter().map(|answer| answer.ids.len() as u64).sum::<u64>();
            assert_eq!((stats.prompt_tokens, stats.generated_tokens), (prompts, generated));
            assert_eq!(stats.finished.stop + stats.finished.length, 40);
            assert_eq!((stats.running, stats.waiting, stats.kv_used_pages), (0, 0, 0));
            assert!(stats.prefix_hits > 500, "{name}: {stats:?}");
            assert_eq!(stats.preemptions > 0, kv_tokens.is_some(), "{name}: {stats:?}");
            assert_eq!(stats.draft_tokens > 0, lookup_tokens > 0, "{name}: {stats:?}");
            assert_eq!(stats.e2e.count(), 40);
        }
    }
}

/// Contexts that attention cuts into parts, on quantized weights, with answers that lose their pages.
#[test]
fn long_contexts_of_a_quantized_model_have_the_bits_of_being_alone() {
    for backend in cpus() {
        check_long_contexts(&backend);
    }
}

fn check_long_contexts(backend: &dyn Backend) {
    use realizar_quant::BlockType::{Q4_0, Q4_K, Q6_K, Q8_0};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("quantized.gguf");
    write_quantized(&path, &[Q4_K, Q8_0, Q6_K, Q4_0]);
    let load = |options| {
        let options = LoadOptions { max_seq_len: Some(640), chunk: Some(128), ..options };
        Model::load(&path, backend, &options).unwrap()
    };
    // Some begin alike, for more or less than a part.
    let requests: Vec<Request> = [(245, 0), (270, 200), (500, 270), (505, 500), (30, 0)]
        .into_iter()
        .enumerate()
        .map(|(i, (len, shared))| {
            let salt = |pos: usize| if pos < shared { 2 } else { 3 * i };
            let token = |pos: usize| 3 + ((pos * 31 + salt(pos) * 17 + pos * pos * 7) % 200) as u32;
            let mut request = request(i);
            request.prompt = (0..len).map(token).collect();
            (request.params.max_tokens, request.params.ignore_eos) = (Some(20), true);
            request
        })
        .collect();
    let mut model = load(LoadOptions::default());
    let wanted: Vec<Answer> = requests.iter().map(|r| alone(&mut model, r, 0)).collect();
    let options = EngineOptions { lookup_tokens: 3, ..EngineOptions::default() };
    let engine = Engine::start(load(serving(Some(1024))), options).unwrap();
    for _ in 0..2 {
        let pending: Vec<_> = requests.iter().map(|r| submit(&engine, r.clone())).collect();
        for (i, (_ticket, events)) in pending.iter().enumerate() {
            assert_eq!(collect(1, events).0, wanted[i..=i], "request {i}");
        }
    }
    let stats = idle_stats(&engine);
    assert!(stats.prefix_hits > 500 && stats.kv_used_pages == 0, "{stats:?}");
}

/// Two whose prompts do not fit into one step's pages: the second loses its own until the first has
/// got on, again and again.
#[test]
fn a_preempted_request_does_not_hold_up_the_others() {
    let of_length = |len: u32, salt: u32| {
        let prompt = (0..len).map(|pos| 3 + (pos * 31 + salt * 17 + pos * pos * 7) % 200);
        Request::new(prompt.collect::<Vec<_>>(), request(0).params)
    };
    let requests = [of_length(180, 1), of_length(60, 2)];
    let mut model = load("llama", LoadOptions::default());
    let wanted = requests.each_ref().map(|request| alone(&mut model, request, 0));
    let backend = CpuBackend::new(Some(2), None).unwrap();
    let options =
        LoadOptions { max_seq_len: Some(CONTEXT), chunk: Some(128), ..serving(Some(CONTEXT + 24)) };
    let path = tiny("llama").join("model-f32.gguf");
    let model = Model::load(&path, &backend, &options).unwrap();
    let options = EngineOptions { prompt_tokens: Some(128), ..EngineOptions::default() };
    let engine = Engine::start(model, options).unwrap();
    let pending = requests.map(|request| submit(&engine, request));
    for ((_ticket, events), wanted) in pending.iter().zip(wanted) {
        assert_eq!(collect(1, events).0, [wanted]);
    }
    assert_eq!(idle_stats(&engine).kv_used_pages, 0);
}

#[test]
fn a_draft_model_changes_no_answer() {
    let mut model = load("llama", LoadOptions::default());
    let wanted: Vec<Answer> = (0..12).map(|i| alone(&mut model, &request(i), 0)).collect();
    // The model itself drafts correctly wherever the answer is greedy. Another one seldom does, and
    // one with a small cache has no room for some texts.
    for (name, kv_tokens, is_right) in [("llama", None, true), ("gemma3_text", Some(128), false)] {
        let draft = load(name, serving(kv_tokens));
        let options = EngineOptions { draft_tokens: 3, ..EngineOptions::default() };
        let model = load("llama", serving(Some(400)));
        let engine = Engine::start_with_draft(model, Some(draft), options).unwrap();
        let pending: Vec<_> = (0..12).map(|i| submit(&engine, request(i))).collect();
        for (i, (_ticket, events)) in pending.iter().enumerate() {
            assert_eq!(collect(1, events).0, wanted[i..=i], "request {i}, drafted by {name}");
        }
        let stats = idle_stats(&engine);
        let (drafted, accepted) = (stats.draft_tokens, stats.accepted_tokens);
        assert!(drafted > 50, "{name}: {stats:?}");
        let share = if is_right { 40..=drafted } else { 0..=drafted / 4 };
        assert!(share.contains(&accepted), "{name}: {accepted} of {drafted}");
        assert_eq!(stats.kv_used_pages, 0);
    }
}

#[test]
fn gpus_copy_shared_pages_too() {
    for device in gpus() {
        let mut model = load_on(&*device, "llama", LoadOptions::default());
        let wanted: Vec<Answer> = (0..8).map(|i| alone(&mut model, &request(i), 0)).collect();
        let model = load_on(&*device, "llama", serving(Some(256)));
        let engine = Engine::start(model, EngineOptions::default()).unwrap();
        for _ in 0..2 {
            let pending: Vec<_> = (0..8).map(|i| submit(&engine, request(i))).collect();
            for (i, (_ticket, events)) in pending.iter().enumerate() {
                assert_eq!(collect(1, events).0, wanted[i..=i], "request {i}");
            }
        }
        let stats = idle_stats(&engine);
        assert!(stats.prefix_hits > 100 && stats.kv_used_pages == 0, "{stats:?}");
    }
}

#[test]
fn several_answers_share_a_prompt() {
    let mut model = load("llama", LoadOptions::default());
    let engine = engine("llama", None, EngineOptions::default());
    let request = Request { n: 5, ..request(7) };
    let (_ticket, events) = submit(&engine, request.clone());
    let (answers, cached) = collect(5, &events);
    assert_eq!(cached, 0);
    for (i, answer) in answers.iter().enumerate() {
        assert_eq!(*answer, alone(&mut model, &request, i as u64), "answer {i}");
    }
    assert!(answers.iter().any(|answer| answer.ids != answers[0].ids), "seeds differ");
    // Again, from the cache: all but the last token.
    let (_ticket, events) = submit(&engine, request.clone());
    let (again, cached) = collect(5, &events);
    assert_eq!(again, answers);
    assert_eq!(cached, request.prompt.len() - 1);
    assert_eq!(idle_stats(&engine).kv_used_pages, 0);
}

#[test]
fn a_prompt_begun_by_another_is_run_once() {
    let engine = engine("llama", None, EngineOptions::default());
    let requests: Vec<_> = (0..6).map(|_| submit(&engine, request(3))).collect();
    let cached: Vec<usize> = requests.iter().map(|(_, events)| collect(1, events).1).collect();
    let len = request(3).prompt.len();
    assert_eq!(cached[0], 0);
    assert!(cached[1..].iter().all(|&n| n >= (len - 1) / 32 * 32), "{cached:?} of {len}");
}

#[test]
fn the_prefix_cache_reports_its_hits() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let log = events.clone();
    let tell = move |events: Vec<CacheEvent>| log.lock().unwrap().extend(events);
    let cache_sink = Some(CacheSink(Arc::new(tell)));
    let options = EngineOptions { cache_sink, ..EngineOptions::default() };
    let engine = engine("llama", Some(224), options);
    // The second prompt takes the pages of the first, which does not begin like it.
    let prompt = |salt: u32, n: u32| (0..n).map(|i| 3 + (i * 7 + salt) % 200).collect::<Vec<_>>();
    for prompt in [prompt(1, 100), prompt(2, 199)] {
        let (_ticket, events) = submit(&engine, Request { prompt: prompt.into(), ..request(0) });
        collect(1, &events);
    }
    idle_stats(&engine);
    let events = events.lock().unwrap();
    let stored = |event: &CacheEvent| match event {
        CacheEvent::Stored { hash, parent, tokens } => Some((*hash, *parent, tokens.clone())),
        _ => None,
    };
    let stored: Vec<_> = events.iter().filter_map(stored).collect();
    let pages: Vec<u32> = stored[..3].iter().flat_map(|(_, _, tokens)| tokens.clone()).collect();
    assert_eq!(pages, prompt(1, 96));
    assert_eq!(stored[0].1, None);
    assert_eq!((stored[1].1, stored[2].1), (Some(stored[0].0), Some(stored[1].0)));
    let removed = |event: &CacheEvent| match event {
        CacheEvent::Removed { hash } => Some(*hash),
        _ => None,
    };
    let removed: Vec<u64> = events.iter().filter_map(removed).collect();
    assert_eq!(removed, [stored[2].0, stored[1].0, stored[0].0][..removed.len()]);
    assert!(!removed.is_empty());
}

#[test]
fn a_dropped_ticket_frees_what_it_held() {
    let engine = engine("llama", None, EngineOptions::default());
    let long = |i| Request {
        params: GenerateParams { max_tokens: None, ignore_eos: true, ..request(i).params },
        ..request(i)
    };
    let (ticket, events) = submit(&engine, long(1));
    let (other, other_events) = submit(&engine, request(2));
    events.recv().unwrap();
    drop(ticket);
    collect(1, &other_events);
    drop(other);
    // One that is dropped before it is begun leaves nothing either.
    drop(submit(&engine, long(3)));
    let stats = idle_stats(&engine);
    assert_eq!(stats.finished.cancelled, 2);
    assert_eq!((stats.kv_used_pages, stats.running, stats.waiting), (0, 0, 0));
}

#[test]
fn a_request_that_gave_a_token_is_told_to_run() {
    let engine = engine("llama", None, EngineOptions::default());
    let mut endless = request(0);
    (endless.params.max_tokens, endless.params.ignore_eos) = (None, true);
    for _ in 0..50 {
        // The engine waits for each event to be taken, so the request cannot end in between.
        let (sender, events) = sync_channel(0);
        let sink = Box::new(move |event| drop(sender.send(event)));
        let ticket = engine.submit(endless.clone(), sink).unwrap();
        while !matches!(events.recv(), Ok(EngineEvent::Token(_))) {}
        assert_eq!(engine.stats().running, 1);
        drop((ticket, events));
        while engine.stats().running > 0 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn what_cannot_be_met_is_refused_at_once() {
    let options = EngineOptions { max_seqs: Some(2), max_queue: 3, ..EngineOptions::default() };
    let engine = engine("llama", Some(128), options);
    assert_eq!(engine.model().max_seq_len(), 128, "as much as the cache holds");
    let refused = |request: Request| {
        let error = engine.submit(request, Box::new(|_| ())).unwrap_err();
        error.to_string()
    };
    let with_prompt = |n: usize| Request { prompt: vec![5; n].into(), ..request(0) };
    assert_eq!(refused(with_prompt(0)), "the prompt has no tokens");
    assert_eq!(refused(with_prompt(129)), "a prompt of 129 tokens does not fit the context of 128");
    let outside = Request { prompt: vec![1, 9999].into(), ..request(0) };
    assert!(refused(outside).starts_with("token 9999 is not in the vocabulary"));
    assert_eq!(refused(Request { n: 3, ..request(0) }), "`n` is 3; it must be from 1 to 2");
    let mut hot = request(0);
    hot.params.sampling.get_or_insert_default().temperature = -1.0;
    assert_eq!(refused(hot), "`temperature` must be from 0 to 100, but is -1");

    let endless = Request {
        params: GenerateParams { max_tokens: None, ignore_eos: true, ..request(0).params },
        ..request(0)
    };
    let mut taken = Vec::new();
    let error = loop {
        let (sender, events) = channel();
        match engine.submit(endless.clone(), Box::new(move |event| drop(sender.send(event)))) {
            Ok(ticket) => taken.push((ticket, events)),
            Err(error) => break error,
        }
    };
    assert!(taken.len() >= 3, "{}", taken.len());
    let SubmitError::QueueFull { waiting: 3, retry_after } = error else { panic!("{error}") };
    assert!(retry_after >= Duration::from_secs(1));
    for (_ticket, events) in &taken {
        assert_eq!(collect(1, events).0[0].reason, Some(FinishReason::Length));
    }
    engine.close();
    let error = engine.submit(request(0), Box::new(|_| ())).unwrap_err();
    assert!(matches!(error, SubmitError::Closed));
}

#[test]
fn prompts_are_told_how_likely_they_were() {
    let mut model = load("llama", LoadOptions { max_outputs: 200, ..LoadOptions::default() });
    let engine = engine("llama", None, EngineOptions::default());
    let mut request = Request { prompt_logprobs: Some(2), ..request(3) };
    request.params.max_tokens = Some(0);
    for _ in 0..2 {
        let (_ticket, events) = submit(&engine, request.clone());
        let EngineEvent::Prompt { cached_tokens: 0, logprobs, .. } = events.recv().unwrap() else {
            panic!("the prompt comes first, and nothing of it is cached");
        };
        let positions: Vec<usize> = (0..request.prompt.len() - 1).collect();
        let prompt: Vec<u32> = request.prompt.tokens().collect();
        let rows = model.logits(&prompt, &positions, 48).unwrap();
        assert_eq!(logprobs.len(), rows.len());
        for (i, (got, row)) in logprobs.iter().zip(&rows).enumerate() {
            let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
            let want = f64::from(row[prompt[i + 1] as usize]) - sum.ln();
            assert_eq!(got.id, prompt[i + 1]);
            assert!((f64::from(got.logprob) - want).abs() < 1e-4, "{got:?} instead of {want}");
            assert_eq!(got.top_logprobs.len(), 2);
            let logit = row[got.id as usize];
            let n_better = row.iter().filter(|&&other| other > logit).count();
            let n_equal = row.iter().filter(|&&other| other == logit).count();
            assert_eq!(got.rank, n_better + n_equal, "{got:?}");
            assert!(got.top_logprobs[0].logprob >= got.logprob);
        }
        let EngineEvent::Finished { reason: FinishReason::Length, .. } = events.recv().unwrap()
        else {
            panic!("no token was asked for");
        };
    }
}

#[test]
fn tokens_and_texts_end_answers_but_none_before_its_time() {
    const LEN: usize = 30;
    let engine = engine("llama", None, EngineOptions::default());
    let prompt = request(3).prompt;
    let ask = |change: &dyn Fn(&mut GenerateParams)| {
        let mut params = GenerateParams {
            sampling: Some(SamplingParams::greedy()),
            max_tokens: Some(LEN),
            ignore_eos: true,
            ..GenerateParams::default()
        };
        change(&mut params);
        let (_ticket, events) = submit(&engine, Request::new(prompt.clone(), params));
        let (mut ids, mut text) = (Vec::new(), String::new());
        loop {
            match events.recv().unwrap() {
                EngineEvent::Prompt { .. } => {}
                EngineEvent::Token(token) => {
                    ids.push(token.id);
                    text.push_str(&token.text);
                }
                EngineEvent::Finished { reason, tail, stop, .. } => {
                    text.push_str(&tail);
                    return (ids, text, reason, stop);
                }
                event => panic!("{event:?}"),
            }
        }
    };
    let (ids, text, reason, stop) = ask(&|_| {});
    assert_eq!((ids.len(), reason, stop), (LEN, FinishReason::Length, None));

    // The last token to come up for the first time, but for the end.
    let at = (1..LEN - 4).rev().find(|&i| !ids[..i].contains(&ids[i])).unwrap();
    let (end, id) = (at + 4, ids[at]);
    let (got, _, reason, stop) = ask(&|params| params.stop_tokens = vec![id]);
    assert_eq!((got, reason), (ids[..at].to_vec(), FinishReason::Stop));
    assert_eq!(stop, Some(StopCause::Token(id)));
    // Before that many tokens it is as if it were banned.
    let (banned, ..) = ask(&|params| {
        params.sampling.get_or_insert_default().logit_bias = vec![(id, f32::NEG_INFINITY)];
    });
    let (got, ..) = ask(&|params| {
        (params.stop_tokens, params.min_tokens) = (vec![id], end);
    });
    assert!(got.len() >= end);
    assert_eq!(got[..end], banned[..end]);

    // A text is looked for in what comes with the last of these tokens and after it.
    let found = Some(StopCause::Text(text.clone()));
    for (min_tokens, want) in [(0, &found), (1, &found), (LEN / 2, &None)] {
        let (got, whole, reason, stop) = ask(&|params| {
            (params.stop, params.min_tokens) = (vec![text.clone()], min_tokens);
        });
        assert_eq!(stop, *want, "{min_tokens}");
        assert_eq!(got, ids[..got.len()]);
        match want {
            Some(_) => assert_eq!((whole.as_str(), reason), ("", FinishReason::Stop)),
            None => assert_eq!((whole.as_str(), reason), (text.as_str(), FinishReason::Length)),
        }
    }

    let params = GenerateParams { stop_tokens: vec![u32::MAX], ..GenerateParams::default() };
    let refused = engine.submit(Request::new(prompt.clone(), params), Box::new(|_| {}));
    assert!(refused.unwrap_err().to_string().contains("4294967295"));
}

#[test]
fn a_shutdown_finishes_what_it_has_time_for() {
    let engine = engine("llama", None, EngineOptions::default());
    let requests: Vec<_> = (0..12).map(|i| (i, submit(&engine, request(i)))).collect();
    engine.shutdown(Duration::from_secs(600));
    for (_, (_ticket, events)) in &requests {
        let reason = collect(1, events).0[0].reason;
        assert!(matches!(reason, Some(FinishReason::Stop | FinishReason::Length)), "{reason:?}");
    }

    // A long answer is held at its first event until the engine closes.
    let engine = self::engine("llama", None, EngineOptions::default());
    let mut endless = request(1);
    (endless.params.max_tokens, endless.params.ignore_eos) = (None, true);
    let (sender, events) = channel();
    let (open, gate) = channel::<()>();
    let sink = Box::new(move |event| {
        drop(sender.send(event));
        // From the second event on the gate is gone.
        let _ = gate.recv();
    });
    let _ticket = engine.submit(endless, sink).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| engine.shutdown(Duration::ZERO));
        while !matches!(engine.submit(request(0), Box::new(|_| ())), Err(SubmitError::Closed)) {
            std::thread::yield_now();
        }
        drop(open);
    });
    let last = events.iter().last();
    assert!(matches!(last, Some(EngineEvent::Failed(Error::Ended))), "{last:?}");
}

#[test]
fn every_answer_follows_its_own_grammar() {
    let mut model = load("llama", LoadOptions::default());
    let constrainer = Constrainer::new(model.tokenizer().unwrap()).unwrap();
    let schema = serde_json::json!({
        "type": "object",
        "properties": {"n": {"type": "integer"}, "on": {"type": "boolean"}},
        "required": ["n", "on"],
        "additionalProperties": false
    });
    let grammars = [
        Grammar::JsonSchema(schema),
        Grammar::Regex("[ab]{3,6}".to_owned()),
        Grammar::Choice(vec!["yes".to_owned(), "no".to_owned(), "not now".to_owned()]),
    ];
    let requests: Vec<Request> = (0..12)
        .map(|i| {
            let mut request = request(i);
            request.params.max_tokens = Some(60);
            request.params.ignore_eos = false;
            // Every fourth has none.
            let grammar = grammars.get(i % 4);
            request.params.constraint = grammar.map(|g| constrainer.compile(g).unwrap());
            request
        })
        .collect();
    let wanted: Vec<Answer> = requests.iter().map(|r| alone(&mut model, r, 0)).collect();
    for lookup_tokens in [0, 3] {
        let options = EngineOptions { lookup_tokens, ..EngineOptions::default() };
        let engine = engine("llama", Some(500), options);
        let pending: Vec<_> = requests.iter().map(|r| submit(&engine, r.clone())).collect();
        for (i, (_ticket, events)) in pending.iter().enumerate() {
            let answer = &collect(1, events).0[0];
            assert_eq!(answer, &wanted[i], "request {i}");
            let (text, is_whole) = (&answer.text, answer.reason == Some(FinishReason::Stop));
            match i % 4 {
                0 if is_whole => {
                    let value: serde_json::Value = serde_json::from_str(text).unwrap();
                    assert!(value["n"].is_i64() && value["on"].is_boolean(), "{text}");
                }
                1 => {
                    assert!(is_whole && (3..=6).contains(&text.len()), "{text}");
                    assert!(text.chars().all(|c| "ab".contains(c)), "{text}");
                }
                2 => assert!(["yes", "no", "not now"].contains(&text.as_str()), "{text}"),
                _ => {}
            }
        }
    }
}
