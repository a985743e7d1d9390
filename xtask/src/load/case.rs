//! The cases that are measured, as the arguments ask for them.

use std::fmt;

use super::Args;
use super::stats::{Group, MANY, REPEATED};

/// Tokens that the requests of a pair generate.
pub(super) const PAIR_TOKENS: usize = 8;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// So many streams, each with one request after the other. All prompts share a beginning.
    Streams { n_streams: usize, shared: usize },
    /// A prompt of this many tokens that is sent twice.
    Twice { prompt: usize },
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Streams { n_streams: 1, shared: 0 } => write!(f, "1 stream"),
            Self::Streams { n_streams, shared: 0 } => write!(f, "{n_streams} streams"),
            Self::Streams { n_streams: 1, shared } => write!(f, "1 stream, {shared} shared"),
            Self::Streams { n_streams, shared } => {
                write!(f, "{n_streams} streams, {shared} shared")
            }
            Self::Twice { prompt } => write!(f, "{prompt} tokens twice"),
        }
    }
}

impl Case {
    /// What is told of it.
    pub(super) fn groups(self) -> &'static [Group] {
        match self {
            Self::Streams { .. } => MANY,
            Self::Twice { .. } => REPEATED,
        }
    }

    pub(super) fn parallel(self) -> usize {
        match self {
            Self::Streams { n_streams, .. } => n_streams,
            Self::Twice { .. } => 1,
        }
    }

    /// The longest request, with room for words that are more than one token and for a template.
    pub(super) fn request_len(self, args: &Args) -> usize {
        let (prompt, answer) = match self {
            Self::Streams { shared, .. } => {
                (shared + args.prompts.iter().max().copied().unwrap_or(0), args.max_tokens)
            }
            Self::Twice { prompt } => (prompt, PAIR_TOKENS),
        };
        prompt + prompt / 4 + answer + 64
    }
}

/// All cases in the order in which they are measured.
pub(super) fn cases(args: &Args) -> Vec<Case> {
    let streams = args.shared.iter().flat_map(|&shared| {
        args.streams.iter().map(move |&n_streams| Case::Streams { n_streams, shared })
    });
    let twice = args.twice.iter().filter(|&&n| n > 0).map(|&prompt| Case::Twice { prompt });
    streams.chain(twice).collect()
}
