//! One call as Gemma 4 writes it, `call:name{key:<|"|>text<|"|>,other:[1,true]}`, read while it is
//! being written. It is emitted as JSON as it comes.

use super::arguments::escaped;
use super::json::space_len;
use super::reader::{Ahead, Piece, Place, Policy, Progress, Steps, ahead, name_len, partial_len};

/// What a call begins with.
pub(super) const OPEN: &str = "call:";
/// The quote of texts.
pub(super) const QUOTE: &str = "<|\"|>";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Name,
    /// A key or the end of an object.
    Key,
    /// A value or the end of a list.
    Value,
    /// A text between quotes, and whether it is a key.
    Text {
        is_key: bool,
    },
    /// After a value.
    After,
}

/// Reads one call.
#[derive(Debug)]
pub(super) struct GemmaReader {
    state: State,
    place: Place,
    closers: Vec<u8>, // of the brackets that are open
    comma: bool,      // one was read and not told
}

impl GemmaReader {
    pub(super) fn new() -> Self {
        Self { state: State::Name, place: Place::default(), closers: Vec::new(), comma: false }
    }

    fn go(&mut self, state: State, len: usize) -> Option<Progress> {
        self.state = state;
        self.place.at += len;
        None
    }

    fn open(&mut self, closer: u8, out: &mut dyn FnMut(Piece<'_>)) {
        self.closers.push(closer);
        out(Piece::Arguments(if closer == b'}' { "{" } else { "[" }));
    }

    fn close(&mut self, byte: u8, len: usize, out: &mut dyn FnMut(Piece<'_>)) -> Option<Progress> {
        if self.closers.pop() != Some(byte) {
            return Some(Progress::Failed);
        }
        out(Piece::Arguments(if byte == b'}' { "}" } else { "]" }));
        self.comma = false;
        self.go(State::After, len);
        self.closers.is_empty().then_some(Progress::Done)
    }

    fn name(
        &mut self,
        rest: &str,
        policy: Policy<'_>,
        out: &mut dyn FnMut(Piece<'_>),
    ) -> Option<Progress> {
        match ahead(rest, OPEN) {
            Ahead::Unknown => return Some(Progress::More),
            Ahead::No => return Some(Progress::Failed),
            Ahead::Yes => {}
        }
        let name = &rest[OPEN.len()..];
        let len = name_len(name);
        match name.as_bytes().get(len) {
            None => return Some(Progress::More),
            Some(b'{') if policy.takes(&name[..len]) => {}
            Some(_) => return Some(Progress::Failed),
        }
        out(Piece::Name(&name[..len]));
        self.place.certain = true;
        self.open(b'}', out);
        self.go(State::Key, OPEN.len() + len + 1)
    }

    fn text(
        &mut self,
        rest: &str,
        is_key: bool,
        out: &mut dyn FnMut(Piece<'_>),
    ) -> Option<Progress> {
        let end = rest.find(QUOTE);
        let len = end.unwrap_or_else(|| rest.len() - partial_len(rest, QUOTE));
        if len > 0 {
            out(Piece::Arguments(&escaped(&rest[..len])));
        }
        self.place.at += len;
        if end.is_none() {
            return Some(Progress::More);
        }
        if !is_key {
            out(Piece::Arguments("\""));
            return self.go(State::After, QUOTE.len());
        }
        // The colon belongs to the key.
        match rest.as_bytes().get(len + QUOTE.len()) {
            Some(b':') => {
                out(Piece::Arguments("\": "));
                self.go(State::Value, QUOTE.len() + 1)
            }
            Some(_) => Some(Progress::Failed),
            None => Some(Progress::More),
        }
    }
}

impl Steps for GemmaReader {
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
        if let State::Text { is_key } = self.state {
            return self.text(rest, is_key, out);
        }
        if self.state == State::Name {
            return self.name(rest, policy, out);
        }
        let space = space_len(rest);
        let rest = &rest[space..];
        let Some(&byte) = rest.as_bytes().first() else { return Some(Progress::More) };
        match (self.state, ahead(rest, QUOTE)) {
            (_, Ahead::Unknown) => return Some(Progress::More),
            (State::Key | State::Value, Ahead::Yes) => {
                let comma = std::mem::take(&mut self.comma);
                out(Piece::Arguments(if comma { ", \"" } else { "\"" }));
                let is_key = self.state == State::Key;
                return self.go(State::Text { is_key }, space + QUOTE.len());
            }
            _ => {}
        }
        if !matches!((self.state, byte), (_, b'}' | b']')) && std::mem::take(&mut self.comma) {
            out(Piece::Arguments(", "));
        }
        match (self.state, byte) {
            (State::Key | State::After, b'}') | (State::Value | State::After, b']') => {
                self.close(byte, space + 1, out)
            }
            (State::Key, _) => {
                let len = rest.find([':', '}', ',', '<']);
                let Some(len) = len else { return Some(Progress::More) };
                if rest.as_bytes()[len] != b':' || len == 0 {
                    return Some(Progress::Failed);
                }
                out(Piece::Arguments(&format!("\"{}\": ", escaped(rest[..len].trim()))));
                self.go(State::Value, space + len + 1)
            }
            (State::Value, b'{') => {
                self.open(b'}', out);
                self.go(State::Key, space + 1)
            }
            (State::Value, b'[') => {
                self.open(b']', out);
                self.go(State::Value, space + 1)
            }
            (State::Value, _) => {
                let Some(len) = rest.find([',', ']', '}', '<']) else {
                    return Some(Progress::More);
                };
                let word = rest[..len].trim();
                if word.is_empty() || rest.as_bytes()[len] == b'<' {
                    return Some(Progress::Failed);
                }
                match serde_json::from_str::<serde_json::Value>(word) {
                    Ok(_) => out(Piece::Arguments(word)),
                    Err(_) => out(Piece::Arguments(&format!("\"{}\"", escaped(word)))),
                }
                self.go(State::After, space + len)
            }
            (State::After, b',') => {
                self.comma = true;
                let in_object = self.closers.last() == Some(&b'}');
                self.go(if in_object { State::Key } else { State::Value }, space + 1)
            }
            _ => Some(Progress::Failed),
        }
    }
}
