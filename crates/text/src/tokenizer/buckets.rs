//! Merging a long word: the pairs of one rank lie together, in the order of their positions.
//!
//! A heap of all pairs of a word jumps about in memory with each pair it takes, which for words of
//! millions of bytes costs a microsecond per byte. There are far fewer ranks than pairs, so here a
//! heap holds the ranks, and each has a list of positions that is sorted when it is its turn. The
//! order in which pairs are merged is the same: by rank, then from the left.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Pairs that may be merged, by rank and position: those of a short word in a heap, those of a long one
/// in [`Buckets`].
pub(super) trait Queue {
    fn add(&mut self, rank: u32, at: u32);

    /// The pair of lowest rank, leftmost first.
    fn take(&mut self) -> Option<(u32, u32)>;
}

impl Queue for BinaryHeap<Reverse<(u32, u32)>> {
    fn add(&mut self, rank: u32, at: u32) {
        self.push(Reverse((rank, at)));
    }

    fn take(&mut self) -> Option<(u32, u32)> {
        self.pop().map(|Reverse(pair)| pair)
    }
}

/// Positions by rank.
#[derive(Default)]
pub(super) struct Buckets {
    ranks: BinaryHeap<Reverse<u32>>,
    lists: HashMap<u32, List>,
}

/// The positions of one rank.
#[derive(Default)]
struct List {
    sorted: Vec<u32>, // descending, so that the leftmost is taken from the end
    new: Vec<u32>,
}

impl Queue for Buckets {
    fn add(&mut self, rank: u32, at: u32) {
        let list = self.lists.entry(rank).or_default();
        if list.sorted.is_empty() && list.new.is_empty() {
            self.ranks.push(Reverse(rank));
        }
        list.new.push(at);
    }

    fn take(&mut self) -> Option<(u32, u32)> {
        let &Reverse(rank) = self.ranks.peek()?;
        let list = self.lists.get_mut(&rank)?;
        if !list.new.is_empty() {
            // Sorting finds the runs that are in order already.
            list.sorted.reverse();
            list.sorted.append(&mut list.new);
            list.sorted.sort();
            list.sorted.reverse();
        }
        let at = list.sorted.pop()?;
        if list.sorted.is_empty() {
            self.ranks.pop();
        }
        Some((rank, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_rank_comes_first_and_then_the_leftmost() {
        let mut buckets = Buckets::default();
        for (rank, at) in [(7, 3), (2, 9), (7, 1), (2, 4)] {
            buckets.add(rank, at);
        }
        assert_eq!(buckets.take(), Some((2, 4)));
        buckets.add(2, 5);
        buckets.add(1, 8);
        let rest: Vec<_> = std::iter::from_fn(|| buckets.take()).collect();
        assert_eq!(rest, [(1, 8), (2, 5), (2, 9), (7, 1), (7, 3)]);
        buckets.add(2, 6);
        assert_eq!((buckets.take(), buckets.take()), (Some((2, 6)), None));
    }
}
