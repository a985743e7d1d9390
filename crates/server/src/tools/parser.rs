//! Finds tool calls in an answer while it is being written.
//!
//! Text is held back while it may be the beginning of a marker or of a call, so no part of either
//! reaches the client as content. What turns out not to be a call is content after all, to the
//! letter. The result does not depend on how the text is cut into pieces.

use super::call::{CallReader, Piece, Policy, Progress};
use super::format::Syntax;
use super::ids::CallIds;
use super::json::space_len;
use crate::chat_parser::ChatDelta;

/// How the calls that are being read were opened.
#[derive(Clone, Copy, Debug)]
struct Frame {
    marked: bool,  // by a marker
    in_list: bool, // by the bracket of a list
}

#[derive(Debug)]
enum State {
    /// Nothing but white space has come.
    Start,
    /// Content.
    Text,
    /// A marker of this length came, or without one what may be a call.
    Open { marker_len: usize },
    /// A call whose text begins after `lead` bytes of the buffer.
    Call { reader: Box<CallReader>, lead: usize, frame: Frame },
    /// A call has ended.
    Between(Frame),
}

/// What comes first in a text that may be cut off.
enum Ahead {
    Yes,
    No,
    Unknown,
}

/// Splits the text of an answer into content and calls.
#[derive(Debug)]
pub(crate) struct ToolParser {
    syntax: &'static Syntax,
    names: Vec<String>,
    single: bool,
    ids: CallIds,
    state: State,
    buf: String,   // text that is not decided
    space: String, // white space before it: content if content follows, nothing before a call
    n_calls: usize,
    muted: bool, // the call that is being read is left out
}

impl ToolParser {
    /// A parser for calls of the functions `names`. With `single`, calls after the first are left
    /// out.
    pub(crate) fn new(
        syntax: &'static Syntax,
        names: Vec<String>,
        single: bool,
        ids: CallIds,
    ) -> Self {
        Self {
            syntax,
            names,
            single,
            ids,
            state: State::Start,
            buf: String::new(),
            space: String::new(),
            n_calls: 0,
            muted: false,
        }
    }

