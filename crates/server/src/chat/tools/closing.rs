//! Arguments that their model does not finish are closed.
//!
//! An answer may end, or go on with something else, in the middle of a call. The JSON of its arguments is
//! therefore emitted only as far as it could be closed: a key waits for its value, an escape for its
//! end. Where the call ends early, what waits is left out, and strings and brackets are closed. JSON
//! that is malformed is emitted as the model wrote it.

use std::mem;

use serde_json::Value;

use crate::chat::delta::ChatDelta;

/// Follows the calls among the deltas of an answer.
#[derive(Debug, Default)]
pub(crate) struct Closing {
    open: Option<(usize, Arguments)>,
}

impl Closing {
    /// Holds back what could not be closed of the deltas from `start` on, and closes calls that others follow.
    pub(crate) fn read(&mut self, start: usize, out: &mut Vec<ChatDelta>) {
        for delta in out.split_off(start) {
            match delta {
                ChatDelta::ToolCallArguments { index, text } => match &mut self.open {
                    Some((open, arguments)) if *open == index => {
                        tell(index, arguments.push(&text), out);
                    }
                    _ => out.push(ChatDelta::ToolCallArguments { index, text }),
                },
                other => {
                    self.close(out);
                    if let ChatDelta::ToolCallStart { index, .. } = &other {
                        self.open = Some((*index, Arguments::default()));
                    }
                    out.push(other);
                }
            }
        }
    }

    /// The open call has ended.
    pub(crate) fn close(&mut self, out: &mut Vec<ChatDelta>) {
        if let Some((index, arguments)) = self.open.take() {
            tell(index, arguments.close(), out);
        }
    }

    /// The answer was cut: the arguments of the open call remain open.
    pub(crate) fn cut(&mut self, out: &mut Vec<ChatDelta>) {
        if let Some((index, arguments)) = self.open.take() {
            tell(index, arguments.held, out);
        }
    }
}

fn tell(index: usize, text: String, out: &mut Vec<ChatDelta>) {
    if !text.is_empty() {
        out.push(ChatDelta::ToolCallArguments { index, text });
    }
}

/// What has been read of an escape in a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Backslash,
    /// So many of the digits of a UTF-16 unit, and what they are.
    Digits(u8, u32),
    /// The first of two units, before the backslash and the `u` of the second.
    High,
    HighBackslash,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Start,
    KeyOrEnd,
    AfterComma,
    Key(Escape),
    Colon,
    Value,
    ValueOrEnd,
    Text(Escape),
    /// In a number or a word, which begins so many bytes before the end of what is held.
    Word(usize),
    AfterValue,
    End,
    Malformed,
}

/// The arguments of one call.
#[derive(Debug, Default)]
struct Arguments {
    state: State,
    closers: Vec<u8>, // of the brackets that are open
    held: String,
}

impl Arguments {
    /// What can be emitted with the next piece.
    fn push(&mut self, piece: &str) -> String {
        let mut tellable = 0;
        for c in piece.chars() {
            if let State::Word(start) = self.state
                && !is_of_word(c)
            {
                if is_word(&self.held[start..]) {
                    self.state = State::AfterValue;
                    tellable = self.held.len();
                } else {
                    self.state = State::Malformed;
                }
            }
            self.state = self.next(c);
            self.held.push(c);
            if self.is_closable() {
                tellable = self.held.len();
            }
        }
        let rest = self.held.split_off(tellable);
        if let State::Word(start) = &mut self.state {
            *start -= tellable;
        }
        mem::replace(&mut self.held, rest)
    }

    /// Whether what has been read is JSON as soon as it is closed.
    fn is_closable(&self) -> bool {
        matches!(
            self.state,
            State::KeyOrEnd
                | State::ValueOrEnd
                | State::Text(Escape::None)
                | State::AfterValue
                | State::End
                | State::Malformed
        )
    }

    fn close(mut self) -> String {
        let mut text = String::new();
        match self.state {
            State::Malformed => return self.held,
            State::Start => return "{}".to_owned(),
            State::Word(start) if is_word(&self.held[start..]) => text = mem::take(&mut self.held),
            State::Text(..) => text.push('"'),
            _ => {}
        }
        text.extend(self.closers.iter().rev().map(|&closer| char::from(closer)));
        text
    }

    fn next(&mut self, c: char) -> State {
        let space = matches!(c, ' ' | '\t' | '\n' | '\r');
        match (self.state, c) {
            (State::Malformed, _) => State::Malformed,
            (State::Key(escape), _) => match after_escape(escape, c) {
                None => State::Colon,
                Some(escape) => State::Key(escape),
            },
            (State::Text(escape), _) => match after_escape(escape, c) {
                None => State::AfterValue,
                Some(escape) => State::Text(escape),
            },
            (State::Word(start), _) => State::Word(start),
            (state, _) if space => state,
            (State::Start, '{') => self.open(b'}', State::KeyOrEnd),
            (State::KeyOrEnd | State::AfterComma, '"') if self.in_object() => {
                State::Key(Escape::None)
            }
            (State::Colon, ':') => State::Value,
            (State::Value | State::ValueOrEnd, '"') => State::Text(Escape::None),
            (State::Value | State::ValueOrEnd, '{') => self.open(b'}', State::KeyOrEnd),
            (State::Value | State::ValueOrEnd, '[') => self.open(b']', State::ValueOrEnd),
            (State::Value | State::ValueOrEnd, _) if is_of_word(c) => State::Word(self.held.len()),
            (State::AfterValue, ',') if self.in_object() => State::AfterComma,
            (State::AfterValue, ',') => State::Value,
            (State::KeyOrEnd | State::AfterValue, '}') if self.in_object() => self.end(),
            (State::ValueOrEnd | State::AfterValue, ']') if !self.in_object() => self.end(),
            _ => State::Malformed,
        }
    }

