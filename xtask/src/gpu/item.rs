//! A step's work: items, each one process with a limit, and how they are built.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// The items of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Work {
    pub(super) items: Vec<Item>,
    /// Items side by side. What is measured runs alone.
    pub(super) n_parallel: usize,
}

impl Work {
    /// Items one after the other.
    pub(super) fn alone(items: Vec<Item>) -> Self {
        Self { items, n_parallel: 1 }
    }

    pub(super) fn parallel(items: Vec<Item>, n_parallel: usize) -> Self {
        Self { items, n_parallel: n_parallel.max(1) }
    }
}

/// One process of a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Item {
    pub(super) name: String,
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(&'static str, String)>,
    pub(super) limit: Duration,
    pub(super) result: Found,
    /// A file that gets all that it prints, as it is printed.
    pub(super) log: Option<PathBuf>,
    /// Files that it needs, which other items make.
    pub(super) needs: Vec<PathBuf>,
    /// A file that it makes. Its `PART` argument is the name that the file has until then.
    pub(super) makes: Option<PathBuf>,
    /// It makes its file even if nothing of its step needs it.
    pub(super) for_later: bool,
}

/// Where an item's result is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It has none but its status and the end of what it prints.
    Text,
    /// It prints JSON.
    Json,
    /// It writes a file of JSON.
    File(PathBuf),
    /// It prints a line of JSON for each test.
    Tests,
    /// It prints a line for each case that is not the same.
    Cases,
}

/// In the arguments of an item that makes a file: where it writes.
pub(super) const PART: &str = "PART";

impl Item {
    pub(super) fn new(name: impl Into<String>, program: impl Into<PathBuf>, args: &str) -> Self {
        Self {
            name: name.into(),
            program: program.into(),
            args: args.split_whitespace().map(str::to_owned).collect(),
            env: Vec::new(),
            limit: Duration::from_secs(300),
            result: Found::Text,
            log: None,
            needs: Vec::new(),
            makes: None,
            for_later: false,
        }
    }

    pub(super) fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub(super) fn path(self, path: &Path) -> Self {
        self.arg(path.to_string_lossy())
    }

    /// Arguments between blanks.
    pub(super) fn args(mut self, args: &str) -> Self {
        self.args.extend(args.split_whitespace().map(str::to_owned));
        self
    }

    pub(super) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    pub(super) fn seconds(mut self, n: u64) -> Self {
        self.limit = Duration::from_secs(n);
        self
    }

    pub(super) fn result(mut self, result: Found) -> Self {
        self.result = result;
        self
    }

    pub(super) fn log(mut self, file: PathBuf) -> Self {
        self.log = Some(file);
        self
    }

    pub(super) fn needs(mut self, file: &Path) -> Self {
        self.needs.push(file.to_owned());
        self
    }

    pub(super) fn makes(mut self, file: PathBuf) -> Self {
        self.makes = Some(file);
        self
    }

    pub(super) fn for_later(mut self) -> Self {
        self.for_later = true;
        self
    }

    /// Whether the file that it makes is written under another name first.
    pub(super) fn has_part(&self) -> bool {
        self.args.iter().any(|arg| arg == PART)
    }
}
