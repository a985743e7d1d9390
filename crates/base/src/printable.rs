//! Escaping of untrusted texts, from files, models and servers, in messages.
//!
//! [`is_printable`] excludes the characters that control a terminal or reorder the text around them.
//! Messages escape these characters; terminal output replaces them.

/// Maximum number of characters of an untrusted text in a message.
pub const MAX_CHARS: usize = 160;

/// Whether a terminal merely shows a character: false for control characters (C0 including tab and line
/// feed, DEL, C1) and for embeddings, overrides and isolates of bidirectional text.
pub fn is_printable(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The text as one line: line separators and characters that are not printable are escaped.
pub fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if !is_printable(c) || matches!(c, '\u{2028}' | '\u{2029}') {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

/// As [`one_line`], shortened to [`MAX_CHARS`].
pub fn shown(text: &str) -> String {
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => one_line(&text[..end]) + "…",
        None => one_line(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_texts_become_one_short_line() {
        for (text, want) in [
            ("a\nb\u{1b}[0m", "a\\nb\\u{1b}[0m"),
            ("a\u{9b}8m\u{7f}", "a\\u{9b}8m\\u{7f}"),
            ("\u{202e}gpj.a\u{2069}", "\\u{202e}gpj.a\\u{2069}"),
            ("a\u{2028}b", "a\\u{2028}b"),
            // Directional marks and joiners are legitimate parts of some scripts.
            ("\u{200f}א\u{200d}é", "\u{200f}א\u{200d}é"),
        ] {
            assert_eq!(shown(text), want, "{text:?}");
        }
        assert_eq!(shown(&"x".repeat(1000)).chars().count(), MAX_CHARS + 1);
    }
}
