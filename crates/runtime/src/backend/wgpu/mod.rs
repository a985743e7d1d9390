//! The wgpu backend: a plan's steps bound to kernels once, recorded for every
//! batch into one command buffer.
//!
//! Weights, norms, biases, activations, keys and values stay on the device. Per
//! step the words of the batch go up and rows of logits come down.

mod bind;
mod executable;
mod support;
mod upload;
mod words;

use crate::Error;
use crate::backend::{Backend, Executable, ExecutableOptions};
use crate::error::DeviceFault;
use crate::graph::Fusions;
use crate::memory::{ByteSize, MemoryUse};
use crate::plan::Plan;
use crate::weights::Weights;
use executable::WgpuExecutable;
use realizar_kernels_wgpu as kernels;
use realizar_kernels_wgpu::{Gpu, GpuOptions, KvSpec};
use realizar_kvcache::{KvLayout, PAGE_LEN};

/// A GPU that is reached by Vulkan, Metal or DX12.
#[derive(Debug, Clone)]
pub struct WgpuBackend {
    gpu: Gpu,
}

impl WgpuBackend {
    /// Opens an adapter by its index in [`kernels::Adapter::all`], the first
    /// when `None`.
    ///
    /// # Errors
    /// If there is none, or its driver gives no device.
    pub fn open(index: Option<usize>, options: GpuOptions) -> Result<Self, Error> {
        let gpu = Gpu::open(index.unwrap_or(0), options).map_err(|e| device_error("wgpu", &e))?;
        Ok(Self { gpu })
    }

    /// A backend on a device that is open.
    pub fn new(gpu: Gpu) -> Self {
        Self { gpu }
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
            format!("the GPU has no memory left for {what} of {}", ByteSize(*n_bytes))
        }
        error => error.to_string(),
    };
    Error::Device { device: device.to_owned(), fault, reason }
}

impl Backend for WgpuBackend {
    fn name(&self) -> String {
        format!("wgpu ({})", self.gpu.name())
    }

    fn fusions(&self) -> Fusions {
        // A norm or an activation is computed once for all workgroups of the
        // product that reads it, so it stays a kernel of its own.
        Fusions { parts: true, prologue: false, residual: true }
    }

    fn memory(&self, plan: &Plan, weights: &Weights, options: &ExecutableOptions) -> MemoryUse {
        let pool = |(layout, n_pages): &(KvLayout, usize)| {
            let layers = 2 * layout.spec().n_layers as u64; // keys and values
            kv_spec(layout, *n_pages).n_bytes().saturating_mul(layers)
        };
        let kv = options.kv.iter().map(pool).fold(0, u64::saturating_add);
        MemoryUse {
            weights: upload::n_bytes(plan, weights),
            kv: usize::try_from(kv).unwrap_or(usize::MAX),
            // The output's rows are also in a buffer that the host reads, and on the host.
            scratch: (plan.arena_len + 2 * executable::max_output(plan)) * size_of::<f32>(),
        }
    }

    fn load(
        &self,
        plan: Plan,
        weights: Weights,
        options: &ExecutableOptions,
    ) -> Result<Box<dyn Executable>, Error> {
        let name = self.name();
        let reasons = support::refusals(&self.gpu, &plan, &weights, options);
        if !reasons.is_empty() {
            return Err(Error::Refused { backend: name, reasons });
        }
        let executable = WgpuExecutable::new(&self.gpu, &name, plan, &weights, options)?;
        // The device has its own copy now.
        drop(weights);
        Ok(Box::new(executable))
    }
}
