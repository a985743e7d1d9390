//! Conversations in one call: replies that run as they are read, and streams of the engine for threads and
//! for async programs. The model knows the alphabet and nothing else.

use futures_core::Stream;
use realizar_formats::{Gguf, GgufWriter};
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::engine::{Engine, EngineEvent, EngineOptions, EventStream, Request};
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::template::Message;
use realizar_runtime::{Error, FinishReason, GenerateParams, LoadOptions, Model};
use std::future::{Future, IntoFuture, poll_fn};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

/// A context that no answer fills before a test has gone on.
const LONG: usize = 1 << 16;

fn alphabet() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/alphabet.gguf")
}

fn load_from(path: &Path, options: &LoadOptions) -> Model {
    Model::load(path, &CpuBackend::new(Some(1), None).unwrap(), options).unwrap()
}

fn load(options: &LoadOptions) -> Model {
    load_from(&alphabet(), options)
}

/// Writes the model as one that knows no conversations.
fn write_without_template(path: &Path) {
    let source = Gguf::open(alphabet()).unwrap();
    let tensors: Vec<_> =
        source.tensors().iter().map(|info| source.tensor(&info.name).unwrap()).collect();
    let mut writer = GgufWriter::new();
    for (key, value) in source.metadata().iter().filter(|(key, _)| !key.ends_with("template")) {
        writer.set(key, value.clone()).unwrap();
    }
    for tensor in &tensors {
        writer.tensor(&tensor.name, tensor.ty, &tensor.shape, &tensor.data).unwrap();
    }
    writer.write_file(path).unwrap();
}

fn engine() -> Engine {
    let options = LoadOptions { max_seqs: 4, max_seq_len: Some(LONG), ..LoadOptions::default() };
    Engine::start(load(&options), EngineOptions::default()).unwrap()
}

fn params(max_tokens: usize) -> GenerateParams {
    let sampling = SamplingParams::greedy();
    GenerateParams {
        sampling: Some(sampling),
        max_tokens: Some(max_tokens),
        ..GenerateParams::default()
    }
}

/// Never ends by itself before the context does.
fn endless() -> GenerateParams {
    GenerateParams { ignore_eos: true, max_tokens: None, ..params(0) }
}

/// Wakes a thread that waits.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, as the smallest of async runtimes.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn a_reply_is_read_in_pieces_or_at_once() {
    let mut model = Model::open(alphabet()).unwrap();
    let messages = [Message::user("klm")];
    let pieces: Vec<String> =
        model.chat(&messages, &GenerateParams::default()).unwrap().map(Result::unwrap).collect();
    assert_eq!(pieces.concat(), "nopqrstuvwxyz");
    assert_eq!(pieces.len(), 13);
    let generation = model.chat(&messages, &GenerateParams::default()).unwrap().finish().unwrap();
    assert_eq!(generation.text, "nopqrstuvwxyz");
    assert_eq!(generation.finish_reason, FinishReason::Stop);
    assert_eq!((generation.timings.prompt_tokens, generation.timings.generated_tokens), (3, 13));
    // Whatever was read before, the result is of the whole reply.
    let mut reply = model.chat(&messages, &GenerateParams::default()).unwrap();
    assert_eq!(reply.next().unwrap().unwrap(), "n");
    let whole = reply.finish().unwrap();
    assert_eq!((whole.ids, whole.text), (generation.ids, generation.text));
    // A reply that is dropped leaves nothing behind.
    let mut reply = model.chat(&messages, &GenerateParams::default()).unwrap();
    assert_eq!(reply.next().unwrap().unwrap(), "n");
    drop(reply);
    assert_eq!(model.runner().pool_stats()[0].used, 0);
}

