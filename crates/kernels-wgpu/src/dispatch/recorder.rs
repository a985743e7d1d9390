//! Recording of kernels and copies, which are submitted as one command buffer.

use crate::dispatch::{Kernel, Timer};
use crate::{Buffer, Error, Gpu};

/// A command buffer that is being recorded.
///
/// Each kernel sees what the ones before it wrote.
#[derive(Debug)]
pub struct Recorder<'a> {
    gpu: &'a Gpu,
    encoder: wgpu::CommandEncoder,
    pass: Option<wgpu::ComputePass<'static>>,
    timer: Option<&'a mut Timer>,
    /// Number of timed runs so far.
    n_timed: usize,
    /// The first error while recording.
    refused: Option<Error>,
}

impl Gpu {
    /// Begins a command buffer.
    pub fn record(&self) -> Recorder<'_> {
        self.recorder(None)
    }

    /// Begins a command buffer whose runs are timed one by one: each run is a pass of its own with a timestamp
    /// at both ends, which takes some time between runs. After [`Recorder::submit`], [`Timer::read`] returns
    /// the times.
    pub fn record_timed<'a>(&'a self, timer: &'a mut Timer) -> Recorder<'a> {
        self.recorder(Some(timer))
    }

    fn recorder<'a>(&'a self, timer: Option<&'a mut Timer>) -> Recorder<'a> {
        let encoder =
            self.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        Recorder { gpu: self, encoder, pass: None, timer, n_timed: 0, refused: None }
    }
}

impl Recorder<'_> {
    /// Runs `kernel` on `n_rows` rows; does nothing if there are none.
    pub fn run(&mut self, kernel: &Kernel, n_rows: u32) {
        if n_rows == 0 {
            return;
        }
        let [x, y, z] = kernel.grid.workgroups(n_rows);
        let available = self.gpu.caps().max_workgroups;
        if y > available {
            self.refused.get_or_insert_with(|| Error::Limit {
                what: format!("the kernel `{}` (rows)", kernel.name()),
                needed: u64::from(y),
                limit: "maxComputeWorkgroupsPerDimension",
                available: u64::from(available),
            });
            return;
        }
        if let Some(timer) = &mut self.timer {
            self.pass = None;
            self.pass = Some(timer.pass(self.gpu, &mut self.encoder, self.n_timed));
            self.n_timed += 1;
        }
        let pass = self.pass.get_or_insert_with(|| {
            self.encoder
                .begin_compute_pass(&wgpu::ComputePassDescriptor::default())
                .forget_lifetime()
        });
        pass.set_pipeline(&kernel.pipeline.raw);
        pass.set_bind_group(0, &kernel.bind_group, &[]);
        pass.dispatch_workgroups(x, y, z);
    }

    /// Copies `n_bytes` between buffers. Offsets and length must be multiples of 4.
    pub fn copy(&mut self, from: (&Buffer, u64), to: (&Buffer, u64), n_bytes: u64) {
        self.pass = None;
        self.encoder.copy_buffer_to_buffer(&from.0.raw, from.1, &to.0.raw, to.1, Some(n_bytes));
    }

    /// Submits the command buffer. It runs after everything that was submitted before.
    ///
    /// # Errors
    /// If the device was lost or refuses it, or a kernel was run on more rows than the device allows; then
    /// nothing runs.
    pub fn submit(mut self) -> Result<(), Error> {
        self.pass = None;
        self.gpu.alive()?;
        if let Some(error) = self.refused {
            return Err(error);
        }
        if let Some(timer) = &mut self.timer {
            timer.resolve(self.gpu, &mut self.encoder, self.n_timed)?;
        }
        let commands = self.encoder.finish();
        self.gpu.check("a command buffer", 0)?;
        self.gpu.queue().submit([commands]);
        self.gpu.check("a submission", 0)?;
        if let Some(timer) = self.timer {
            timer.submitted(self.n_timed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Bench};
    use crate::{View, copy};

    #[test]
    fn too_many_rows_are_refused_and_the_device_stays_usable() {
        for gpu in testing::gpus() {
            let bench = Bench::new(&gpu, &[1.0, 2.0, 3.0, 4.0], &[0, 2]);
            let kernel = copy(&gpu, bench.rows(0), View::dense(0, 1), View::dense(2, 1)).unwrap();
            let available = gpu.caps().max_workgroups;
            let mut recorder = gpu.record();
            recorder.run(&kernel, 2);
            recorder.run(&kernel, available + 1);
            let refused = recorder.submit().unwrap_err();
            let wanted = format!(
                "the kernel `select` (rows) needs {}, but the GPU's \
                 maxComputeWorkgroupsPerDimension is {available}",
                available + 1
            );
            assert_eq!(refused.to_string(), wanted);
            assert_eq!(bench.run(&[]), [1.0, 2.0, 3.0, 4.0]);
            assert_eq!(bench.run(&[(&kernel, 2)]), [1.0, 2.0, 1.0, 2.0]);
        }
    }

    #[test]
    fn a_copy_outside_a_buffer_is_refused_and_the_device_stays_usable() {
        for gpu in testing::gpus() {
            let bench = Bench::new(&gpu, &[1.0, 2.0], &[0, 2]);
            let other = gpu.buffer("test", 64).unwrap();
            let mut recorder = gpu.record();
            recorder.copy((&other, 0), (bench.rows(0).values, 0), 64);
            let refused = recorder.submit().unwrap_err();
            assert!(matches!(refused, Error::Refused { .. }), "{refused}");
            assert_eq!(bench.run(&[]), [1.0, 2.0]);
        }
    }
}
