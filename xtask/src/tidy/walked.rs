//! Places where outside text becomes work: every endpoint that takes a body and every public function that
//! parses is run by a fuzz target, which the test `walk` of the crate `fuzz` gives inputs that grow.

use std::path::Path;

use super::Finding;
use super::lexer::code_only;

/// The server's list of endpoints.
const ROUTES: &str = "crates/server/src/app.rs";
/// The endpoints that a fuzz target sends bodies to.
const PATHS: &str = "fuzz/src/requests.rs";
/// The functions that fuzz targets run.
const ENTRIES: &str = "fuzz/src/entries.rs";
/// The libraries that read outside text. What devices open is no text.
const LIBRARIES: &[&str] = &[
    "crates/base/src",
    "crates/formats/src",
    "crates/model/src",
    "crates/runtime/src",
    "crates/text/src",
    "crates/server/src",
];
/// How the names of functions begin that make something of text.
const VERBS: &[&str] =
    &["parse", "compile", "render", "encode", "decode", "tokenize", "open", "restore", "read"];
/// Sources that such a function makes a value from.
const SOURCES: &[&str] = &["bytes", "json", "text", "gguf", "hf", "str", "dir", "file"];

/// The lists of what is walked.
#[derive(Debug)]
pub(super) struct Walked {
    paths: String,
    entries: String,
}

impl Walked {
    pub(super) fn read(root: &Path) -> std::io::Result<Self> {
        let read = |file| std::fs::read_to_string(root.join(file));
        Ok(Self { paths: read(PATHS)?, entries: read(ENTRIES)? })
    }

    /// Check one Rust file.
    pub(super) fn check(&self, file: &Path, text: &str) -> Vec<Finding> {
        if file == Path::new(ROUTES) {
            return self.check_routes(file, text);
        }
        let is_library = LIBRARIES.iter().any(|library| file.starts_with(library));
        if !is_library {
            return Vec::new();
        }
        let own = file.strip_prefix("crates").unwrap_or(file).display().to_string();
        let mut findings = Vec::new();
        for (idx, line) in code_only(text).lines().enumerate() {
            let Some(name) = line.trim_start().strip_prefix("pub fn ") else { continue };
            let name = name.split(['(', '<']).next().unwrap_or_default();
            if reads(name) && !self.entries.contains(&format!("(\"{own}\", \"{name}\",")) {
                let message = format!("`{name}` reads outside text: list it in {ENTRIES}");
                findings.push(Finding::new(file, idx + 1, message));
            }
        }
        findings
    }

    fn check_routes(&self, file: &Path, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (idx, line) in text.lines().enumerate() {
            let Some((path, methods)) =
                line.trim().strip_prefix("(\"").and_then(|l| l.split_once('"'))
            else {
                continue;
            };
            if methods.contains("post(") && !self.paths.contains(&format!("\"{path}\"")) {
                let message = format!("`{path}` takes a body: list it in {PATHS}");
                findings.push(Finding::new(file, idx + 1, message));
            }
        }
        findings
    }
}

/// Whether a function with this name makes something of text.
fn reads(name: &str) -> bool {
    let first = |text: &str| text.split('_').next().unwrap_or_default().to_owned();
    match name.strip_prefix("from_") {
        Some(source) => SOURCES.contains(&&*first(source)),
        None => VERBS.contains(&&*first(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(file: &str, text: &str) -> Vec<String> {
        let walked = Walked {
            paths: "\"/v1/a\",".to_owned(),
            entries: "(\"runtime/src/a.rs\", \"parse\", \"a\"),".to_owned(),
        };
        let findings = walked.check(Path::new(file), text);
        findings.into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn endpoints_and_parsers_are_listed() {
        let routes = "(\"/v1/a\", post(a)),\n(\"/v1/b\", get(b)),\n(\"/v1/c\", get(c).post(c)),\n";
        assert_eq!(found(ROUTES, routes), [format!("`/v1/c` takes a body: list it in {PATHS}")]);
        let code = "pub fn parse(x: &str) {}\n    pub fn from_hf_dir(x: &Path) {}\n\
                    pub fn from_parts() {}\npub(crate) fn read(x: &str) {}\n// pub fn open()\n\
                    pub fn reader() {}\n";
        let missing = |name| format!("`{name}` reads outside text: list it in {ENTRIES}");
        assert_eq!(found("crates/runtime/src/a.rs", code), [missing("from_hf_dir")]);
        assert_eq!(found("crates/formats/src/a.rs", code), ["parse", "from_hf_dir"].map(missing));
        assert!(found("crates/backends/src/a.rs", code).is_empty());
        assert!(found("crates/quant/src/a.rs", code).is_empty());
    }
}
