//! The machine that measurements take place on, and the folder that a run's files go to.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::Result;

use crate::{processor, shell};

/// Where and when a run takes place.
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) date: String,
    /// Kernel, cores and memory, in words.
    pub(crate) about: String,
    /// The load averages before the run.
    pub(crate) load: String,
}

impl Machine {
    pub(crate) fn here() -> Result<Self> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let memory = read("/proc/meminfo");
        let kib = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let kib = kib.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        let mut about = format!("{} cores", std::thread::available_parallelism()?);
        if let Some(kib) = kib {
            let _ = write!(about, ", {} GiB", (kib + (1 << 19)) >> 20);
        }
        if let Ok(kernel) = shell::output(shell::command("uname").arg("-sr")) {
            let _ = write!(about, ", {}", kernel.trim());
        }
        let load = read("/proc/loadavg").split_whitespace().take(3).collect::<Vec<_>>().join(" ");
        Ok(Self { cpu: processor::name(), date: date()?, about, load })
    }
}

/// `benches/runs/<date>-<cpu>` with an ending for the kind of run, unless another folder is given.
pub(crate) fn run_folder(out: Option<PathBuf>, ending: &str) -> Result<PathBuf> {
    let name = format!("{}-{}{ending}", date()?, slug(&processor::name()));
    Ok(out.unwrap_or_else(|| shell::root().join("benches/runs").join(name)))
}

/// Today, as `2026-11-30`.
pub(crate) fn date() -> Result<String> {
    Ok(shell::output(shell::command("date").arg("+%F"))?.trim().to_owned())
}

/// Lower-case letters and digits with single dashes, for a folder's name.
pub(crate) fn slug(text: &str) -> String {
    let lower = text.to_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty());
    words.collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_names_are_plain() {
        assert_eq!(slug("AMD EPYC 7B13 (Milan)"), "amd-epyc-7b13-milan");
    }
}
