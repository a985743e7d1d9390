//! The committed images of CUDA kernels, and the list of hashes that ties them to their sources.
//!
//! The list has the form that `sha256sum --check` reads, from the folder of the crate.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// The crate whose kernels these are.
const CRATE: &str = "crates/kernels-cuda";
/// Its sources.
pub(crate) const SOURCES: &str = "crates/kernels-cuda/cuda";
/// What was compiled from them.
pub(crate) const IMAGES: &str = "crates/kernels-cuda/image";
/// The hashes of both.
pub(crate) const LIST: &str = "crates/kernels-cuda/image/SHA256SUMS";

/// The image of a source.
pub(crate) fn image_name(source: &Path) -> PathBuf {
    PathBuf::from(source.file_name().unwrap_or_default()).with_extension("ptx.gz")
}

/// The files of a folder, by name.
pub(crate) fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut files = entries.map(|e| Ok(e?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.is_file());
    files.sort();
    Ok(files)
}

/// The SHA-256 of a file in hexadecimal digits.
pub(crate) fn hash(file: &Path) -> Result<String> {
    let bytes = fs::read(file).with_context(|| file.display().to_string())?;
    Ok(Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect())
}

/// The list as it should be: a line for every source, header and image.
pub(crate) fn list(root: &Path) -> Result<String> {
    let mut text = String::new();
    for folder in [SOURCES, IMAGES] {
        for file in files(&root.join(folder))? {
            if file == root.join(LIST) {
                continue;
            }
            let name = file.strip_prefix(root.join(CRATE))?.to_string_lossy().replace('\\', "/");
            text += &format!("{}  {name}\n", hash(&file)?);
        }
    }
    Ok(text)
}

/// The lines that differ between the committed list and what the files are.
pub(crate) fn stale(root: &Path) -> Result<Vec<String>> {
    let listed = fs::read_to_string(root.join(LIST)).with_context(|| LIST.to_owned())?;
    Ok(differing(&listed, &list(root)?))
}

fn differing(listed: &str, found: &str) -> Vec<String> {
    let missing = |a: &str, b: &str| -> Vec<String> {
        let names = |line: &str| line.split_whitespace().nth(1).unwrap_or(line).to_owned();
        a.lines().filter(|line| !b.lines().any(|l| l == *line)).map(names).collect()
    };
    let mut names = missing(found, listed);
    names.extend(missing(listed, found));
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_changed_came_or_went_are_named() {
        let listed = "aa  cuda/a.cu\nbb  cuda/b.cu\ncc  image/a.ptx.gz\n";
        let cases: [(&str, &[&str]); 4] = [
            (listed, &[]),
            ("ab  cuda/a.cu\nbb  cuda/b.cu\ncc  image/a.ptx.gz\n", &["cuda/a.cu"]),
            ("aa  cuda/a.cu\ncc  image/a.ptx.gz\n", &["cuda/b.cu"]),
            (&format!("{listed}dd  image/b.ptx.gz\n"), &["image/b.ptx.gz"]),
        ];
        for (found, expected) in cases {
            assert_eq!(differing(listed, found), expected, "{found}");
        }
    }
}
