//! The wgpu backend: a plan's steps bound to kernels once, recorded for every
//! batch into one command buffer.
//!
//! Weights, norms, biases, activations, keys, values and recurrent states stay on the
//! device. Per step the words of the batch go up and what is wanted of the output comes down: shortlists of
//! logits, or whole rows.

mod bind;
mod executable;
mod experts;
mod recurrent;
mod room;
mod shortlists;
mod support;
mod upload;
mod words;

use crate::DeviceFault;
use crate::Error;
use crate::gpu::weights::WeightLayout;
use crate::{Backend, Executable, ExecutableOptions};
use crate::{FreeMemory, MemoryUse};
use executable::WgpuExecutable;
use realizar_base::ByteSize;
use realizar_kernels_wgpu as kernels;
use realizar_kernels_wgpu::{Gpu, GpuOptions, KvSpec};
use realizar_kvcache::{KvLayout, PAGE_LEN};
use realizar_model::graph::Fusions;
use realizar_model::graph::plan::Plan;
use realizar_model::graph::weights::Weights;
use room::Room;

/// Bytes for the partial results of attention: so many that a wave of decode rows
/// occupies a large GPU for longer than the start of the next one takes.
pub const ATTENTION_BYTES: u64 = 32 << 20;

/// A GPU that is reached by Vulkan, Metal or DX12.
#[derive(Debug, Clone)]
pub struct WgpuBackend {
    gpu: Gpu,
    attention_bytes: u64,
}

impl WgpuBackend {
    /// Opens an adapter by its index in [`kernels::Adapter::all`], the first
    /// when `None`.
    ///
    /// # Errors
    /// If there is none, or its driver gives no device.
    pub fn open(index: Option<usize>, options: GpuOptions) -> Result<Self, Error> {
        let gpu = Gpu::open(index.unwrap_or(0), options).map_err(|e| device_error("wgpu", &e))?;
        Ok(Self::new(gpu))
    }

    /// A backend on a device that is open.
    pub fn new(gpu: Gpu) -> Self {
        Self { gpu, attention_bytes: ATTENTION_BYTES }
    }

    /// The same with up to `n_bytes` for the partial results of attention (32 MiB unless
    /// it is said), or as many as a single row of full length needs. Decode rows whose
    /// results need more are attended to in waves. What they get stays the same.
    #[must_use]
    pub fn with_attention_bytes(mut self, n_bytes: u64) -> Self {
        self.attention_bytes = n_bytes;
        self
    }

    fn load_executable(
        &self,
        plan: Plan,
        weights: &Weights,
        options: &ExecutableOptions,
    ) -> Result<WgpuExecutable, Error> {
        let name = self.name();
        let layout = WeightLayout::new(&plan, weights);
        let room = Room::new(&self.gpu, &plan, (weights, &layout), options, self.attention_bytes);
        let reasons = support::refusals(&self.gpu, &plan, weights, &room, options);
        if !reasons.is_empty() {
            return Err(Error::Refused { backend: name, reasons });
        }
        WgpuExecutable::new(&self.gpu, &name, plan, (weights, layout), room, options)
    }
}

/// The shape of a layer's keys and values on the device.
fn kv_spec(layout: &KvLayout, n_pages: usize) -> KvSpec {
    let shape = layout.spec();
    KvSpec {
        ty: layout.ty(),
        n_kv_heads: shape.n_kv_heads as u32,
        head_dim: shape.head_dim as u32,
        page_len: PAGE_LEN as u32,
        n_pages: n_pages as u32,
        values_are_keys: shape.values_are_keys,
    }
}

/// What went wrong on `device`, in the terms of this crate.
fn device_error(device: &str, error: &kernels::Error) -> Error {
    let fault = match error {
        kernels::Error::OutOfMemory { .. } => DeviceFault::OutOfMemory,
        kernels::Error::Limit { .. } => DeviceFault::Limit,
        kernels::Error::Lost(_) => DeviceFault::Lost,
        _ => DeviceFault::Other,
    };
    let reason = match error {
        kernels::Error::OutOfMemory { what, n_bytes } => {
            format!(
                "the GPU is out of memory: {what} of {} cannot be allocated",
                ByteSize(*n_bytes)
            )
        }
        error => error.to_string(),
    };
    Error::Device { device: device.to_owned(), fault, reason }
}

impl Backend for WgpuBackend {
    fn name(&self) -> String {
        format!("wgpu ({})", self.gpu.name())
    }

    fn drafts(&self) -> bool {
        true
    }

    fn fusions(&self) -> Fusions {
        // A norm or an activation is computed once for all workgroups of the
        // product that reads it, so it stays a kernel of its own.
        Fusions { parts: true, prologue: false, residual: true }
    }

    fn memory(&self, plan: &Plan, weights: &Weights, options: &ExecutableOptions) -> MemoryUse {
        let pool = |(layout, n_pages): &(KvLayout, usize)| {
            let spec = layout.spec();
            let planes = (spec.planes() * spec.n_layers) as u64;
            kv_spec(layout, *n_pages).n_bytes().saturating_mul(planes)
        };
        let states = recurrent::n_bytes(plan, options);
        let kv = options.kv.iter().map(pool).fold(states, u64::saturating_add);
        let layout = WeightLayout::new(plan, weights);
        let room = Room::new(&self.gpu, plan, (weights, &layout), options, self.attention_bytes);
        let scratch = room.device_bytes(&self.gpu).saturating_add(room.host_bytes());
        let bytes = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        MemoryUse {
            weights: layout.n_bytes::<Gpu>(weights),
            kv: bytes(kv),
            scratch: bytes(scratch),
        }
    }

    fn free_memory(&self) -> Option<FreeMemory> {
        // What other programs have is not known.
        let total = usize::try_from(self.gpu.memory()?).unwrap_or(usize::MAX);
        let own = usize::try_from(self.gpu.allocated_bytes()).unwrap_or(usize::MAX);
        let bytes = total.saturating_sub(own);
        Some(FreeMemory { bytes, reserve: total / 4, is_exact: false })
    }

    fn load(
        &self,
        plan: Plan,
        weights: Weights,
        options: &ExecutableOptions,
    ) -> Result<Box<dyn Executable>, Error> {
        let executable = self.load_executable(plan, &weights, options)?;
        // The device has its own copy now.
        drop(weights);
        Ok(Box::new(executable))
    }
}
