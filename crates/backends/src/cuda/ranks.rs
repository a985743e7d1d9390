//! Several cards that divide every layer among them: each is a rank, which runs the same plan over its own part of the
//! weights.
//!
//! The first rank runs in the caller's thread, and its output is that of all. Each of the others has a thread, which
//! gets a copy of the batch and waits for its card. Within a step the ranks wait for one another in the exchanges of
//! the plan alone. Pages and states are those of all ranks, one after the other.

use super::executable::CudaExecutable;
use super::{CudaBackend, CudaOptions};
use crate::DeviceFault;
use crate::Error;
use crate::metrics::DispatchMetrics;
use crate::{
    AsyncExecutable, Backend, Batch, Executable, ExecutableOptions, FreeMemory, MemoryUse,
    SampleLimits, SampleRequests, Shortlist,
};
use realizar_base::{ByteSize, panics};
use realizar_formats::FileWatch;
use realizar_kernels_cuda::{Device, Driver};
use realizar_kvcache::{PageCopy, PageId, StateId};
use realizar_model::graph::Fusions;
use realizar_model::graph::plan::Plan;
use realizar_model::graph::weights::Weights;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;

/// Cards among which the layers of a model are divided.
#[derive(Debug)]
pub struct CudaRanks<D: Device> {
    ranks: Vec<CudaBackend<D>>,
}

impl CudaRanks<Driver> {
    /// Opens the cards of these indices, in the order of their ranks.
    ///
    /// # Errors
    /// As of [`CudaBackend::open`].
    pub fn open(cards: &[usize], options: CudaOptions) -> Result<Self, Error> {
        let ranks = cards.iter().map(|&card| CudaBackend::open(Some(card), options));
        Ok(Self { ranks: ranks.collect::<Result<_, _>>()? })
    }
}

impl<D: Device> CudaRanks<D> {
    /// Ranks on devices that are open.
    ///
    /// # Errors
    /// If a device does not take the kernels.
    pub fn new(devices: Vec<D>) -> Result<Self, Error> {
        let ranks = devices.into_iter().map(CudaBackend::new);
        Ok(Self { ranks: ranks.collect::<Result<_, _>>()? })
    }

    /// As [`CudaBackend::with_wgmma`].
    ///
    /// # Errors
    /// If a device does not take these kernels.
    pub fn with_wgmma(self) -> Result<Self, Error> {
        let ranks = self.ranks.into_iter().map(CudaBackend::with_wgmma);
        Ok(Self { ranks: ranks.collect::<Result<_, _>>()? })
    }

    /// As [`CudaBackend::with_bf16_decode`].
    #[must_use]
    pub fn with_bf16_decode(self) -> Self {
        Self { ranks: self.ranks.into_iter().map(CudaBackend::with_bf16_decode).collect() }
    }

    /// What a rank is made for: its output is read in the first one alone.
    fn options_of(rank: usize, options: &ExecutableOptions) -> ExecutableOptions {
        ExecutableOptions { logits: options.logits && rank == 0, ..options.clone() }
    }
}

impl<D: Device> Backend for CudaRanks<D> {
    fn name(&self) -> String {
        let names: Vec<String> = self.ranks.iter().map(Backend::name).collect();
        match names.iter().all(|name| *name == names[0]) {
            true => format!("{} x {}", names[0], names.len()),
            false => names.join(" x "),
        }
    }

    fn fusions(&self) -> Fusions {
        self.ranks[0].fusions()
    }

    fn n_ranks(&self) -> usize {
        self.ranks.len()
    }

    /// That of the first rank.
    fn memory(&self, plan: &Plan, weights: &Weights, options: &ExecutableOptions) -> MemoryUse {
        self.ranks[0].memory(plan, weights, options)
    }

    fn memory_of_ranks(
        &self,
        plan: &Plan,
        weights: &[Weights],
        options: &ExecutableOptions,
    ) -> Vec<MemoryUse> {
        let of_rank = |(rank, (backend, weights)): (usize, (&CudaBackend<D>, &Weights))| {
            let options = Self::options_of(rank, options);
            backend.rank_memory(plan, weights, &options, self.ranks.len())
        };
        self.ranks.iter().zip(weights).enumerate().map(of_rank).collect()
    }

    /// That of the rank which has the least.
    fn free_memory(&self) -> Option<FreeMemory> {
        let of_ranks = self.ranks.iter().map(Backend::free_memory);
        of_ranks.collect::<Option<Vec<_>>>()?.into_iter().min_by_key(|free| free.bytes)
    }

    fn load(
        &self,
        _: Plan,
        _: Weights,
        _: &ExecutableOptions,
    ) -> Result<Box<dyn Executable>, Error> {
        let reasons = vec!["several devices take the weights of each of them".to_owned()];
        Err(Error::Refused { backend: self.name(), reasons })
    }

