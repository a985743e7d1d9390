//! Panics on purpose, for tests of what comes after them. Only tests have this.

use std::cell::Cell;

/// A place in a turn of the engine's thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// While a draft model drafts.
    Draft,
    /// A step is planned, sequences have been begun for it.
    Plan,
    /// The model was run, and masks are being computed.
    Run,
    /// The output of a chunk is about to be read.
    Rows,
    /// A token was sampled and not yet reported.
    Token,
    /// The output was read.
    Settle,
    /// The answers to a prompt are being made from it.
    Fork,
    /// A run that has ended is out of its list.
    Ended,
    /// The state is about to be published.
    Publish,
}

thread_local! {
    /// Where the thread panics next, and how often it comes there before.
    static NEXT: Cell<Option<(Place, usize)>> = const { Cell::new(None) };
}

/// The thread panics when it comes to `place` after `n` times without.
pub(super) fn inject(place: Place, n: usize) {
    NEXT.set(Some((place, n)));
}

/// Whether a panic that was injected is still to come.
pub(super) fn is_due() -> bool {
    NEXT.get().is_some()
}

/// The thread is at `place`.
pub(super) fn reach(place: Place) {
    match NEXT.get() {
        Some((next, 0)) if next == place => {
            NEXT.set(None);
            panic!("injected at {place:?}");
        }
        Some((next, n)) if next == place => NEXT.set(Some((next, n - 1))),
        _ => {}
    }
}
