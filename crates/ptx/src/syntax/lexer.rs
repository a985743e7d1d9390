//! Splits a module into tokens with lines.

use crate::Error;

/// A word or a punctuation character.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    pub(super) line: u32,
}

/// Splits a module, or a part of one that begins in `line`, into tokens, without comments.
pub(super) fn tokens(text: &str, mut line: u32) -> Result<Vec<Token<'_>>, Error> {
    let bytes = text.as_bytes();
    let mut found = Vec::with_capacity(text.len() / 4);
    let mut at = 0;
    while let Some(&c) = bytes.get(at) {
        let start = at;
        match c {
            b'\n' => line += 1,
            b' ' | b'\t' | b'\r' => {}
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                while bytes.get(at).is_some_and(|&c| c != b'\n') {
                    at += 1;
                }
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let end = text[at..].find("*/").ok_or_else(|| Error::Syntax {
                    line,
                    message: "a comment does not end".to_owned(),
                })?;
                line += count_lines(&text[at..at + end]);
                at += end + 1;
            }
            b'"' => {
                let end = text[at + 1..].find('"').ok_or_else(|| Error::Syntax {
                    line,
                    message: "a string does not end".to_owned(),
                })?;
                at += end + 1;
                found.push(Token { text: &text[start..=at], line });
                line += count_lines(&text[start..at]);
            }
            c if is_word(c) => {
                while let Some(&c) = bytes.get(at) {
                    // `::` is part of modifiers such as `.L2::128B`; a single colon ends a label. Directives end where
                    // the next one starts: `.reg.b16`.
                    let is_next = c == b'.' && bytes[start] == b'.' && at > start;
                    if c == b':' && bytes.get(at + 1) == Some(&b':') {
                        at += 2;
                    } else if is_word(c) && !is_next {
                        at += 1;
                    } else {
                        break;
                    }
                }
                found.push(Token { text: &text[start..at], line });
                continue;
            }
            c if c.is_ascii_punctuation() => {
                found.push(Token { text: &text[start..=start], line });
            }
            _ => {
                let message = format!("a character that PTX does not have: byte {c:#04x}");
                return Err(Error::Syntax { line, message });
            }
        }
        at += 1;
    }
    Ok(found)
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

fn count_lines(text: &str) -> u32 {
    text.bytes().filter(|&c| c == b'\n').count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_punctuation_and_lines() {
        let text = "$L__1: // all of it\n@!%p1 ld.global.L2::128B.u32 {%r1}, [%rd2+-4]; /* x\n y */ .reg.b16 \"a b\"";
        let words: Vec<_> = tokens(text, 1).unwrap().iter().map(|t| (t.text, t.line)).collect();
        let expected = [
            ("$L__1", 1),
            (":", 1),
            ("@", 2),
            ("!", 2),
            ("%p1", 2),
            ("ld.global.L2::128B.u32", 2),
            ("{", 2),
            ("%r1", 2),
            ("}", 2),
            (",", 2),
            ("[", 2),
            ("%rd2", 2),
            ("+", 2),
            ("-", 2),
            ("4", 2),
            ("]", 2),
            (";", 2),
            (".reg", 3),
            (".b16", 3),
            ("\"a b\"", 3),
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn foreign_characters_and_open_ends_are_errors() {
        for (text, expected) in [
            ("a\n\u{1}", "line 2: a character that PTX does not have: byte 0x01"),
            ("/* a", "line 1: a comment does not end"),
            ("\n\"a", "line 2: a string does not end"),
        ] {
            assert_eq!(tokens(text, 1).unwrap_err().to_string(), expected);
        }
    }
}
