//! Reasoning in front of an answer: it is free but for its length, and the grammar begins after
//! its end marker.
//!
//! The markers are found in the bytes of the tokens, so it does not matter into which tokens they
//! are cut. Where a grammar follows, the model cannot end its answer inside the reasoning, and the
//! token that completes the marker has nothing after it but white space.

use std::sync::Arc;

use crate::tokenizer::{EncodeOptions, TokenBytes, Tokenizer};

/// How a model marks the reasoning that comes before its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reasoning {
    /// The marker that begins it.
    pub open: String,
    /// The marker that ends it.
    pub close: String,
    /// The prompt has begun it. Otherwise the model may, with the first token of its answer.
    pub is_open: bool,
    /// The maximum number of tokens of reasoning, without the markers; then the end marker is forced. A
    /// character that is cut there is completed first, which takes up to three tokens more.
    pub budget: Option<usize>,
}

/// Where an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Only white space has been seen.
    Start,
    /// This many bytes of the opening marker have been seen.
    Opening { matched: usize },
    /// In the reasoning: the bytes of the end marker and the tokens seen so far, and how many
    /// bytes of a character are still missing.
    Inside { matched: usize, n_tokens: usize, missing: u8 },
    /// Right after the end marker.
    Closed,
    /// In the answer.
    Answer,
}

/// What is allowed next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// What the answer allows.
    Answer,
    /// What the answer allows, and these tokens.
    AnswerOr(Vec<u32>),
    /// One token.
    Only(u32),
    /// Anything but these tokens and, before a grammar, the end of the answer.
    Reasoning(Vec<u32>),
}

#[derive(Debug)]
struct Markers {
    open: Vec<u8>,
    close: Vec<u8>,
    open_ids: Vec<u32>,
    close_ids: Vec<u32>,
    budget: usize,
    bytes: TokenBytes,
    /// Tokens that continue after the last byte of the end marker.
    longer: Vec<u32>,
    /// Tokens of white space alone.
    blank: Vec<u32>,
    has_grammar: bool,
    /// The first token of the opening marker is a control token.
    opens_by_control: bool,
}

/// What was before a token, and whether the grammar took it.
#[derive(Debug, Clone, Copy)]
struct Before {
    phase: Phase,
    taken: bool,
}

/// The reasoning of one answer.
#[derive(Debug, Clone)]
pub(super) struct Prelude {
    markers: Arc<Markers>,
    phase: Phase,
    history: Vec<Before>, // of the tokens before the answer and of the first of it
}

impl Prelude {
    pub(super) fn new(reasoning: &Reasoning, tokenizer: &Tokenizer, has_grammar: bool) -> Self {
        let ids = |marker: &str| match tokenizer.id_of(marker) {
            Some(id) => vec![id],
            None => {
                let options = EncodeOptions { add_special: false, parse_special: true };
                tokenizer.encode(marker, options).unwrap_or_default()
            }
        };
        let bytes = tokenizer.all_bytes();
        let (mut longer, mut blank) = (Vec::new(), Vec::new());
        if let (true, Some(last)) = (has_grammar, reasoning.close.bytes().last()) {
            for id in 0..tokenizer.vocab_size() as u32 {
                let token = bytes.get(id);
                if token.split_last().is_some_and(|(_, front)| front.contains(&last)) {
                    longer.push(id);
                }
                if !token.is_empty() && token.iter().all(u8::is_ascii_whitespace) {
                    blank.push(id);
                }
            }
        }
        let inside = Phase::Inside { matched: 0, n_tokens: 0, missing: 0 };
        let open_ids = ids(&reasoning.open);
        let markers = Markers {
            opens_by_control: open_ids.first().is_some_and(|&id| tokenizer.is_special(id)),
            open_ids,
            close_ids: ids(&reasoning.close),
            open: reasoning.open.clone().into_bytes(),
            close: reasoning.close.clone().into_bytes(),
            budget: reasoning.budget.unwrap_or(usize::MAX),
            bytes,
            longer,
            blank,
            has_grammar,
        };
        let phase = if reasoning.is_open { inside } else { Phase::Start };
        Self { markers: Arc::new(markers), phase, history: Vec::new() }
    }

