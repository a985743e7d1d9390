//! A model from a file of packed weights computes the same bits as one that packs
//! them, and a file that does not belong to the model, or is damaged, is rewritten.

use crate::common::quantized::write_quantized;
use crate::common::tiny::tiny;
use realizar_formats::Gguf;
use realizar_quant::BlockType;
use realizar_runtime::backend::Arithmetic;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::{LoadOptions, Model, PackedCache};
use std::fs;
use std::path::{Path, PathBuf};

const TYPES: [BlockType; 4] = [BlockType::Q4_K, BlockType::Q8_0, BlockType::Q6_K, BlockType::Q4_1];

fn logits(path: &Path, packed_cache: PackedCache) -> Vec<u32> {
    let backend = CpuBackend::new(Some(2), None).unwrap();
    let options = LoadOptions { max_seq_len: Some(32), packed_cache, ..LoadOptions::default() };
    let mut model = Model::load(path, &backend, &options).unwrap();
    let rows = model.logits(&[5, 17, 42], &[2], 2).unwrap();
    rows[0].iter().map(|x| x.to_bits()).collect()
}

/// The one file of packed weights in a directory.
pub(crate) fn packed_file(dir: &Path) -> PathBuf {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut packed: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == "packed")).collect();
    assert_eq!(packed.len(), 1, "{packed:?}");
    packed.remove(0)
}

/// The file of a directory: its time tells whether it was rewritten.
fn written(dir: &Path) -> std::time::SystemTime {
    fs::metadata(packed_file(dir)).unwrap().modified().unwrap()
}

#[test]
fn the_second_load_maps_what_the_first_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("m.gguf");
    write_quantized(&model, &TYPES);
    let expected = logits(&model, PackedCache::Off);
    let auto = || PackedCache::Auto { fallback: dir.path().join("fallback") };
    assert_eq!(logits(&model, auto()), expected);
    assert_eq!(packed_file(dir.path()), dir.path().join("m.gguf.packed"));
    let first = written(dir.path());
    assert_eq!(logits(&model, auto()), expected);
    assert_eq!(written(dir.path()), first, "not written again");
    assert!(!dir.path().join("fallback").exists());

    // What the file holds is what is computed with: other bytes where no sample is.
    let path = packed_file(dir.path());
    let mut bytes = fs::read(&path).unwrap();
    bytes[(1 << 16)..][..4096].fill(0x11);
    fs::write(&path, &bytes).unwrap();
    assert_ne!(logits(&model, auto()), expected);
}

#[test]
fn another_state_of_the_model_writes_it_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (model, kept) = (dir.path().join("m.gguf"), dir.path().join("kept"));
    let cache = || PackedCache::Dir(kept.clone());
    for types in [&TYPES[..], &TYPES[1..], &TYPES[..1]] {
        write_quantized(&model, types);
        let expected = logits(&model, PackedCache::Off);
        for _ in 0..2 {
            assert_eq!(logits(&model, cache()), expected);
        }
        packed_file(&kept);
    }
    // The same bytes at another time: the model may have changed.
    let expected = logits(&model, PackedCache::Off);
    let time = fs::metadata(&model).unwrap().modified().unwrap();
    let before = fs::read(packed_file(&kept)).unwrap();
    let file = fs::File::options().write(true).open(&model).unwrap();
    file.set_modified(time + std::time::Duration::from_secs(1)).unwrap();
    assert_eq!(logits(&model, cache()), expected);
    assert_ne!(fs::read(packed_file(&kept)).unwrap()[..100], before[..100]);
}

#[test]
fn another_vector_writes_it_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (model, kept) = (dir.path().join("m.gguf"), dir.path().join("kept"));
    write_quantized(&model, &TYPES);
    let cache = || PackedCache::Dir(kept.clone());
    logits(&model, cache());
    let header = || fs::read(packed_file(&kept)).unwrap()[..48].to_vec();
    let (before, time) = (header(), fs::metadata(&model).unwrap().modified().unwrap());

    // A norm's weight, in a file of the same size and time.
    let at = Gguf::open(&model).unwrap().tensor_info("output_norm.weight").unwrap().offset();
    let mut bytes = fs::read(&model).unwrap();
    bytes[at..at + 4].copy_from_slice(&2.0_f32.to_le_bytes());
    fs::write(&model, bytes).unwrap();
    let file = fs::File::options().write(true).open(&model).unwrap();
    file.set_modified(time).unwrap();
    let expected = logits(&model, PackedCache::Off);
    assert_eq!(logits(&model, cache()), expected);
    assert_ne!(header(), before);
}

#[test]
fn damaged_files_are_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (model, kept) = (dir.path().join("m.gguf"), dir.path().join("kept"));
    write_quantized(&model, &TYPES);
    let cache = || PackedCache::Dir(kept.clone());
    let expected = logits(&model, cache());
    let whole = fs::read(packed_file(&kept)).unwrap();
    let half = whole.len() / 2;
    for bytes in [Vec::new(), b"GGUF".to_vec(), whole[..half].to_vec(), vec![0; whole.len()]] {
        fs::write(packed_file(&kept), &bytes).unwrap();
        assert_eq!(logits(&model, cache()), expected, "{} bytes", bytes.len());
        assert!(fs::read(packed_file(&kept)).unwrap() == whole);
    }
}

#[test]
fn nothing_is_kept_where_nothing_is_packed() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("kept");
    logits(&tiny("llama"), PackedCache::Dir(kept.clone()));
    let model = dir.path().join("m.gguf");
    write_quantized(&model, &TYPES);
    let backend = CpuBackend::new(Some(1), None).unwrap();
    let options = LoadOptions {
        arithmetic: Arithmetic::F32,
        packed_cache: PackedCache::Dir(kept.clone()),
        ..LoadOptions::default()
    };
    Model::load(&model, &backend, &options).unwrap();
    assert!(!kept.exists());
}
