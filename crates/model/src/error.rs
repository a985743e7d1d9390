//! Errors between a model's path and its plan.

use realizar_base::printable::shown;
use std::path::PathBuf;

/// An error of reading a model's files or of recording its graph.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A GGUF or safetensors file is malformed.
    #[error(transparent)]
    Format(#[from] realizar_formats::Error),
    /// A file that a model directory needs cannot be read.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// A JSON file is malformed.
    #[error("{}: {source}", path.display())]
    Json {
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The path is neither a GGUF file nor a model directory.
    #[error("{}: {reason}", path.display())]
    NotAModel { path: PathBuf, reason: String },
    /// A setting is missing or has a value that cannot be right.
    #[error("{}: {key}: expected {expected}, found {}", path.display(), shown(found))]
    Setting {
        path: PathBuf,
        /// The metadata key or the key in config.json.
        key: String,
        expected: String,
        found: String,
    },
    /// The architecture is not one of those in the registry.
    #[error(
        "{}: architecture `{}`{} is not supported (supported: {known})",
        path.display(),
        shown(name),
        shown(relation)
    )]
    UnknownArchitecture {
        path: PathBuf,
        /// What the file calls it.
        name: String,
        /// The architecture that it is the text model of, or that of its text model, in words.
        relation: String,
        /// The names that are known.
        known: String,
    },
    /// A feature of the model that is not built.
    #[error("{}: {} is not supported", path.display(), shown(feature))]
    Unsupported {
        path: PathBuf,
        /// The feature, by its name in the file.
        feature: String,
    },
    /// A setting names one of several ways, and this one is not built.
    #[error("{}: {} is not supported (supported: {supported})", path.display(), shown(feature))]
    UnsupportedValue {
        path: PathBuf,
        /// The setting and its value.
        feature: String,
        /// The values that are supported.
        supported: String,
    },
    /// A tensor is missing.
    #[error("{}: tensor `{tensor}` is missing (it holds {weight})", path.display())]
    MissingTensor {
        path: PathBuf,
        /// Its name in the file.
        tensor: String,
        /// The canonical name.
        weight: String,
    },
    /// A tensor has the wrong shape.
    #[error(
        "{}: tensor `{}`: expected shape {expected:?}, found {found:?}",
        path.display(),
        shown(tensor)
    )]
    Shape {
        path: PathBuf,
        /// Its name in the file.
        tensor: String,
        /// The shape that the settings call for.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// A tensor is stored in a type that cannot be used for it.
    #[error("{}: tensor `{}` is stored as {ty}, which {reason}", path.display(), shown(tensor))]
    TensorType {
        path: PathBuf,
        /// Its name in the file.
        tensor: String,
        ty: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// The file holds tensors that the architecture does not use.
    #[error(
        "{}: tensor `{}` ({n} in all) is not part of architecture {architecture} as built",
        path.display(),
        shown(tensor)
    )]
    UnusedTensor {
        path: PathBuf,
        /// The first of them.
        tensor: String,
        /// How many there are.
        n: usize,
        architecture: String,
    },
    /// The model cannot be split between two devices in front of a layer.
    #[error("the model cannot be split before layer {layer}: {reason}")]
    Split {
        layer: usize,
        /// What crosses the cut, or what is missing.
        reason: String,
    },
    /// The layers of the model cannot be divided among ranks.
    #[error("the model cannot be divided among {n_ranks} ranks: {reason}")]
    Shard {
        n_ranks: usize,
        /// What cannot be shared.
        reason: String,
    },
}

impl Error {
    /// Whether a file that the model is read from was cut off while it is mapped. The model has to be loaded again.
    pub fn has_lost_file(&self) -> bool {
        matches!(self, Self::Format(realizar_formats::Error::Lost { .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_a_file_becomes_one_line() {
        let error = Error::UnusedTensor {
            path: "m.gguf".into(),
            tensor: "a\nb".to_owned(),
            n: 1,
            architecture: "llama".to_owned(),
        };
        let text = "m.gguf: tensor `a\\nb` (1 in all) is not part of architecture llama as built";
        assert_eq!(error.to_string(), text);
    }
}