    fn load_ranks(
        &self,
        plan: Plan,
        weights: Vec<Weights>,
        options: &ExecutableOptions,
    ) -> Result<Box<dyn Executable>, Error> {
        let n_ranks = self.ranks.len();
        assert_eq!(weights.len(), n_ranks, "weights of every rank");
        for (rank, memory) in self.memory_of_ranks(&plan, &weights, options).iter().enumerate() {
            let [of_weights, kv, scratch] = [memory.weights, memory.kv, memory.scratch]
                .map(|n_bytes| ByteSize(n_bytes as u64).to_string());
            let device = self.ranks[rank].name();
            tracing::info!(rank, device, weights = of_weights, kv, scratch, "memory of a rank");
        }
        let devices: Vec<Arc<D>> =
            self.ranks.iter().map(|backend| Arc::clone(backend.kernels.device())).collect();
        let group = D::group(&devices).map_err(|e| super::device_error(&self.name(), &e))?;
        let mut executables = Vec::with_capacity(n_ranks);
        for (rank, ((backend, weights), place)) in
            self.ranks.iter().zip(weights).zip(group).enumerate()
        {
            let options = Self::options_of(rank, options);
            let group = Some((place, n_ranks));
            executables.push(backend.load_rank(plan.clone(), &weights, &options, group)?);
        }
        Ok(Box::new(Ranks::new(executables)))
    }
}

/// A step, as the threads of the ranks see it.
#[derive(Debug, Default)]
struct Step {
    batch: Batch,
    input: Vec<f32>,
}

/// How far the threads of the ranks are.
#[derive(Debug, Default)]
struct State {
    /// Steps that were begun.
    n_steps: u64,
    /// Ranks that have not finished the last one.
    n_running: usize,
    /// What happened first; nothing runs after it.
    failed: Option<Failure>,
    is_over: bool,
}

/// Why a rank does not continue.
#[derive(Debug, Clone)]
struct Failure {
    device: String,
    fault: DeviceFault,
    reason: String,
}

impl Failure {
    fn of(error: Error) -> Self {
        match error {
            Error::Device { device, fault, reason } => Self { device, fault, reason },
            other => Self {
                device: "a rank".to_owned(),
                fault: DeviceFault::Other,
                reason: other.to_string(),
            },
        }
    }

    fn error(&self) -> Error {
        let Self { device, fault, reason } = self.clone();
        Error::Device { device, fault, reason }
    }
}

