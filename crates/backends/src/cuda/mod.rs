//! The CUDA backend: a plan's steps as launches in a stream; those of decode rows are captured once for each
//! number of rows, and replayed.
//!
//! Weights, norms, biases, activations, keys, values and recurrent states stay on the device. Per step the numbers of
//! the batch go up and what is wanted of the output comes down.

mod executable;
mod experts;
mod fused;
mod products;
mod ranks;
mod recurrent;
mod room;
mod shortlists;
mod steps;
mod store;
mod support;
mod timing;
mod words;

use crate::DeviceFault;
use crate::Error;
use crate::gpu::weights::WeightLayout;
use crate::{Arithmetic, Backend, Executable, ExecutableOptions, FreeMemory, MemoryUse};
use executable::CudaExecutable;
use products::Choices;
pub use ranks::CudaRanks;
use realizar_base::ByteSize;
use realizar_kernels_cuda as kernels;
use realizar_kernels_cuda::{
    AttentionArithmetic, Device, Driver, Kernels, KvSpec, QuantType, WgmmaKernels,
};
use realizar_kvcache::{KvLayout, PAGE_LEN};
use realizar_model::graph::Fusions;
use realizar_model::graph::plan::Plan;
use realizar_model::graph::weights::Weights;
use realizar_quant::BlockType;
use room::Room;
use std::sync::Arc;
use store::Store;

/// How cards are used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CudaOptions {
    /// Whether launches start before the one in front of them has ended (programmatic dependent launch), which takes a card of
    /// compute capability 9.0.
    pub dependent_launch: bool,
    /// Whether prompts meet weights by the instructions of groups of warps, which takes a card of compute capability 9.0.
    pub wgmma: bool,
    /// Whether decode rows are rounded to BF16 for weights of integer levels, instead of to 8-bit integers.
    pub bf16_decode: bool,
}

/// A card that is reached by NVIDIA's driver, or what stands for one.
#[derive(Debug)]
pub struct CudaBackend<D: Device> {
    kernels: Arc<Kernels<D>>,
    /// Where they are requested.
    wgmma: Option<Arc<WgmmaKernels<D>>>,
    /// What decode rows are quantized to.
    decode: QuantType,
}

impl CudaBackend<Driver> {
    /// Opens a card by its index among those of the driver, the first when `None`.
    ///
    /// # Errors
    /// If there is no driver, no such card, either is too old, or the card cannot do what an option asks for.
    pub fn open(index: Option<usize>, options: CudaOptions) -> Result<Self, Error> {
        let refused = |e: &kernels::Error| match e {
            kernels::Error::NoEarlyLaunches { .. } => {
                Error::Option { option: "cuda-dependent-launch", reason: e.to_string() }
            }
            kernels::Error::NoWgmma { .. } => {
                Error::Option { option: "cuda-wgmma", reason: e.to_string() }
            }
            e => device_error("cuda", e),
        };
        let mut driver = Driver::open(index.unwrap_or(0)).map_err(|e| refused(&e))?;
        if options.dependent_launch {
            driver = driver.with_early_launches().map_err(|e| refused(&e))?;
        }
        if options.wgmma {
            driver.check_wgmma().map_err(|e| refused(&e))?;
        }
        let mut backend = Self::new(driver)?;
        if options.bf16_decode {
            backend = backend.with_bf16_decode();
        }
        if options.wgmma { backend.with_wgmma() } else { Ok(backend) }
    }
}

impl<D: Device> CudaBackend<D> {
    /// A backend on a device that is open.
    ///
    /// # Errors
    /// If the device does not take the kernels.
    pub fn new(device: D) -> Result<Self, Error> {
        let name = device_name(&device);
        let kernels = Kernels::load(&Arc::new(device)).map_err(|e| device_error(&name, &e))?;
        Ok(Self { kernels: Arc::new(kernels), wgmma: None, decode: QuantType::Int8 })
    }

