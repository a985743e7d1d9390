//! The CUDA backend on the interpreter: its memory, its launches, and the bits of its rows.

use crate::common::{quantized, tiny};
use realizar_kernels_cuda::{Interpreter, WgmmaKernels};
use realizar_kvcache::PAGE_LEN;
use realizar_quant::BlockType;
use realizar_runtime::backend::cuda::CudaBackend;
use realizar_runtime::backend::{
    Arithmetic, Backend, DeviceFault, Error as BackendError, Executable, ExecutableOptions, Phase,
};
use realizar_runtime::graph::Fusions;
use realizar_runtime::plan::Plan;
use realizar_runtime::weights::Weights;
use realizar_runtime::{
    Chunk, DeviceLayers, Error, LoadOptions, MemoryUse, Model, ModelOutput, Outputs,
};
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A backend that notes what it said, and what loading took.
#[derive(Debug)]
struct Spy {
    backend: CudaBackend<Interpreter>,
    loaded: Mutex<Option<[usize; 2]>>,
}

impl Backend for Spy {
    fn name(&self) -> String {
        self.backend.name()
    }

    fn fusions(&self) -> Fusions {
        self.backend.fusions()
    }

    fn memory(&self, plan: &Plan, weights: &Weights, options: &ExecutableOptions) -> MemoryUse {
        self.backend.memory(plan, weights, options)
    }

    fn load(
        &self,
        plan: Plan,
        weights: Weights,
        options: &ExecutableOptions,
    ) -> Result<Box<dyn Executable>, BackendError> {
        let told = self.memory(&plan, &weights, options).total();
        let before = self.backend.device().used_bytes();
        let executable = self.backend.load(plan, weights, options)?;
        let taken = self.backend.device().used_bytes() - before + executable.host_bytes();
        *self.loaded.lock().unwrap() = Some([told, taken]);
        Ok(executable)
    }
}

impl Spy {
    /// The computed and the allocated bytes of a model. The kernels of a type are loaded once and have constants,
    /// so the model is loaded twice.
    fn load_twice(&self, path: &Path, options: &LoadOptions) -> [usize; 2] {
        for _ in 0..2 {
            drop(Model::load(path, self, options).unwrap());
        }
        self.loaded.lock().unwrap().take().unwrap()
    }
}

#[test]
fn memory_is_what_loading_takes() {
    use BlockType::{BF16, F8, F16, F32, Q4_0, Q4_K, Q6_K, Q8_0};
    let dir = tempfile::tempdir().unwrap();
    let mixed = dir.path().join("quantized.gguf");
    quantized::write_quantized(&mixed, &[Q8_0, Q4_K, F16, Q6_K, F32]);
    let whole = dir.path().join("whole.gguf");
    quantized::write_quantized(&whole, &[Q4_K]);
    let experts = dir.path().join("experts.gguf");
    quantized::write_quantized_experts(&experts, &[Q4_K, Q6_K, Q8_0, F16]);
    let names = ["llama", "gemma3_text", "gpt2", "phi", "qwen3", "lfm2", "qwen3_5_text"];
    let paths: Vec<_> = names.into_iter().map(tiny::tiny).chain([mixed, whole, experts]).collect();
    let usual = LoadOptions { max_seq_len: Some(96), ..LoadOptions::default() };
    let all_options = [
        usual.clone(),
        LoadOptions { chunk: Some(1), max_outputs: 1, ..usual.clone() },
        LoadOptions { arithmetic: Arithmetic::F32, max_seqs: 3, ..usual.clone() },
        LoadOptions { kv_type: Some(F32), kv_tokens: Some(70), ..usual.clone() },
        LoadOptions { output: ModelOutput::Embeddings, ..usual },
    ];
    let device = Interpreter::new(realizar_ptx::Checks::default(), usize::MAX);
    let backend = CudaBackend::new(device).unwrap();
    let spy = Spy { backend, loaded: Mutex::new(None) };
    for path in &paths {
        for options in &all_options {
            let [told, taken] = spy.load_twice(path, options);
            assert_eq!(told, taken, "{path:?} {options:?}");
        }
    }
    // Heads of this one are whole blocks.
    let quantized = paths.iter().find(|path| path.ends_with("quantized.gguf")).unwrap();
    for kv_type in [BF16, F8, Q8_0, Q4_0] {
        let options = LoadOptions { kv_type: Some(kv_type), ..all_options[0].clone() };
        let [told, taken] = spy.load_twice(quantized, &options);
        assert_eq!(told, taken, "{kv_type}");
    }
    // With room for rows in the order of groups of warps.
    let spy = Spy { backend: spy.backend.with_wgmma().unwrap(), loaded: Mutex::new(None) };
    for path in [quantized, paths.last().unwrap()] {
        let [told, taken] = spy.load_twice(path, &all_options[0]);
        assert_eq!(told, taken, "{path:?} by groups of warps");
    }
}

