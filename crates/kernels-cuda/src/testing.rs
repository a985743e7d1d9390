//! Test support: a device, its kernels, and test data.
//!
//! The device is the interpreter. With the environment variable `REALIZAR_CUDA_DEVICE=driver` it is the first GPU, on
//! which all tests run except those that stop the device on purpose (their names contain `reported`), because a process
//! cannot use a GPU any more after that.
//!
//! With `REALIZAR_CUDA_EARLY_LAUNCHES`, launches are dependent on both.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use realizar_ptx as ptx;
use realizar_quant::BlockType;

use crate::device::{self, Address, Device, Driver, Launch};
use crate::{Buffer, Error, Kernels, List, StateLists, WgmmaKernels};

/// Lists the tests of a module for [`crate::tests`], each with the expected end of its panic message if it must panic.
macro_rules! tests {
    ($($name:ident $(=> $panics:literal)?),+ $(,)?) => {
        #[cfg(feature = "tests")]
        pub(crate) const TESTS: &[crate::tests::Test] = &[$(crate::tests::Test {
            path: concat!(module_path!(), "::", stringify!($name)),
            function: $name,
            panics: &[$($panics)?],
        }),+];
    };
}
pub(crate) use tests;

thread_local! {
    /// Why the test of this thread was skipped, if it was.
    static SKIPPED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Records that the test of this thread cannot run on this device.
fn skip(reason: String) {
    println!("skipped: {reason}");
    SKIPPED.set(Some(reason));
}

/// Takes the reason recorded by the last test of this thread.
#[cfg(feature = "tests")]
pub(crate) fn take_skipped() -> Option<String> {
    SKIPPED.take()
}

/// Whether the tests run on a GPU.
pub(crate) fn is_gpu() -> bool {
    std::env::var_os("REALIZAR_CUDA_DEVICE").is_some_and(|name| name == "driver")
}

/// Whether the tests use dependent launches.
fn launches_early() -> bool {
    std::env::var_os("REALIZAR_CUDA_EARLY_LAUNCHES").is_some()
}

/// The device of the tests. Streams have the interpreter's type and stand for streams of the GPU.
#[derive(Debug)]
pub(crate) struct TestDevice {
    interpreter: device::Interpreter,
    gpu: Option<Gpu>,
}

#[derive(Debug)]
struct Gpu {
    driver: Driver,
    streams: Mutex<HashMap<ptx::Stream, Arc<<Driver as Device>::Stream>>>,
}

impl Gpu {
    fn open() -> Self {
        let mut driver = Driver::open(0).expect("the tests were asked to run on a card");
        if launches_early() {
            driver = driver.with_early_launches().expect("the tests were asked to launch early");
        }
        Self { driver, streams: Mutex::default() }
    }

    fn stream(&self, stream: &ptx::Stream) -> Arc<<Driver as Device>::Stream> {
        let streams = self.streams.lock().expect("no call panics");
        Arc::clone(streams.get(stream).expect("a stream of this device"))
    }
}

/// An object of the interpreter or of a GPU.
#[derive(Debug)]
pub(crate) enum Of<I, C> {
    Interpreter(I),
    Gpu(C),
}

impl<I, C> Of<I, C> {
    fn interpreted(&self) -> &I {
        match self {
            Self::Interpreter(of) => of,
            Self::Gpu(_) => panic!("something of a card on the interpreter"),
        }
    }

    fn on_gpu(&self) -> &C {
        match self {
            Self::Gpu(of) => of,
            Self::Interpreter(_) => panic!("something of the interpreter on a card"),
        }
    }
}

impl Device for TestDevice {
    type Module = Of<ptx::ModuleId, <Driver as Device>::Module>;
    type Function = Of<ptx::Function, <Driver as Device>::Function>;
    type Stream = ptx::Stream;
    type Event = Of<ptx::Event, <Driver as Device>::Event>;
    type Graph = Of<ptx::Graph, <Driver as Device>::Graph>;
    type Rank = ptx::Rank;

    fn name(&self) -> String {
        self.gpu.as_ref().map_or_else(|| self.interpreter.name(), |gpu| gpu.driver.name())
    }

    fn free_bytes(&self) -> Result<usize, Error> {
        match &self.gpu {
            None => self.interpreter.free_bytes(),
            Some(gpu) => gpu.driver.free_bytes(),
        }
    }

    fn n_multiprocessors(&self) -> usize {
        match &self.gpu {
            None => self.interpreter.n_multiprocessors(),
            Some(gpu) => gpu.driver.n_multiprocessors(),
        }
    }

    fn launches_early(&self) -> bool {
        match &self.gpu {
            None => self.interpreter.launches_early(),
            Some(gpu) => gpu.driver.launches_early(),
        }
    }

    fn load(&self, name: &str, text: &str) -> Result<Self::Module, Error> {
        match &self.gpu {
            None => self.interpreter.load(name, text).map(Of::Interpreter),
            Some(gpu) => gpu.driver.load(name, text).map(Of::Gpu),
        }
    }

    fn function(&self, module: &Self::Module, name: &str) -> Result<Self::Function, Error> {
        match &self.gpu {
            None => self.interpreter.function(module.interpreted(), name).map(Of::Interpreter),
            Some(gpu) => gpu.driver.function(module.on_gpu(), name).map(Of::Gpu),
        }
    }

    fn allow_shared(&self, function: &Self::Function, n_bytes: u32) -> Result<(), Error> {
        match &self.gpu {
            None => self.interpreter.allow_shared(function.interpreted(), n_bytes),
            Some(gpu) => gpu.driver.allow_shared(function.on_gpu(), n_bytes),
        }
    }

    fn allocate(&self, what: &str, n_bytes: usize) -> Result<Address, Error> {
        match &self.gpu {
            None => self.interpreter.allocate(what, n_bytes),
            Some(gpu) => gpu.driver.allocate(what, n_bytes),
        }
    }

    unsafe fn free(&self, address: Address) {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.gpu {
                None => self.interpreter.free(address),
                Some(gpu) => gpu.driver.free(address),
            }
        }
    }

    fn stream(&self) -> Result<Self::Stream, Error> {
        let stream = self.interpreter.stream()?;
        if let Some(gpu) = &self.gpu {
            let of_gpu = Arc::new(gpu.driver.stream()?);
            gpu.streams.lock().expect("no call panics").insert(stream, of_gpu);
        }
        Ok(stream)
    }

    unsafe fn upload(&self, stream: &Self::Stream, to: Address, bytes: &[u8]) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.gpu {
                None => self.interpreter.upload(stream, to, bytes),
                Some(gpu) => gpu.driver.upload(&gpu.stream(stream), to, bytes),
            }
        }
    }

    unsafe fn download(
        &self,
        stream: &Self::Stream,
        to: &mut [u8],
        from: Address,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.gpu {
                None => self.interpreter.download(stream, to, from),
                Some(gpu) => gpu.driver.download(&gpu.stream(stream), to, from),
            }
        }
    }

    unsafe fn copy(
        &self,
        stream: &Self::Stream,
        to: Address,
        from: Address,
        n_bytes: usize,
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.gpu {
                None => self.interpreter.copy(stream, to, from, n_bytes),
                Some(gpu) => gpu.driver.copy(&gpu.stream(stream), to, from, n_bytes),
            }
        }
    }

    unsafe fn launch(
        &self,
        stream: &Self::Stream,
        launch: &Launch<'_, Self::Function>,
    ) -> Result<(), Error> {
        let &Launch { function, grid, block, shared_bytes, is_dependent, arguments } = launch;
        // SAFETY: the caller's promise.
        unsafe {
            match &self.gpu {
                None => {
                    let function = function.interpreted();
                    let launch =
                        Launch { function, grid, block, shared_bytes, is_dependent, arguments };
                    self.interpreter.launch(stream, &launch)
                }
                Some(gpu) => {
                    let function = function.on_gpu();
                    let launch =
                        Launch { function, grid, block, shared_bytes, is_dependent, arguments };
                    gpu.driver.launch(&gpu.stream(stream), &launch)
                }
            }
        }
    }

    fn begin_capture(&self, stream: &Self::Stream) -> Result<(), Error> {
        match &self.gpu {
            None => self.interpreter.begin_capture(stream),
            Some(gpu) => gpu.driver.begin_capture(&gpu.stream(stream)),
        }
    }

    fn end_capture(&self, stream: &Self::Stream) -> Result<Self::Graph, Error> {
        match &self.gpu {
            None => self.interpreter.end_capture(stream).map(Of::Interpreter),
            Some(gpu) => gpu.driver.end_capture(&gpu.stream(stream)).map(Of::Gpu),
        }
    }

    unsafe fn replay(&self, stream: &Self::Stream, graph: &Self::Graph) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            match &self.gpu {
                None => self.interpreter.replay(stream, graph.interpreted()),
                Some(gpu) => gpu.driver.replay(&gpu.stream(stream), graph.on_gpu()),
            }
        }
    }

    fn record(&self, stream: &Self::Stream) -> Result<Self::Event, Error> {
        match &self.gpu {
            None => self.interpreter.record(stream).map(Of::Interpreter),
            Some(gpu) => gpu.driver.record(&gpu.stream(stream)).map(Of::Gpu),
        }
    }

    fn record_timed(&self, stream: &Self::Stream) -> Result<Self::Event, Error> {
        match &self.gpu {
            None => self.interpreter.record_timed(stream).map(Of::Interpreter),
            Some(gpu) => gpu.driver.record_timed(&gpu.stream(stream)).map(Of::Gpu),
        }
    }

    fn elapsed(&self, from: &Self::Event, to: &Self::Event) -> Result<Duration, Error> {
        match &self.gpu {
            None => self.interpreter.elapsed(from.interpreted(), to.interpreted()),
            Some(gpu) => gpu.driver.elapsed(from.on_gpu(), to.on_gpu()),
        }
    }

    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), Error> {
        match &self.gpu {
            None => self.interpreter.wait(stream, event.interpreted()),
            Some(gpu) => gpu.driver.wait(&gpu.stream(stream), event.on_gpu()),
        }
    }

    fn synchronize(&self, stream: &Self::Stream) -> Result<(), Error> {
        match &self.gpu {
            None => self.interpreter.synchronize(stream),
            Some(gpu) => gpu.driver.synchronize(&gpu.stream(stream)),
        }
    }

    fn group(devices: &[Arc<Self>]) -> Result<Vec<Self::Rank>, Error> {
        assert!(devices.iter().all(|device| device.gpu.is_none()), "one card is no group");
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
        // SAFETY: the caller's promise.
        unsafe { self.interpreter.all_gather(rank, stream, to, from, n_bytes) }
    }

    fn abort(rank: &Self::Rank) {
        rank.abort();
    }
}

