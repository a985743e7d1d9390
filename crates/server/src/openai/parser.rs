//! Between the text of an answer and the parts of a message: which of it is content.
//!
//! Chat completions push every piece of text through a [`ChatParser`], streamed or not, and build
//! the message from the parts that come out.

/// Sorts an answer's text into the parts of a message, as it comes.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChatParser;

/// A piece of one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChatDelta {
    /// Text for the user.
    Content(String),
}

impl ChatParser {
    /// Takes the next piece of the text and appends what it makes certain to `out`.
    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<ChatDelta>) {
        if !text.is_empty() {
            out.push(ChatDelta::Content(text.to_owned()));
        }
    }
}
