//! Checks of every text file: no trailing blanks, no paths of one machine.

use std::path::Path;

use super::{Finding, source};

/// Folders of some machine; in parts, so that this file passes its own check.
const MACHINE_FOLDERS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/tm", "p/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Files and folders whose content comes from elsewhere and is kept as it is.
const VERBATIM: &[&str] = &["fixtures/real/text.txt", "fixtures/fuzz"];

/// The extensions that are text written here; the empty one covers scripts without an extension.
const WRITTEN: &[&str] = &[
    "", "rs", "md", "toml", "py", "sh", "yml", "yaml", "txt", "wgsl", "cu", "ts", "tsx", "mjs",
    "css",
];

/// Check one text file.
pub(super) fn check(file: &Path, text: &str) -> Vec<Finding> {
    let extension = file.extension().and_then(|e| e.to_str()).unwrap_or_default();
    if !WRITTEN.contains(&extension) || VERBATIM.iter().any(|v| file.starts_with(v)) {
        return Vec::new();
    }
    let tests = tests_start(file, text);
    let mut findings = Vec::new();
    for (idx, line) in text.lines().enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            findings.push(Finding::new(file, idx + 1, "trailing blanks"));
        }
        if idx < tests {
            let folder = MACHINE_FOLDERS.iter().find(|f| names_folder(line, f));
            findings.extend(
                folder.map(|f| Finding::new(file, idx + 1, format!("a machine's path ({f}…)"))),
            );
        }
    }
    findings
}

/// The number of lines before the tests, which may use temporary folders.
fn tests_start(file: &Path, text: &str) -> usize {
    if file.components().any(|c| c.as_os_str() == "tests") { 0 } else { source::code_lines(text) }
}

/// Does the line name the absolute path, and not merely a longer one that contains its letters?
fn names_folder(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && !"._-~}".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_paths_and_trailing_blanks() {
        let cases = [
            ("docs/a.md", "fine\n", 0),
            ("docs/a.md", "blank \n", 1),
            ("fixtures/fuzz/regex/a", "blank \n", 0),
            ("docs/a.md", "cd /tmp/x\n", 1),
            ("docs/a.md", "target/tmp/x and https://e.org/home/x\n", 0),
            ("src/a.rs", "//! A.\n#[cfg(test)]\nmod tests {\n    // \"/tmp/x\"\n}\n", 0),
            ("crates/a/tests/b.rs", "const T: &str = \"/tmp/x\";\n", 0),
            ("a.safetensors", "x \n", 0),
        ];
        for (file, text, expected) in cases {
            assert_eq!(check(Path::new(file), text).len(), expected, "{file}: {text}");
        }
    }
}