    /// The same with kernels of groups of warps for the prefill rows.
    ///
    /// # Errors
    /// If the device does not take these kernels.
    pub fn with_wgmma(self) -> Result<Self, Error> {
        let loaded = WgmmaKernels::load(&**self.kernels.device());
        let wgmma = loaded.map_err(|e| device_error(&self.name(), &e))?;
        Ok(Self { wgmma: Some(Arc::new(wgmma)), ..self })
    }

    /// The same with decode rows in BF16 for weights of integer levels, but for those of experts.
    #[must_use]
    pub fn with_bf16_decode(self) -> Self {
        Self { decode: QuantType::Bf16, ..self }
    }

    /// The device that the kernels are loaded on.
    pub fn device(&self) -> &Arc<D> {
        self.kernels.device()
    }

    /// What was chosen for products.
    fn choices(&self) -> Choices {
        Choices { has_wgmma: self.wgmma.is_some(), decode: self.decode }
    }

    /// That there is something to do for the kernels of groups of warps, and what the others do.
    fn check_wgmma(
        &self,
        (layout, weights): (&WeightLayout, &Weights),
        options: &ExecutableOptions,
    ) -> Result<(), Error> {
        if self.wgmma.is_none() {
            return Ok(());
        }
        if options.arithmetic == Arithmetic::F32 {
            let reason = "--arithmetic f32 rules out half precision; use only one of the two";
            return Err(Error::Option { option: "cuda-wgmma", reason: reason.to_owned() });
        }
        let mut types: Vec<BlockType> = layout.types(weights).collect();
        types.sort_by_key(|ty| ty.name());
        types.dedup();
        let names = |takes: bool| {
            let of = types.iter().filter(|&&ty| WgmmaKernels::<D>::takes(ty) == takes);
            of.map(|ty| ty.name()).collect::<Vec<_>>().join(", ")
        };
        let (by_wgmma, others, device) = (names(true), names(false), self.name());
        if by_wgmma.is_empty() {
            tracing::warn!(
                device,
                others,
                "--cuda-wgmma has no effect: none of the weights have a type that its kernels \
                 support"
            );
        } else {
            tracing::info!(
                device,
                by_wgmma,
                others,
                "prefill: wgmma for these weight types, mma.sync for experts and other types"
            );
        }
        Ok(())
    }

    /// That there is something to do for decode rows in BF16.
    fn check_bf16_decode(
        &self,
        (layout, weights): (&WeightLayout, &Weights),
        options: &ExecutableOptions,
    ) -> Result<(), Error> {
        if self.decode == QuantType::Int8 {
            return Ok(());
        }
        if options.arithmetic == Arithmetic::F32 {
            let reason = "--arithmetic f32 rules out BF16; use only one of the two";
            return Err(Error::Option { option: "cuda-bf16-decode", reason: reason.to_owned() });
        }
        if !layout.types(weights).any(kernels::takes_quantized) {
            tracing::warn!(
                device = self.name(),
                "--cuda-bf16-decode has no effect: no weights are quantized to integers"
            );
        }
        Ok(())
    }

    /// Loads a plan for a device alone, or for one with a place in a group of this many.
    fn load_rank(
        &self,
        plan: Plan,
        weights: &Weights,
        options: &ExecutableOptions,
        group: Option<(D::Rank, usize)>,
    ) -> Result<CudaExecutable<D>, Error> {
        let name = self.name();
        let layout = WeightLayout::new(&plan, weights);
        let reasons = support::refusals(&plan, weights, options);
        if !reasons.is_empty() {
            return Err(Error::Refused { backend: name, reasons });
        }
        self.check_wgmma((&layout, weights), options)?;
        self.check_bf16_decode((&layout, weights), options)?;
        let n_ranks = group.as_ref().map_or(1, |(_, n_ranks)| *n_ranks);
        let room = Room::new(&plan, weights, &layout, options, (n_ranks, self.choices()));
        let rank = group.map(|(rank, _)| rank);
        let kernels = (&self.kernels, self.wgmma.as_ref());
        CudaExecutable::new(kernels, &name, plan, (weights, layout), (room, rank), options)
            .map_err(|e| device_error(&name, &e))
    }

