//! Files: models, their settings and vocabularies, sessions, packed weights.

use realizar_formats::{Bytes, Gguf, GgufWriter, SafeTensors};
use realizar_quant::{BlockType, quantize};
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::sampling::SamplingParams;
use realizar_runtime::tokenizer::{EncodeOptions, Tokenizer};
use realizar_runtime::{Event, GenerateParams, LoadOptions, Model, PackedCache};
use sha2::{Digest, Sha256};
use std::fs;
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use tempfile::TempDir;

/// A text with words, signs, other scripts and spaces.
const TEXT: &str = "Hello, world!  123 naïve 東京 \u{1f600}\n<s>";

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures")
}

/// A tiny llama, as a GGUF file.
pub(crate) fn tiny_gguf() -> PathBuf {
    fixtures().join("archs/llama/model-f32.gguf")
}

pub(crate) fn cpu() -> CpuBackend {
    CpuBackend::new(Some(1), None).expect("the CPU")
}

pub(crate) fn small() -> LoadOptions {
    LoadOptions { max_seq_len: Some(64), chunk: Some(16), ..LoadOptions::default() }
}

fn scratch() -> TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn write(path: &Path, data: &[u8]) {
    fs::write(path, data).expect("a temporary file");
}

/// A GGUF file: everything in it can be read once it was opened.
pub(crate) fn gguf(data: &[u8]) {
    let Ok(gguf) = Gguf::from_bytes("fuzz.gguf", Bytes::from(data.to_vec())) else { return };
    for info in gguf.tensors() {
        let tensor = gguf.tensor(&info.name).expect("a tensor of the list");
        assert_eq!(tensor.data.len(), info.n_bytes);
    }
    for (key, value) in gguf.metadata().iter() {
        assert!(!format!("{key} {value:?}").is_empty());
    }
    if let Ok(tokenizer) = Tokenizer::from_gguf(gguf.metadata()) {
        encode_and_decode(&tokenizer);
    }
}

/// A safetensors file.
pub(crate) fn safetensors(data: &[u8]) {
    let bytes = Bytes::from(data.to_vec());
    let Ok(file) = SafeTensors::from_bytes("fuzz.safetensors", bytes) else { return };
    for info in file.tensors() {
        let tensor = file.tensor(&info.name).expect("a tensor of the list");
        assert_eq!(tensor.data.len(), info.n_bytes);
    }
}

/// The config.json of a directory with the tensors of a tiny llama, quantized as it says: what loads,
/// runs.
pub(crate) fn config(data: &[u8]) {
    let dir = scratch();
    write(&dir.path().join("config.json"), data);
    let names = |word: &str| data.windows(word.len()).any(|bytes| bytes == word.as_bytes());
    let quantized = [("awq", "llama_awq"), ("gptq", "llama_gptq"), ("float-", "llama_fp8")];
    let model = quantized.into_iter().find(|(method, _)| names(method));
    let model = model.map_or("llama", |(_, model)| model);
    let tensors = fixtures().join("archs").join(model).join("model.safetensors");
    let copy = || fs::copy(&tensors, dir.path().join("model.safetensors"));
    // libFuzzer's clock is a signal, which may come here.
    let mut copied = copy();
    while copied.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted) {
        copied = copy();
    }
    copied.expect("the repository's fixture");
    if let Ok(mut model) = Model::load(dir.path(), &cpu(), &small()) {
        // Settings may make its numbers infinite, which is an error.
        let _ = model.logits(&[1, 2, 3], &[2], 2);
    }
}

/// A tokenizer.json.
pub(crate) fn tokenizer(data: &[u8]) {
    let dir = scratch();
    write(&dir.path().join("tokenizer.json"), data);
    if let Ok(tokenizer) = Tokenizer::from_hf_dir(dir.path()) {
        encode_and_decode(&tokenizer);
    }
}

fn encode_and_decode(tokenizer: &Tokenizer) {
    for special in [false, true] {
        let options = EncodeOptions { add_special: special, parse_special: special };
        let Ok(ids) = tokenizer.encode(TEXT, options) else { continue };
        // Ids of a vocabulary with gaps have no text.
        let _ = tokenizer.decode(&ids, true);
        let _ = tokenizer.decode(&ids, false);
    }
}

/// A model, and the file of a session of it.
struct Saved {
    model: Model,
    /// Format and version of the file, in front of the length of the header.
    magic: Vec<u8>,
    /// What comes after the header, without the hash.
    pages: Vec<u8>,
}

