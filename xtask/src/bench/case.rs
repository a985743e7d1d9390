//! What is measured: the cases that `--cases` names.

use std::fmt;
use std::str::FromStr;

/// Tokens that each sequence of a batch has before it generates.
pub(super) const BATCH_DEPTH: usize = 128;
/// Tokens that each sequence of a batch generates.
pub(super) const BATCH_TOKENS: usize = 32;
/// Prompt whose first token `start` waits for.
pub(super) const START_PROMPT: usize = 32;

/// One measurement of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Case {
    /// `pp512`, `pp512@2048`: a prompt after this many tokens.
    Prompt { n: usize, depth: usize },
    /// `tg128`, `tg128@2048`: tokens generated after this many tokens.
    Generate { n: usize, depth: usize },
    /// `batch16`: sequences that generate together, each after [`BATCH_DEPTH`] tokens.
    Batch { n_seqs: usize },
    /// `start`: from the start of the process to its end, with one prompt and its first token.
    Start,
}

/// What is measured by default.
pub(super) const ALL: &str = "pp128,pp512,pp2048,tg128,tg128@2048,batch8,batch16,start";
/// What `--quick` measures.
pub(super) const QUICK: &str = "pp128,tg32,start";

impl Case {
    /// `t/s`, or `s` for a time.
    pub(super) fn unit(self) -> &'static str {
        if self == Self::Start { "s" } else { "t/s" }
    }

    /// The highest speed, or the shortest time.
    pub(super) fn best(self, values: impl Iterator<Item = f64>) -> Option<f64> {
        let better = |a: f64, b: f64| if self == Self::Start { a.min(b) } else { a.max(b) };
        values.reduce(better)
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "unknown case `{text}`, expected ppN, ppN@DEPTH, tgN, tgN@DEPTH, batchN or start"
            )
        };
        let count = |digits: &str| digits.parse().ok().filter(|&n: &usize| n > 0).ok_or_else(wrong);
        if text == "start" {
            return Ok(Self::Start);
        }
        if let Some(n_seqs) = text.strip_prefix("batch") {
            return Ok(Self::Batch { n_seqs: count(n_seqs)? });
        }
        let (test, depth) = match text.split_once('@') {
            Some((test, depth)) => (test, count(depth)?),
            None => (text, 0),
        };
        if let Some(n) = test.strip_prefix("pp") {
            return Ok(Self::Prompt { n: count(n)?, depth });
        }
        let n = count(test.strip_prefix("tg").ok_or_else(wrong)?)?;
        Ok(Self::Generate { n, depth })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, n, depth) = match *self {
            Self::Prompt { n, depth } => ("pp", n, depth),
            Self::Generate { n, depth } => ("tg", n, depth),
            Self::Batch { n_seqs } => ("batch", n_seqs, 0),
            Self::Start => return f.write_str("start"),
        };
        write!(f, "{kind}{n}")?;
        if depth > 0 { write!(f, "@{depth}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for text in ALL.split(',').chain(QUICK.split(',')).chain(["pp64@2048"]) {
            assert_eq!(text.parse::<Case>().map(|case| case.to_string()), Ok(text.to_owned()));
        }
        assert_eq!("tg128@2048".parse(), Ok(Case::Generate { n: 128, depth: 2048 }));
        for wrong in ["", "pp", "pp0", "tg1@", "tg1@x", "batch", "512", "start@1", "batch8@4"] {
            assert!(wrong.parse::<Case>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_best_time_is_the_shortest() {
        assert_eq!(Case::Start.best([2.0, 1.0].into_iter()), Some(1.0));
        assert_eq!(Case::Batch { n_seqs: 8 }.best([2.0, 1.0].into_iter()), Some(2.0));
        assert_eq!(Case::Start.best(std::iter::empty()), None);
    }
}
