//! Finds tool calls in an answer while it is being written.
//!
//! Text is held back while it may be the beginning of a marker or of a call, so no part of either
//! reaches the client as content. What turns out not to be a call is content after all, to the
//! letter. The result does not depend on how the text is cut into pieces.

use std::sync::Arc;

use super::call::CallReader;
use super::elements::ElementReader;
use super::format::{Notation, Syntax};
use super::gemma::{self, GemmaReader};
use super::ids::CallIds;
use super::json::space_len;
use super::python::PythonReader;
use super::reader::{Ahead, Piece, Policy, Progress, Reader, ahead, name_len, partial_len};
use super::{CallKind, Function};
use crate::chat::delta::ChatDelta;

/// How the calls that are being read were opened.
#[derive(Clone, Copy, Debug)]
struct Frame {
    marked: bool,  // by a marker
    in_list: bool, // by the bracket of a list
}

#[derive(Debug)]
enum State {
    /// Only white space has been seen.
    Start,
    /// Content.
    Text,
    /// A marker of this length came, or without one what may be a call.
    Open { marker_len: usize },
    /// A call whose text begins after `lead` bytes of the buffer.
    Call { reader: Box<dyn Reader>, lead: usize, frame: Frame },
    /// A call has ended.
    Between(Frame),
}

/// What a mark in content is for.
#[derive(Clone, Copy, Debug)]
enum Mark {
    /// It opens a call.
    Open,
    /// It is the beginning of a call whose marker was forgotten.
    Bare,
    /// It stands around all calls.
    Section,
}

/// Whether a call begins at a place.
enum Begin {
    /// It does; its text begins here.
    Call(Box<dyn Reader>, usize),
    No,
    Unknown,
}

/// Splits the text of an answer into content and calls.
#[derive(Debug)]
pub(crate) struct ToolParser {
    syntax: &'static Syntax,
    functions: Arc<[Function]>,
    single: bool,
    ids: CallIds,
    state: State,
    buf: String,   // text that is not decided
    space: String, // white space before it: content if content follows, nothing before a call
    n_calls: usize,
    muted: bool, // the call that is being read is left out
}

