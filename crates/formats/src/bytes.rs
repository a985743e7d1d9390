//! A cheap handle to bytes that stay where they are: in a mapped file or in
//! memory of the process.
//!
//! The only unsafe code of the crate is here: creating a map, and telling the
//! kernel that pages of it are not needed any more.

use std::fmt;
use std::fs::{File, Metadata};
use std::ops::{Bound, Deref, RangeBounds};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::Error;

#[derive(Clone)]
enum Owner {
    Map(Arc<Mmap>),
    Memory(Arc<Vec<u8>>),
}

/// A range of bytes of a mapped file, or of an owned buffer.
///
/// Cloning and slicing copy no data; the map lives until its last handle is
/// dropped. The file must not be changed in place while it is mapped: bytes
/// would change under the reader, and reading past a new, shorter end kills
/// the process with `SIGBUS`. Replacing a file by renaming another over it is
/// fine.
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
        let check = |info: std::io::Result<Metadata>| match info {
            Ok(info) if info.is_file() => Ok(info),
            Ok(_) => {
                let kind = std::io::Error::other("expected a file, found something else");
                Err(Error::io(path, kind))
            }
            Err(error) => Err(Error::io(path, error)),
        };
        // Opening a pipe waits for its writer, so the kind is looked at before.
        check(std::fs::metadata(path))?;
        let file = File::open(path).map_err(|e| Error::io(path, e))?;
        let info = check(file.metadata())?;
        // An empty file cannot be mapped everywhere.
        if info.len() == 0 {
            return Ok(Self::from(Vec::new()));
        }
        #[expect(unsafe_code, reason = "a file map has no safe constructor")]
        // SAFETY: the map is read-only and shared by reference only, and `Mmap` keeps it alive as
        // long as any slice of it. That nobody changes the file in place meanwhile is the one
        // condition that cannot be checked; the type's documentation hands it to the caller.
        let map = unsafe { Mmap::map(&file) }.map_err(|e| Error::io(path, e))?;
        let len = map.len();
        Ok(Self { owner: Owner::Map(Arc::new(map)), start: 0, len })
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

    /// The same bytes in memory of the process, with no tie to a file.
    #[must_use]
    pub fn to_owned_copy(&self) -> Self {
        Self::from(self.to_vec())
    }

    /// Asks the kernel to read these bytes from disk ahead of use. Only a hint.
    pub fn prefetch(&self) {
        #[cfg(unix)]
        if let Owner::Map(map) = &self.owner {
            // A refused hint changes nothing that a reader can see.
            let _ = map.advise_range(memmap2::Advice::WillNeed, self.start, self.len);
        }
    }

    /// Gives the pages of these bytes back to the kernel, so that they no
    /// longer count as resident memory of the process. Only a hint: the bytes
    /// stay valid and are read from the file again when touched.
    pub fn release(&self) {
        #[cfg(target_os = "linux")]
        if let Owner::Map(map) = &self.owner {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            #[expect(unsafe_code, reason = "memmap2 marks this advice unsafe for every map")]
            // SAFETY: on Linux the advice drops the pages of a file map, and the next access reads
            // them from the file. The map is read-only, so no written data is lost, and every
            // reference to it keeps seeing the same bytes.
            let _ = unsafe { map.unchecked_advise_range(advice, self.start, self.len) };
        }
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
}
