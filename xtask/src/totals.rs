//! How many checks of a step held, and which did not.

use std::fmt;

#[cfg(feature = "all")]
use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// The outcome of a step.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    /// The failures that have a name, a line each, which the summary of all steps repeats.
    pub(crate) failures: Vec<String>,
}

impl Totals {
    /// Counts a check, and returns the word for its table.
    #[cfg(feature = "all")]
    pub(crate) fn count(&mut self, ok: bool) -> String {
        *(if ok { &mut self.passed } else { &mut self.failed }) += 1;
        (if ok { "ok" } else { "FAILED" }).to_owned()
    }

    /// Counts a check that failed, and prints why.
    pub(crate) fn fail(&mut self, why: String) {
        println!("{why}");
        self.failed += 1;
        self.failures.push(why);
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.failures.extend(other.failures);
    }

    /// An error when something failed.
    #[cfg(feature = "all")]
    pub(crate) fn into_result(self) -> Result<()> {
        println!("{self}");
        if self.failed > 0 {
            bail!("{} checks failed", self.failed);
        }
        Ok(())
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}
