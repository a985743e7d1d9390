//! What can go wrong with a model file, and how it is reported in one line.
//!
//! Texts that come from a file (keys, names, numbers in JSON) may be hostile;
//! they are shortened and their control characters are escaped before they
//! enter a message.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use crate::TensorType;
use crate::printable::{one_line, shown};

/// An error about a model file, or about what a writer was given.
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
        /// What the operating system said.
        source: io::Error,
    },
    /// A mapped file has become shorter, or can no longer be read.
    #[error("{}: the file was truncated, or could not be read, while it was in use", show(.path))]
    Lost {
        /// The file.
        path: PathBuf,
    },
    /// The file is not of the format at all.
    #[error("{}: not a {format} file: expected {expected}, found {found}", show(.path))]
    NotFormat {
        /// The file.
        path: PathBuf,
        /// The format that was tried.
        format: &'static str,
        /// What such a file starts with.
        expected: String,
        /// What this one starts with.
        found: String,
    },
    /// The file is of the format, in a version or byte order that is not read.
    #[error("{}: unsupported {what}: expected {expected}, found {found}", show(.path))]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What is unsupported.
        what: &'static str,
        /// What is supported.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// A field outside of metadata and tensors is wrong.
    #[error("{}: {field}: expected {expected}, found {found}", show(.path))]
    Header {
        /// The file.
        path: PathBuf,
        /// The field.
        field: String,
        /// What it should hold.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// A metadata entry is wrong, or has another type than was requested.
    #[error("{}: key '{key}': expected {expected}, found {found}", show(.path))]
    Key {
        /// The file.
        path: PathBuf,
        /// The metadata key.
        key: String,
        /// What it should hold.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// A tensor's description is wrong.
    #[error("{}: tensor '{tensor}': expected {expected}, found {found}", show(.path))]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// What its description should hold.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// A tensor's element type is not known.
    #[error("{}: tensor '{tensor}': expected a known element type, found {found}", show(.path))]
    UnknownType {
        /// The file.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The dtype (safetensors).
        found: String,
    },
    /// A file that the model is split over is missing.
    #[error("{}: expected shard {}, found no such file", show(.path), show(.shard))]
    MissingShard {
        /// The file that names the shard.
        path: PathBuf,
        /// The shard.
        shard: PathBuf,
    },
    /// The JSON of a safetensors header or index is malformed.
    #[error("{}: {what}: {message}", show(.path))]
    Json {
        /// The file.
        path: PathBuf,
        /// Which JSON text.
        what: &'static str,
        /// What the JSON parser said.
        message: String,
    },
    /// An element count does not fit a type.
    #[error(
        "expected a whole number of {ty} blocks of addressable size, found {n_elements} elements"
    )]
    Elements {
        /// The element type.
        ty: TensorType,
        /// The number of elements.
        n_elements: usize,
    },
    /// A writer was given something that the format cannot hold.
    #[error("cannot write '{name}': expected {expected}, found {found}")]
    Input {
        /// The key or tensor.
        name: String,
        /// What can be written.
        expected: String,
        /// What was given.
        found: String,
    },
    /// The output of a writer failed.
    #[error("cannot write '{name}': {source}")]
    Write {
        /// The part of the file being written.
        name: String,
        /// What the output said.
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

/// Something expected and something else found, before it is known where.
///
/// One pointer wide, because readers of every field return it.
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
