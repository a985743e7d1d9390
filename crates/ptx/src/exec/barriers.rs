//! State of a block's barriers.

/// Number of barriers per block.
pub(super) const BARRIERS: usize = 16;

/// The barriers of a block.
#[derive(Debug, Default)]
pub(super) struct Barriers {
    pub(super) states: [State; BARRIERS],
    /// Whether a barrier may be complete.
    pub(super) is_ready: bool,
    pub(super) exited: u32,
}

#[derive(Debug, Default, Clone)]
pub(super) struct State {
    pub(super) arrived: u32,
    /// The thread count that the arrivals gave; without it, all threads of the block.
    pub(super) count: Option<u32>,
    /// Threads whose predicate was true, and threads that gave one.
    pub(super) held: u32,
    pub(super) asked: u32,
    /// The merged vector clocks of the warps that arrived.
    pub(super) knows: Vec<u32>,
}

impl Barriers {
    pub(super) fn start(&mut self) {
        *self = Self::default();
    }

    pub(super) fn exited(&mut self, threads: u32) {
        self.exited += threads;
        // A barrier may have waited for these threads only.
        self.is_ready |= self.states.iter().any(|s| s.arrived > 0);
    }
}
