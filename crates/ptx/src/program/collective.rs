//! Instructions that several threads run together: shuffles, votes, matches, reductions, and barriers of the block.

use super::lanes::Reg;

/// A collective of the lanes of a mask.
#[derive(Debug)]
pub(crate) struct Collective {
    pub(crate) kind: Kind,
    pub(crate) mask: Reg,
}

/// The operation of a collective.
#[derive(Debug)]
pub(crate) enum Kind {
    /// `bar.warp.sync`.
    Sync,
    Shuffle(Shuffle, ShuffleRegs),
    Vote(Vote, VoteRegs),
    /// The lanes with the same value as this lane.
    MatchAny {
        to: Reg,
        value: Reg,
    },
    /// All lanes of the mask if their values are equal.
    MatchAll {
        to: Reg,
        same: Option<Reg>,
        value: Reg,
    },
    Reduce {
        how: Reduce,
        to: Reg,
        value: Reg,
    },
}

/// How a shuffle selects the source lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Debug)]
pub(crate) struct ShuffleRegs {
    pub(crate) to: Reg,
    pub(crate) valid: Option<Reg>,
    pub(crate) from: Reg,
    pub(crate) by: Reg,
    pub(crate) clamp: Reg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

#[derive(Debug)]
pub(crate) struct VoteRegs {
    pub(crate) to: Reg,
    pub(crate) predicate: Reg,
    pub(crate) negated: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reduce {
    Add,
    MinUnsigned,
    MinSigned,
    MaxUnsigned,
    MaxSigned,
    And,
    Or,
    Xor,
}

/// A barrier of the block.
#[derive(Debug)]
pub(crate) struct Barrier {
    pub(crate) kind: BarrierKind,
    pub(crate) id: Reg,
    /// Number of participating threads; without it, all threads of the block.
    pub(crate) count: Option<Reg>,
    /// Whether all threads of a warp arrive together.
    pub(crate) aligned: bool,
}

#[derive(Debug)]
pub(crate) enum BarrierKind {
    Sync,
    /// Counts without waiting.
    Arrive,
    /// Waits, and reduces the predicates of all threads.
    Reduce {
        how: BarrierReduce,
        to: Reg,
        predicate: Reg,
        negated: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BarrierReduce {
    Count,
    All,
    Any,
}

impl Collective {
    /// Whether lanes at two instructions may run them as one collective.
    pub(crate) fn matches(&self, other: &Self) -> bool {
        match (&self.kind, &other.kind) {
            (Kind::Sync, Kind::Sync) => true,
            (Kind::Shuffle(a, _), Kind::Shuffle(b, _)) => a == b,
            (Kind::Vote(a, _), Kind::Vote(b, _)) => a == b,
            (Kind::MatchAny { .. }, Kind::MatchAny { .. }) => true,
            (Kind::MatchAll { .. }, Kind::MatchAll { .. }) => true,
            (Kind::Reduce { how: a, .. }, Kind::Reduce { how: b, .. }) => a == b,
            _ => false,
        }
    }
}

impl Reduce {
    pub(crate) fn combine(self, x: u32, y: u32) -> u32 {
        match self {
            Self::Add => x.wrapping_add(y),
            Self::MinUnsigned => x.min(y),
            Self::MinSigned => (x as i32).min(y as i32) as u32,
            Self::MaxUnsigned => x.max(y),
            Self::MaxSigned => (x as i32).max(y as i32) as u32,
            Self::And => x & y,
            Self::Or => x | y,
            Self::Xor => x ^ y,
        }
    }
}
