//! The archive: a `.zip` for Windows, a `.tar.gz` for others. The same files give the same bytes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::Release;
use crate::shell;

impl Release {
    /// Writes the archive.
    pub(super) fn archive(&self) -> Result<()> {
        let stage = tempfile::tempdir()?;
        let folder = stage.path().join(self.name());
        fs::create_dir(&folder)?;
        let program = self.program.file_name().context("a program has a name")?;
        fs::copy(&self.program, folder.join(program))?;
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            fs::copy(shell::root().join(file), folder.join(file))?;
        }
        for part in ["completions", "man"] {
            let from = self.extras.path().join(part);
            if from.exists() {
                copy_files(&from, &folder.join(part))?;
            }
        }
        if self.is_windows() {
            let file = File::create_new(self.out.join(format!("{}.zip", self.name())))?;
            return zip(stage.path(), file);
        }
        let mut tar = shell::command("tar");
        tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"]);
        tar.args(["--mode=u+w,go=rX", "-I", "gzip -9n", "-cf"]);
        tar.arg(self.out.join(format!("{}.tar.gz", self.name())));
        shell::check(tar.arg("-C").arg(stage.path()).arg(self.name()))
    }
}

/// Packs the files below a folder in the order of their names, without times.
fn zip(root: &Path, to: impl Write + io::Seek) -> Result<()> {
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Deflated)
        .compression_level(Some(9))
        .last_modified_time(zip::DateTime::default());
    let mut zip = ZipWriter::new(to);
    for path in files(root)? {
        let parts = path.strip_prefix(root)?.iter().map(|part| part.to_string_lossy());
        zip.start_file(parts.collect::<Vec<_>>().join("/"), options)?;
        io::copy(&mut File::open(&path)?, &mut zip)?;
    }
    zip.finish()?;
    Ok(())
}

/// The files below a folder, by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() { files.extend(self::files(&path)?) } else { files.push(path) }
    }
    files.sort();
    Ok(files)
}

/// Copies the files of a folder into a new one.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_files_give_the_same_zip() {
        let folder = tempfile::tempdir().unwrap();
        let pack = || {
            let mut bytes = io::Cursor::new(Vec::new());
            zip(folder.path(), &mut bytes).unwrap();
            bytes.into_inner()
        };
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        fs::create_dir_all(folder.path().join("r/completions")).unwrap();
        write("r/realizar.exe", "MZ");
        write("r/completions/a", "complete");
        let first = pack();
        write("r/realizar.exe", "MZ");
        assert_eq!(first, pack());
        let mut archive = zip::ZipArchive::new(io::Cursor::new(first)).unwrap();
        let names: Vec<_> = archive.file_names().map(|name| name.unwrap().into_owned()).collect();
        assert_eq!(names, ["r/completions/a", "r/realizar.exe"]);
        let text = io::read_to_string(archive.by_name("r/completions/a").unwrap()).unwrap();
        assert_eq!(text, "complete");
    }
}
