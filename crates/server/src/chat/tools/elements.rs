//! One call in elements that look like XML, an element for each argument, read while it is being
//! written.
//!
//! The text of an argument has no quotes and is not escaped; what it is follows from the function's
//! schema. An argument that can only be a text is emitted as it comes, any other when it is complete.

use serde_json::Value;
use std::sync::Arc;

use super::Function;
use super::arguments::{Kinds, Members, escaped};
use super::json::space_len;
use super::reader::{Ahead, Piece, Place, Policy, Progress, Steps, ahead, name_len, partial_len};

/// The marks of a call and of its arguments.
#[derive(Debug)]
pub(crate) struct Elements {
    /// Before the name; empty where the name follows the marker of the call itself.
    pub(crate) open: &'static str,
    /// After the name; empty where white space or the next mark is.
    pub(crate) name_end: &'static str,
    /// Before the key of an argument.
    pub(crate) key_open: &'static str,
    /// After the key.
    pub(crate) key_end: &'static str,
    /// After what may follow the key: an attribute that says whether the value is a text.
    pub(crate) attributes_end: Option<&'static str>,
    /// Before the value, after white space.
    pub(crate) value_open: &'static str,
    /// After the value.
    pub(crate) value_end: &'static str,
    /// After the last argument; empty where the marker of the call follows.
    pub(crate) close: &'static str,
}

#[derive(Debug)]
enum State {
    /// Before the name.
    Open,
    /// After the name, or an argument.
    Between,
    /// After the mark before a key.
    Key,
    /// After the key.
    Attributes { key: String },
    /// Before the mark before a value.
    BeforeValue { key: String, is_text: Option<bool> },
    /// In a value that is emitted when it is complete.
    Value { kinds: Kinds, is_text: Option<bool> },
    /// In a text, of which something was emitted or not.
    Text { begun: bool },
}

/// Reads one call.
#[derive(Debug)]
pub(super) struct ElementReader {
    marks: &'static Elements,
    functions: Arc<[Function]>,
    state: State,
    place: Place,
    function: Option<usize>,
    members: Members,
}

impl ElementReader {
    pub(super) fn new(marks: &'static Elements, functions: Arc<[Function]>) -> Self {
        let (state, members) = (State::Open, Members::default());
        Self { marks, functions, state, place: Place::default(), function: None, members }
    }

