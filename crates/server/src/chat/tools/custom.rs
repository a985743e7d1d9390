//! Calls of custom tools, whose input is a text.
//!
//! To the model such a tool is a function with one parameter, so that a call of it has JSON for
//! arguments in any format. Here the text is read from that JSON while it is being written.

use serde_json::{Map, Value};
use std::mem;

use super::reader::{Ahead, ahead};
use super::request::{Function, INPUT};
use crate::chat::delta::{CallKind, ChatDelta};

/// Finds the calls of custom tools among the deltas of an answer.
#[derive(Debug)]
pub(crate) struct CustomCalls {
    names: Vec<String>,
    open: Option<(usize, InputReader)>,
}

impl CustomCalls {
    /// The custom tools among these functions.
    pub(crate) fn of(functions: &[Function]) -> Self {
        let custom = functions.iter().filter(|function| function.kind() == CallKind::Custom);
        Self { names: custom.map(|function| function.name.clone()).collect(), open: None }
    }

    /// Rewrites the calls of custom tools in the deltas from `start` on.
    pub(crate) fn read(&mut self, start: usize, out: &mut Vec<ChatDelta>) {
        if self.names.is_empty() {
            return;
        }
        for delta in out.split_off(start) {
            match delta {
                ChatDelta::ToolCallStart { index, id, name, kind } => {
                    self.finish(out);
                    let is_custom = self.names.contains(&name);
                    let kind = if is_custom { CallKind::Custom } else { kind };
                    self.open = is_custom.then(|| (index, InputReader::default()));
                    out.push(ChatDelta::ToolCallStart { index, id, name, kind });
                }
                ChatDelta::ToolCallArguments { index, text } => match &mut self.open {
                    Some((open, reader)) if *open == index => {
                        tell(index, reader.push(&text), out);
                    }
                    _ => out.push(ChatDelta::ToolCallArguments { index, text }),
                },
                other => out.push(other),
            }
        }
    }

    /// The open call has ended.
    pub(crate) fn finish(&mut self, out: &mut Vec<ChatDelta>) {
        if let Some((index, reader)) = self.open.take() {
            tell(index, reader.finish(), out);
        }
    }
}

