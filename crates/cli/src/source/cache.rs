//! The model cache: one directory, its layout, its locks and the manifest beside every model.
//!
//! ```text
//! <cache>/models/<key>/<file>          one folder per pulled model
//! <cache>/models/<key>/manifest.json   name, source, length, SHA-256, licence, time
//! <cache>/staging/<key>/               a pull in progress; moved into models/ by one rename
//! <cache>/staging/<key>.partial        an interrupted download that the next pull resumes
//! <cache>/staging/<key>.parts/         the same for a model of several files
//! <cache>/locks/<key>.lock             held while a model is pulled
//! <cache>/packed/                      packed weights of models in folders that cannot be written to
//! <cache>/history.txt                  lines typed in `realizar chat`
//! <cache>/launch/<agent>/              what agents keep that `realizar launch` starts
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow, bail};
use realizar_formats::{open_regular, read_regular};
use realizar_runtime::PackedCache;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::names::relative;
use super::partial::open_lock;

/// Bytes of a manifest.
const MAX_MANIFEST: usize = 8 << 20;

/// What is known about a pulled model; written once, when its checksum was verified.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// The argument that names the model, as `realizar run` takes it.
    pub(crate) name: String,
    /// The source it was fetched from, without what may be a secret.
    pub(crate) source: String,
    /// File inside the folder; `None` when the folder itself is the model.
    pub(crate) file: Option<String>,
    /// All files of a folder, and of a file that may have come in parts.
    #[serde(default)]
    pub(crate) files: Vec<FileOf>,
    /// Length of the file, or of all files of the folder.
    pub(crate) bytes: u64,
    /// SHA-256 of the file; `None` for a folder.
    pub(crate) sha256: Option<String>,
    /// Licence or terms, where the alias table knows them.
    pub(crate) licence: Option<String>,
    /// Seconds since the Unix epoch.
    pub(crate) pulled_at: u64,
}

/// One of several files of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileOf {
    /// Path inside the model's folder, with `/`.
    pub(crate) name: String,
    pub(crate) bytes: u64,
}

/// A model in the cache: its manifest and where it lies.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) manifest: Manifest,
    /// The file, or the folder of a model of several files.
    pub(crate) path: PathBuf,
}

/// Bytes of the cache's files.
#[derive(Debug, PartialEq)]
pub(crate) struct Usage {
    /// Of each model, by its name.
    pub(crate) models: Vec<(String, u64)>,
    /// Of interrupted pulls and those that run, and of weights that were being packed.
    pub(crate) unfinished: u64,
    /// Of packed weights that lie beside no model.
    pub(crate) packed: u64,
}

/// Handle on the cache directory; nothing is created before it is needed.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    root: PathBuf,
}

/// Held while a model is pulled; the lock ends with the value.
pub(crate) struct Lock {
    _file: File,
}

impl Cache {
    /// The directory of `--cache-dir`, `$REALIZAR_CACHE`, `$XDG_CACHE_HOME/realizar` or
    /// `~/.cache/realizar`, the first that is set.
    pub(crate) fn locate(flag: Option<&Path>) -> Result<Self> {
        Self::locate_with(flag, |name| std::env::var_os(name).map(PathBuf::from))
    }

