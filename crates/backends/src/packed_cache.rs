//! The file that keeps packed weights from one start to the next.
//!
//! It holds a header and the packed memory exactly as it is used, so that a later start
//! maps it and packs nothing. The header has a key of the layout and the model: its
//! files' sizes and times, the weights of its fingerprint, and of every matrix its place
//! and a page of its bytes. No other setting of the model changes what is packed. A
//! file that does not fit to the byte is never used, but rewritten; like a model
//! file it is not read as a whole, so single bits that flip on the disk are not noticed.
//! Whoever can write to the file decides what the model computes, so one that others may write
//! to is not used either (see `own_file.rs`).
//!
//! What is in the memory is the backend's business; nothing here knows a layout.

use crate::Error;
use crate::Fingerprint;
use realizar_base::own_file;
use realizar_formats::Bytes;
use realizar_model::checkpoint::Checkpoint;
use sha2::{Digest, Sha256};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Where packed weights are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PackedCache {
    /// Nowhere: they are packed at every start.
    #[default]
    Off,
    /// In this directory.
    Dir(PathBuf),
    /// Beside the model, or in the directory `fallback` where that cannot be written to.
    Auto {
        /// The other directory.
        fallback: PathBuf,
    },
}

/// The files that may hold the packed weights of one model.
#[derive(Debug, Clone)]
pub struct PackedFiles {
    paths: Vec<PathBuf>, // in the order in which they are tried
    /// Of the model's files and weights.
    identity: Sha256,
}

/// A key of packed memory: equal only if its contents are.
pub(crate) type Key = [u8; 32];

/// The first bytes of a file, and the version of its header.
const MAGIC: [u8; 16] = *b"realizar packed1";
/// Magic, key, length, hash of the samples.
const HEADER_LEN: usize = 16 + 32 + 8 + 32;
/// Where the packed memory begins: on a page of every system.
const DATA_AT: usize = 1 << 16;
/// Bytes that are sampled at a place.
const SAMPLE_LEN: usize = 4096;
/// Bytes from sample to sample of packed memory.
const SAMPLE_STEP: usize = 8 << 20;

impl PackedCache {
    /// The files of a folder that processes which were killed left behind while they packed weights.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn abandoned_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let (name, path) = (entry.file_name(), entry.path());
            let is_packed = name.to_string_lossy().contains(".packed.");
            if is_packed && own_file::is_temporary(&name, None) && own_file::is_abandoned(&path) {
                paths.push(path);
            }
        }
        Ok(paths)
    }

    /// The files for a model, if packed weights are to be kept.
    ///
    /// # Errors
    /// If the metadata of a file of the model cannot be read.
    pub fn files(
        &self,
        checkpoint: &Checkpoint,
        model: &Fingerprint,
    ) -> Result<Option<PackedFiles>, Error> {
        let path = checkpoint.path();
        let dirs: [Option<&Path>; 2] = match self {
            Self::Off => return Ok(None),
            Self::Dir(dir) => [None, Some(dir)],
            Self::Auto { fallback } => [path.parent(), Some(fallback)],
        };
        let mut identity = Sha256::new();
        for path in checkpoint.file_paths() {
            let io = |source| Error::Io { path: path.to_owned(), source };
            let info = fs::metadata(path).map_err(io)?;
            let changed =
                info.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            identity.update(info.len().to_le_bytes());
            identity.update(changed.map_or(0, |time| time.as_nanos()).to_le_bytes());
        }
        identity.update(&model.weights);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Elsewhere, models of one name from two directories must not meet.
        let whole = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let hash = Sha256::digest(whole.as_os_str().as_encoded_bytes());
        let hash: String = hash[..6].iter().map(|byte| format!("{byte:02x}")).collect();
        let names = [format!("{name}.packed"), format!("{name}-{hash}.packed")];
        let paths = dirs.into_iter().zip(names);
        let paths = paths.filter_map(|(dir, name)| Some(dir?.join(name))).collect();
        Ok(Some(PackedFiles { paths, identity }))
    }
}

/// Adds the bytes at the middle of `data` to a hash.
fn sample(hash: &mut Sha256, data: &[u8]) {
    let len = data.len().min(SAMPLE_LEN);
    // Within one page of a mapped file, where the data begins on one.
    let start = (data.len() / 2).next_multiple_of(SAMPLE_LEN).min(data.len() - len);
    hash.update(&data[start..][..len]);
}

