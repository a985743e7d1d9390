//! Files mapped for reading.
//!
//! Another process may truncate the file, or its disk may fail. The next access to a page that no longer
//! exists raises `SIGBUS`, which kills the process unless `lost_pages` handles it.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use memmap2::Mmap;

use crate::Error;
use crate::lost_pages::Region;
use realizar_base::{check_regular, open_regular};

/// The map of a whole file.
pub(crate) struct FileMap {
    path: PathBuf,
    // Declared before the map, so that it is dropped while the addresses still belong to the map.
    region: Region,
    map: Mmap,
}

impl FileMap {
    /// Maps a file; `None` for an empty one, which some systems cannot map.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, Error> {
        Self::of(&open_regular(path).map_err(|e| Error::io(path, e))?, path)
    }

    /// Maps a file that is open for reading.
    pub(crate) fn of(file: &File, path: &Path) -> Result<Option<Self>, Error> {
        let len = || check_regular(file.metadata()?).map(|info| info.len());
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
        // long as any slice of it. One condition cannot be checked: the file must not be changed in
        // place meanwhile. The documentation of `Bytes` requires it of the caller.
        let map = unsafe { Mmap::map(file) }.map_err(failed)?;
        let region = Region::new(map.as_ptr_range());
        Ok(Some(Self { path: path.to_path_buf(), region, map }))
    }

    /// Fails if a page of the map was lost.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.region.is_lost() { Err(Error::Lost { path: self.path.clone() }) } else { Ok(()) }
    }

    /// Hints the kernel to read a range from disk ahead of use.
    pub(crate) fn prefetch(&self, start: usize, len: usize) {
        #[cfg(unix)]
        // A refused hint does not affect readers.
        let _ = self.map.advise_range(memmap2::Advice::WillNeed, start, len);
        #[cfg(not(unix))]
        let _ = (start, len);
    }

    /// Hints the kernel that the pages of a range need not stay resident.
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

/// Detects lost pages of a mapped file, without keeping it mapped.
#[derive(Clone)]
pub struct FileWatch(Weak<FileMap>);

impl FileWatch {
    pub(crate) fn new(map: &Arc<FileMap>) -> Self {
        Self(Arc::downgrade(map))
    }

    /// Fails if the file was truncated or could not be read while it was mapped, so that zeros were read in
    /// place of some bytes; see [`survive_lost_pages`](crate::survive_lost_pages). Succeeds if the file is no
    /// longer mapped.
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
