//! An opened device: its capabilities, buffers, pipelines and errors.
//!
//! The API reports errors by callbacks. They are kept here and returned by the call that caused them; none
//! panics. Once the device is lost, every fallible call returns that error.

use crate::Error;
use crate::device::Adapter;
use crate::device::pipelines::Pipelines;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

/// Writes of up to this many bytes use the API's own staging memory, which is allocated already.
const SMALL_WRITE: usize = 64 << 10;

/// Maximum bytes of one copy to the device.
const LARGE_WRITE: usize = 16 << 20;

/// Maximum bytes of a binding: a multiple of 4 that fits 32 bits.
const MAX_BINDING_BYTES: u64 = u32::MAX as u64 & !3;

/// Timeout of a mapping's callback once the device is idle.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Bytes of a kernel's constants, and the alignment of their offsets.
pub(crate) const CONSTANTS_BYTES: u64 = 256;

/// The optional features that kernels may use if the adapter has them, and a memory limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuOptions {
    /// Reductions by subgroup operations.
    pub subgroups: bool,
    /// Half-precision values in shaders.
    pub f16: bool,
    /// Dot products of four packed 8-bit integers.
    pub packed_dot: bool,
    /// Maximum bytes of all buffers together; `None` for as much as the driver allocates.
    pub max_bytes: Option<u64>,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self { subgroups: true, f16: true, packed_dot: true, max_bytes: None }
    }
}

impl GpuOptions {
    /// No optional features.
    pub const PLAIN: Self =
        Self { subgroups: false, f16: false, packed_dot: false, max_bytes: None };
}

/// The capabilities of a device that kernels use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caps {
    /// Whether kernels use subgroup operations.
    pub subgroups: bool,
    /// Whether kernels use half-precision values.
    pub f16: bool,
    /// Whether kernels use packed 8-bit dot products.
    pub packed_dot: bool,
    /// The smallest and the largest subgroup size.
    pub subgroup_sizes: (u32, u32),
    /// Whether the device has timestamps.
    pub timestamps: bool,
    /// Maximum bytes of a storage buffer's binding.
    pub max_binding_bytes: u64,
    /// Maximum bytes of a buffer.
    pub max_buffer_bytes: u64,
    /// Maximum number of workgroups in each dimension of a dispatch.
    pub max_workgroups: u32,
    /// Maximum bytes of workgroup memory.
    pub max_workgroup_bytes: u32,
}

/// The first error since the last check, and the reason if the device was lost.
#[derive(Debug, Default)]
struct Faults {
    error: Option<Fault>,
    lost: Option<String>,
}

#[derive(Debug)]
enum Fault {
    OutOfMemory,
    Refused(String),
}

impl From<wgpu::Error> for Fault {
    fn from(error: wgpu::Error) -> Self {
        match error {
            wgpu::Error::OutOfMemory { .. } => Self::OutOfMemory,
            other => Self::Refused(other.to_string()),
        }
    }
}

/// The bytes of all buffers, and their limit.
#[derive(Debug)]
struct Memory {
    allocated: AtomicU64,
    max_bytes: u64,
}

/// The accounting of a buffer's bytes; dropping it releases them.
#[derive(Debug)]
struct Charge {
    n_bytes: u64,
    memory: Arc<Memory>,
}

impl Charge {
    /// Counts `n_bytes`; `None` if that exceeds the limit.
    fn new(memory: &Arc<Memory>, n_bytes: u64) -> Option<Self> {
        let add = |allocated: u64| {
            allocated.checked_add(n_bytes).filter(|&total| total <= memory.max_bytes)
        };
        memory.allocated.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Self { n_bytes, memory: memory.clone() })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory.allocated.fetch_sub(self.n_bytes, Ordering::Relaxed);
    }
}

fn lock(faults: &Mutex<Faults>) -> std::sync::MutexGuard<'_, Faults> {
    faults.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An opened device. Clones are handles to the same device.
#[derive(Debug, Clone)]
pub struct Gpu {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    caps: Caps,
    device: wgpu::Device,
    queue: wgpu::Queue,
    faults: Arc<Mutex<Faults>>,
    memory: Arc<Memory>,
    /// Bytes of the adapter's memory, if known.
    adapter_bytes: Option<u64>,
    pipelines: Pipelines,
    /// Reserves memory for small copies, so that they succeed when the device has no memory left.
    _reserve: wgpu::Buffer,
}

