//! The memory of the wgpu backend: [`Backend::memory`] is what loading allocates.

use crate::common::{quantized, tiny};
use realizar_kernels_wgpu::{Adapter, Gpu, GpuOptions};
use realizar_quant::BlockType;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::backend::wgpu::{ATTENTION_BYTES, WgpuBackend};
use realizar_runtime::backend::{
    Arithmetic, Backend, Error as BackendError, Executable, ExecutableOptions,
};
use realizar_runtime::graph::Fusions;
use realizar_runtime::plan::Plan;
use realizar_runtime::weights::Weights;
use realizar_runtime::{DeviceLayers, Error, LoadOptions, MemoryUse, Model, ModelOutput};
use std::path::Path;
use std::sync::Mutex;

/// A model's memory: as computed, and as allocated by loading.
#[derive(Debug, Clone, Copy)]
struct Loaded {
    told: MemoryUse,
    device_bytes: u64,
    host_bytes: u64,
}

/// A backend that notes what loading takes.
#[derive(Debug)]
struct Spy {
    gpu: Gpu,
    backend: WgpuBackend,
    loaded: Mutex<Vec<Loaded>>,
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
        let told = self.memory(&plan, &weights, options);
        let before = self.gpu.allocated_bytes();
        let executable = self.backend.load(plan, weights, options)?;
        let device_bytes = self.gpu.allocated_bytes() - before;
        let host_bytes = executable.host_bytes() as u64;
        self.loaded.lock().unwrap().push(Loaded { told, device_bytes, host_bytes });
        Ok(executable)
    }
}

#[test]
fn memory_is_what_loading_takes() {
    if Adapter::all().is_empty() {
        println!("skipped: no GPU adapter on this machine");
        return;
    }
    use BlockType::{BF16, F8, F16, F32, Q4_0, Q4_K, Q6_K, Q8_0};
    let dir = tempfile::tempdir().unwrap();
    let mixed = dir.path().join("quantized.gguf");
    quantized::write_quantized(&mixed, &[Q8_0, Q4_K, F16, Q6_K, F32]);
    let experts = dir.path().join("experts.gguf");
    quantized::write_quantized_experts(&experts, &[Q4_K, Q6_K, Q8_0, F16]);
    let names = ["llama", "gemma3_text", "gpt2", "phi", "qwen3", "lfm2", "qwen3_5_text"];
    let paths: Vec<_> = names.into_iter().map(tiny::tiny).chain([mixed, experts]).collect();
    let usual = LoadOptions { max_seq_len: Some(96), ..LoadOptions::default() };
    let all_options = [
        usual.clone(),
        LoadOptions { chunk: Some(1), max_outputs: 1, profile: true, ..usual.clone() },
        LoadOptions { arithmetic: Arithmetic::F32, max_seqs: 3, ..usual.clone() },
        LoadOptions {
            kv_type: Some(F32),
            kv_tokens: Some(70),
            prefix_cache: true,
            ..usual.clone()
        },
        LoadOptions { output: ModelOutput::Embeddings, ..usual },
    ];
    let gpu = Gpu::open(0, GpuOptions::default()).unwrap();
    let cpu = CpuBackend::new(Some(1), None).unwrap();
    for attention_bytes in [ATTENTION_BYTES, 0] {
        let backend = WgpuBackend::new(gpu.clone()).with_attention_bytes(attention_bytes);
        let spy = Spy { gpu: gpu.clone(), backend, loaded: Mutex::new(Vec::new()) };
        let check = |path: &Path, options: &LoadOptions, loaded: Result<Model, Error>| {
            let model = loaded.unwrap();
            let Loaded { told, device_bytes, host_bytes } =
                spy.loaded.lock().unwrap().pop().unwrap();
            let total = told.total() as u64;
            assert_eq!(total, device_bytes + host_bytes, "{path:?} {options:?}: {told:?}");
            drop(model);
            assert_eq!(gpu.allocated_bytes(), 0);
        };
        for path in &paths {
            for options in &all_options {
                check(path, options, Model::load(path, &spy, options));
            }
            // A layer on the GPU, the rest on the CPU, and the other way around.
            let options = &all_options[0];
            let split = |first, last| [DeviceLayers::rest(first), DeviceLayers::at_most(last, 1)];
            check(path, options, Model::load_onto(path, &split(&cpu, &spy), options));
            check(path, options, Model::load_onto(path, &split(&spy, &cpu), options));
        }
        // Heads of this one are whole blocks.
        let quantized = paths.iter().find(|path| path.ends_with("quantized.gguf")).unwrap();
        for kv_type in [BF16, F8, Q8_0, Q4_0] {
            let options = LoadOptions { kv_type: Some(kv_type), ..all_options[0].clone() };
            check(quantized, &options, Model::load(quantized, &spy, &options));
        }
    }
}
