//! Where a JSON value ends, found byte by byte.
//!
//! A model's output arrives in pieces and may be malformed, so this only follows brackets and
//! strings. It neither builds a value nor checks commas and colons.

/// What a byte means for the value that is being followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It belongs to the value, which continues.
    Inside,
    /// It is the last of the value.
    Last,
    /// It no longer belongs to the value, which was a number or a word.
    After,
    /// No JSON value has it here.
    Invalid,
}

/// What a value is, known from its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Object,
    Array,
    String,
    Word,
}

/// Follows one value from its first byte.
#[derive(Clone, Debug)]
pub(super) struct Span {
    kind: Kind,
    closers: Vec<u8>, // of the brackets that are open
    in_string: bool,
    escaped: bool,
}

impl Span {
    /// Begins with the first byte of a value; `None` if no value begins so.
    pub(super) fn begin(first: u8) -> Option<Self> {
        let (kind, closers) = match first {
            b'{' => (Kind::Object, vec![b'}']),
            b'[' => (Kind::Array, vec![b']']),
            b'"' => (Kind::String, Vec::new()),
            b'-' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => (Kind::Word, Vec::new()),
            _ => return None,
        };
        Some(Self { kind, closers, in_string: kind == Kind::String, escaped: false })
    }

    /// What the value is.
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Takes the next byte.
    pub(super) fn push(&mut self, byte: u8) -> Step {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => {
                    self.in_string = false;
                    if self.closers.is_empty() {
                        return Step::Last;
                    }
                }
                _ => {}
            }
            return Step::Inside;
        }
        let word = byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.' | b'_');
        if self.kind == Kind::Word {
            return if word { Step::Inside } else { Step::After };
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' => self.closers.push(b'}'),
            b'[' => self.closers.push(b']'),
            b'}' | b']' => {
                if self.closers.pop() != Some(byte) {
                    return Step::Invalid;
                }
                if self.closers.is_empty() {
                    return Step::Last;
                }
            }
            b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' => {}
            _ if word => {}
            _ => return Step::Invalid,
        }
        Step::Inside
    }
}

/// The number of bytes of JSON white space that `text` begins with.
pub(super) fn space_len(text: &str) -> usize {
    text.len() - text.trim_start_matches([' ', '\t', '\n', '\r']).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The length of the value that `text` begins with, and how it ended.
    fn check(text: &str, want: Option<(usize, Step)>) {
        let mut bytes = text.bytes();
        let got = bytes.next().and_then(Span::begin).and_then(|mut span| {
            bytes.enumerate().find_map(|(at, byte)| match span.push(byte) {
                Step::Inside => None,
                Step::Last => Some((at + 2, Step::Last)),
                step => Some((at + 1, step)),
            })
        });
        assert_eq!(got, want, "{text:?}");
    }

    #[test]
    fn values_end_where_json_says() {
        check("{}x", Some((2, Step::Last)));
        check(r#"{"a": [1, {"b": "}]\"]"}]} tail"#, Some((26, Step::Last)));
        check(r#""a\\" "#, Some((5, Step::Last)));
        check("[true, -1.5e+3]", Some((15, Step::Last)));
        check("12, 3", Some((2, Step::After)));
        check("null}", Some((4, Step::After)));
        check(r#"{"a": [1}"#, Some((8, Step::Invalid)));
        check(r#"{"a": 1</tool_call>"#, Some((7, Step::Invalid)));
        check(r#"{"a": "日本"}"#, Some((15, Step::Last)));
        check(r#"{"a": "#, None);
        check("<", None);
    }
}