/// What runs in a step of `path` is what is counted; the step of a prompt and one of a generated token have so many launches of
/// these kernels.
fn check_launches(path: &Path, kv_type: BlockType, wanted: [&[(&str, usize)]; 2]) {
    let device = Interpreter::new(realizar_ptx::Checks::default(), usize::MAX);
    let backend = CudaBackend::new(device).unwrap();
    let device = Arc::clone(backend.device());
    let (max_seq_len, kv_type) = (Some(96), Some(kv_type));
    let options = LoadOptions { max_seq_len, kv_type, ..LoadOptions::default() };
    let mut model = Model::load(path, &backend, &options).unwrap();
    let seq = model.runner().new_sequence();
    let chunks = [(&[3, 4, 5][..], Phase::Prefill), (&[6], Phase::Decode), (&[7], Phase::Decode)];
    for (tokens, phase) in chunks {
        model.reset_metrics();
        device.start_counting();
        let chunk = Chunk { seq: &seq, rows: tokens.into(), phase, outputs: Outputs::Last };
        model.runner().step(&[chunk]).unwrap();
        let ran: Vec<String> = device.take_counts().into_iter().map(|of| of.kernel).collect();
        assert_eq!(model.metrics().gpu_dispatches, ran.len() as u64, "{ran:?}");
        for &(kernel, wanted) in wanted[usize::from(phase == Phase::Decode)] {
            let found = ran.iter().filter(|name| *name == kernel).count();
            assert_eq!(found, wanted, "{kernel}: {ran:?}");
        }
    }
    model.runner().remove(seq);
}

#[test]
fn launches_are_counted_and_few() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("quantized.gguf");
    quantized::write_quantized(&path, &[BlockType::Q8_0]);
    // Two layers, whose gates are part of a product.
    let apart = ["quantize_activated", "gated_silu", "rope"].map(|kernel| (kernel, 0));
    let wanted = [("gated_int8_q8_0_1", 2), ("kv_store_f16", 1), ("attention_f16_64", 2)];
    let wanted = [&wanted[..], &apart].concat();
    // Prefill rows are rounded where they are made, but the last ones of attention, of which a few are selected.
    let of_prompt = [
        ("quantize_rms_norm", 5),
        ("quantize_activated", 2),
        ("round_rows_bf16", 1),
        ("gated_silu", 0),
        ("rms_norm", 0),
    ];
    check_launches(&path, BlockType::F16, [&of_prompt, &wanted]);
    // Attention in F32 does not.
    let of_prompt = [("attention_prefill_64", 2), ("round_rows_bf16", 2)];
    check_launches(&path, BlockType::F32, [&of_prompt, &[("attention_in_f32_64", 2)]]);
    // Norms of whole rows: two or four of a layer, and the last one. Those of heads are part of attention, and of another launch
    // where the results of the last one lie on angles that nothing else needs.
    for (name, n_stores, n_norms) in [("qwen3", 0, 9), ("gemma3_text", 0, 25)] {
        let wanted = [("rms_norm_heads", n_norms), ("rope", 0), ("kv_store_f16", n_stores)];
        check_launches(&tiny::tiny(name), BlockType::F16, [&[], &wanted]);
    }
}

