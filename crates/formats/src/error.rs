//! Errors of model files, reported in one line.
//!
//! Texts from a file (keys, names, numbers in JSON) are untrusted: they are shortened and their control
//! characters escaped before they enter a message.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use crate::TensorType;
use crate::printable::{one_line, shown};

/// A model file is not valid or not readable, or a writer got invalid input.
///
/// Every message is one line and names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused to open, map, read or write a file.
    #[error("{}: {source}", show(.path))]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A mapped file was truncated, or can no longer be read.
    #[error("{}: the file was truncated, or could not be read, while it was in use", show(.path))]
    Lost {
        /// The file.
        path: PathBuf,
    },
    /// The file has another format.
    #[error("{}: not a {format} file: expected {expected}, found {found}", show(.path))]
    NotFormat {
        /// The file.
        path: PathBuf,
        /// The format that was tried.
        format: &'static str,
        /// The first bytes of a file of the format.
        expected: String,
        /// The first bytes of this file.
        found: String,
    },
    /// The file has the format, in a version or byte order that is not supported.
    #[error("{}: unsupported {what}: expected {expected}, found {found}", show(.path))]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The unsupported property.
        what: &'static str,
        /// The supported values.
        expected: String,
        /// The file's value.
        found: String,
    },
    /// A header field outside metadata and tensors is invalid.
    #[error("{}: {field}: expected {expected}, found {found}", show(.path))]
    Header {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
        /// The expected value.
        expected: String,
        /// The value found.
        found: String,
    },
    /// A metadata entry is invalid, or has another type than was requested.
    #[error("{}: key '{key}': expected {expected}, found {found}", show(.path))]
    Key {
        /// The file.
        path: PathBuf,
        /// The metadata key.
        key: String,
        /// The expected value.
        expected: String,
        /// The value found.
        found: String,
    },
    /// A tensor's description is invalid.
    #[error("{}: tensor '{tensor}': expected {expected}, found {found}", show(.path))]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The expected value.
        expected: String,
        /// The value found.
        found: String,
    },
    /// A tensor's element type is unknown.
    #[error("{}: tensor '{tensor}': expected a known element type, found {found}", show(.path))]
    UnknownType {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The dtype (safetensors).
        found: String,
    },
    /// A shard of the model is missing.
    #[error("{}: expected shard {}, found no such file", show(.path), show(.shard))]
    MissingShard {
        /// The file that refers to the shard.
        path: PathBuf,
        /// The missing file.
        shard: PathBuf,
    },
    /// The JSON of a safetensors header or index is malformed.
    #[error("{}: {what}: {message}", show(.path))]
    Json {
        /// The file.
        path: PathBuf,
        /// The JSON text: header or index.
        what: &'static str,
        /// The JSON parser's message.
        message: String,
    },
    /// An element count is not a multiple of a type's block length, or overflows.
    #[error(
        "expected a whole number of {ty} blocks of addressable size, found {n_elements} elements"
    )]
    Elements {
        /// The element type.
        ty: TensorType,
        /// The number of elements.
        n_elements: usize,
    },
    /// A writer's input cannot be stored in the format.
    #[error("cannot write '{name}': expected {expected}, found {found}")]
    Input {
        /// The key or tensor.
        name: String,
        /// The values that can be written.
        expected: String,
        /// The value given.
        found: String,
    },
    /// The output of a writer failed.
    #[error("cannot write '{name}': {source}")]
    Write {
        /// The part of the file being written.
        name: String,
        /// The output's error.
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), source }
    }

    pub(crate) fn json(path: &Path, what: &'static str, error: &serde_json::Error) -> Self {
        Self::Json { path: path.to_path_buf(), what, message: shown(&error.to_string()) }
    }

    pub(crate) fn input(name: &str, expected: impl Display, found: impl Display) -> Self {
        Self::Input { name: shown(name), expected: expected.to_string(), found: found.to_string() }
    }
}

/// An expected and a found value, before the caller adds the place.
///
/// It is one pointer wide, because the readers of all fields return it.
#[derive(Debug)]
pub(crate) struct Fault(Box<Texts>);

#[derive(Debug)]
struct Texts {
    expected: String,
    found: String,
}

impl Fault {
    pub(crate) fn new(expected: impl Display, found: impl Display) -> Self {
        Self(Box::new(Texts { expected: expected.to_string(), found: found.to_string() }))
    }

    pub(crate) fn in_header(self, path: &Path, field: impl Display) -> Error {
        let Texts { expected, found } = *self.0;
        Error::Header { path: path.to_path_buf(), field: field.to_string(), expected, found }
    }

    pub(crate) fn in_key(self, path: &Path, key: &str) -> Error {
        let Texts { expected, found } = *self.0;
        Error::Key { path: path.to_path_buf(), key: shown(key), expected, found }
    }

    pub(crate) fn in_tensor(self, path: &Path, tensor: &str) -> Error {
        let Texts { expected, found } = *self.0;
        Error::Tensor { path: path.to_path_buf(), tensor: shown(tensor), expected, found }
    }
}

fn show(path: &Path) -> String {
    one_line(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_and_keys_are_escaped() {
        let error = Fault::new("1", "2").in_key(Path::new("bad\nname.gguf"), "k\r\n");
        assert_eq!(error.to_string(), "bad\\nname.gguf: key 'k\\r\\n': expected 1, found 2");
    }
}