    /// The memory of one of `n_ranks` ranks.
    fn rank_memory(
        &self,
        plan: &Plan,
        weights: &Weights,
        options: &ExecutableOptions,
        n_ranks: usize,
    ) -> MemoryUse {
        let layout = WeightLayout::new(plan, weights);
        let room = Room::new(plan, weights, &layout, options, (n_ranks, self.choices()));
        let scratch = room.device_bytes().saturating_add(room.host_bytes());
        MemoryUse { weights: layout.n_bytes::<Store<D>>(weights), kv: room.kv_bytes(), scratch }
    }
}

fn device_name(device: &impl Device) -> String {
    format!("cuda ({})", device.name())
}

/// The shape of a layer's keys and values on the device.
fn kv_spec(layout: &KvLayout, n_pages: usize) -> KvSpec {
    let shape = layout.spec();
    KvSpec {
        ty: layout.ty(),
        n_kv_heads: shape.n_kv_heads,
        head_dim: shape.head_dim,
        page_len: PAGE_LEN,
        n_pages,
        values_are_keys: shape.values_are_keys,
    }
}

/// What attention computes in.
fn attention_arithmetic(arithmetic: Arithmetic) -> AttentionArithmetic {
    match arithmetic {
        Arithmetic::Auto => AttentionArithmetic::Tensor,
        Arithmetic::F32 => AttentionArithmetic::F32,
    }
}

/// Loads the kernels of attention for the keys and values of a plan: a driver may not load them while it captures.
fn prepare_attention<D: Device>(
    kernels: &Kernels<D>,
    options: &ExecutableOptions,
) -> Result<(), kernels::Error> {
    let stored = options.kv.iter().filter(|(layout, _)| layout.spec().n_layers > 0);
    let arithmetic = attention_arithmetic(options.arithmetic);
    stored
        .map(|(layout, n_pages)| kv_spec(layout, *n_pages))
        .try_for_each(|spec| kernels.prepare_attention(&spec, arithmetic))
}

/// What went wrong on `device`, in the terms of this crate.
fn device_error(device: &str, error: &kernels::Error) -> Error {
    let fault = match error {
        kernels::Error::OutOfMemory { .. } => DeviceFault::OutOfMemory,
        // A failed kernel takes the context of the card with it.
        kernels::Error::Driver { .. } => DeviceFault::Lost,
        _ => DeviceFault::Other,
    };
    let reason = match error {
        kernels::Error::OutOfMemory { what, n_bytes } => {
            format!(
                "the GPU is out of memory: {what} of {} cannot be allocated",
                ByteSize(*n_bytes as u64)
            )
        }
        error => error.to_string(),
    };
    Error::Device { device: device.to_owned(), fault, reason }
}

impl<D: Device> Backend for CudaBackend<D> {
    fn name(&self) -> String {
        device_name(&**self.kernels.device())
    }

    fn drafts(&self) -> bool {
        true
    }

    fn fusions(&self) -> Fusions {
        Fusions { parts: true, prologue: false, residual: true }
    }

    /// Of an H100, 256 rows leave half of what 1024 have: tiles of few rows are too few for its processors.
    fn step_rows(&self) -> usize {
        1024
    }

    fn memory(&self, plan: &Plan, weights: &Weights, options: &ExecutableOptions) -> MemoryUse {
        self.rank_memory(plan, weights, options, 1)
    }

    fn free_memory(&self) -> Option<FreeMemory> {
        let bytes = self.kernels.device().free_bytes().ok()?;
        // For kernels that are loaded later, captured steps, and other programs.
        Some(FreeMemory { bytes, reserve: bytes / 16, is_exact: true })
    }

    fn load(
        &self,
        plan: Plan,
        weights: Weights,
        options: &ExecutableOptions,
    ) -> Result<Box<dyn Executable>, Error> {
        let executable = self.load_rank(plan, &weights, options, None)?;
        // The device has its own copy now.
        drop(weights);
        Ok(Box::new(executable))
    }
}
