//! The GPUs that tests run on.

use realizar_runtime::backend::Backend;

/// The first GPU, with everything it has and with nothing that it could lack;
/// none, with a message, where there is none. Where a driver is named in the
/// environment, as `cargo xtask test` does, there has to be one.
pub(crate) fn gpus() -> Vec<Box<dyn Backend>> {
    #[cfg(feature = "wgpu")]
    {
        use realizar_kernels_wgpu::{Adapter, GpuOptions};
        use realizar_runtime::backend::wgpu::WgpuBackend;
        if Adapter::all().is_empty() {
            let named = std::env::var_os("VK_DRIVER_FILES");
            assert_eq!(named, None, "the driver that is named has no adapter");
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