    fn locate_with(flag: Option<&Path>, var: impl Fn(&str) -> Option<PathBuf>) -> Result<Self> {
        let set = |name: &str| var(name).filter(|value| !value.as_os_str().is_empty());
        let root = if let Some(dir) = flag {
            dir.to_owned()
        } else if let Some(dir) = set("REALIZAR_CACHE") {
            dir
        } else if let Some(dir) = set("XDG_CACHE_HOME") {
            dir.join("realizar")
        } else if let Some(home) = set("HOME").or_else(|| set("USERPROFILE")) {
            home.join(".cache").join("realizar")
        } else {
            bail!(
                "there is no directory for downloaded models, because HOME is not set: set HOME or \
                 REALIZAR_CACHE, or give --cache-dir"
            );
        };
        let absolute = std::path::absolute(&root);
        let root = absolute.with_context(|| format!("cannot locate {}", root.display()))?;
        Ok(Self { root })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn packed_dir(&self) -> PathBuf {
        self.root.join("packed")
    }

    pub(crate) fn history_file(&self) -> PathBuf {
        self.root.join("history.txt")
    }

    pub(crate) fn launch_dir(&self) -> PathBuf {
        self.root.join("launch")
    }

    fn model_dir(&self, key: &str) -> PathBuf {
        self.root.join("models").join(key)
    }

    /// Where the download of `key` is kept until it is complete.
    pub(crate) fn partial_file(&self, key: &str) -> PathBuf {
        self.root.join("staging").join(format!("{key}.partial"))
    }

    /// Where the downloads of a model of several files are kept until all are complete.
    pub(crate) fn partial_dir(&self, key: &str) -> PathBuf {
        self.root.join("staging").join(format!("{key}.parts"))
    }

    /// The model stored under `key`, if it is complete: its manifest can be read and its files
    /// have the lengths that the manifest states. The checksum was verified when it was pulled.
    pub(crate) fn get(&self, key: &str) -> Option<Entry> {
        let dir = self.model_dir(key);
        let text = read_regular(&dir.join("manifest.json"), MAX_MANIFEST).ok()?;
        let manifest: Manifest = serde_json::from_slice(&text).ok()?;
        let find = |name: &str, bytes: u64| {
            let path = dir.join(relative(name).ok()?);
            (fs::metadata(&path).ok()?.len() == bytes).then_some(path)
        };
        if !manifest.files.iter().all(|file| find(&file.name, file.bytes).is_some()) {
            return None;
        }
        let path = match &manifest.file {
            Some(file) => {
                let listed = manifest.files.iter().find(|listed| listed.name == *file);
                find(file, listed.map_or(manifest.bytes, |listed| listed.bytes))?
            }
            None if manifest.files.is_empty() => return None,
            None => dir,
        };
        Some(Entry { manifest, path })
    }

    /// Moves the model that an earlier build stored under `earlier` to `key`, if it is complete, came
    /// from `source` and still has its checksum: the earlier names could be those of several sources.
    /// The caller holds the lock of `key`.
    pub(crate) fn adopt(&self, earlier: &str, key: &str, source: &str) -> Result<Option<Entry>> {
        let Some(Entry { manifest, path }) = self.get(earlier) else { return Ok(None) };
        if manifest.source != source || manifest.sha256.is_none() {
            return Ok(None);
        }
        if hash_file(&path).ok().map(|(_, sha256)| sha256) != manifest.sha256 {
            return Ok(None);
        }
        let (from, to) = (self.model_dir(earlier), self.model_dir(key));
        remove_dir(&to)?;
        fs::rename(&from, &to)
            .with_context(|| format!("cannot move {} to {}", from.display(), to.display()))?;
        Ok(self.get(key))
    }

    /// All complete models, ordered by name.
    pub(crate) fn list(&self) -> Result<Vec<Entry>> {
        let keys = self.keys()?;
        let mut entries: Vec<_> = keys.iter().filter_map(|key| self.get(key)).collect();
        entries.sort_by(|a, b| a.manifest.name.cmp(&b.manifest.name));
        Ok(entries)
    }

    /// Removes the model stored under `key` and what interrupted pulls of it left; none if there is no such model.
    /// The caller holds its lock.
    pub(crate) fn remove(&self, key: &str) -> Result<Option<Manifest>> {
        let Some(Entry { manifest, .. }) = self.get(key) else { return Ok(None) };
        // One rename, so that no other process sees half of it.
        let (from, to) = (self.model_dir(key), self.root.join("staging").join(key));
        create_dir(&self.root.join("staging"))?;
        remove_dir(&to)?;
        fs::rename(&from, &to)
            .with_context(|| format!("cannot move {} to {}", from.display(), to.display()))?;
        remove_dir(&to)?;
        Ok(Some(manifest))
    }

    /// The keys of the complete models of this name, as `list` prints it.
    pub(crate) fn keys_of(&self, name: &str) -> Result<Vec<String>> {
        let keys = self.keys()?;
        let is_named =
            |key: &String| self.get(key).is_some_and(|entry| entry.manifest.name == name);
        Ok(keys.into_iter().filter(is_named).collect())
    }

    /// Removes what interrupted pulls left, but for those that run, and what is left of packing weights; returns its bytes.
    pub(crate) fn remove_unfinished(&self) -> Result<u64> {
        let mut bytes = 0;
        for path in children(&self.root.join("staging"))? {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let key = name.strip_suffix(".partial").or(name.strip_suffix(".parts")).unwrap_or(name);
            let Some(_lock) = self.try_lock(key)? else { continue };
            bytes += size_of_tree(&path)?;
            let removed =
                if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.with_context(|| format!("cannot remove {}", path.display()))?;
        }
        for path in self.abandoned()? {
            bytes += size_of_tree(&path)?;
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(bytes)
    }

    /// Files that killed processes left while they packed weights.
    fn abandoned(&self) -> Result<Vec<PathBuf>> {
        let mut dirs: Vec<_> = self.keys()?.iter().map(|key| self.model_dir(key)).collect();
        dirs.push(self.packed_dir());
        let mut paths = Vec::new();
        for dir in dirs.iter().filter(|dir| dir.is_dir()) {
            let found = PackedCache::abandoned_files(dir);
            paths.extend(found.with_context(|| format!("cannot read {}", dir.display()))?);
        }
        Ok(paths)
    }

    /// What the cache takes on the disk.
    pub(crate) fn usage(&self) -> Result<Usage> {
        // Unfinished files belong to no model.
        let mut unfinished = size_of_tree(&self.root.join("staging"))?;
        let abandoned = self.abandoned()?;
        let mut size_of = |dir: &Path| {
            let mut bytes = size_of_tree(dir)?;
            for path in abandoned.iter().filter(|path| path.parent() == Some(dir)) {
                let left = size_of_tree(path)?;
                (bytes, unfinished) = (bytes - left, unfinished + left);
            }
            Ok::<_, anyhow::Error>(bytes)
        };
        let mut models = Vec::new();
        for key in self.keys()? {
            let name = self.get(&key).map_or_else(|| key.clone(), |entry| entry.manifest.name);
            models.push((name, size_of(&self.model_dir(&key))?));
        }
        let packed = size_of(&self.packed_dir())?;
        Ok(Usage { models, unfinished, packed })
    }

    /// The names of the folders of models, whole or not.
    fn keys(&self) -> Result<Vec<String>> {
        let paths = children(&self.root.join("models"))?;
        let names = paths.iter().filter_map(|path| path.file_name().and_then(|name| name.to_str()));
        Ok(names.map(str::to_owned).collect())
    }

    /// Takes the lock of `key` unless another process holds it.
    fn try_lock(&self, key: &str) -> Result<Option<Lock>> {
        let (file, path) = self.lock_file(key)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => {
                Err(e).with_context(|| format!("cannot lock {}", path.display()))
            }
        }
    }

    fn lock_file(&self, key: &str) -> Result<(File, PathBuf)> {
        let dir = self.root.join("locks");
        create_dir(&dir)?;
        let path = dir.join(format!("{key}.lock"));
        let file = open_lock(&path).with_context(|| format!("cannot lock {}", path.display()))?;
        Ok((file, path))
    }

    /// Takes the lock of `key`, waiting for another process that holds it; `waiting` is called
    /// once before the wait.
    pub(crate) fn lock(&self, key: &str, waiting: impl FnOnce()) -> Result<Lock> {
        let (file, path) = self.lock_file(key)?;
        let context = || format!("cannot lock {}", path.display());
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                waiting();
                file.lock().with_context(context)?;
            }
            Err(TryLockError::Error(e)) => return Err(e).with_context(context),
        }
        Ok(Lock { _file: file })
    }

    /// An empty staging folder for `key`; the caller holds its lock.
    pub(crate) fn stage(&self, key: &str) -> Result<Staging> {
        let dir = self.root.join("staging").join(key);
        remove_dir(&dir)?;
        create_dir(&dir.join("model"))?;
        Ok(Staging { dir, key: key.to_owned() })
    }

    /// Moves the staged model into place by one rename and returns where it now lies.
    pub(crate) fn install(&self, staging: &Staging, manifest: &Manifest) -> Result<Entry> {
        let from = staging.model_dir();
        let path = from.join("manifest.json");
        let text = serde_json::to_vec_pretty(manifest).context("cannot encode the manifest")?;
        File::create_new(&path)
            .and_then(|mut file| file.write_all(&text))
            .with_context(|| format!("cannot write {}", path.display()))?;
        let to = self.model_dir(&staging.key);
        create_dir(&self.root.join("models"))?;
        remove_dir(&to)?;
        fs::rename(&from, &to)
            .with_context(|| format!("cannot move {} to {}", from.display(), to.display()))?;
        self.get(&staging.key)
            .ok_or_else(|| anyhow!("{} is incomplete after the move", to.display()))
    }
}