/// The logits of a token in each of some sequences, alone and in steps of `sizes` rows, also in front of a prompt: asserts
/// that they have the same bits, as have those of the prompt, and returns them with the kernels that ran.
fn decode_rows(path: &Path, in_bf16: bool, sizes: &[(usize, bool)]) -> (Vec<f32>, Vec<String>) {
    let device = Interpreter::new(realizar_ptx::Checks::FAST, usize::MAX);
    let backend = CudaBackend::new(device).unwrap();
    let backend = if in_bf16 { backend.with_bf16_decode() } else { backend };
    let device = Arc::clone(backend.device());
    let most = sizes.iter().map(|(n, _)| *n).max().unwrap();
    let options = LoadOptions {
        max_seq_len: Some(96),
        max_seqs: most + 1,
        max_outputs: most + 1,
        ..LoadOptions::default()
    };
    let mut model = Model::load(path, &backend, &options).unwrap();
    device.start_counting();
    let prompt = |i: usize| [3 + i as u32, 7, 9];
    let token = |i: usize| [40 + i as u32];
    // Sequences with a prompt each, then a token of each in one step, in front of a prompt if that is requested.
    let mut run = |from: usize, n: usize, with_prompt: bool| -> Vec<Vec<f32>> {
        let runner = model.runner();
        let seqs: Vec<_> = (0..n + 1).map(|_| runner.new_sequence()).collect();
        let (outputs, phase) = (Outputs::Last, Phase::Prefill);
        for (i, seq) in seqs[..n].iter().enumerate() {
            let ids = prompt(from + i);
            let chunk = Chunk { seq, rows: (&ids).into(), phase, outputs: Outputs::None };
            runner.step(&[chunk]).unwrap();
        }
        let ids: Vec<_> = (from..from + n).map(token).collect();
        let mut chunks: Vec<_> = seqs
            .iter()
            .zip(&ids)
            .map(|(seq, ids)| Chunk { seq, rows: ids.into(), phase: Phase::Decode, outputs })
            .collect();
        let long: Vec<u32> = (100..140).collect();
        if with_prompt {
            chunks.push(Chunk { seq: &seqs[n], rows: (&long).into(), phase, outputs });
        }
        let rows = runner.step(&chunks).unwrap();
        let found = (0..chunks.len()).map(|i| rows.row(i, 0).to_vec()).collect();
        seqs.into_iter().for_each(|seq| runner.remove(seq));
        found
    };
    let bits =
        |rows: &[Vec<f32>]| -> Vec<u32> { rows.iter().flatten().map(|x| x.to_bits()).collect() };
    let alone: Vec<_> = (0..most).flat_map(|i| run(i, 1, false)).collect();
    let prompt_alone = run(0, 0, true);
    for &(n, with_prompt) in sizes {
        let together = run(0, n, with_prompt);
        let (rows, prompt) = together.split_at(n);
        assert!(bits(rows) == bits(&alone[..n]), "{path:?}: {n} rows, {with_prompt}");
        assert!(!with_prompt || bits(prompt) == bits(&prompt_alone), "{path:?}: behind {n} rows");
    }
    let kernels = device.take_counts().into_iter().map(|of| of.kernel).collect();
    (alone.concat(), kernels)
}

#[test]
fn gated_rows_have_the_bits_that_they_have_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("quantized.gguf");
    quantized::write_quantized(&path, &[BlockType::Q4_K]);
    // More than eight rows have a launch for the activation.
    decode_rows(&path, false, &[(3, false), (8, true), (10, false)]);
}

/// Decode rows in parts take the room that prefill rows are rounded to.
#[test]
fn rows_of_a_mixed_step_do_not_meet() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("floats.gguf");
    quantized::write_quantized(&path, &[BlockType::BF16]);
    let (_, ran) = decode_rows(&path, false, &[(10, true)]);
    for name in ["split_rows", "quantize_activated"] {
        assert!(ran.iter().any(|kernel| kernel == name), "{name}: {ran:?}");
    }
}

