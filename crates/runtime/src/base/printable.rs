//! Texts that come from files, as they stand in messages: on one line, and not at any length.

/// The maximum number of characters of a text from a file in a message.
pub(crate) const MAX_CHARS: usize = 160;

/// A text that comes from a file as one line: control characters escaped.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

/// As [`one_line`], and shortened.
pub(crate) fn shown(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => one_line(&text[..end]) + "…",
        None => one_line(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_files_become_short_lines() {
        assert_eq!(shown("a\nb\u{1b}[0m"), "a\\nb\\u{1b}[0m");
        assert_eq!(shown(&"x".repeat(1000)).chars().count(), MAX_CHARS + 1);
    }
}
