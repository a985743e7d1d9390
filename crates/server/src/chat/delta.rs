//! Pieces of an answer, as parsers emit them.

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChatDelta {
    /// Text of the answer.
    Content(String),
    /// Text of the reasoning before it.
    Reasoning(String),
    /// A tool call begins. Its arguments follow.
    ToolCallStart {
        /// The number of the call, from 0.
        index: usize,
        /// Its id.
        id: String,
        /// The function to be called.
        name: String,
        /// Which kind of tool it is.
        kind: CallKind,
    },
    /// A piece of the arguments of a call. All pieces together are the JSON text that the model
    /// wrote; of a custom tool, the text of its input.
    ToolCallArguments {
        /// The number of the call.
        index: usize,
        /// The piece.
        text: String,
    },
}

/// Which kind of tool is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallKind {
    /// A function, whose arguments are JSON.
    #[default]
    Function,
    /// A custom tool, whose input is a text.
    Custom,
}

impl CallKind {
    /// The type of such tools, and of their calls, in chat completions; also the member that describes one.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Function => "function",
            Self::Custom => "custom",
        }
    }
}