/// The hash of samples all over packed memory.
fn hash_samples(data: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    data.chunks(SAMPLE_STEP).for_each(|chunk| sample(&mut hash, chunk));
    hash.finalize().into()
}

fn header(key: &Key, data: &[u8]) -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    header[..16].copy_from_slice(&MAGIC);
    header[16..48].copy_from_slice(key);
    header[48..56].copy_from_slice(&(data.len() as u64).to_le_bytes());
    header[56..].copy_from_slice(&hash_samples(data));
    header
}

impl PackedFiles {
    /// Begins the key of packed memory of a layout; see [`KeyBuilder::matrix`].
    pub(crate) fn key(&self, layout: &str) -> KeyBuilder {
        let mut hash = self.identity.clone();
        hash.update(layout.as_bytes());
        KeyBuilder(hash)
    }

    /// The `len` bytes kept under `key`, mapped. A file that holds something else, or is
    /// damaged, is passed over with a warning. What a killed process left of such a file is removed.
    pub(crate) fn open(&self, key: &Key, len: usize) -> Option<Bytes> {
        self.paths.iter().for_each(|path| own_file::remove_abandoned(path));
        self.paths.iter().filter(|path| path.exists()).find_map(|path| match read(path, key, len) {
            Ok(data) => {
                tracing::info!("using packed weights from {}", path.display());
                Some(data)
            }
            Err(reason) => {
                let path = path.display();
                tracing::warn!("ignoring {path}: {reason}; packing the weights again");
                None
            }
        })
    }

    /// Writes `data` to the first file that can be written to. A file appears only when it
    /// is whole. That none can be written is a warning: the model runs without.
    pub(crate) fn write(&self, key: &Key, data: &[u8]) {
        for (i, path) in self.paths.iter().enumerate() {
            let shown = path.display();
            match write(path, key, data) {
                Ok(()) => return tracing::info!("saved packed weights to {shown}"),
                Err(error) => {
                    let next = match self.paths.get(i + 1) {
                        Some(next) => format!("trying {}", next.display()),
                        None => "the weights are packed again at every start".to_owned(),
                    };
                    tracing::warn!("cannot write {shown}: {error}; {next}");
                }
            }
        }
    }
}

/// Collects what a key depends on.
pub(crate) struct KeyBuilder(Sha256);

impl KeyBuilder {
    /// Adds a matrix: its description, and a page of its bytes.
    pub(crate) fn matrix(&mut self, description: &str, data: &[u8]) {
        self.0.update((description.len() as u64).to_le_bytes());
        self.0.update(description.as_bytes());
        sample(&mut self.0, data);
    }

    /// The key.
    pub(crate) fn finish(self) -> Key {
        self.0.finalize().into()
    }
}

/// The data of a file, if it is what the key says.
fn read(path: &Path, key: &Key, len: usize) -> Result<Bytes, String> {
    let file = own_file::open(path).map_err(|refusal| refusal.to_string())?;
    let file = Bytes::map_file(&file, path).map_err(|error| error.to_string())?;
    let Some(header_found) = file.get(..HEADER_LEN).filter(|header| header[..16] == MAGIC) else {
        return Err("it is not a packed-weights file".to_owned());
    };
    if header_found[16..48] != *key {
        return Err("it was made from another model, or by another version".to_owned());
    }
    // The length comes from the model; what the file says is only compared with it.
    let n_bytes = DATA_AT.saturating_add(len);
    if file.len() != n_bytes {
        return Err(format!("it is damaged: expected {n_bytes} bytes, found {}", file.len()));
    }
    let data = file.slice(DATA_AT..);
    let expected = header(key, &data);
    file.check().map_err(|error| error.to_string())?;
    if *header_found != expected {
        return Err("it is damaged".to_owned());
    }
    Ok(data)
}

