//! Access to devices: the trait [`Device`], its implementation [`Driver`], and memory that is freed when dropped.
//!
//! This module knows no kernels.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::Error;

mod arguments;
mod context;
mod dependent;
mod driver;
#[cfg(any(test, feature = "interpreter"))]
mod interpreter;
mod nccl;
mod staging;

pub(crate) use arguments::Arguments;
pub use arguments::{Argument, MAX_ARGUMENTS};
pub(crate) use dependent::dependent;
pub use driver::{Driver, GpuInfo};
#[cfg(any(test, feature = "interpreter"))]
pub use interpreter::Interpreter;
pub use nccl::DriverRank;

/// An address in a device's memory.
pub type Address = u64;

/// A kernel launch.
#[derive(Debug)]
pub struct Launch<'a, F> {
    /// The kernel.
    pub function: &'a F,
    /// Grid dimensions in blocks.
    pub grid: [u32; 3],
    /// Block dimensions in threads.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory per block. More than 48 KiB must have been [allowed](Device::allow_shared) for
    /// the function.
    pub shared_bytes: u32,
    /// Whether the launch may start before the launch before it has ended (programmatic dependent launch). The kernel
    /// must wait itself.
    pub is_dependent: bool,
    /// The kernel's arguments in order, at most [`MAX_ARGUMENTS`].
    pub arguments: &'a [Argument],
}