fn tell(index: usize, text: String, out: &mut Vec<ChatDelta>) {
    if !text.is_empty() {
        out.push(ChatDelta::ToolCallArguments { index, text });
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before the text.
    #[default]
    Start,
    /// In the text.
    Text,
    /// After the text.
    End,
    /// The arguments are not JSON, but the text itself.
    Raw,
    /// The arguments do not begin with the text, and are looked at when they are complete.
    Other,
}

/// Reads the text from `{"input": "…"}`.
#[derive(Debug, Default)]
struct InputReader {
    state: State,
    buf: String,
}

impl InputReader {
    /// The text that the next piece of the arguments makes certain.
    fn push(&mut self, piece: &str) -> String {
        self.buf.push_str(piece);
        if self.state == State::Start {
            self.state = self.begin();
        }
        match self.state {
            State::Start | State::Other => String::new(),
            State::Raw => mem::take(&mut self.buf),
            State::Text => {
                let (text, len, ended) = unescape(&self.buf);
                self.buf.drain(..len);
                if ended {
                    self.state = State::End;
                }
                text
            }
            State::End => {
                self.buf.clear();
                String::new()
            }
        }
    }

    /// Looks for the beginning of the text.
    fn begin(&mut self) -> State {
        let mut rest = self.buf.trim_start();
        let name = Value::from(INPUT).to_string();
        for (idx, part) in ["{", &name, ":", "\""].into_iter().enumerate() {
            rest = rest.trim_start();
            match ahead(rest, part) {
                Ahead::Yes => rest = &rest[part.len()..],
                Ahead::Unknown => return State::Start,
                Ahead::No if idx == 0 => return State::Raw,
                Ahead::No => return State::Other,
            }
        }
        self.buf = rest.to_owned();
        State::Text
    }

    /// The rest of the text, where the arguments have ended.
    fn finish(self) -> String {
        if self.state != State::Other {
            return String::new();
        }
        match serde_json::from_str::<Map<String, Value>>(&self.buf) {
            Ok(members) if members.is_empty() => String::new(),
            Ok(members) => match members.get(INPUT) {
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
                // The model has written something of its own.
                None => self.buf,
            },
            Err(_) => self.buf,
        }
    }
}

/// The text that a JSON string spells up to its end or up to an escape that is cut; the bytes that
/// were read, and whether its end was.
fn unescape(spelled: &str) -> (String, usize, bool) {
    let mut text = String::new();
    let mut at = 0;
    loop {
        let rest = &spelled[at..];
        let plain = rest.find(['"', '\\']).unwrap_or(rest.len());
        text.push_str(&rest[..plain]);
        at += plain;
        let rest = &spelled[at..];
        match rest.as_bytes() {
            [] => return (text, at, false),
            [b'"', ..] => return (text, at + 1, true),
            _ => match escape(rest) {
                Some((c, len)) => {
                    text.push(c);
                    at += len;
                }
                None => return (text, at, false),
            },
        }
    }
}

/// The character that an escape stands for, and its length; `None` if it is cut.
fn escape(spelled: &str) -> Option<(char, usize)> {
    let short = match spelled[1..].chars().next()? {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'u' => return unicode(spelled),
        other => return Some((other, 1 + other.len_utf8())),
    };
    Some((short, 2))
}

fn unicode(spelled: &str) -> Option<(char, usize)> {
    let unit = |at: usize| {
        let digits = spelled.as_bytes().get(at..at + 4)?;
        let digits = std::str::from_utf8(digits).unwrap_or_default();
        Some(u32::from_str_radix(digits, 16).unwrap_or(u32::from(char::REPLACEMENT_CHARACTER)))
    };
    let first = unit(2)?;
    if !(0xD800..0xDC00).contains(&first) {
        let c = char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER);
        // What is not four digits ends where the next character begins.
        let len = (6..=spelled.len()).find(|&at| spelled.is_char_boundary(at)).unwrap_or(6);
        return Some((c, len));
    }
    match ahead(&spelled[6..], "\\u") {
        Ahead::Unknown => None,
        Ahead::No => Some((char::REPLACEMENT_CHARACTER, 6)),
        Ahead::Yes => match unit(8)? {
            low @ 0xDC00..=0xDFFF => {
                let code = 0x10000 + ((first - 0xD800) << 10) + (low - 0xDC00);
                Some((char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 12))
            }
            _ => Some((char::REPLACEMENT_CHARACTER, 6)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Reads arguments in two pieces, cut at every place.
    fn check(arguments: &str, want: &str) {
        for cut in (0..=arguments.len()).filter(|&cut| arguments.is_char_boundary(cut)) {
            let mut reader = InputReader::default();
            let mut got = reader.push(&arguments[..cut]);
            got += &reader.push(&arguments[cut..]);
            got += &reader.finish();
            assert_eq!(got, want, "{arguments} cut at {cut}");
        }
    }

    #[test]
    fn the_text_is_read_wherever_pieces_end() {
        let text = "a \"b\"\n\\c/\t\u{8}\u{c}\r\u{1}ü日😀";
        check(&json!({"input": text}).to_string(), text);
        check(" {\n \"input\" : \"x\" , \"more\": \"y\" }", "x");
        check(r#"{"input": "\u00fc\ud83d\ude00\/\ud83d!\ude00"}"#, "ü😀/\u{fffd}!\u{fffd}");
        // An answer that was cut keeps what is whole.
        check(r#"{"input": "ab\"#, "ab");
        check(r#"{"input": "ab\u00f"#, "ab");
        check(r#"{"input": "ab\ud83d\u"#, "ab");
        check(r#"{"inp"#, "");
        // What the model makes of it that does not follow the schema.
        check("*** Begin\n{}", "*** Begin\n{}");
        check(r#"{"more": 1, "input": "x"}"#, "x");
        check(r#"{"input": ["x"]}"#, r#"["x"]"#);
        check(r#"{"patch": "x"}"#, r#"{"patch": "x"}"#);
        check("{}", "");
    }

    #[test]
    fn only_calls_of_custom_tools_are_rewritten() {
        let functions = [Function::custom("say", None), Function::new("f", json!({}))];
        let start = |index: usize, name: &str, kind| ChatDelta::ToolCallStart {
            index,
            id: format!("call_{index}"),
            name: name.to_owned(),
            kind,
        };
        let piece = |index: usize, text: &str| ChatDelta::ToolCallArguments {
            index,
            text: text.to_owned(),
        };
        let (function, custom) = (CallKind::Function, CallKind::Custom);
        let mut out = vec![
            piece(9, "before"),
            start(0, "f", function),
            piece(0, "{\"input\": 1}"),
            start(1, "say", function),
            piece(1, "{\"input\": \"a"),
            piece(1, "b\\n\"}"),
            start(2, "say", function),
            piece(2, "{\"other\": 1}"),
        ];
        let mut calls = CustomCalls::of(&functions);
        calls.read(1, &mut out);
        calls.finish(&mut out);
        let want = [
            piece(9, "before"),
            start(0, "f", function),
            piece(0, "{\"input\": 1}"),
            start(1, "say", custom),
            piece(1, "a"),
            piece(1, "b\n"),
            start(2, "say", custom),
            piece(2, "{\"other\": 1}"),
        ];
        assert_eq!(out, want);
    }
}
