//! What a model takes is known before it is loaded, and is what it reports afterwards.

use crate::common::tiny::tiny;
use realizar_formats::{Gguf, GgufWriter};
use realizar_quant::BlockType;
use realizar_runtime::BackendError;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::backend::{Arithmetic, Backend, Executable, ExecutableOptions, FreeMemory};
use realizar_runtime::engine::{Engine, EngineOptions};
use realizar_runtime::graph::Fusions;
use realizar_runtime::plan::Plan;
use realizar_runtime::weights::Weights;
use realizar_runtime::{DeviceLayers, Error, LoadOptions, MemoryUse, Model, ModelOutput};
use std::path::{Path, PathBuf};

fn memory(file: &str, options: &LoadOptions) -> (Model, MemoryUse) {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/archs");
    let cpu = CpuBackend::new(Some(1), None).expect("the processor");
    let path = root.join(file);
    let split = &[DeviceLayers::rest(&cpu)];
    let needed = Model::memory_needed(&path, split, options).expect("a sound file");
    let model = Model::load(&path, &cpu, options).expect("the model loads");
    assert_eq!(model.memory(), needed, "{file}");
    (model, needed)
}

#[test]
fn keys_and_values_take_their_pages() {
    let options = |max_seqs, kv_type| LoadOptions {
        max_seq_len: Some(64),
        max_seqs,
        kv_type: Some(kv_type),
        arithmetic: Arithmetic::F32,
        ..LoadOptions::default()
    };
    let (model, one) = memory("llama/model-f32.gguf", &options(1, BlockType::F32));
    let columns: usize = model.config().layers.iter().map(|layer| layer.kv_dim()).sum();
    let per_token = 2 * columns * size_of::<f32>();
    assert_eq!(one.kv, 64 * per_token);
    assert_eq!(one.weights, model.weight_bytes(), "what is not packed is as it was stored");
    assert!(one.scratch > 0);
    let (_, three) = memory("llama/model-f32.gguf", &options(3, BlockType::F32));
    assert_eq!(three.kv, 3 * one.kv);
    let (_, halves) = memory("llama/model-f32.gguf", &options(1, BlockType::F16));
    assert_eq!(halves.kv * 2, one.kv);
    let (_, quarters) = memory("llama/model-f32.gguf", &options(1, BlockType::F8));
    assert_eq!(quarters.kv * 4, one.kv);
}

/// A processor with a limit of its own to the memory that is free.
#[derive(Debug)]
struct Small {
    cpu: CpuBackend,
    free: FreeMemory,
}

impl Backend for Small {
    fn name(&self) -> String {
        "small".to_owned()
    }

    fn fusions(&self) -> Fusions {
        self.cpu.fusions()
    }

    fn memory(&self, plan: &Plan, weights: &Weights, options: &ExecutableOptions) -> MemoryUse {
        self.cpu.memory(plan, weights, options)
    }

    fn free_memory(&self) -> Option<FreeMemory> {
        Some(self.free)
    }

    fn load(
        &self,
        plan: Plan,
        weights: Weights,
        options: &ExecutableOptions,
    ) -> Result<Box<dyn Executable>, BackendError> {
        self.cpu.load(plan, weights, options)
    }
}

#[test]
fn pages_fill_what_is_left() {
    let path = tiny("llama");
    let cpu = CpuBackend::new(Some(1), None).expect("the processor");
    let options = |max_seqs, kv_tokens| LoadOptions {
        max_seq_len: Some(64),
        chunk: Some(64),
        max_seqs,
        kv_tokens,
        ..LoadOptions::default()
    };
    let total = |options: &LoadOptions| {
        let devices = [DeviceLayers::rest(&cpu)];
        Model::memory_needed(&path, &devices, options).expect("a sound file").total()
    };
    let load = |bytes: usize, is_exact: bool, options: &LoadOptions| {
        let free = FreeMemory { bytes: bytes + 1000, reserve: 1000, is_exact };
        let small = Small { cpu, free };
        let needed = Model::memory_needed(&path, &[DeviceLayers::rest(&small)], options);
        let model = Model::load(&path, &small, options);
        model.inspect(|model| assert_eq!(model.memory(), needed.expect("what is loaded")))
    };
    // Ten contexts, with room for all of them, for some, for a page more, and for a page less than one.
    let ten = options(10, None);
    let tokens = |n: usize| total(&options(10, Some(n)));
    for (bytes, expected) in [
        (total(&ten), 640),
        (tokens(640) - 1, 608),
        (tokens(320), 320),
        (tokens(320) - 1, 288),
        (tokens(64), 64),
    ] {
        let model = load(bytes, true, &ten).expect("the model loads");
        assert_eq!(model.kv_tokens(), Some(expected));
        assert!(model.memory().total() <= bytes);
    }
    let text = load(tokens(64) - 1, true, &ten).unwrap_err().to_string();
    assert!(text.contains("a context of 64 tokens takes"), "{text}");
    assert!(text.contains("32 tokens fit: use --ctx 32, or --kv-type"), "{text}");
    let text = load(tokens(1) / 2, true, &ten).unwrap_err().to_string();
    assert!(text.contains("not a single token fits"), "{text}");
    // What is only estimated refuses nothing, and what is stated is taken.
    assert_eq!(load(0, false, &ten).expect("the model loads").kv_tokens(), Some(64));
    let stated = load(0, true, &options(10, Some(96))).expect("the model loads");
    assert_eq!(stated.kv_tokens(), Some(96));
}

