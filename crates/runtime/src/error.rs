//! What can go wrong between a path and its logits.

use realizar_formats::printable::{MAX_CHARS, one_line, shown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

/// An error of loading or of running a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    #[error("{}: {key}: expected {expected}, found {}", path.display(), shown(found))]
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
    #[error(
        "{}: architecture `{}`{} is not supported (supported: {known})",
        path.display(),
        shown(name),
        shown(relation)
    )]
    UnknownArchitecture {
        /// The file.
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
        /// The file.
        path: PathBuf,
        /// The feature, by its name in the file.
        feature: String,
    },
    /// A setting names one of several ways, and this one is not built.
    #[error("{}: {} is not supported (supported: {supported})", path.display(), shown(feature))]
    UnsupportedValue {
        /// The file.
        path: PathBuf,
        /// The setting and its value.
        feature: String,
        /// The values that are supported.
        supported: String,
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
    #[error(
        "{}: tensor `{}`: expected shape {expected:?}, found {found:?}",
        path.display(),
        shown(tensor)
    )]
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
    #[error("{}: tensor `{}` is stored as {ty}, which {reason}", path.display(), shown(tensor))]
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
        "{}: tensor `{}` ({n} in all) is not part of architecture {architecture} as built",
        path.display(),
        shown(tensor)
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
    #[error("{}", in_file(path, &source.to_string()))]
    Tokenizer {
        /// The file or directory that it was looked for in.
        path: PathBuf,
        /// What is wrong.
        source: Arc<crate::text::tokenizer::Error>,
    },
    /// The chat template is malformed.
    #[error("{}", in_file(path, &source.to_string()))]
    Template {
        /// The file or directory that it was found in.
        path: PathBuf,
        /// What is wrong.
        source: Arc<crate::text::template::Error>,
    },
    /// The model came without a chat template, so it cannot be given a conversation.
    #[error("{}: the model has no chat template; give it a prompt instead", path.display())]
    NoChatTemplate {
        /// The file or directory of the model.
        path: PathBuf,
    },
    /// A text cannot be encoded or an id cannot be decoded.
    #[error("{}", one_line(&.0.to_string()))]
    Text(#[from] crate::text::tokenizer::Error),
    /// A conversation cannot be rendered.
    #[error("{}", one_line(&.0.to_string()))]
    Render(#[from] crate::text::template::Error),
    /// The weights or the settings of the model lead to no numbers.
    #[error(
        "{}: the model's output is not finite: its weights or settings are corrupt; \
         fetch or convert it again",
        path.display()
    )]
    NotFinite {
        /// The file or directory.
        path: PathBuf,
    },
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Sampling(#[from] crate::text::sampling::Error),
    /// A grammar cannot be used, or cannot be followed.
    #[error(transparent)]
    Constrain(#[from] crate::text::constrain::Error),
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
    /// The model cannot be split between two devices in front of a layer.
    #[error("the model cannot be split before layer {layer}: {reason}")]
    Split {
        /// The layer.
        layer: usize,
        /// What crosses the cut, or what is missing.
        reason: String,
    },
    /// The layers of the model cannot be divided among ranks.
    #[error("the model cannot be divided among {n_ranks} ranks: {reason}")]
    Shard {
        /// The ranks.
        n_ranks: usize,
        /// What cannot be shared.
        reason: String,
    },
    /// The backend cannot run the model's plan.
    #[error("{backend} cannot run this model: {}", reasons.join("; "))]
    Refused {
        /// The backend.
        backend: String,
        /// Each operation or size that it does not support.
        reasons: Vec<String>,
    },
    /// The device failed.
    #[error("{device}: {reason}")]
    Device {
        /// The device.
        device: String,
        /// What kind of failure it is.
        fault: DeviceFault,
        /// What happened.
        reason: String,
    },
    /// A file of a session cannot be used.
    #[error("{}: {reason}", path.display())]
    SessionFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A prompt is longer than the context.
    #[error("a prompt of {n_tokens} tokens does not fit the context of {max}")]
    PromptTooLong {
        /// Its tokens.
        n_tokens: usize,
        /// The context.
        max: usize,
    },
    /// A request asks for something that the model cannot do.
    #[error("{0}")]
    Request(String),
    /// A step of the engine failed, and with it the requests that were in it.
    #[error("{0}")]
    Step(String),
    /// The system gives no thread.
    #[error("the thread `{name}` cannot be started: {source}")]
    Thread {
        /// The thread's name.
        name: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// The engine ends before the request is complete.
    #[error("the engine is shutting down")]
    Ended,
}

impl Error {
    /// Whether what failed has lost its model, which has to be loaded again: a file that it reads
    /// from, or its device, is gone.
    pub fn has_lost_model(&self) -> bool {
        matches!(
            self,
            Self::Format(realizar_formats::Error::Lost { .. })
                | Self::Device { fault: DeviceFault::Lost, .. }
        )
    }

    /// Names the model at `path` where its output is at fault, of which logits cannot tell.
    pub(crate) fn of_model(self, path: &Path) -> Self {
        match self {
            Self::Sampling(crate::text::sampling::Error::Logit { .. }) => {
                Self::NotFinite { path: path.to_owned() }
            }
            error => error,
        }
    }
}

/// A message about something in `path`, which it may already begin with.
fn in_file(path: &Path, message: &str) -> String {
    let path = path.display().to_string();
    let long = 4 * MAX_CHARS + path.len();
    let message = match message.char_indices().nth(long) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message.to_owned(),
    };
    let text = if message.starts_with(&path) { message } else { format!("{path}: {message}") };
    one_line(&text)
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

    #[test]
    fn a_thread_is_named() {
        let source = std::io::Error::other("no more");
        let error = Error::Thread { name: "engine", source };
        assert_eq!(error.to_string(), "the thread `engine` cannot be started: no more");
    }

    #[test]
    fn a_file_is_named_once() {
        assert_eq!(in_file(Path::new("m.gguf"), "no\ntokens"), "m.gguf: no\\ntokens");
        assert_eq!(in_file(Path::new("dir"), "dir/tokenizer.json: cut"), "dir/tokenizer.json: cut");
    }
}
