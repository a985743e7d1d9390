//! A compact hash index: open addressing over ids whose keys are stored elsewhere.
//!
//! The vocabulary and the merge table both keep their keys in flat arrays; this index adds four
//! bytes per slot. The hash is keyed at random, so that a hostile vocabulary cannot make it slow.

use std::hash::{BuildHasher, Hash, RandomState};

const EMPTY: u32 = u32::MAX;

/// Finds the position of a key in a table that the caller owns.
pub(super) struct HashIndex {
    slots: Vec<u32>, // [power of two], EMPTY or a position
    mask: usize,
    hasher: RandomState,
}

impl HashIndex {
    /// An index for up to `n` entries, at most half full.
    pub(super) fn with_capacity(n: usize) -> Self {
        let n_slots = (n.max(8) * 2).next_power_of_two();
        Self { slots: vec![EMPTY; n_slots], mask: n_slots - 1, hasher: RandomState::new() }
    }

    /// The position whose key is `key`; `is_key` compares the key at a position.
    pub(super) fn find<K: Hash>(&self, key: K, is_key: impl Fn(u32) -> bool) -> Option<u32> {
        let mut slot = self.hasher.hash_one(key) as usize & self.mask;
        loop {
            match self.slots[slot] {
                EMPTY => return None,
                pos if is_key(pos) => return Some(pos),
                _ => slot = (slot + 1) & self.mask,
            }
        }
    }

    /// Adds `pos` under `key` unless the key already exists; returns whether it was added.
    pub(super) fn insert<K: Hash>(
        &mut self,
        key: K,
        pos: u32,
        is_key: impl Fn(u32) -> bool,
    ) -> bool {
        let mut slot = self.hasher.hash_one(key) as usize & self.mask;
        while self.slots[slot] != EMPTY {
            if is_key(self.slots[slot]) {
                return false;
            }
            slot = (slot + 1) & self.mask;
        }
        self.slots[slot] = pos;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_inserted_first() {
        let keys = ["a", "bc", "", "a", "def"];
        let mut index = HashIndex::with_capacity(keys.len());
        let added: Vec<bool> = (0..keys.len())
            .map(|i| index.insert(keys[i], i as u32, |p| keys[p as usize] == keys[i]))
            .collect();
        assert_eq!(added, [true, true, true, false, true]);
        for (key, want) in [("a", Some(0)), ("bc", Some(1)), ("", Some(2)), ("zz", None)] {
            assert_eq!(index.find(key, |p| keys[p as usize] == key), want, "{key:?}");
        }
    }
}
