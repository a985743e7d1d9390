//! The seam between plans and devices.
//!
//! A backend takes a plan and its weights and returns an executable, which
//! runs the plan for ragged batches. No operation appears in these traits, so a
//! backend may run the steps one at a time, record them into a command buffer
//! or capture them as a graph. Backends know no model.
//!
//! | module | feature | device |
//! |---|---|---|
//! | [`cpu`] | | the processor, by the best instruction set that it has |
//! | `cuda` | `cuda` | NVIDIA GPUs, by the driver, which is opened when a GPU is asked for |
//! | `wgpu` | `wgpu` | GPUs by Vulkan, Metal and DX12 |
//!
//! Each has one arm per operation. `gpu` assembles a plan's weights for both kinds of GPUs, [`stages`] runs the parts
//! of a split model in order, and `cuda::ranks` those of tensor-parallel ranks side by side. [`packed_cache`] keeps
//! packed weights in a file, and [`fingerprint`] lists the dependencies of that file and of a saved session.
//! [`metrics`] counts the work of devices, without locks.
//!
//! ```
//! use realizar_backends::Backend;
//! use realizar_backends::cpu::CpuBackend;
//!
//! let backend = CpuBackend::new(Some(2), None)?;
//! println!("{}: {:?}", backend.name(), backend.fusions());
//! # Ok::<(), realizar_backends::Error>(())
//! ```
#![forbid(unsafe_code)]

mod arithmetic;
mod batch;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
pub mod fingerprint;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod gpu;
mod memory;
pub mod metrics;
pub mod packed_cache;
mod sample_requests;
mod seam;
pub mod stages;
#[cfg(feature = "wgpu")]
pub mod wgpu;

pub use arithmetic::Arithmetic;
pub use batch::{Batch, BatchGroup, BatchSeq, EMBEDDED, SeqTable};
pub use error::{DeviceFault, Error};
pub use fingerprint::Fingerprint;
pub use memory::{FreeMemory, MemoryUse};
pub use packed_cache::{PackedCache, PackedFiles};
pub use realizar_types::{Phase, Shortlist};
pub use sample_requests::{
    AsyncExecutable, RowOutput, SampleLimits, SampleRequests, ShortlistOf, TopKRequest,
};
pub use seam::{Backend, Executable, ExecutableOptions};
