//! The seam between plans and devices: the traits of a backend and of a plan that it loaded.
//!
//! No operation appears in them, so a backend may run steps one at a time, record them into a command buffer or capture
//! them as a graph.

use crate::metrics::DispatchMetrics;
use crate::{Arithmetic, AsyncExecutable, Batch, Error, FreeMemory, MemoryUse, PackedFiles};
use realizar_formats::FileWatch;
use realizar_kvcache::{KvLayout, PageCopy, PageId, StateId};
use realizar_model::graph::Fusions;
use realizar_model::graph::plan::Plan;
use realizar_model::graph::weights::Weights;
use std::fmt;
use std::sync::Arc;

/// What an executable is made for.
#[derive(Debug, Clone)]
pub struct ExecutableOptions {
    /// The arithmetic of matrix products.
    pub arithmetic: Arithmetic,
    /// Of each key-value group, its layout and its number of pages.
    pub kv: Vec<(KvLayout, usize)>,
    /// Recurrent states that there is room for; 0 for models without.
    pub n_states: usize,
    /// The maximum number of positions of a sequence.
    pub max_seq_len: usize,
    /// Whether to time each operation on a device that it slows down. One that
    /// times them at next to no cost always does.
    pub profile: bool,
    /// Whether rows of output are logits.
    pub logits: bool,
    /// Files that may hold packed weights, for backends that pack them.
    pub packed_files: Option<PackedFiles>,
}

/// A device.
pub trait Backend: fmt::Debug + Send {
    /// Its name, as people choose it.
    fn name(&self) -> String;

    /// The fusions that it runs.
    fn fusions(&self) -> Fusions;

    /// The memory that [`Self::load`] would take for these.
    fn memory(&self, plan: &Plan, weights: &Weights, options: &ExecutableOptions) -> MemoryUse;

    /// The rows of a step that prompts are best cut into: as many as keep the device busy.
    fn step_rows(&self) -> usize {
        256
    }

    /// Whether it runs the [drafting part](realizar_model::graph::DraftPart) of a plan.
    fn drafts(&self) -> bool {
        false
    }

    /// The devices that divide every layer among them: one, unless it is a group of several.
    fn n_ranks(&self) -> usize {
        1
    }

    /// The memory that [`Self::load_ranks`] would take for these, of each rank.
    fn memory_of_ranks(
        &self,
        plan: &Plan,
        weights: &[Weights], // [n_ranks]
        options: &ExecutableOptions,
    ) -> Vec<MemoryUse> {
        weights.iter().map(|weights| self.memory(plan, weights, options)).collect()
    }

    /// The memory that is free on the device, where that is known.
    fn free_memory(&self) -> Option<FreeMemory> {
        None
    }

    /// Makes a plan runnable: takes the weights, allocates arena and pages.
    ///
    /// # Errors
    /// If the device cannot run the plan, or has too little memory.
    fn load(
        &self,
        plan: Plan,
        weights: Weights,
        options: &ExecutableOptions,
    ) -> Result<Box<dyn Executable>, Error>;

    /// As [`Self::load`], with the weights of every rank.
    ///
    /// # Errors
    /// As of [`Self::load`].
    ///
    /// # Panics
    /// If there are not as many weights as ranks.
    fn load_ranks(
        &self,
        plan: Plan,
        mut weights: Vec<Weights>, // [n_ranks]
        options: &ExecutableOptions,
    ) -> Result<Box<dyn Executable>, Error> {
        assert_eq!((weights.len(), self.n_ranks()), (1, 1), "weights of one device");
        self.load(plan, weights.remove(0), options)
    }
}

/// A loaded plan with its key-value memory.
pub trait Executable: fmt::Debug + Send {
    /// Runs the plan for `batch` on `input`, `[n_rows, width of the plan's input]`
    /// and empty when the plan has none: stores the batch's keys and values, and
    /// returns the rows of the plan's output. These are the logits of the rows
    /// that want an output, `[batch.outputs.len(), vocab_size]`, their hidden states,
    /// `[batch.outputs.len(), dim]`, or the hidden states of all rows, `[n_rows, dim]`.
    ///
    /// A batch that [drafts](Batch::drafts) runs the plan's drafting part instead, on an input of
    /// `[n_rows, dim]`, and gives logits.
    ///
    /// # Errors
    /// If the device fails.
    fn run(&mut self, batch: &Batch, input: &[f32]) -> Result<&[f32], Error>;

    /// After a step, the hidden states of its output rows, which drafting continues from or which are embeddings:
    /// `[batch.outputs.len(), dim]`. Empty where the plan [keeps none](Plan::hidden_of), and where no output was wanted.
    fn hidden(&self) -> &[f32] {
        &[]
    }

    /// What collects a step that was launched; `None` if the host itself runs the steps.
    fn as_async(&mut self) -> Option<&mut dyn AsyncExecutable> {
        None
    }

    /// Begins to run the plan for `batch` on `input`, as [`Self::run`] does, and does not wait.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If [`Self::as_async`] gives nothing.
    fn launch(&mut self, _batch: &Batch, _input: &[f32]) -> Result<(), Error> {
        panic!("the host runs the steps of {self:?}");
    }

    /// Copies the contents of pages, in the order of `copies`, before the next step.
    ///
    /// # Errors
    /// If the device fails.
    fn copy_pages(&mut self, copies: &[PageCopy]) -> Result<(), Error>;

    /// Bytes of a page of a group, of all layers on all its devices.
    fn page_bytes(&self, group: usize) -> usize;

    /// Appends the contents of a page to `out`, [`Self::page_bytes`] in an order of its own.
    ///
    /// # Errors
    /// If the device fails.
    fn read_page(&mut self, group: usize, page: PageId, out: &mut Vec<u8>) -> Result<(), Error>;

    /// Fills a page with what [`Self::read_page`] gave.
    ///
    /// # Errors
    /// If the device fails.
    fn write_page(&mut self, group: usize, page: PageId, bytes: &[u8]) -> Result<(), Error>;

    /// Bytes of a recurrent state, of all layers on all its devices.
    fn state_bytes(&self) -> usize;

    /// Appends a recurrent state to `out`, [`Self::state_bytes`] in an order of its own.
    ///
    /// # Errors
    /// If the device fails.
    fn read_state(&mut self, state: StateId, out: &mut Vec<u8>) -> Result<(), Error>;

    /// Fills a recurrent state with what [`Self::read_state`] gave.
    ///
    /// # Errors
    /// If the device fails.
    fn write_state(&mut self, state: StateId, bytes: &[u8]) -> Result<(), Error>;

    /// Bytes of host memory that loading allocated, for devices with a memory of their own. Together with the device's
    /// allocations they are what [`Backend::memory`] computes.
    fn host_bytes(&self) -> usize {
        0
    }

    /// The mapped files that it reads from while it runs, each once.
    fn files(&self) -> Vec<FileWatch>;

    /// The counters of its devices: one, or one of each when it runs on several.
    fn metrics(&self) -> Vec<Arc<DispatchMetrics>>;
}
