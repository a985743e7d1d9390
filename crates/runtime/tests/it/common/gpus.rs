//! The GPUs that tests run on.

use realizar_runtime::backend::Backend;

/// The first GPU by wgpu, with everything it has and with nothing that it could lack, and the interpreter of CUDA
/// kernels, as far as they are built.
pub(crate) fn gpus() -> Vec<Box<dyn Backend>> {
    let mut gpus = adapters();
    gpus.extend(cuda());
    if gpus.is_empty() {
        println!("skipped: built without GPUs, or this machine has none");
    }
    gpus
}

/// The first GPU by wgpu, with everything it has and with nothing that it could lack; none where there is none. Where a
/// driver is named in the environment, as `cargo xtask test` does, there has to be one.
#[cfg(feature = "wgpu")]
pub(crate) fn adapters() -> Vec<Box<dyn Backend>> {
    use realizar_kernels_wgpu::{Adapter, GpuOptions};
    use realizar_runtime::backend::wgpu::WgpuBackend;
    if Adapter::all().is_empty() {
        let named = std::env::var_os("VK_DRIVER_FILES");
        assert_eq!(named, None, "the driver that is named has no adapter");
        return Vec::new();
    }
    let open = |options| -> Box<dyn Backend> {
        Box::new(WgpuBackend::open(None, options).expect("the adapter opens"))
    };
    vec![open(GpuOptions::default()), open(GpuOptions::PLAIN)]
}

/// This build reaches none.
#[cfg(not(feature = "wgpu"))]
pub(crate) fn adapters() -> Vec<Box<dyn Backend>> {
    Vec::new()
}

/// The interpreter of CUDA kernels, where it is built.
#[cfg(feature = "cuda-interpreter")]
pub(crate) fn cuda() -> Option<Box<dyn Backend>> {
    use realizar_runtime::device::{DeviceChoice, DeviceOptions, open};
    let device = open(&DeviceChoice::CudaInterpreter, &DeviceOptions::default());
    Some(device.expect("the interpreter takes the kernels"))
}

/// This build has none.
#[cfg(not(feature = "cuda-interpreter"))]
pub(crate) fn cuda() -> Option<Box<dyn Backend>> {
    None
}
