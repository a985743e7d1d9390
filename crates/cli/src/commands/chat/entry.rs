//! Lines that belong together: one that ends with `\` is continued by the next, and a text that begins with `"""`
//! by all up to one that ends with it.

use super::command::split;

const QUOTES: &str = "\"\"\"";

/// The text of a block, between its quotes and without the line breaks next to them; `None` if the text is no
/// whole block.
pub(super) fn block(text: &str) -> Option<&str> {
    let inner = text.strip_prefix(QUOTES)?.trim_end().strip_suffix(QUOTES)?;
    let inner = inner.strip_prefix("\r\n").or_else(|| inner.strip_prefix('\n')).unwrap_or(inner);
    Some(inner.strip_suffix("\r\n").or_else(|| inner.strip_suffix('\n')).unwrap_or(inner))
}

/// The text of what was typed that may be a block: all of it, or what follows a command for a system message.
fn free_text(typed: &str) -> &str {
    let typed = typed.trim_start();
    match split(typed) {
        ("/system", text) => text,
        ("/set", rest) => match split(rest) {
            ("system", text) => text,
            _ => typed,
        },
        _ => typed,
    }
}

/// The lines typed so far.
#[derive(Debug, Default)]
pub(super) struct Entry {
    text: String,
    state: State,
}

#[derive(Debug, Default, PartialEq)]
enum State {
    #[default]
    Empty,
    /// The last line ended with `\`.
    Continued,
    /// A block has no end yet.
    Block,
}

impl Entry {
    /// Adds a line; true once the text is whole.
    pub(super) fn push(&mut self, line: &str) -> bool {
        if self.state == State::Block {
            self.text.push('\n');
            self.text.push_str(line);
            return line.trim_end().ends_with(QUOTES);
        }
        let text = free_text(line);
        if self.state == State::Empty && text.starts_with(QUOTES) && block(text).is_none() {
            self.state = State::Block;
            self.text.push_str(line);
            return false;
        }
        match line.strip_suffix('\\') {
            Some(head) => {
                self.state = State::Continued;
                self.text.push_str(head);
                self.text.push('\n');
                false
            }
            None => {
                self.text.push_str(line);
                true
            }
        }
    }

    /// True before the first line.
    pub(super) fn is_empty(&self) -> bool {
        self.state == State::Empty
    }

    /// True while a block has no end.
    pub(super) fn is_in_block(&self) -> bool {
        self.state == State::Block
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_joined_to_texts() {
        let check = |lines: &[&str], want: &[&str]| {
            let (mut texts, mut entry) = (Vec::new(), Entry::default());
            for line in lines {
                if entry.push(line) {
                    texts.push(std::mem::take(&mut entry).into_text());
                }
            }
            assert_eq!(texts, want, "{lines:?}");
            assert!(entry.is_empty(), "{lines:?}");
        };
        check(&["a", "", "b"], &["a", "", "b"]);
        check(&["a\\", "b\\", "c", "d"], &["a\nb\nc", "d"]);
        check(
            &["\"\"\"a\\", "", "b \"\"\" c", "d\"\"\" ", "e"],
            &["\"\"\"a\\\n\nb \"\"\" c\nd\"\"\" ", "e"],
        );
        check(&["\"\"\"a\"\"\"", "b"], &["\"\"\"a\"\"\"", "b"]);
        check(&["\"\"\"", "\"\"\""], &["\"\"\"\n\"\"\""]);
        check(&["/system \"\"\"a", "b\"\"\""], &["/system \"\"\"a\nb\"\"\""]);
        check(&["/set system \"\"\"", "b", "\"\"\""], &["/set system \"\"\"\nb\n\"\"\""]);
        check(&["/set parameter stop \"\"\"", "b"], &["/set parameter stop \"\"\"", "b"]);
        // Quotes within a text or after a continued line begin no block.
        check(&["a \"\"\"", "a\\", "\"\"\""], &["a \"\"\"", "a\n\"\"\""]);
    }

    #[test]
    fn an_entry_says_what_it_waits_for() {
        let mut entry = Entry::default();
        assert!(entry.is_empty() && !entry.push("\"\"\"a") && entry.is_in_block());
        let mut entry = Entry::default();
        assert!(!entry.push("a\\") && !entry.is_empty() && !entry.is_in_block());
    }
}