/// A device that runs PTX modules: ordered streams of work, addressed memory and captured graphs.
///
/// The calls mirror those of the CUDA driver, with the same guarantees: queued work runs later, and a later call
/// reports its failure.
pub trait Device: fmt::Debug + Send + Sync + Sized + 'static {
    /// A loaded module.
    type Module: fmt::Debug + Send + Sync;
    /// A kernel of a loaded module.
    type Function: fmt::Debug + Send + Sync;
    /// An ordered queue of work.
    type Stream: fmt::Debug + Send + Sync;
    /// A point in a stream.
    type Event: fmt::Debug + Send + Sync;
    /// Captured work.
    type Graph: fmt::Debug + Send + Sync;
    /// A device's rank in a group of devices.
    type Rank: fmt::Debug + Send + Sync;

    /// The device's name.
    fn name(&self) -> String;

    /// Bytes of memory that are free now.
    ///
    /// # Errors
    /// Any error of the driver.
    fn free_bytes(&self) -> Result<usize, Error>;

    /// Number of multiprocessors. Each runs blocks of its own.
    fn n_multiprocessors(&self) -> usize;

    /// Whether launches are dependent, so that kernels start early and wait themselves.
    fn launches_early(&self) -> bool;

    /// Loads a module. Messages name it `name`.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the driver rejects it.
    fn load(&self, name: &str, ptx: &str) -> Result<Self::Module, Error>;

    /// Looks up a kernel by name.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the module has no kernel of that name.
    fn function(&self, module: &Self::Module, name: &str) -> Result<Self::Function, Error>;

    /// Allows launches of a kernel to use this many bytes of dynamic shared memory.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the device has less shared memory per block.
    fn allow_shared(&self, function: &Self::Function, n_bytes: u32) -> Result<(), Error>;

    /// Allocates memory, aligned to 256 bytes. Messages name it `what`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn allocate(&self, what: &str, n_bytes: usize) -> Result<Address, Error>;

    /// Frees memory after all queued work. A failure is that of earlier work, and the next call reports it.
    ///
    /// # Safety
    /// `address` comes from [`allocate`](Self::allocate), and nothing uses the memory any longer, including captured
    /// graphs that are still replayed.
    unsafe fn free(&self, address: Address);

    /// Creates a stream that is not ordered with any other.
    ///
    /// # Errors
    /// Any error of the driver.
    fn stream(&self) -> Result<Self::Stream, Error>;

    /// Queues a copy from the host. The bytes are read before this returns.
    ///
    /// # Safety
    /// `to` has `bytes.len()` bytes of one allocation.
    ///
    /// # Errors
    /// Any error of the driver.
    unsafe fn upload(&self, stream: &Self::Stream, to: Address, bytes: &[u8]) -> Result<(), Error>;

    /// Waits for the stream and copies to the host.
    ///
    /// # Safety
    /// `from` has `to.len()` bytes of one allocation.
    ///
    /// # Errors
    /// Any error of the driver, including that of earlier work.
    unsafe fn download(
        &self,
        stream: &Self::Stream,
        to: &mut [u8],
        from: Address,
    ) -> Result<(), Error>;

    /// Queues a copy on the device.
    ///
    /// # Safety
    /// `to` and `from` have `n_bytes` bytes of one allocation each, which do not overlap.
    ///
    /// # Errors
    /// Any error of the driver.
    unsafe fn copy(
        &self,
        stream: &Self::Stream,
        to: Address,
        from: Address,
        n_bytes: usize,
    ) -> Result<(), Error>;

    /// Queues a launch.
    ///
    /// # Safety
    /// The number and types of the arguments are those of the kernel. A dependent launch is of a kernel that waits.
    /// Memory that the kernel accesses through its arguments stays allocated until it has run, or for as long as a
    /// graph that captured the launch is replayed.
    ///
    /// # Errors
    /// [`Error::Kernel`] for sizes that the device cannot run.
    unsafe fn launch(
        &self,
        stream: &Self::Stream,
        launch: &Launch<'_, Self::Function>,
    ) -> Result<(), Error>;

    /// Starts capturing a stream: work that is queued from now on is recorded instead of run.
    ///
    /// # Errors
    /// If the stream is being captured already.
    fn begin_capture(&self, stream: &Self::Stream) -> Result<(), Error>;

    /// Ends a capture and returns the captured work.
    ///
    /// # Errors
    /// If the stream is not being captured.
    fn end_capture(&self, stream: &Self::Stream) -> Result<Self::Graph, Error>;

    /// Queues captured work, with the addresses and arguments of the capture.
    ///
    /// # Safety
    /// All memory that the captured work accesses is still allocated.
    ///
    /// # Errors
    /// Any error of the driver.
    unsafe fn replay(&self, stream: &Self::Stream, graph: &Self::Graph) -> Result<(), Error>;

    /// Records an event after all work queued in a stream.
    ///
    /// # Errors
    /// Any error of the driver.
    fn record(&self, stream: &Self::Stream) -> Result<Self::Event, Error>;

    /// As [`record`](Self::record), with a time stamp.
    ///
    /// # Errors
    /// Any error of the driver.
    fn record_timed(&self, stream: &Self::Stream) -> Result<Self::Event, Error>;

    /// The time between two timed events of a stream that has passed both.
    ///
    /// # Errors
    /// If one of them has no time stamp or has not been passed.
    fn elapsed(&self, from: &Self::Event, to: &Self::Event) -> Result<Duration, Error>;

    /// Makes a stream wait until another stream has passed an event.
    ///
    /// # Errors
    /// Any error of the driver.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), Error>;

    /// Waits until all work queued in a stream has run.
    ///
    /// # Errors
    /// Any error of the driver, including the failure of a kernel.
    fn synchronize(&self, stream: &Self::Stream) -> Result<(), Error>;

    /// Makes a group of devices. Their ranks are their positions in the list.
    ///
    /// # Errors
    /// [`Error::NoNccl`], [`Error::OldNccl`], or any error of the library that connects GPUs.
    fn group(devices: &[Arc<Self>]) -> Result<Vec<Self::Rank>, Error>;

    /// Queues an exchange, which runs when every rank of the group runs its own: `n_bytes` bytes of each rank are
    /// written to `to`, in the order of the ranks. Different threads must wait for the streams of different ranks.
    ///
    /// # Safety
    /// The rank is this device's. `from` has `n_bytes` bytes of one allocation, `to` as many for every rank, and they
    /// do not overlap. They stay allocated as for [`launch`](Self::launch).
    ///
    /// # Errors
    /// Any error of the driver, and the failure of another rank.
    unsafe fn all_gather(
        &self,
        rank: &Self::Rank,
        stream: &Self::Stream,
        to: Address,
        from: Address,
        n_bytes: usize,
    ) -> Result<(), Error>;

    /// Makes all exchanges of a rank's group fail, including those that other ranks wait for.
    fn abort(rank: &Self::Rank);
}

/// Device memory, freed when neither a buffer nor captured work uses it.
#[derive(Debug)]
struct Memory<D: Device> {
    device: Arc<D>,
    address: Address,
}

