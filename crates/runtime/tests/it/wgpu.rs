//! The GPU against the tiny models' references and against the CPU, and what
//! happens when a GPU lacks something, runs out of memory or is lost.

use crate::common::golden::{Golden, TOLERANCE, difference};
use crate::common::gpus::{adapters, gpus};
use crate::common::quantized::write_quantized;
use crate::common::tiny::tiny;
use crate::common::tiny_models::tiny_models;
use realizar_kernels_wgpu::{Adapter, Gpu, GpuOptions};
use realizar_quant::BlockType;
use realizar_runtime::BackendError;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::backend::wgpu::WgpuBackend;
use realizar_runtime::backend::{Arithmetic, Backend, Phase};
use realizar_runtime::device::{self, DeviceChoice, DeviceOptions};
use realizar_runtime::{Chunk, DeviceFault, DeviceLayers, Error, LoadOptions, Model, Outputs};

#[test]
fn tiny_models_give_the_logits_of_transformers_without_optional_features() {
    let options = LoadOptions { arithmetic: Arithmetic::F32, ..LoadOptions::default() };
    // `cargo xtask parity --device wgpu` compares them with all that a device has.
    for gpu in adapters().into_iter().skip(1) {
        for path in tiny_models() {
            let golden = Golden::read(if path.is_dir() { &path } else { path.parent().unwrap() });
            let loaded = Model::load(&path, &*gpu, &options);
            if path.ends_with("baichuan_alibi") {
                let error = loaded.err().unwrap().to_string();
                assert!(error.ends_with("cannot run this model: attention with ALiBi"), "{error}");
                continue;
            }
            golden.check(&mut loaded.unwrap(), &format!("{path:?} on {}", gpu.name()));
        }
    }
}

#[test]
fn a_model_runs_on_cpu_and_gpu_by_layer() {
    let options = LoadOptions { arithmetic: Arithmetic::F32, ..LoadOptions::default() };
    let cpu = CpuBackend::new(Some(2), None).unwrap();
    for gpu in gpus().into_iter().take(1) {
        let names = ["llama", "gemma3_text", "gpt2", "olmo", "lfm2", "qwen3_5_text", "qwen2_moe"];
        for name in names {
            let golden = Golden::read(&tiny(name));
            for (first, last) in [(&cpu as &dyn Backend, &*gpu), (&*gpu, &cpu)] {
                let split = [DeviceLayers::rest(first), DeviceLayers::at_most(last, 1)];
                let model = Model::load_onto(&tiny(name), &split, &options);
                let mut model = model.unwrap();
                assert_eq!(model.placement().parts.len(), 2, "{name}");
                let case = format!("{name} on {}", model.backend());
                golden.check(&mut model, &case);
                assert_eq!(model.metrics().devices.len(), 2, "{name}");
            }
        }
    }
}

#[test]
fn layers_are_loaded_onto_the_first_gpu_by_its_name() {
    if Adapter::all().is_empty() {
        println!("skipped: no GPU adapter on this machine");
        return;
    }
    let options = LoadOptions { arithmetic: Arithmetic::F32, ..LoadOptions::default() };
    let devices = DeviceOptions { n_threads: Some(2), ..DeviceOptions::default() };
    let path = tiny("llama");
    let golden = Golden::read(&path);
    let load = |choice: DeviceChoice, gpu_layers| {
        device::load(&path, &choice.into(), gpu_layers, &devices, &options).unwrap()
    };
    let device::Loaded { model: mut on_cpu, .. } = load(DeviceChoice::Cpu, None);
    let n_layers = on_cpu.config().layers.len();
    let expected = on_cpu.logits(&golden.ids, &golden.positions, 256).unwrap();
    let gpu = device::open(&DeviceChoice::Wgpu(None), &devices).unwrap().name();
    for (gpu_layers, backend, n_threads) in
        [(1, format!("{} + {gpu}", on_cpu.backend()), Some(2)), (n_layers, gpu.clone(), None)]
    {
        let mut loaded = load(DeviceChoice::Wgpu(None), Some(gpu_layers));
        assert_eq!(loaded.model.backend(), backend);
        assert_eq!(loaded.n_threads, n_threads, "{backend}");
        let found = loaded.model.logits(&golden.ids, &golden.positions, 256).unwrap();
        for (found, expected) in found.iter().zip(&expected) {
            let apart = difference(found, expected);
            assert!(apart <= TOLERANCE, "{backend}: {apart:e}");
        }
    }
}

