//! Standard output and standard error: the one place that writes to them.
//!
//! A text may come from a model, a file or a server. On a terminal, each of its characters that the terminal would obey
//! becomes a visible sign, wherever the pieces that it is written in begin and end. Sequences of our own are added to a
//! [`Styled`] beside texts, and are never read from one. Where a stream is not a terminal, texts are written as they are.

use std::io::{self, BufWriter, IsTerminal, Stderr, StdoutLock, Write};

use realizar_formats::printable::is_printable;

/// Whether standard output is a terminal.
pub(crate) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether standard error is a terminal.
pub(crate) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Buffered standard output, locked.
pub(crate) type Stdout = Out<BufWriter<StdoutLock<'static>>>;

/// Locks standard output until the value is dropped.
pub(crate) fn stdout() -> Stdout {
    Out::new(BufWriter::new(io::stdout().lock()), stdout_is_terminal())
}

/// Standard error, which is locked for each write.
pub(crate) fn stderr() -> Out<Stderr> {
    Out::new(io::stderr(), stderr_is_terminal())
}

/// The text with visible signs for the characters that a terminal would obey, but for tab and line feed. A carriage
/// return before a line feed is left out.
pub(crate) fn signs(text: &str) -> String {
    let mut signs = Signs::default();
    let mut out = signs.of(text);
    out.push_str(signs.rest());
    out
}

/// As [`signs`], with signs for tab and line feed as well: for cells of a table, and lines that are drawn again.
pub(crate) fn line_signs(text: &str) -> String {
    signs(text).replace('\t', "\u{2409}").replace('\n', "\u{240a}")
}

/// As [`signs`], where a text goes on: a carriage return waits for the character after it.
#[derive(Debug, Default)]
pub(crate) struct Signs {
    has_return: bool,
}

impl Signs {
    /// The signs of the next piece.
    pub(crate) fn of(&mut self, piece: &str) -> String {
        let mut out = String::with_capacity(piece.len());
        for c in piece.chars() {
            if c != '\n' {
                out.push_str(self.rest());
            }
            self.has_return = c == '\r';
            match c {
                '\r' => {}
                '\n' | '\t' => out.push(c),
                c if is_printable(c) => out.push(c),
                // The pictures of C0 and DEL.
                '\0'..='\x1f' => out.extend(char::from_u32(0x2400 + u32::from(c))),
                '\x7f' => out.push('\u{2421}'),
                c => out.push_str(&format!("<U+{:04X}>", u32::from(c))),
            }
        }
        out
    }

    /// The sign that waits, once nothing follows.
    pub(crate) fn rest(&mut self) -> &'static str {
        if std::mem::take(&mut self.has_return) { "\u{240d}" } else { "" }
    }
}

/// Text as signs, with sequences of our own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Styled(String);

impl Styled {
    /// Of a formatter that escapes what it is given and adds sequences for styles. These are kept if they can neither
    /// hide text nor do anything else.
    pub(crate) fn of_formatter(text: &str) -> Self {
        let mut styled = Self::default();
        let mut rest = text;
        while let Some(at) = rest.find("\x1b[") {
            styled.text(&rest[..at]);
            rest = &rest[at + 2..];
            match rest.split_once('m') {
                Some((code @ ("0" | "1" | "2" | "3" | "4"), end)) => {
                    styled.style(code);
                    rest = end;
                }
                Some((code, end)) if matches!(code.as_bytes(), [b'3', b'1'..=b'6']) => {
                    styled.style(code);
                    rest = end;
                }
                _ => styled.text("\x1b["),
            }
        }
        styled.text(rest);
        styled
    }

    /// Adds a text.
    pub(crate) fn text(&mut self, text: &str) {
        self.0.push_str(&signs(text));
    }

    /// Adds the sequence that selects a graphic rendition by its codes; `0` resets all attributes.
    pub(crate) fn style(&mut self, codes: &str) {
        self.0.push_str(&format!("\x1b[{codes}m"));
    }

    /// Adds the sequence that clears the line and returns to its start.
    pub(crate) fn clear_line(&mut self) {
        self.0.push_str("\r\x1b[2K");
    }

    /// Adds another one.
    pub(crate) fn push(&mut self, other: &Self) {
        self.0.push_str(&other.0);
    }

    /// True if nothing was added.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it ends a line, but for a reset.
    pub(crate) fn ends_line(&self) -> bool {
        self.0.strip_suffix("\x1b[0m").unwrap_or(&self.0).ends_with('\n')
    }

