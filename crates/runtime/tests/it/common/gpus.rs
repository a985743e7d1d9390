//! The GPUs that tests run on.

use realizar_runtime::backend::Backend;

/// The first GPU, with everything it has and with nothing that it could lack;
/// none, with a message, where there is none.
pub(crate) fn gpus() -> Vec<Box<dyn Backend>> {
    #[cfg(feature = "wgpu")]
    {
        use realizar_kernels_wgpu::{Adapter, GpuOptions};
        use realizar_runtime::backend::wgpu::WgpuBackend;
        if Adapter::all().is_empty() {
            println!("skipped: no GPU adapter on this machine");
            return Vec::new();
        }
        let open = |options| -> Box<dyn Backend> {
            Box::new(WgpuBackend::open(None, options).expect("the adapter opens"))
        };
        vec![open(GpuOptions::default()), open(GpuOptions::PLAIN)]
    }
    #[cfg(not(feature = "wgpu"))]
    {
        println!("skipped: built without GPUs");
        Vec::new()
    }
}
