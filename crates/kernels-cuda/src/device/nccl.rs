//! NCCL, opened at run time. It only moves bytes between GPUs; kernels of this crate add the terms, in a fixed order.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::Library;

use crate::Error;
use crate::error::Version;

/// Minimum version: since 2.9, exchanges can be captured in graphs.
const NCCL: Version = Version { major: 2, minor: 9 };
/// File names of the library. Runtime packages install only the first.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// `ncclInt8`: exchanges are of bytes.
const BYTES: c_int = 0;

/// `ncclComm_t`.
type RawComm = *mut c_void;

/// The used functions of `nccl.h`. They return `ncclResult_t`, 0 for success.
struct Nccl {
    comm_init_all: unsafe extern "C" fn(*mut RawComm, c_int, *const c_int) -> c_int,
    comm_abort: unsafe extern "C" fn(RawComm) -> c_int,
    all_gather: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        RawComm,
        *mut c_void,
    ) -> c_int,
    get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl Nccl {
    /// The library, opened on first use and never closed.
    ///
    /// # Errors
    /// [`Error::NoNccl`], [`Error::OldNccl`], or the lack of a function.
    fn get() -> Result<&'static Self, Error> {
        static OPENED: OnceLock<Result<Nccl, Error>> = OnceLock::new();
        OPENED.get_or_init(Self::open).as_ref().map_err(Clone::clone)
    }

    fn open() -> Result<Self, Error> {
        // SAFETY: the names are those of NVIDIA's library, whose initializers have no conditions.
        let library = NAMES.into_iter().find_map(|name| unsafe { Library::new(name) }.ok());
        let library: &'static Library = Box::leak(Box::new(library.ok_or(Error::NoNccl)?));
        let raw: unsafe extern "C" fn(*mut c_int) -> c_int = symbol(library, c"ncclGetVersion")?;
        let mut number = 0;
        // SAFETY: every version has this function, and it writes one integer.
        let status = unsafe { raw(&raw mut number) };
        if status != 0 {
            let reason = format!("the version of NCCL is unknown (error {status})");
            return Err(Error::Driver { call: "NCCL", reason });
        }
        let found = version(number.unsigned_abs());
        if found < NCCL {
            return Err(Error::OldNccl { found, needed: NCCL });
        }
        Ok(Self {
            comm_init_all: symbol(library, c"ncclCommInitAll")?,
            comm_abort: symbol(library, c"ncclCommAbort")?,
            all_gather: symbol(library, c"ncclAllGather")?,
            get_error_string: symbol(library, c"ncclGetErrorString")?,
        })
    }

    fn check(&self, call: &'static str, status: c_int) -> Result<(), Error> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function takes every number.
        let text = unsafe { (self.get_error_string)(status) };
        let reason = if text.is_null() {
            format!("error {status}")
        } else {
            // SAFETY: it is a string of the library's own, which stays loaded.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(Error::Driver { call, reason })
    }
}

/// Looks up a function of the library. `T` is its type in `nccl.h`.
fn symbol<T: Copy>(library: &'static Library, name: &CStr) -> Result<T, Error> {
    // SAFETY: callers name the type of the library's header.
    let found = unsafe { library.get::<T>(name.to_bytes_with_nul()) };
    let missing = |e: libloading::Error| Error::Driver { call: "NCCL", reason: e.to_string() };
    found.map(|symbol| *symbol).map_err(missing)
}

/// Decodes a version number. Versions before 2.9 had one digit less for the minor part.
fn version(number: u32) -> Version {
    let per_major = if number < 10_000 { 1000 } else { 10_000 };
    Version { major: number / per_major, minor: number % per_major / 100 }
}

/// A communicator; null after an abort.
struct Comm(RawComm);

// SAFETY: communicators may be used by all threads, one at a time.
unsafe impl Send for Comm {}

/// The communicators of a group of GPUs.
struct Group {
    nccl: &'static Nccl,
    comms: Vec<Mutex<Comm>>, // [n_ranks]
}

/// A GPU's rank in a group.
pub struct DriverRank {
    group: Arc<Group>,
    idx: usize,
}

impl fmt::Debug for DriverRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DriverRank({} of {})", self.idx, self.group.comms.len())
    }
}

impl Group {
    fn comm(&self, idx: usize) -> MutexGuard<'_, Comm> {
        self.comms[idx].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn abort(&self) {
        for idx in 0..self.comms.len() {
            let raw = std::mem::replace(&mut self.comm(idx).0, std::ptr::null_mut());
            if !raw.is_null() {
                // SAFETY: the communicator is valid, and nothing can reach it now. A failure leaves nothing to do.
                let _ = unsafe { (self.nccl.comm_abort)(raw) };
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.abort();
    }
}

impl DriverRank {
    /// Groups the GPUs of these indices, in the order of their ranks.
    ///
    /// # Errors
    /// [`Error::NoNccl`], [`Error::OldNccl`], or any error of the library.
    pub(super) fn group(gpus: &[usize]) -> Result<Vec<Self>, Error> {
        let nccl = Nccl::get()?;
        let gpus: Vec<c_int> = gpus.iter().map(|&gpu| gpu as c_int).collect();
        let mut raw = vec![std::ptr::null_mut(); gpus.len()];
        // SAFETY: both lists have as many elements as there are GPUs.
        let status =
            unsafe { (nccl.comm_init_all)(raw.as_mut_ptr(), gpus.len() as c_int, gpus.as_ptr()) };
        nccl.check("NCCL group", status)?;
        let comms = raw.into_iter().map(|raw| Mutex::new(Comm(raw))).collect();
        let group = Arc::new(Group { nccl, comms });
        Ok((0..gpus.len()).map(|idx| Self { group: Arc::clone(&group), idx }).collect())
    }

    /// Queues an exchange that writes `n_bytes` bytes of every rank to `to`.
    ///
    /// # Safety
    /// The GPU's context is current and the stream belongs to it. `from` has `n_bytes` bytes of one allocation and `to`
    /// as many for every rank. They stay allocated for as long as queued or captured work uses them.
    pub(super) unsafe fn all_gather(
        &self,
        stream: *mut c_void,
        to: u64,
        from: u64,
        n_bytes: usize,
    ) -> Result<(), Error> {
        let nccl = self.group.nccl;
        let comm = self.group.comm(self.idx);
        if comm.0.is_null() {
            let reason = "another rank has failed".to_owned();
            return Err(Error::Driver { call: "NCCL exchange", reason });
        }
        // SAFETY: the communicator is valid while it is locked; the caller vouches for the rest.
        let status = unsafe {
            let (from, to) = (from as *const c_void, to as *mut c_void);
            (nccl.all_gather)(from, to, n_bytes, BYTES, comm.0, stream)
        };
        nccl.check("NCCL exchange", status)
    }

    /// Makes all exchanges of the group fail.
    pub(super) fn abort(&self) {
        self.group.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_the_library_writes_them() {
        for (number, major, minor) in [(2804, 2, 8), (21005, 2, 10), (22809, 2, 28), (20900, 2, 9)]
        {
            assert_eq!(version(number), Version { major, minor }, "{number}");
        }
    }

    #[test]
    fn a_machine_without_the_library_gives_one_clear_error() {
        if let Err(error) = Nccl::get() {
            assert!(!error.to_string().contains('\n'), "{error}");
            assert_eq!(DriverRank::group(&[0, 1]).unwrap_err(), error);
        }
    }
}
