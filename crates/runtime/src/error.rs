//! What can go wrong between a path and its logits.

use std::path::PathBuf;

/// An error of loading or of running a model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A GGUF or safetensors file is malformed.
    #[error(transparent)]
    Format(#[from] realizar_formats::Error),
    /// A file that a model directory needs cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A JSON file is malformed.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The path is neither a GGUF file nor a model directory.
    #[error("{}: {reason}", path.display())]
    NotAModel {
        /// The path.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// A setting is missing or has a value that cannot be right.
    #[error("{}: {key}: expected {expected}, found {found}", path.display())]
    Setting {
        /// The file.
        path: PathBuf,
        /// The metadata key or the key in config.json.
        key: String,
        /// What was expected.
        expected: String,
        /// What the file says.
        found: String,
    },
    /// The architecture is not one of those in the registry.
    #[error("{}: architecture `{name}` is not supported (supported: {known})", path.display())]
    UnknownArchitecture {
        /// The file.
        path: PathBuf,
        /// What the file calls it.
        name: String,
        /// The names that are known.
        known: String,
    },
    /// A feature of the model that is not built.
    #[error("{}: {feature} is not supported", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The feature, by its name in the file.
        feature: String,
    },
    /// A tensor is missing.
    #[error("{}: tensor `{tensor}` is missing (it holds {weight})", path.display())]
    MissingTensor {
        /// The file.
        path: PathBuf,
        /// Its name in the file.
        tensor: String,
        /// The canonical name.
        weight: String,
    },
    /// A tensor has the wrong shape.
    #[error("{}: tensor `{tensor}`: expected shape {expected:?}, found {found:?}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// Its name in the file.
        tensor: String,
        /// The shape that the settings call for.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// A tensor is stored in a type that cannot be used for it.
    #[error("{}: tensor `{tensor}` is stored as {ty}, which {reason}", path.display())]
    TensorType {
        /// The file.
        path: PathBuf,
        /// Its name in the file.
        tensor: String,
        /// The type's name.
        ty: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// The file holds tensors that the architecture does not use.
    #[error(
        "{}: tensor `{tensor}` ({n} in all) is not part of architecture {architecture} as built",
        path.display()
    )]
    UnusedTensor {
        /// The file.
        path: PathBuf,
        /// The first of them.
        tensor: String,
        /// How many there are.
        n: usize,
        /// The architecture.
        architecture: String,
    },
    /// The tokenizer is missing or malformed.
    #[error(transparent)]
    Tokenizer(#[from] crate::tokenizer::Error),
    /// The chat template is malformed.
    #[error(transparent)]
    Template(#[from] crate::template::Error),
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Sampling(#[from] crate::sampling::Error),
    /// The key-value cache is full or cannot be laid out.
    #[error(transparent)]
    Kv(#[from] realizar_kvcache::Error),
    /// A load option has a value that cannot be used.
    #[error("{option}: {reason}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A request asks for something that the model cannot do.
    #[error("{0}")]
    Request(String),
}
