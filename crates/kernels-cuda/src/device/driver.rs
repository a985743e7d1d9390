//! The CUDA driver as a [`Device`], opened at run time.
//!
//! A missing or old driver is an error, never a panic.

use std::ffi::{CString, c_void};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cudarc::driver::result::{self, DriverError, event, graph, module, stream};
use cudarc::driver::sys;

use super::context::{Context, Owned, failed, reason};
use super::staging::Staging;
use super::{Address, Argument, Device, DriverRank, Launch, MAX_ARGUMENTS};
use crate::Error;
use crate::error::Version;

/// Minimum driver version: PTX 9.0 was introduced with CUDA 13.0.
const DRIVER: Version = Version { major: 13, minor: 0 };
/// Minimum compute capability, that of the A100, for which the images are compiled.
const CAPABILITY: Version = Version { major: 8, minor: 0 };
/// Minimum compute capability for programmatic dependent launch.
const EARLY_LAUNCHES: Version = Version { major: 9, minor: 0 };

/// The only compute capability with `wgmma`.
const WGMMA: Version = Version { major: 9, minor: 0 };

/// A GPU, opened through the CUDA driver. All openings of a GPU share its primary context.
pub struct Driver {
    context: Arc<Context>,
    gpu: GpuInfo,
    launches_early: bool,
}

/// Properties of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuInfo {
    /// Product name.
    pub name: String,
    /// Compute capability.
    pub capability: Version,
    /// Bytes of memory.
    pub n_bytes: usize,
    /// Number of multiprocessors.
    pub n_multiprocessors: usize,
    /// The newest CUDA version that the driver supports.
    pub driver: Version,
    index: usize,
    device: sys::CUdevice,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("gpu", &self.gpu).finish_non_exhaustive()
    }
}

/// The newest CUDA version that the driver supports.
///
/// # Errors
/// [`Error::NoDriver`], or any error of the driver.
fn driver_version() -> Result<Version, Error> {
    // SAFETY: the call only tries to open libraries by the names of the driver.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoDriver);
    }
    let mut raw = 0;
    // SAFETY: the library is loaded; every version of the driver has this call, and it writes one integer.
    let status = unsafe { sys::cuDriverGetVersion(&raw mut raw) };
    status.result().map_err(failed("version"))?;
    Ok(Version { major: raw as u32 / 1000, minor: raw as u32 % 1000 / 10 })
}

/// The questions that are asked of a driver before a GPU is opened.
trait Probe {
    /// A GPU that was found.
    type Found;

    /// The newest CUDA version that the driver supports; [`Error::NoDriver`] without a driver.
    fn version(&self) -> Result<Version, Error>;

    /// Initializes the driver and counts its GPUs.
    fn n_devices(&self) -> Result<usize, Error>;

    /// A GPU, its name and its compute capability.
    fn device(&self, index: usize) -> Result<(Self::Found, String, Version), Error>;
}

/// Number of GPUs, if the driver is new enough.
fn n_devices(probe: &impl Probe) -> Result<usize, Error> {
    let found = probe.version()?;
    if found < DRIVER {
        return Err(Error::OldDriver { found, needed: DRIVER });
    }
    probe.n_devices()
}

/// Finds a GPU that can run the kernels, with its name and its compute capability.
fn find<P: Probe>(probe: &P, index: usize) -> Result<(P::Found, String, Version), Error> {
    let n = n_devices(probe)?;
    if index >= n {
        return Err(Error::NoDevice { wanted: index, n });
    }
    let (device, name, found) = probe.device(index)?;
    if found < CAPABILITY {
        return Err(Error::OldDevice { name, found, needed: CAPABILITY });
    }
    Ok((device, name, found))
}

/// The installed driver.
struct System;

impl Probe for System {
    type Found = sys::CUdevice;

    fn version(&self) -> Result<Version, Error> {
        driver_version()
    }

    fn n_devices(&self) -> Result<usize, Error> {
        match result::init() {
            Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => return Ok(0),
            other => other.map_err(failed("start"))?,
        }
        let n = result::device::get_count().map_err(failed("count of devices"))?;
        Ok(n as usize)
    }

    fn device(&self, index: usize) -> Result<(sys::CUdevice, String, Version), Error> {
        let device = result::device::get(index as i32).map_err(failed("device"))?;
        let name = result::device::get_name(device).map_err(failed("name"))?;
        use sys::CUdevice_attribute::{
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        };
        let attribute = |which| {
            // SAFETY: `device` comes from `device::get`.
            let value = unsafe { result::device::get_attribute(device, which) };
            value.map(|value| value as u32).map_err(failed("compute capability"))
        };
        Ok((device, name, Version { major: attribute(MAJOR)?, minor: attribute(MINOR)? }))
    }
}

