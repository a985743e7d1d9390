//! Recording: kernels and copies in order, submitted as one command buffer.

use crate::kernel::Kernel;
use crate::{Buffer, Error, Gpu};

/// A command buffer that is being recorded.
///
/// Each kernel sees what the ones before it wrote.
#[derive(Debug)]
pub struct Recorder<'a> {
    gpu: &'a Gpu,
    encoder: wgpu::CommandEncoder,
    pass: Option<wgpu::ComputePass<'static>>,
}

impl Gpu {
    /// An empty command buffer.
    pub fn record(&self) -> Recorder<'_> {
        let encoder =
            self.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        Recorder { gpu: self, encoder, pass: None }
    }
}

impl Recorder<'_> {
    /// Runs `kernel` on `n_rows` rows; nothing when there are none.
    pub fn run(&mut self, kernel: &Kernel, n_rows: u32) {
        if n_rows == 0 {
            return;
        }
        let pass = self.pass.get_or_insert_with(|| {
            self.encoder
                .begin_compute_pass(&wgpu::ComputePassDescriptor::default())
                .forget_lifetime()
        });
        pass.set_pipeline(&kernel.pipeline.raw);
        pass.set_bind_group(0, &kernel.bind_group, &[]);
        let [x, y, z] = kernel.grid.workgroups(n_rows);
        pass.dispatch_workgroups(x, y, z);
    }

    /// Copies `n_bytes` between buffers; all numbers are multiples of 4.
    pub fn copy(&mut self, from: (&Buffer, u64), to: (&Buffer, u64), n_bytes: u64) {
        self.pass = None;
        self.encoder.copy_buffer_to_buffer(&from.0.raw, from.1, &to.0.raw, to.1, Some(n_bytes));
    }

    /// Hands everything to the device, which runs it after what was submitted
    /// before.
    ///
    /// # Errors
    /// If the device was lost or refuses it.
    pub fn submit(mut self) -> Result<(), Error> {
        self.pass = None;
        self.gpu.queue().submit([self.encoder.finish()]);
        self.gpu.check("a submission", 0)
    }
}
