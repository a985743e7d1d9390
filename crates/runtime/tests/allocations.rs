//! A step of the engine and the choice of a token allocate nothing once their sequence is under
//! way.

#[path = "it/common/quantized.rs"]
mod quantized;
#[path = "it/common/tiny.rs"]
mod tiny;

use quantized::write_quantized;
use realizar_quant::BlockType;
use realizar_runtime::backend::Role;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::sampling::{Sampler, SamplingParams};
use realizar_runtime::{Chunk, LoadOptions, Model, Outputs};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use tiny::tiny;

/// Counts the allocations of every thread.
struct Counting;

static N_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        N_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above; `ptr` came from `alloc`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        N_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above; `ptr` came from `alloc`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test alone, as the allocations of all threads are counted.
#[test]
fn tokens_allocate_nothing() {
    steps_allocate_nothing();
    samplers_allocate_nothing();
}

fn steps_allocate_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let quantized = dir.path().join("quantized.gguf");
    write_quantized(&quantized, &[BlockType::Q8_0, BlockType::Q4_K, BlockType::Q6_K]);
    let backend = CpuBackend::new(Some(2), None).unwrap();
    let models = ["llama", "gemma3_text", "phi3", "gpt2"].into_iter().map(tiny);
    let whole = models.chain([quantized]).map(|path| (path, 0));
    // Some also with their last layer on a backend of its own.
    let split = ["llama", "gemma3_text"].into_iter().map(|name| (tiny(name), 1));
    for (path, last_layers) in whole.chain(split) {
        let options = LoadOptions { chunk: 32, ..LoadOptions::default() };
        let mut model =
            Model::load_split(&path, &backend, &backend, last_layers, &options).unwrap();
        assert_eq!(model.placement().parts.len(), 1 + last_layers);
        let runner = model.runner();
        let seq = runner.new_sequence();
        let tokens: Vec<u32> = (3..35).collect();
        let mut step = |tokens: &[u32], role| {
            let step = Chunk { seq: &seq, tokens, role, outputs: Outputs::Last };
            let before = N_ALLOCATIONS.load(Ordering::Relaxed);
            let best = runner.step(&[step]).unwrap().row(0, 0)[0];
            assert!(best.is_finite());
            N_ALLOCATIONS.load(Ordering::Relaxed) - before
        };
        step(&tokens, Role::Prompt);
        step(&tokens[..1], Role::Generated);
        // The steps cross page borders, and windows give pages back.
        let n: usize = (0..100).map(|i| step(&tokens[i % 32..][..1], Role::Generated)).sum();
        assert_eq!(n, 0, "{path:?}: allocations of 100 generated tokens");
        assert_eq!(step(&tokens, Role::Prompt), 0, "{path:?}: allocations of a prompt");
    }
}

fn samplers_allocate_nothing() {
    let plain = SamplingParams { top_k: 0, top_p: 1.0, seed: Some(1), ..SamplingParams::default() };
    let dry = SamplingParams {
        repetition_penalty: 1.1,
        dry_multiplier: 0.8,
        dry_sequence_breakers: Vec::new(),
        ..plain.clone()
    };
    for params in [
        plain.clone(),
        SamplingParams { top_k: 40, top_p: 0.95, min_p: 0.05, ..dry },
        SamplingParams { top_p: 0.95, top_n_sigma: 3.0, ..plain.clone() },
        SamplingParams { typical_p: 0.9, top_p: 0.9, ..plain.clone() },
        SamplingParams { xtc_probability: 0.5, xtc_threshold: 0.01, ..plain.clone() },
        SamplingParams { mirostat: 2, ..plain },
    ] {
        let rows: Vec<Vec<f32>> = (0..10)
            .map(|row| (0..5000).map(|i| ((i * 7919 + row) % 997) as f32 / 70.0).collect())
            .collect();
        let mut logits = rows[0].clone();
        let mut sampler = Sampler::new(params.clone(), logits.len()).unwrap();
        let mut sample = |n: usize| {
            let before = N_ALLOCATIONS.load(Ordering::Relaxed);
            for i in 0..n {
                logits.copy_from_slice(&rows[i % rows.len()]);
                let id = sampler.sample(&mut logits).unwrap();
                sampler.accept(id);
            }
            N_ALLOCATIONS.load(Ordering::Relaxed) - before
        };
        sample(300);
        assert_eq!(sample(100), 0, "{params:?}: allocations of 100 tokens");
    }
}
