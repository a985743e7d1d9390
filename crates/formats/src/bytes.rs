//! [`Bytes`]: a cheap handle to bytes in a mapped file or in memory, or to bytes that are computed from
//! others when they are first read.

use std::fmt;
use std::fs::File;
use std::ops::{Bound, Deref, RangeBounds};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::map::FileMap;
use crate::{Error, FileWatch};

#[derive(Clone)]
enum Owner {
    Map(Arc<FileMap>),
    Memory(Arc<Vec<u8>>),
    Made(Arc<Made>),
}

/// Bytes that are computed from others on the first read.
struct Made {
    sources: Vec<Bytes>,
    make: Box<dyn Fn() -> Vec<u8> + Send + Sync>,
    made: OnceLock<Vec<u8>>,
    len: usize,
}

impl Made {
    /// Computes the bytes, and releases the pages of their sources.
    fn make(&self) -> Vec<u8> {
        let made = (self.make)();
        assert_eq!(made.len(), self.len, "the length of bytes that were made");
        self.sources.iter().for_each(Bytes::release);
        made
    }
}

/// A range of bytes of a mapped file, of an owned buffer, or of bytes that are computed lazily.
///
/// Cloning and slicing copy no data, and the map lives until its last handle is dropped. The file must
/// not be changed in place while it is mapped, because the bytes would change under the reader. If the
/// file is truncated, reading past its new end kills the process with `SIGBUS`, unless
/// [`survive_lost_pages`](crate::survive_lost_pages) was called: then zeros are read, and
/// [`check`](Self::check) fails. Replacing the file by renaming another over it is safe.
#[derive(Clone)]
pub struct Bytes {
    owner: Owner,
    start: usize,
    len: usize,
}

impl Bytes {
    /// Maps a whole file for reading.
    ///
    /// # Errors
    /// If the file cannot be opened or mapped.
    pub fn map(path: &Path) -> Result<Self, Error> {
        Ok(FileMap::open(path)?.into())
    }

    /// Maps a whole file that is open for reading; `path` is its name in errors.
    ///
    /// # Errors
    /// If the file is not a regular file or cannot be mapped.
    pub fn map_file(file: &File, path: &Path) -> Result<Self, Error> {
        Ok(FileMap::of(file, path)?.into())
    }

    /// `len` bytes that `make` computes from `sources` on the first read. They live as long as one of their
    /// handles.
    pub fn made(
        sources: Vec<Self>,
        len: usize,
        make: impl Fn() -> Vec<u8> + Send + Sync + 'static,
    ) -> Self {
        let made = Made { sources, make: Box::new(make), made: OnceLock::new(), len };
        Self { owner: Owner::Made(Arc::new(made)), start: 0, len }
    }

    /// Whether reading the bytes computes nothing: they are stored, or were computed before.
    pub fn is_made(&self) -> bool {
        match &self.owner {
            Owner::Map(_) | Owner::Memory(_) => true,
            Owner::Made(made) => made.made.get().is_some(),
        }
    }

    /// Computes the bytes now, if they are lazy.
    pub fn make(&self) {
        if let Owner::Made(made) = &self.owner {
            made.made.get_or_init(|| made.make());
        }
    }

    /// The same bytes for a caller that reads them once: lazy bytes that were not computed yet are computed
    /// for the returned handle alone, and are freed with it.
    #[must_use]
    pub fn for_once(&self) -> Self {
        match &self.owner {
            Owner::Made(made) if made.made.get().is_none() => {
                Self::from(made.make()).slice(self.start..self.start + self.len)
            }
            _ => self.clone(),
        }
    }

    /// Stored bytes that identify these: for lazy bytes, their first source.
    #[must_use]
    pub fn origin(&self) -> Self {
        match &self.owner {
            Owner::Made(made) => made.sources.first().map_or_else(|| self.clone(), Self::origin),
            _ => self.clone(),
        }
    }

    /// The number of bytes, which is known without computing them.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes in `range`, sharing their owner.
    ///
    /// # Panics
    /// If the range ends past the end, as slicing does.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let start = match range.start_bound() {
            Bound::Included(&i) => i,
            Bound::Excluded(&i) => i + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&i) => i + 1,
            Bound::Excluded(&i) => i,
            Bound::Unbounded => self.len,
        };
        assert!(start <= end && end <= self.len, "slice {start}..{end} of {} bytes", self.len);
        Self { owner: self.owner.clone(), start: self.start + start, len: end - start }
    }

    /// Whether the bytes are in a mapped file.
    pub fn is_mapped(&self) -> bool {
        matches!(self.owner, Owner::Map(_))
    }

    /// Fails if pages of the mapped file were lost, so that zeros were read in their place; see
    /// [`FileWatch::check`].
    ///
    /// # Errors
    /// [`Error::Lost`], with the file's path.
    pub fn check(&self) -> Result<(), Error> {
        match &self.owner {
            Owner::Map(map) => map.check(),
            Owner::Memory(_) => Ok(()),
            Owner::Made(made) => made.sources.iter().try_for_each(Self::check),
        }
    }

    /// Passes the result of reading these bytes on, unless pages were lost meanwhile.
    pub(crate) fn whole<T>(&self, read: Result<T, Error>) -> Result<T, Error> {
        self.check().and(read)
    }

    /// A watch of the mapped file that does not keep it mapped; `None` for bytes in memory.
    pub fn watch(&self) -> Option<FileWatch> {
        self.watches().into_iter().next()
    }

    /// As [`watch`](Self::watch), for all files that the bytes are computed from.
    pub fn watches(&self) -> Vec<FileWatch> {
        match &self.owner {
            Owner::Map(map) => vec![FileWatch::new(map)],
            Owner::Memory(_) => Vec::new(),
            Owner::Made(made) => made.sources.iter().flat_map(Self::watches).collect(),
        }
    }

    /// A copy in memory, independent of a file.
    #[must_use]
    pub fn to_owned_copy(&self) -> Self {
        Self::from(self.to_vec())
    }

    /// Hints the kernel to read these bytes from disk ahead of use.
    pub fn prefetch(&self) {
        if let Owner::Map(map) = &self.owner {
            map.prefetch(self.start, self.len);
        }
    }

    /// Hints the kernel that these bytes need not stay resident. They remain valid, and are read from the
    /// file again when touched.
    pub fn release(&self) {
        if let Owner::Map(map) = &self.owner {
            map.release(self.start, self.len);
        }
    }
}

