//! Identifiers of requests and answers: unlikely to repeat, and no secret.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

/// `prefix` and 32 hexadecimal digits.
pub(crate) fn new(prefix: &str) -> String {
    // Every `RandomState` has keys of its own.
    let digits = || RandomState::new().hash_one(prefix);
    format!("{prefix}{:016x}{:016x}", digits(), digits())
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ() {
        let (a, b) = (new("cmpl-"), new("cmpl-"));
        assert_ne!(a, b);
        assert!(a.starts_with("cmpl-") && a.len() == 37, "{a}");
    }
}
