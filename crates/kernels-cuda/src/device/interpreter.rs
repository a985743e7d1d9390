//! The PTX interpreter as a [`Device`], which runs the kernels without a GPU.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use realizar_ptx as ptx;

use super::{Address, Argument, Device, Launch};
use crate::Error;

/// An interpreted device. It checks every access and is thousands of times slower than a GPU.
pub struct Interpreter {
    device: Mutex<ptx::Device>,
    n_bytes: usize,
    n_multiprocessors: usize,
    launches_early: bool,
}

/// Multiprocessors of an interpreted device, unless a test wants others: a shape has the same kernels on every machine. 108
/// blocks, one for each multiprocessor of an A100, are enough for as many.
const N_MULTIPROCESSORS: usize = 120;

impl fmt::Debug for Interpreter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Interpreter")
    }
}

impl Interpreter {
    /// Creates a device with `n_bytes` of memory and the given checks.
    pub fn new(checks: ptx::Checks, n_bytes: usize) -> Self {
        let device = Mutex::new(ptx::Device::with_memory(checks, n_bytes));
        Self { device, n_bytes, n_multiprocessors: N_MULTIPROCESSORS, launches_early: false }
    }

    /// The same with another number of multiprocessors, by which kernels are chosen.
    #[must_use]
    pub fn with_multiprocessors(self, n_multiprocessors: usize) -> Self {
        Self { n_multiprocessors, ..self }
    }

    /// Switches to dependent launches, whose waits are checked.
    #[must_use]
    pub fn with_early_launches(self) -> Self {
        Self { launches_early: true, ..self }
    }

    /// Bytes that are allocated.
    pub fn used_bytes(&self) -> usize {
        self.get().used()
    }

    /// Starts counting what each launch does.
    pub fn start_counting(&self) {
        self.get().start_counting();
    }

    /// Stops counting and returns the counts of each launch, in the order in which they ran.
    pub fn take_counts(&self) -> Vec<ptx::Counts> {
        self.get().take_counts()
    }

    /// Locks the interpreter.
    fn get(&self) -> MutexGuard<'_, ptx::Device> {
        self.device.lock().expect("no call of the interpreter panics")
    }
}

fn failed(call: &'static str) -> impl Fn(ptx::Error) -> Error {
    move |error| Error::Driver { call, reason: error.to_string() }
}

impl Device for Interpreter {
    type Module = ptx::ModuleId;
    type Function = ptx::Function;
    type Stream = ptx::Stream;
    type Event = ptx::Event;
    type Graph = ptx::Graph;
    type Rank = ptx::Rank;

    fn name(&self) -> String {
        "PTX interpreter".to_owned()
    }

    fn free_bytes(&self) -> Result<usize, Error> {
        Ok(self.n_bytes - self.used_bytes())
    }

    fn n_multiprocessors(&self) -> usize {
        self.n_multiprocessors
    }

    fn launches_early(&self) -> bool {
        self.launches_early
    }

    fn load(&self, name: &str, text: &str) -> Result<Self::Module, Error> {
        let refused =
            |e: ptx::Error| Error::Kernel { kernel: name.to_owned(), reason: e.to_string() };
        self.get().load(text).map_err(refused)
    }

    fn function(&self, module: &Self::Module, name: &str) -> Result<Self::Function, Error> {
        let refused =
            |e: ptx::Error| Error::Kernel { kernel: name.to_owned(), reason: e.to_string() };
        self.get().function(*module, name).map_err(refused)
    }

    fn allow_shared(&self, _: &Self::Function, _: u32) -> Result<(), Error> {
        Ok(())
    }

    fn allocate(&self, what: &str, n_bytes: usize) -> Result<Address, Error> {
        self.get()
            .allocate(n_bytes)
            .map_err(|_| Error::OutOfMemory { what: what.to_owned(), n_bytes })
    }

