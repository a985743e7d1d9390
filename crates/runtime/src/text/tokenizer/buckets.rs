//! Merging a long word: the pairs of one rank lie together, in the order of their positions.
//!
//! A heap of all pairs of a word jumps about in memory with each pair it takes, which for words of
//! millions of bytes costs a microsecond per byte. There are far fewer ranks than pairs, so here a
//! heap holds the ranks, and each has a list of positions that is sorted when it is its turn. The
//! order in which pairs are merged is the same: by rank, then from the left.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

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

impl Buckets {
    pub(super) fn push(&mut self, rank: u32, at: u32) {
        let list = self.lists.entry(rank).or_default();
        if list.sorted.is_empty() && list.new.is_empty() {
            self.ranks.push(Reverse(rank));
        }
        list.new.push(at);
    }

    /// The leftmost position of the lowest rank.
    pub(super) fn pop(&mut self) -> Option<(u32, u32)> {
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
            buckets.push(rank, at);
        }
        assert_eq!(buckets.pop(), Some((2, 4)));
        buckets.push(2, 5);
        buckets.push(1, 8);
        let rest: Vec<_> = std::iter::from_fn(|| buckets.pop()).collect();
        assert_eq!(rest, [(1, 8), (2, 5), (2, 9), (7, 1), (7, 3)]);
        buckets.push(2, 6);
        assert_eq!((buckets.pop(), buckets.pop()), (Some((2, 6)), None));
    }
}