#[test]
fn a_session_pays_only_for_what_is_new() {
    let mut model = load(&LoadOptions::default());
    let mut session = model.new_session();
    let mut messages = vec![Message::system("ab"), Message::user("cd")];
    let first = session.chat(&mut model, &messages, &params(3)).unwrap().finish().unwrap();
    assert_eq!((first.text.as_str(), first.finish_reason), ("efg", FinishReason::Length));
    messages.extend([Message::assistant(first.text), Message::user("s")]);
    let second = session.chat(&mut model, &messages, &params(2)).unwrap().finish().unwrap();
    assert_eq!(second.text, "tu");
    assert_eq!((second.timings.prompt_tokens, second.timings.cached_tokens), (8, 4));
    // What is held back for a stop text comes with the last piece.
    let stop = GenerateParams { stop: vec!["vwa".to_owned()], ..params(3) };
    let pieces = session.chat(&mut model, &messages, &stop).unwrap();
    let pieces: Vec<String> = pieces.map(Result::unwrap).collect();
    assert_eq!(pieces, ["t", "u", "v"]);
}

/// The cache has pages for one sequence of full length.
#[test]
fn sessions_that_are_dropped_free_their_pages() {
    let options = LoadOptions { max_seqs: 1, max_seq_len: Some(256), ..LoadOptions::default() };
    let mut model = load(&options);
    let prompt = vec![4; 200]; // of 256 positions
    let held = |model: &mut Model| model.runner().pool_stats()[0].used;
    for i in 0..40 {
        let mut session = model.new_session();
        let out = session.generate(&mut model, &prompt, &params(2), &mut |_| {
            // Every fourth is cancelled during its prompt, every other one during its answer.
            if i % 4 == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(out.unwrap().ids.len(), if i % 4 == 0 { 0 } else { 2 }, "session {i}");
        assert!(held(&mut model) >= 200 / 32, "session {i}");
        drop(session);
        assert_eq!(held(&mut model), 0, "session {i}");
    }
    // Sessions that are kept do not fit, which is an error and no panic.
    let mut kept = Vec::new();
    let error = (0..2).find_map(|_| {
        kept.push(model.new_session());
        let session = kept.last_mut().unwrap();
        session.generate(&mut model, &prompt, &params(2), &mut |_| ControlFlow::Continue(())).err()
    });
    assert!(matches!(error, Some(Error::Kv(_))), "{error:?}");
}

#[test]
fn an_iterator_gives_the_events_of_a_request() {
    let engine = engine();
    let streams: Vec<(EventStream, &str)> = ["abc", "xyz", "mn", "v"]
        .into_iter()
        .zip(["defgh", "", "opqrs", "wxyz"])
        .map(|(text, answer)| (engine.chat(&[Message::user(text)], params(5)).unwrap(), answer))
        .collect();
    for (mut stream, answer) in streams {
        let mut text = String::new();
        let mut reason = None;
        for event in stream.by_ref() {
            let event = event.unwrap();
            text.push_str(event.text());
            if let EngineEvent::Finished { reason: found, .. } = event {
                assert_eq!(reason.replace(found), None);
            }
        }
        let expected = if answer.len() == 5 { FinishReason::Length } else { FinishReason::Stop };
        assert_eq!((text.as_str(), reason), (answer, Some(expected)));
        assert!(stream.next().is_none());
    }
    let prompt = engine.model().chat_prompt(&[Message::user("abc")]).unwrap();
    let logprobs = GenerateParams { logprobs: Some(2), ..params(4) };
    let whole = engine.stream(Request::new(prompt.clone(), logprobs)).unwrap().finish().unwrap();
    assert_eq!((whole.text.as_str(), whole.finish_reason), ("defg", FinishReason::Length));
    assert_eq!((whole.logprobs.len(), whole.top_logprobs[3].len()), (4, 2));
    assert!(whole.logprobs.iter().all(|&x| x > -1e-6), "{:?}", whole.logprobs);
    // Of several answers there is no single one.
    let request = Request { n: 2, ..Request::new(prompt, params(1)) };
    let error = engine.stream(request.clone()).unwrap().finish().unwrap_err().to_string();
    assert_eq!(error, "a stream of 2 answers has no single result; read its events instead");
    let n = engine.stream(request).unwrap().filter(|event| {
        matches!(event, Ok(EngineEvent::Finished { reason: FinishReason::Length, .. }))
    });
    assert_eq!(n.count(), 2);
}

#[test]
fn async_programs_need_no_runtime_of_ours() {
    let engine = engine();
    let whole = block_on(async {
        // Both are under way at once.
        let first = engine.chat(&[Message::user("abc")], params(30)).unwrap();
        let second = engine.chat(&[Message::user("stu")], params(30)).unwrap();
        [second.await.unwrap().text, first.await.unwrap().text]
    });
    assert_eq!(whole, ["vwxyz", "defghijklmnopqrstuvwxyz"]);
    let mut stream = engine.chat(&[Message::user("abc")], params(4)).unwrap();
    let texts = block_on(async {
        let mut texts = Vec::new();
        while let Some(event) = poll_fn(|cx| Pin::new(&mut stream).poll_next(cx)).await {
            texts.push(event.unwrap().text().to_owned());
        }
        texts
    });
    assert_eq!(texts.concat(), "defg");
    // The last task to poll is woken.
    let other = Waker::from(Arc::new(Unpark(std::thread::spawn(|| {}).thread().clone())));
    let stream = engine.chat(&[Message::user("w")], params(9)).unwrap();
    let mut answer = pin!(stream.into_future());
    if answer.as_mut().poll(&mut Context::from_waker(&other)).is_pending() {
        assert_eq!(block_on(answer).unwrap().text, "xyz");
    }
}

#[test]
fn a_stream_that_is_dropped_cancels_its_request() {
    let engine = engine();
    let mut stream = engine.chat(&[Message::user("abc")], endless()).unwrap();
    let first = stream.find_map(|event| match event.unwrap() {
        EngineEvent::Token(token) => Some(token.text),
        _ => None,
    });
    assert_eq!(first.as_deref(), Some("d"));
    drop(stream);
    // One that is no longer polled goes as well.
    let mut pending =
        Box::pin(engine.chat(&[Message::user("q")], endless()).unwrap().into_future());
    let _ = pending.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    drop(pending);
    engine.shutdown(Duration::from_secs(600));
    let stats = engine.stats();
    assert_eq!((stats.finished.cancelled, stats.finished.length), (2, 0), "{stats:?}");
    assert_eq!((stats.running, stats.waiting, stats.kv_used_pages), (0, 0, 0));
}

#[test]
fn a_stream_tells_why_it_ends_early() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plain.gguf");
    write_without_template(&path);
    let options = LoadOptions { max_seq_len: Some(LONG), ..LoadOptions::default() };
    let mut model = load_from(&path, &options);
    let messages = [Message::user("a")];
    let no_template = "plain.gguf: the model has no chat template; give it a prompt instead";
    let error = model.chat(&messages, &GenerateParams::default()).unwrap_err();
    assert!(matches!(&error, Error::NoChatTemplate { path: of } if *of == path), "{error:?}");
    let engine = Engine::start(model, EngineOptions::default()).unwrap();
    let error = engine.chat(&messages, params(1)).unwrap_err().to_string();
    assert!(error.ends_with(no_template), "{error}");
    // A request that the engine does not finish.
    let mut stream = engine.stream(Request::new(vec![4], endless())).unwrap();
    assert!(matches!(stream.next(), Some(Ok(EngineEvent::Prompt { .. }))));
    engine.shutdown(Duration::ZERO);
    let last = stream.by_ref().last();
    assert!(matches!(last, Some(Err(Error::Ended))), "{last:?}");
    assert!(stream.next().is_none());
    let error = engine.stream(Request::new(vec![4], params(1))).unwrap_err().to_string();
    assert_eq!(error, "the engine accepts no more requests");
}
