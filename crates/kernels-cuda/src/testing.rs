//! For tests: the interpreter of PTX as a device, on which the kernels run without a card.

use std::sync::{Arc, Mutex, MutexGuard};

use realizar_ptx as ptx;

use crate::device::{Address, Argument, Device, Launch};
use crate::{Buffer, Error, Kernels};

/// An interpreted device.
pub(crate) struct Interpreter(Mutex<ptx::Device>);

impl std::fmt::Debug for Interpreter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interpreter")
    }
}

impl Interpreter {
    /// The interpreter itself.
    fn get(&self) -> MutexGuard<'_, ptx::Device> {
        self.0.lock().expect("a test has failed")
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
            dynamic_shared: 0,
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

    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), Error> {
        self.get().wait(*stream, *event).map_err(failed("event"))
    }

    fn synchronize(&self, stream: &Self::Stream) -> Result<(), Error> {
        self.get().synchronize(*stream).map_err(failed("kernel"))
    }
}

fn bytes(argument: Argument) -> Vec<u8> {
    match argument {
        Argument::Address(value) => value.to_le_bytes().to_vec(),
        Argument::I32(value) => value.to_le_bytes().to_vec(),
        Argument::F32(value) => value.to_le_bytes().to_vec(),
    }
}

/// A device with one stream.
pub(crate) fn bench() -> (Arc<Interpreter>, ptx::Stream) {
    bench_with(usize::MAX)
}

/// The same with `n_bytes` of memory.
pub(crate) fn bench_with(n_bytes: usize) -> (Arc<Interpreter>, ptx::Stream) {
    let device = ptx::Device::with_memory(ptx::Checks::default(), n_bytes);
    let device = Interpreter(Mutex::new(device));
    let stream = device.stream().unwrap();
    (Arc::new(device), stream)
}

/// The kernels on a device with one stream.
pub(crate) fn kernels() -> (Kernels<Interpreter>, ptx::Stream) {
    let (device, stream) = bench();
    (Kernels::load(&device).unwrap(), stream)
}

/// A buffer with values.
pub(crate) fn on_device<T: bytemuck::NoUninit>(
    device: &Arc<Interpreter>,
    stream: &ptx::Stream,
    values: &[T],
) -> Buffer<Interpreter> {
    Buffer::with(device, stream, "values", values).unwrap()
}

/// The first `n` values of a buffer.
pub(crate) fn read(stream: &ptx::Stream, buffer: &Buffer<Interpreter>, n: usize) -> Vec<f32> {
    let mut values = vec![0.0; n];
    buffer.read(stream, 0, &mut values).unwrap();
    values
}

/// Numbers that look random, the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// From -1 up to 1.
    pub(crate) fn float(&mut self) -> f32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}
