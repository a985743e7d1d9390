//! A step of a runner and of the engine, and the choice of a token, allocate nothing once their
//! sequences are under way; the engine but for what it hands out.

#[path = "it/common/quantized.rs"]
mod quantized;
#[path = "it/common/tiny.rs"]
mod tiny;

use quantized::{write_quantized, write_quantized_experts};
use realizar_quant::BlockType;
use realizar_runtime::backend::Phase;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::engine::{Engine, EngineEvent, EngineOptions, PAGE_LEN, Request, Sink};
use realizar_runtime::sampling::{Sampler, SamplingParams};
use realizar_runtime::{
    Chunk, DeviceLayers, Embeddings, GenerateParams, LoadOptions, Model, Outputs, Prompt, Rows,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use tiny::tiny;

/// Counts the allocations of every thread but the program's first, which is the test harness: it
/// allocates as it begins to wait for the test, and that may be at any time.
struct Counting;

static N_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// The thread of the first allocation, by the address of its `HERE`.
static FIRST_THREAD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static HERE: u8 = const { 0 };
}

fn count() {
    let this_thread = HERE.with(|here| std::ptr::from_ref(here).addr());
    let first = FIRST_THREAD.compare_exchange(0, this_thread, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_err_and(|first| first != this_thread) {
        N_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as above; `ptr` came from `alloc`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: as above; `ptr` came from `alloc`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test alone, as the allocations of all threads are counted.
#[test]
fn tokens_allocate_nothing() {
    // Loading uses rayon's threads, which allocate as they begin: on a busy machine that may be
    // long after.
    rayon::broadcast(|_| ());
    for tier in [None, Some("amx-bf16-software")] {
        let backend = CpuBackend::new(Some(2), tier).unwrap();
        steps_allocate_nothing(&backend);
        steps_behind_an_image_allocate_nothing(&backend);
    }
    samplers_allocate_nothing();
    engines_allocate_what_they_hand_out();
}

fn steps_allocate_nothing(backend: &CpuBackend) {
    let dir = tempfile::tempdir().unwrap();
    let quantized = dir.path().join("quantized.gguf");
    write_quantized(&quantized, &[BlockType::Q8_0, BlockType::Q4_K, BlockType::Q6_K]);
    let experts = dir.path().join("experts.gguf");
    write_quantized_experts(&experts, &[BlockType::Q4_K, BlockType::F16, BlockType::IQ3_S]);
    let models = ["llama", "gemma3_text", "phi3", "gpt2", "qwen2_moe"].into_iter().map(tiny);
    let whole = models.chain([quantized, experts]).map(|path| (path, 0));
    // Some also with their last layer on a backend of its own.
    let split = ["llama", "gemma3_text"].into_iter().map(|name| (tiny(name), 1));
    for (path, last_layers) in whole.chain(split) {
        let options = LoadOptions { chunk: Some(32), ..LoadOptions::default() };
        let split = [DeviceLayers::rest(backend), DeviceLayers::at_most(backend, last_layers)];
        let mut model = Model::load_onto(&path, &split, &options).unwrap();
        assert_eq!(model.placement().parts.len(), 1 + last_layers);
        let runner = model.runner();
        let seq = runner.new_sequence();
        let tokens: Vec<u32> = (3..35).collect();
        let mut step = |tokens: &[u32], phase| {
            let step = Chunk { seq: &seq, rows: tokens.into(), phase, outputs: Outputs::Last };
            let before = N_ALLOCATIONS.load(Ordering::Relaxed);
            let best = runner.step(&[step]).unwrap().row(0, 0)[0];
            assert!(best.is_finite());
            N_ALLOCATIONS.load(Ordering::Relaxed) - before
        };
        step(&tokens, Phase::Prefill);
        step(&tokens[..1], Phase::Decode);
        // The steps cross page borders, and windows give pages back.
        let n: usize = (0..100).map(|i| step(&tokens[i % 32..][..1], Phase::Decode)).sum();
        assert_eq!(n, 0, "{path:?}: allocations of 100 generated tokens");
        assert_eq!(step(&tokens, Phase::Prefill), 0, "{path:?}: allocations of a prompt");
    }
}

/// Rows whose angles have positions of their own, and rows that follow some that see each other.
fn steps_behind_an_image_allocate_nothing(backend: &CpuBackend) {
    let image = || Embeddings::new(vec![0.5; 4 * 32], 32).unwrap();
    let positions = image().with_positions(vec![[9; 3]; 4]).unwrap();
    for (name, image) in [("llama", positions), ("gemma3_text", image().bidirectional())] {
        let options = LoadOptions { chunk: Some(32), ..LoadOptions::default() };
        let mut model = Model::load(&tiny(name), backend, &options).unwrap();
        let runner = model.runner();
        let seq = runner.new_sequence();
        let mut prompt = Prompt::from(vec![5, 6]);
        prompt.push_embeddings(Arc::new(image));
        let mut step = |rows: Rows<'_>, phase| {
            let step = Chunk { seq: &seq, rows, phase, outputs: Outputs::Last };
            let before = N_ALLOCATIONS.load(Ordering::Relaxed);
            assert!(runner.step(&[step]).unwrap().row(0, 0)[0].is_finite());
            N_ALLOCATIONS.load(Ordering::Relaxed) - before
        };
        step(prompt.rows(), Phase::Prefill);
        step((&[7]).into(), Phase::Decode);
        let n: usize = (0..100).map(|i| step((&[3 + i]).into(), Phase::Decode)).sum();
        assert_eq!(n, 0, "{name}: allocations of 100 generated tokens behind an image");
    }
}

fn samplers_allocate_nothing() {
    let plain = SamplingParams {
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: Some(1),
        ..SamplingParams::default()
    };
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

/// What is counted of an engine's steps between two tokens of its first request.
#[derive(Default)]
struct Counted {
    n_tokens: AtomicUsize,
    /// Allocations before the first step that counts, and after the last.
    bounds: [AtomicUsize; 2],
    /// Texts and lists of likely tokens that sinks were given so far, and in between.
    handed: AtomicUsize,
    handed_in_between: AtomicUsize,
}

/// Tokens of the first request before counting begins, and when it ends.
const WARM: usize = 120;
const END: usize = WARM + 50;

impl Counted {
    fn sink(self: &Arc<Self>, is_first: bool, mut at_end: impl FnMut() + Send + 'static) -> Sink {
        let counted = self.clone();
        let n_allocations = || N_ALLOCATIONS.load(Ordering::Relaxed);
        Box::new(move |event| match event {
            EngineEvent::Token(token) => {
                let handed = usize::from(!token.text.is_empty())
                    + usize::from(!token.top_logprobs.is_empty());
                counted.handed.fetch_add(handed, Ordering::Relaxed);
                let n = if is_first { counted.n_tokens.fetch_add(1, Ordering::Relaxed) } else { 0 };
                if n == WARM {
                    counted.handed.store(0, Ordering::Relaxed);
                    counted.bounds[0].store(n_allocations(), Ordering::Relaxed);
                } else if n == END {
                    counted.bounds[1].store(n_allocations(), Ordering::Relaxed);
                    let handed = counted.handed.load(Ordering::Relaxed);
                    counted.handed_in_between.store(handed, Ordering::Relaxed);
                }
            }
            EngineEvent::Finished { .. } => at_end(),
            EngineEvent::Prompt { .. } => {}
            event => panic!("{event:?}"),
        })
    }
}

/// Four sequences at once that share a beginning and its pages, over the borders of pages, with
/// draft tokens and log-probabilities. With a grammar the library behind it allocates as it takes
/// a token and computes a mask.
fn engines_allocate_what_they_hand_out() {
    let dir = tempfile::tempdir().unwrap();
    let quantized = dir.path().join("quantized.gguf");
    write_quantized(&quantized, &[BlockType::Q8_0, BlockType::Q4_K]);
    let tiny = tiny("llama").join("model-f32.gguf");
    let load = |path: &Path| {
        let options = LoadOptions {
            max_seq_len: Some(256),
            chunk: Some(64),
            max_seqs: 4,
            max_outputs: 16,
            prefix_cache: true,
            // Fewer pages than four lists of them add up to, and enough for all.
            kv_tokens: Some(28 * PAGE_LEN),
            ..LoadOptions::default()
        };
        Model::load(path, &CpuBackend::new(Some(2), None).unwrap(), &options).unwrap()
    };
    let greedy = SamplingParams::greedy();
    let params = GenerateParams {
        sampling: Some(SamplingParams {
            seed: Some(5),
            repetition_penalty: 1.1,
            ..Default::default()
        }),
        max_tokens: Some(END + 10),
        ignore_eos: true,
        ..GenerateParams::default()
    };
    let likely = GenerateParams { logprobs: Some(3), ..params.clone() };
    let repeating = GenerateParams { sampling: Some(greedy), ..params.clone() };
    let plain = EngineOptions::default();
    let lookup = EngineOptions { lookup_tokens: 3, ..EngineOptions::default() };
    let drafted = EngineOptions { draft_tokens: 2, ..EngineOptions::default() };
    for (case, path, params, options) in [
        ("plain", &tiny, &params, &plain),
        ("quantized", &quantized, &params, &plain),
        ("log-probabilities", &tiny, &likely, &plain),
        ("prompt lookup", &tiny, &repeating, &lookup),
        ("draft model", &tiny, &repeating, &drafted),
    ] {
        let is_drafted = case == "draft model";
        let draft = is_drafted.then(|| load(&tiny));
        let engine = Engine::start_with_draft(load(path), draft, options.clone()).unwrap();
        let counted = Arc::new(Counted::default());
        let (sender, ended) = channel();
        let tickets: Vec<_> = (0..4)
            .map(|i| {
                // With draft tokens all have one text, so that none ends before the first.
                let salt = if options.lookup_tokens + usize::from(is_drafted) > 0 { 0 } else { i };
                let prompt: Vec<u32> =
                    (0..70).map(|pos| 3 + (pos * 7 + pos / 66 * salt) % 200).collect();
                let request = Request::new(prompt, params.clone());
                let sender = sender.clone();
                let at_end = move || sender.send(()).unwrap();
                engine.submit(request, counted.sink(i == 0, at_end)).unwrap()
            })
            .collect();
        ended.iter().take(4).for_each(drop);
        drop(tickets);
        let [before, after] = counted.bounds.each_ref().map(|n| n.load(Ordering::Relaxed));
        let handed = counted.handed_in_between.load(Ordering::Relaxed);
        let stats = engine.stats();
        assert!(before > 0 && after >= before, "{case}: {before}, {after}");
        assert!(stats.prefix_hits >= 3 * 64, "{case}: {stats:?}");
        assert_eq!(stats.preemptions, 0, "{case}: {stats:?}");
        assert_eq!(stats.draft_tokens > 0, is_drafted || options.lookup_tokens > 0, "{case}");
        assert_eq!(after - before, handed, "{case}: allocations of 50 steps, and what was told");
    }
}
