//! For tests: kernels on the interpreter, and values.

use std::sync::Arc;

use realizar_ptx as ptx;

use crate::device::Device;
pub(crate) use crate::device::Interpreter;
use crate::{Buffer, Kernels};

/// A device with one stream.
pub(crate) fn bench() -> (Arc<Interpreter>, ptx::Stream) {
    bench_with(usize::MAX)
}

/// The same with `n_bytes` of memory.
pub(crate) fn bench_with(n_bytes: usize) -> (Arc<Interpreter>, ptx::Stream) {
    let device = Interpreter::new(ptx::Checks::default(), n_bytes);
    let stream = device.stream().unwrap();
    (Arc::new(device), stream)
}

/// The kernels on a device with one stream.
pub(crate) fn kernels() -> (Kernels<Interpreter>, ptx::Stream) {
    let (device, stream) = bench();
    (Kernels::load(&device).unwrap(), stream)
}

/// A buffer with values.
pub(crate) fn on_device<T: bytemuck::NoUninit>(
    device: &Arc<Interpreter>,
    stream: &ptx::Stream,
    values: &[T],
) -> Buffer<Interpreter> {
    Buffer::with(device, stream, "values", values).unwrap()
}

/// The first `n` values of a buffer.
pub(crate) fn read(stream: &ptx::Stream, buffer: &Buffer<Interpreter>, n: usize) -> Vec<f32> {
    let mut values = vec![0.0; n];
    buffer.read(stream, 0, &mut values).unwrap();
    values
}

/// Numbers that look random, the same in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// From -1 up to 1.
    pub(crate) fn float(&mut self) -> f32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}
