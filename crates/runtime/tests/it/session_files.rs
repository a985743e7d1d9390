//! Sessions that are saved and restored go on as if they had never ended, and files that do not fit
//! are refused.

use crate::common::gpus::gpus;
use crate::common::segments::{Case, embeddings};
use crate::common::tiny::tiny;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::backend::{Arithmetic, Backend};
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::{
    Embeddings, GenerateParams, Generation, LoadOptions, Model, Prompt, Rows, Session,
};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

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

fn generate<'r>(
    model: &mut Model,
    session: &mut Session,
    prompt: impl Into<Rows<'r>>,
) -> Generation {
    let params = GenerateParams {
        sampling: Some(SamplingParams::greedy()),
        max_tokens: Some(8),
        logprobs: Some(0),
        ..GenerateParams::default()
    };
    session.generate(model, prompt, &params, &mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn a_restored_session_goes_on_with_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("session");
    for backend in std::iter::once(cpu()).chain(gpus()) {
        // A window releases pages of the prompt, which the prefix cache still has, whole ones.
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

fn bits(generation: &Generation) -> Vec<u32> {
    generation.logprobs.iter().map(|x| x.to_bits()).collect()
}

/// The images of a model, by the first of their rows.
type Image = Box<dyn Fn(usize) -> Embeddings>;

/// The turns of a conversation with an image each, of which the first is all of the second's beginning.
fn turns(image: impl Fn(usize) -> Embeddings) -> [Prompt; 2] {
    let mut first = Prompt::from(prompt(30));
    first.push_embeddings(Arc::new(image(0)));
    first.push_tokens(&prompt(9));
    let mut second = first.clone();
    second.push_tokens(&[5, 6, 7]);
    second.push_embeddings(Arc::new(image(100)));
    second.push_tokens(&prompt(5));
    [first, second]
}

#[test]
fn a_session_keeps_images() {
    fn rows(from: usize) -> Embeddings {
        embeddings(from, 20, 32)
    }
    fn grid() -> Vec<[u32; 3]> {
        (0..20).map(|i| [i / 10, i % 10 / 5, i % 5]).collect()
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("session");
    let backend = cpu();
    let images: [(&str, Image); 4] = [
        ("llama", Box::new(rows)),
        ("llama", Box::new(|from| rows(from).with_positions(vec![[40; 3]; 20]).unwrap())),
        ("gemma3_text", Box::new(|from| rows(from).bidirectional())),
        ("qwen3_5_text", Box::new(|from| rows(from).with_positions(grid()).unwrap())),
    ];
    for (name, image) in images {
        let [first, second] = turns(&image);
        let options =
            || LoadOptions { prefix_cache: true, chunk: Some(24), ..LoadOptions::default() };
        let mut model = load(name, &*backend, options());
        let mut session = model.new_session();
        let before = generate(&mut model, &mut session, &first);
        assert_eq!(before.timings.prompt_tokens, 59);
        session.save(&mut model, &file).unwrap();
        let kept = generate(&mut model, &mut session, &second);
        // A session that begins with the second turn.
        let mut fresh = load(name, &*backend, LoadOptions::default());
        let mut session = fresh.new_session();
        let wanted = generate(&mut fresh, &mut session, &second);
        assert_eq!((kept.ids.clone(), bits(&kept)), (wanted.ids.clone(), bits(&wanted)), "{name}");
        assert!(kept.timings.cached_tokens > 0, "{name}");
        // One of another process, which has no embeddings but those of its prompt.
        let mut restored = load(name, &*backend, LoadOptions::default());
        let mut session = restored.restore_session(&file).unwrap();
        let found = generate(&mut restored, &mut session, &second);
        assert_eq!(
            (found.ids.clone(), bits(&found)),
            (wanted.ids.clone(), bits(&wanted)),
            "{name}"
        );
        assert!(found.timings.cached_tokens >= 32, "{name}: {:?}", found.timings);
        // Another image in the same place.
        let [_, other] = turns(|from| image(from + 1));
        let mut session = restored.restore_session(&file).unwrap();
        let found = generate(&mut restored, &mut session, &other);
        assert!(found.timings.cached_tokens <= 30, "{name}: {:?}", found.timings);
        let mut session = fresh.new_session();
        let wanted = generate(&mut fresh, &mut session, &other);
        assert_eq!(
            (found.ids.clone(), bits(&found)),
            (wanted.ids.clone(), bits(&wanted)),
            "{name}"
        );
    }
}

#[test]
fn a_session_answers_images_as_transformers_does() {
    for (case, name) in [("gemma3_images", "gemma3_text"), ("llama_positions", "llama")] {
        let case = Case::read(case);
        for backend in std::iter::once(cpu()).chain(gpus()) {
            let options = LoadOptions {
                arithmetic: Arithmetic::F32,
                chunk: Some(16),
                ..LoadOptions::default()
            };
            let mut model = load(name, &*backend, options);
            let mut session = model.new_session();
            let found = generate(&mut model, &mut session, &case.prompt());
            assert_eq!(found.ids, case.greedy(), "{} on {}", case.name, backend.name());
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
    check(&mut other, &file, "it was made with other weights: ");
    let f32_kv =
        LoadOptions { kv_type: Some(realizar_quant::BlockType::F32), ..LoadOptions::default() };
    check(
        &mut load("llama", &*backend, f32_kv),
        &file,
        "it was made with another layout of keys and values: 4 layers",
    );
    let options = LoadOptions { max_seq_len: Some(64), ..LoadOptions::default() };
    let path = tiny("llama").join("model-f32.gguf");
    let mut short = Model::load(&path, &*backend, &options).unwrap();
    check(&mut short, &file, "its 70 tokens do not fit the context of 64");

    // Bytes that are lost or changed anywhere.
    let mut model = load("llama", &*backend, LoadOptions::default());
    let bytes = std::fs::read(&file).unwrap();
    // The writes that follow keep its mode.
    let damaged = dir.path().join("damaged");
    std::fs::copy(&file, &damaged).unwrap();
    let no_session = "it is not a session file";
    for (len, expected) in [(0, no_session), (15, no_session), (17, "it is truncated")] {
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

#[cfg(unix)]
#[test]
fn a_session_is_its_users_own() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    let dir = tempfile::tempdir().unwrap();
    let (file, target) = (dir.path().join("session"), dir.path().join("target"));
    std::fs::write(&target, "precious").unwrap();
    symlink(&target, &file).unwrap();
    let mut model = load("llama", &*cpu(), LoadOptions::default());
    let mut session = model.new_session();
    generate(&mut model, &mut session, &prompt(20));
    session.save(&mut model, &file).unwrap();
    session.close(&mut model);
    assert_eq!(std::fs::read(&target).unwrap(), b"precious");
    let info = std::fs::symlink_metadata(&file).unwrap();
    assert!(info.is_file() && info.mode() & 0o077 == 0, "{:o}", info.mode());
    model.restore_session(&file).unwrap().close(&mut model);
    for (mode, who) in [(0o620, "its group"), (0o602, "every user"), (0o666, "every user")] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let error = model.restore_session(&file).unwrap_err().to_string();
        let want = format!("{who} may write to it (mode 0{mode:o})");
        assert!(error.contains(&want) && error.contains("session"), "{error}");
    }
}

#[test]
fn what_changes_keys_and_values_is_refused() {
    use realizar_quant::BlockType;
    use realizar_runtime::rope::RopeStretch;

    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("session");
    let backend = cpu();
    let kv_type = Some(BlockType::F32);
    let plain = || LoadOptions { kv_type, max_seq_len: Some(200), ..LoadOptions::default() };
    let open = |dir: &Path, options: LoadOptions| Model::load(dir, &*backend, &options).unwrap();
    let keep = |model: &mut Model| {
        let mut session = model.new_session();
        generate(model, &mut session, &prompt(20));
        session.save(model, &file).unwrap();
    };
    let refused = |model: &mut Model, expected: &str| {
        let error = model.restore_session(&file).unwrap_err().to_string();
        let name = file.display();
        assert!(error.starts_with(&format!("{name}: it was made with {expected}")), "{error}");
    };

    // A directory, whose settings are easily changed, with a vocabulary of its own.
    let source = tiny("llama");
    let llama = dir.path().join("llama");
    let changed = dir.path().join("changed");
    let vocab: serde_json::Map<String, serde_json::Value> =
        (0..288).map(|id| (format!("token{id}"), id.into())).collect();
    let byte_level = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false,
        "trim_offsets": true, "use_regex": true});
    let tokenizer = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []},
    });
    for dir in [&llama, &changed] {
        std::fs::create_dir(dir).unwrap();
        std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(source.join(file), dir.join(file)).unwrap();
        }
    }

    // Options of the load.
    keep(&mut open(&llama, plain()));
    open(&llama, plain()).restore_session(&file).unwrap();
    let stretch = |rope_stretch| LoadOptions { rope_stretch: Some(rope_stretch), ..plain() };
    refused(&mut open(&llama, stretch(RopeStretch::Linear(2.0))), "another rotary embedding: ");
    refused(&mut open(&llama, stretch(RopeStretch::Yarn(2.0))), "another rotary embedding: ");
    let exact = LoadOptions { arithmetic: Arithmetic::F32, ..plain() };
    refused(&mut open(&llama, exact), "another arithmetic: Auto; this model has F32");
    let f16 = LoadOptions { kv_type: Some(BlockType::F16), ..plain() };
    refused(&mut open(&llama, f16), "another layout of keys and values: ");
    // A context that chooses nothing may be another.
    let longer = LoadOptions { max_seq_len: Some(256), ..plain() };
    open(&llama, longer).restore_session(&file).unwrap();

    // Settings of the file.
    let config = std::fs::read_to_string(llama.join("config.json")).unwrap();
    let write = |key: &str, value: serde_json::Value| {
        let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
        config[key] = value;
        std::fs::write(changed.join("config.json"), config.to_string()).unwrap();
    };
    write("rms_norm_eps", serde_json::json!(1e-5));
    refused(&mut open(&changed, plain()), "other settings: ");
    write("hidden_act", serde_json::json!("relu"));
    refused(&mut open(&changed, plain()), "other settings: ");
    write("rope_parameters", serde_json::json!({"rope_theta": 9999.0}));
    refused(&mut open(&changed, plain()), "another rotary embedding: ");

    // The context, where it chooses factors.
    let factors = |last| vec![1.0, 1.0, 1.0, last];
    let long = serde_json::json!({
        "rope_type": "longrope", "original_max_position_embeddings": 100,
        "short_factor": factors(1.0), "long_factor": factors(4.0), "attention_factor": 1.0,
    });
    write("rope_parameters", long);
    let short = |n| LoadOptions { max_seq_len: Some(n), ..plain() };
    keep(&mut open(&changed, short(100)));
    open(&changed, short(90)).restore_session(&file).unwrap();
    refused(&mut open(&changed, short(101)), "another rotary embedding: ");
}