    /// The text to write.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A stream. What is written to it is text, which becomes signs if the stream is a terminal; [`Out::styled`] writes
/// sequences.
#[derive(Debug)]
pub(crate) struct Out<W: Write> {
    to: W,
    is_terminal: bool,
    signs: Signs,
    begun: Vec<u8>, // an incomplete character
}

impl<W: Write> Out<W> {
    /// A stream that is a terminal, or is not.
    pub(crate) fn new(to: W, is_terminal: bool) -> Self {
        Self { to, is_terminal, signs: Signs::default(), begun: Vec::new() }
    }

    /// Writes text with sequences.
    pub(crate) fn styled(&mut self, styled: &Styled) -> io::Result<()> {
        self.end_text()?;
        self.to.write_all(styled.as_str().as_bytes())
    }

    /// Writes what a formatter made, with its styles ([`Styled::of_formatter`]).
    pub(crate) fn formatted(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.is_terminal {
            return self.to.write_all(bytes);
        }
        self.styled(&Styled::of_formatter(&String::from_utf8_lossy(bytes)))
    }

    /// Writes an incomplete character that nothing follows.
    fn end_text(&mut self) -> io::Result<()> {
        let begun = std::mem::take(&mut self.begun);
        let mut rest = self.signs.of(&String::from_utf8_lossy(&begun));
        rest.push_str(self.signs.rest());
        self.to.write_all(rest.as_bytes())
    }
}

impl<W: Write> Write for Out<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_terminal {
            return self.to.write(bytes);
        }
        let all = [&std::mem::take(&mut self.begun), bytes].concat();
        let mut text = String::with_capacity(all.len());
        let mut chunks = all.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            let may_continue = std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
            if chunks.peek().is_none() && may_continue {
                self.begun = invalid.to_vec();
            } else if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.to.write_all(self.signs.of(&text).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl<W: Write> Drop for Out<W> {
    fn drop(&mut self) {
        // Errors of a stream are found when it is flushed.
        let _ = self.end_text();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "a\x1b]52;c;eA==\x07\tb\r\nc\rd\u{9b}8m\x7f\u{202e}e\u{2066}é漢\n\x1b[8m\r";
    const SIGNS: &str = "a␛]52;c;eA==␇\tb\nc␍d<U+009B>8m␡<U+202E>e<U+2066>é漢\n␛[8m␍";

    #[test]
    fn pieces_of_any_length_become_the_same_signs() {
        assert_eq!(signs(TEXT), SIGNS);
        for size in 1..TEXT.len() {
            let mut written = Vec::new();
            let mut out = Out::new(&mut written, true);
            for piece in TEXT.as_bytes().chunks(size) {
                out.write_all(piece).expect("written");
                out.flush().expect("flushed");
            }
            drop(out);
            assert_eq!(String::from_utf8(written).expect("UTF-8"), SIGNS, "{size}");
        }
    }

    #[test]
    fn only_a_terminal_gets_signs() {
        let mut written = Vec::new();
        Out::new(&mut written, false).write_all(TEXT.as_bytes()).expect("written");
        assert_eq!(written, TEXT.as_bytes());
        let mut written = Vec::new();
        Out::new(&mut written, true).write_all(b"a\xffb\x9b\xe2\x82").expect("written");
        assert_eq!(String::from_utf8(written).expect("UTF-8"), "a\u{fffd}b\u{fffd}\u{fffd}");
    }

    #[test]
    fn sequences_are_ours() {
        let mut styled = Styled::default();
        styled.style("1;31");
        styled.text("a\x1b[8mb");
        styled.style("0");
        assert_eq!(styled.as_str(), "\x1b[1;31ma␛[8mb\x1b[0m");
        let mut written = Vec::new();
        let mut out = Out::new(&mut written, true);
        out.write_all(b"c\r").expect("written");
        out.styled(&styled).expect("written");
        drop(out);
        assert_eq!(written, "c␍\x1b[1;31ma␛[8mb\x1b[0m".as_bytes());
    }

    #[test]
    fn formatters_style_and_do_nothing_else() {
        for (text, want) in [
            ("\x1b[1m\x1b[31merror:\x1b[0m a\n", "\x1b[1m\x1b[31merror:\x1b[0m a\n"),
            ("\x1b[8ma", "␛[8ma"),
            ("\x1b[30ma", "␛[30ma"),
            ("\x1b[1;8ma", "␛[1;8ma"),
            ("\x1b[2J\x1b]0;t\x07", "␛[2J␛]0;t␇"),
            ("\x1b[\x1b[32mm", "␛[\x1b[32mm"),
            ("\x1b[", "␛["),
        ] {
            assert_eq!(Styled::of_formatter(text).as_str(), want, "{text:?}");
        }
    }
}