impl ToolParser {
    /// A parser for calls of `functions`. With `single`, calls after the first are left out.
    pub(crate) fn new(
        syntax: &'static Syntax,
        functions: Arc<[Function]>,
        single: bool,
        ids: CallIds,
    ) -> Self {
        Self {
            syntax,
            functions,
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
        let mut rest = String::new();
        while !self.buf.is_empty() {
            match &self.state {
                State::Start | State::Text => self.take_content(self.buf.len(), out),
                State::Open { .. } => self.give_up(out),
                State::Call { reader, .. } if reader.is_certain() => {
                    rest = std::mem::take(&mut self.buf);
                }
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
        if let State::Call { reader, .. } = &mut self.state
            && !self.muted
            && let Some(index) = self.n_calls.checked_sub(1)
        {
            reader.finish(&rest, &mut |piece| {
                if let Piece::Arguments(text) = piece {
                    out.push(ChatDelta::ToolCallArguments { index, text: text.to_owned() });
                }
            });
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
                    b'{' => self.syntax.bare && matches!(self.syntax.notation, Notation::Json),
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

    /// The marks that content is searched for: of a call, of one that came without its own, and those
    /// around all calls, which are left out.
    fn marks(&self) -> impl Iterator<Item = (&'static str, Mark)> + use<> {
        let Syntax { open, section, notation, .. } = self.syntax;
        let bare = match notation {
            Notation::Elements(marks) if !marks.open.is_empty() => Some(marks.open),
            _ => None,
        };
        let section = section.iter().flatten().map(|mark| (*mark, Mark::Section));
        let open = open.iter().map(|mark| (*mark, Mark::Open));
        open.chain(bare.map(|mark| (mark, Mark::Bare))).chain(section)
    }

    /// Content up to the next marker.
    fn text(&mut self, out: &mut Vec<ChatDelta>) -> bool {
        let found =
            self.marks().filter_map(|(mark, kind)| Some((self.buf.find(mark)?, mark, kind)));
        if let Some((at, mark, kind)) = found.min_by_key(|(at, ..)| *at) {
            self.take_content(at, out);
            match kind {
                Mark::Open => self.state = State::Open { marker_len: mark.len() },
                Mark::Bare => self.state = State::Open { marker_len: 0 },
                Mark::Section => drop(self.buf.drain(..mark.len())),
            }
            return true;
        }
        let held = self.marks().map(|(mark, _)| partial_len(&self.buf, mark)).max().unwrap_or(0);
        self.take_content(self.buf.len() - held, out);
        false
    }

    /// What a marker, or the first bracket, opens.
    fn open(&mut self, marker_len: usize, out: &mut Vec<ChatDelta>) -> bool {
        let mut lead = marker_len + space_len(&self.buf[marker_len..]);
        let mut frame = Frame { marked: marker_len > 0, in_list: false };
        if self.syntax.list && self.buf.as_bytes().get(lead) == Some(&b'[') {
            frame.in_list = true;
            lead += 1 + space_len(&self.buf[lead + 1..]);
        }
        match self.begins(lead, frame) {
            Begin::Call(reader, lead) => self.state = State::Call { reader, lead, frame },
            Begin::No => self.give_up(out),
            Begin::Unknown => return false,
        }
        true
    }

    /// Whether a call begins at `at`, after white space.
    fn begins(&self, at: usize, frame: Frame) -> Begin {
        let rest = &self.buf[at..];
        let Some(&first) = rest.as_bytes().first() else { return Begin::Unknown };
        match &self.syntax.notation {
            // Between the marks of any notation a call may be JSON.
            _ if first == b'{' => Begin::Call(Box::new(CallReader::object()), at),
            Notation::Json if frame.in_list => Begin::No,
            Notation::Json => self.named(at),
            Notation::Elements(marks) => {
                let functions = Arc::clone(&self.functions);
                match ahead(rest, marks.open) {
                    Ahead::Yes if marks.open.is_empty() && name_len(rest) == 0 => Begin::No,
                    Ahead::Yes => Begin::Call(Box::new(ElementReader::new(marks, functions)), at),
                    Ahead::No => Begin::No,
                    Ahead::Unknown => Begin::Unknown,
                }
            }
            Notation::Python if name_len(rest) == 0 => Begin::No,
            Notation::Python => Begin::Call(Box::new(PythonReader::new()), at),
            Notation::Gemma => match ahead(rest, gemma::OPEN) {
                Ahead::Yes => Begin::Call(Box::new(GemmaReader::new()), at),
                Ahead::No => Begin::No,
                Ahead::Unknown => Begin::Unknown,
            },
        }
    }

    /// A name before its arguments, as Mistral's newer models write calls.
    fn named(&self, start: usize) -> Begin {
        let Some(infix) = &self.syntax.named else { return Begin::No };
        let mut start = start;
        for prefix in infix.prefixes {
            match ahead(&self.buf[start..], prefix) {
                Ahead::Unknown => return Begin::Unknown,
                Ahead::Yes => start += prefix.len(),
                Ahead::No => {}
            }
        }
        let len = name_len(&self.buf[start..]);
        if len == 0 {
            return if start == self.buf.len() { Begin::Unknown } else { Begin::No };
        }
        let name = &self.buf[start..start + len];
        let mut at = start + len;
        if !infix.id.is_empty() {
            match ahead(&self.buf[at..], infix.id) {
                Ahead::Unknown => return Begin::Unknown,
                Ahead::Yes => {
                    at += infix.id.len();
                    at += name_len(&self.buf[at..]);
                }
                Ahead::No => {}
            }
        }
        match ahead(&self.buf[at..], infix.arguments) {
            Ahead::Unknown => return Begin::Unknown,
            Ahead::Yes => at += infix.arguments.len(),
            Ahead::No => {}
        }
        at += space_len(&self.buf[at..]);
        match self.buf.as_bytes().get(at) {
            None => Begin::Unknown,
            Some(b'{') => Begin::Call(Box::new(CallReader::arguments_of(name)), at),
            Some(_) => Begin::No,
        }
    }

    /// Reads on in a call.
    fn call(&mut self, out: &mut Vec<ChatDelta>) -> bool {
        let State::Call { reader, lead, frame } = &mut self.state else { return false };
        // A bare object could be the answer itself: it must name a function of the request.
        let strict = !frame.marked || self.syntax.is_loose();
        let policy = Policy {
            functions: strict.then_some(&*self.functions),
            arguments_optional: frame.marked,
        };
        let (ids, n_calls, space) = (&mut self.ids, &mut self.n_calls, &mut self.space);
        let (single, muted) = (self.single, &mut self.muted);
        let progress = reader.run(&self.buf[*lead..], policy, &mut |piece| match piece {
            Piece::Name(name) => {
                space.clear();
                *muted = single && *n_calls > 0;
                if !*muted {
                    let (index, name, kind) = (*n_calls, name.to_owned(), CallKind::Function);
                    out.push(ChatDelta::ToolCallStart { index, id: ids.next_id(), name, kind });
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
            match self.begins(lead, frame) {
                Begin::Call(reader, lead) => self.state = State::Call { reader, lead, frame },
                Begin::No => self.state = State::Text,
                Begin::Unknown => return false,
            }
            return true;
        }
        if frame.in_list && first == b']' {
            self.buf.remove(0);
            self.state = State::Between(Frame { in_list: false, ..frame });
            return true;
        }
        let tail = self.syntax.named.as_ref().map_or("", |infix| infix.tail);
        if let Some(close) = self.syntax.close.filter(|_| frame.marked) {
            if !tail.is_empty() {
                match ahead(&self.buf, tail) {
                    Ahead::Unknown => return false,
                    Ahead::Yes => {
                        self.buf.drain(..tail.len());
                        self.space.clear();
                        return true;
                    }
                    Ahead::No => {}
                }
            }
            match ahead(&self.buf, close) {
                Ahead::Unknown => return false,
                Ahead::Yes => {
                    self.buf.drain(..close.len());
                    self.space.clear();
                    self.state = State::Between(Frame { marked: false, in_list: false });
                    return true;
                }
                Ahead::No if !frame.in_list && self.syntax.may_repeat(first) => {
                    match self.begins(0, frame) {
                        Begin::Call(reader, lead) => {
                            self.state = State::Call { reader, lead, frame };
                            return true;
                        }
                        Begin::Unknown => return false,
                        Begin::No => {}
                    }
                }
                Ahead::No => {}
            }
        }
        let marks = self.marks().map(|(mark, kind)| (ahead(&self.buf, mark), mark, kind));
        let mut next = State::Text;
        for (found, mark, kind) in marks {
            match (found, kind) {
                (Ahead::Unknown, _) => return false,
                (Ahead::Yes, Mark::Open) => next = State::Open { marker_len: mark.len() },
                (Ahead::Yes, Mark::Bare) => next = State::Open { marker_len: 0 },
                (Ahead::Yes, Mark::Section) => {
                    self.buf.drain(..mark.len());
                    return true;
                }
                (Ahead::No, _) => {}
            }
        }
        self.state = next;
        true
    }

    /// What the buffer begins with is not a call. Only its marker is certainly content; the rest is
    /// examined again.
    fn give_up(&mut self, out: &mut Vec<ChatDelta>) {
        self.state = State::Text;
        let opens = |(mark, kind): &(&str, Mark)| {
            !matches!(kind, Mark::Section) && self.buf.starts_with(mark)
        };
        if let Some((mark, _)) = self.marks().find(opens) {
            self.take_content(mark.len(), out);
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