    unsafe fn free(&self, address: Address) {
        if !std::thread::panicking() {
            let _ = self.get().free(address);
        }
    }

    fn stream(&self) -> Result<Self::Stream, Error> {
        Ok(self.get().stream())
    }

    unsafe fn upload(&self, stream: &Self::Stream, to: Address, bytes: &[u8]) -> Result<(), Error> {
        self.get().copy_to_device(*stream, to, bytes).map_err(failed("upload"))
    }

    unsafe fn download(
        &self,
        stream: &Self::Stream,
        to: &mut [u8],
        from: Address,
    ) -> Result<(), Error> {
        self.get().copy_to_host(*stream, to, from).map_err(failed("download"))
    }

    unsafe fn copy(
        &self,
        stream: &Self::Stream,
        to: Address,
        from: Address,
        n_bytes: usize,
    ) -> Result<(), Error> {
        self.get().copy(*stream, to, from, n_bytes).map_err(failed("copy"))
    }

    unsafe fn launch(
        &self,
        stream: &Self::Stream,
        launch: &Launch<'_, Self::Function>,
    ) -> Result<(), Error> {
        let bytes: Vec<Vec<u8>> = launch.arguments.iter().map(|a| bytes(*a)).collect();
        let arguments: Vec<&[u8]> = bytes.iter().map(Vec::as_slice).collect();
        let launch = ptx::Launch {
            function: *launch.function,
            grid: launch.grid,
            block: launch.block,
            dynamic_shared: launch.shared_bytes as usize,
            is_dependent: launch.is_dependent,
            arguments: &arguments,
        };
        self.get().launch(*stream, &launch).map_err(failed("launch"))
    }

    fn begin_capture(&self, stream: &Self::Stream) -> Result<(), Error> {
        self.get().begin_capture(*stream).map_err(failed("capture"))
    }

    fn end_capture(&self, stream: &Self::Stream) -> Result<Self::Graph, Error> {
        self.get().end_capture(*stream).map_err(failed("capture"))
    }

    unsafe fn replay(&self, stream: &Self::Stream, graph: &Self::Graph) -> Result<(), Error> {
        self.get().launch_graph(*stream, graph).map_err(failed("graph"))
    }

    fn record(&self, stream: &Self::Stream) -> Result<Self::Event, Error> {
        self.get().record(*stream).map_err(failed("event"))
    }

    fn record_timed(&self, stream: &Self::Stream) -> Result<Self::Event, Error> {
        self.record(stream)
    }

    /// One nanosecond per warp instruction.
    fn elapsed(&self, from: &Self::Event, to: &Self::Event) -> Result<Duration, Error> {
        let device = self.get();
        let passed = |event| device.instructions_at(event).map_err(failed("event"));
        Ok(Duration::from_nanos(passed(*to)?.saturating_sub(passed(*from)?)))
    }

    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), Error> {
        self.get().wait(*stream, *event).map_err(failed("event"))
    }

    fn synchronize(&self, stream: &Self::Stream) -> Result<(), Error> {
        self.get().synchronize(*stream).map_err(failed("kernel"))
    }

    fn group(devices: &[Arc<Self>]) -> Result<Vec<Self::Rank>, Error> {
        Ok(ptx::Rank::group(devices.len()))
    }

    unsafe fn all_gather(
        &self,
        rank: &Self::Rank,
        stream: &Self::Stream,
        to: Address,
        from: Address,
        n_bytes: usize,
    ) -> Result<(), Error> {
        self.get().all_gather(*stream, rank, to, from, n_bytes).map_err(failed("exchange"))
    }

    fn abort(rank: &Self::Rank) {
        rank.abort();
    }
}

fn bytes(argument: Argument) -> Vec<u8> {
    match argument {
        Argument::Address(value) => value.to_le_bytes().to_vec(),
        Argument::I32(value) => value.to_le_bytes().to_vec(),
        Argument::F32(value) => value.to_le_bytes().to_vec(),
    }
}
