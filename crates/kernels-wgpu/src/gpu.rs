//! An opened device: its abilities, its buffers, its pipelines, and what became
//! of it.
//!
//! Errors of the API arrive by callback. They are kept here and returned by the
//! next call that can fail; none panics.

use crate::kernel::Pipelines;
use crate::{Adapter, Error};
use std::sync::{Arc, Mutex, PoisonError};

/// What kernels may use, where the adapter has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuOptions {
    /// Reductions by subgroup operations.
    pub subgroups: bool,
    /// Half-precision values in shaders.
    pub f16: bool,
    /// Dot products of four packed 8-bit integers.
    pub packed_dot: bool,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self { subgroups: true, f16: true, packed_dot: true }
    }
}

impl GpuOptions {
    /// Nothing that an adapter may lack.
    pub const PLAIN: Self = Self { subgroups: false, f16: false, packed_dot: false };
}

/// What a device is able to do, as far as kernels care.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caps {
    /// Subgroup operations are used.
    pub subgroups: bool,
    /// Half-precision values in shaders are used.
    pub f16: bool,
    /// Packed 8-bit dot products are used.
    pub packed_dot: bool,
    /// The smallest and the largest subgroup.
    pub subgroup_sizes: (u32, u32),
    /// Time can be taken on the device.
    pub timestamps: bool,
    /// Bytes of a storage buffer that a kernel can see.
    pub max_binding_bytes: u64,
    /// Bytes of a buffer.
    pub max_buffer_bytes: u64,
    /// Workgroups in each dimension of a dispatch.
    pub max_workgroups: u32,
    /// Bytes of memory that a workgroup shares.
    pub max_workgroup_bytes: u32,
}

/// What went wrong since it was last asked, and whether the device is gone.
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

fn lock(faults: &Mutex<Faults>) -> std::sync::MutexGuard<'_, Faults> {
    faults.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An opened device. Clones are handles on the same one.
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
    pipelines: Pipelines,
}

/// Memory on the device. Clones are handles on the same memory.
#[derive(Debug, Clone)]
pub struct Buffer {
    pub(crate) raw: wgpu::Buffer,
}

impl Buffer {
    /// Its bytes.
    pub fn n_bytes(&self) -> u64 {
        self.raw.size()
    }
}

impl Gpu {
    /// Opens the adapter of index `index` in [`Adapter::all`].
    ///
    /// # Errors
    /// If there is no such adapter, or its driver gives no device.
    pub fn open(index: usize, options: GpuOptions) -> Result<Self, Error> {
        let adapters = Adapter::all();
        let n = adapters.len();
        let adapter = adapters.get(index).ok_or(Error::NoAdapter { wanted: index, n })?;
        Self::with_adapter(adapter, options)
    }

