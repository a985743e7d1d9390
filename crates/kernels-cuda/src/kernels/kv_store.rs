//! Kernels that store keys and values in pages.

use crate::Error;
use crate::device::Device;
use crate::image::Image;
use crate::pages::KV_TYPES;

const IMAGE: &[u8] = include_bytes!("../../image/kv_store.ptx.br");

/// The functions of the image.
#[derive(Debug)]
pub(crate) struct KvStoreKernels<D: Device> {
    /// By [`KV_TYPES`].
    pub(crate) store: [D::Function; KV_TYPES.len()],
}

impl<D: Device> KvStoreKernels<D> {
    pub(crate) fn load(device: &D) -> Result<Self, Error> {
        let image = Image::load(device, "kv_store", IMAGE)?;
        let name = |ty: realizar_quant::BlockType| format!("kv_store_{}", ty.name().to_lowercase());
        Ok(Self { store: image.functions(KV_TYPES, name)? })
    }
}