/// Writes a file, which appears when it is whole.
fn write(path: &Path, key: &Key, data: &[u8]) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    // The owner of the model's folder may serve it to others, who only read.
    own_file::write(path, 0o644, |file| {
        let mut first = vec![0; DATA_AT];
        first[..HEADER_LEN].copy_from_slice(&header(key, data));
        file.write_all(&first)?;
        file.write_all(data)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(dir: &Path, names: &[&str]) -> PackedFiles {
        let paths = names.iter().map(|name| dir.join(name)).collect();
        PackedFiles { paths, identity: Sha256::new() }
    }

    fn key_of(files: &PackedFiles, seed: u8) -> Key {
        let mut key = files.key("layout");
        key.matrix("w", &[seed; 100]);
        key.finish()
    }

    #[test]
    fn what_was_written_is_mapped() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path(), &["sub/a.packed"]);
        let key = key_of(&files, 1);
        let data: Vec<u8> = (0..100_000).map(|i| (i % 251) as u8).collect();
        assert!(files.open(&key, data.len()).is_none());
        files.write(&key, &data);
        let found = files.open(&key, data.len()).unwrap();
        assert!(found.is_mapped());
        assert!(found[..] == data);
        assert!(found.as_ptr().addr().is_multiple_of(4096));
        assert!(files.open(&key_of(&files, 2), data.len()).is_none(), "another key");
        assert!(files.open(&key, data.len() - 1).is_none(), "another length");
        let names: Vec<_> = fs::read_dir(dir.path().join("sub")).unwrap().collect();
        assert_eq!(names.len(), 1, "no temporary file is left");
    }

    #[test]
    fn damaged_files_are_refused_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path(), &["a.packed"]);
        let key = key_of(&files, 1);
        let data = vec![7; 10_000];
        files.write(&key, &data);
        let path = dir.path().join("a.packed");
        let whole = fs::read(&path).unwrap();
        let flipped = |at: usize| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes
        };
        for (bytes, reason) in [
            (Vec::new(), "not a packed-weights file"),
            (b"GGUF".to_vec(), "not a packed-weights file"),
            (whole[..HEADER_LEN - 1].to_vec(), "not a packed-weights file"),
            (flipped(0), "not a packed-weights file"),
            (flipped(20), "another model"),
            (whole[..HEADER_LEN].to_vec(), "expected 75536 bytes, found 88"),
            (whole[..whole.len() - 1].to_vec(), "expected 75536 bytes, found 75535"),
            ([&whole[..], &[0]].concat(), "expected 75536 bytes, found 75537"),
            (flipped(50), "damaged"),
            (flipped(60), "damaged"),
            (flipped(DATA_AT + 6000), "damaged"),
        ] {
            fs::write(&path, &bytes).unwrap();
            let error = read(&path, &key, data.len()).unwrap_err();
            assert!(error.contains(reason), "{error}: expected {reason}");
            files.write(&key, &data);
            assert!(files.open(&key, data.len()).unwrap()[..] == data);
        }
    }

    #[test]
    fn what_a_killed_process_left_is_found_and_goes_at_the_next_start() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path(), &["a.packed"]);
        let key = key_of(&files, 1);
        files.write(&key, &[1, 2, 3]);
        let left = dir.path().join("a.packed.77.tmp");
        for name in ["a.packed.77.tmp", "b.gguf.77.tmp", "b.packed.77"] {
            fs::write(dir.path().join(name), "left").unwrap();
        }
        let abandoned = || PackedCache::abandoned_files(dir.path()).unwrap();
        assert_eq!(abandoned(), std::slice::from_ref(&left));
        assert_eq!(files.open(&key, 3).unwrap()[..], [1, 2, 3]);
        assert!(!left.exists());
        assert!(abandoned().is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_may_write_is_refused_and_replaced() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path(), &["a.packed"]);
        let (key, path) = (key_of(&files, 1), dir.path().join("a.packed"));
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        for open_mode in [0o664, 0o646, 0o666] {
            files.write(&key, &[1, 2, 3]);
            assert_eq!(files.open(&key, 3).unwrap()[..], [1, 2, 3]);
            mode(open_mode);
            let error = read(&path, &key, 3).unwrap_err();
            assert!(error.contains(&format!("may write to it (mode 0{open_mode:o})")), "{error}");
            assert!(files.open(&key, 3).is_none());
        }
        mode(0o640);
        assert!(files.open(&key, 3).is_some());
    }

    #[test]
    fn the_next_place_is_used_where_the_first_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        // A file stands where a directory would have to be.
        fs::write(dir.path().join("file"), "x").unwrap();
        let files = files(dir.path(), &["file/a.packed", "b.packed"]);
        let key = key_of(&files, 1);
        files.write(&key, &[1, 2, 3]);
        assert!(dir.path().join("b.packed").is_file());
        assert_eq!(files.open(&key, 3).unwrap()[..], [1, 2, 3]);
    }
}