impl From<Option<FileMap>> for Bytes {
    /// An empty file has no map.
    fn from(map: Option<FileMap>) -> Self {
        let Some(map) = map else { return Self::from(Vec::new()) };
        let len = map.len();
        Self { owner: Owner::Map(Arc::new(map)), start: 0, len }
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self { owner: Owner::Memory(Arc::new(bytes)), start: 0, len }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let whole: &[u8] = match &self.owner {
            Owner::Map(map) => map,
            Owner::Memory(bytes) => bytes,
            Owner::Made(made) => made.made.get_or_init(|| made.make()),
        };
        &whole[self.start..self.start + self.len]
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl Eq for Bytes {}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match &self.owner {
            Owner::Map(_) => "mapped",
            Owner::Memory(_) => "in memory",
            Owner::Made(_) => "made of others",
        };
        write!(f, "Bytes({} {place})", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_share_the_map_and_copies_leave_it() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("bytes");
        std::fs::write(&path, (0..=255).collect::<Vec<u8>>()).expect("write");
        let all = Bytes::map(&path).expect("map");
        let part = all.slice(10..20).slice(2..=4);
        drop(all);
        assert_eq!(&part[..], &[12, 13, 14]);
        assert!(part.is_mapped());
        part.prefetch();
        part.release();
        assert_eq!(&part[..], &[12, 13, 14]);
        let copy = part.to_owned_copy();
        assert!(!copy.is_mapped());
        assert_eq!(copy, part);
    }

    #[test]
    fn bytes_are_made_when_they_are_read() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("bytes");
        std::fs::write(&path, [1, 2, 3, 4]).expect("write");
        let source = Bytes::map(&path).expect("map");
        let n_made = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let made = {
            let (source, n_made) = (source.clone(), n_made.clone());
            Bytes::made(vec![source.clone()], 4, move || {
                n_made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                source.iter().map(|byte| 10 * byte).collect()
            })
        };
        let times = || n_made.load(std::sync::atomic::Ordering::Relaxed);
        let part = made.slice(1..3);
        assert_eq!((made.len(), part.len(), part.is_made(), times()), (4, 2, false, 0));
        assert_eq!(part.origin(), source);
        assert_eq!(part.watches().len(), 1);
        assert!(part.check().is_ok() && !part.is_mapped());
        // For one reader, then for all.
        assert_eq!(part.for_once()[..], [20, 30]);
        assert_eq!((part.is_made(), times()), (false, 1));
        assert_eq!(part[..], [20, 30]);
        assert_eq!(made[..], [10, 20, 30, 40]);
        assert_eq!(part.for_once()[..], [20, 30]);
        assert_eq!((made.is_made(), times()), (true, 2));
    }

    #[test]
    fn an_empty_file_is_no_bytes_and_a_directory_is_an_error() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("empty");
        std::fs::write(&path, []).expect("write");
        assert_eq!(Bytes::map(&path).expect("map").len(), 0);
        assert!(matches!(Bytes::map(dir.path()), Err(Error::Io { .. })));
    }
    #[cfg(unix)]
    #[test]
    fn pages_beyond_a_new_end_are_zeros_and_are_told_of() {
        const LEN: usize = 1 << 20;
        crate::survive_lost_pages().expect("the handler");
        crate::survive_lost_pages().expect("it is there");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let map = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, vec![7; LEN]).expect("write");
            Bytes::map(&path).expect("map")
        };
        for _ in 0..3 {
            let (whole, cut) = (map("whole"), map("cut"));
            let (part, watch) = (cut.slice(LEN / 2..), cut.watch().expect("it is mapped"));
            assert!(watch.is_same(&part.watch().expect("it is mapped")));
            assert!(!watch.is_same(&whole.watch().expect("it is mapped")));
            let file = std::fs::File::options().write(true).open(dir.path().join("cut"));
            file.and_then(|file| file.set_len(10)).expect("truncate");
            assert!(part.check().is_ok(), "nothing was read");
            let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
            let sums = std::thread::scope(|scope| {
                let halves =
                    [&cut[..LEN / 2], &part[..]].map(|half| scope.spawn(move || sum(half)));
                halves.map(|half| half.join().expect("the process lives"))
            });
            // What is left of the first page is followed by zeros.
            assert_eq!(sums, [70, 0]);
            let error = watch.check().expect_err("pages were lost").to_string();
            let path = dir.path().join("cut").display().to_string();
            let text = "the file was truncated, or could not be read, while it was in use";
            assert_eq!(error, format!("{path}: {text}"));
            assert!(cut.check().is_err() && part.check().is_err());
            assert_eq!(sum(&whole), 7 * LEN as u64);
            assert!(whole.check().is_ok());
            drop((cut, part));
            assert!(watch.check().is_ok(), "it is not mapped any more");
        }
    }
}
