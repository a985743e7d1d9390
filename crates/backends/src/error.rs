//! Errors of devices, and of loading a plan onto one.

use std::path::PathBuf;

/// The kind of a device's failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceFault {
    /// It has no memory left; what was loaded before still works.
    OutOfMemory,
    /// Something is larger than it allows.
    Limit,
    /// It is gone; every model on it has to be loaded again.
    Lost,
    /// Anything else: it is not there, or refuses a command.
    Other,
}

/// An error of a device, or of loading a plan onto it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that weights are read from was cut off.
    #[error(transparent)]
    Format(#[from] realizar_formats::Error),
    /// A file of packed weights cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// The key-value cache cannot be laid out.
    #[error(transparent)]
    Kv(#[from] realizar_kvcache::Error),
    /// A load option has a value that cannot be used.
    #[error("{option}: {reason}")]
    Option { option: &'static str, reason: String },
    /// The backend cannot run the model's plan.
    #[error("{backend} cannot run this model: {}", reasons.join("; "))]
    Refused {
        backend: String,
        /// Each operation or size that it does not support.
        reasons: Vec<String>,
    },
    /// The device failed.
    #[error("{device}: {reason}")]
    Device { device: String, fault: DeviceFault, reason: String },
}

impl Error {
    /// Whether the device or a file of the weights is gone, so that the model has to be loaded again.
    pub fn has_lost_model(&self) -> bool {
        matches!(
            self,
            Self::Format(realizar_formats::Error::Lost { .. })
                | Self::Device { fault: DeviceFault::Lost, .. }
        )
    }
}
