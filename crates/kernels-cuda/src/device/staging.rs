//! Uploads of small data, such as the lists of a step, through pinned host memory.
//!
//! A copy from pageable memory may block the host until the work before it has run. Small copies therefore go through a
//! ring of pinned places, and each waits only for the previous copy from its place.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError, event};
use cudarc::driver::sys;

use super::context::{Context, Owned};

/// Bytes of a place. Larger copies bypass the ring.
const PLACE_BYTES: usize = 64 << 10;
/// Places of a ring, the maximum number of copies in flight.
const N_PLACES: usize = 4;

/// The ring of a stream. Places are allocated by the first copies.
#[derive(Default)]
pub(super) struct Staging {
    places: Vec<Place>,
    /// Index of the place that the next copy uses.
    next: usize,
}

/// Pinned memory, and an event after the copy from it.
struct Place {
    memory: NonNull<c_void>, // [PLACE_BYTES]
    copied: Owned<sys::CUevent>,
    context: Arc<Context>,
}

// SAFETY: the memory is this place's alone, and pinned memory may be used by all threads.
unsafe impl Send for Place {}

impl Place {
    /// Allocates a place. The context must be current.
    fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let copied = Owned::new(context, event::create(flags)?, event::destroy);
        // SAFETY: the memory is written before it is read.
        let memory = unsafe { result::malloc_host(PLACE_BYTES, 0) }?;
        let memory =
            NonNull::new(memory).ok_or(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY))?;
        Ok(Self { memory, copied, context: Arc::clone(context) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: the event is valid, and one that was never recorded counts as passed; the memory is freed once,
            // after the copy from it. A failure is one of earlier work, which the next call reports.
            let _ = unsafe {
                event::synchronize(self.copied.raw)
                    .and_then(|()| result::free_host(self.memory.as_ptr()))
            };
        }
    }
}

impl Staging {
    /// Queues a copy. The bytes are read before this returns. The context must be current.
    ///
    /// # Safety
    /// `to` has `bytes.len()` bytes of one allocation; the stream is valid, is not captured, and is always the same.
    pub(super) unsafe fn upload(
        &mut self,
        context: &Arc<Context>,
        stream: sys::CUstream,
        to: u64,
        bytes: &[u8],
    ) -> Result<(), DriverError> {
        if bytes.len() > PLACE_BYTES {
            // SAFETY: the caller vouches for the range. The bytes are pageable memory of the host, which the driver
            // copies to memory of its own before the call returns ("API synchronization behavior" of the driver's
            // documentation), and does not read afterwards.
            return unsafe { result::memcpy_htod_async(to, bytes, stream) };
        }
        if self.places.len() < N_PLACES {
            self.places.push(Place::new(context)?);
            self.next = self.places.len() - 1;
        }
        let place = &self.places[self.next];
        self.next = (self.next + 1) % N_PLACES;
        // SAFETY: the event is valid; one that was never recorded counts as passed.
        unsafe { event::synchronize(place.copied.raw) }?;
        // SAFETY: the place has room for the bytes, the previous copy from it is over, and nobody else has its memory.
        let staged = unsafe {
            let memory = place.memory.as_ptr().cast::<u8>();
            memory.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            std::slice::from_raw_parts(memory, bytes.len())
        };
        // SAFETY: the caller vouches for the range and the stream. The memory is not changed until the event, which is
        // recorded after the copy, has passed.
        unsafe {
            result::memcpy_htod_async(to, staged, stream)?;
            event::record(place.copied.raw, stream)
        }
    }
}
