//! Errors of adapters, devices and kernels.

/// A device cannot be opened, is lost, or cannot run a kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no adapter with this index.
    #[error("no GPU adapter {wanted}: {n} found (is a Vulkan, Metal or DX12 driver installed?)")]
    NoAdapter {
        /// The requested index.
        wanted: usize,
        /// Number of adapters.
        n: usize,
    },
    /// The adapter's driver does not open a device.
    #[error("GPU `{adapter}` cannot be opened: {reason}")]
    Open {
        /// The adapter's name.
        adapter: String,
        /// The driver's message.
        reason: String,
    },
    /// The device is out of memory.
    #[error("the GPU is out of memory: {what} of {n_bytes} bytes cannot be allocated")]
    OutOfMemory {
        /// The purpose of the memory.
        what: String,
        /// The requested bytes.
        n_bytes: u64,
    },
    /// A size exceeds a limit of the device.
    #[error("{what} needs {needed}, but the GPU's {limit} is {available}")]
    Limit {
        /// The object that is too large.
        what: String,
        /// Its size.
        needed: u64,
        /// The limit's name in the WebGPU specification.
        limit: &'static str,
        /// The device's value.
        available: u64,
    },
    /// A kernel does not exist for these arguments.
    #[error("the GPU kernels do not support {0}")]
    Unsupported(String),
    /// The device was lost: reset, removed or destroyed. All its objects are unusable.
    #[error("the GPU was lost: {0}")]
    Lost(String),
    /// The driver or the API refused a command.
    #[error("the GPU rejected {what}: {reason}")]
    Refused {
        /// The command.
        what: String,
        /// The API's message.
        reason: String,
    },
}