impl Driver {
    /// Number of GPUs.
    ///
    /// # Errors
    /// [`Error::NoDriver`], [`Error::OldDriver`], or any error of the driver.
    pub fn n_devices() -> Result<usize, Error> {
        n_devices(&System)
    }

    /// Describes GPU number `index` without opening it.
    ///
    /// # Errors
    /// As [`n_devices`](Self::n_devices); [`Error::NoDevice`], [`Error::OldDevice`].
    pub fn describe(index: usize) -> Result<GpuInfo, Error> {
        let (device, name, capability) = find(&System, index)?;
        // SAFETY: `device` comes from `device::get`.
        let n_bytes =
            unsafe { result::device::total_mem(device) }.map_err(failed("memory size"))?;
        let count = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        // SAFETY: as above.
        let n_multiprocessors = unsafe { result::device::get_attribute(device, count) };
        let n_multiprocessors =
            n_multiprocessors.map_err(failed("count of multiprocessors"))?.max(1) as usize;
        let driver = driver_version()?;
        Ok(GpuInfo { name, capability, n_bytes, n_multiprocessors, driver, index, device })
    }

    /// Opens GPU number `index`.
    ///
    /// # Errors
    /// As [`describe`](Self::describe), or any error of the driver.
    pub fn open(index: usize) -> Result<Self, Error> {
        let gpu = Self::describe(index)?;
        // SAFETY: the device comes from `device::get`.
        let context = Arc::new(unsafe { Context::retain(gpu.device) }?);
        Ok(Self { context, gpu, launches_early: false })
    }

    /// Switches to dependent launches, which start before the launch before them has ended.
    ///
    /// # Errors
    /// [`Error::NoEarlyLaunches`] if the GPU's compute capability is below 9.0.
    pub fn with_early_launches(self) -> Result<Self, Error> {
        let (name, found) = (self.gpu.name.clone(), self.gpu.capability);
        if found < EARLY_LAUNCHES {
            return Err(Error::NoEarlyLaunches { name, found, needed: EARLY_LAUNCHES });
        }
        Ok(Self { launches_early: true, ..self })
    }

    /// Checks that the GPU can run the kernels of [`WgmmaKernels`](crate::WgmmaKernels).
    ///
    /// # Errors
    /// [`Error::NoWgmma`] unless the GPU's compute capability is exactly 9.0.
    pub fn check_wgmma(&self) -> Result<(), Error> {
        check_wgmma(&self.gpu.name, self.gpu.capability)
    }

    /// Properties of the GPU.
    pub fn info(&self) -> &GpuInfo {
        &self.gpu
    }
}

/// Checks the compute capability for `wgmma`.
fn check_wgmma(name: &str, found: Version) -> Result<(), Error> {
    if found == WGMMA {
        return Ok(());
    }
    Err(Error::NoWgmma { name: name.to_owned(), found, needed: WGMMA })
}

/// A loaded module.
#[derive(Debug)]
pub struct DriverModule(Arc<Owned<sys::CUmodule>>);

/// A kernel, which keeps its module loaded.
pub struct DriverFunction {
    raw: sys::CUfunction,
    name: String,
    _module: Arc<Owned<sys::CUmodule>>,
}

// SAFETY: functions may be used by all threads, as their context.
unsafe impl Send for DriverFunction {}
// SAFETY: as above.
unsafe impl Sync for DriverFunction {}

impl fmt::Debug for DriverFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A stream and its staging memory for uploads.
pub struct DriverStream(Owned<sys::CUstream>, Mutex<Staging>);

impl fmt::Debug for DriverStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A recorded event.
#[derive(Debug)]
pub struct DriverEvent(Owned<sys::CUevent>);

/// An instantiated graph.
#[derive(Debug)]
pub struct DriverGraph(Owned<sys::CUgraphExec>);

impl Driver {
    fn record_with(
        &self,
        stream: &DriverStream,
        flags: sys::CUevent_flags,
    ) -> Result<DriverEvent, Error> {
        self.context.enter()?;
        let event = self.own(event::create(flags).map_err(failed("event"))?, event::destroy);
        // SAFETY: both handles are valid.
        unsafe { event::record(event.raw, stream.0.raw) }.map_err(failed("event"))?;
        Ok(DriverEvent(event))
    }

