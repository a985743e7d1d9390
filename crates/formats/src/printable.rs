//! Texts that come from files, models and servers, as they may stand in messages.
//!
//! [`is_printable`] is the one list of the characters that a terminal obeys, or that change the order in which others
//! are shown. Messages escape them; what writes to a terminal shows signs instead.

/// The maximum number of characters of a text from a file in a message.
pub const MAX_CHARS: usize = 160;

/// Whether a terminal shows a character and does nothing else: false for control characters (C0, among them tab and
/// line feed, DEL and C1) and for embeddings, overrides and isolates of bidirectional text.
pub fn is_printable(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text as one line, in which other characters than printable ones, and the separators of lines, are escaped.
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

/// As [`one_line`], and shortened to [`MAX_CHARS`].
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
            // Marks and joiners are a part of how scripts are written.
            ("\u{200f}א\u{200d}é", "\u{200f}א\u{200d}é"),
        ] {
            assert_eq!(shown(text), want, "{text:?}");
        }
        assert_eq!(shown(&"x".repeat(1000)).chars().count(), MAX_CHARS + 1);
    }
}