    /// Whether the answer has begun, so that only its grammar decides.
    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Answer
    }

    /// How many tokens [`Self::rollback`] can take back.
    pub(super) fn n_tokens(&self) -> usize {
        self.history.len()
    }

    /// Whether the answer may end here, as far as the reasoning is concerned.
    pub(super) fn may_end(&self) -> bool {
        let between = matches!(self.phase, Phase::Start | Phase::Closed | Phase::Answer);
        between || !self.markers.has_grammar
    }

    pub(super) fn next(&self) -> Next {
        let markers = &*self.markers;
        match self.phase {
            Phase::Answer => Next::Answer,
            Phase::Start | Phase::Opening { .. } | Phase::Closed if !markers.has_grammar => {
                Next::Answer
            }
            Phase::Start => Next::AnswerOr(markers.open_ids.first().copied().into_iter().collect()),
            Phase::Opening { matched } => match markers.id_at(&markers.open_ids, matched) {
                Some(id) => Next::Only(id),
                None => Next::Answer,
            },
            Phase::Closed => Next::AnswerOr(markers.blank.clone()),
            Phase::Inside { matched, n_tokens, missing } => {
                let whole = missing == 0 || n_tokens >= markers.budget.saturating_add(3);
                if n_tokens >= markers.budget && whole {
                    let id = markers.id_at(&markers.close_ids, matched);
                    if let Some(id) = id.or(markers.close_ids.first().copied()) {
                        return Next::Only(id);
                    }
                }
                let too_long = |&id: &u32| match markers.close(matched, markers.bytes.get(id)) {
                    Ok(rest) => !rest.iter().all(u8::is_ascii_whitespace),
                    Err(_) => false,
                };
                Next::Reasoning(markers.longer.iter().copied().filter(too_long).collect())
            }
        }
    }

    /// Takes a token, of which the caller says whether the grammar would take it here; returns
    /// whether it is the grammar's to take.
    pub(super) fn accept(&mut self, id: u32, allowed: bool) -> bool {
        let markers = &*self.markers;
        let token = markers.bytes.get(id);
        let of_grammar = markers.has_grammar && allowed;
        let (phase, taken) = match self.phase {
            Phase::Answer => return true,
            Phase::Start if of_grammar && !markers.is_opening(id) => (Phase::Answer, true),
            Phase::Closed if of_grammar => (Phase::Answer, true),
            Phase::Start => match token.trim_ascii_start() {
                [] => (Phase::Start, false),
                token => (markers.after_opening(0, token), false),
            },
            Phase::Opening { matched } => (markers.after_opening(matched, token), false),
            Phase::Inside { matched, n_tokens, missing } => {
                (markers.after_inside(matched, n_tokens + 1, missing, token), false)
            }
            Phase::Closed => (Phase::Answer, false),
        };
        self.history.push(Before { phase: self.phase, taken });
        self.phase = phase;
        taken
    }

    /// Takes back the last `n` tokens that came before the answer or were the first of it; returns
    /// how many of them the grammar took, or `None` if there were fewer.
    pub(super) fn rollback(&mut self, n: usize) -> Option<usize> {
        let from = self.history.len().checked_sub(n)?;
        let taken = self.history[from..].iter().filter(|before| before.taken).count();
        if let Some(before) = self.history.get(from) {
            self.phase = before.phase;
        }
        self.history.truncate(from);
        Some(taken)
    }
}

impl Markers {
    /// Whether a token begins reasoning, even where the grammar would take it: the marker is one token, or
    /// begins with one that no text has.
    fn is_opening(&self, id: u32) -> bool {
        self.open_ids.first() == Some(&id) && (self.open_ids.len() == 1 || self.opens_by_control)
    }

    /// The one of `ids` that begins after so many of their bytes.
    fn id_at(&self, ids: &[u32], n_bytes: usize) -> Option<u32> {
        let mut end = 0;
        ids.iter().copied().find(|&id| {
            let start = end;
            end += self.bytes.get(id).len();
            start == n_bytes
        })
    }

    /// Where bytes lead of which the first belong to the opening marker, or to the answer.
    fn after_opening(&self, matched: usize, token: &[u8]) -> Phase {
        let missing = &self.open[matched..];
        match token.strip_prefix(missing) {
            Some(rest) => self.after_inside(0, 0, 0, rest),
            None if missing.starts_with(token) => Phase::Opening { matched: matched + token.len() },
            None => Phase::Answer,
        }
    }

    fn after_inside(&self, matched: usize, n_tokens: usize, missing: u8, token: &[u8]) -> Phase {
        match self.close(matched, token) {
            Ok([]) => Phase::Closed,
            Ok(_) => Phase::Answer,
            Err(matched) => {
                let missing = token.iter().fold(missing, |missing, byte| match byte {
                    0x80..=0xBF => missing.saturating_sub(1),
                    0xC0..=0xDF => 1,
                    0xE0..=0xEF => 2,
                    0xF0..=0xFF => 3,
                    _ => 0,
                });
                Phase::Inside { matched, n_tokens, missing }
            }
        }
    }

    /// Looks for the end marker, of which `matched` bytes have been seen: what stands after it, or how
    /// many of its bytes have been seen now.
    fn close<'a>(&self, mut matched: usize, token: &'a [u8]) -> Result<&'a [u8], usize> {
        for (at, byte) in token.iter().enumerate() {
            let fits = |n: &usize| {
                let front = &self.close[..n - 1];
                self.close[n - 1] == *byte && self.close[..matched].ends_with(front)
            };
            matched = (1..=matched + 1).rev().find(fits).unwrap_or(0);
            if matched == self.close.len() {
                return Ok(&token[at + 1..]);
            }
        }
        Err(matched)
    }
}