/// Logits of a prompt's last token and of generated ones.
fn mixed_roles(model: &mut Model) -> Vec<Vec<f32>> {
    let tokens: Vec<u32> = (0..60).map(|i| 3 + (i * 37) % 280).collect();
    let runner = model.runner();
    let seq = runner.new_sequence();
    let (prompt, generated) = tokens.split_at(50);
    let chunks = std::iter::once((prompt, Phase::Prefill))
        .chain(generated.chunks(1).map(|token| (token, Phase::Decode)));
    let mut rows = Vec::new();
    for (tokens, phase) in chunks {
        let step = Chunk { seq: &seq, rows: tokens.into(), phase, outputs: Outputs::Last };
        rows.push(runner.step(&[step]).unwrap().row(0, 0).to_vec());
    }
    runner.remove(seq);
    rows
}

#[test]
fn quantized_models_give_the_logits_of_the_cpu() {
    use BlockType::{
        BF16, F16, F32, IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_NL, IQ4_XS,
        MXFP4, NVFP4, Q1_0, Q2_0, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0,
        TQ1_0, TQ2_0,
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("quantized.gguf");
    // The arithmetic that a GPU is held to has 8-bit activations; on tiles, prefill rows are BF16.
    let tier = realizar_kernels_cpu::Tier::detect().vectors().name();
    let cpu = CpuBackend::new(Some(2), Some(tier)).unwrap();
    let all = [Q8_0, Q4_K, F16, Q5_0, Q6_K, Q4_1, Q3_K, BF16, Q4_0, Q5_K, Q2_K, F32, Q5_1].to_vec();
    let codebooks = vec![IQ4_NL, IQ4_XS, MXFP4];
    let points = vec![IQ3_S, IQ2_XXS, IQ1_M, IQ3_XXS, IQ2_XS, IQ1_S, IQ2_S];
    let few_bits = vec![NVFP4, TQ2_0, Q2_0, TQ1_0, Q1_0];
    let some = [vec![Q4_K, Q4_K, Q4_K, Q6_K], vec![Q2_K, Q3_K], vec![Q4_0, Q5_1], codebooks];
    let some = some.into_iter().chain([points, few_bits]);
    for types in std::iter::once(all).chain(some) {
        write_quantized(&path, &types);
        // The two arithmetics round activations and sums differently on each device.
        for (arithmetic, tolerance) in [(Arithmetic::F32, 1e-4), (Arithmetic::Auto, 2e-2)] {
            let options = LoadOptions { arithmetic, ..LoadOptions::default() };
            let expected = mixed_roles(&mut Model::load(&path, &cpu, &options).unwrap());
            for gpu in gpus() {
                let found = mixed_roles(&mut Model::load(&path, &*gpu, &options).unwrap());
                for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let apart = difference(found, expected);
                    let case = format!("{types:?} {arithmetic:?} on {}, row {i}", gpu.name());
                    assert!(apart <= tolerance, "{case}: {apart:e}");
                }
            }
        }
    }
}

/// The first adapter with a cap on its memory.
fn capped(max_bytes: Option<u64>) -> Option<Gpu> {
    if Adapter::all().is_empty() {
        println!("skipped: no GPU adapter on this machine");
        return None;
    }
    Some(Gpu::open(0, GpuOptions { max_bytes, ..GpuOptions::default() }).unwrap())
}

fn fault(error: &Error) -> DeviceFault {
    match error {
        Error::Backend(BackendError::Device { fault, .. }) => *fault,
        other => panic!("{other}"),
    }
}

#[test]
fn a_model_that_does_not_fit_leaves_the_device_usable() {
    let Some(gpu) = capped(Some(24 << 20)) else { return };
    let backend = WgpuBackend::new(gpu.clone());
    let options = LoadOptions { max_seq_len: Some(64), chunk: Some(32), ..LoadOptions::default() };
    let mut small = Model::load(&tiny("llama"), &backend, &options).unwrap();
    let before = small.logits(&[3, 4, 5], &[2], 8).unwrap();
    let n_bytes = gpu.allocated_bytes();
    // Many sequences need many pages.
    let large = LoadOptions { max_seqs: 4000, ..options.clone() };
    let error = Model::load(&tiny("llama"), &backend, &large).unwrap_err();
    assert_eq!(fault(&error), DeviceFault::OutOfMemory, "{error}");
    assert!(error.to_string().contains("the GPU is out of memory"), "{error}");
    assert_eq!(gpu.allocated_bytes(), n_bytes, "what was made for the large one is given back");
    assert!(small.logits(&[3, 4, 5], &[2], 8).unwrap() == before);
    Model::load(&tiny("qwen3"), &backend, &options).unwrap();
}