/// The `wgmma` kernels, which the interpreter supports and GPUs of capabilities other than 9.0 reject.
pub(crate) fn wgmma_kernels(device: &TestDevice) -> Option<WgmmaKernels<TestDevice>> {
    match WgmmaKernels::load(device) {
        Ok(wgmma) => Some(wgmma),
        Err(error) if is_gpu() => {
            skip(error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A device and a stream.
pub(crate) fn bench() -> (Arc<TestDevice>, ptx::Stream) {
    opened(usize::MAX, is_gpu().then(Gpu::open))
}

/// An interpreter with `n_bytes` of memory and a stream.
pub(crate) fn bench_with(n_bytes: usize) -> (Arc<TestDevice>, ptx::Stream) {
    opened(n_bytes, None)
}

fn opened(n_bytes: usize, gpu: Option<Gpu>) -> (Arc<TestDevice>, ptx::Stream) {
    let mut interpreter = device::Interpreter::new(ptx::Checks::default(), n_bytes);
    if launches_early() {
        interpreter = interpreter.with_early_launches();
    }
    let device = TestDevice { interpreter, gpu };
    let stream = device.stream().unwrap();
    (Arc::new(device), stream)
}

/// The kernels of a device and a stream.
pub(crate) fn kernels() -> (Kernels<TestDevice>, ptx::Stream) {
    let (device, stream) = bench();
    (Kernels::load(&device).unwrap(), stream)
}

/// A buffer with these values.
pub(crate) fn on_device<T: bytemuck::NoUninit>(
    device: &Arc<TestDevice>,
    stream: &ptx::Stream,
    values: &[T],
) -> Buffer<TestDevice> {
    Buffer::with(device, stream, "values", values).unwrap()
}

/// The first `n` values of a buffer.
pub(crate) fn read(stream: &ptx::Stream, buffer: &Buffer<TestDevice>, n: usize) -> Vec<f32> {
    let mut values = vec![0.0; n];
    buffer.read(stream, 0, &mut values).unwrap();
    values
}

/// A linear congruential generator with the same numbers in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// A number in [-1, 1).
    pub(crate) fn float(&mut self) -> f32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

/// Random weights of a type: their bytes, and the values that these represent.
pub(crate) fn weights(
    ty: BlockType,
    n_rows: usize,
    n_cols: usize,
    random: &mut Random,
) -> (Vec<u8>, Vec<f32>) {
    let values: Vec<f32> = (0..n_rows * n_cols).map(|_| random.float()).collect();
    let row_bytes = ty.row_bytes(n_cols).unwrap();
    let mut bytes = vec![0; n_rows * row_bytes];
    let mut back = vec![0.0; values.len()];
    for row in 0..n_rows {
        let part = &mut bytes[row * row_bytes..][..row_bytes];
        if ty.can_quantize() {
            realizar_quant::quantize(ty, &values[row * n_cols..][..n_cols], part).unwrap();
        } else {
            random_blocks(ty, part, random);
        }
        realizar_quant::dequantize(ty, part, &mut back[row * n_cols..][..n_cols]).unwrap();
    }
    (bytes, back)
}

/// Fills blocks of a type without a quantizer with random bits, and with scales for values of at most about 1.
fn random_blocks(ty: BlockType, bytes: &mut [u8], random: &mut Random) {
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for byte in &mut *block {
            *byte = (random.float() * 128.0) as i8 as u8;
        }
        let largest = match ty {
            BlockType::IQ1_S | BlockType::IQ1_M => 0.06,
            BlockType::IQ3_XXS => 0.002,
            _ => 0.006,
        };
        let d = realizar_quant::half_bytes::f32_to_f16(largest * random.float());
        if ty == BlockType::IQ1_M {
            // The last four words have a nibble of the scale each, in their upper bits.
            let nibbles = [d[0] & 15, d[0] >> 4, d[1] & 15, d[1] >> 4];
            for (k, nibble) in nibbles.into_iter().enumerate() {
                block[49 + 2 * k] = block[49 + 2 * k] & 15 | nibble << 4;
            }
        } else {
            block[..2].copy_from_slice(&d);
        }
    }
}

/// Quants, bits of the scale, and both sums of a block, by definition.
pub(crate) fn quantized_block(x: &[f32]) -> (Vec<i8>, u32, [i16; 2]) {
    let amax = f32::from_bits(x.iter().map(|v| v.abs().to_bits()).max().unwrap());
    let scale = amax / 127.0;
    let quants: Vec<i8> = if scale.is_normal() {
        x.iter().map(|v| (v * scale.recip()).round_ties_even() as i8).collect()
    } else {
        vec![0; x.len()]
    };
    let sum = |half: &[i8]| half.iter().map(|&q| i16::from(q)).sum();
    let sums = [sum(&quants[..16]), sum(&quants[16..])];
    (quants, if scale.is_subnormal() { 0 } else { scale.to_bits() }, sums)
}

/// The values that 8-bit rows represent.
pub(crate) fn rounded(x: &[f32]) -> Vec<f64> {
    let block = |x: &[f32]| {
        let (quants, scale, _) = quantized_block(x);
        quants.into_iter().map(move |q| f64::from(q) * f64::from(f32::from_bits(scale)))
    };
    x.chunks(32).flat_map(block).collect()
}

/// The state lists of a step, on a device.
pub(crate) struct StateWords {
    buffer: Buffer<TestDevice>,
    n_seqs: usize,
    n_rows: usize,
}

impl StateWords {
    /// Lists for sequences, each given by its number of rows and the slot that it continues from, and for rows with the
    /// slots that they write. A row without a sequence follows.
    pub(crate) fn new(
        device: &Arc<TestDevice>,
        stream: &ptx::Stream,
        seqs: &[(usize, u32)],
        writes: &[(usize, u32)],
    ) -> Self {
        let none = StateLists::<TestDevice>::NONE;
        let n_rows = seqs.iter().map(|seq| seq.0).sum::<usize>() + 1;
        let (mut words, mut of_rows) = (vec![7], Vec::new());
        for (i, &(n, from)) in (0..).zip(seqs) {
            words.extend([of_rows.len() as u32, n as u32, from]);
            of_rows.extend(std::iter::repeat_n(i, n));
        }
        of_rows.push(none);
        words.extend(of_rows);
        let slot = |row| writes.iter().find(|write| write.0 == row).map_or(none, |w| w.1);
        words.extend((0..n_rows).map(slot));
        Self { buffer: on_device(device, stream, &words), n_seqs: seqs.len(), n_rows }
    }

    /// Number of rows, including the one without a sequence.
    pub(crate) fn n_rows(&self) -> usize {
        self.n_rows
    }

    pub(crate) fn lists(&self) -> StateLists<'_, TestDevice> {
        let rows_at = 1 + 3 * self.n_seqs;
        StateLists {
            seqs: List::new(&self.buffer, 1, 3 * self.n_seqs),
            seq_of_row: List::new(&self.buffer, rows_at, self.n_rows),
            writes: List::new(&self.buffer, rows_at + self.n_rows, self.n_rows),
            n_seqs: self.n_seqs,
        }
    }
}

/// The bits of a number in F16 or BF16, and the value that they represent.
pub(crate) fn halved(ty: BlockType, x: f32) -> (u16, f32) {
    let (mut bytes, mut back) = ([0; 2], [0.0]);
    realizar_quant::quantize(ty, &[x], &mut bytes).unwrap();
    realizar_quant::dequantize(ty, &bytes, &mut back).unwrap();
    (u16::from_le_bytes(bytes), back[0])
}
