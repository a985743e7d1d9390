//! What loading takes is what [`Backend::memory`] says.

use super::*;
use crate::backend::Arithmetic;
use crate::backend::gpu::{quantized, tiny};
use crate::{LoadOptions, Model, ModelOutput};
use realizar_kernels_cuda::Interpreter;
use realizar_quant::BlockType;
use std::sync::Mutex;

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
    ) -> Result<Box<dyn Executable>, Error> {
        let told = self.memory(&plan, &weights, options).total();
        // The kernels of a type are loaded once, and have constants.
        let types = WeightLayout::new(&plan, &weights);
        let kernels = &self.backend.kernels;
        types.types(&weights).for_each(|ty| kernels.prepare(ty).unwrap());
        experts::types(&plan, &weights).for_each(|ty| kernels.prepare_experts(ty).unwrap());
        super::prepare_attention(kernels, options).unwrap();
        let device = self.backend.kernels.device();
        let before = device.used_bytes();
        let executable = self.backend.load_rank(plan, &weights, options, None)?;
        let taken = device.used_bytes() - before + executable.host_bytes();
        *self.loaded.lock().unwrap() = Some([told, taken]);
        Ok(Box::new(executable))
    }
}

#[test]
fn memory_is_what_loading_takes() {
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
        LoadOptions { chunk: 1, max_outputs: 1, ..usual.clone() },
        LoadOptions { arithmetic: Arithmetic::F32, max_seqs: 3, ..usual.clone() },
        LoadOptions { kv_type: Some(F32), kv_tokens: Some(70), ..usual.clone() },
        LoadOptions { output: ModelOutput::Embeddings, ..usual },
    ];
    let device = Interpreter::new(realizar_ptx::Checks::default(), usize::MAX);
    let backend = CudaBackend::new(device).unwrap();
    let spy = Spy { backend, loaded: Mutex::new(None) };
    for path in &paths {
        for options in &all_options {
            drop(Model::load(path, &spy, options).unwrap());
            let [told, taken] = spy.loaded.lock().unwrap().take().unwrap();
            assert_eq!(told, taken, "{path:?} {options:?}");
        }
    }
    // Heads of this one are whole blocks.
    let quantized = paths.iter().find(|path| path.ends_with("quantized.gguf")).unwrap();
    for kv_type in [BF16, F8, Q8_0, Q4_0] {
        let options = LoadOptions { kv_type: Some(kv_type), ..all_options[0].clone() };
        drop(Model::load(quantized, &spy, &options).unwrap());
        let [told, taken] = spy.loaded.lock().unwrap().take().unwrap();
        assert_eq!(told, taken, "{kv_type}");
    }
}