/// A folder for one pull; removed with all it holds when the value ends.
pub(crate) struct Staging {
    dir: PathBuf,
    key: String,
}

impl Staging {
    /// Scratch space: what is left here is thrown away.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// What is written here becomes the model's folder.
    pub(crate) fn model_dir(&self) -> PathBuf {
        self.dir.join("model")
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.dir) {
            tracing::debug!("cannot remove {}: {e}", self.dir.display());
        }
    }
}

/// A file being written, with its length and SHA-256 so far.
pub(crate) struct HashedFile {
    path: PathBuf,
    file: File,
    hash: Sha256,
    bytes: u64,
}

impl HashedFile {
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file =
            File::create_new(path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { path: path.to_owned(), file, hash: Sha256::new(), bytes: 0 })
    }

    /// Appends all of `reader`; `each` is called with the length of every piece written.
    pub(crate) fn append(
        &mut self,
        reader: &mut dyn Read,
        what: &str,
        each: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let mut buffer = vec![0u8; 1 << 18];
        loop {
            let n = match reader.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e).with_context(|| format!("cannot read {what}")),
            };
            self.file
                .write_all(&buffer[..n])
                .with_context(|| format!("cannot write {}", self.path.display()))?;
            self.hash.update(&buffer[..n]);
            self.bytes += n as u64;
            each(n as u64);
        }
    }

    /// Flushes the file to disk; returns its length and its SHA-256 in hexadecimal.
    pub(crate) fn finish(self) -> Result<(u64, String)> {
        self.file.sync_all().with_context(|| format!("cannot write {}", self.path.display()))?;
        Ok((self.bytes, hex(&self.hash.finalize())))
    }
}