    /// Whether the one call that is wanted is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.single && self.n_calls > 0 && matches!(self.state, State::Between(_) | State::Text)
    }

    /// Whether there was a call.
    pub(crate) fn has_calls(&self) -> bool {
        self.n_calls > 0
    }

    pub(crate) fn push(&mut self, text: &str, out: &mut Vec<ChatDelta>) {
        self.buf.push_str(text);
        while self.step(out) {}
    }

    pub(crate) fn finish(&mut self, out: &mut Vec<ChatDelta>) {
        while !self.buf.is_empty() {
            match &self.state {
                State::Start | State::Text => self.take_content(self.buf.len(), out),
                State::Open { .. } => self.give_up(out),
                State::Call { reader, .. } if reader.is_certain() => self.buf.clear(),
                State::Call { .. } => self.give_up(out),
                State::Between(frame) => {
                    let close = self.syntax.close.filter(|_| frame.marked);
                    if close.is_some_and(|close| close.starts_with(self.buf.as_str())) {
                        self.buf.clear();
                    } else {
                        self.state = State::Text;
                    }
                }
            }
            while self.step(out) {}
        }
        if self.n_calls == 0 && !self.space.is_empty() {
            out.push(ChatDelta::Content(std::mem::take(&mut self.space)));
        }
    }

    /// Decides what can be decided next; false if that needs more text.
    fn step(&mut self, out: &mut Vec<ChatDelta>) -> bool {
        if matches!(self.state, State::Start | State::Between(_)) {
            let n = space_len(&self.buf);
            self.space.extend(self.buf.drain(..n));
        }
        if self.buf.is_empty() {
            return false;
        }
        match self.state {
            State::Start => {
                let bare = match self.buf.as_bytes()[0] {
                    b'{' => self.syntax.bare,
                    b'[' => self.syntax.bare && self.syntax.list,
                    _ => false,
                };
                self.state = if bare { State::Open { marker_len: 0 } } else { State::Text };
                true
            }
            State::Text => self.text(out),
            State::Open { marker_len } => self.open(marker_len, out),
            State::Call { .. } => self.call(out),
            State::Between(frame) => self.between(frame),
        }
    }

    /// Content up to the next marker.
    fn text(&mut self, out: &mut Vec<ChatDelta>) -> bool {
        let Some(marker) = self.syntax.open else {
            self.take_content(self.buf.len(), out);
            return false;
        };
        if let Some(at) = self.buf.find(marker) {
            self.take_content(at, out);
            self.state = State::Open { marker_len: marker.len() };
            return true;
        }
        self.take_content(self.buf.len() - partial_len(&self.buf, marker), out);
        false
    }

    /// What a marker, or the first bracket, opens.
    fn open(&mut self, marker_len: usize, out: &mut Vec<ChatDelta>) -> bool {
        let lead = marker_len + space_len(&self.buf[marker_len..]);
        let mut frame = Frame { marked: marker_len > 0, in_list: false };
        match self.buf.as_bytes().get(lead) {
            None => return false,
            Some(b'{') => self.begin(CallReader::object(), lead, frame),
            Some(b'[') if self.syntax.list => {
                let lead = lead + 1 + space_len(&self.buf[lead + 1..]);
                frame.in_list = true;
                match self.buf.as_bytes().get(lead) {
                    None => return false,
                    Some(b'{') => self.begin(CallReader::object(), lead, frame),
                    Some(_) => self.give_up(out),
                }
            }
            Some(_) => match self.named(lead) {
                Some(Ok((name, lead))) => {
                    self.begin(CallReader::arguments_of(&name), lead, frame);
                }
                Some(Err(())) => return false,
                None => self.give_up(out),
            },
        }
        true
    }

    /// A name before its arguments, as Mistral's newer models write calls: the name and where the
    /// arguments begin. `Some(Err(()))` needs more text.
    fn named(&self, start: usize) -> Option<Result<(String, usize), ()>> {
        let infix = self.syntax.named.as_ref()?;
        let rest = &self.buf[start..];
        let name_len = rest.find(|c: char| !is_name_char(c)).unwrap_or(rest.len());
        if name_len == 0 {
            return None;
        }
        let mut at = start + name_len;
        match ahead(&self.buf[at..], infix.id) {
            Ahead::Unknown => return Some(Err(())),
            Ahead::Yes => {
                at += infix.id.len();
                let rest = &self.buf[at..];
                at += rest.find(|c: char| !is_name_char(c)).unwrap_or(rest.len());
            }
            Ahead::No => {}
        }
        match ahead(&self.buf[at..], infix.arguments) {
            Ahead::Unknown => return Some(Err(())),
            Ahead::Yes => at += infix.arguments.len(),
            Ahead::No => {}
        }
        at += space_len(&self.buf[at..]);
        match self.buf.as_bytes().get(at) {
            None => Some(Err(())),
            Some(b'{') => Some(Ok((self.buf[start..start + name_len].to_owned(), at))),
            Some(_) => None,
        }
    }

    fn begin(&mut self, reader: CallReader, lead: usize, frame: Frame) {
        self.state = State::Call { reader: Box::new(reader), lead, frame };
    }

    /// Reads on in a call.
    fn call(&mut self, out: &mut Vec<ChatDelta>) -> bool {
        let State::Call { reader, lead, frame } = &mut self.state else { return false };
        // A bare object could be the answer itself: it must name a function of the request.
        let policy = Policy {
            names: (!frame.marked).then_some(self.names.as_slice()),
            arguments_optional: frame.marked,
        };
        let (ids, n_calls, space) = (&mut self.ids, &mut self.n_calls, &mut self.space);
        let (single, muted) = (self.single, &mut self.muted);
        let progress = reader.run(&self.buf[*lead..], policy, &mut |piece| match piece {
            Piece::Name(name) => {
                space.clear();
                *muted = single && *n_calls > 0;
                if !*muted {
                    let (index, name) = (*n_calls, name.to_owned());
                    out.push(ChatDelta::ToolCallStart { index, id: ids.next_id(), name });
                    *n_calls += 1;
                }
            }
            Piece::Arguments(text) if !*muted => {
                let (index, text) = (*n_calls - 1, text.to_owned());
                out.push(ChatDelta::ToolCallArguments { index, text });
            }
            Piece::Arguments(_) => {}
        });
        let certain = reader.is_certain();
        if certain {
            self.buf.drain(..*lead + reader.read_len());
            reader.forget_read();
            *lead = 0;
        }
        match progress {
            Progress::More => return false,
            Progress::Done => self.state = State::Between(*frame),
            Progress::Failed if certain => self.state = State::Between(*frame),
            Progress::Failed => self.give_up(out),
        }
        true
    }

    /// What follows a call: the next, the end of a list, a closing marker, or content.
    fn between(&mut self, frame: Frame) -> bool {
        let first = self.buf.as_bytes()[0];
        let separator = if frame.in_list { Some(b',') } else { self.syntax.separator };
        if Some(first) == separator {
            let lead = 1 + space_len(&self.buf[1..]);
            match self.buf.as_bytes().get(lead) {
                None => return false,
                Some(b'{') => self.begin(CallReader::object(), lead, frame),
                Some(_) => self.state = State::Text,
            }
            return true;
        }
        if frame.in_list && first == b']' {
            self.buf.remove(0);
            self.state = State::Between(Frame { in_list: false, ..frame });
            return true;
        }
        if let Some(close) = self.syntax.close.filter(|_| frame.marked) {
            match ahead(&self.buf, close) {
                Ahead::Unknown => return false,
                Ahead::Yes => {
                    self.buf.drain(..close.len());
                    self.state = State::Between(Frame { marked: false, in_list: false });
                    return true;
                }
                Ahead::No if first == b'{' && !frame.in_list => {
                    self.begin(CallReader::object(), 0, frame);
                    return true;
                }
                Ahead::No => {}
            }
        }
        self.state = match self.syntax.open.map(|marker| (marker, ahead(&self.buf, marker))) {
            Some((_, Ahead::Unknown)) => return false,
            Some((marker, Ahead::Yes)) => State::Open { marker_len: marker.len() },
            _ => State::Text,
        };
        true
    }

    /// What the buffer begins with is no call. Only its marker is certainly content; the rest is
    /// looked at again.
    fn give_up(&mut self, out: &mut Vec<ChatDelta>) {
        self.state = State::Text;
        if let Some(marker) = self.syntax.open.filter(|marker| self.buf.starts_with(marker)) {
            self.take_content(marker.len(), out);
        }
    }

    /// The first `len` bytes of the buffer are content. White space at their end waits, as it is
    /// left out if a call follows.
    fn take_content(&mut self, len: usize, out: &mut Vec<ChatDelta>) {
        let text: String = self.buf.drain(..len).collect();
        let trimmed = text.trim_end_matches([' ', '\t', '\n', '\r']);
        if !trimmed.is_empty() {
            let mut content = std::mem::take(&mut self.space);
            content.push_str(trimmed);
            out.push(ChatDelta::Content(content));
        }
        self.space.push_str(&text[trimmed.len()..]);
    }
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// Whether `text` begins with `marker`; unknown while all of it is the marker's beginning.
fn ahead(text: &str, marker: &str) -> Ahead {
    if text.starts_with(marker) {
        Ahead::Yes
    } else if marker.starts_with(text) {
        Ahead::Unknown
    } else {
        Ahead::No
    }
}

/// The length of the longest end of `text` that is the beginning of `marker`.
pub(crate) fn partial_len(text: &str, marker: &str) -> usize {
    let (text, marker) = (text.as_bytes(), marker.as_bytes());
    (1..marker.len().min(text.len() + 1)).rev().find(|&n| text.ends_with(&marker[..n])).unwrap_or(0)
}
