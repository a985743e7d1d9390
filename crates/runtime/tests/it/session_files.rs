//! Sessions that are saved and restored go on as if they had never ended, and files that do not fit
//! are refused.

use crate::common::gpus::gpus;
use crate::common::tiny::tiny;
use realizar_runtime::backend::Backend;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::{GenerateParams, Generation, LoadOptions, Model, Session};
use std::ops::ControlFlow;
use std::path::Path;

fn cpu() -> Box<dyn Backend> {
    Box::new(CpuBackend::new(Some(2), None).unwrap())
}

fn load(name: &str, backend: &dyn Backend, options: LoadOptions) -> Model {
    let options = LoadOptions { max_seq_len: Some(200), ..options };
    Model::load(&tiny(name).join("model-f32.gguf"), backend, &options).unwrap()
}

fn prompt(n: u32) -> Vec<u32> {
    (0..n).map(|i| 3 + (i * i * 7 + i) % 200).collect()
}

fn generate(model: &mut Model, session: &mut Session, ids: &[u32]) -> Generation {
    let params = GenerateParams {
        sampling: SamplingParams::greedy(),
        max_tokens: Some(8),
        logprobs: Some(0),
        ..GenerateParams::default()
    };
    session.generate(model, ids, &params, &mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn a_restored_session_goes_on_with_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("session");
    for backend in std::iter::once(cpu()).chain(gpus()) {
        // A window lets go of pages of the prompt, which the prefix cache still has, whole ones.
        for (name, prefix_cache, kept) in [("llama", false, 70), ("gemma3_text", true, 64)] {
            let options = LoadOptions { prefix_cache, ..LoadOptions::default() };
            let mut model = load(name, &*backend, options);
            let mut session = model.new_session();
            generate(&mut model, &mut session, &prompt(70));
            session.save(&mut model, &file).unwrap();
            let wanted = generate(&mut model, &mut session, &prompt(110));

            let mut model = load(name, &*backend, LoadOptions::default());
            let mut session = model.restore_session(&file).unwrap();
            let got = generate(&mut model, &mut session, &prompt(110));
            let bits = |g: &Generation| g.logprobs.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let case = format!("{name} on {}", backend.name());
            assert_eq!((got.timings.cached_tokens, &got.ids), (kept, &wanted.ids), "{case}");
            assert_eq!(bits(&got), bits(&wanted), "{case}");
            session.close(&mut model);
            assert!(model.runner().pool_stats().iter().all(|stats| stats.used == 0));
        }
    }
}

#[test]
fn files_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("session");
    let backend = cpu();
    let mut model = load("llama", &*backend, LoadOptions::default());
    let mut session = model.new_session();
    generate(&mut model, &mut session, &prompt(70));
    session.save(&mut model, &file).unwrap();

    let check = |model: &mut Model, path: &Path, expected: &str| {
        let error = model.restore_session(path).unwrap_err().to_string();
        let name = path.display();
        assert!(error.starts_with(&format!("{name}: {expected}")), "{error}");
        assert!(model.runner().pool_stats().iter().all(|stats| stats.used == 0));
    };
    let mut other = load("qwen2", &*backend, LoadOptions::default());
    check(&mut other, &file, "it is of model ");
    let f32_kv =
        LoadOptions { kv_type: Some(realizar_quant::BlockType::F32), ..LoadOptions::default() };
    check(&mut load("llama", &*backend, f32_kv), &file, "it is of keys and values 4 layers");
    let options = LoadOptions { max_seq_len: Some(64), ..LoadOptions::default() };
    let path = tiny("llama").join("model-f32.gguf");
    let mut short = Model::load(&path, &*backend, &options).unwrap();
    check(&mut short, &file, "its 70 tokens do not fit the context of 64");

    // Bytes that are lost or changed anywhere.
    let mut model = load("llama", &*backend, LoadOptions::default());
    let bytes = std::fs::read(&file).unwrap();
    let damaged = dir.path().join("damaged");
    let no_session = "it is no session";
    for (len, expected) in [(0, no_session), (15, no_session), (17, "it ends too early")] {
        std::fs::write(&damaged, &bytes[..len]).unwrap();
        check(&mut model, &damaged, expected);
    }
    for len in [60, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&damaged, &bytes[..len]).unwrap();
        check(&mut model, &damaged, "it is damaged");
    }
    for at in [20, 100, bytes.len() / 2, bytes.len() - 5] {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        std::fs::write(&damaged, changed).unwrap();
        check(&mut model, &damaged, "it is damaged");
    }
    let missing = dir.path().join("missing");
    assert!(model.restore_session(&missing).unwrap_err().to_string().contains("missing"));
}
