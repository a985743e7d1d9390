//! A cheap handle to bytes that stay where they are: in a mapped file or in
//! memory of the process.

use std::fmt;
use std::fs::File;
use std::ops::{Bound, Deref, RangeBounds};
use std::path::Path;
use std::sync::Arc;

use crate::map::FileMap;
use crate::{Error, FileWatch};

#[derive(Clone)]
enum Owner {
    Map(Arc<FileMap>),
    Memory(Arc<Vec<u8>>),
}

/// A range of bytes of a mapped file, or of an owned buffer.
///
/// Cloning and slicing copy no data; the map lives until its last handle is
/// dropped. The file must not be changed in place while it is mapped: bytes
/// would change under the reader. Reading past a new, shorter end ends the
/// process with `SIGBUS`, unless it has called
/// [`survive_lost_pages`](crate::survive_lost_pages): then zeros are read, and
/// [`check`](Self::check) fails. Replacing a file by renaming another over it
/// is fine.
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
    /// If the file is no regular file or cannot be mapped.
    pub fn map_file(file: &File, path: &Path) -> Result<Self, Error> {
        Ok(FileMap::of(file, path)?.into())
    }

    /// The part of these bytes in `range`, sharing their owner.
    ///
    /// # Panics
    /// If the range reaches past the end, as slicing does.
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

    /// Whether the bytes lie in a mapped file.
    pub fn is_mapped(&self) -> bool {
        matches!(self.owner, Owner::Map(_))
    }

    /// Fails if pages of the mapped file were lost, so that some of its bytes
    /// were read as zeros; see [`FileWatch::check`].
    ///
    /// # Errors
    /// [`Error::Lost`], with the file's path.
    pub fn check(&self) -> Result<(), Error> {
        match &self.owner {
            Owner::Map(map) => map.check(),
            Owner::Memory(_) => Ok(()),
        }
    }

    /// What was read of these bytes, unless pages were lost meanwhile.
    pub(crate) fn whole<T>(&self, read: Result<T, Error>) -> Result<T, Error> {
        self.check().and(read)
    }

    /// What tells whether the mapped file is whole, without keeping it mapped;
    /// none of bytes in memory.
    pub fn watch(&self) -> Option<FileWatch> {
        match &self.owner {
            Owner::Map(map) => Some(FileWatch::new(map)),
            Owner::Memory(_) => None,
        }
    }

    /// The same bytes in memory of the process, with no tie to a file.
    #[must_use]
    pub fn to_owned_copy(&self) -> Self {
        Self::from(self.to_vec())
    }

    /// Asks the kernel to read these bytes from disk ahead of use. Only a hint.
    pub fn prefetch(&self) {
        if let Owner::Map(map) = &self.owner {
            map.prefetch(self.start, self.len);
        }
    }

    /// Gives the pages of these bytes back to the kernel, so that they no
    /// longer count as resident memory of the process. Only a hint: the bytes
    /// stay valid and are read from the file again when touched.
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
        let place = if self.is_mapped() { "mapped" } else { "in memory" };
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
