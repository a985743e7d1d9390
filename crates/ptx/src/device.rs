//! The device: modules, memory, streams and launches, with the calls of a driver.

use crate::exec::counts::{Counter, Counts};
use crate::exec::grid::{Grid, launch};
use crate::exec::memory::Memory;
use crate::exec::state::Shape;
use crate::module::Module;
use crate::streams::{Streams, Work};
use crate::{Checks, Error, Event, Graph, ParamLayout, Rank, Statistics, Stream};

/// An address in device memory. Pointers into an allocation are valid addresses.
pub type Address = u64;

/// The maximum number of threads per block.
const MAX_THREADS: u64 = 1024;
/// The maximum block dimensions.
const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
/// The maximum grid dimensions.
const MAX_GRID: [u32; 3] = [i32::MAX as u32, 65535, 65535];
/// The maximum shared memory per block, that of a GPU of compute capability 9.0.
const MAX_SHARED: usize = 227 * 1024;

/// A loaded module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ModuleId(usize);

/// A kernel of a loaded module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Function {
    module: usize,
    program: usize,
}

/// Parameters and limits of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionInfo {
    /// Layout of the parameters in order.
    pub params: Vec<ParamLayout>,
    /// Bytes of static shared memory per block.
    pub shared_bytes: usize,
    /// The maximum number of threads per block.
    pub max_threads: u32,
}

/// A kernel launch.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// The kernel.
    pub function: Function,
    /// Grid dimensions in blocks.
    pub grid: [u32; 3],
    /// Block dimensions in threads.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory per block.
    pub dynamic_shared: usize,
    /// Whether the launch may start before the launch before it has ended (programmatic dependent launch). Every thread
    /// must then wait by `griddepcontrol.wait`. Accesses before the wait are checked: a thread may only read memory
    /// that no kernel has written.
    pub is_dependent: bool,
    /// The bytes of each argument in order, little endian.
    pub arguments: &'a [&'a [u8]],
}

/// An interpreted device.
///
/// After a fault, every call that runs work returns that fault, like a driver whose context is lost.
pub struct Device {
    memory: Memory,
    limit: usize,
    modules: Vec<Option<Module>>,
    streams: Streams,
    checks: Checks,
    statistics: Statistics,
    counts: Option<Vec<Counts>>,
    failed: Option<Error>,
}

impl Device {
    /// Creates a device with unlimited memory.
    pub fn new(checks: Checks) -> Self {
        Self::with_memory(checks, usize::MAX)
    }

    /// Creates a device on which at most `bytes` can be allocated.
    pub fn with_memory(checks: Checks, bytes: usize) -> Self {
        Self {
            memory: Memory::default(),
            limit: bytes,
            modules: Vec::new(),
            streams: Streams::default(),
            checks,
            statistics: Statistics::default(),
            counts: None,
            failed: None,
        }
    }

    /// Loads a module with all of its kernels. In large modules a kernel is decoded on first use, but unsupported
    /// opcodes, modifiers and types are reported here. Modules are parsed once per process, whatever the number of
    /// devices that load them.
    ///
    /// # Errors
    ///
    /// [`Error::Syntax`] or [`Error::Unsupported`], with the line.
    pub fn load(&mut self, ptx: &str) -> Result<ModuleId, Error> {
        let module = Module::load(ptx, &mut self.memory)?;
        self.modules.push(Some(module));
        Ok(ModuleId(self.modules.len() - 1))
    }

    /// Unloads a module and frees its variables.
    ///
    /// # Errors
    ///
    /// The fault of queued work, or [`Error::Memory`] if the module is not loaded.
    pub fn unload(&mut self, module: ModuleId) -> Result<(), Error> {
        self.synchronize_all()?;
        let gone = self.modules.get_mut(module.0).and_then(Option::take);
        let gone = gone.ok_or_else(|| Error::Memory("the module is not loaded".to_owned()))?;
        for (address, _) in gone.variables.values() {
            self.memory.free(*address).map_err(Error::Memory)?;
        }
        Ok(())
    }

    fn module(&self, module: usize) -> Result<&Module, Error> {
        let module = self.modules.get(module).and_then(Option::as_ref);
        module.ok_or_else(|| Error::Memory("the module is not loaded".to_owned()))
    }

    /// Looks up a kernel by name.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchKernel`].
    pub fn function(&self, module: ModuleId, name: &str) -> Result<Function, Error> {
        let found = self.module(module.0)?.image.names().position(|n| n == name);
        let program = found.ok_or_else(|| Error::NoSuchKernel(name.to_owned()))?;
        Ok(Function { module: module.0, program })
    }