    /// The name; the call is certain from there on.
    fn open(
        &mut self,
        rest: &str,
        policy: Policy<'_>,
        out: &mut dyn FnMut(Piece<'_>),
    ) -> Option<Progress> {
        let start = self.marks.open.len();
        match ahead(rest, self.marks.open) {
            Ahead::Unknown => return Some(Progress::More),
            Ahead::No => return Some(Progress::Failed),
            Ahead::Yes => {}
        }
        let len = name_len(&rest[start..]);
        let behind = start + len;
        let end = if self.marks.name_end.is_empty() {
            match rest.as_bytes().get(behind) {
                None => return Some(Progress::More),
                Some(b' ' | b'\t' | b'\n' | b'\r' | b'<') => behind,
                Some(_) => return Some(Progress::Failed),
            }
        } else {
            match ahead(&rest[behind..], self.marks.name_end) {
                Ahead::Unknown => return Some(Progress::More),
                Ahead::No => return Some(Progress::Failed),
                Ahead::Yes => behind + self.marks.name_end.len(),
            }
        };
        let name = &rest[start..behind];
        if !policy.takes(name) {
            return Some(Progress::Failed);
        }
        self.function = self.functions.iter().position(|f| f.name == name);
        out(Piece::Name(name));
        self.place.certain = true;
        self.place.at += end;
        self.state = State::Between;
        None
    }

    /// The next argument, or the end.
    fn between(&mut self, rest: &str, out: &mut dyn FnMut(Piece<'_>)) -> Option<Progress> {
        let space = space_len(rest);
        let rest = &rest[space..];
        if rest.is_empty() {
            return Some(Progress::More);
        }
        let end = match (ahead(rest, self.marks.key_open), ahead(rest, self.marks.close)) {
            (Ahead::Yes, _) => {
                self.place.at += space + self.marks.key_open.len();
                self.state = State::Key;
                return None;
            }
            (_, Ahead::Yes) if !self.marks.close.is_empty() => self.marks.close.len(),
            (Ahead::Unknown, _) => return Some(Progress::More),
            (_, Ahead::Unknown) if !self.marks.close.is_empty() => return Some(Progress::More),
            // Without a mark of its own the call ends where no argument follows. A model that forgets
            // the mark has ended the call as well.
            _ => 0,
        };
        out(Piece::Arguments(self.members.end()));
        self.place.at += space + end;
        Some(Progress::Done)
    }

    fn key(&mut self, rest: &str) -> Option<Progress> {
        let Some(len) = rest.find(self.marks.key_end) else { return Some(Progress::More) };
        self.place.at += len + self.marks.key_end.len();
        let key = rest[..len].trim().to_owned();
        self.state = match self.marks.attributes_end {
            Some(_) => State::Attributes { key },
            None => State::BeforeValue { key, is_text: None },
        };
        None
    }

    fn before_value(&mut self, rest: &str, out: &mut dyn FnMut(Piece<'_>)) -> Option<Progress> {
        let State::BeforeValue { key, is_text } = &self.state else { return None };
        let (open, is_text) = (self.marks.value_open, *is_text);
        let space = if open.is_empty() { 0 } else { space_len(rest) };
        match ahead(&rest[space..], open) {
            Ahead::Unknown => return Some(Progress::More),
            Ahead::No => return Some(Progress::Failed),
            Ahead::Yes => {}
        }
        // A value may stand on lines of its own.
        let behind = &rest[space + open.len()..];
        if behind.is_empty() || behind == "\r" {
            return Some(Progress::More);
        }
        let line =
            if behind.starts_with("\r\n") { 2 } else { usize::from(behind.starts_with('\n')) };
        let parameters = self.function.map_or(&Value::Null, |at| self.functions[at].parameters());
        let kinds = Kinds::of(parameters, key);
        out(Piece::Arguments(&self.members.next(key)));
        self.place.at += space + open.len() + line;
        self.state = if is_text.unwrap_or(kinds.is_text()) {
            State::Text { begun: false }
        } else {
            State::Value { kinds, is_text }
        };
        None
    }

    fn value(&mut self, rest: &str, out: &mut dyn FnMut(Piece<'_>)) -> Option<Progress> {
        let end = rest.find(self.marks.value_end);
        match &mut self.state {
            State::Text { begun } => {
                // The line feed before the mark is not part of the value.
                let text = match end {
                    Some(end) => without_last_line_end(&rest[..end]),
                    None => {
                        let held = partial_len(rest, self.marks.value_end);
                        let text = &rest[..rest.len() - held];
                        let text = text.strip_suffix('\n').unwrap_or(text);
                        text.strip_suffix('\r').unwrap_or(text)
                    }
                };
                let quote = if std::mem::replace(begun, true) { "" } else { "\"" };
                let close = if end.is_some() { "\"" } else { "" };
                let told = format!("{quote}{}{close}", escaped(text));
                if !told.is_empty() {
                    out(Piece::Arguments(&told));
                }
                let Some(end) = end else {
                    self.place.at += text.len();
                    return Some(Progress::More);
                };
                self.place.at += end + self.marks.value_end.len();
            }
            State::Value { kinds, is_text } => {
                let Some(end) = end else { return Some(Progress::More) };
                let raw = without_last_line_end(&rest[..end]);
                // What is declared not to be a text is JSON, if it is JSON.
                let is_json = *is_text == Some(false) && serde_json::from_str::<Value>(raw).is_ok();
                let json = if is_json { raw.trim().to_owned() } else { kinds.json(raw) };
                out(Piece::Arguments(&json));
                self.place.at += end + self.marks.value_end.len();
            }
            _ => {}
        }
        self.state = State::Between;
        None
    }
}

fn without_last_line_end(text: &str) -> &str {
    let line = text.strip_suffix('\n').unwrap_or(text);
    if line.len() < text.len() { line.strip_suffix('\r').unwrap_or(line) } else { text }
}

impl Steps for ElementReader {
    fn place(&self) -> &Place {
        &self.place
    }

    fn place_mut(&mut self) -> &mut Place {
        &mut self.place
    }

    fn step(
        &mut self,
        rest: &str,
        policy: Policy<'_>,
        out: &mut dyn FnMut(Piece<'_>),
    ) -> Option<Progress> {
        match &self.state {
            State::Open => self.open(rest, policy, out),
            State::Between => self.between(rest, out),
            State::Key => self.key(rest),
            State::Attributes { key } => {
                let end = self.marks.attributes_end.unwrap_or_default();
                match rest.find(end) {
                    None => Some(Progress::More),
                    Some(len) => {
                        let says = |what: &str| rest[..len].contains(what);
                        let is_text = if says("string=\"true\"") {
                            Some(true)
                        } else {
                            says("string=\"false\"").then_some(false)
                        };
                        self.place.at += len + end.len();
                        self.state = State::BeforeValue { key: key.clone(), is_text };
                        None
                    }
                }
            }
            State::BeforeValue { .. } => self.before_value(rest, out),
            State::Value { .. } | State::Text { .. } => self.value(rest, out),
        }
    }

    fn end(&mut self, rest: &str, out: &mut dyn FnMut(Piece<'_>)) {
        if let State::Value { .. } = self.state {
            let raw = &rest[..rest.len() - partial_len(rest, self.marks.value_end)];
            let raw = without_last_line_end(raw);
            if serde_json::from_str::<Value>(raw).is_ok() {
                out(Piece::Arguments(raw.trim()));
            }
        }
    }
}
