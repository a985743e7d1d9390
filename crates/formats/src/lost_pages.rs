//! Lost pages of mapped files: the file was truncated, or its disk failed.
//!
//! An access to such a page raises `SIGBUS`. The handler here finds the map that contains the address,
//! marks it as lost, and maps zeros over the page and those after it, so that the access continues. The
//! reader checks the mark when it is done, and discards its result. libwayland handles buffers shared by
//! clients in the same way.
//!
//! The handler may interrupt any thread anywhere, so it takes no lock and allocates nothing: the maps are
//! in a list of reusable places that only grows.

#[cfg(unix)]
pub(crate) use unix::Region;
#[cfg(unix)]
pub use unix::survive_lost_pages;

#[cfg(unix)]
#[expect(unsafe_code, reason = "a signal handler that maps memory")]
mod unix {
    use std::ffi::c_void;
    use std::io;
    use std::ops::Range;
    use std::ptr;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
    use std::sync::{Mutex, OnceLock, PoisonError};

    /// An entry of the list.
    struct Place {
        is_taken: AtomicBool,
        is_lost: AtomicBool,
        /// The address range of the map's pages; empty if the entry is free.
        start: AtomicUsize,
        end: AtomicUsize,
        next: *const Place,
    }

    // SAFETY: `next` is written before the place is shared, and places are never freed.
    unsafe impl Sync for Place {}

    /// The first entry.
    static FIRST: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());

    /// Bytes of a page, once the handler is installed.
    static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);

    /// The previous handler.
    static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

    fn places() -> impl Iterator<Item = &'static Place> {
        // Acquire: the entry's contents are visible together with the entry.
        let mut next: *const Place = FIRST.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: null, or a place, and places are never freed.
            let place = unsafe { next.as_ref() }?;
            next = place.next;
            Some(place)
        })
    }

    /// A registered map; dropping it frees its entry.
    pub(crate) struct Region(&'static Place);

    impl Region {
        pub(crate) fn new(range: Range<*const u8>) -> Self {
            let take = |place: &&Place| !place.is_taken.swap(true, Ordering::Acquire);
            let place = places().find(take).unwrap_or_else(|| {
                let mut first = FIRST.load(Ordering::Acquire);
                let place = Box::leak(Box::new(Place {
                    is_taken: AtomicBool::new(true),
                    is_lost: AtomicBool::new(false),
                    start: AtomicUsize::new(0),
                    end: AtomicUsize::new(0),
                    next: first,
                }));
                loop {
                    place.next = first;
                    let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
                    match FIRST.compare_exchange_weak(first, place, order, failed) {
                        Ok(_) => break place,
                        Err(now) => first = now,
                    }
                }
            });
            place.is_lost.store(false, Ordering::Relaxed);
            // Release: a handler that sees the new start does not see the old end, and one that sees the new
            // end sees the new start.
            place.start.store(range.start.addr(), Ordering::Release);
            place.end.store(range.end.addr(), Ordering::Release);
            Self(place)
        }

        pub(crate) fn is_lost(&self) -> bool {
            self.0.is_lost.load(Ordering::Acquire)
        }
    }

    impl Drop for Region {
        fn drop(&mut self) {
            self.0.end.store(0, Ordering::Relaxed);
            self.0.is_taken.store(false, Ordering::Release);
        }
    }

    /// Installs a `SIGBUS` handler, so that a page of a mapped file that cannot be read, because the file was
    /// truncated or its disk failed, reads as zeros and is reported by
    /// [`FileWatch::check`](crate::FileWatch::check) and [`Bytes::check`](crate::Bytes::check), instead of
    /// killing the process. It applies to all maps of this crate; other bus errors go to the previous handler.
    ///
    /// Programs call this once at start-up. Libraries must not, because signal handlers belong to the whole
    /// process. Does nothing on Windows, which refuses to truncate mapped files.
    ///
    /// # Errors
    /// If the system refuses the handler.
    pub fn survive_lost_pages() -> io::Result<()> {
        static INSTALLED: Mutex<bool> = Mutex::new(false);
        let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
        if *installed {
            return Ok(());
        }
        // SAFETY: it only asks.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        PAGE_BYTES.store(usize::try_from(page_bytes).unwrap_or(4096), Ordering::Relaxed);
        // SAFETY: all-zero bytes are a valid `sigaction`: no flags, an empty mask.
        let (mut action, mut previous): (libc::sigaction, libc::sigaction) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) = on_bus_error;
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both are valid, and the handler does only what is allowed in one.
        if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut previous) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // Set once, under the lock.
        let _ = PREVIOUS.set(previous);
        *installed = true;
        Ok(())
    }

    extern "C" fn on_bus_error(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
        // SAFETY: the system gives a valid `info`, and `SIGBUS` has an address.
        let address = unsafe { (*info).si_addr() }.addr();
        if !put_zeros(address) {
            pass_on(signal, info, context);
        }
    }

    /// Maps zeros from the page of `address` to the end of its map; returns false if no map has the address.
    fn put_zeros(address: usize) -> bool {
        let found = places().find_map(|place| {
            // Acquire: see `Region::new`. The end is read again, because the entry may have got another map
            // in between.
            let end = place.end.load(Ordering::Acquire);
            let start = place.start.load(Ordering::Acquire);
            let is_one = place.end.load(Ordering::Relaxed) == end;
            (is_one && (start..end).contains(&address)).then_some((place, end))
        });
        let Some((place, end)) = found else { return false };
        place.is_lost.store(true, Ordering::Release);
        let page = address & !(PAGE_BYTES.load(Ordering::Relaxed) - 1);
        let len = end - page;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED;
        // SAFETY: the pages are those of a read-only map that is alive, as its reader is here, and
        // they cannot be read as they are.
        let zeros = unsafe {
            libc::mmap(ptr::without_provenance_mut(page), len, libc::PROT_READ, flags, -1, 0)
        };
        zeros != libc::MAP_FAILED
    }

    /// Passes a signal on to the previous handler.
    fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
        let previous = PREVIOUS.get();
        let handler = previous.map_or(libc::SIG_DFL, |previous| previous.sa_sigaction);
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            // SAFETY: all-zero bytes are the default action. The access is tried again after this,
            // and ends the process.
            unsafe {
                let action: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &raw const action, ptr::null_mut());
            }
        } else if previous.is_some_and(|previous| previous.sa_flags & libc::SA_SIGINFO != 0) {
            // SAFETY: the flag says which kind of function it is.
            unsafe {
                let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
        } else {
            // SAFETY: as above.
            unsafe {
                let handler: extern "C" fn(i32) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

/// Systems that refuse to truncate mapped files, so that no page is lost.
#[cfg(not(unix))]
mod other {
    use std::io;
    use std::ops::Range;

    pub(crate) struct Region;

    impl Region {
        pub(crate) fn new(_: Range<*const u8>) -> Self {
            Self
        }

        #[expect(clippy::unused_self, reason = "the face that the other platforms have")]
        pub(crate) fn is_lost(&self) -> bool {
            false
        }
    }

    /// Does nothing: this system refuses to truncate a file that is mapped.
    ///
    /// # Errors
    /// None on this system.
    pub fn survive_lost_pages() -> io::Result<()> {
        Ok(())
    }
}
#[cfg(not(unix))]
pub(crate) use other::Region;
#[cfg(not(unix))]
pub use other::survive_lost_pages;
