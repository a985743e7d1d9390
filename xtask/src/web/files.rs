//! The committed files of the page: compared with those that are built, and replaced by them.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;

use anyhow::{Context, Result};
use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};

use super::built::{FILES, FOLDER, LIST, committed, list};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::{WEB, stale};

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
