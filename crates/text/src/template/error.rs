//! Errors of loading and rendering chat templates.

use std::path::PathBuf;

/// What can go wrong with a chat template.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The template is not valid Jinja, or uses something that is not supported.
    #[error("the chat template does not parse: {problem}")]
    Syntax {
        /// What is wrong, with the line.
        problem: String,
    },
    /// The template refused the conversation with `raise_exception`.
    #[error("the chat template rejected the conversation: {message}")]
    Raised {
        /// The template's message.
        message: String,
    },
    /// The template failed on this conversation.
    #[error("the chat template failed: {problem}")]
    Render {
        /// What is wrong, with the line.
        problem: String,
    },
    /// The template ran for too many steps.
    #[error("the chat template exceeded the limit of {limit} steps")]
    Steps {
        /// The limit.
        limit: u64,
    },
    /// The template wrote too much.
    #[error("the chat template wrote more than {}", realizar_base::ByteSize::from(*limit))]
    Output {
        /// The limit in bytes.
        limit: usize,
    },
    /// The template made too much, in strings and lists.
    #[error("the chat template made more than {}", realizar_base::ByteSize::from(*limit))]
    Memory {
        /// The limit in bytes.
        limit: usize,
    },
    /// The thread for the template cannot be started.
    #[error("no memory for the stack of the chat template, 256 MiB: {0}")]
    Thread(#[source] std::io::Error),
    /// There is no character left to mark what may not become a control token.
    #[error(
        "the conversation uses all noncharacters from U+FDD0 to U+FDEF; one must remain unused"
    )]
    NoMark,
    /// The model has several templates but none of them is the default.
    #[error("the model has the chat templates {names}, but no `default`")]
    NoDefault {
        /// The names found.
        names: String,
    },
    /// The metadata of a model file could not be read.
    #[error(transparent)]
    Metadata(#[from] realizar_formats::Error),
    /// The text of a special token could not be read.
    #[error(transparent)]
    Tokenizer(#[from] crate::tokenizer::Error),
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is not the JSON that was expected.
    #[error("{}: {problem}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}
