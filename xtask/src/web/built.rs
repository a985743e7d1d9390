//! The list that ties the committed files of the page to their sources.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::WEB;

/// Where the server includes the files from.
pub(crate) const FOLDER: &str = "crates/server/src/page";
/// Hashes of the sources together, and of each file.
pub(super) const LIST: &str = "SHA256SUMS";
/// The files as they are built, and whether they are committed compressed.
pub(super) const FILES: [(&str, bool); 5] = [
    ("index.html", false),
    ("licenses.txt", false),
    ("markdown.js", true),
    ("math.js", true),
    ("pdf.js", true),
];

/// The name under which a file is committed.
pub(super) fn committed(name: &str, is_compressed: bool) -> String {
    if is_compressed { format!("{name}.gz") } else { name.to_owned() }
}

/// What is not as the list has it.
pub(crate) fn stale(root: &Path) -> Result<bool> {
    let listed = fs::read_to_string(root.join(FOLDER).join(LIST)).unwrap_or_default();
    Ok(listed != list(root)?)
}

/// The list, in the form that `sha256sum --check` reads.
pub(super) fn list(root: &Path) -> Result<String> {
    let mut text = format!("# made of {}\n", hash_of_sources(&root.join(WEB))?);
    for (name, is_compressed) in FILES {
        let own = committed(name, is_compressed);
        let bytes = fs::read(root.join(FOLDER).join(&own)).unwrap_or_default();
        text += &format!("{}  {own}\n", hex(&bytes));
    }
    Ok(text)
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One hash of all that the page is made of: names and contents.
fn hash_of_sources(web: &Path) -> Result<String> {
    let mut files = vec!["build.mjs".into(), "package-lock.json".into(), "package.json".into()];
    let mut folders = vec![PathBuf::from("src")];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(web.join(&folder)).with_context(|| folder.display().to_string());
        for entry in entries? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    let mut all = String::new();
    for file in files {
        let bytes = fs::read(web.join(&file)).with_context(|| file.display().to_string())?;
        let name: Vec<_> = file.iter().map(|part| part.to_string_lossy()).collect();
        all += &format!("{}  {}\n", hex(&bytes), name.join("/"));
    }
    Ok(hex(all.as_bytes()))
}