    fn in_object(&self) -> bool {
        self.closers.last() == Some(&b'}')
    }

    fn open(&mut self, closer: u8, state: State) -> State {
        self.closers.push(closer);
        state
    }

    fn end(&mut self) -> State {
        self.closers.pop();
        if self.closers.is_empty() { State::End } else { State::AfterValue }
    }
}

/// Where a character leads in a string; `None` at its end.
fn after_escape(escape: Escape, c: char) -> Option<Escape> {
    Some(match (escape, c) {
        (Escape::None, '"') => return None,
        (Escape::None, '\\') => Escape::Backslash,
        (Escape::None, _) => Escape::None,
        (Escape::Backslash | Escape::HighBackslash, 'u') => Escape::Digits(0, 0),
        (Escape::Backslash | Escape::HighBackslash, _) => Escape::None,
        (Escape::High, '\\') => Escape::HighBackslash,
        (Escape::High, '"') => return None,
        (Escape::High, _) => Escape::None,
        (Escape::Digits(n, unit), _) => {
            let unit = unit * 16 + c.to_digit(16).unwrap_or(0);
            match n {
                3 if (0xD800..0xDC00).contains(&unit) => Escape::High,
                3 => Escape::None,
                n => Escape::Digits(n + 1, unit),
            }
        }
    })
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')
}

fn is_word(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole of arguments that are cut after each character, in pieces of every length.
    fn cut_everywhere(text: &str, check: &dyn Fn(&str, &str)) {
        let chars: Vec<char> = text.chars().collect();
        for end in 0..=chars.len() {
            for piece_len in [1, 3, chars.len() + 1] {
                let mut arguments = Arguments::default();
                let mut got = String::new();
                for piece in chars[..end].chunks(piece_len) {
                    got += &arguments.push(&piece.iter().collect::<String>());
                    // What is emitted could always be closed.
                    let mut now = got.clone();
                    let closed = Arguments {
                        state: arguments.state,
                        closers: arguments.closers.clone(),
                        held: arguments.held.clone(),
                    };
                    now += &closed.close();
                    assert!(serde_json::from_str::<Value>(&now).is_ok(), "{now}");
                }
                got += &arguments.close();
                check(&chars[..end].iter().collect::<String>(), &got);
            }
        }
    }

    #[test]
    fn what_is_cut_anywhere_is_closed() {
        let text = r#" {"a": "x\n\u00fc\ud83d\ude00\\", "b" : [1, -2.5e+3, {"c":true}, [], ""], "d": {} , "e":null}"#;
        cut_everywhere(text, &|cut, got| {
            let value: Value = serde_json::from_str(got).unwrap_or_else(|e| panic!("{e}: {got}"));
            assert!(value.is_object(), "{cut}: {got}");
            if cut == text {
                assert_eq!(got, text);
            }
        });
        let check = |cut: &str, want: &str| {
            let mut arguments = Arguments::default();
            let got = arguments.push(cut) + &arguments.close();
            assert_eq!(got, want, "{cut}");
        };
        check("", "{}");
        check(r#"{"a": "x"#, r#"{"a": "x"}"#);
        check(r#"{"a": "x\ud83d\u"#, r#"{"a": "x"}"#);
        check(r#"{"a": 12"#, r#"{"a": 12}"#);
        check(r#"{"a": 1, "b": tr"#, r#"{"a": 1}"#);
        check(r#"{"a": {"b": [1, "#, r#"{"a": {"b": [1]}}"#);
        // What is no JSON is as it was written.
        for malformed in [r#"{a: 1"#, "text", r#"{"a": 1}}"#, r#"{"a": tru, "b"#, r#"{"a": [1}"#] {
            check(malformed, malformed);
        }
    }

    #[test]
    fn an_answer_that_was_cut_stays_open() {
        let start = ChatDelta::ToolCallStart {
            index: 0,
            id: "x".to_owned(),
            name: "f".to_owned(),
            kind: crate::chat::tools::CallKind::Function,
        };
        let piece = |text: &str| ChatDelta::ToolCallArguments { index: 0, text: text.to_owned() };
        let mut out = vec![start.clone(), piece("{\"a\": 1, \"b")];
        let mut closing = Closing::default();
        closing.read(0, &mut out);
        closing.cut(&mut out);
        assert_eq!(out, [start.clone(), piece("{\"a\": 1"), piece(", \"b")]);
        let content = ChatDelta::Content("text".to_owned());
        let mut out = vec![start.clone(), piece("{\"a\": 1, \"b"), content.clone()];
        Closing::default().read(0, &mut out);
        assert_eq!(out, [start, piece("{\"a\": 1"), piece("}"), content]);
    }
}