    /// Names of a module's kernels, in the order of its text.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if the module is not loaded.
    pub fn function_names(&self, module: ModuleId) -> Result<Vec<&str>, Error> {
        Ok(self.module(module.0)?.image.names().collect())
    }

    /// Describes a kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if the module is not loaded, or as for [`load`](Self::load).
    pub fn info(&self, function: Function) -> Result<FunctionInfo, Error> {
        let program = self.module(function.module)?.image.program(function.program)?;
        let threads = program.threads.map(|(n, _)| n.iter().product());
        Ok(FunctionInfo {
            params: program.params.clone(),
            shared_bytes: program.shared_bytes,
            max_threads: threads.unwrap_or(MAX_THREADS as u32),
        })
    }

    /// Address and size of a module's variable in global or constant memory.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchVariable`].
    pub fn variable(&self, module: ModuleId, name: &str) -> Result<(Address, usize), Error> {
        let found = self.module(module.0)?.variables.get(name).copied();
        found.ok_or_else(|| Error::NoSuchVariable(name.to_owned()))
    }

    /// Allocates memory. Its content is undefined.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if the device has too little memory left.
    pub fn allocate(&mut self, bytes: usize) -> Result<Address, Error> {
        let left = self.limit.saturating_sub(self.memory.used());
        if bytes > left {
            return Err(Error::Memory(format!("{bytes} bytes wanted, {left} are left")));
        }
        Ok(self.memory.allocate(bytes))
    }

    /// Frees the allocation at `address` after all queued work.
    ///
    /// # Errors
    ///
    /// The fault of that work, or [`Error::Memory`] if no allocation begins there.
    pub fn free(&mut self, address: Address) -> Result<(), Error> {
        self.synchronize_all()?;
        self.memory.free(address).map_err(Error::Memory)
    }

    /// Number of allocated bytes.
    pub fn used(&self) -> usize {
        self.memory.used()
    }

    /// Creates a stream.
    pub fn stream(&mut self) -> Stream {
        self.streams.create()
    }

    /// Queues a copy from the host, whose bytes are read at once.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if the range is not inside one allocation.
    pub fn copy_to_device(
        &mut self,
        stream: Stream,
        to: Address,
        bytes: &[u8],
    ) -> Result<(), Error> {
        self.memory.slice(to, bytes.len()).map_err(Error::Memory)?;
        self.streams.push(stream, Work::Write { to, bytes: bytes.to_vec() })
    }

    /// Waits for a stream and copies to the host.
    ///
    /// # Errors
    ///
    /// The fault of the stream's work, or [`Error::Memory`] if the range is not inside one allocation.
    pub fn copy_to_host(
        &mut self,
        stream: Stream,
        to: &mut [u8],
        from: Address,
    ) -> Result<(), Error> {
        self.synchronize(stream)?;
        to.copy_from_slice(self.memory.slice(from, to.len()).map_err(Error::Memory)?);
        Ok(())
    }