    fn own<T: Copy>(&self, raw: T, release: unsafe fn(T) -> Result<(), DriverError>) -> Owned<T> {
        Owned::new(&self.context, raw, release)
    }
}

impl Device for Driver {
    type Module = DriverModule;
    type Function = DriverFunction;
    type Stream = DriverStream;
    type Event = DriverEvent;
    type Graph = DriverGraph;
    type Rank = DriverRank;

    fn name(&self) -> String {
        self.gpu.name.clone()
    }

    fn free_bytes(&self) -> Result<usize, Error> {
        self.context.enter()?;
        let (free, _) = result::mem_get_info().map_err(failed("free memory"))?;
        Ok(free)
    }

    fn n_multiprocessors(&self) -> usize {
        self.gpu.n_multiprocessors
    }

    fn launches_early(&self) -> bool {
        self.launches_early
    }

    fn load(&self, name: &str, ptx: &str) -> Result<Self::Module, Error> {
        self.context.enter()?;
        let refused = |reason| Error::Kernel { kernel: name.to_owned(), reason };
        let text = CString::new(ptx).map_err(|e| refused(e.to_string()))?;
        // SAFETY: the image is zero-terminated PTX, as the driver requires.
        let raw = unsafe { module::load_data(text.as_ptr().cast()) };
        let raw = raw.map_err(|e| refused(reason(e)))?;
        Ok(DriverModule(Arc::new(self.own(raw, module::unload))))
    }

    fn function(&self, module: &Self::Module, name: &str) -> Result<Self::Function, Error> {
        self.context.enter()?;
        let refused = |reason| Error::Kernel { kernel: name.to_owned(), reason };
        let text = CString::new(name).map_err(|e| refused(e.to_string()))?;
        // SAFETY: the module is loaded as long as its handle lives.
        let raw = unsafe { module::get_function(module.0.raw, text) };
        let raw = raw.map_err(|e| refused(reason(e)))?;
        Ok(DriverFunction { raw, name: name.to_owned(), _module: Arc::clone(&module.0) })
    }

    fn allow_shared(&self, function: &Self::Function, n_bytes: u32) -> Result<(), Error> {
        self.context.enter()?;
        let what = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is loaded as long as its handle lives.
        let set = unsafe { sys::cuFuncSetAttribute(function.raw, what, n_bytes as i32) }.result();
        let kernel = || function.name.clone();
        set.map_err(|e| Error::Kernel { kernel: kernel(), reason: reason(e) })
    }

