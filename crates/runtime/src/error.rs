//! What can go wrong between a path and its logits.

use realizar_formats::printable::{MAX_CHARS, one_line};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An error of loading or of running a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model's files cannot be read, or its graph cannot be recorded.
    #[error(transparent)]
    Load(#[from] realizar_model::Error),
    /// A device fails, or cannot run the model.
    #[error(transparent)]
    Backend(realizar_backends::Error),
    /// The tokenizer is missing or malformed.
    #[error("{}", in_file(path, &source.to_string()))]
    Tokenizer {
        /// The file or directory that it was looked for in.
        path: PathBuf,
        source: Arc<realizar_text::tokenizer::Error>,
    },
    /// The chat template is malformed.
    #[error("{}", in_file(path, &source.to_string()))]
    Template {
        /// The file or directory that it was found in.
        path: PathBuf,
        source: Arc<realizar_text::template::Error>,
    },
    /// The model came without a chat template, so it cannot be given a conversation.
    #[error("{}: the model has no chat template; give it a prompt instead", path.display())]
    NoChatTemplate {
        /// The file or directory of the model.
        path: PathBuf,
    },
    /// A text cannot be encoded or an id cannot be decoded.
    #[error("{}", one_line(&.0.to_string()))]
    Text(#[from] realizar_text::tokenizer::Error),
    /// A conversation cannot be rendered.
    #[error("{}", one_line(&.0.to_string()))]
    Render(#[from] realizar_text::template::Error),
    /// The weights or the settings of the model lead to no numbers.
    #[error(
        "{}: the model's output is not finite: its weights or settings are corrupt; \
         fetch or convert it again",
        path.display()
    )]
    NotFinite { path: PathBuf },
    /// A sampling parameter is out of range.
    #[error(transparent)]
    Sampling(#[from] realizar_text::sampling::Error),
    /// A grammar cannot be used, or cannot be followed.
    #[error(transparent)]
    Constrain(#[from] realizar_text::constrain::Error),
    /// The key-value cache is full or cannot be laid out.
    #[error(transparent)]
    Kv(#[from] realizar_kvcache::Error),
    /// A load option has a value that cannot be used.
    #[error("{option}: {reason}")]
    Option { option: &'static str, reason: String },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// A file of a session cannot be used.
    #[error("{}: {reason}", path.display())]
    SessionFile { path: PathBuf, reason: String },
    /// A prompt is longer than the context.
    #[error("a prompt of {n_tokens} tokens does not fit the context of {max}")]
    PromptTooLong { n_tokens: usize, max: usize },
    /// A request asks for something that the model cannot do.
    #[error("{0}")]
    Request(String),
    /// A step of the engine failed, and with it the requests that were in it.
    #[error("{0}")]
    Step(String),
    /// The system gives no thread.
    #[error("the thread `{name}` cannot be started: {source}")]
    Thread { name: &'static str, source: std::io::Error },
    /// The engine ends before the request is complete.
    #[error("the engine is shutting down")]
    Ended,
}

impl Error {
    /// Whether what failed has lost its model, which has to be loaded again: a file that it reads
    /// from, or its device, is gone.
    pub fn has_lost_model(&self) -> bool {
        match self {
            Self::Load(error) => error.has_lost_file(),
            Self::Backend(error) => error.has_lost_model(),
            _ => false,
        }
    }

    /// Adds the path of the model to an error of its logits, which do not name it.
    pub(crate) fn of_model(self, path: &Path) -> Self {
        match self {
            Self::Sampling(realizar_text::sampling::Error::Logit { .. }) => {
                Self::NotFinite { path: path.to_owned() }
            }
            error => error,
        }
    }
}

impl From<realizar_backends::Error> for Error {
    fn from(error: realizar_backends::Error) -> Self {
        match error {
            // One variant for a file, an option and the cache, whichever crate reports it.
            realizar_backends::Error::Format(error) => Self::Load(error.into()),
            realizar_backends::Error::Option { option, reason } => Self::Option { option, reason },
            realizar_backends::Error::Kv(error) => Self::Kv(error),
            error => Self::Backend(error),
        }
    }
}

impl From<realizar_formats::Error> for Error {
    fn from(error: realizar_formats::Error) -> Self {
        Self::Load(error.into())
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
