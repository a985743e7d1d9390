//! Errors of compiling a grammar and of following it.

use realizar_formats::printable::one_line;

/// The maximum number of characters of a problem in a message.
const MAX_CHARS: usize = 400;

/// What can go wrong between a grammar and its answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The grammar is malformed, contradicts itself or asks for what is not supported.
    #[error("{what}{}: {}", place(at), clip(problem))]
    Grammar {
        /// The kind of grammar.
        what: &'static str,
        /// The place in it: a JSON pointer, or a line and a column; empty for the whole.
        at: String,
        /// What is wrong there.
        problem: String,
    },
    /// The grammar is larger than a grammar may be.
    #[error("{what} of {found} {unit} is too large: at most {limit} are allowed")]
    TooLarge {
        /// The kind of grammar.
        what: &'static str,
        /// The size found.
        found: usize,
        /// What is counted.
        unit: &'static str,
        /// The limit.
        limit: usize,
    },
    /// Compiling the grammar took too long.
    #[error("compiling the grammar timed out after {} s", limit.as_secs())]
    Time {
        /// How long was waited.
        limit: std::time::Duration,
    },
    /// The vocabulary cannot be arranged as a tree of bytes.
    #[error("the vocabulary cannot be constrained: {0}")]
    Vocabulary(String),
    /// The thread that compiles grammars cannot be started.
    #[error("the grammar cannot be compiled: {0}")]
    Thread(#[from] std::io::Error),
    /// A token is not allowed where it was given.
    #[error("token {id} is not allowed here by the grammar: {problem}")]
    Token {
        /// The token.
        id: u32,
        /// Why not.
        problem: String,
    },
    /// The grammar can no longer be followed: it exceeds a limit of memory or of time.
    #[error("the grammar cannot be followed: {0}")]
    Follow(String),
    /// The tokens cannot be taken back.
    #[error("{n} tokens cannot be taken back: {problem}")]
    Rollback {
        /// How many were to be taken back.
        n: usize,
        /// Why not.
        problem: String,
    },
    /// No token of the vocabulary continues the answer as the grammar wants it.
    #[error("no token of the vocabulary satisfies the grammar")]
    NoToken,
}

fn place(at: &str) -> String {
    if at.is_empty() { String::new() } else { format!(" at {}", clip(at)) }
}

/// A text that may hold parts of a grammar, as one line of bounded length.
fn clip(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => one_line(&text[..end]) + "…",
        None => one_line(text),
    }
}

/// The message of an error of the library in one line, without the excerpts and dumps that follow.
pub(super) fn message(error: &impl std::fmt::Display) -> String {
    let text = error.to_string();
    // The library's words name an option of its own.
    if text.contains("coerce_one_of") {
        return "`oneOf` is not supported where its members may overlap: use `anyOf`, or give each \
                a required property with a different `const`"
            .to_owned();
    }
    let mut lines = text.lines().map(str::trim);
    let mut message = lines.next().unwrap_or_default().to_owned();
    let is_of_regex = message.ends_with("regex parse error:");
    for line in lines {
        // What is wrong with a regular expression stands under a drawing of it.
        let cause = line.strip_prefix("error: ").filter(|_| is_of_regex);
        if let Some(part) = cause.or(Some(line).filter(|l| l.starts_with("while processing"))) {
            message.push(' ');
            message.push_str(part);
        }
    }
    clip(&message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_place_and_leave_out_dumps() {
        let error = |at: &str| Error::Grammar {
            what: "JSON schema",
            at: at.to_owned(),
            problem: "no".to_owned(),
        };
        assert_eq!(error("").to_string(), "JSON schema: no");
        assert_eq!(error("/a").to_string(), "JSON schema at /a: no");
        assert_eq!(error(&"a\n".repeat(999)).to_string().chars().count(), 620);
        let overlap =
            message(&"oneOf constraints are not supported. Enable 'coerce_one_of' option");
        assert!(overlap.starts_with("`oneOf` is not supported where"), "{overlap}");
        assert_eq!(message(&"too big\n<non-verbose/>"), "too big");
        assert_eq!(message(&"at 1(2): no\n   1 | x\n"), "at 1(2): no");
        assert_eq!(message(&"no\n  while processing #/a"), "no while processing #/a");
        let regex = "regex parse error:\n    ((\n     ^\nerror: unclosed group\n 1 | start";
        assert_eq!(message(&regex), "regex parse error: unclosed group");
    }
}
