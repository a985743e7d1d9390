//! The CPU's backend, loaded in another way.

use std::fmt;

use realizar_runtime::BackendError;
use realizar_runtime::MemoryUse;
use realizar_runtime::backend::cpu::CpuBackend;
use realizar_runtime::backend::{Backend, Executable, ExecutableOptions};
use realizar_runtime::graph::Fusions;
use realizar_runtime::plan::Plan;
use realizar_runtime::weights::Weights;

/// Gives what the CPU has loaded to `then`, after `before`.
pub(crate) struct OtherLoad<B, T> {
    pub(crate) cpu: CpuBackend,
    pub(crate) before: B,
    pub(crate) then: T,
}

impl<B, T> fmt::Debug for OtherLoad<B, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtherLoad").field("cpu", &self.cpu).finish_non_exhaustive()
    }
}

impl<B, T> Backend for OtherLoad<B, T>
where
    B: Fn() + Send,
    T: Fn(Box<dyn Executable>) -> Box<dyn Executable> + Send,
{
    fn name(&self) -> String {
        self.cpu.name()
    }

    fn fusions(&self) -> Fusions {
        self.cpu.fusions()
    }

    fn memory(&self, plan: &Plan, weights: &Weights, options: &ExecutableOptions) -> MemoryUse {
        self.cpu.memory(plan, weights, options)
    }

    fn load(
        &self,
        plan: Plan,
        weights: Weights,
        options: &ExecutableOptions,
    ) -> Result<Box<dyn Executable>, BackendError> {
        (self.before)();
        self.cpu.load(plan, weights, options).map(&self.then)
    }
}
