//! What can go wrong between a driver and a result.

/// An error of a CUDA device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver's library is not on this machine.
    #[error("no CUDA driver: libcuda.so.1 (on Windows nvcuda.dll) was not found")]
    NoDriver,
    /// The driver does not know the version of the kernels.
    #[error("the CUDA driver is too old: it supports CUDA {found}, but {needed} is required")]
    OldDriver {
        /// The driver's newest CUDA version.
        found: Version,
        /// The oldest version that will do.
        needed: Version,
    },
    /// The library by which cards exchange rows is not on this machine.
    #[error("no NCCL: libnccl.so.2, which tensor parallelism needs, was not found")]
    NoNccl,
    /// That library is too old.
    #[error("NCCL is too old: it is version {found}, but {needed} is required")]
    OldNccl {
        /// Its version.
        found: Version,
        /// The oldest version that will do.
        needed: Version,
    },
    /// There is no card of that index.
    #[error("no CUDA device {wanted}: the driver found {n}")]
    NoDevice {
        /// The index that was requested.
        wanted: usize,
        /// Cards that there are.
        n: usize,
    },
    /// The card does not run the kernels' instructions.
    #[error("{name} is too old: its compute capability is {found}, but {needed} is required")]
    OldDevice {
        /// The card's name.
        name: String,
        /// Its compute capability.
        found: Version,
        /// The lowest that will do.
        needed: Version,
    },
    /// The card's kernels cannot wait for the launch in front of theirs.
    #[error(
        "{name} has no programmatic dependent launch: its compute capability is {found}, but \
         {needed} is required"
    )]
    NoEarlyLaunches {
        /// The card's name.
        name: String,
        /// Its compute capability.
        found: Version,
        /// The lowest that has it.
        needed: Version,
    },
    /// The card has no products of groups of warps.
    #[error(
        "{name} does not support the wgmma kernels: its compute capability is {found}, but they \
         require exactly {needed}"
    )]
    NoWgmma {
        /// The card's name.
        name: String,
        /// Its compute capability.
        found: Version,
        /// The only one that has them.
        needed: Version,
    },
    /// The card has no memory left.
    #[error("the CUDA device is out of memory: {what} of {n_bytes} bytes cannot be allocated")]
    OutOfMemory {
        /// What the memory was for.
        what: String,
        /// Its size.
        n_bytes: usize,
    },
    /// The driver does not take a kernel, or has none of that name.
    #[error("the CUDA driver rejected kernel `{kernel}`: {reason}")]
    Kernel {
        /// The kernel, or the module that it is in.
        kernel: String,
        /// What the driver says.
        reason: String,
    },
    /// No kernel takes weights of this type.
    #[error("no CUDA kernel supports weights of type {0}")]
    BlockType(realizar_quant::BlockType),
    /// A matrix whose bytes are not those of its rows and columns.
    #[error("{what}: {message}")]
    Matrix {
        /// The matrix.
        what: String,
        /// What was expected and found.
        message: String,
    },
    /// Keys and values of a shape that no kernel takes.
    #[error("{what}: {message}")]
    Pages {
        /// What they are of.
        what: String,
        /// What was found, and what is supported.
        message: String,
    },
    /// Recurrent states that no kernel can number.
    #[error("{what}: {message}")]
    States {
        /// What they are of.
        what: String,
        /// What was requested.
        message: String,
    },
    /// Anything else that the driver reports, a failed kernel among it.
    #[error("CUDA {call}: {reason}")]
    Driver {
        /// What was asked of the driver.
        call: &'static str,
        /// What it says.
        reason: String,
    },
}

/// An error of `bench_cuda`.
#[cfg(feature = "bench")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Arguments that it does not have.
    #[error("{0} (see --help)")]
    Usage(String),
    /// A file that cannot be written.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: String,
        /// What the system says.
        reason: String,
    },
    /// A type that weights cannot be quantized to, or that no kernel takes.
    #[error("no random weights of type {0}: nothing quantizes to it, or no kernel takes it")]
    NoWeights(realizar_quant::BlockType),
    /// Results that are not numbers.
    #[error("{kernel}: {n} of the first results are not finite")]
    NotFinite {
        /// What was launched.
        kernel: String,
        /// How many.
        n: usize,
    },
    /// Reads that did not read what was written.
    #[error("the sum of what was read is {found}, not {expected}")]
    Sum {
        /// The sum on the device.
        found: u32,
        /// That of what was written.
        expected: u32,
    },
    /// Copies that did not arrive as they were.
    #[error("small copies to the GPU did not arrive as they were")]
    Upload,
    /// What the device reports.
    #[error(transparent)]
    Device(#[from] Error),
}

#[cfg(feature = "bench")]
impl BenchError {
    /// Whether nothing else can run after it: a failed kernel breaks the context.
    pub(crate) fn is_fatal(&self) -> bool {
        matches!(self, Self::File { .. } | Self::Device(Error::Driver { .. }))
    }
}

/// A version of CUDA, or a compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// In front of the dot.
    pub major: u32,
    /// After it.
    pub minor: u32,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