#[test]
fn decode_rows_in_bf16_have_the_bits_that_they_have_alone() {
    use BlockType::{F16, Q4_K, Q6_K, Q8_0};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("quantized.gguf");
    let experts = dir.path().join("experts.gguf");
    quantized::write_quantized_experts(&experts, &[Q4_K, Q6_K, Q8_0, F16]);
    for types in [&[Q4_K][..], &[Q8_0, Q4_K, F16, Q6_K]] {
        quantized::write_quantized(&path, types);
        // By the kernel for few rows, that for more of them, and tiles.
        let (found, ran) =
            decode_rows(&path, true, &[(3, false), (8, true), (10, false), (34, true)]);
        for name in ["matvec_levels_q4_k_1x1", "matvec_levels_q4_k_2x4", "matmul_levels_q4_k_64"] {
            assert!(ran.iter().any(|kernel| kernel == name), "{name}: {ran:?}");
        }
        assert!(!ran.iter().any(|kernel| kernel.contains("int8")), "{ran:?}");
        if types.len() == 1 {
            assert!(ran.iter().any(|kernel| kernel == "gated_levels_q4_k"), "{ran:?}");
        }
        // Those of 8-bit integers are nearly the same.
        let (other, _) = decode_rows(&path, false, &[(34, false)]);
        let largest = other.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        for (a, b) in found.iter().zip(&other) {
            assert!((a - b).abs() <= 3e-2 * largest, "{types:?}: {a} {b}");
        }
    }
    // Experts keep their 8-bit integers.
    let (_, ran) = decode_rows(&experts, true, &[(3, false), (10, true)]);
    for name in ["matvec_levels_", "expert_matvec_int8_"] {
        assert!(ran.iter().any(|kernel| kernel.starts_with(name)), "{name}: {ran:?}");
    }
}

#[test]
fn pages_take_what_a_card_has_left() {
    let path = tiny::tiny("llama");
    let open = |n_bytes: usize| {
        let device = Interpreter::new(realizar_ptx::Checks::default(), n_bytes);
        CudaBackend::new(device).unwrap()
    };
    let options = LoadOptions {
        kv_type: Some(BlockType::F32),
        max_seq_len: Some(96),
        max_seqs: 200,
        ..LoadOptions::default()
    };
    let large = open(usize::MAX);
    let needed = |tokens: usize| {
        let options = LoadOptions { kv_tokens: Some(tokens), ..options.clone() };
        let devices = [DeviceLayers::rest(&large)];
        Model::memory_needed(&path, &devices, &options).unwrap().total()
    };
    // Between one context and all of them.
    let n_bytes = needed(96).midpoint(needed(200 * 96)) / 15 * 16;
    let backend = open(large.device().used_bytes() + n_bytes);
    let free = backend.free_memory().unwrap();
    assert_eq!((free.bytes, free.is_exact), (n_bytes, true));
    let mut model = Model::load(&path, &backend, &options).unwrap();
    let tokens = model.kv_tokens().unwrap();
    assert!((96..200 * 96).contains(&tokens), "{tokens}");
    let (total, page) = (model.memory().total(), model.memory().kv / (tokens / PAGE_LEN));
    let room = free.bytes - free.reserve;
    assert!(total <= room && total + 2 * page > room, "{total} of {room}, pages of {page}");
    assert!(model.logits(&[3, 4, 5], &[2], 8).unwrap()[0].iter().all(|x| x.is_finite()));
}

#[test]
fn a_card_with_too_little_memory_says_what_does_not_fit() {
    let path = tiny::tiny("llama");
    let open = |n_bytes: usize| {
        let device = Interpreter::new(realizar_ptx::Checks::default(), n_bytes);
        CudaBackend::new(device).unwrap()
    };
    let options = LoadOptions { max_seq_len: Some(96), ..LoadOptions::default() };
    let large = open(usize::MAX);
    let devices = [DeviceLayers::rest(&large)];
    let needed = Model::memory_needed(&path, &devices, &options).unwrap();
    let used = large.device().used_bytes();
    // With asked-for pages nothing is fitted to what is free.
    let options = LoadOptions { kv_tokens: Some(96), ..options };
    for n_bytes in [used + needed.weights / 2, used + 10] {
        let error = Model::load(&path, &open(n_bytes), &options).unwrap_err();
        let is_full = |error: &Error| {
            matches!(
                error,
                Error::Backend(BackendError::Device { fault: DeviceFault::OutOfMemory, .. })
            )
        };
        let text = error.to_string();
        assert!(
            is_full(&error) || matches!(error, Error::Backend(BackendError::Refused { .. })),
            "{text}"
        );
        assert!(!text.contains('\n') && text.contains("PTX interpreter"), "{text}");
    }
}