/// Length and SHA-256 of a file.
pub(crate) fn hash_file(path: &Path) -> Result<(u64, String)> {
    let context = || format!("cannot read {}", path.display());
    let mut file = open_regular(path).with_context(context)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 1 << 18];
    let mut bytes = 0;
    loop {
        let n = file.read(&mut buffer).with_context(context)?;
        if n == 0 {
            return Ok((bytes, hex(&hash.finalize())));
        }
        hash.update(&buffer[..n]);
        bytes += n as u64;
    }
}

/// Lower-case hexadecimal of `bytes`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Seconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

pub(crate) fn create_dir(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))
}

/// What a folder holds; nothing if there is no such folder.
fn children(dir: &Path) -> Result<Vec<PathBuf>> {
    let context = || format!("cannot read {}", dir.display());
    let read = match fs::read_dir(dir) {
        Ok(read) => read,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e).with_context(context),
    };
    read.map(|item| item.map(|item| item.path()).with_context(context)).collect()
}

/// Bytes of a file, or of all files below a folder; links are not followed.
fn size_of_tree(path: &Path) -> Result<u64> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(e) => return Err(e).with_context(|| format!("cannot read {}", path.display())),
    };
    if !found.is_dir() {
        return Ok(found.len());
    }
    children(path)?.iter().map(|path| size_of_tree(path)).sum()
}

