//! Keys and values of new positions, into their pages.

use super::kernels::Kernels;
use crate::device::Device;
use crate::image::Image;
use crate::pages::KV_TYPES;
use crate::{Error, KvPages, List, Rows};

const IMAGE: &[u8] = include_bytes!("../../image/kv_store.ptx.gz");
/// Threads of a block.
const THREADS: u32 = 128;

/// The kernels that store keys and values.
#[derive(Debug)]
pub(crate) struct KvStoreKernels<D: Device> {
    /// One for each of [`KV_TYPES`].
    store: [D::Function; KV_TYPES.len()],
}

impl<D: Device> KvStoreKernels<D> {
    pub(crate) fn load(device: &D) -> Result<Self, Error> {
        let image = Image::load(device, "kv_store", IMAGE)?;
        let name = |ty: realizar_quant::BlockType| format!("kv_store_{}", ty.name().to_lowercase());
        Ok(Self { store: image.functions(KV_TYPES, name)? })
    }
}

/// Queues a copy of keys and values to their slots, rounded to the type of the pages. A slot is the number of
/// the page times its length, plus the position in the page; a row whose slot is `u32::MAX` is not stored. A page
/// that does not exist stops the device: the next call that waits reports it.
///
/// # Errors
/// What the driver reports.
///
/// # Panics
/// If shapes or devices do not fit.
pub fn kv_store<D: Device>(
    kernels: &Kernels<D>,
    stream: &D::Stream,
    k: Rows<'_, D>,     // [n_rows, n_kv_heads * head_dim]
    v: Rows<'_, D>,     // [n_rows, n_kv_heads * head_dim]
    slots: List<'_, D>, // one for each row
    pages: &KvPages<D>,
) -> Result<(), Error> {
    let n_cols = pages.spec().n_kv_heads * pages.spec().head_dim;
    k.check(kernels, "k", k.n_rows(), n_cols);
    v.check(kernels, "v", k.n_rows(), n_cols);
    slots.check(kernels, "slots", k.n_rows());
    kernels.check("pages", pages.buffer(), 0);
    let [k_pages, v_pages, n_pages, n_kv_heads, page_shift, head_dim] = pages.arguments();
    let arguments = [
        k.address(),
        k.stride(),
        v.address(),
        v.stride(),
        slots.address(),
        k_pages,
        v_pages,
        n_pages,
        n_kv_heads,
        page_shift,
        head_dim,
    ];
    let function = &kernels.kv_store.store[pages.spec().type_index()];
    let grid = [k.n_rows() as u32, 2, 1];
    // SAFETY: the arguments are those of `kv_store_*` in order; rows are inside of their buffers, their shapes
    // were checked, and the kernel checks slots. As `matvec` says, buffers outlive queued work.
    unsafe { kernels.launch(stream, function, grid, [THREADS, 1], &arguments) }
}

#[cfg(test)]
mod tests {
    use realizar_quant::BlockType;

    use super::*;
    use crate::KvSpec;
    use crate::testing::{kernels, on_device};

    #[test]
    fn a_slot_that_does_not_exist_is_reported() {
        let spec =
            KvSpec { ty: BlockType::F16, n_kv_heads: 1, head_dim: 8, page_len: 16, n_pages: 2 };
        let (kernels, stream) = kernels();
        let device = kernels.device();
        let pages = KvPages::new(device, "kv", spec).unwrap();
        let x = on_device(device, &stream, &[0.0f32; 8]);
        let slots = on_device(device, &stream, &[32u32]);
        let rows = Rows::vector(&x, 8);
        kv_store(&kernels, &stream, rows, rows, List::all(&slots), &pages).unwrap();
        let message = device.synchronize(&stream).unwrap_err().to_string();
        assert!(message.contains("trap") && message.contains("kv_store_f16"), "{message}");
    }
}