#[derive(Debug, Default)]
struct Shared {
    step: RwLock<Step>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_while(&self, is_early: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let state = self.changed.wait_while(self.state(), |state| is_early(state));
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

/// A rank whose thread runs its steps; others use it between them.
type Locked<D> = Arc<Mutex<CudaExecutable<D>>>;

fn lock<D: Device>(rank: &Mutex<CudaExecutable<D>>) -> MutexGuard<'_, CudaExecutable<D>> {
    rank.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The steps of a rank, until all is over.
fn follow<D: Device>(shared: &Shared, rank: &Mutex<CudaExecutable<D>>) {
    let mut seen = 0;
    loop {
        let state = shared.wait_while(|state| state.n_steps == seen && !state.is_over);
        if state.is_over {
            return;
        }
        seen = state.n_steps;
        drop(state);
        let ran = {
            let step = shared.step.read().unwrap_or_else(PoisonError::into_inner);
            let mut rank = lock(rank);
            let Step { batch, input } = &*step;
            let ran = panics::caught(|| rank.follow(batch, input));
            ran.unwrap_or_else(|panic| Err(rank.failed(format!("a defect: {panic}"))))
        };
        let mut state = shared.state();
        if let Err(error) = ran {
            tracing::error!("a rank has failed: {error}");
            state.failed.get_or_insert_with(|| Failure::of(error));
            drop(state);
            // Recorded first, so that whatever notices the others' end finds its cause.
            lock(rank).abort();
            state = shared.state();
        }
        state.n_running -= 1;
        drop(state);
        shared.changed.notify_all();
    }
}

/// A loaded plan on all ranks.
#[derive(Debug)]
struct Ranks<D: Device> {
    first: CudaExecutable<D>,
    others: Vec<Locked<D>>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl<D: Device> Ranks<D> {
    fn new(mut executables: Vec<CudaExecutable<D>>) -> Self {
        let first = executables.remove(0);
        let shared = Arc::new(Shared::default());
        let others: Vec<Locked<D>> =
            executables.into_iter().map(|rank| Arc::new(Mutex::new(rank))).collect();
        let thread = |rank: &Locked<D>| {
            let (shared, rank) = (Arc::clone(&shared), Arc::clone(rank));
            std::thread::spawn(move || follow(&shared, &rank))
        };
        let threads = others.iter().map(thread).collect();
        Self { first, others, shared, threads }
    }

    /// Waits until no rank runs a step.
    fn settle(&mut self) -> Result<(), Error> {
        if self.shared.state().n_running > 0 {
            // The others may wait for what the first one has queued.
            let waited = self.first.wait();
            self.of_all(waited)?;
        }
        let state = self.shared.wait_while(|state| state.n_running > 0);
        state.failed.as_ref().map_or(Ok(()), |failed| Err(failed.error()))
    }

    /// What became of the first rank's work: where it failed, what had failed first.
    fn of_all<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        let failure = match result {
            Ok(done) => return Ok(done),
            Err(error) => Failure::of(error),
        };
        let mut state = self.shared.state();
        let error = state.failed.get_or_insert(failure).error();
        drop(state);
        self.first.abort();
        drop(self.shared.wait_while(|state| state.n_running > 0));
        Err(error)
    }

    /// Lets the other ranks begin a step.
    fn begin(&mut self, batch: &Batch, input: &[f32]) -> Result<(), Error> {
        self.settle()?;
        let mut step = self.shared.step.write().unwrap_or_else(PoisonError::into_inner);
        step.batch.copy_from(batch);
        step.input.clear();
        step.input.extend_from_slice(input);
        drop(step);
        let mut state = self.shared.state();
        state.n_steps += 1;
        state.n_running = self.others.len();
        drop(state);
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Does the same on every rank, in their order, while no step runs.
    fn each(
        &mut self,
        mut work: impl FnMut(&mut CudaExecutable<D>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.settle()?;
        work(&mut self.first)?;
        self.others.iter().try_for_each(|rank| work(&mut lock(rank)))
    }

    fn sum(&self, of: impl Fn(&CudaExecutable<D>) -> usize) -> usize {
        of(&self.first) + self.others.iter().map(|rank| of(&lock(rank))).sum::<usize>()
    }
}

impl<D: Device> Drop for Ranks<D> {
    fn drop(&mut self) {
        // A step that nothing has waited for ends or fails; either is fine.
        let _ = self.settle();
        self.shared.state().is_over = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl<D: Device> AsyncExecutable for Ranks<D> {
    fn sample_limits(&self) -> SampleLimits {
        self.first.sample_limits()
    }

    fn collect(&mut self, batch: &Batch, wants: &SampleRequests) -> Result<(), Error> {
        let collected = self.first.collect(batch, wants);
        self.of_all(collected)
    }

    fn rows(&self) -> &[f32] {
        self.first.rows()
    }

    fn shortlist(&self, idx: usize) -> Shortlist<'_> {
        self.first.shortlist(idx)
    }

    fn logprobs(&self, idx: usize) -> Shortlist<'_> {
        self.first.logprobs(idx)
    }

    fn read_row(&mut self, wants: &SampleRequests, row: usize) -> Result<&[f32], Error> {
        self.first.read_row(wants, row)
    }
}

impl<D: Device> Executable for Ranks<D> {
    fn run(&mut self, batch: &Batch, input: &[f32]) -> Result<&[f32], Error> {
        self.begin(batch, input)?;
        let ran = self.first.run(batch, input).map(|_| ());
        self.of_all(ran)?;
        Ok(self.first.rows())
    }

    fn as_async(&mut self) -> Option<&mut dyn AsyncExecutable> {
        if self.first.as_async().is_some() { Some(self) } else { None }
    }

    fn launch(&mut self, batch: &Batch, input: &[f32]) -> Result<(), Error> {
        self.begin(batch, input)?;
        let launched = self.first.launch(batch, input);
        self.of_all(launched)
    }

    fn copy_pages(&mut self, copies: &[PageCopy]) -> Result<(), Error> {
        self.each(|rank| rank.copy_pages(copies))
    }

    fn page_bytes(&self, group: usize) -> usize {
        self.sum(|rank| rank.page_bytes(group))
    }

    fn read_page(&mut self, group: usize, page: PageId, out: &mut Vec<u8>) -> Result<(), Error> {
        self.each(|rank| rank.read_page(group, page, out))
    }

    fn write_page(&mut self, group: usize, page: PageId, mut bytes: &[u8]) -> Result<(), Error> {
        self.each(|rank| {
            let (own, rest) = bytes.split_at(rank.page_bytes(group));
            bytes = rest;
            rank.write_page(group, page, own)
        })
    }

    fn state_bytes(&self) -> usize {
        self.sum(CudaExecutable::state_bytes)
    }

    fn read_state(&mut self, state: StateId, out: &mut Vec<u8>) -> Result<(), Error> {
        self.each(|rank| rank.read_state(state, out))
    }

    fn write_state(&mut self, state: StateId, mut bytes: &[u8]) -> Result<(), Error> {
        self.each(|rank| {
            let (own, rest) = bytes.split_at(rank.state_bytes());
            bytes = rest;
            rank.write_state(state, own)
        })
    }

    fn files(&self) -> Vec<FileWatch> {
        Vec::new() // everything is on the devices
    }

    fn metrics(&self) -> Vec<Arc<DispatchMetrics>> {
        let mut all = self.first.metrics();
        all.extend(self.others.iter().flat_map(|rank| lock(rank).metrics()));
        all
    }
}