    /// Queues a copy on the device. The ranges must not overlap.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if a range is not inside one allocation, or they overlap.
    pub fn copy(
        &mut self,
        stream: Stream,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<(), Error> {
        if to.abs_diff(from) < bytes as u64 {
            return Err(Error::Memory("the ranges of a copy overlap".to_owned()));
        }
        for at in [to, from] {
            self.memory.slice(at, bytes).map_err(Error::Memory)?;
        }
        self.streams.push(stream, Work::Copy { to, from, bytes })
    }

    /// Queues a fill of bytes with a value.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if the range is not inside one allocation.
    pub fn fill(
        &mut self,
        stream: Stream,
        to: Address,
        value: u8,
        bytes: usize,
    ) -> Result<(), Error> {
        self.memory.slice(to, bytes).map_err(Error::Memory)?;
        self.streams.push(stream, Work::Fill { to, value, bytes })
    }

    /// Queues an exchange of the device's group: `bytes` bytes of every rank are written to `to`, in the order of the
    /// ranks. It runs when all ranks run theirs, so each must be waited for by a thread of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if a range is not inside one allocation, or they overlap.
    pub fn all_gather(
        &mut self,
        stream: Stream,
        rank: &Rank,
        to: Address,
        from: Address,
        bytes: usize,
    ) -> Result<(), Error> {
        let gathered = bytes.saturating_mul(rank.n_ranks());
        if from < to.saturating_add(gathered as u64) && to < from.saturating_add(bytes as u64) {
            return Err(Error::Memory("the ranges of an exchange overlap".to_owned()));
        }
        for (at, bytes) in [(to, gathered), (from, bytes)] {
            self.memory.slice(at, bytes).map_err(Error::Memory)?;
        }
        self.streams.push(stream, Work::Gather { rank: rank.clone(), to, from, bytes })
    }

    /// Queues a launch.
    ///
    /// # Errors
    ///
    /// [`Error::Launch`] if sizes or arguments do not match the kernel.
    pub fn launch(&mut self, stream: Stream, launch: &Launch<'_>) -> Result<(), Error> {
        let Function { module, program } = launch.function;
        let params = self.params(launch)?;
        let work = Work::Launch {
            module,
            program,
            grid: launch.grid,
            block: launch.block,
            dynamic_shared: launch.dynamic_shared,
            is_dependent: launch.is_dependent,
            params,
        };
        self.streams.push(stream, work)
    }

    /// The parameter memory of the kernel, after all sizes were checked.
    fn params(&self, launch: &Launch<'_>) -> Result<Vec<u8>, Error> {
        let image = &self.module(launch.function.module)?.image;
        let program = image.program(launch.function.program)?;
        let wrong = |message: String| Err(Error::Launch { kernel: program.name.clone(), message });
        let (grid, block) = (launch.grid, launch.block);
        let threads: u64 = block.iter().map(|&n| u64::from(n)).product();
        for (size, most) in [(grid, MAX_GRID), (block, MAX_BLOCK)] {
            if size.iter().zip(most).any(|(&n, most)| n == 0 || n > most) {
                return wrong(format!("a grid of {grid:?} blocks of {block:?} threads"));
            }
        }
        if threads > MAX_THREADS {
            return wrong(format!(
                "{threads} threads in a block, at most {MAX_THREADS} are allowed"
            ));
        }
        match program.threads {
            Some((wanted, true)) if wanted != block => {
                return wrong(format!("blocks of {block:?} threads where it requires {wanted:?}"));
            }
            Some((most, false)) if threads > most.iter().map(|&n| u64::from(n)).product() => {
                return wrong(format!("{threads} threads in a block, made for at most {most:?}"));
            }
            _ => {}
        }
        let shared = program.shared_bytes + launch.dynamic_shared;
        if shared > MAX_SHARED {
            return wrong(format!(
                "{shared} bytes of shared memory, at most {MAX_SHARED} are allowed"
            ));
        }
        if launch.arguments.len() != program.params.len() {
            let (found, wanted) = (launch.arguments.len(), program.params.len());
            return wrong(format!("{found} arguments where {wanted} are expected"));
        }
        let mut params = vec![0; program.param_bytes];
        for (i, (argument, param)) in launch.arguments.iter().zip(&program.params).enumerate() {
            if argument.len() != param.bytes {
                let (found, wanted) = (argument.len(), param.bytes);
                return wrong(format!(
                    "argument {i} has {found} bytes where {wanted} are expected"
                ));
            }
            params[param.offset..param.offset + param.bytes].copy_from_slice(argument);
        }
        Ok(params)
    }

    /// Records an event after all work queued in a stream.
    ///
    /// # Errors
    ///
    /// [`Error::Stream`] if the stream is being captured.
    pub fn record(&mut self, stream: Stream) -> Result<Event, Error> {
        self.streams.record(stream)
    }

    /// The number of warp instructions that the device had run when an event was passed.
    ///
    /// # Errors
    ///
    /// [`Error::Stream`] if it has not been passed.
    pub fn instructions_at(&self, event: Event) -> Result<u64, Error> {
        self.streams.instructions_at(event)
    }

    /// Makes a stream wait until another stream has passed an event.
    ///
    /// # Errors
    ///
    /// [`Error::Stream`] if the stream is being captured.
    pub fn wait(&mut self, stream: Stream, event: Event) -> Result<(), Error> {
        self.streams.wait(stream, event)
    }

    /// Starts capturing a stream: work that is queued from now on is recorded instead of run.
    ///
    /// # Errors
    ///
    /// [`Error::Stream`] if it is being captured already.
    pub fn begin_capture(&mut self, stream: Stream) -> Result<(), Error> {
        self.streams.begin_capture(stream)
    }

    /// Ends a capture.
    ///
    /// # Errors
    ///
    /// [`Error::Stream`] if the stream is not being captured.
    pub fn end_capture(&mut self, stream: Stream) -> Result<Graph, Error> {
        self.streams.end_capture(stream)
    }

    /// Queues a captured graph.
    ///
    /// # Errors
    ///
    /// [`Error::Stream`] for a stream of another device.
    pub fn launch_graph(&mut self, stream: Stream, graph: &Graph) -> Result<(), Error> {
        for work in &graph.0 {
            self.streams.push(stream, work.clone())?;
        }
        Ok(())
    }

    /// Runs the work queued in a stream, and all work that it depends on.
    ///
    /// # Errors
    ///
    /// The first fault; [`Error::Stream`] if the stream is being captured.
    pub fn synchronize(&mut self, stream: Stream) -> Result<(), Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.streams.check_not_captured(stream)?;
        let result = self.drain(stream);
        self.failed = result.as_ref().err().cloned();
        result
    }