fn remove_dir(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(e).with_context(|| format!("cannot remove {}", dir.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(file: Option<&str>, bytes: u64) -> Manifest {
        Manifest {
            name: "m".to_owned(),
            source: "pip:m==1".to_owned(),
            file: file.map(str::to_owned),
            files: Vec::new(),
            bytes,
            sha256: None,
            licence: None,
            pulled_at: 1,
        }
    }

    #[test]
    fn directory_by_precedence() {
        let check = |flag: Option<&str>, vars: &[(&str, &str)], want: Option<&str>| {
            let found = Cache::locate_with(flag.map(Path::new), |name| {
                vars.iter().find(|(key, _)| *key == name).map(|(_, v)| PathBuf::from(v))
            });
            assert_eq!(found.ok().map(|c| c.root), want.map(PathBuf::from));
        };
        let all = [("REALIZAR_CACHE", "/r"), ("XDG_CACHE_HOME", "/x"), ("HOME", "/h")];
        check(Some("/f"), &all, Some("/f"));
        check(None, &all, Some("/r"));
        check(None, &all[1..], Some("/x/realizar"));
        check(None, &all[2..], Some("/h/.cache/realizar"));
        check(None, &[("REALIZAR_CACHE", ""), ("HOME", "/h")], Some("/h/.cache/realizar"));
        check(None, &[], None);
    }

    #[test]
    fn install_is_seen_only_when_complete() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let cache = Cache { root: temp.path().to_owned() };
        assert!(cache.get("m").is_none());
        let staging = cache.stage("m").expect("stage");
        fs::write(staging.model_dir().join("a.gguf"), b"12345").expect("write");
        assert!(cache.get("m").is_none() && cache.list().expect("list").is_empty());
        let entry = cache.install(&staging, &manifest(Some("a.gguf"), 5)).expect("install");
        assert_eq!(fs::read(&entry.path).expect("read"), b"12345");
        drop(staging);
        assert!(!temp.path().join("staging/m").exists());

        // A second pull replaces the first one.
        let staging = cache.stage("m").expect("stage");
        fs::write(staging.model_dir().join("b.gguf"), b"123").expect("write");
        let entry = cache.install(&staging, &manifest(Some("b.gguf"), 3)).expect("install");
        assert!(entry.path.ends_with("models/m/b.gguf"));
        assert!(!temp.path().join("models/m/a.gguf").exists());
        assert_eq!(cache.list().expect("list").len(), 1);

        // A file of another length than the manifest's is not a model.
        fs::write(&entry.path, b"12").expect("write");
        assert!(cache.get("m").is_none());
    }

    #[test]
    fn a_model_of_an_earlier_build_is_taken_with_its_checksum() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let cache = Cache { root: temp.path().to_owned() };
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"; // of abc
        let install = |sha256: Option<&str>| {
            let staging = cache.stage("old").expect("stage");
            fs::write(staging.model_dir().join("m.gguf"), b"abc").expect("write");
            let sha256 = sha256.map(str::to_owned);
            let manifest = Manifest { sha256, ..manifest(Some("m.gguf"), 3) };
            cache.install(&staging, &manifest).expect("install");
        };
        let adopt =
            |source: &str| cache.adopt("old", "new", source).expect("it can be moved").is_some();
        install(None);
        assert!(!adopt("pip:m==1"));
        install(Some(&sha256.replace('b', "c")));
        assert!(!adopt("pip:m==1"));
        install(Some(sha256));
        assert!(!adopt("pip:m==2"));
        assert!(adopt("pip:m==1") && cache.get("old").is_none());
        assert!(cache.get("new").expect("it is there").path.ends_with("models/new/m.gguf"));
    }

    #[test]
    fn every_file_of_a_model_is_looked_for_inside_its_folder() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let cache = Cache { root: temp.path().to_owned() };
        fs::create_dir(temp.path().join("models")).expect("create");
        fs::write(temp.path().join("models/x"), b"123").expect("write");
        let check = |file: Option<&str>, files: &[(&str, u64)], want: Option<&str>| {
            let staging = cache.stage("m").expect("stage");
            let to = |name: &str| staging.model_dir().join(name);
            fs::create_dir(to("d")).expect("create");
            fs::write(to("d/a"), b"12345").expect("write");
            fs::write(to("d/b"), b"123").expect("write");
            let files = files.iter().map(|&(name, bytes)| FileOf { name: name.to_owned(), bytes });
            let manifest = Manifest { files: files.collect(), ..manifest(file, 3) };
            let path = cache.install(&staging, &manifest).ok().map(|entry| entry.path);
            assert_eq!(path, want.map(|path| temp.path().join(path)), "{manifest:?}");
        };
        check(Some("d/b"), &[], Some("models/m/d/b"));
        check(Some("d/a"), &[("d/a", 5), ("d/b", 3)], Some("models/m/d/a"));
        check(None, &[("d/a", 5), ("d/b", 3)], Some("models/m"));
        check(None, &[("d/a", 5), ("d/b", 4)], None);
        check(Some("d/a"), &[("d/a", 5), ("d/c", 3)], None);
        check(None, &[], None);
        check(Some("../x"), &[], None);
        check(Some("d/b"), &[("../x", 3)], None);
        // A file that would take the place of the manifest.
        let staging = cache.stage("m").expect("stage");
        fs::write(staging.model_dir().join("manifest.json"), b"{}").expect("write");
        assert!(cache.install(&staging, &manifest(Some("manifest.json"), 2)).is_err());
    }

    #[test]
    fn models_and_leftovers_are_counted_and_removed() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let cache = Cache { root: temp.path().join("cache") };
        let nothing = Usage { models: Vec::new(), unfinished: 0, packed: 0 };
        assert_eq!(cache.usage().expect("usage"), nothing);
        assert_eq!(cache.remove_unfinished().expect("remove"), 0);
        let staging = cache.stage("k").expect("stage");
        fs::write(staging.model_dir().join("m.gguf"), b"12345").expect("write");
        let entry = cache.install(&staging, &manifest(Some("m.gguf"), 5)).expect("install");
        drop(staging);
        let of_manifest =
            fs::metadata(entry.path.with_file_name("manifest.json")).expect("it is there").len();
        fs::write(cache.partial_file("k"), b"123").expect("write");
        create_dir(&cache.partial_dir("other")).expect("create");
        fs::write(cache.partial_dir("other").join("x.partial"), b"1234").expect("write");
        let usage = cache.usage().expect("usage");
        assert_eq!(usage.models, [("m".to_owned(), 5 + of_manifest)]);
        assert_eq!((usage.unfinished, usage.packed), (7, 0));

        // Leftovers of packing weights, and a file that is being packed.
        let beside = entry.path.with_file_name("m.gguf.packed.77.0.tmp");
        fs::write(&beside, b"12").expect("write");
        create_dir(&cache.packed_dir()).expect("create");
        fs::write(cache.packed_dir().join("n.gguf-1.packed"), b"1").expect("write");
        let running = cache.packed_dir().join("n.gguf-1.packed.78.0.tmp");
        let file = File::create(&running).expect("create");
        file.lock().expect("lock");
        fs::write(&running, b"1234").expect("write");
        let usage = cache.usage().expect("usage");
        assert_eq!(usage.models, [("m".to_owned(), 5 + of_manifest)]);
        assert_eq!((usage.unfinished, usage.packed), (9, 5));

        // What a process pulls is left alone.
        let lock = cache.lock("other", || panic!("nobody else holds it")).expect("lock");
        assert_eq!(cache.remove_unfinished().expect("remove"), 3 + 2);
        assert!(!beside.exists());
        drop((lock, file));
        assert_eq!(cache.remove_unfinished().expect("remove"), 4 + 4);
        fs::remove_dir_all(cache.packed_dir()).expect("remove");

        assert_eq!(cache.keys_of("m").expect("keys"), ["k"]);
        assert_eq!(cache.remove("k").expect("remove").map(|found| found.bytes), Some(5));
        assert_eq!(cache.remove("k").expect("remove"), None);
        assert_eq!(cache.usage().expect("usage"), nothing);
    }

    #[test]
    fn lock_excludes_a_second_pull() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let cache = Cache { root: temp.path().to_owned() };
        let lock = cache.lock("m", || panic!("nobody else holds it")).expect("lock");
        let (told, asked) = std::sync::mpsc::channel();
        let other = cache.clone();
        let thread = std::thread::spawn(move || {
            let _lock = other.lock("m", || told.send(()).expect("send")).expect("lock");
        });
        asked.recv().expect("the second one waits");
        assert!(!thread.is_finished());
        drop(lock);
        thread.join().expect("the second one gets it");
    }

    #[test]
    fn hashing_pieces_equals_hashing_the_whole() {
        let temp = tempfile::tempdir().expect("temporary directory");
        let path = temp.path().join("f");
        let mut file = HashedFile::create(&path).expect("create");
        let mut seen = 0;
        for part in [&b"a"[..], b"bc"] {
            file.append(&mut &part[..], "part", &mut |n| seen += n).expect("append");
        }
        let (bytes, sha) = file.finish().expect("finish");
        assert_eq!((bytes, seen), (3, 3));
        assert_eq!(sha, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(hash_file(&path).expect("hash"), (3, sha));
    }
}
