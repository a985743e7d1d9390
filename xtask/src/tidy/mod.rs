//! `cargo xtask tidy`: the house rules of `docs/style.md` as checks.
//!
//! A check takes text or metadata and returns [`Finding`]s; walking the tree is done here, once.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::kernels::{image_sources, images, resources};
use crate::{shell, web};

mod circles;
mod claims;
mod crates;
mod docs;
mod floors;
mod layers;
mod lexer;
mod links;
mod quotes;
mod seam;
mod source;
mod text;
mod walked;

/// The folder of vendored crates, each in a folder of its own.
pub(crate) const VENDORED: &str = "vendor";

/// One broken rule.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Path from the repository root.
    file: PathBuf,
    /// Line number from 1; 0 for the file as a whole.
    line: usize,
    message: String,
}

impl Finding {
    fn new(file: &Path, line: usize, message: impl Into<String>) -> Self {
        Self { file: file.to_path_buf(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file.display(), self.message),
            line => write!(f, "{}:{line}: {}", self.file.display(), self.message),
        }
    }
}

/// Run all checks and print what they found.
pub(crate) fn run() -> Result<()> {
    let root = shell::root();
    let files = files()?;
    let architectures = seam::architectures(&files);
    let mut roots = floors::Roots::default();
    for file in &files {
        let Some("lib.rs" | "main.rs") = file.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        roots.read(file, &std::fs::read_to_string(root.join(file))?);
    }
    let walked = walked::Walked::read(&root)?;
    let mut sources = circles::Sources::default();
    let mut quotes = quotes::Quotes::default();
    let mut findings = Vec::new();
    for file in &files {
        let Ok(bytes) = std::fs::read(root.join(file)) else { continue };
        findings.extend(crates::fixture_size(file, bytes.len()));
        let Ok(text) = String::from_utf8(bytes) else { continue };
        findings.extend(text::check(file, &text));
        quotes.read(file, &text);
        match file.extension().and_then(|e| e.to_str()) {
            Some("rs") => {
                findings.extend(source::check(file, &text));
                findings.extend(docs::check(file, &text));
                findings.extend(seam::check(file, &text, &architectures));
                findings.extend(floors::check(file, &text, &roots));
                findings.extend(walked.check(file, &text));
                sources.read(file, &text);
            }
            Some("wgsl") => findings.extend(seam::check_shader(file, &text, &architectures)),
            Some("md") => {
                findings.extend(links::check(&root, file, &text));
                findings.extend(claims::check(&root, file, &text));
            }
            _ => {}
        }
    }
    findings.extend(sources.check());
    findings.extend(quotes.check());
    let metadata = shell::json(shell::cargo().args([
        "metadata",
        "--no-deps",
        "--format-version",
        "1",
        "--offline",
    ]))?;
    findings.extend(layers::check(&metadata));
    findings.extend(crates::check(&root, &metadata));
    for name in images::stale(&root, &image_sources(&root)?)? {
        let message = format!("`{name}` is not what its sources give: cargo xtask kernels cuda");
        findings.push(Finding::new(Path::new(images::LIST), 0, message));
    }
    for message in resources::stale(&root)? {
        let message = format!("{message}: cargo xtask kernels cuda");
        findings.push(Finding::new(Path::new(images::RESOURCES), 0, message));
    }
    if web::stale(&root)? {
        let message = "the page is not what its sources give: cargo xtask web";
        findings.push(Finding::new(Path::new(web::BUILT), 0, message));
    }
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("tidy: {} of the house rules' checks failed", findings.len());
    }
    println!("tidy: {} files, all rules hold", files.len());
    Ok(())
}

/// All files that are, or would be, committed; every file outside build folders without git. Those of vendored crates are as
/// their authors wrote them.
fn files() -> Result<Vec<PathBuf>> {
    let mut files = all_files()?;
    files.retain(|file| !(file.starts_with(VENDORED) && file.components().count() > 2));
    Ok(files)
}

/// The same with those of vendored crates.
pub(crate) fn all_files() -> Result<Vec<PathBuf>> {
    let listed = shell::output(shell::command("git").args([
        "ls-files",
        "--cached",
        "--others",
        "--exclude-standard",
    ]));
    if let Ok(listed) = listed {
        return Ok(listed.lines().map(PathBuf::from).collect());
    }
    let root = shell::root();
    let mut files = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if entry.file_type()?.is_dir() {
                if !["target", ".cache", ".git", "node_modules"].iter().any(|&skip| name == *skip) {
                    folders.push(entry.path());
                }
            } else if let Ok(path) = entry.path().strip_prefix(&root) {
                files.push(path.to_path_buf());
            }
        }
    }
    Ok(files)
}
