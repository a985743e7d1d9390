//! What came of the items, in one file that every call adds to.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What came of an item.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) ok: bool,
    pub(super) seconds: f64,
    /// What the program printed, where that is JSON and was requested.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(super) value: Value,
    /// The end of what it printed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) text: String,
}

/// The outcomes of all items so far, by step and name.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Outcomes {
    /// The commit that was packed.
    pub(super) commit: String,
    /// Where the models ran.
    pub(super) device: String,
    pub(super) steps: BTreeMap<String, BTreeMap<String, Outcome>>,
}

/// The name of the file.
const FILE: &str = "results.json";

impl Outcomes {
    /// Those that a folder has; none of another commit or device.
    pub(super) fn open(folder: &Path, commit: &str, device: &str) -> Result<Self> {
        let path = folder.join(FILE);
        let fresh =
            Self { commit: commit.to_owned(), device: device.to_owned(), ..Self::default() };
        if !path.is_file() {
            return Ok(fresh);
        }
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let found: Self =
            serde_json::from_str(&text).with_context(|| path.display().to_string())?;
        let same = found.commit == fresh.commit && found.device == fresh.device;
        Ok(if same { found } else { fresh })
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

    /// Forgets a step.
    pub(super) fn forget(&mut self, step: &str) {
        self.steps.remove(step);
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
        let outcome = Outcome { ok: true, seconds: 1.5, value, text: String::new() };
        outcomes.add("rates", "copies", outcome.clone());
        outcomes.save(folder.path()).unwrap();
        let again = Outcomes::open(folder.path(), "abc", "cuda").unwrap();
        assert_eq!(again, outcomes);
        assert_eq!(again.get("rates", "copies"), Some(&outcome));
        for (commit, device) in [("abd", "cuda"), ("abc", "cpu")] {
            let other = Outcomes::open(folder.path(), commit, device).unwrap();
            assert_eq!(other.get("rates", "copies"), None);
        }
        outcomes.forget("rates");
        assert!(outcomes.steps.is_empty());
        fs::write(Outcomes::path(folder.path()), "{").unwrap();
        assert!(Outcomes::open(folder.path(), "abc", "cuda").is_err());
    }
}
