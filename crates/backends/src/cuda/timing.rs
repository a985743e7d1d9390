//! Times of a step's operations, by events between them.
//!
//! A step that is timed is launched operation by operation, since a replayed one is a single call.

use crate::metrics::{DispatchMetrics, OpClass};
use realizar_kernels_cuda::{Device, Error};

/// The events of a step.
#[derive(Debug)]
pub(super) struct Timing<D: Device> {
    /// What ends at each event; the first one is the beginning of the step.
    marks: Vec<(OpClass, D::Event)>,
}

impl<D: Device> Timing<D> {
    pub(super) fn new() -> Self {
        Self { marks: Vec::new() }
    }

    /// Marks the beginning of a step.
    ///
    /// # Errors
    /// What the driver reports.
    pub(super) fn begin(&mut self, device: &D, stream: &D::Stream) -> Result<(), Error> {
        self.marks.clear();
        self.mark(device, stream, OpClass::Step)
    }

    /// Marks the end of an operation of this class that was queued last.
    ///
    /// # Errors
    /// What the driver reports.
    pub(super) fn mark(
        &mut self,
        device: &D,
        stream: &D::Stream,
        class: OpClass,
    ) -> Result<(), Error> {
        self.marks.push((class, device.record_timed(stream)?));
        Ok(())
    }

    /// Adds the times of a step that has run to the metrics.
    ///
    /// # Errors
    /// What the driver reports.
    pub(super) fn read(&mut self, device: &D, metrics: &DispatchMetrics) -> Result<(), Error> {
        for pair in self.marks.windows(2) {
            let [(_, from), (class, to)] = pair else { unreachable!("windows of two") };
            metrics.time(*class, device.elapsed(from, to)?);
        }
        self.marks.clear();
        Ok(())
    }
}
