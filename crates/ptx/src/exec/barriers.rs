//! The state of a block's barriers.

/// How many barriers a block has.
pub(super) const BARRIERS: usize = 16;

/// The barriers of a block.
#[derive(Debug, Default)]
pub(super) struct Barriers {
    pub(super) states: [State; BARRIERS],
    /// A barrier has all its threads.
    pub(super) is_ready: bool,
    pub(super) exited: u32,
}

#[derive(Debug, Default, Clone)]
pub(super) struct State {
    pub(super) arrived: u32,
    /// The count that its threads gave; all of the block's threads where that is none.
    pub(super) count: Option<u32>,
    /// Threads whose predicate held, of all that gave one.
    pub(super) held: u32,
    pub(super) asked: u32,
    /// What the warps that arrived knew of the others' clocks.
    pub(super) knows: Vec<u32>,
}

impl Barriers {
    pub(super) fn start(&mut self) {
        *self = Self::default();
    }

    pub(super) fn exited(&mut self, threads: u32) {
        self.exited += threads;
        // A barrier may have waited for just these.
        self.is_ready |= self.states.iter().any(|s| s.arrived > 0);
    }
}
