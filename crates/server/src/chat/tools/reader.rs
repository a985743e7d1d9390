//! What reads one call while it is being written, whatever its notation.

use std::fmt::Debug;

use super::Function;

/// A part of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// The function's name: the call is certain.
    Name(&'a str),
    /// The next piece of the arguments' JSON text.
    Arguments(&'a str),
}

/// How much of a call has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// More text is needed.
    More,
    /// The call ends here.
    Done,
    /// What follows is not the rest of a call.
    Failed,
}

/// Which calls are recognized.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy<'a> {
    /// The functions that count; `None` takes any name.
    pub(super) functions: Option<&'a [Function]>,
    /// A call without arguments counts as one with none, `{}`.
    pub(super) arguments_optional: bool,
}

impl Policy<'_> {
    /// Whether a call of this function counts.
    pub(super) fn takes(&self, name: &str) -> bool {
        let known = |functions: &[Function]| functions.iter().any(|f| f.name == name);
        !name.is_empty() && self.functions.is_none_or(known)
    }
}

/// Reads one call. The caller keeps the text and gives it again, longer, at each run. Until the call
/// is certain nothing of it is emitted.
pub(super) trait Reader: Debug + Send + Sync {
    /// Reads on in `text`, which begins where it did at the last run.
    fn run(&mut self, text: &str, policy: Policy<'_>, out: &mut dyn FnMut(Piece<'_>)) -> Progress;

    /// Whether the text can no longer be anything but a call.
    fn is_certain(&self) -> bool;

    /// The bytes that have been read.
    fn read_len(&self) -> usize;

    /// The caller drops what has been read, which it may once the call is certain.
    fn forget_read(&mut self);

    /// No more text comes than `rest`, which was not read. A value that is whole without what would follow it is emitted.
    fn finish(&mut self, _rest: &str, _out: &mut dyn FnMut(Piece<'_>)) {}
}

/// Where a reader is, and whether what it reads is certainly a call.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// The bytes that have been read.
    pub(super) at: usize,
    pub(super) certain: bool,
}

/// A reader that goes from one part of a call to the next.
pub(super) trait Steps: Debug + Send + Sync {
    /// Where it is.
    fn place(&self) -> &Place;

    /// Where it is, to be moved on.
    fn place_mut(&mut self) -> &mut Place;

    /// Reads the next part, with which `rest` begins; what ends the run, if anything does.
    fn step(
        &mut self,
        rest: &str,
        policy: Policy<'_>,
        out: &mut dyn FnMut(Piece<'_>),
    ) -> Option<Progress>;

    /// As [`Reader::finish`].
    fn end(&mut self, _rest: &str, _out: &mut dyn FnMut(Piece<'_>)) {}
}

impl<T: Steps> Reader for T {
    fn run(&mut self, text: &str, policy: Policy<'_>, out: &mut dyn FnMut(Piece<'_>)) -> Progress {
        loop {
            let rest = &text[self.place().at..];
            if let Some(progress) = self.step(rest, policy, out) {
                return progress;
            }
        }
    }

    fn is_certain(&self) -> bool {
        self.place().certain
    }

    fn read_len(&self) -> usize {
        self.place().at
    }

    fn forget_read(&mut self) {
        self.place_mut().at = 0;
    }

    fn finish(&mut self, rest: &str, out: &mut dyn FnMut(Piece<'_>)) {
        self.end(rest, out);
    }
}

/// What comes first in a text that may be cut off.
pub(super) enum Ahead {
    Yes,
    No,
    Unknown,
}

/// Whether `text` begins with `marker`; unknown while all of it is the marker's beginning.
pub(super) fn ahead(text: &str, marker: &str) -> Ahead {
    if text.starts_with(marker) {
        Ahead::Yes
    } else if marker.starts_with(text) {
        Ahead::Unknown
    } else {
        Ahead::No
    }
}

/// How many bytes of names of functions `text` begins with.
pub(super) fn name_len(text: &str) -> usize {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    text.find(|c| !is_name(c)).unwrap_or(text.len())
}

/// The length of the longest end of `text` that is the beginning of `marker`.
pub(crate) fn partial_len(text: &str, marker: &str) -> usize {
    let (text, marker) = (text.as_bytes(), marker.as_bytes());
    (1..marker.len().min(text.len() + 1)).rev().find(|&n| text.ends_with(&marker[..n])).unwrap_or(0)
}
