//! The errors of this crate.

/// An error of a CUDA device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver library was not found.
    #[error("no CUDA driver: libcuda.so.1 (on Windows nvcuda.dll) was not found")]
    NoDriver,
    /// The driver does not support the CUDA version of the kernels.
    #[error("the CUDA driver is too old: it supports CUDA {found}, but {needed} is required")]
    OldDriver {
        /// The newest CUDA version that the driver supports.
        found: Version,
        /// Minimum version.
        needed: Version,
    },
    /// NCCL was not found.
    #[error("no NCCL: libnccl.so.2, which tensor parallelism needs, was not found")]
    NoNccl,
    /// The installed NCCL is too old.
    #[error("NCCL is too old: it is version {found}, but {needed} is required")]
    OldNccl {
        /// Installed version.
        found: Version,
        /// Minimum version.
        needed: Version,
    },
    /// No GPU has this index.
    #[error("no CUDA device {wanted}: the driver found {n}")]
    NoDevice {
        /// Requested index.
        wanted: usize,
        /// Number of GPUs.
        n: usize,
    },
    /// The GPU does not support the kernels' instructions.
    #[error("{name} is too old: its compute capability is {found}, but {needed} is required")]
    OldDevice {
        /// Name of the GPU.
        name: String,
        /// Its compute capability.
        found: Version,
        /// Minimum compute capability.
        needed: Version,
    },
    /// The GPU does not support programmatic dependent launch.
    #[error(
        "{name} has no programmatic dependent launch: its compute capability is {found}, but \
         {needed} is required"
    )]
    NoEarlyLaunches {
        /// Name of the GPU.
        name: String,
        /// Its compute capability.
        found: Version,
        /// Minimum compute capability.
        needed: Version,
    },
    /// The GPU does not support `wgmma`.
    #[error(
        "{name} does not support the wgmma kernels: its compute capability is {found}, but they \
         require exactly {needed}"
    )]
    NoWgmma {
        /// Name of the GPU.
        name: String,
        /// Its compute capability.
        found: Version,
        /// The only compute capability with `wgmma`.
        needed: Version,
    },
    /// The GPU is out of memory.
    #[error("the CUDA device is out of memory: {what} of {n_bytes} bytes cannot be allocated")]
    OutOfMemory {
        /// Purpose of the allocation.
        what: String,
        /// Size of the allocation in bytes.
        n_bytes: usize,
    },
    /// The driver rejected a kernel, or the module has no kernel of this name.
    #[error("the CUDA driver rejected kernel `{kernel}`: {reason}")]
    Kernel {
        /// The kernel or its module.
        kernel: String,
        /// The driver's message.
        reason: String,
    },
    /// No kernel supports weights of this type.
    #[error("no CUDA kernel supports weights of type {0}")]
    BlockType(realizar_quant::BlockType),
    /// The size of a matrix's data does not match its rows and columns.
    #[error("{what}: {message}")]
    Matrix {
        /// Name of the matrix.
        what: String,
        /// Expected and found sizes.
        message: String,
    },
    /// No kernel supports keys and values of this shape.
    #[error("{what}: {message}")]
    Pages {
        /// The layer, or whatever else holds the keys and values.
        what: String,
        /// Found and supported shapes.
        message: String,
    },
    /// The recurrent states exceed the kernels' index range.
    #[error("{what}: {message}")]
    States {
        /// The layer that holds the states.
        what: String,
        /// Requested sizes.
        message: String,
    },
    /// Any other error of the driver, including a failed kernel.
    #[error("CUDA {call}: {reason}")]
    Driver {
        /// The call that failed.
        call: &'static str,
        /// The driver's message.
        reason: String,
    },
}

/// An error of `bench_cuda`.
#[cfg(feature = "bench")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Unknown or malformed arguments.
    #[error("{0} (see --help)")]
    Usage(String),
    /// A file cannot be written.
    #[error("{path}: {reason}")]
    File {
        /// Path of the file.
        path: String,
        /// The system's message.
        reason: String,
    },
    /// No quantizer or no kernel exists for weights of this type.
    #[error("no random weights of type {0}: nothing quantizes to it, or no kernel takes it")]
    NoWeights(realizar_quant::BlockType),
    /// Results contain NaN or infinities.
    #[error("{kernel}: {n} of the first results are not finite")]
    NotFinite {
        /// Names of the launched kernels.
        kernel: String,
        /// Number of such values among the first results.
        n: usize,
    },
    /// A read did not return the data that was written.
    #[error("the sum of what was read is {found}, not {expected}")]
    Sum {
        /// Checksum found on the device.
        found: u32,
        /// Checksum of the written data.
        expected: u32,
    },
    /// Small uploads were corrupted.
    #[error("small copies to the GPU did not arrive as they were")]
    Upload,
    /// Any error of the device.
    #[error(transparent)]
    Device(#[from] Error),
}

#[cfg(feature = "bench")]
impl BenchError {
    /// Whether nothing can run after this error. A failed kernel destroys the context.
    pub(crate) fn is_fatal(&self) -> bool {
        matches!(self, Self::File { .. } | Self::Device(Error::Driver { .. }))
    }
}

/// A version of CUDA, or a compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The part before the dot.
    pub major: u32,
    /// The part after the dot.
    pub minor: u32,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
