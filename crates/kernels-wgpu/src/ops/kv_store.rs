//! Storing rows of keys and values in the slots of their pages.

use crate::Error;
use crate::device::Gpu;
use crate::dispatch::shader::{Access, Shader};
use crate::dispatch::{Grid, Kernel, Rows, View};
use crate::storage::kv::{KvLayer, KvSpec, TYPES, part};
use realizar_quant::BlockType;

/// Invocations of a workgroup of the store, each with four columns.
const WORKGROUP: u32 = 64;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    head_dim: u32,
    row_words: u32,
    n_kv_heads: u32,
    page_shift: u32,
    n_slots: u32,
    rows_at: u32,
    slots_at: u32,
    _pad: u32,
    k: [u32; 2], // start, stride
    v: [u32; 2],
}

fn shader(ty: BlockType, part: &'static str) -> Shader {
    Shader {
        name: format!("kv_store {ty:?}").into(),
        parts: vec![part, include_str!("../../shaders/kv_store.wgsl")],
        bindings: &[Access::Read, Access::Read, Access::ReadWrite, Access::ReadWrite],
        constants: Vec::new(),
    }
}

pub(crate) fn shaders() -> Vec<Shader> {
    TYPES.into_iter().filter_map(|ty| Some(shader(ty, part(ty)?))).collect()
}

/// Stores `k` and `v`, of `n_kv_heads * head_dim` columns, in the slots of their
/// rows: `batch[slots_at + row]` is the page's number times `page_len` plus the
/// index in the page. A slot beyond the last page stores nothing.
///
/// 16-bit elements are the nearest to the values, ties to even.
///
/// # Errors
/// If the kernels have no such type or page, or the device refuses the kernel.
pub fn kv_store(
    gpu: &Gpu,
    rows: Rows<'_>,
    spec: &KvSpec,
    layer: &KvLayer,
    k: View,
    v: View,
    slots_at: u32,
) -> Result<Kernel, Error> {
    let width = spec.n_kv_heads * spec.head_dim;
    assert!(k.width == width && v.width == width, "widths {k:?} {v:?} {spec:?}");
    let params = Params {
        head_dim: spec.head_dim,
        row_words: spec.row_words(),
        n_kv_heads: spec.n_kv_heads,
        page_shift: spec.page_shift()?,
        n_slots: spec.n_pages * spec.page_len,
        rows_at: rows.at.0,
        slots_at,
        _pad: 0,
        k: [k.start, k.stride],
        v: [v.start, v.stride],
    };
    let grid = Grid { x: (spec.n_kv_heads * spec.row_words()).div_ceil(WORKGROUP), rows: 1, z: 1 };
    let buffers = [rows.batch, rows.values, &layer.k, &layer.v];
    gpu.kernel(&shader(spec.ty, spec.part()?), &params, &buffers, grid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Bench};

    /// The bytes of an element.
    fn element(ty: BlockType, x: f32) -> Vec<u8> {
        match ty {
            BlockType::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
            BlockType::BF16 => half::bf16::from_f32(x).to_le_bytes().to_vec(),
            _ => x.to_le_bytes().to_vec(),
        }
    }

    #[test]
    fn rows_go_to_their_slots_in_every_type() {
        // Ties, numbers that become infinite or subnormal, and signed zeros.
        let special = [
            1.0 + 1.0 / 256.0,
            1.0 + 3.0 / 256.0,
            1.0 + 1.0 / 2048.0,
            1.0 + 3.0 / 2048.0,
            -0.0,
            6.0e-8,
            3.0e-5,
            -65504.0,
            65519.99,
            -65520.0,
            1.0e9,
            6.1e-5,
            2.980_232_2e-8,
            2.98e-8,
            -1.0e-20,
        ];
        let Some(gpu) = testing::gpu() else { return };
        for ty in TYPES {
            for head_dim in [5, 6, 20] {
                let spec = KvSpec { ty, n_kv_heads: 2, head_dim, page_len: 8, n_pages: 3 };
                let width = 2 * head_dim;
                let (k, v) =
                    (View { start: 3, stride: 50, width }, View { start: 203, stride: 41, width });
                let values: Vec<f32> = (0..400)
                    .map(|i: usize| match special.get(i % 17) {
                        Some(x) => *x,
                        None => (i as f32 - 200.0) * 0.37,
                    })
                    .collect();
                // Rows 1 to 3; the last has no slot.
                let slots = [17u32, 4, 24];
                let batch = [1, 3, 99, slots[0], slots[1], slots[2]];
                let bench = Bench::new(&gpu, &values, &batch);
                let layer = KvLayer::new(&gpu, "a layer", &spec).unwrap();
                let kernel = kv_store(&gpu, bench.rows(0), &spec, &layer, k, v, 2).unwrap();
                bench.run(&[(&kernel, 3)]);
                let n_bytes = spec.n_bytes() as usize;
                for (buffer, view) in [(&layer.k, k), (&layer.v, v)] {
                    let mut wanted = vec![0u8; n_bytes];
                    let element_bytes = element(ty, 0.0).len();
                    let columns = head_dim.next_multiple_of(4) as usize;
                    for (row, slot) in (1..).zip(&slots[..2]) {
                        let (page, index) = (slot / 8, slot % 8);
                        for i in 0..width {
                            let (head, col) = (i / head_dim, i % head_dim);
                            let at = (page * 2 + head) * 8 + index;
                            let at = at as usize * columns + col as usize;
                            let x = values[(view.start + row * view.stride + i) as usize];
                            wanted[at * element_bytes..][..element_bytes]
                                .copy_from_slice(&element(ty, x));
                        }
                    }
                    let found: Vec<u8> = testing::contents(&gpu, buffer, n_bytes);
                    assert!(found == wanted, "{ty:?} head_dim {head_dim}");
                }
            }
        }
    }
}