#[test]
fn a_profile_times_operations_and_changes_no_bit() {
    use realizar_runtime::metrics::{DeviceSnapshot, OpClass};
    let run = |profile: bool| -> (Vec<Vec<u32>>, DeviceSnapshot) {
        let device = Interpreter::new(realizar_ptx::Checks::FAST, usize::MAX);
        let backend = CudaBackend::new(device).unwrap();
        let options = LoadOptions { max_seq_len: Some(96), profile, ..LoadOptions::default() };
        let mut model = Model::load(&tiny::tiny("llama"), &backend, &options).unwrap();
        let seq = model.runner().new_sequence();
        let chunks = [(&[3, 4, 5][..], Phase::Prefill), (&[6], Phase::Decode)];
        let rows = chunks.map(|(tokens, phase)| {
            let chunk = Chunk { seq: &seq, rows: tokens.into(), phase, outputs: Outputs::Last };
            let rows = model.runner().step(&[chunk]).unwrap();
            rows.row(0, 0).iter().map(|x| x.to_bits()).collect()
        });
        model.runner().remove(seq);
        (rows.to_vec(), model.metrics().devices.remove(0))
    };
    let ((plain, untimed), (timed, snapshot)) = (run(false), run(true));
    assert_eq!(plain, timed);
    assert_eq!(snapshot.dispatches, untimed.dispatches);
    let sum = |of: &DeviceSnapshot, class: OpClass| {
        let found = of.op_classes.iter().find(|found| found.op_class == class)?;
        found.latency.as_ref().map(|latency| latency.sum_us)
    };
    for class in [OpClass::Embed, OpClass::Norm, OpClass::Linear, OpClass::Rope, OpClass::Attention]
    {
        assert_eq!(sum(&untimed, class), None, "{class:?}");
        assert!(sum(&snapshot, class).unwrap() > 0.0, "{class:?}");
    }
    // On the interpreter a nanosecond is an instruction of a warp, and products have most of them.
    let linear = sum(&snapshot, OpClass::Linear).unwrap();
    assert!(linear > sum(&snapshot, OpClass::Norm).unwrap(), "{snapshot:?}");
}

#[test]
fn launches_that_start_early_change_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    let quantized = dir.path().join("quantized.gguf");
    quantized::write_quantized(&quantized, &[BlockType::Q4_K, BlockType::Q8_0, BlockType::BF16]);
    let experts = dir.path().join("experts.gguf");
    quantized::write_quantized_experts(&experts, &[BlockType::Q4_K, BlockType::Q8_0]);
    // A prompt, and steps of one row and of two, which are captured and replayed.
    let run = |path: &Path, early: bool| -> Vec<u32> {
        let device = Interpreter::new(realizar_ptx::Checks::FAST, usize::MAX);
        let device = if early { device.with_early_launches() } else { device };
        let backend = CudaBackend::new(device).unwrap();
        let options = LoadOptions { max_seq_len: Some(96), max_seqs: 2, ..LoadOptions::default() };
        let mut model = Model::load(path, &backend, &options).unwrap();
        let runner = model.runner();
        let seqs = [runner.new_sequence(), runner.new_sequence()];
        let steps: [(&[u32], Phase, usize); 5] = [
            (&[3, 4, 5], Phase::Prefill, 2),
            (&[6], Phase::Decode, 1),
            (&[7], Phase::Decode, 1),
            (&[8], Phase::Decode, 2),
            (&[9], Phase::Decode, 2),
        ];
        let mut found = Vec::new();
        for (tokens, phase, n) in steps {
            let outputs = Outputs::Last;
            let chunks: Vec<_> = seqs[..n]
                .iter()
                .map(|seq| Chunk { seq, rows: tokens.into(), phase, outputs })
                .collect();
            let rows = runner.step(&chunks).unwrap();
            found.extend((0..n).flat_map(|i| rows.row(i, 0)).map(|x| x.to_bits()));
        }
        seqs.into_iter().for_each(|seq| runner.remove(seq));
        found
    };
    let names = ["llama", "gemma3_text", "qwen3_5_text"].map(tiny::tiny);
    for path in names.into_iter().chain([quantized, experts]) {
        assert!(run(&path, true) == run(&path, false), "{path:?}");
    }
}

