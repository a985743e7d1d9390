//! What the lints for other platforms depend on, and the state of it that they last passed with.
//!
//! The whole workspace is linted for this platform at every run. For another one more can go wrong only in code
//! that differs between platforms, which a file cannot have without one of the [`MARKS`], or in dependencies.
//! What escapes is a new use, in a file without any, of an item that only some platforms have; `xtask release`
//! lints for the platform that it packs.

use std::fs;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::{shell, tidy};

/// The hash of the inputs that passed, committed.
const RECORD: &str = "xtask/platforms.sha256";

/// Text without which a source file is the same on all platforms: conditions, and the names of what is there on
/// some.
const MARKS: &[&str] = &[
    "(unix",
    "unix)",
    "(windows",
    "windows)",
    "target_",
    "macos",
    "std::os::",
    "core::arch",
    "std::arch",
    "libc::",
    "nix::",
    "rustix",
    "windows_sys",
];

/// Whether a file is among the inputs.
fn is_input(path: &str, text: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    match name {
        "Cargo.toml" | "Cargo.lock" | "build.rs" => true,
        _ if path.starts_with("xtask/src/platforms/") => true,
        _ => name.ends_with(".rs") && MARKS.iter().any(|mark| text.contains(mark)),
    }
}

/// One hash of all inputs: names and contents.
pub(super) fn hash() -> Result<String> {
    let root = shell::root();
    let mut files = tidy::all_files()?;
    files.sort();
    let mut all = Sha256::new();
    for file in files {
        let path = file.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/");
        let Ok(text) = fs::read_to_string(root.join(&file)) else { continue };
        if is_input(&path, &text) {
            all.update(format!("{} {path}\n", text.len()));
            all.update(text);
        }
    }
    Ok(all.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Whether the lints have passed with these inputs.
pub(super) fn is_recorded(hash: &str) -> bool {
    fs::read_to_string(shell::root().join(RECORD)).is_ok_and(|text| text.trim() == hash)
}

/// Notes that they have.
pub(super) fn record(hash: &str) -> Result<()> {
    println!("platforms: {RECORD} is new; commit it, and the lints rest until their inputs change");
    fs::write(shell::root().join(RECORD), format!("{hash}\n")).context(RECORD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_what_differs_between_platforms() {
        let cases = [
            ("crates/a/Cargo.toml", "", true),
            ("Cargo.lock", "", true),
            ("xtask/src/platforms/mod.rs", "", true),
            ("crates/a/src/x.rs", "fn f() {}", false),
            ("crates/a/src/x.rs", "#[cfg(all(test, unix))]", true),
            ("crates/a/src/x.rs", "if cfg!(windows) {}", true),
            ("crates/a/src/x.rs", "#[cfg(not(target_os = \"linux\"))]", true),
            ("crates/a/src/x.rs", "use std::os::fd::AsFd;", true),
            ("docs/x.md", "cfg(unix)", false),
        ];
        for (path, text, expected) in cases {
            assert_eq!(is_input(path, text), expected, "{path} {text}");
        }
    }
}