    fn allocate(&self, what: &str, n_bytes: usize) -> Result<Address, Error> {
        self.context.enter()?;
        // SAFETY: the memory is not read before it is written.
        match unsafe { result::malloc_sync(n_bytes) } {
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                Err(Error::OutOfMemory { what: what.to_owned(), n_bytes })
            }
            other => other.map_err(failed("allocation")),
        }
    }

    unsafe fn free(&self, address: Address) {
        if self.context.enter().is_ok() {
            // SAFETY: the caller has the address from `allocate`. The driver waits for queued work.
            let _ = unsafe { result::free_sync(address) };
        }
    }

    fn stream(&self) -> Result<Self::Stream, Error> {
        self.context.enter()?;
        let raw = stream::create(stream::StreamKind::NonBlocking).map_err(failed("stream"))?;
        Ok(DriverStream(self.own(raw, stream::destroy), Mutex::default()))
    }

    unsafe fn upload(&self, stream: &Self::Stream, to: Address, bytes: &[u8]) -> Result<(), Error> {
        self.context.enter()?;
        // SAFETY: the stream is valid as long as its handle lives.
        let status = unsafe { stream::is_capturing(stream.0.raw) }.map_err(failed("upload"))?;
        if status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            let reason = "the stream is captured, and a graph would hold the host's address";
            return Err(Error::Driver { call: "upload", reason: reason.to_owned() });
        }
        let mut staging = stream.1.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller vouches for the range; the stream is not captured, and it alone uses this staging memory.
        let queued = unsafe { staging.upload(&self.context, stream.0.raw, to, bytes) };
        queued.map_err(failed("upload"))
    }

    unsafe fn download(
        &self,
        stream: &Self::Stream,
        to: &mut [u8],
        from: Address,
    ) -> Result<(), Error> {
        self.context.enter()?;
        // SAFETY: the caller vouches for the range, and the host waits for the copy below.
        unsafe { result::memcpy_dtoh_async(to, from, stream.0.raw) }.map_err(failed("download"))?;
        self.synchronize(stream)
    }

    unsafe fn copy(
        &self,
        stream: &Self::Stream,
        to: Address,
        from: Address,
        n_bytes: usize,
    ) -> Result<(), Error> {
        self.context.enter()?;
        // SAFETY: the caller vouches for both ranges.
        let queued = unsafe { result::memcpy_dtod_async(to, from, n_bytes, stream.0.raw) };
        queued.map_err(failed("copy"))
    }

    unsafe fn launch(
        &self,
        stream: &Self::Stream,
        launch: &Launch<'_, Self::Function>,
    ) -> Result<(), Error> {
        self.context.enter()?;
        assert!(launch.arguments.len() <= MAX_ARGUMENTS, "{} arguments", launch.arguments.len());
        let mut pointers = [std::ptr::null_mut::<c_void>(); MAX_ARGUMENTS];
        for (pointer, argument) in pointers.iter_mut().zip(launch.arguments) {
            let value: *const c_void = match argument {
                Argument::Address(value) => std::ptr::from_ref(value).cast(),
                Argument::I32(value) => std::ptr::from_ref(value).cast(),
                Argument::F32(value) => std::ptr::from_ref(value).cast(),
            };
            *pointer = value.cast_mut();
        }
        let mut attribute = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]) = (launch.grid, launch.block);
        let config = sys::CUlaunchConfig {
            gridDimX: grid_x,
            gridDimY: grid_y,
            gridDimZ: grid_z,
            blockDimX: block_x,
            blockDimY: block_y,
            blockDimZ: block_z,
            sharedMemBytes: launch.shared_bytes,
            hStream: stream.0.raw,
            attrs: &raw mut attribute,
            numAttrs: u32::from(launch.is_dependent),
        };
        let (function, nothing) = (launch.function.raw, std::ptr::null_mut());
        // SAFETY: the pointers lead to the arguments, which the driver copies before it returns, as it does with the
        // attribute; the caller vouches for their number, types and addresses.
        let queued = unsafe {
            sys::cuLaunchKernelEx(&raw const config, function, pointers.as_mut_ptr(), nothing)
        };
        let queued = queued.result();
        let kernel = || launch.function.name.clone();
        queued.map_err(|e| Error::Kernel { kernel: kernel(), reason: reason(e) })
    }

    fn begin_capture(&self, stream: &Self::Stream) -> Result<(), Error> {
        self.context.enter()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is valid as long as its handle lives.
        unsafe { stream::begin_capture(stream.0.raw, mode) }.map_err(failed("capture"))
    }

    fn end_capture(&self, stream: &Self::Stream) -> Result<Self::Graph, Error> {
        self.context.enter()?;
        // SAFETY: the stream is valid as long as its handle lives.
        let captured = unsafe { stream::end_capture(stream.0.raw) }.map_err(failed("capture"))?;
        let captured = self.own(captured, graph::destroy);
        let flags = sys::CUgraphInstantiate_flags(0);
        // SAFETY: the graph is valid until `captured` is dropped; the instantiated graph does not depend on it.
        let raw = unsafe { graph::instantiate(captured.raw, flags) }.map_err(failed("graph"))?;
        Ok(DriverGraph(self.own(raw, graph::exec_destroy)))
    }

    unsafe fn replay(&self, stream: &Self::Stream, graph: &Self::Graph) -> Result<(), Error> {
        self.context.enter()?;
        // SAFETY: both handles are valid; the caller vouches for the memory that the graph uses.
        unsafe { graph::launch(graph.0.raw, stream.0.raw) }.map_err(failed("graph"))
    }

    fn record(&self, stream: &Self::Stream) -> Result<Self::Event, Error> {
        self.record_with(stream, sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    fn record_timed(&self, stream: &Self::Stream) -> Result<Self::Event, Error> {
        self.record_with(stream, sys::CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn elapsed(&self, from: &Self::Event, to: &Self::Event) -> Result<Duration, Error> {
        self.context.enter()?;
        // SAFETY: both handles are valid.
        let elapsed = unsafe { event::elapsed(from.0.raw, to.0.raw) }.map_err(failed("event"))?;
        Ok(Duration::from_secs_f64(f64::from(elapsed).max(0.0) / 1e3))
    }

    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> Result<(), Error> {
        self.context.enter()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both handles are valid.
        unsafe { stream::wait_event(stream.0.raw, event.0.raw, flags) }.map_err(failed("event"))
    }

    fn synchronize(&self, stream: &Self::Stream) -> Result<(), Error> {
        self.context.enter()?;
        // SAFETY: the stream is valid as long as its handle lives.
        unsafe { stream::synchronize(stream.0.raw) }.map_err(failed("kernel or copy"))
    }

    fn group(devices: &[Arc<Self>]) -> Result<Vec<Self::Rank>, Error> {
        let gpus: Vec<usize> = devices.iter().map(|device| device.gpu.index).collect();
        DriverRank::group(&gpus)
    }

    unsafe fn all_gather(
        &self,
        rank: &Self::Rank,
        stream: &Self::Stream,
        to: Address,
        from: Address,
        n_bytes: usize,
    ) -> Result<(), Error> {
        self.context.enter()?;
        // SAFETY: the context is current and the stream's handle valid; the caller vouches for the ranges.
        unsafe { rank.all_gather(stream.0.raw.cast(), to, from, n_bytes) }
    }

    fn abort(rank: &Self::Rank) {
        rank.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A driver of this version, if any, with GPUs of these compute capabilities.
    struct Fake(Option<(u32, u32)>, &'static [(u32, u32)]);

    fn version((major, minor): (u32, u32)) -> Version {
        Version { major, minor }
    }

    impl Probe for Fake {
        type Found = usize;

        fn version(&self) -> Result<Version, Error> {
            self.0.map(version).ok_or(Error::NoDriver)
        }

        fn n_devices(&self) -> Result<usize, Error> {
            assert!(self.0 >= Some((13, 0)), "an old driver is not started");
            Ok(self.1.len())
        }

        fn device(&self, index: usize) -> Result<(usize, String, Version), Error> {
            Ok((index, format!("gpu {index}"), version(self.1[index])))
        }
    }

    #[test]
    fn only_cards_of_capability_9_0_multiply_by_groups_of_warps() {
        assert_eq!(check_wgmma("H100", version((9, 0))), Ok(()));
        for other in [(8, 9), (10, 0), (12, 1)] {
            let error = check_wgmma("gpu", version(other)).unwrap_err().to_string();
            let (major, minor) = other;
            let expected = format!(
                "gpu does not support the wgmma kernels: its compute capability is \
                 {major}.{minor}, but they require exactly 9.0"
            );
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn drivers_and_cards_that_do_not_run_the_kernels_are_named() {
        const CARDS: &[(u32, u32)] = &[(7, 5), (8, 0), (12, 1)];
        let cases: [(Fake, usize, Result<&str, &str>); 8] = [
            (
                Fake(None, CARDS),
                0,
                Err("no CUDA driver: libcuda.so.1 (on Windows nvcuda.dll) was not found"),
            ),
            (
                Fake(Some((12, 9)), CARDS),
                1,
                Err("the CUDA driver is too old: it supports CUDA 12.9, but 13.0 is required"),
            ),
            (Fake(Some((13, 0)), &[]), 0, Err("no CUDA device 0: the driver found 0")),
            (Fake(Some((13, 0)), CARDS), 3, Err("no CUDA device 3: the driver found 3")),
            (
                Fake(Some((13, 0)), CARDS),
                0,
                Err("gpu 0 is too old: its compute capability is 7.5, but 8.0 is required"),
            ),
            (Fake(Some((13, 0)), CARDS), 1, Ok("gpu 1 8.0")),
            (Fake(Some((13, 5)), CARDS), 2, Ok("gpu 2 12.1")),
            (Fake(Some((14, 0)), CARDS), 2, Ok("gpu 2 12.1")),
        ];
        for (fake, index, expected) in cases {
            let found = find(&fake, index).map_err(|error| error.to_string());
            let found = found.map(|(at, name, capability)| {
                assert_eq!(at, index);
                format!("{name} {capability}")
            });
            assert_eq!(found, expected.map(str::to_owned).map_err(str::to_owned));
        }
    }

    #[test]
    fn a_machine_without_a_card_gives_one_clear_error() {
        match Driver::n_devices() {
            Ok(n) => assert_eq!(
                Driver::open(n).unwrap_err(),
                Error::NoDevice { wanted: n, n },
                "a gpu behind the last one"
            ),
            Err(error) => {
                assert!(!error.to_string().contains('\n'), "{error}");
                assert_eq!(Driver::open(0).unwrap_err(), error);
            }
        }
    }
}
