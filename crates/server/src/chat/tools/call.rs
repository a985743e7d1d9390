//! One call, `{"name": …, "arguments": {…}}`, read while it is being written.
//!
//! Until the name and the beginning of the arguments are known, nothing is emitted and the text can
//! still turn out to be something else. From then on the call is certain, and its arguments are
//! told as they come, exactly as the model writes them.

use serde_json::{Map, Value};

use super::json::{Kind, Span, Step};
use super::reader::{Piece, Policy, Progress, Reader};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Name,
    Arguments,
    Other,
}

#[derive(Clone, Debug)]
enum State {
    Open,
    KeyOrEnd,
    Key { span: Span, start: usize },
    Colon,
    Value,
    InValue { span: Span, start: usize },
    CommaOrEnd,
}

/// Reads one call. The caller keeps the text and gives it again, longer, at each run.
#[derive(Clone, Debug)]
pub(super) struct CallReader {
    state: State,
    at: usize, // the next byte to look at
    key: Key,
    name: Option<String>,
    arguments: Option<String>, // that came before the name
    told: usize,               // up to here the arguments have been told
    certain: bool,
    only_arguments: bool,
}

impl CallReader {
    /// A reader for an object, whose `{` comes first.
    pub(super) fn object() -> Self {
        Self {
            state: State::Open,
            at: 0,
            key: Key::Other,
            name: None,
            arguments: None,
            told: 0,
            certain: false,
            only_arguments: false,
        }
    }

    /// A reader for the arguments of a call whose name was written before them.
    pub(super) fn arguments_of(name: &str) -> Self {
        let name = Some(name.to_owned());
        let (state, key, only_arguments) = (State::Value, Key::Arguments, true);
        Self { state, key, name, only_arguments, ..Self::object() }
    }