#[test]
fn a_lost_device_is_an_error_of_every_later_call() {
    let Some(gpu) = capped(None) else { return };
    let backend = WgpuBackend::new(gpu.clone());
    let options = LoadOptions { max_seq_len: Some(64), ..LoadOptions::default() };
    let mut model = Model::load(&tiny("llama"), &backend, &options).unwrap();
    model.logits(&[3, 4, 5], &[2], 8).unwrap();
    gpu.destroy();
    for _ in 0..2 {
        let error = model.logits(&[3, 4, 5], &[2], 8).unwrap_err();
        assert_eq!(fault(&error), DeviceFault::Lost, "{error}");
    }
    let error = Model::load(&tiny("llama"), &backend, &options).unwrap_err();
    assert_eq!(fault(&error), DeviceFault::Lost, "{error}");
    // The device, opened again, works.
    let backend = WgpuBackend::open(None, GpuOptions::default()).unwrap();
    Model::load(&tiny("llama"), &backend, &options).unwrap().logits(&[3], &[0], 8).unwrap();
}

#[test]
fn what_a_device_cannot_run_is_refused_by_name() {
    let Some(gpu) = capped(None) else { return };
    let available = gpu.caps().max_binding_bytes;
    let backend = WgpuBackend::new(gpu);
    // A cache of which one layer is larger than a kernel can see.
    let bytes_of_sequence = 2 * 32 * 2 * 8 * 4; // pages, positions, heads, columns, F32
    let max_seqs = usize::try_from(available / bytes_of_sequence).unwrap() + 1;
    let options = LoadOptions {
        kv_type: Some(BlockType::F32),
        max_seq_len: Some(64),
        chunk: Some(64),
        max_seqs,
        ..LoadOptions::default()
    };
    let error = Model::load(&tiny("llama"), &backend, &options).unwrap_err();
    let Error::Backend(BackendError::Refused { reasons, .. }) = &error else { panic!("{error}") };
    assert_eq!(reasons.len(), 1, "{error}");
    let text = error.to_string();
    assert!(text.contains("cannot run this model: attention with heads of"), "{text}");
    assert!(text.contains("maxStorageBufferBindingSize"), "{text}");

    // More states than a kernel can see.
    let options = LoadOptions {
        max_seq_len: Some(64),
        chunk: Some(64),
        max_seqs: usize::try_from(available / 1024).unwrap(),
        ..LoadOptions::default()
    };
    let text = Model::load(&tiny("qwen3_5_text"), &backend, &options).unwrap_err().to_string();
    assert!(text.contains("cannot run this model: "), "{text}");
    assert!(text.contains("layers that carry a state: a layer's states needs"), "{text}");
}

#[test]
fn a_profile_times_every_class_of_operation() {
    use realizar_runtime::metrics::{DeviceKind, OpClass};
    let Some(gpu) = capped(None) else { return };
    if !gpu.caps().timestamps {
        println!("skipped: the device takes no timestamps");
        return;
    }
    let backend = WgpuBackend::new(gpu);
    let options = LoadOptions { max_seq_len: Some(64), profile: true, ..LoadOptions::default() };
    let mut model = Model::load(&tiny("llama"), &backend, &options).unwrap();
    model.logits(&[3, 4, 5], &[2], 8).unwrap();
    let metrics = model.metrics();
    let [device] = &metrics.devices[..] else { panic!("one device") };
    assert_eq!(device.kind, DeviceKind::Gpu);
    for class in &device.op_classes {
        let timed = class.latency.as_ref().map_or(0, |latency| latency.count);
        assert_eq!(timed, class.dispatches, "{:?}", class.op_class);
    }
    let has = |class| device.op_classes.iter().any(|c| c.op_class == class && c.dispatches > 0);
    assert!(
        [OpClass::Linear, OpClass::Attention, OpClass::Norm, OpClass::Step].into_iter().all(has)
    );
}
