//! Instructions that several threads run together: shuffles, votes, matches, reductions, and barriers of the block.

use super::lanes::Reg;

/// A collective of the lanes that a mask names.
#[derive(Debug)]
pub(crate) struct Collective {
    pub(crate) kind: Kind,
    pub(crate) mask: Reg,
}

/// What the lanes do.
#[derive(Debug)]
pub(crate) enum Kind {
    /// `bar.warp.sync`.
    Sync,
    Shuffle(Shuffle, ShuffleRegs),
    Vote(Vote, VoteRegs),
    /// The lanes with this lane's value.
    MatchAny {
        to: Reg,
        value: Reg,
    },
    /// All lanes of the mask, if all have one value.
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

/// How a shuffle chooses the lane that it reads.
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
    /// How many threads take part; all of them where it is none.
    pub(crate) count: Option<Reg>,
    /// All threads of a warp arrive together.
    pub(crate) aligned: bool,
}

#[derive(Debug)]
pub(crate) enum BarrierKind {
    Sync,
    /// Counts, and does not wait.
    Arrive,
    /// Waits, and gets a result of all threads' predicates.
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
    /// May lanes at different places do this together?
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
