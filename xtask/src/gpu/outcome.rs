//! What came of the items, in one file that every call adds to.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::machine;

/// What came of an item.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) ok: bool,
    pub(super) seconds: f64,
    /// What the program printed, where that is JSON and was requested.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(super) value: Value,
    /// The end of what it printed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) text: String,
    /// Its step ended before it did.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_cut: bool,
}

/// How a step ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Note {
    /// Why it has no items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) left_out: Option<String>,
    /// Items that it had no time for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) left: Vec<String>,
    /// Items that it had no time to finish.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) cut: Vec<String>,
    pub(super) seconds: f64,
}

/// The outcomes of all items so far, by step and name.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Outcomes {
    /// The commit that was packed.
    pub(super) commit: String,
    /// Where the models ran.
    pub(super) device: String,
    /// The day of the first of them.
    #[serde(default)]
    pub(super) date: String,
    pub(super) steps: BTreeMap<String, BTreeMap<String, Outcome>>,
    #[serde(default)]
    pub(super) notes: BTreeMap<String, Note>,
}

/// The name of the file.
const FILE: &str = "results.json";

impl Outcomes {
    /// Those that a folder has; none of another commit or device.
    pub(super) fn open(folder: &Path, commit: &str, device: &str) -> Result<Self> {
        let path = folder.join(FILE);
        let (commit, device) = (commit.to_owned(), device.to_owned());
        let fresh = Self { commit, device, date: machine::date()?, ..Self::default() };
        if !path.is_file() {
            return Ok(fresh);
        }
        let found = Self::read(folder)?;
        let same = found.commit == fresh.commit && found.device == fresh.device;
        Ok(if same { found } else { fresh })
    }

    /// Those that a folder has.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Writes them; a call that is broken off in the middle leaves the file as it was.
    pub(super) fn save(&self, folder: &Path) -> Result<()> {
        let (path, part) = (folder.join(FILE), folder.join(format!("{FILE}.part")));
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(&part, text).with_context(|| part.display().to_string())?;
        fs::rename(&part, &path).with_context(|| path.display().to_string())
    }

    /// What came of an item.
    pub(super) fn get(&self, step: &str, item: &str) -> Option<&Outcome> {
        self.steps.get(step)?.get(item)
    }

    /// Adds what came of an item.
    pub(super) fn add(&mut self, step: &str, item: &str, outcome: Outcome) {
        self.steps.entry(step.to_owned()).or_default().insert(item.to_owned(), outcome);
    }

    /// Notes how a step ended.
    pub(super) fn note(&mut self, step: &str, note: Note) {
        self.notes.insert(step.to_owned(), note);
    }

    /// Forgets a step.
    pub(super) fn forget(&mut self, step: &str) {
        self.steps.remove(step);
        self.notes.remove(step);
    }

    /// Counts of a step's items that ended well, and that failed.
    pub(super) fn counts(&self, step: &str) -> [usize; 2] {
        let of = |ok| {
            self.steps.get(step).map_or(0, |items| items.values().filter(|o| o.ok == ok).count())
        };
        [of(true), of(false)]
    }

    /// The folder's file.
    pub(super) fn path(folder: &Path) -> PathBuf {
        folder.join(FILE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_kept_for_the_same_commit_and_device() {
        let folder = tempfile::tempdir().unwrap();
        let mut outcomes = Outcomes::open(folder.path(), "abc", "cuda").unwrap();
        let value = serde_json::json!({"rate": 2.5});
        let outcome = Outcome { ok: true, seconds: 1.5, value, ..Outcome::default() };
        outcomes.add("rates", "copies", outcome.clone());
        outcomes.save(folder.path()).unwrap();
        let again = Outcomes::open(folder.path(), "abc", "cuda").unwrap();
        assert_eq!(again, outcomes);
        assert_eq!(again.get("rates", "copies"), Some(&outcome));
        for (commit, device) in [("abd", "cuda"), ("abc", "cpu")] {
            let other = Outcomes::open(folder.path(), commit, device).unwrap();
            assert_eq!(other.get("rates", "copies"), None);
        }
        assert_eq!(outcomes.counts("rates"), [1, 0]);
        outcomes.forget("rates");
        assert!(outcomes.steps.is_empty());
        fs::write(Outcomes::path(folder.path()), "{").unwrap();
        assert!(Outcomes::open(folder.path(), "abc", "cuda").is_err());
    }
}
