//! The CPU backend: runs a plan's steps one after the other, each on all threads
//! of the team, and always times them: reading the clock costs next to nothing.

mod executable;
mod experts;
mod finite;
mod free;
mod linear;
mod memory;
mod names;
mod packed;
mod phases;
mod recurrent;

use crate::Error;
use crate::metrics::{DeviceKind, DispatchMetrics};
use crate::{Arithmetic, Backend, Executable, ExecutableOptions};
use crate::{FreeMemory, MemoryUse};
use executable::CpuExecutable;
use realizar_kernels_cpu::{PackedArithmetic, Team, Tier, default_threads};
use realizar_kvcache::KvLayout;
use realizar_model::graph::Fusions;
use realizar_model::graph::plan::Plan;
use realizar_model::graph::weights::{WeightData, Weights};
use std::sync::Arc;

pub use realizar_kernels_cpu::Affinity;

/// The processor of this machine.
#[derive(Debug, Clone, Copy)]
pub struct CpuBackend {
    n_threads: usize,
    tier: Tier,
    affinity: Affinity,
}

impl CpuBackend {
    /// The processor, used with `n_threads` threads (as many as there are
    /// physical cores when `None`) and the instructions of `tier` (the best that
    /// was detected when `None`).
    ///
    /// # Errors
    /// If there are no threads or too many, or the processor does not support the tier.
    pub fn new(n_threads: Option<usize>, tier: Option<&str>) -> Result<Self, Error> {
        let n_threads = n_threads.unwrap_or_else(default_threads);
        if n_threads == 0 || n_threads > 1024 {
            let reason = format!("must be from 1 to 1024, not {n_threads}");
            return Err(Error::Option { option: "threads", reason });
        }
        let tier = match tier {
            None => Tier::detect(),
            Some(name) => Tier::from_name(name).ok_or_else(|| {
                let available: Vec<_> = Tier::selectable().map(Tier::name).collect();
                let available = available.join(", ");
                let reason =
                    format!("`{name}` is not available on this machine (available: {available})");
                Error::Option { option: "cpu-tier", reason }
            })?,
        };
        Ok(Self { n_threads, tier, affinity: Affinity::None })
    }

    /// The same with threads that stay where `affinity` says.
    pub fn with_affinity(self, affinity: Affinity) -> Self {
        Self { affinity, ..self }
    }

    /// The threads that it uses.
    pub fn n_threads(&self) -> usize {
        self.n_threads
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> String {
        format!("cpu ({})", self.tier.name())
    }

    /// With tiles, weights are widened once for each step, which costs as much as the products of some hundred rows.
    fn step_rows(&self) -> usize {
        match self.tier.prompt_arithmetic() {
            PackedArithmetic::Bf16 => 512,
            PackedArithmetic::Int8 => 256,
        }
    }

    fn drafts(&self) -> bool {
        true
    }

    fn fusions(&self) -> Fusions {
        Fusions::ALL
    }

    fn memory(&self, plan: &Plan, weights: &Weights, options: &ExecutableOptions) -> MemoryUse {
        let weights_of_files = weights;
        let weights = match options.arithmetic {
            Arithmetic::Auto => packed::n_bytes(plan, weights),
            Arithmetic::F32 => weights.0.iter().map(WeightData::n_bytes).sum(),
        };
        let pool =
            |(layout, n_pages): &(KvLayout, usize)| layout.page_bytes().saturating_mul(*n_pages);
        let scratch = plan.arena_len.saturating_mul(size_of::<f32>());
        let linear_scratch = linear::scratch_bytes(plan, options.arithmetic, self.tier);
        let expert_scratch =
            experts::scratch_bytes(plan, weights_of_files, options.arithmetic, self.tier);
        MemoryUse {
            weights,
            kv: options
                .kv
                .iter()
                .map(pool)
                .fold(recurrent::n_bytes(plan, options), usize::saturating_add),
            scratch: scratch.saturating_add(linear_scratch).saturating_add(expert_scratch),
        }
    }

    fn free_memory(&self) -> Option<FreeMemory> {
        // Pages of files can be dropped, so what is free is not a limit.
        let bytes = free::available_bytes()?;
        Some(FreeMemory { bytes, reserve: bytes / 4, is_exact: false })
    }

    fn load(
        &self,
        plan: Plan,
        weights: Weights,
        options: &ExecutableOptions,
    ) -> Result<Box<dyn Executable>, Error> {
        let metrics = DispatchMetrics::new(self.name(), DeviceKind::Cpu);
        let team = Team::with_affinity(self.n_threads, self.affinity);
        let executable =
            CpuExecutable::new(team, self.tier, plan, weights, options, Arc::new(metrics))?;
        Ok(Box::new(executable))
    }
}
