//! Graphs: work that is captured once and replayed.

use std::sync::Arc;

use crate::Error;
use crate::device::{Device, Held, hold};
use crate::kernels::Kernels;

/// A graph of captured launches, with the kernels and the memory that they use.
pub struct Captured<D: Device> {
    graph: D::Graph,
    kernels: Arc<Kernels<D>>,
    _memory: Held,
}

impl<D: Device> std::fmt::Debug for Captured<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Captured").field("graph", &self.graph).finish_non_exhaustive()
    }
}

impl<D: Device> Captured<D> {
    /// Captures the work that `work` queues in the stream instead of running it. The memory of the buffers that it uses
    /// is kept until this is dropped.
    ///
    /// # Errors
    /// Any error of `work` or of the driver.
    pub fn new(
        kernels: &Arc<Kernels<D>>,
        stream: &D::Stream,
        work: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let device = kernels.device();
        device.begin_capture(stream)?;
        let (queued, memory) = hold(work);
        // The capture must end after an error too, so that the stream can be used again.
        let graph = device.end_capture(stream);
        queued?;
        Ok(Self { graph: graph?, kernels: Arc::clone(kernels), _memory: memory })
    }

    /// Queues the captured work.
    ///
    /// # Errors
    /// Any error of the driver.
    pub fn replay(&self, stream: &D::Stream) -> Result<(), Error> {
        // SAFETY: the kernels and the memory of every buffer whose address a launch was given are held.
        unsafe { self.kernels.device().replay(stream, &self.graph) }
    }
}

#[cfg(any(test, feature = "tests"))]
pub(super) mod tests {
    use super::*;
    use crate::testing::{is_gpu, kernels, on_device, read};
    use crate::{Elementwise, Rows, elementwise};

    #[cfg_attr(test, test)]
    fn captured_work_keeps_its_memory() {
        let (kernels, stream) = kernels();
        let (kernels, used) = (Arc::new(kernels), 3);
        let device = kernels.device();
        let before = device.free_bytes().unwrap();
        let x = on_device(device, &stream, &[1.0f32, 2.0, 3.0]);
        let out = on_device(device, &stream, &[0.0f32; 3]);
        let captured = {
            let y = on_device(device, &stream, &[10.0f32, 20.0, 30.0]);
            let op = Elementwise::Add(Rows::vector(&y, used));
            let (x, out) = (Rows::vector(&x, used), Rows::vector(&out, used));
            let work = || elementwise(&kernels, &stream, &op, x, out);
            Captured::new(&kernels, &stream, work).unwrap()
        };
        assert_eq!(read(&stream, &out, 3), [0.0; 3], "captured work does not run");
        x.write(&stream, 0, &[5.0f32]).unwrap();
        captured.replay(&stream).unwrap();
        assert_eq!(read(&stream, &out, 3), [15.0, 22.0, 33.0]);
        drop((captured, x, out));
        // A GPU has other processes, and its driver keeps memory for graphs.
        if !is_gpu() {
            assert_eq!(device.free_bytes().unwrap(), before);
        }
    }

    #[cfg_attr(test, test)]
    fn a_capture_that_fails_leaves_the_stream_usable() {
        let (kernels, stream) = kernels();
        let kernels = Arc::new(kernels);
        let failed = || Err(Error::NoDriver);
        assert_eq!(Captured::new(&kernels, &stream, failed).unwrap_err(), Error::NoDriver);
        let x = on_device(kernels.device(), &stream, &[1.0f32]);
        assert_eq!(read(&stream, &x, 1), [1.0]);
    }

    crate::testing::tests![
        captured_work_keeps_its_memory,
        a_capture_that_fails_leaves_the_stream_usable,
    ];
}
