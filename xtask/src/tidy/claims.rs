//! The tests that hold the claims of `docs/security.md` are where `docs/security-tests.md` says.

use std::path::Path;

use super::Finding;

const TABLE: &str = "docs/security-tests.md";

/// Check one Markdown file: a row names a file by a link, and tests in it.
pub(super) fn check(root: &Path, file: &Path, text: &str) -> Vec<Finding> {
    if file != Path::new(TABLE) {
        return Vec::new();
    }
    let folder = root.join(file.parent().unwrap_or(Path::new("")));
    let mut findings = Vec::new();
    for (idx, line) in text.lines().enumerate() {
        let Some((path, tests)) = tests(line) else { continue };
        // A file that is not there is a dead link.
        let code = std::fs::read_to_string(folder.join(path)).unwrap_or_default();
        for test in tests.filter(|test| !code.contains(&format!("fn {test}("))) {
            findings.push(Finding::new(file, idx + 1, format!("{path} has no test `{test}`")));
        }
    }
    findings
}

/// The file of a row, and the names of its tests.
fn tests(line: &str) -> Option<(&str, impl Iterator<Item = &str>)> {
    let (_, cell) = line.strip_prefix('|')?.split_once("](")?;
    let (path, names) = cell.split_once(')')?;
    Some((path, names.split('`').skip(1).step_by(2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_name_files_and_tests() {
        let (path, names) = tests("| `a` holds | [b.rs](../b.rs): `c`, `d` |").expect("a row");
        assert_eq!((path, names.collect::<Vec<_>>()), ("../b.rs", vec!["c", "d"]));
        assert!(tests("| claim | tests |").is_none());
        assert!(tests("[b](../b.rs): `c`").is_none());
    }

    #[test]
    fn a_test_that_is_gone_is_found() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("docs")).expect("a folder");
        std::fs::write(dir.path().join("a.rs"), "fn there() {}").expect("written");
        let row = "| it holds | [a](../a.rs): `there`, `gone` |";
        let found = check(dir.path(), Path::new(TABLE), row);
        assert_eq!(found, [Finding::new(Path::new(TABLE), 1, "../a.rs has no test `gone`")]);
        assert!(check(dir.path(), Path::new("docs/other.md"), row).is_empty());
    }
}
