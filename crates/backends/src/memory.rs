//! How much memory a model takes on its devices: known before it is loaded, and of a loaded one.

use std::iter::Sum;
use std::ops::Add;

/// Bytes that a model takes, on all its devices together. They are reserved when it is loaded;
/// nothing grows while it runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// The weights, as the backend keeps them: those that it leaves in the file count, too.
    pub weights: usize,
    /// The pages of keys and values.
    pub kv: usize,
    /// What a step of the largest batch works in: its activations and output rows. The buffers of
    /// single threads, which are small, do not count.
    pub scratch: usize,
}

/// Memory of a device that nothing has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeMemory {
    /// All of it.
    pub bytes: usize,
    /// What of it is to be left to others.
    pub reserve: usize,
    /// Whether the device says so itself, and more cannot be had.
    pub is_exact: bool,
}

impl MemoryUse {
    /// All of it.
    pub fn total(&self) -> usize {
        self.weights.saturating_add(self.kv).saturating_add(self.scratch)
    }
}

impl Add for MemoryUse {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            weights: self.weights.saturating_add(other.weights),
            kv: self.kv.saturating_add(other.kv),
            scratch: self.scratch.saturating_add(other.scratch),
        }
    }
}

impl Sum for MemoryUse {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_added_and_do_not_overflow() {
        let one = MemoryUse { weights: 1, kv: 20, scratch: 300 };
        let large = MemoryUse { weights: usize::MAX, ..one };
        assert_eq!(one.total(), 321);
        assert_eq!([one, one].into_iter().sum::<MemoryUse>().total(), 642);
        assert_eq!((large + one).total(), usize::MAX);
    }
}