/// The tiny model as if it had been made for a long context.
fn long_model(dir: &Path, context: u32) -> PathBuf {
    let source = Gguf::open(tiny("llama").join("model-f32.gguf")).expect("a sound file");
    let tensors: Vec<_> = source
        .tensors()
        .iter()
        .map(|info| source.tensor(&info.name).expect("a tensor of the list"))
        .collect();
    let mut gguf = GgufWriter::new();
    for (key, value) in source.metadata().iter() {
        match key {
            "llama.context_length" => gguf.set(key, context).expect("set"),
            key => gguf.set(key, value.clone()).expect("set"),
        }
    }
    for tensor in &tensors {
        gguf.tensor(&tensor.name, tensor.ty, &tensor.shape, &tensor.data).expect("added");
    }
    let path = dir.join("long.gguf");
    gguf.write_file(&path).expect("written");
    path
}

#[test]
fn a_default_context_is_the_models_as_far_as_it_fits() {
    const OWN: usize = 32_768;
    const PAGE: usize = 32;
    let dir = tempfile::tempdir().expect("a directory");
    let path = long_model(dir.path(), OWN as u32);
    let cpu = CpuBackend::new(Some(1), None).expect("the processor");
    let options = |max_seqs, max_seq_len| LoadOptions {
        chunk: Some(64),
        max_seqs,
        max_seq_len,
        prefix_cache: true,
        ..LoadOptions::default()
    };
    let one_page = LoadOptions { kv_tokens: Some(PAGE), ..options(16, None) };
    let one_page = Model::memory_needed(&path, &[DeviceLayers::rest(&cpu)], &one_page);
    let MemoryUse { weights, scratch, kv: page } = one_page.expect("a sound file");
    let load = |n_pages: usize, is_exact: bool, options: &LoadOptions| {
        let bytes = weights + scratch + n_pages * page + 1000;
        let small = Small { cpu, free: FreeMemory { bytes, reserve: 1000, is_exact } };
        let needed = Model::memory_needed(&path, &[DeviceLayers::rest(&small)], options);
        let model = Model::load(&path, &small, options)?;
        assert_eq!(model.memory(), needed.expect("what is loaded"));
        Ok::<_, Error>((model.max_seq_len(), model.kv_tokens().expect("there is attention")))
    };
    let default = options(16, None);
    for (n_pages, is_exact, options, want) in [
        // All of it: one context, or 8192 tokens of each sequence.
        (1 << 20, true, &options(1, None), (OWN, OWN)),
        (1 << 20, true, &default, (OWN, 16 * 8192)),
        // Half of what is free has room for fewer tokens, then for less than one context.
        (2 * 2048, true, &default, (OWN, 65_536)),
        (2 * 1024, true, &default, (OWN, OWN)),
        (2 * 1024 - 1, true, &default, (OWN - PAGE, OWN - PAGE)),
        (2 * 256, true, &default, (8192, 8192)),
        // Up to 8192 tokens may take all of it.
        (2 * 256 - 1, true, &default, (8192, 8192)),
        (256, true, &default, (8192, 8192)),
        (255, true, &default, (8160, 8160)),
        (64, true, &default, (2048, 2048)),
        (64, false, &default, (8192, 8192)),
        (0, false, &default, (8192, 8192)),
        // A context that is requested takes what there is.
        (1 << 20, true, &options(2, Some(16_384)), (16_384, 32_768)),
        (600, true, &options(2, Some(16_384)), (16_384, 600 * PAGE)),
    ] {
        let found = load(n_pages, is_exact, options);
        assert_eq!(found.expect("the model loads"), want, "{n_pages} pages, exact: {is_exact}");
    }
    let text = load(63, true, &default).expect_err("too little").to_string();
    assert!(text.contains("a context of 8192 tokens takes"), "{text}");
    assert!(text.contains("2016 tokens fit: use --ctx 2016"), "{text}");
}

#[test]
fn experts_take_room_for_the_rows_of_each() {
    let options = |chunk, arithmetic| LoadOptions {
        max_seq_len: Some(64),
        chunk: Some(chunk),
        arithmetic,
        ..LoadOptions::default()
    };
    let file = "mixtral/model-f32.gguf";
    let (model, few) = memory(file, &options(16, Arithmetic::F32));
    assert_eq!(few.weights, model.weight_bytes(), "the experts are as they were stored");
    let (_, many) = memory(file, &options(32, Arithmetic::F32));
    // Of each row the activations, and for two experts 32 columns of floats.
    let experts = 16 * 2 * 32 * size_of::<f32>();
    assert!(many.scratch >= few.scratch + experts, "{many:?}, {few:?}");
    // Half of the experts, all of the rest but the table, of which a row.
    let experts: usize = 3 * 4 * 3 * 32 * 32 * size_of::<f32>();
    let table = 288 * 32 * size_of::<f32>();
    let row = 32 * size_of::<f32>();
    assert_eq!(model.bytes_per_token(), model.weight_bytes() - experts / 2 - table + row);
}

#[test]
fn an_engine_reports_its_models_memory() {
    let options = LoadOptions { max_seq_len: Some(64), ..LoadOptions::default() };
    let (text, needed) = memory("llama/model-f32.gguf", &options);
    let engine = Engine::start(text, EngineOptions::default()).expect("the engine starts");
    assert_eq!(engine.model().memory(), needed);
    let embeddings = LoadOptions { output: ModelOutput::Embeddings, ..options };
    let (model, less) = memory("llama/model-f32.gguf", &embeddings);
    assert!(less.weights <= needed.weights, "the head is not there: {less:?}, {needed:?}");
    assert_eq!(less.total(), model.memory().total());
}