/// Device memory. Clones are handles to the same memory.
#[derive(Debug, Clone)]
pub struct Buffer {
    pub(crate) raw: wgpu::Buffer,
    _charge: Arc<Charge>,
}

impl Buffer {
    /// The buffer's size in bytes.
    pub fn n_bytes(&self) -> u64 {
        self.raw.size()
    }
}

impl Gpu {
    /// Opens adapter `index` of [`Adapter::all`].
    ///
    /// # Errors
    /// If there is no such adapter, or its driver fails.
    pub fn open(index: usize, options: GpuOptions) -> Result<Self, Error> {
        let adapters = Adapter::all();
        let n = adapters.len();
        let adapter = adapters.get(index).ok_or(Error::NoAdapter { wanted: index, n })?;
        Self::with_adapter(adapter, options)
    }

    /// Opens `adapter`.
    ///
    /// # Errors
    /// If its driver fails.
    pub fn with_adapter(adapter: &Adapter, options: GpuOptions) -> Result<Self, Error> {
        let raw = adapter.raw();
        let (info, limits) = (raw.get_info(), raw.limits());
        let mut features = wgpu::Features::TIMESTAMP_QUERY;
        if options.subgroups {
            features |= wgpu::Features::SUBGROUP;
        }
        if options.f16 {
            features |= wgpu::Features::SHADER_F16;
        }
        let features = raw.features() & features;
        let descriptor = wgpu::DeviceDescriptor {
            label: None,
            required_features: features,
            required_limits: limits.clone(),
            ..Default::default()
        };
        let opened = pollster::block_on(raw.request_device(&descriptor));
        let (device, queue) = opened.map_err(|error| Error::Open {
            adapter: info.name.clone(),
            reason: error.to_string(),
        })?;
        let caps = Caps {
            subgroups: features.contains(wgpu::Features::SUBGROUP),
            f16: features.contains(wgpu::Features::SHADER_F16),
            // WGSL has them on every device; for drivers without the instruction it is emulated.
            packed_dot: options.packed_dot,
            subgroup_sizes: (info.subgroup_min_size, info.subgroup_max_size),
            timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
            // Some drivers count a binding's bytes in 32 bits, whatever limit they report.
            max_binding_bytes: limits.max_storage_buffer_binding_size.min(MAX_BINDING_BYTES),
            max_buffer_bytes: limits.max_buffer_size,
            max_workgroups: limits.max_compute_workgroups_per_dimension,
            max_workgroup_bytes: limits.max_compute_workgroup_storage_size,
        };
        let faults = Arc::new(Mutex::new(Faults::default()));
        let seen = faults.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            // The first error is the cause of later ones.
            lock(&seen).error.get_or_insert(Fault::from(error));
        }));
        let seen = faults.clone();
        device.set_device_lost_callback(move |reason, message| {
            lock(&seen).lost.get_or_insert(format!("{message} ({reason:?})"));
        });
        let reserve = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("reserve"),
            size: SMALL_WRITE as u64,
            usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        let pipelines = Pipelines::default();
        let max_bytes = options.max_bytes.unwrap_or(u64::MAX);
        let memory = Arc::new(Memory { allocated: AtomicU64::new(0), max_bytes });
        let name = info.name;
        let inner = Inner {
            name,
            caps,
            device,
            queue,
            faults,
            memory,
            adapter_bytes: adapter.memory(),
            pipelines,
            _reserve: reserve,
        };
        let gpu = Self { inner: Arc::new(inner) };
        gpu.check("the reserve of memory", SMALL_WRITE as u64)?;
        Ok(gpu)
    }

    /// The adapter's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Bytes of the adapter's memory, if known.
    pub fn memory(&self) -> Option<u64> {
        self.inner.adapter_bytes
    }

    /// Checks whether a buffer of this many bytes could be bound, before it is created. Errors name it `what`.
    ///
    /// # Errors
    /// If it is too large.
    pub(crate) fn check_binding(&self, what: &str, needed: u64) -> Result<(), Error> {
        let caps = self.caps();
        let available = caps.max_binding_bytes.min(caps.max_buffer_bytes);
        if needed > available {
            let limit = "maxStorageBufferBindingSize";
            return Err(Error::Limit { what: what.to_owned(), needed, limit, available });
        }
        Ok(())
    }

    /// The device's capabilities.
    pub fn caps(&self) -> &Caps {
        &self.inner.caps
    }

    /// Bytes of all live buffers, including those that only kernels hold.
    pub fn allocated_bytes(&self) -> u64 {
        self.inner.memory.allocated.load(Ordering::Relaxed)
    }

    pub(crate) fn device(&self) -> &wgpu::Device {
        &self.inner.device
    }

    pub(crate) fn queue(&self) -> &wgpu::Queue {
        &self.inner.queue
    }

    pub(crate) fn pipelines(&self) -> &Pipelines {
        &self.inner.pipelines
    }

    /// Destroys the device. It is then lost for all its users.
    pub fn destroy(&self) {
        // The API reports it only when it is polled next.
        lock(&self.inner.faults).lost.get_or_insert_with(|| "it was given back".to_owned());
        self.inner.device.destroy();
    }

    /// Checks whether the device is usable.
    ///
    /// # Errors
    /// If the device was lost.
    pub(crate) fn alive(&self) -> Result<(), Error> {
        match &lock(&self.inner.faults).lost {
            Some(reason) => Err(Error::Lost(reason.clone())),
            None => Ok(()),
        }
    }

    /// Returns the first error since the last check, as one of the operation `what`.
    ///
    /// # Errors
    /// That error.
    pub(crate) fn check(&self, what: &str, n_bytes: u64) -> Result<(), Error> {
        let mut faults = lock(&self.inner.faults);
        if let Some(reason) = &faults.lost {
            return Err(Error::Lost(reason.clone()));
        }
        match faults.error.take() {
            None => Ok(()),
            Some(Fault::OutOfMemory) => Err(Error::OutOfMemory { what: what.to_owned(), n_bytes }),
            Some(Fault::Refused(reason)) => Err(Error::Refused { what: what.to_owned(), reason }),
        }
    }

    /// Creates a buffer with any usage. Its size is rounded up to a multiple of 4.
    ///
    /// # Errors
    /// As [`Self::buffer`].
    pub(crate) fn raw_buffer(
        &self,
        what: &str,
        n_bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<Buffer, Error> {
        self.alive()?;
        let caps = self.caps();
        let limits = [
            ("maxBufferSize", caps.max_buffer_bytes, true),
            (
                "maxStorageBufferBindingSize",
                caps.max_binding_bytes,
                usage.contains(wgpu::BufferUsages::STORAGE),
            ),
        ];
        // If rounding up overflows, the size exceeds every limit.
        let size = n_bytes.max(4).checked_next_multiple_of(4).unwrap_or(u64::MAX);
        for (limit, available, applies) in limits {
            if applies && size > available {
                return Err(Error::Limit { what: what.to_owned(), needed: size, limit, available });
            }
        }
        let out_of_memory = || Error::OutOfMemory { what: what.to_owned(), n_bytes: size };
        let charge = Charge::new(&self.inner.memory, size).ok_or_else(out_of_memory)?;
        let make = || {
            let descriptor = wgpu::BufferDescriptor {
                label: Some(what),
                size,
                usage,
                mapped_at_creation: false,
            };
            let raw = self.device().create_buffer(&descriptor);
            self.check(what, size).map(|()| raw)
        };
        let raw = match make() {
            // Dropped buffers are freed when the device is idle.
            Err(Error::OutOfMemory { .. }) => self.wait().and_then(|()| make())?,
            other => other?,
        };
        Ok(Buffer { raw, _charge: Arc::new(charge) })
    }

    /// Creates a zeroed buffer that kernels read and write.
    ///
    /// # Errors
    /// If it is larger than the device allows, or memory runs out.
    pub fn buffer(&self, what: &str, n_bytes: u64) -> Result<Buffer, Error> {
        let usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST;
        self.raw_buffer(what, n_bytes, usage)
    }

    /// Creates a buffer for results that are copied to it and read by [`Self::read`].
    ///
    /// # Errors
    /// As [`Self::buffer`].
    pub fn readback_buffer(&self, what: &str, n_bytes: u64) -> Result<Buffer, Error> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        self.raw_buffer(what, n_bytes, usage)
    }

    /// Creates a buffer of [`CONSTANTS_BYTES`] with a kernel's constants.
    pub(crate) fn constants(&self, what: &str, bytes: &[u8]) -> Result<Buffer, Error> {
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let buffer = self.raw_buffer(what, CONSTANTS_BYTES, usage)?;
        self.write(&buffer, 0, bytes)?;
        Ok(buffer)
    }

    /// Copies `bytes` to `buffer` from byte `offset` on, before anything that is submitted later. Offset and
    /// length must be multiples of 4.
    ///
    /// # Errors
    /// If the copy does not fit the buffer, memory for it runs out, or the device was lost.
    pub fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() <= SMALL_WRITE {
            self.alive()?;
            self.queue().write_buffer(&buffer.raw, offset, bytes);
            return self.check("a copy to the GPU", bytes.len() as u64);
        }
        let mut to = offset;
        for part in bytes.chunks(LARGE_WRITE) {
            match self.write_staged(buffer, to, part) {
                // The staging memory of earlier copies is freed when they are done.
                Err(Error::OutOfMemory { .. }) => {
                    self.wait()?;
                    self.write_staged(buffer, to, part)?;
                }
                other => other?,
            }
            to += part.len() as u64;
        }
        Ok(())
    }

    /// Copies `bytes` by a staging buffer of its own, because the device is lost if the API's own allocation
    /// of staging memory fails.
    fn write_staged(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.alive()?;
        let (what, size) = ("a copy to the GPU", bytes.len() as u64);
        let staging = self.device().create_buffer(&wgpu::BufferDescriptor {
            label: Some(what),
            size: size.next_multiple_of(4),
            usage: wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: true,
        });
        self.check(what, size)?;
        let refused = |reason: String| Error::Refused { what: what.to_owned(), reason };
        {
            let mut view =
                staging.get_mapped_range_mut(..).map_err(|error| refused(error.to_string()))?;
            view.slice(..bytes.len()).copy_from_slice(bytes);
        }
        staging.unmap();
        let mut encoder =
            self.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(&staging, 0, &buffer.raw, offset, Some(size));
        let commands = encoder.finish();
        self.check(what, size)?;
        self.queue().submit([commands]);
        self.check(what, size)
    }

    /// Waits until all submitted work is done.
    ///
    /// # Errors
    /// If the device was lost or refused something.
    pub fn wait(&self) -> Result<(), Error> {
        self.alive()?;
        // The API panics if it detects the loss of a device while waiting.
        let wait = || self.device().poll(wgpu::PollType::wait_indefinitely());
        let waited = catch_unwind(AssertUnwindSafe(wait));
        self.check("a submission", 0)?;
        let lost = |reason: String| {
            lock(&self.inner.faults).lost.get_or_insert(reason.clone());
            Error::Lost(reason)
        };
        match waited {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(lost(error.to_string())),
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let text = text.or_else(|| panic.downcast_ref().cloned());
                Err(lost(text.unwrap_or_else(|| "waiting for it failed".to_owned())))
            }
        }
    }

    /// Waits, then copies the first `out.len()` elements of a readback buffer to `out`.
    ///
    /// # Errors
    /// If the buffer has fewer elements, or the device was lost or refused something.
    pub fn read<T: bytemuck::Pod>(&self, buffer: &Buffer, out: &mut [T]) -> Result<(), Error> {
        let n_bytes = size_of_val(out);
        if n_bytes == 0 {
            return self.wait();
        }
        self.alive()?;
        let refused = |reason: String| Error::Refused { what: "a read".to_owned(), reason };
        // Mapped ranges are whole words.
        let n_mapped = (n_bytes as u64).next_multiple_of(4);
        if n_mapped > buffer.n_bytes() {
            let reason = format!("{n_bytes} bytes of a buffer of {}", buffer.n_bytes());
            return Err(refused(reason));
        }
        let (answer, mapped) = mpsc::channel();
        let slice = buffer.raw.slice(..n_mapped);
        slice.map_async(wgpu::MapMode::Read, move |mapping| {
            // The receiver is gone if the device was lost.
            let _ = answer.send(mapping);
        });
        let read = self.wait().and_then(|()| {
            // Another thread that polls the device may be about to run the callback.
            match mapped.recv_timeout(ANSWER_WITHIN) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(refused(error.to_string())),
                Err(_) => return Err(refused("it was never answered".to_owned())),
            }
            let view = slice.get_mapped_range().map_err(|error| refused(error.to_string()))?;
            let bytes = bytemuck::cast_slice_mut::<T, u8>(out);
            bytes.copy_from_slice(&view[..n_bytes]);
            Ok(())
        });
        buffer.raw.unmap();
        if read.is_err() {
            // Unmapping a buffer that was not mapped is an error, which is not reported.
            lock(&self.inner.faults).error = None;
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crate::{Elementwise, Rows, RowsAt, Timer, View, elementwise};

    /// A kernel that doubles the first of `values`.
    fn doubling(gpu: &Gpu, values: &Buffer, batch: &Buffer) -> Result<crate::Kernel, Error> {
        let (rows, x) = (Rows { values, batch, at: RowsAt(0) }, View::dense(0, 1));
        elementwise(gpu, rows, Elementwise::Add, x, x, x)
    }

    /// Doubles a number, from new buffers to the result.
    fn works(gpu: &Gpu) {
        let (values, batch) = (testing::filled(gpu, &[21.0_f32]), testing::filled(gpu, &[0, 1]));
        let kernel = doubling(gpu, &values, &batch).unwrap();
        let mut recorder = gpu.record();
        recorder.run(&kernel, 1);
        recorder.submit().unwrap();
        assert_eq!(testing::contents::<f32>(gpu, &values, 1), [42.0]);
    }

    fn capped(max_bytes: u64) -> Option<Gpu> {
        let adapter = Adapter::all().into_iter().next()?;
        let options = GpuOptions { max_bytes: Some(max_bytes), ..GpuOptions::default() };
        Some(Gpu::with_adapter(&adapter, options).unwrap())
    }

    #[test]
    fn a_buffer_beyond_the_limits_is_refused() {
        for gpu in testing::gpus() {
            let caps = gpu.caps().clone();
            let storage = caps.max_binding_bytes.min(caps.max_buffer_bytes);
            for n_bytes in [storage + 1, u64::MAX / 2, u64::MAX] {
                let refused = gpu.buffer("the weights", n_bytes).unwrap_err();
                assert!(matches!(&refused, Error::Limit { what, needed, available, .. }
                    if what == "the weights" && *needed > storage && *available >= storage));
            }
            let refused = gpu.readback_buffer("the logits", caps.max_buffer_bytes + 1);
            assert!(matches!(refused.unwrap_err(), Error::Limit { limit: "maxBufferSize", .. }));
            works(&gpu);
        }
    }

    #[test]
    fn memory_that_runs_out_is_an_error_and_comes_back() {
        let Some(gpu) = capped(1 << 20) else { return };
        let mut held = Vec::new();
        let refused = loop {
            match gpu.buffer("a page", 100_001) {
                Ok(buffer) => held.push(buffer),
                Err(error) => break error,
            }
        };
        assert_eq!(
            refused,
            Error::OutOfMemory { what: "a page".to_owned(), n_bytes: 100_004 },
            "{refused}"
        );
        assert_eq!((held.len(), gpu.allocated_bytes()), (10, 1_000_040));
        works(&gpu);
        held.clear();
        assert_eq!(gpu.allocated_bytes(), 0);
        assert_eq!(gpu.buffer("everything", 1 << 20).unwrap().n_bytes(), 1 << 20);
    }

    #[test]
    fn a_kernel_holds_its_buffers() {
        for gpu in testing::gpus() {
            let (values, batch) = (gpu.buffer("values", 400).unwrap(), gpu.buffer("batch", 8));
            let kernel = doubling(&gpu, &values, batch.as_ref().unwrap()).unwrap();
            let all = gpu.allocated_bytes();
            assert!(all > 408, "{all}");
            drop((values.clone(), values, batch));
            assert_eq!(gpu.allocated_bytes(), all);
            drop((kernel.clone(), kernel));
            assert_eq!(gpu.allocated_bytes(), 0);
        }
    }

    #[test]
    fn memory_that_the_driver_refuses_is_an_error() {
        let source: Box<dyn std::error::Error + Send + Sync> = "no memory".into();
        let fault = Fault::from(wgpu::Error::OutOfMemory { source });
        assert!(matches!(fault, Fault::OutOfMemory));
        for gpu in testing::gpus() {
            lock(&gpu.inner.faults).error = Some(Fault::OutOfMemory);
            let refused = gpu.check("the cache", 12).unwrap_err();
            assert_eq!(refused, Error::OutOfMemory { what: "the cache".to_owned(), n_bytes: 12 });
            works(&gpu);
        }
    }

    #[test]
    fn a_read_beyond_a_buffer_is_refused_and_odd_lengths_are_read() {
        for gpu in testing::gpus() {
            let readback = gpu.readback_buffer("test", 6).unwrap();
            assert!(matches!(gpu.read(&readback, &mut [0_u8; 9]), Err(Error::Refused { .. })));
            // Not a buffer that can be read.
            let values = testing::filled(&gpu, &[0x0403_0201_u32, 5]);
            for _ in 0..2 {
                let refused = gpu.read(&values, &mut [0_u32]).unwrap_err();
                assert!(matches!(refused, Error::Refused { .. }), "{refused}");
            }
            let mut recorder = gpu.record();
            recorder.copy((&values, 0), (&readback, 0), 8);
            recorder.submit().unwrap();
            let mut bytes = [0_u8; 5];
            gpu.read(&readback, &mut bytes).unwrap();
            assert_eq!(bytes, [1, 2, 3, 4, 5]);
            assert!(matches!(gpu.write(&values, 4, &[0; 8]), Err(Error::Refused { .. })));
            works(&gpu);
        }
    }

    #[test]
    fn large_writes_arrive_in_order() {
        for gpu in testing::gpus() {
            let n = LARGE_WRITE / 4 + 20_003;
            let words: Vec<u32> = (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
            let buffer = gpu.buffer("test", 4 * n as u64 + 8).unwrap();
            let ones = vec![1_u32; SMALL_WRITE / 4 + 9];
            gpu.write(&buffer, 0, &[7; 16]).unwrap();
            gpu.write(&buffer, 8, bytemuck::cast_slice(&words)).unwrap();
            gpu.write(&buffer, 12, bytemuck::cast_slice(&ones)).unwrap();
            gpu.write(&buffer, 20, &[9; 4]).unwrap();
            let mut wanted = vec![0x0707_0707, 0x0707_0707];
            wanted.extend(&words);
            wanted[3..][..ones.len()].copy_from_slice(&ones);
            wanted[5] = 0x0909_0909;
            assert!(testing::contents::<u32>(&gpu, &buffer, n + 2) == wanted);
            // Beyond the end: refused, and nothing else is.
            let refused = gpu.write(&buffer, 12, bytemuck::cast_slice(&words)).unwrap_err();
            assert!(matches!(refused, Error::Refused { .. }), "{refused}");
            works(&gpu);
        }
    }

    #[test]
    fn everything_says_that_the_device_is_lost() {
        // Told by ourselves, or found out.
        for by_api in [false, true] {
            for gpu in testing::gpus() {
                let values = testing::filled(&gpu, &[1.0_f32]);
                let batch = testing::filled(&gpu, &[0, 1]);
                let readback = gpu.readback_buffer("test", 4).unwrap();
                let kernel = doubling(&gpu, &values, &batch).unwrap();
                let mut timer = Timer::new(&gpu, 1).unwrap();
                let mut begun = gpu.record();
                begun.run(&kernel, 1);
                if by_api {
                    gpu.device().destroy();
                    // The first wait finds out.
                    drop(gpu.wait());
                } else {
                    gpu.destroy();
                }
                begun.run(&kernel, 1);
                begun.copy((&values, 0), (&readback, 0), 4);
                let mut recorder = gpu.record();
                recorder.run(&kernel, 1);
                recorder.copy((&values, 0), (&readback, 0), 4);
                let mut results = vec![
                    begun.submit(),
                    recorder.submit(),
                    gpu.buffer("test", 4).map(drop),
                    gpu.readback_buffer("test", 4).map(drop),
                    gpu.write(&values, 0, &[0; 4]),
                    gpu.write(&values, 0, &vec![0; 2 * SMALL_WRITE]),
                    doubling(&gpu, &values, &batch).map(drop),
                    gpu.wait(),
                    gpu.read(&readback, &mut [0.0_f32]),
                    gpu.read::<f32>(&readback, &mut []),
                ];
                if let Some(timer) = &mut timer {
                    let mut recorder = gpu.record_timed(timer);
                    recorder.run(&kernel, 1);
                    results.push(recorder.submit());
                    results.push(timer.read(&gpu, &mut Vec::new()));
                    results.push(Timer::new(&gpu, 1).map(drop));
                }
                for (i, result) in results.iter().enumerate() {
                    assert!(matches!(result, Err(Error::Lost(_))), "{by_api} {i}: {result:?}");
                }
                drop((kernel, values, timer));
                // Another device of the same adapter is not concerned.
                testing::gpus().iter().take(1).for_each(works);
            }
        }
    }
}