    /// Runs the work queued in all streams.
    ///
    /// # Errors
    ///
    /// As [`synchronize`](Self::synchronize).
    pub fn synchronize_all(&mut self) -> Result<(), Error> {
        for stream in self.streams.all() {
            self.synchronize(stream)?;
        }
        Ok(())
    }

    fn drain(&mut self, stream: Stream) -> Result<(), Error> {
        let mut work = self.streams.take(stream).into_iter();
        while let Some(next) = work.next() {
            if let Work::Wait(event) = next {
                if let Some(other) = self.streams.behind(event) {
                    // Another stream may wait for an event of this one that has already run.
                    self.streams.put_back(stream, work.collect());
                    self.drain(other)?;
                    work = self.streams.take(stream).into_iter();
                }
                continue;
            }
            self.run(next)?;
        }
        Ok(())
    }

    fn run(&mut self, work: Work) -> Result<(), Error> {
        match work {
            Work::Launch { module, program, grid, block, dynamic_shared, is_dependent, params } => {
                let loaded = self.modules.get(module).and_then(Option::as_ref);
                let loaded =
                    loaded.ok_or_else(|| Error::Memory("the module is not loaded".to_owned()))?;
                let program = loaded.image.program(program)?;
                let shared_bytes = program.shared_bytes + dynamic_shared;
                let shape = Shape { grid, block, dynamic_shared, shared_bytes };
                let number = self.statistics.launches + 1;
                let threads = grid.iter().chain(&block).map(|&n| u64::from(n)).product();
                let is_counted = self.counts.is_some();
                let mut counter = is_counted.then(|| Counter::new(&program.name, threads));
                let variables = &loaded.addresses;
                let params = &params;
                let grid = Grid { program, variables, params, shape, number, is_dependent };
                let ran = launch(&grid, &mut self.memory, &self.checks, counter.as_mut());
                let ran = ran.map_err(|mut fault| {
                    loaded.image.line(fault.line).clone_into(&mut fault.text);
                    Error::Fault(fault)
                })?;
                if let (Some(counts), Some(counter)) = (&mut self.counts, counter) {
                    counts.push(counter.done());
                }
                self.statistics.launches += ran.launches;
                self.statistics.instructions += ran.instructions;
                self.statistics.thread_instructions += ran.thread_instructions;
            }
            Work::Write { to, bytes } => {
                let place = self.memory.slice(to, bytes.len()).map_err(Error::Memory)?;
                place.copy_from_slice(&bytes);
            }
            Work::Copy { to, from, bytes } => {
                let data = self.memory.slice(from, bytes).map_err(Error::Memory)?.to_vec();
                self.memory.slice(to, bytes).map_err(Error::Memory)?.copy_from_slice(&data);
            }
            Work::Fill { to, value, bytes } => {
                self.memory.slice(to, bytes).map_err(Error::Memory)?.fill(value);
            }
            Work::Gather { rank, to, from, bytes } => {
                let own = self.memory.slice(from, bytes).map_err(Error::Memory)?.to_vec();
                let all = rank.exchange(own)?;
                self.memory.slice(to, all.len()).map_err(Error::Memory)?.copy_from_slice(&all);
            }
            Work::Record(event) => self.streams.passed(event, self.statistics.instructions),
            Work::Wait(_) => {}
        }
        Ok(())
    }

    /// Starts counting what each launch does, and discards earlier counts.
    pub fn start_counting(&mut self) {
        self.counts = Some(Vec::new());
    }

    /// Stops counting and returns the counts of each launch, in the order in which they ran.
    pub fn take_counts(&mut self) -> Vec<Counts> {
        self.counts.take().unwrap_or_default()
    }

    /// Statistics of all work so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }
}