/// The header of the file that [`session`] begins from, and what is around it.
fn save() -> (Vec<u8>, Saved) {
    const MAGIC_LEN: usize = 16;
    const HASH_LEN: usize = 32;
    let dir = scratch();
    let path = dir.path().join("session");
    let mut model = Model::load(&tiny_gguf(), &cpu(), &small()).expect("a sound model");
    let mut session = model.new_session();
    let params = GenerateParams {
        sampling: Some(SamplingParams::greedy()),
        max_tokens: Some(1),
        ..GenerateParams::default()
    };
    let mut go_on = |_: &Event<'_>| ControlFlow::Continue(());
    session.generate(&mut model, &[3, 4, 5], &params, &mut go_on).expect("a sound model");
    session.save(&mut model, &path).expect("a temporary file");
    session.close(&mut model);
    let bytes = fs::read(&path).expect("it was saved");
    let (magic, rest) = bytes.split_at(MAGIC_LEN);
    let (len, rest) = rest.split_first_chunk().expect("a whole file");
    let len = usize::try_from(u64::from_le_bytes(*len)).expect("a short header");
    let pages = rest[len..rest.len() - HASH_LEN].to_vec();
    (rest[..len].to_vec(), Saved { model, magic: magic.to_vec(), pages })
}

/// The header of a session's file, with sound pages and the right hash: what is restored can be
/// closed, and leaves no page behind.
pub(crate) fn session(data: &[u8]) {
    static SAVED: OnceLock<Mutex<Saved>> = OnceLock::new();
    let saved = SAVED.get_or_init(|| Mutex::new(save().1));
    let mut saved = saved.lock().unwrap_or_else(PoisonError::into_inner);
    let Saved { model, magic, pages } = &mut *saved;
    let len = (data.len() as u64).to_le_bytes();
    let mut bytes = [&magic[..], &len, data, pages].concat();
    let hash = Sha256::digest(&bytes);
    bytes.extend_from_slice(&hash);
    let dir = scratch();
    let path = dir.path().join("session");
    write(&path, &bytes);
    if let Ok(session) = model.restore_session(&path) {
        session.close(model);
    }
    let used: usize = model.runner().pool_stats().iter().map(|pool| pool.used).sum();
    assert_eq!(used, 0, "pages in use");
}

/// The tiny llama with matrices of Q8_0, which are packed.
fn write_quantized(path: &Path) {
    let source = Gguf::open(tiny_gguf()).expect("the repository's fixture");
    let ty = BlockType::Q8_0;
    let tensors: Vec<_> = source
        .tensors()
        .iter()
        .map(|info| {
            let tensor = source.tensor(&info.name).expect("a tensor of the list");
            match tensor.shape[..] {
                [rows, cols] if ty.row_bytes(cols).is_ok() => {
                    let values =
                        tensor.data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
                    let values: Vec<f32> = values.collect();
                    let mut data = vec![0; rows * ty.row_bytes(cols).expect("whole blocks")];
                    quantize(ty, &values, &mut data).expect("finite weights");
                    (&info.name, ty.into(), tensor.shape, data)
                }
                _ => (&info.name, tensor.ty, tensor.shape, tensor.data.to_vec()),
            }
        })
        .collect();
    let mut writer = GgufWriter::new();
    for (key, value) in source.metadata().iter() {
        writer.set(key, value.clone()).expect("set");
    }
    for (name, ty, shape, data) in &tensors {
        writer.tensor(name, *ty, shape, data).expect("tensor");
    }
    writer.write_file(path).expect("a temporary file");
}

/// A directory with a model whose packed weights have been written beside it, and their file.
fn packed_model() -> &'static (TempDir, PathBuf) {
    static MODEL: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    MODEL.get_or_init(|| {
        let dir = scratch();
        write_quantized(&dir.path().join("m.gguf"));
        let packed = dir.path().join("m.gguf.packed");
        load_packed(dir.path());
        assert!(packed.is_file(), "the first load writes it");
        (dir, packed)
    })
}

fn load_packed(dir: &Path) {
    let packed_cache = PackedCache::Auto { fallback: dir.to_owned() };
    let options = LoadOptions { packed_cache, ..small() };
    let mut model = Model::load(&dir.join("m.gguf"), &cpu(), &options).expect("a sound model");
    model.logits(&[1, 2, 3], &[2], 2).expect("sound weights");
}

/// The header of a file of packed weights, in front of sound data: one that does not fit is written
/// again, so that the model always loads.
pub(crate) fn packed(data: &[u8]) {
    let (dir, packed) = packed_model();
    let mut bytes = fs::read(packed).expect("it was written");
    let len = data.len().min(bytes.len());
    bytes[..len].copy_from_slice(&data[..len]);
    write(packed, &bytes);
    load_packed(dir.path());
}