impl<D: Device> Drop for Memory<D> {
    fn drop(&mut self) {
        // SAFETY: the address comes from `allocate`. Views of a buffer do not outlive it, and captured work that
        // was given the address holds this memory too.
        unsafe { self.device.free(self.address) }
    }
}

/// Memory that captured work needs.
pub(crate) type Held = Vec<Arc<dyn Any + Send + Sync>>;

thread_local! {
    /// The memory that the work captured by this thread uses; none if nothing is captured.
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Runs `work` and returns the memory of all buffers whose addresses it requested, each once.
pub(crate) fn hold<T>(work: impl FnOnce() -> T) -> (T, Held) {
    let before = HELD.replace(Some(Vec::new()));
    let result = work();
    let mut held = HELD.replace(before).unwrap_or_default();
    held.sort_by_key(|memory| Arc::as_ptr(memory).addr());
    held.dedup_by_key(|memory| Arc::as_ptr(memory).addr());
    (result, held)
}

/// Device memory, freed when the buffer and the last captured work that uses it are dropped.
#[derive(Debug)]
pub struct Buffer<D: Device> {
    memory: Arc<Memory<D>>,
    n_bytes: usize,
}

impl<D: Device> Buffer<D> {
    /// Allocates memory with undefined content. Messages name it `what`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(device: &Arc<D>, what: &str, n_bytes: usize) -> Result<Self, Error> {
        // The driver rejects allocations of zero bytes.
        let address = device.allocate(what, n_bytes.max(1))?;
        Ok(Self { memory: Arc::new(Memory { device: Arc::clone(device), address }), n_bytes })
    }

    /// Allocates memory and fills it with the bytes of plain values.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or any error of the driver.
    pub fn with<T: bytemuck::NoUninit>(
        device: &Arc<D>,
        stream: &D::Stream,
        what: &str,
        values: &[T],
    ) -> Result<Self, Error> {
        let buffer = Self::new(device, what, size_of_val(values))?;
        buffer.write(stream, 0, values)?;
        Ok(buffer)
    }

    /// Queues a copy of plain values to byte `offset` of the buffer.
    ///
    /// # Errors
    /// Any error of the driver.
    ///
    /// # Panics
    /// If the values exceed the buffer.
    pub fn write<T: bytemuck::NoUninit>(
        &self,
        stream: &D::Stream,
        offset: usize,
        values: &[T],
    ) -> Result<(), Error> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        self.check(offset, bytes.len());
        // SAFETY: the range was checked to be inside this allocation.
        unsafe { self.device().upload(stream, self.memory.address + offset as u64, bytes) }
    }

    /// Waits for the stream and reads plain values from byte `offset` of the buffer.
    ///
    /// # Errors
    /// Any error of the driver, including that of earlier work.
    ///
    /// # Panics
    /// If the buffer has fewer values.
    pub fn read<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(
        &self,
        stream: &D::Stream,
        offset: usize,
        values: &mut [T],
    ) -> Result<(), Error> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(values);
        self.check(offset, bytes.len());
        // SAFETY: the range was checked to be inside this allocation.
        unsafe { self.device().download(stream, bytes, self.memory.address + offset as u64) }
    }

    fn check(&self, offset: usize, n_bytes: usize) {
        let end = offset.checked_add(n_bytes);
        assert!(
            end.is_some_and(|end| end <= self.n_bytes),
            "{n_bytes} bytes at {offset} of a buffer of {}",
            self.n_bytes
        );
    }

    /// Size in bytes.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// The device that holds the memory.
    pub fn device(&self) -> &Arc<D> {
        &self.memory.device
    }

    /// Address of the first byte. Work that this thread captures keeps the memory allocated.
    pub fn address(&self) -> Address {
        HELD.with_borrow_mut(|held| {
            if let Some(held) = held {
                held.push(Arc::clone(&self.memory) as Arc<dyn Any + Send + Sync>);
            }
        });
        self.memory.address
    }
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use super::*;
    use crate::testing::{bench, bench_with};

    #[cfg_attr(test, test)]
    fn a_device_without_memory_left_names_what_it_was_for() {
        let (device, _) = bench_with(1000);
        let first = Buffer::new(&device, "weights", 600).unwrap();
        let error = Buffer::new(&device, "pages", 500).unwrap_err();
        assert_eq!(error, Error::OutOfMemory { what: "pages".to_owned(), n_bytes: 500 });
        // Dropped memory is free again.
        drop(first);
        assert_eq!(Buffer::new(&device, "pages", 500).unwrap().n_bytes(), 500);
    }

    #[cfg_attr(test, test)]
    fn a_kernel_that_is_refused_is_named() {
        let (device, _) = bench();
        let broken = device.load("broken", "not a module").unwrap_err().to_string();
        assert!(broken.contains("rejected kernel `broken`: "), "{broken}");
        let text = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry one() { ret; }";
        let module = device.load("one", text).unwrap();
        let missing = device.function(&module, "two").unwrap_err().to_string();
        assert!(missing.contains("rejected kernel `two`: "), "{missing}");
    }

    #[cfg_attr(test, test)]
    fn a_stream_waits_for_what_another_has_written() {
        let (device, first) = bench();
        let second = device.stream().unwrap();
        let from = Buffer::with(&device, &first, "from", &[1u32, 2, 3]).unwrap();
        let to = Buffer::with(&device, &second, "to", &[0u32; 3]).unwrap();
        device.synchronize(&second).unwrap();
        let event = device.record(&first).unwrap();
        device.wait(&second, &event).unwrap();
        // SAFETY: both ranges are those of 8 bytes within their buffers.
        unsafe { device.copy(&second, to.address(), from.address() + 4, 8) }.unwrap();
        let mut found = [9u32; 3];
        to.read(&second, 0, &mut found).unwrap();
        assert_eq!(found, [2, 3, 0]);
    }

    /// Copies exceed the number of places in the driver's ring of pinned memory, with sizes below, at and above that of
    /// a place.
    #[cfg_attr(test, test)]
    fn copies_one_behind_the_other_arrive_as_they_were() {
        let (device, stream) = bench();
        let sizes =
            [1, 7, (64 << 10) / 4 - 1, (64 << 10) / 4, (64 << 10) / 4 + 1, 100, 5, 4096, 3, 2, 9];
        let values: Vec<Vec<u32>> =
            (0..).zip(sizes).map(|(i, n)| (0..n).map(|w| i << 24 | w).collect()).collect();
        let all = values.concat();
        let to = Buffer::new(&device, "copies", 4 * all.len()).unwrap();
        let mut at = 0;
        for mut values in values {
            to.write(&stream, at, &values).unwrap();
            at += 4 * values.len();
            // The bytes have been read.
            values.fill(u32::MAX);
        }
        let mut found = vec![0u32; all.len()];
        to.read(&stream, 0, &mut found).unwrap();
        assert!(found == all);
    }

    #[cfg_attr(test, test)]
    fn timed_events_tell_what_ran_between_them() {
        let (kernels, stream) = crate::testing::kernels();
        let device = kernels.device();
        let x = Buffer::with(device, &stream, "x", &[1.0f32; 4]).unwrap();
        let first = device.record_timed(&stream).unwrap();
        let rows = || crate::Rows::vector(&x, 4);
        crate::elementwise(&kernels, &stream, &crate::Elementwise::Scale(2.0), rows(), rows())
            .unwrap();
        let second = device.record_timed(&stream).unwrap();
        device.synchronize(&stream).unwrap();
        assert!(device.elapsed(&first, &second).unwrap() > Duration::ZERO);
        assert_eq!(device.elapsed(&first, &first).unwrap(), Duration::ZERO);
    }

    #[cfg_attr(test, test)]
    #[cfg_attr(test, should_panic(expected = "8 bytes at 12 of a buffer of 16"))]
    fn what_does_not_fit_in_a_buffer_is_not_written() {
        let (device, stream) = bench();
        let buffer = Buffer::new(&device, "values", 16).unwrap();
        buffer.write(&stream, 12, &[1u32, 2]).unwrap();
    }

    crate::testing::tests![
        a_device_without_memory_left_names_what_it_was_for,
        a_kernel_that_is_refused_is_named,
        a_stream_waits_for_what_another_has_written,
        copies_one_behind_the_other_arrive_as_they_were,
        timed_events_tell_what_ran_between_them,
        what_does_not_fit_in_a_buffer_is_not_written => "8 bytes at 12 of a buffer of 16",
    ];
}
