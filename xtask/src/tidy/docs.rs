//! Documentation of public items: types, traits, functions, constants and macros have some.
//!
//! Fields and variants need none, where a comment would only repeat the name; that is why the lint
//! `missing_docs` of the compiler is off. Modules open with `//!`, which [`super::source`] checks.

use std::path::Path;

use super::Finding;
use super::source::code_lines;

/// The sources that others use.
const LIBRARIES: &str = "crates";
/// What needs documentation.
const ITEMS: [&str; 9] = [
    "pub fn ",
    "pub const fn ",
    "pub async fn ",
    "pub unsafe fn ",
    "pub struct ",
    "pub enum ",
    "pub trait ",
    "pub type ",
    "pub const ",
];

/// Check one Rust file.
pub(super) fn check(file: &Path, text: &str) -> Vec<Finding> {
    let is_library =
        file.starts_with(LIBRARIES) && file.components().any(|c| c.as_os_str() == "src");
    if !is_library || file.starts_with("crates/cli") {
        return Vec::new();
    }
    let lines: Vec<&str> = text.lines().take(code_lines(text)).collect();
    let mut findings = Vec::new();
    let mut in_trait = false;
    for (idx, line) in lines.iter().enumerate() {
        if line.starts_with("pub trait ") {
            in_trait = true;
        } else if *line == "}" {
            in_trait = false;
        }
        let item = line.trim_start();
        let is_item = ITEMS.iter().any(|start| item.starts_with(start));
        let is_method = in_trait && line.starts_with("    fn ");
        if (is_item || is_method) && !is_documented(&lines[..idx]) {
            let name = item.split(['(', '<', '{', ';', ':', '=']).next().unwrap_or_default().trim();
            findings.push(Finding::new(file, idx + 1, format!("`{name}` has no documentation")));
        }
    }
    findings
}

/// Whether the attributes that `before` ends with follow a doc comment, or contain one.
fn is_documented(before: &[&str]) -> bool {
    let mut nesting = 0_isize;
    for line in before.iter().rev() {
        let line = line.trim();
        if nesting == 0 && (line.starts_with("///") || line.starts_with("#[doc")) {
            return true;
        }
        let count = |c: char| line.matches(c).count() as isize;
        // An attribute may take several lines, the last of which is `)]`.
        nesting += count(']') - count('[');
        let is_attribute = line.starts_with("#[") || nesting > 0 || line.starts_with("//");
        if !is_attribute {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_without_documentation_are_found() {
        let text = "/// A.\npub struct A {\n    pub field: u8,\n}\n\n#[derive(Debug)]\npub enum B {\n    C,\n}\n\n\
                    /// D.\n#[derive(Debug)]\n#[expect(\n    dead_code,\n    reason = \"x\"\n)]\npub struct D;\n\n\
                    /// T.\npub trait T {\n    fn f(&self);\n    /// G.\n    fn g(&self);\n}\n\n\
                    impl A {\n    pub fn new() -> Self {}\n}\nfn private() {}\n";
        let found = check(Path::new("crates/x/src/a.rs"), text);
        let found: Vec<(usize, &str)> = found.iter().map(|f| (f.line, &*f.message)).collect();
        let message = ["`pub enum B`", "`fn f`", "`pub fn new`"];
        let message = message.map(|name| format!("{name} has no documentation"));
        assert_eq!(found, [(7, &*message[0]), (21, &*message[1]), (27, &*message[2])]);
        assert!(check(Path::new("crates/cli/src/a.rs"), text).is_empty());
        assert!(check(Path::new("crates/x/tests/a.rs"), text).is_empty());
    }
}
