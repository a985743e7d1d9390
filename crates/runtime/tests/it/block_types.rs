//! Models of every block type of GGUF files: the CPU runs each with the values that `realizar_quant` gives its
//! blocks, a GPU runs it or names it, and an unknown type fails when it is used.

use crate::common::gpus::gpus;
use crate::common::quantized::write_quantized;
use realizar_formats::{Gguf, GgufWriter};
use realizar_kernels_cpu::packs;
use realizar_quant::{BlockType, dequantize};
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::backend::{Arithmetic, Backend};
use realizar_runtime::{LoadOptions, Model};
use std::path::Path;

/// The quantized types of weights.
fn types() -> impl Iterator<Item = BlockType> {
    let activations = [BlockType::Q8_1, BlockType::Q8_K];
    let stored = BlockType::all().filter(|ty| ty.ggml_id().is_some());
    stored.filter(move |ty| ty.block_len() > 1 && !activations.contains(ty))
}

/// Writes the model at `from` with every tensor as F32.
fn write_f32(from: &Path, to: &Path) {
    let gguf = Gguf::open(from).unwrap();
    let tensor = |name: &str| {
        let tensor = gguf.tensor(name).unwrap();
        let mut values = vec![0.0; tensor.n_elements()];
        dequantize(tensor.ty.block_type().unwrap(), &tensor.data, &mut values).unwrap();
        (tensor.shape, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
    };
    let tensors: Vec<_> =
        gguf.tensors().iter().map(|info| (&info.name, tensor(&info.name))).collect();
    let mut writer = GgufWriter::new();
    for (key, value) in gguf.metadata().iter() {
        writer.set(key, value.clone()).unwrap();
    }
    for (name, (shape, data)) in &tensors {
        writer.tensor(name, BlockType::F32, shape, data).unwrap();
    }
    writer.write_file(to).unwrap();
}

fn load(path: &Path, device: &dyn Backend, arithmetic: Arithmetic) -> Result<Model, String> {
    let options = LoadOptions {
        arithmetic,
        kv_type: Some(BlockType::F32),
        max_seq_len: Some(64),
        ..LoadOptions::default()
    };
    Model::load(path, device, &options).map_err(|error| error.to_string())
}

/// The logits at some positions of a prompt.
fn logits(path: &Path, device: &dyn Backend, arithmetic: Arithmetic) -> Vec<f32> {
    let ids: Vec<u32> = (0..20).map(|i| 3 + i * i * 7 % 250).collect();
    let mut model = load(path, device, arithmetic).unwrap();
    model.logits(&ids, &[0, 11, 19], 8).unwrap().concat()
}

#[test]
fn the_cpu_runs_every_type_as_its_dequantized_weights() {
    let dir = tempfile::tempdir().unwrap();
    let (blocks, floats) = (dir.path().join("blocks.gguf"), dir.path().join("floats.gguf"));
    let cpu = CpuBackend::new(Some(2), None).unwrap();
    for ty in types() {
        write_quantized(&blocks, &[ty]);
        write_f32(&blocks, &floats);
        let expected = logits(&floats, &cpu, Arithmetic::F32);
        let peak = expected.iter().fold(0.0_f32, |peak, v| peak.max(v.abs()));
        assert!(expected.iter().all(|v| v.is_finite()) && peak > 0.01, "{ty}: up to {peak}");
        let found = logits(&blocks, &cpu, Arithmetic::F32);
        // Types that are packed have widenings of their own, which round in another place.
        let bound = if packs(ty) { 1e-5 * peak } else { 0.0 };
        for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
            assert!((a - b).abs() <= bound, "{ty}, logit {i}: {a}, not {b}");
        }
        // 8-bit activations move logits by a little; types without their kernels have F32 ones.
        let found = logits(&blocks, &cpu, Arithmetic::Auto);
        let bound = if packs(ty) { 0.1 * peak } else { 1e-5 * peak };
        for (i, (a, b)) in found.iter().zip(&expected).enumerate() {
            assert!(
                (a - b).abs() <= bound,
                "{ty}, logit {i} by the usual arithmetic: {a}, not {b}"
            );
        }
    }
}

#[test]
fn a_gpu_runs_a_type_or_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("blocks.gguf");
    for gpu in gpus() {
        for ty in types() {
            write_quantized(&path, &[ty]);
            match load(&path, &*gpu, Arithmetic::Auto) {
                Ok(_) => assert!(packs(ty), "{ty}"),
                Err(error) => assert!(error.contains(ty.name()) && !packs(ty), "{ty}: {error}"),
            }
        }
    }
}

#[test]
fn an_unknown_type_fails_when_it_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("unknown.gguf");
    write_quantized(&path, &[BlockType::Q8_0]);
    let mut bytes = std::fs::read(&path).unwrap();
    // After the name: the number of dimensions, two dimensions, the type.
    let name = b"blk.1.ffn_up.weight";
    let at = bytes.windows(name.len()).position(|w| w == name).unwrap() + name.len() + 4 + 16;
    assert_eq!(bytes[at..at + 4], 8_u32.to_le_bytes(), "the id of Q8_0");
    bytes[at..at + 4].copy_from_slice(&43_u32.to_le_bytes());
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(Gguf::open(&path).unwrap().tensors().len(), 20);
    let cpu = CpuBackend::new(Some(1), None).unwrap();
    let error = load(&path, &cpu, Arithmetic::Auto).err().unwrap();
    assert!(
        error.contains("blk.1.ffn_up.weight")
            && error.contains("type 43")
            && error.contains("a block type that is not supported"),
        "{error}"
    );
}
