//! The CPU backend: runs a plan's steps one after the other, each on all threads
//! of the team.

mod executable;
mod linear;
mod memory;
mod names;

use crate::Error;
use crate::backend::{Backend, Executable, ExecutableOptions};
use crate::graph::Fusions;
use crate::metrics::{DeviceKind, DispatchMetrics};
use crate::plan::Plan;
use crate::weights::Weights;
use executable::CpuExecutable;
use realizar_kernels_cpu::{Tier, default_threads};
use std::sync::Arc;

/// The processor of this machine.
#[derive(Debug, Clone, Copy)]
pub struct CpuBackend {
    n_threads: usize,
    tier: Tier,
}

impl CpuBackend {
    /// The processor, used with `n_threads` threads (as many as there are
    /// physical cores when `None`) and the instructions of `tier` (the best that
    /// was detected when `None`).
    ///
    /// # Errors
    /// If there are to be no threads or too many, or the processor lacks the tier.
    pub fn new(n_threads: Option<usize>, tier: Option<&str>) -> Result<Self, Error> {
        let n_threads = n_threads.unwrap_or_else(default_threads);
        if n_threads == 0 || n_threads > 1024 {
            let reason = format!("{n_threads} is not a number of threads from 1 to 1024");
            return Err(Error::Option { option: "threads", reason });
        }
        let tier = match tier {
            None => Tier::detect(),
            Some(name) => Tier::from_name(name).ok_or_else(|| {
                let available: Vec<_> = Tier::available().map(Tier::name).collect();
                let available = available.join(", ");
                let reason = format!("`{name}` is not one this machine has ({available})");
                Error::Option { option: "cpu-tier", reason }
            })?,
        };
        Ok(Self { n_threads, tier })
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

    fn fusions(&self) -> Fusions {
        Fusions::ALL
    }

    fn load(
        &self,
        plan: Plan,
        weights: Weights,
        options: &ExecutableOptions,
    ) -> Result<Box<dyn Executable>, Error> {
        let metrics = DispatchMetrics::new(self.name(), DeviceKind::Cpu);
        let (n_threads, tier) = (self.n_threads, self.tier);
        let executable =
            CpuExecutable::new(n_threads, tier, plan, weights, options, Arc::new(metrics))?;
        Ok(Box::new(executable))
    }
}
