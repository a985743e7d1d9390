//! Files that are truncated while a model is loaded from them or runs on them: an error of that
//! model, and of no other.
#![cfg(unix)]

use crate::common::other_load::OtherLoad;
use crate::common::quantized::write_quantized;
use crate::common::tiny::tiny;
use crate::packed_cache::packed_file;
use realizar_formats::{Error as FormatError, survive_lost_pages};
use realizar_quant::BlockType;
use realizar_runtime::backend::Executable;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::engine::{Engine, EngineEvent, EngineOptions, Request, Sink};
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::{Error, GenerateParams, LoadError, LoadOptions, Model, PackedCache};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{channel, sync_channel};

/// Less than a page is left.
fn truncate(path: &Path) {
    File::options().write(true).open(path).unwrap().set_len(100).unwrap();
}

fn cpu() -> CpuBackend {
    CpuBackend::new(Some(2), None).unwrap()
}

fn copy_of_tiny(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::copy(tiny("llama").join("model-f32.gguf"), &path).unwrap();
    path
}

fn request(max_tokens: Option<usize>) -> Request {
    let params = GenerateParams {
        sampling: Some(SamplingParams::greedy()),
        max_tokens,
        ignore_eos: true,
        ..GenerateParams::default()
    };
    Request::new((3..40).collect::<Vec<_>>(), params)
}

/// The tokens of a short answer.
fn answer(engine: &Engine) -> Vec<u32> {
    let (sender, events) = channel();
    let sink: Sink = Box::new(move |event| drop(sender.send(event)));
    let _ticket = engine.submit(request(Some(5)), sink).unwrap();
    let mut ids = Vec::new();
    loop {
        match events.recv().unwrap() {
            EngineEvent::Token(token) => ids.push(token.id),
            EngineEvent::Finished { .. } => return ids,
            EngineEvent::Prompt { .. } => {}
            event => panic!("{event:?}"),
        }
    }
}

/// An engine whose file is truncated after its first token; how its request and it end.
fn truncate_below(engine: &Engine, file: &Path) -> (String, String) {
    // The engine waits for each event to be taken.
    let (sender, events) = sync_channel(0);
    let sink: Sink = Box::new(move |event| drop(sender.send(event)));
    let (tell, reason) = channel();
    engine.on_failure(move |reason| tell.send(reason.to_owned()).unwrap());
    let _ticket = engine.submit(request(None), sink).unwrap();
    let mut is_cut = false;
    let error = loop {
        match events.recv().unwrap() {
            EngineEvent::Token(_) if !is_cut => {
                truncate(file);
                is_cut = true;
            }
            EngineEvent::Token(_) | EngineEvent::Prompt { .. } => {}
            EngineEvent::Failed(error) => break error.to_string(),
            event => panic!("{event:?}"),
        }
    };
    (error, reason.recv().unwrap())
}

const TEXT: &str = "the file was truncated, or could not be read, while it was in use";

#[test]
fn a_truncated_file_ends_its_engine_and_no_other() {
    survive_lost_pages().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let [cut, whole] = ["cut.gguf", "whole.gguf"].map(|name| copy_of_tiny(dir.path(), name));
    let start = |path: &Path| {
        let model = Model::load(path, &cpu(), &LoadOptions::default()).unwrap();
        Engine::start(model, EngineOptions::default()).unwrap()
    };
    let (engine, other) = (start(&cut), start(&whole));
    let expected = answer(&other);
    assert_eq!(answer(&engine), expected);
    let (error, reason) = truncate_below(&engine, &cut);
    assert_eq!(error, format!("{}: {TEXT}", cut.display()));
    assert_eq!(reason, error);
    let refused = engine.submit(request(None), Box::new(|_| ())).unwrap_err();
    assert_eq!(refused.to_string(), "the engine accepts no more requests");
    // One that asks later is told as well.
    let (tell, told) = channel();
    engine.on_failure(move |reason| tell.send(reason.to_owned()).unwrap());
    assert_eq!(told.recv().unwrap(), error);
    engine.shutdown(std::time::Duration::ZERO);
    assert_eq!(engine.stats().kv_used_pages, 0);
    assert_eq!(answer(&other), expected);
    let error = Model::load(&cut, &cpu(), &LoadOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Load(LoadError::Format(_))), "{error:?}");
}

#[test]
fn a_truncated_file_of_packed_weights_is_an_error() {
    survive_lost_pages().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("quantized.gguf");
    write_quantized(&path, &[BlockType::Q8_0]);
    let packed_cache = PackedCache::Dir(dir.path().join("packed"));
    let options = LoadOptions { packed_cache, ..LoadOptions::default() };
    drop(Model::load(&path, &cpu(), &options).unwrap());
    let packed = packed_file(&dir.path().join("packed"));
    let model = Model::load(&path, &cpu(), &options).unwrap();
    let engine = Engine::start(model, EngineOptions::default()).unwrap();
    let (error, _) = truncate_below(&engine, &packed);
    assert_eq!(error, format!("{}: {TEXT}", packed.display()));
    // It is packed again.
    drop(engine);
    let model = Model::load(&path, &cpu(), &options).unwrap();
    assert_eq!(answer(&Engine::start(model, EngineOptions::default()).unwrap()).len(), 5);
}

#[test]
fn a_file_that_is_truncated_while_it_is_loaded_is_an_error() {
    survive_lost_pages().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("quantized.gguf");
    write_quantized(&path, &[BlockType::Q8_0]);
    let packed_dir = dir.path().join("packed");
    let packed_cache = PackedCache::Dir(packed_dir.clone());
    let options = LoadOptions { packed_cache, ..LoadOptions::default() };
    // Between the reading of the header and that of the weights.
    let then = std::convert::identity::<Box<dyn Executable>>;
    let cutting = OtherLoad { cpu: cpu(), before: || truncate(&path), then };
    let error = Model::load(&path, &cutting, &options).unwrap_err();
    let is_lost = matches!(error, Error::Load(LoadError::Format(FormatError::Lost { .. })));
    assert!(is_lost, "{error:?}");
    assert_eq!(error.to_string(), format!("{}: {TEXT}", path.display()));
    assert!(!packed_dir.exists(), "nothing is kept of it");
}
