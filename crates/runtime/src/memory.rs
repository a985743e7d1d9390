//! How much memory a model takes on its devices: known before it is loaded, and of a loaded one. And
//! how sizes are written for people.

use std::fmt;
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

/// A number of bytes as people read it: in powers of 1024, with two digits behind the point.
///
/// ```
/// assert_eq!(realizar_runtime::ByteSize(98_362_432).to_string(), "93.81 MiB");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteSize(pub u64);

impl From<usize> for ByteSize {
    fn from(n_bytes: usize) -> Self {
        Self(n_bytes as u64)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let (mut value, mut unit) = (self.0 as f64, 0);
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        match unit {
            0 => write!(f, "{} B", self.0),
            _ => write!(f, "{value:.2} {}", UNITS[unit]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_for_people() {
        for (n_bytes, want) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.50 KiB"),
            (98_362_432, "93.81 MiB"),
            (1 << 33, "8.00 GiB"),
            (u64::MAX, "16.00 EiB"),
        ] {
            assert_eq!(ByteSize(n_bytes).to_string(), want);
        }
    }

    #[test]
    fn parts_are_added_and_do_not_overflow() {
        let one = MemoryUse { weights: 1, kv: 20, scratch: 300 };
        let large = MemoryUse { weights: usize::MAX, ..one };
        assert_eq!(one.total(), 321);
        assert_eq!([one, one].into_iter().sum::<MemoryUse>().total(), 642);
        assert_eq!((large + one).total(), usize::MAX);
    }
}