    fn step(
        &mut self,
        text: &str,
        byte: u8,
        policy: Policy<'_>,
        out: &mut dyn FnMut(Piece<'_>),
    ) -> Progress {
        let space = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        match &mut self.state {
            State::Key { span, start } => {
                let start = *start;
                match span.push(byte) {
                    Step::Inside => self.at += 1,
                    _ => {
                        self.at += 1;
                        self.state = State::Colon;
                        self.key =
                            if self.certain { Key::Other } else { key(&text[start..self.at]) };
                    }
                }
            }
            State::InValue { span, start } => {
                let (start, kind) = (*start, span.kind());
                match span.push(byte) {
                    Step::Inside => self.at += 1,
                    Step::Invalid => return Progress::Failed,
                    Step::Last => {
                        self.at += 1;
                        return self.end_value(text, kind, start, policy, out);
                    }
                    Step::After => return self.end_value(text, kind, start, policy, out),
                }
            }
            _ if space => self.at += 1,
            State::Open if byte == b'{' => self.go(State::KeyOrEnd),
            State::KeyOrEnd if byte == b'"' => match Span::begin(byte) {
                Some(span) => self.go(State::Key { span, start: self.at }),
                None => return Progress::Failed,
            },
            State::Colon if byte == b':' => self.go(State::Value),
            State::Value => {
                let Some(span) = Span::begin(byte) else { return Progress::Failed };
                let kind = span.kind();
                match (self.key, kind) {
                    (Key::Name, kind) if kind != Kind::String => return Progress::Failed,
                    (Key::Arguments, Kind::Array) => return Progress::Failed,
                    (Key::Arguments, Kind::Object) if !self.certain => {
                        if let Some(name) = &self.name {
                            out(Piece::Name(name));
                            self.certain = true;
                            self.told = self.at;
                        }
                    }
                    _ => {}
                }
                self.go(State::InValue { span, start: self.at });
            }
            State::CommaOrEnd if byte == b',' => self.go(State::KeyOrEnd),
            State::KeyOrEnd | State::CommaOrEnd if byte == b'}' => {
                self.at += 1;
                return self.end(policy, out);
            }
            _ => return Progress::Failed,
        }
        Progress::More
    }

    /// The byte was taken, and `state` follows.
    fn go(&mut self, state: State) {
        self.state = state;
        self.at += 1;
    }

    /// Emits the arguments that were read and not emitted, if they are what is being read.
    fn tell_arguments(&mut self, text: &str, out: &mut dyn FnMut(Piece<'_>)) {
        let reading = self.certain
            && self.key == Key::Arguments
            && matches!(self.state, State::InValue { .. });
        if reading && self.told < self.at {
            out(Piece::Arguments(&text[self.told..self.at]));
            self.told = self.at;
        }
    }

    /// A value ended before `self.at`.
    fn end_value(
        &mut self,
        text: &str,
        kind: Kind,
        start: usize,
        policy: Policy<'_>,
        out: &mut dyn FnMut(Piece<'_>),
    ) -> Progress {
        self.tell_arguments(text, out);
        self.state = State::CommaOrEnd;
        let key = std::mem::replace(&mut self.key, Key::Other);
        if !self.certain {
            let value = &text[start..self.at];
            match key {
                Key::Name => match serde_json::from_str::<String>(value) {
                    Ok(name) if policy.takes(&name) => self.name = Some(name),
                    _ => return Progress::Failed,
                },
                Key::Arguments => match arguments(kind, value) {
                    Some(arguments) => self.arguments = Some(arguments),
                    None => return Progress::Failed,
                },
                Key::Other => {}
            }
            if let (Some(name), Some(arguments)) = (&self.name, &self.arguments) {
                out(Piece::Name(name));
                out(Piece::Arguments(arguments));
                self.certain = true;
            }
        }
        if self.only_arguments { Progress::Done } else { Progress::More }
    }

    /// The object's `}` was read.
    fn end(&mut self, policy: Policy<'_>, out: &mut dyn FnMut(Piece<'_>)) -> Progress {
        match &self.name {
            _ if self.certain => Progress::Done,
            Some(name) if policy.arguments_optional && self.arguments.is_none() => {
                out(Piece::Name(name));
                out(Piece::Arguments("{}"));
                self.certain = true;
                Progress::Done
            }
            _ => Progress::Failed,
        }
    }
}

impl Reader for CallReader {
    fn is_certain(&self) -> bool {
        self.certain
    }

    fn read_len(&self) -> usize {
        self.at
    }

    fn forget_read(&mut self) {
        debug_assert!(self.certain);
        (self.at, self.told) = (0, 0);
    }

    fn run(&mut self, text: &str, policy: Policy<'_>, out: &mut dyn FnMut(Piece<'_>)) -> Progress {
        while let Some(&byte) = text.as_bytes().get(self.at) {
            match self.step(text, byte, policy, out) {
                Progress::More => {}
                end => {
                    self.tell_arguments(text, out);
                    return end;
                }
            }
        }
        self.tell_arguments(text, out);
        Progress::More
    }
}

/// What the key spelled by this JSON string says.
fn key(spelling: &str) -> Key {
    match serde_json::from_str::<String>(spelling).as_deref() {
        // The latter with Command-R7B.
        Ok("name" | "tool_name") => Key::Name,
        Ok("arguments" | "parameters") => Key::Arguments,
        _ => Key::Other,
    }
}

/// The JSON text of arguments that were written as `value`: an object, a string that holds one,
/// or nothing.
fn arguments(kind: Kind, value: &str) -> Option<String> {
    match kind {
        Kind::Object => Some(value.to_owned()),
        Kind::Word if value == "null" => Some("{}".to_owned()),
        Kind::String => {
            let text: String = serde_json::from_str(value).ok()?;
            let text = if text.trim().is_empty() { "{}" } else { text.trim() };
            serde_json::from_str::<Map<String, Value>>(text).ok()?;
            Some(text.to_owned())
        }
        Kind::Word | Kind::Array => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::tools::Function;

    const ANY: Policy<'_> = Policy { functions: None, arguments_optional: true };

    /// Reads `text` in two pieces, cut at every place; the name, the arguments, the end, and how
    /// much was read must be the same.
    fn check(policy: Policy<'_>, text: &str, want: (&str, &str), end: Progress, read: usize) {
        for cut in (0..=text.len()).filter(|&cut| text.is_char_boundary(cut)) {
            let mut reader = CallReader::object();
            let (mut name, mut arguments) = (String::new(), String::new());
            let mut out = |piece: Piece<'_>| match piece {
                Piece::Name(text) => {
                    assert!(name.is_empty() && arguments.is_empty());
                    name.push_str(text);
                }
                Piece::Arguments(text) => arguments.push_str(text),
            };
            let (mut from, mut got) = (0, reader.run(&text[..cut], policy, &mut out));
            if got == Progress::More {
                if reader.is_certain() {
                    from = reader.read_len();
                    reader.forget_read();
                }
                got = reader.run(&text[from..], policy, &mut out);
            }
            let got_read = from + reader.read_len();
            assert_eq!(
                (name.as_str(), arguments.as_str(), got, got_read),
                (want.0, want.1, end, read),
                "{text} cut at {cut}"
            );
        }
    }

    #[test]
    fn calls_are_read_in_any_order_of_keys() {
        use Progress::{Done, Failed, More};
        let functions = [Function::new("f", Value::Null)];
        let strict = Policy { functions: Some(&functions), arguments_optional: false };
        let whole = |policy, text: &str, arguments: &str| {
            check(policy, text, ("f", arguments), Done, text.len());
        };
        for policy in [ANY, strict] {
            whole(policy, r#"{"name": "f", "arguments": {"a": [1, "}"]}}"#, r#"{"a": [1, "}"]}"#);
            whole(policy, r#"{"parameters":{"ü":"é"} , "name":"f"}"#, r#"{"ü":"é"}"#);
            whole(policy, r#"{"name":"f","arguments":{},"id":"x}"}"#, "{}");
            whole(
                policy,
                "{\n \"type\":\"function\",\"\\u006eame\":\"f\",\"arguments\":null}",
                "{}",
            );
            whole(policy, r#"{"name":"f","arguments":"{\"a\": \"\\n\"}"}"#, r#"{"a": "\n"}"#);
            whole(policy, r#"{"id":[{"name":1}],"name":"f","arguments":"",}"#, "{}");
            check(policy, r#"{"name":"f","arguments":{"a":1"#, ("f", r#"{"a":1"#), More, 30);
            check(policy, r#"{"name":"f","arguments":{"a":1<"#, ("f", r#"{"a":1"#), Failed, 30);
            check(policy, r#"{"name":"f","arguments":{}<"#, ("f", "{}"), Failed, 26);
            for (text, read) in [
                (r#"{"name":1,"arguments":{}}"#, 8),
                (r#"{"name":"","arguments":{}}"#, 10),
                (r#"{"name":"f","arguments":[1]}"#, 24),
                (r#"{"name":"f","arguments":12}"#, 26),
                (r#"{"name":"f","arguments":"no object"}"#, 35),
                (r#"{"arguments":{}}"#, 16),
                (r#"{'name':"f"}"#, 1),
                (r#"{"name" "f"}"#, 8),
                ("{}", 2),
            ] {
                check(policy, text, ("", ""), Failed, read);
            }
        }
        whole(ANY, r#"{"name":"f"}"#, "{}");
        check(strict, r#"{"name":"f"}"#, ("", ""), Failed, 12);
        check(strict, r#"{"name":"g","arguments":{}}"#, ("", ""), Failed, 11);
    }

    #[test]
    fn arguments_alone_follow_a_name() {
        let text = r#"{"a": {"b": 1}} rest"#;
        let mut reader = CallReader::arguments_of("f");
        let mut got = String::new();
        let mut out = |piece: Piece<'_>| match piece {
            Piece::Name(text) | Piece::Arguments(text) => got.push_str(text),
        };
        assert_eq!(reader.run(&text[..5], ANY, &mut out), Progress::More);
        assert_eq!(reader.run(text, ANY, &mut out), Progress::Done);
        assert_eq!((got.as_str(), reader.read_len()), (r#"f{"a": {"b": 1}}"#, 15));
    }
}
