//! Groups of devices that exchange bytes. Each device has a rank.
//!
//! An exchange is queued in a stream like other work. It waits until every rank of the group runs its own, so each
//! device of a group must be run by its own thread.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::Error;

/// A device's rank in a group.
#[derive(Clone)]
pub struct Rank {
    group: Arc<Group>,
    idx: usize,
}

impl fmt::Debug for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rank({} of {})", self.idx, self.n_ranks())
    }
}

struct Group {
    round: Mutex<Round>,
    changed: Condvar,
}

/// An exchange in progress: each rank contributes its bytes, then each reads those of all.
struct Round {
    parts: Vec<Vec<u8>>, // [n_ranks]
    n_brought: usize,
    n_taken: usize,
    is_aborted: bool,
}

fn failed(message: impl Into<String>) -> Error {
    Error::Exchange(message.into())
}

impl Rank {
    /// Creates a group and returns its ranks.
    pub fn group(n_ranks: usize) -> Vec<Self> {
        let parts = vec![Vec::new(); n_ranks];
        let round = Round { parts, n_brought: 0, n_taken: 0, is_aborted: false };
        let group = Arc::new(Group { round: Mutex::new(round), changed: Condvar::new() });
        (0..n_ranks).map(|idx| Self { group: Arc::clone(&group), idx }).collect()
    }

    /// Number of ranks in the group.
    pub fn n_ranks(&self) -> usize {
        self.round().parts.len()
    }

    /// Makes every exchange of the group fail, including those in progress.
    pub fn abort(&self) {
        self.round().is_aborted = true;
        self.group.changed.notify_all();
    }

    fn round(&self) -> MutexGuard<'_, Round> {
        self.group.round.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while `is_early` holds.
    fn wait(&self, is_early: impl Fn(&Round) -> bool) -> Result<MutexGuard<'_, Round>, Error> {
        let is_waiting = |round: &mut Round| !round.is_aborted && is_early(round);
        let round = self.group.changed.wait_while(self.round(), is_waiting);
        let round = round.unwrap_or_else(PoisonError::into_inner);
        if round.is_aborted {
            return Err(failed("another rank has failed"));
        }
        Ok(round)
    }

    /// Contributes `own` and returns the bytes of all ranks in order.
    pub(crate) fn exchange(&self, own: Vec<u8>) -> Result<Vec<u8>, Error> {
        let n_bytes = own.len();
        // Slower ranks may still read the bytes of the previous exchange.
        let mut round = self.wait(|round| round.n_brought == round.parts.len())?;
        round.parts[self.idx] = own;
        round.n_brought += 1;
        drop(round);
        self.group.changed.notify_all();
        let mut round = self.wait(|round| round.n_brought < round.parts.len())?;
        let others = round.parts.iter().map(Vec::len).find(|&len| len != n_bytes);
        if let Some(other) = others {
            round.is_aborted = true;
            drop(round);
            self.group.changed.notify_all();
            return Err(failed(format!("a rank brings {n_bytes} bytes and another {other}")));
        }
        let all = round.parts.concat();
        round.n_taken += 1;
        if round.n_taken == round.parts.len() {
            (round.n_brought, round.n_taken) = (0, 0);
        }
        drop(round);
        self.group.changed.notify_all();
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_takes_what_all_bring_in_their_order() {
        let ranks = Rank::group(3);
        std::thread::scope(|scope| {
            for (idx, rank) in (0u8..).zip(&ranks) {
                scope.spawn(move || {
                    for round in 0..50 {
                        let found = rank.exchange(vec![idx, round]).unwrap();
                        assert_eq!(found, [0, round, 1, round, 2, round]);
                    }
                });
            }
        });
    }

    #[test]
    fn a_waiting_rank_hears_that_another_has_failed() {
        let ranks = Rank::group(2);
        let found = std::thread::scope(|scope| {
            let waits = scope.spawn(|| ranks[0].exchange(vec![1]));
            ranks[1].abort();
            waits.join().unwrap()
        });
        assert_eq!(found, Err(failed("another rank has failed")));
        assert_eq!(ranks[1].exchange(vec![1]), Err(failed("another rank has failed")));
    }

    #[test]
    fn ranks_that_bring_different_sizes_are_an_error() {
        let ranks = Rank::group(2);
        let found = std::thread::scope(|scope| {
            let first = scope.spawn(|| ranks[0].exchange(vec![1]));
            let second = ranks[1].exchange(vec![1, 2]);
            [first.join().unwrap(), second]
        });
        let found = found.map(|result| result.unwrap_err().to_string());
        let says = |text: &str| found.iter().any(|message| message.contains(text));
        assert!(says("a rank brings 1 bytes and another 2") || says("2 bytes and another 1"));
    }
}
