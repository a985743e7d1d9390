//! What can go wrong between an adapter and a result.

/// An error of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no adapter of that index.
    #[error("no GPU adapter {wanted}: {n} found (is a Vulkan, Metal or DX12 driver installed?)")]
    NoAdapter {
        /// The index that was requested.
        wanted: usize,
        /// Adapters that there are.
        n: usize,
    },
    /// The adapter gives no device.
    #[error("GPU `{adapter}` cannot be opened: {reason}")]
    Open {
        /// The adapter's name.
        adapter: String,
        /// What its driver says.
        reason: String,
    },
    /// The device has no memory left.
    #[error("the GPU is out of memory: {what} of {n_bytes} bytes cannot be allocated")]
    OutOfMemory {
        /// What the memory was for.
        what: String,
        /// Its size.
        n_bytes: u64,
    },
    /// Something is larger than the device allows.
    #[error("{what} needs {needed}, but the GPU's {limit} is {available}")]
    Limit {
        /// What is too large.
        what: String,
        /// How large it is.
        needed: u64,
        /// The limit's name in the WebGPU specification.
        limit: &'static str,
        /// The device's value.
        available: u64,
    },
    /// A kernel does not exist for these arguments.
    #[error("the GPU kernels do not support {0}")]
    Unsupported(String),
    /// The device is gone: it was reset, removed or destroyed. Nothing that was
    /// made with it works any longer.
    #[error("the GPU was lost: {0}")]
    Lost(String),
    /// The driver or the API refused a command.
    #[error("the GPU rejected {what}: {reason}")]
    Refused {
        /// The command.
        what: String,
        /// Why, as the API says it.
        reason: String,
    },
}
