//! Checks of one Rust file: header, length, and what must not be written.

use std::path::Path;

use super::Finding;
use super::lexer::code_only;

/// The most lines a file may have before its tests.
const MAX_LINES: usize = 600;

/// What code must not contain, and why.
const FORBIDDEN: &[(&str, &str)] = &[
    ("include!(", "write a module instead of including code"),
    ("#[ignore", "a test that does not run hides a failure"),
    ("todo!(", "unfinished code"),
    ("unimplemented!(", "unfinished code"),
    ("#![allow", "no lint is allowed for a whole crate or module"),
];

/// Check one Rust file.
pub(super) fn check(file: &Path, text: &str) -> Vec<Finding> {
    let code = code_only(text);
    let mut findings = Vec::from_iter(header(file, text));
    findings.extend(length(file, text));
    findings.extend(forbidden(file, &code));
    findings.extend(reasons(file, &code));
    findings
}

/// The number of lines before `#[cfg(test)] mod …` at the file's end; all lines without it.
pub(super) fn code_lines(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines.windows(2).position(|pair| {
        pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod ") && !pair[1].ends_with(';')
    });
    tests.unwrap_or(lines.len())
}

fn header(file: &Path, text: &str) -> Option<Finding> {
    (!text.starts_with("//!")).then(|| Finding::new(file, 1, "no `//!` header"))
}

fn length(file: &Path, text: &str) -> Option<Finding> {
    let lines = code_lines(text);
    (lines > MAX_LINES)
        .then(|| Finding::new(file, 0, format!("{lines} lines, at most {MAX_LINES} are allowed")))
}

fn forbidden(file: &Path, code: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (idx, line) in code.lines().enumerate() {
        for (word, why) in FORBIDDEN {
            let hit = line.match_indices(word).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                before.is_none_or(|c| !c.is_alphanumeric() && c != '_')
            });
            if hit {
                findings.push(Finding::new(file, idx + 1, format!("`{word}`: {why}")));
            }
        }
    }
    findings
}

/// `allow` and `expect` attributes carry a `reason`.
fn reasons(file: &Path, code: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for start in ["#[allow(", "#[expect("] {
        for (at, _) in code.match_indices(start) {
            let attribute = code[at..].split_once(']').map_or(&code[at..], |(a, _)| a);
            if !attribute.contains("reason") {
                let line = code[..at].matches('\n').count() + 1;
                findings.push(Finding::new(file, line, format!("`{start}…)]` without a reason")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_one_file() {
        let long = format!("//! A.\n{}", "fn f() {}\n".repeat(600));
        let tested = format!("//! A.\n#[cfg(test)]\nmod tests {{\n{}}}\n", "\n".repeat(700));
        let cases = [
            ("//! A.\nfn f() {}\n", ""),
            ("fn f() {}\n", "header"),
            (&long, "601 lines"),
            (&tested, ""),
            ("//! A.\ninclude!(\"x.rs\");\n", "include!("),
            ("//! A.\nconst A: &str = include_str!(\"x\");\n", ""),
            ("//! A.\n#[test]\n#[ignore]\nfn f() {}\n", "#[ignore"),
            ("//! A.\nfn f() { todo!() }\n", "todo!("),
            ("//! A.\n// A note on todo!( in words.\n", ""),
            ("//! A.\n#![allow(dead_code, reason = \"x\")]\n", "#![allow"),
            ("//! A.\n#[allow(dead_code)]\nfn f() {}\n", "without a reason"),
            ("//! A.\n#[expect(\n    dead_code,\n    reason = \"y\"\n)]\nfn f() {}\n", ""),
        ];
        for (text, expected) in cases {
            let found = check(Path::new("a.rs"), text);
            match expected {
                "" => assert_eq!(found, [], "{text}"),
                _ => {
                    assert_eq!(found.len(), 1, "{text}: {found:?}");
                    assert!(found[0].message.contains(expected), "{found:?}");
                }
            }
        }
    }
}
