//! One call as Python writes it, `name(key=value, …)`, read while it is being written.

use super::arguments::{Members, python_value};
use super::json::space_len;
use super::reader::{Piece, Place, Policy, Progress, Steps, name_len};

#[derive(Debug)]
enum State {
    Name,
    KeyOrEnd,
    Value(Span),
    CommaOrEnd,
}

/// Where a value ends that may have brackets and quotes.
#[derive(Debug, Default)]
struct Span {
    len: usize,
    depth: usize,
    quote: Option<u8>,
    escaped: bool,
}

impl Span {
    /// Whether the value continues with this byte.
    fn push(&mut self, byte: u8) -> bool {
        match (self.quote, byte) {
            (Some(_), _) if self.escaped => self.escaped = false,
            (Some(_), b'\\') => self.escaped = true,
            (Some(quote), _) if quote == byte => self.quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"') => self.quote = Some(byte),
            (None, b'[' | b'{' | b'(') => self.depth += 1,
            (None, b',' | b')' | b']' | b'}') if self.depth == 0 => return false,
            (None, b')' | b']' | b'}') => self.depth -= 1,
            _ => {}
        }
        self.len += 1;
        true
    }
}

/// Reads one call.
#[derive(Debug)]
pub(super) struct PythonReader {
    state: State,
    place: Place,
    members: Members,
}

impl PythonReader {
    pub(super) fn new() -> Self {
        Self { state: State::Name, place: Place::default(), members: Members::default() }
    }
}

impl Steps for PythonReader {
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
        let space = space_len(rest);
        let first = rest.as_bytes().get(space).copied();
        match &mut self.state {
            State::Name => {
                let len = name_len(rest);
                match rest.as_bytes().get(len) {
                    None => return Some(Progress::More),
                    Some(b'(') if policy.takes(&rest[..len]) => {}
                    Some(_) => return Some(Progress::Failed),
                }
                out(Piece::Name(&rest[..len]));
                self.place.certain = true;
                self.place.at += len + 1;
                self.state = State::KeyOrEnd;
            }
            State::KeyOrEnd | State::CommaOrEnd if first == Some(b')') => {
                out(Piece::Arguments(self.members.end()));
                self.place.at += space + 1;
                return Some(Progress::Done);
            }
            State::KeyOrEnd => {
                let rest = &rest[space..];
                let len =
                    rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                let behind = len + space_len(&rest[len..]);
                match rest.as_bytes().get(behind) {
                    None => return Some(Progress::More),
                    Some(b'=') if len > 0 => {}
                    Some(_) => return Some(Progress::Failed),
                }
                out(Piece::Arguments(&self.members.next(&rest[..len])));
                self.place.at += space + behind + 1;
                self.state = State::Value(Span::default());
            }
            State::Value(span) => {
                while let Some(&byte) = rest.as_bytes().get(span.len) {
                    if !span.push(byte) {
                        break;
                    }
                }
                if span.len == rest.len() {
                    return Some(Progress::More);
                }
                let raw = rest[..span.len].trim();
                // What Python would not take is a text to the letter.
                let value = python_value(raw).unwrap_or_else(|| raw.into());
                out(Piece::Arguments(&value.to_string()));
                self.place.at += span.len;
                self.state = State::CommaOrEnd;
            }
            State::CommaOrEnd => match first {
                None => return Some(Progress::More),
                Some(b',') => {
                    self.place.at += space + 1;
                    self.state = State::KeyOrEnd;
                }
                Some(_) => return Some(Progress::Failed),
            },
        }
        None
    }

    fn end(&mut self, rest: &str, out: &mut dyn FnMut(Piece<'_>)) {
        if let (State::Value(_), Some(value)) = (&self.state, python_value(rest.trim())) {
            out(Piece::Arguments(&value.to_string()));
        }
    }
}