/// A prompt and a token after it, the prompt as a whole or cut, alone or after another one in its step: the last rows of
/// both, and the kernels that ran.
fn prompts(path: &Path, wgmma: bool, cuts: &[usize], others: usize) -> (Vec<f32>, Vec<String>) {
    let device = Interpreter::new(realizar_ptx::Checks::FAST, usize::MAX);
    let backend = CudaBackend::new(device).unwrap();
    let backend = if wgmma { backend.with_wgmma().unwrap() } else { backend };
    let device = Arc::clone(backend.device());
    let options = LoadOptions { max_seq_len: Some(96), max_seqs: 2, ..LoadOptions::default() };
    let mut model = Model::load(path, &backend, &options).unwrap();
    let runner = model.runner();
    let [other, seq] = [runner.new_sequence(), runner.new_sequence()];
    let ids: Vec<u32> = (3..14).collect();
    let noise: Vec<u32> = (20..20 + others as u32).collect();
    let mut found = Vec::new();
    device.start_counting();
    let steps = cuts.windows(2).map(|cut| (&ids[cut[0]..cut[1]], Phase::Prefill));
    for (tokens, phase) in steps.chain([(&[40][..], Phase::Decode)]) {
        let outputs = Outputs::Last;
        let mut chunks = vec![Chunk { seq: &seq, rows: tokens.into(), phase, outputs }];
        if others > 0 && phase == Phase::Prefill {
            chunks.insert(0, Chunk { seq: &other, rows: (&noise).into(), phase, outputs });
        }
        let rows = runner.step(&chunks).unwrap();
        found.push(rows.row(chunks.len() - 1, 0).to_vec());
    }
    let kernels = device.take_counts().into_iter().map(|of| of.kernel).collect();
    [other, seq].into_iter().for_each(|seq| runner.remove(seq));
    (found.split_off(found.len() - 2).concat(), kernels)
}

#[test]
fn prompts_by_groups_of_warps_have_the_same_bits_in_any_step() {
    use BlockType::{BF16, F16, Q4_K, Q5_K, Q6_K, Q8_0};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("quantized.gguf");
    for types in [&[Q4_K, Q8_0, Q5_K][..], &[Q6_K, BF16, F16], &[Q4_K], &[BF16]] {
        quantized::write_quantized(&path, types);
        let (whole, ran) = prompts(&path, true, &[0, 11], 0);
        // Gate and up of one type are one matrix, whose product gates.
        let gates = ran.iter().filter(|kernel| kernel.starts_with("gated_wgmma_")).count();
        assert_eq!(gates, if types.len() == 1 { 2 } else { 0 }, "{ran:?}");
        for ty in types {
            let name = format!("matmul_wgmma_{}_", ty.name().to_lowercase());
            let takes = WgmmaKernels::<Interpreter>::takes(*ty);
            assert_eq!(ran.iter().any(|kernel| kernel.starts_with(&name)), takes, "{ty}: {ran:?}");
            let name = format!("matmul_half_{}_", ty.name().to_lowercase());
            assert_eq!(ran.iter().any(|kernel| kernel.starts_with(&name)), !takes, "{ty}: {ran:?}");
        }
        for (cuts, others) in [(&[0, 4, 5, 11][..], 0), (&[0, 11], 5), (&[0, 7, 11], 9)] {
            let (found, _) = prompts(&path, true, cuts, others);
            let mut pairs = found.iter().zip(&whole);
            assert!(pairs.all(|(a, b)| a.to_bits() == b.to_bits()), "{types:?} {cuts:?} {others}");
        }
        // The other tensor cores give nearly the same.
        let (other, ran) = prompts(&path, false, &[0, 11], 0);
        assert!(!ran.iter().any(|kernel| kernel.contains("wgmma")), "{ran:?}");
        let largest = other.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        for (a, b) in whole.iter().zip(&other) {
            assert!((a - b).abs() <= 1e-2 * largest, "{types:?}: {a} {b}");
        }
    }
}

#[test]
fn options_are_refused_where_they_would_change_nothing() {
    let open = || {
        let device = Interpreter::new(realizar_ptx::Checks::FAST, usize::MAX);
        CudaBackend::new(device).unwrap()
    };
    for (backend, expected) in [
        (open().with_wgmma().unwrap(), "cuda-wgmma: --arithmetic f32 rules out half precision"),
        (open().with_bf16_decode(), "cuda-bf16-decode: --arithmetic f32 rules out BF16"),
    ] {
        let options = LoadOptions { arithmetic: Arithmetic::F32, ..LoadOptions::default() };
        let error = Model::load(&tiny::tiny("llama"), &backend, &options).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}
