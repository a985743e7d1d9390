//! A file that is mapped for reading.
//!
//! Whatever may write to the file may also truncate it, or its disk may fail. The next access to
//! what no longer exists raises `SIGBUS`, which ends the process unless `lost_pages` handles
//! it.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use memmap2::Mmap;

use crate::Error;
use crate::lost_pages::Region;
use crate::regular::{check, open_regular};

/// The map of a whole file.
pub(crate) struct FileMap {
    path: PathBuf,
    // Declared before the map, so that it is dropped while the addresses are still the map's.
    region: Region,
    map: Mmap,
}

impl FileMap {
    /// Maps a file; `None` for an empty one, which cannot be mapped everywhere.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, Error> {
        Self::of(&open_regular(path).map_err(|e| Error::io(path, e))?, path)
    }

    /// The same of a file that is open for reading.
    pub(crate) fn of(file: &File, path: &Path) -> Result<Option<Self>, Error> {
        let len = || check(file.metadata()?).map(|info| info.len());
        let n_bytes = len().map_err(|e| Error::io(path, e))?;
        if n_bytes == 0 {
            return Ok(None);
        }
        let failed = |e: io::Error| {
            let asked = format!("cannot map its {n_bytes} bytes into memory: {e}");
            Error::io(path, io::Error::new(e.kind(), asked))
        };
        #[expect(unsafe_code, reason = "a file map has no safe constructor")]
        // SAFETY: the map is read-only and shared by reference only, and `Mmap` keeps it alive as
        // long as any slice of it. That nobody changes the file in place meanwhile is the one
        // condition that cannot be checked; the documentation of `Bytes` hands it to the caller.
        let map = unsafe { Mmap::map(file) }.map_err(failed)?;
        let region = Region::new(map.as_ptr_range());
        Ok(Some(Self { path: path.to_path_buf(), region, map }))
    }

    /// Fails if a page of the map was lost.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.region.is_lost() { Err(Error::Lost { path: self.path.clone() }) } else { Ok(()) }
    }

    /// Asks the kernel to read a range from disk ahead of use. Only a hint.
    pub(crate) fn prefetch(&self, start: usize, len: usize) {
        #[cfg(unix)]
        // A refused hint changes nothing that a reader can see.
        let _ = self.map.advise_range(memmap2::Advice::WillNeed, start, len);
        #[cfg(not(unix))]
        let _ = (start, len);
    }

    /// Returns the pages of a range to the kernel. Only a hint.
    pub(crate) fn release(&self, start: usize, len: usize) {
        #[cfg(target_os = "linux")]
        {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            #[expect(unsafe_code, reason = "memmap2 marks this advice unsafe for every map")]
            // SAFETY: on Linux the advice drops the pages of a file map, and the next access reads
            // them from the file. The map is read-only, so no written data is lost, and every
            // reference to it keeps seeing the same bytes.
            let _ = unsafe { self.map.unchecked_advise_range(advice, start, len) };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (start, len);
    }
}

impl Deref for FileMap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

/// Reports whether a mapped file is still whole, without keeping it mapped.
#[derive(Clone)]
pub struct FileWatch(Weak<FileMap>);

impl FileWatch {
    pub(crate) fn new(map: &Arc<FileMap>) -> Self {
        Self(Arc::downgrade(map))
    }

    /// Fails if the file was truncated or could not be read while it was mapped, so that some of
    /// its bytes were read as zeros; see [`survive_lost_pages`](crate::survive_lost_pages). A file
    /// that is no longer mapped is not examined.
    ///
    /// # Errors
    /// [`Error::Lost`], with the file's path.
    pub fn check(&self) -> Result<(), Error> {
        self.0.upgrade().map_or(Ok(()), |map| map.check())
    }

    /// Whether both watch the same map.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl fmt::Debug for FileWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let map = self.0.upgrade();
        f.debug_tuple("FileWatch").field(&map.as_ref().map(|map| &map.path)).finish()
    }
}
