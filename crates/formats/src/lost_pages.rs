//! Pages of mapped files that are lost: the file was truncated, or its disk cannot read them.
//!
//! An access to such a page raises `SIGBUS`. The handler here finds the map that the address lies
//! in, marks it as lost, and puts zeros in the place of the page and of those after it, so that the
//! access continues; the reader asks for the mark when it is done, and throws its result away. It is
//! what libwayland does for buffers that clients share with it.
//!
//! The handler may interrupt any thread at any point, so it takes no lock and allocates nothing: the
//! maps are a list that only grows, of places that are used again.

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

    /// A place of the list.
    struct Place {
        is_taken: AtomicBool,
        is_lost: AtomicBool,
        /// The addresses of the map's pages; an empty range belongs to none.
        start: AtomicUsize,
        end: AtomicUsize,
        next: *const Place,
    }

    // SAFETY: `next` is written before the place is shared, and places are never freed.
    unsafe impl Sync for Place {}

    /// The first place.
    static FIRST: AtomicPtr<Place> = AtomicPtr::new(ptr::null_mut());

    /// Bytes of a page, once the handler is installed.
    static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);

    /// What handled the signal before.
    static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

    fn places() -> impl Iterator<Item = &'static Place> {
        // Acquire: with the place, what it holds is seen.
        let mut next: *const Place = FIRST.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: null, or a place, and places are never freed.
            let place = unsafe { next.as_ref() }?;
            next = place.next;
            Some(place)
        })
    }

    /// The addresses of a map, from its making to its end.
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
            // Release: a handler that sees the start sees that the end before is gone, and one that
            // sees the end sees the start.
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

    /// From now on, a page of a mapped file that cannot be read, because the file was truncated or
    /// its disk failed, holds zeros and is reported by [`FileWatch::check`](crate::FileWatch::check)
    /// and [`Bytes::check`](crate::Bytes::check), instead of ending the process by `SIGBUS`. It
    /// applies to every map of this crate in the process; other bus errors are passed on to whatever handled
    /// them before.
    ///
    /// Programs call this once at their start; a library leaves it to its program, as the handler
    /// of a signal belongs to the process. Windows refuses to truncate a file that is mapped, and
    /// there this does nothing.
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
        // It is set once, under the lock.
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

    /// Puts zeros from the page of `address` to the end of its map; false if it is of none.
    fn put_zeros(address: usize) -> bool {
        let found = places().find_map(|place| {
            // Acquire: see `Region::new`. The end is read again, as a place may get another map
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

    /// Does what was done before this handler was installed.
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

/// Maps whose pages are never lost, as the system refuses to truncate their files.
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
    /// None here.
    pub fn survive_lost_pages() -> io::Result<()> {
        Ok(())
    }
}
#[cfg(not(unix))]
pub(crate) use other::Region;
#[cfg(not(unix))]
pub use other::survive_lost_pages;
