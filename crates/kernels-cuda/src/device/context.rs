//! The context of a GPU, the objects that the driver made in it, and the driver's errors.

use std::fmt;
use std::sync::Arc;

use cudarc::driver::result::{DriverError, ctx, primary_ctx};
use cudarc::driver::sys;

use crate::Error;

/// Wraps the driver's error of a call.
pub(super) fn failed(call: &'static str) -> impl Fn(DriverError) -> Error {
    move |error| Error::Driver { call, reason: reason(error) }
}

pub(super) fn reason(error: DriverError) -> String {
    match (error.error_name(), error.error_string()) {
        (Ok(name), Ok(text)) => format!("{} ({})", text.to_string_lossy(), name.to_string_lossy()),
        _ => format!("error {:?}", error.0),
    }
}

/// The primary context of a GPU.
pub(super) struct Context {
    device: sys::CUdevice,
    raw: sys::CUcontext,
}

// SAFETY: contexts may be used by all threads; each makes it current before a call.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks what calls share.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of a device.
    ///
    /// # Safety
    /// The device comes from `result::device::get`.
    pub(super) unsafe fn retain(device: sys::CUdevice) -> Result<Self, Error> {
        // SAFETY: the caller vouches for the device; dropping releases what is retained here.
        let raw = unsafe { primary_ctx::retain(device) }.map_err(failed("context"))?;
        Ok(Self { device, raw })
    }

    /// Makes this the current context of the calling thread.
    pub(super) fn enter(&self) -> Result<(), Error> {
        // SAFETY: the context is retained for as long as this lives.
        unsafe { ctx::set_current(self.raw) }.map_err(failed("context"))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context was retained once when this was made. A failure leaves nothing to do.
        let _ = unsafe { primary_ctx::release(self.device) };
    }
}

/// An object that the driver made in a context, with the function that releases it.
pub(super) struct Owned<T: Copy> {
    context: Arc<Context>,
    pub(super) raw: T,
    release: unsafe fn(T) -> Result<(), DriverError>,
}

// SAFETY: the driver's objects may be used by all threads, as their context.
unsafe impl<T: Copy> Send for Owned<T> {}
// SAFETY: as above.
unsafe impl<T: Copy> Sync for Owned<T> {}

impl<T: Copy> Owned<T> {
    pub(super) fn new(
        context: &Arc<Context>,
        raw: T,
        release: unsafe fn(T) -> Result<(), DriverError>,
    ) -> Self {
        Self { context: Arc::clone(context), raw, release }
    }
}

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: `raw` was made in this context, with the function's counterpart, and is released once.
            // A failure is one of earlier work, which the next call reports.
            let _ = unsafe { (self.release)(self.raw) };
        }
    }
}

impl<T: Copy> fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::any::type_name::<T>())
    }
}
