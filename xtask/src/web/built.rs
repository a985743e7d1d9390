//! The committed files of the page, and the list that ties them to their sources.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};
use sha2::{Digest, Sha256};

use super::WEB;

/// Where the server includes the files from.
pub(crate) const FOLDER: &str = "crates/server/src/page";
/// Hashes of the sources together, and of each file.
const LIST: &str = "SHA256SUMS";
/// The files as they are built, and whether they are committed compressed.
const FILES: [(&str, bool); 5] = [
    ("index.html", false),
    ("licenses.txt", false),
    ("markdown.js", true),
    ("math.js", true),
    ("pdf.js", true),
];

/// The name under which a file is committed.
fn committed(name: &str, is_compressed: bool) -> String {
    if is_compressed { format!("{name}.gz") } else { name.to_owned() }
}

/// The committed file as it was built; empty if there is none.
fn content(root: &Path, name: &str, is_compressed: bool) -> Result<Vec<u8>> {
    let path = root.join(FOLDER).join(committed(name, is_compressed));
    let Ok(bytes) = fs::read(&path) else { return Ok(Vec::new()) };
    if !is_compressed {
        return Ok(bytes);
    }
    let mut content = Vec::new();
    GzDecoder::new(&bytes[..])
        .read_to_end(&mut content)
        .with_context(|| path.display().to_string())?;
    Ok(content)
}

/// The committed files that differ from those in `folder`, by name.
pub(super) fn differing(root: &Path, folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for (name, is_compressed) in FILES {
        let wanted = fs::read(folder.join(name)).with_context(|| name.to_owned())?;
        if content(root, name, is_compressed)? != wanted {
            names.push(committed(name, is_compressed));
        }
    }
    Ok(names)
}

/// Takes over the files in `folder` that differ, and writes the list.
pub(super) fn write(root: &Path, folder: &Path) -> Result<()> {
    let changed = differing(root, folder)?;
    for (name, is_compressed) in FILES {
        let own = committed(name, is_compressed);
        if !changed.contains(&own) {
            continue;
        }
        let mut bytes = fs::read(folder.join(name))?;
        if is_compressed {
            let mut gzip = GzBuilder::new().write(Vec::new(), Compression::best());
            gzip.write_all(&bytes)?;
            bytes = gzip.finish()?;
        }
        fs::write(root.join(FOLDER).join(own), bytes)?;
    }
    fs::write(root.join(FOLDER).join(LIST), list(root)?)?;
    Ok(())
}

/// The committed files with their sizes in bytes.
pub(super) fn sizes(root: &Path) -> Result<Vec<(String, u64)>> {
    let size = |(name, is_compressed): (&str, bool)| {
        let own = committed(name, is_compressed);
        let bytes = fs::metadata(root.join(FOLDER).join(&own))?.len();
        Ok((own, bytes))
    };
    FILES.into_iter().map(size).collect()
}

/// What is not as the list has it.
pub(crate) fn stale(root: &Path) -> Result<bool> {
    let listed = fs::read_to_string(root.join(FOLDER).join(LIST)).unwrap_or_default();
    Ok(listed != list(root)?)
}

/// The list, in the form that `sha256sum --check` reads.
fn list(root: &Path) -> Result<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_on_either_side_is_seen() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for name in ["build.mjs", "package.json", "package-lock.json", "src/a.ts", "src/ui/b.ts"] {
            put(&format!("{WEB}/{name}"), name);
        }
        for (name, _) in FILES {
            put(&format!("built/{name}"), name);
        }
        fs::create_dir_all(root.join(FOLDER)).unwrap();
        assert!(stale(root).unwrap());
        write(root, &root.join("built")).unwrap();
        assert!(!stale(root).unwrap());
        assert_eq!(content(root, "math.js", true).unwrap(), b"math.js");
        assert!(differing(root, &root.join("built")).unwrap().is_empty());
        put(&format!("{WEB}/src/ui/b.ts"), "other");
        assert!(stale(root).unwrap());
        put(&format!("{WEB}/src/ui/b.ts"), "src/ui/b.ts");
        put(&format!("{FOLDER}/index.html"), "other");
        assert!(stale(root).unwrap());
        assert_eq!(differing(root, &root.join("built")).unwrap(), ["index.html"]);
    }
}