    /// Opens `adapter`.
    ///
    /// # Errors
    /// If its driver gives no device.
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
            // The language has them everywhere; drivers without the instruction
            // get it spelled out.
            packed_dot: options.packed_dot,
            subgroup_sizes: (info.subgroup_min_size, info.subgroup_max_size),
            timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
            max_binding_bytes: limits.max_storage_buffer_binding_size,
            max_buffer_bytes: limits.max_buffer_size,
            max_workgroups: limits.max_compute_workgroups_per_dimension,
            max_workgroup_bytes: limits.max_compute_workgroup_storage_size,
        };
        let faults = Arc::new(Mutex::new(Faults::default()));
        let seen = faults.clone();
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            let fault = match error {
                wgpu::Error::OutOfMemory { .. } => Fault::OutOfMemory,
                other => Fault::Refused(other.to_string()),
            };
            // The first is the cause; later ones follow from it.
            lock(&seen).error.get_or_insert(fault);
        }));
        let seen = faults.clone();
        device.set_device_lost_callback(move |reason, message| {
            lock(&seen).lost = Some(format!("{message} ({reason:?})"));
        });
        let pipelines = Pipelines::default();
        let name = info.name;
        Ok(Self { inner: Arc::new(Inner { name, caps, device, queue, faults, pipelines }) })
    }

    /// The adapter's name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What it is able to do.
    pub fn caps(&self) -> &Caps {
        &self.inner.caps
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

    /// Gives the device back to the system, as if it had been lost.
    pub fn destroy(&self) {
        self.inner.device.destroy();
    }

    /// Whatever went wrong since the last check, while `what` was done.
    ///
    /// # Errors
    /// If something did.
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

    fn raw_buffer(
        &self,
        what: &str,
        n_bytes: u64,
        usage: wgpu::BufferUsages,
    ) -> Result<Buffer, Error> {
        let size = n_bytes.max(4).next_multiple_of(4);
        let caps = self.caps();
        let limits = [
            ("maxBufferSize", caps.max_buffer_bytes, true),
            (
                "maxStorageBufferBindingSize",
                caps.max_binding_bytes,
                usage.contains(wgpu::BufferUsages::STORAGE),
            ),
        ];
        for (limit, available, applies) in limits {
            if applies && size > available {
                return Err(Error::Limit { what: what.to_owned(), needed: size, limit, available });
            }
        }
        let raw = self.device().create_buffer(&wgpu::BufferDescriptor {
            label: Some(what),
            size,
            usage,
            mapped_at_creation: false,
        });
        self.check(what, size)?;
        Ok(Buffer { raw })
    }

    /// Zeroed memory that kernels read and write.
    ///
    /// # Errors
    /// If it is larger than the device allows, or there is no memory left.
    pub fn buffer(&self, what: &str, n_bytes: u64) -> Result<Buffer, Error> {
        let usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST;
        self.raw_buffer(what, n_bytes, usage)
    }

    /// Memory that results are copied to, to be read by [`Self::read`].
    ///
    /// # Errors
    /// As [`Self::buffer`].
    pub fn readback_buffer(&self, what: &str, n_bytes: u64) -> Result<Buffer, Error> {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        self.raw_buffer(what, n_bytes, usage)
    }

    /// A small buffer of constants.
    pub(crate) fn uniform(&self, what: &str, bytes: &[u8]) -> Result<Buffer, Error> {
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let buffer = self.raw_buffer(what, bytes.len() as u64, usage)?;
        self.write(&buffer, 0, bytes)?;
        Ok(buffer)
    }

    /// Copies `bytes` into `buffer` from byte `offset` on, before anything that
    /// is submitted later. Both numbers are multiples of 4.
    ///
    /// # Errors
    /// If the copy is refused or memory for it runs out.
    pub fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.queue().write_buffer(&buffer.raw, offset, bytes);
        self.check("a copy to the GPU", bytes.len() as u64)
    }

    /// Waits until everything that was submitted is done.
    ///
    /// # Errors
    /// If the device was lost or refused something.
    pub fn wait(&self) -> Result<(), Error> {
        let polled = self.device().poll(wgpu::PollType::wait_indefinitely());
        self.check("a submission", 0)?;
        polled.map(|_| ()).map_err(|error| Error::Lost(error.to_string()))
    }

    /// Waits, then appends the elements that `buffer`, a readback buffer, begins
    /// with to `out`, as many as there is room for in its `len`.
    ///
    /// # Errors
    /// If the device was lost or refused something.
    pub fn read<T: bytemuck::Pod>(&self, buffer: &Buffer, out: &mut [T]) -> Result<(), Error> {
        let n_bytes = size_of_val(out) as u64;
        if n_bytes == 0 {
            return self.wait();
        }
        let mapped = Arc::new(Mutex::new(None));
        let result = mapped.clone();
        let slice = buffer.raw.slice(..n_bytes);
        slice.map_async(wgpu::MapMode::Read, move |mapping| {
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(mapping);
        });
        self.wait()?;
        let refused = |reason: String| Error::Refused { what: "a read".to_owned(), reason };
        let mapping = mapped.lock().unwrap_or_else(PoisonError::into_inner).take();
        match mapping {
            Some(Ok(())) => {}
            Some(Err(error)) => return Err(refused(error.to_string())),
            None => return Err(refused("it was never answered".to_owned())),
        }
        {
            let view = slice.get_mapped_range().map_err(|e| refused(e.to_string()))?;
            bytemuck::cast_slice_mut::<T, u8>(out).copy_from_slice(&view);
        }
        buffer.raw.unmap();
        Ok(())
    }
}
