//! Names from outside: which of them may become a path, and how one is made where a name may not.
//!
//! What a hub lists, a URL ends with, a wheel holds or a manifest states goes through here before
//! it is joined to a folder.

use std::path::PathBuf;

use anyhow::{Result, bail};
use sha2::{Digest, Sha256};

use super::cache::hex;

/// Bytes of a path, and of each of its components.
const MAX_PATH: usize = 1024;
const MAX_COMPONENT: usize = 255;
/// Bytes of a name that is made safe; there is room for an ending.
const MAX_NAME: usize = 200;
/// Bytes of a key that come from its text; a hash makes it unique.
const MAX_KEY_TEXT: usize = 100;

/// The path that `name` spells with `/`, which stays below the folder it is joined to on every
/// system: no empty component, no `.` or `..`, nothing that Windows reads as a drive, a device or
/// a separator, no control character, and at most 1024 bytes.
pub(super) fn relative(name: &str) -> Result<PathBuf> {
    let shown = || name.chars().take(100).collect::<String>().escape_debug().to_string();
    if name.is_empty() || name.len() > MAX_PATH {
        bail!(
            "`{}` is not a file name: expected 1 to {MAX_PATH} bytes, found {}",
            shown(),
            name.len()
        );
    }
    match name.split('/').find_map(fault) {
        Some(fault) => bail!("`{}` is not a path inside a folder: {fault}", shown()),
        None => Ok(name.split('/').collect()),
    }
}

/// True for a name that [`relative`] accepts.
pub(super) fn is_relative(name: &str) -> bool {
    relative(name).is_ok()
}

/// What is wrong with one component of a path.
fn fault(part: &str) -> Option<&'static str> {
    let stem = part.split('.').next().unwrap_or_default().trim_end();
    let is_device = |stem: &str| {
        let stem = stem.to_ascii_uppercase();
        let numbered = ["COM", "LPT"].iter().find_map(|kind| stem.strip_prefix(kind));
        matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$")
            || numbered.is_some_and(|n| n.len() == 1 && n.bytes().all(|b| b.is_ascii_digit()))
    };
    if part.is_empty() {
        Some("a component is empty")
    } else if part == "." || part == ".." {
        Some("a component is `.` or `..`")
    } else if part.len() > MAX_COMPONENT {
        Some("a component is longer than 255 bytes")
    } else if part.contains(['\\', ':']) {
        Some("it has a `\\` or a `:`")
    } else if part.contains(char::is_control) {
        Some("it has a control character")
    } else if part.ends_with(['.', ' ']) {
        Some("a component ends with a dot or a space")
    } else if is_device(stem) {
        Some("a component is a reserved device name")
    } else {
        None
    }
}

/// A name that is safe as one path component: other characters than letters, digits, `.`, `_`
/// and `-` become `-`, and it never starts with a dot. Of a long name the end is kept.
pub(super) fn safe_name(text: &str) -> String {
    let name: String = text
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' })
        .collect();
    // All characters take one byte.
    let name = &name[name.len().saturating_sub(MAX_NAME)..];
    let name = name.trim_start_matches('.').trim_end_matches('.');
    match fault(name) {
        None => name.to_owned(),
        Some(_) => format!("model{name}"),
    }
}

/// A folder name for a source: a safe form of what is `shown` of it, made unique by a hash of all
/// of it.
pub(super) fn unique_key(shown: &str, whole: &str) -> String {
    let text = safe_name(shown);
    let text = &text[..text.len().min(MAX_KEY_TEXT)];
    format!("{text}-{}", &hex(&Sha256::digest(whole.as_bytes()))[..32])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn paths_stay_below_their_folder() {
        for name in
            ["m.gguf", "a/b/m-00001-of-00002.gguf", ".hidden", "a b/ü.json", "a..b", "nullx"]
        {
            assert_eq!(relative(name).expect(name), Path::new(name));
        }
        let (long, deep) = ("x".repeat(256), "x/".repeat(513));
        for name in [
            "",
            "/",
            "/etc/passwd",
            "..",
            ".",
            "../x",
            "a/../x",
            "a/..",
            "a/./b",
            "a//b",
            "a/",
            "\\\\host\\x",
            "a\\b",
            "C:",
            "C:x",
            "C:/x",
            "f:stream",
            "a\0b",
            "a\nb",
            "\u{1b}[2J",
            "nul",
            "NUL.gguf",
            "a/con",
            "com1.txt",
            "a.",
            "a ",
            "a/.. ",
            &long,
            &deep,
        ] {
            let error = relative(name).expect_err(name).to_string();
            assert!(!error.contains(char::is_control) && error.len() < 500, "{error}");
        }
    }

    #[test]
    fn names_stay_one_component() {
        for (text, want) in [
            ("a/b", "a-b"),
            ("..", "model"),
            ("../x", "-x"),
            ("gemma3:270m", "gemma3-270m"),
            ("", "model"),
            ("nul", "modelnul"),
            ("x.", "x"),
        ] {
            assert_eq!(safe_name(text), want);
        }
        let long = safe_name(&format!("{}.gguf", "x".repeat(5000)));
        assert!(long.len() == 200 && long.ends_with("x.gguf"), "{long}");
    }

    #[test]
    fn keys_of_two_sources_differ() {
        let key = |text: &str| unique_key(text, text);
        // Both have one safe form.
        assert_ne!(key("hf:a/b-c"), key("hf:a-b/c"));
        assert_ne!(key("hf:o/r:Q8"), key("hf:o/r/Q8"));
        assert_eq!(key("hf:o/r"), key("hf:o/r"));
        assert!(key("hf:o/r").starts_with("hf-o-r-"), "{}", key("hf:o/r"));
        assert!(key(&"x".repeat(5000)).len() <= 200);
    }
}
