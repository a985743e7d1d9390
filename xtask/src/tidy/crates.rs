//! What each crate and the repository as a whole must have: README, example, lints, licences.

use std::path::Path;

use serde_json::Value;

use super::{Finding, VENDORED};

/// The maximum number of bytes a committed fixture may have.
const MAX_FIXTURE_BYTES: usize = 300 * 1024;

/// Crates that need no `unsafe`.
const SAFE_CRATES: &[&str] = &[
    "realizar-backends",
    "realizar-base",
    "realizar-quant",
    "realizar-types",
    "realizar-kvcache",
    "realizar-model",
    "realizar-text",
    "realizar-runtime",
    "realizar-server",
    "realizar",
];

/// Files every clone must have.
const REQUIRED: &[&str] = &["LICENSE-MIT", "LICENSE-APACHE", "README.md", "deny.toml", ".ci/run"];

/// A fixture that is too large for a repository.
pub(super) fn fixture_size(file: &Path, bytes: usize) -> Option<Finding> {
    let is_fixture = file.components().any(|c| c.as_os_str() == "fixtures");
    (is_fixture && bytes > MAX_FIXTURE_BYTES).then(|| {
        Finding::new(file, 0, format!("{bytes} bytes, at most {MAX_FIXTURE_BYTES} are allowed"))
    })
}

/// Check the repository's files and each crate of `cargo metadata --no-deps`.
pub(super) fn check(root: &Path, metadata: &Value) -> Vec<Finding> {
    let mut findings: Vec<Finding> = REQUIRED
        .iter()
        .filter(|file| !root.join(file).is_file())
        .map(|file| Finding::new(Path::new(file), 0, "missing"))
        .collect();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let name = package["name"].as_str().unwrap_or_default();
        let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
        let folder = manifest.parent().unwrap_or(root);
        if folder.parent().is_some_and(|parent| parent.ends_with(VENDORED)) {
            continue;
        }
        findings.extend(
            missing(package, name, folder).into_iter().map(|m| Finding::new(Path::new(name), 0, m)),
        );
    }
    findings
}

/// What the crate lacks.
fn missing(package: &Value, name: &str, folder: &Path) -> Vec<&'static str> {
    let mut out = Vec::new();
    let targets = || package["targets"].as_array().into_iter().flatten();
    let has = |wanted: &str| {
        targets().any(|t| t["kind"].as_array().is_some_and(|k| k.iter().any(|k| k == wanted)))
    };
    // A crate that is published nowhere has no readers of its own.
    let is_published = package["publish"].as_array().is_none_or(|to| !to.is_empty());
    // Nor has the library of a program.
    if has("lib") && !has("bin") && is_published {
        if !folder.join("README.md").is_file() {
            out.push("no README.md");
        }
        if !has("example") {
            out.push("no example in examples/");
        }
    }
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
    if !manifest.contains("[lints]\nworkspace = true") {
        out.push("does not take the workspace's lints");
    }
    if SAFE_CRATES.contains(&name) {
        let roots = targets().filter(|t| {
            let kind = t["kind"][0].as_str().unwrap_or_default();
            kind == "lib" || kind == "bin"
        });
        let paths = roots.filter_map(|t| t["src_path"].as_str());
        let forbids = |path: &str| {
            std::fs::read_to_string(path).is_ok_and(|t| t.contains("#![forbid(unsafe_code)]"))
        };
        if !paths.into_iter().all(forbids) {
            out.push("no `#![forbid(unsafe_code)]`");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_fixtures_are_found() {
        let cases = [
            ("fixtures/archs/llama/model.safetensors", 300 * 1024, false),
            ("fixtures/archs/llama/model.safetensors", 300 * 1024 + 1, true),
            ("crates/quant/tests/fixtures/q4_k.bin", 400 * 1024, true),
            ("docs/picture.png", 400 * 1024, false),
        ];
        for (file, bytes, expected) in cases {
            assert_eq!(fixture_size(Path::new(file), bytes).is_some(), expected, "{file} {bytes}");
        }
    }

    #[test]
    fn a_library_needs_readme_example_and_forbid() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let package = serde_json::json!({"targets": [
            {"kind": ["lib"], "src_path": here.join("main.rs")},
        ]});
        let all = [
            "no README.md",
            "no example in examples/",
            "does not take the workspace's lints",
            "no `#![forbid(unsafe_code)]`",
        ];
        assert_eq!(missing(&package, "realizar-quant", &here), all);
        assert_eq!(missing(&package, "realizar-kernels-cpu", &here), all[..3]);
    }
}
