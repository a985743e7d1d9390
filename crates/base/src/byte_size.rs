//! How sizes are written for people.

use std::fmt;

/// A number of bytes as people read it: in powers of 1024, with two digits after the point.
///
/// ```
/// assert_eq!(realizar_base::ByteSize(98_362_432).to_string(), "93.81 MiB");
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
}
