//! Storing rows of keys and values in page slots.

use crate::Error;
use crate::device::Gpu;
use crate::dispatch::shader::{Access, Shader};
use crate::dispatch::{Grid, Kernel, Rows, View};
use crate::storage::kv::{KvLayer, KvSpec, TYPES, is_in_blocks, parts};
use realizar_quant::BlockType;

/// Invocations per workgroup of the store; each stores four columns.
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
    values_are_keys: u32,
    k: [u32; 2], // start, stride
    v: [u32; 2],
}

fn shader(ty: BlockType, parts: &[&'static str]) -> Shader {
    let last = match is_in_blocks(ty) {
        true => include_str!("../../shaders/kv_store_blocks.wgsl"),
        false => include_str!("../../shaders/kv_store.wgsl"),
    };
    Shader {
        name: format!("kv_store {ty:?}").into(),
        parts: [parts, &[last]].concat(),
        bindings: &[Access::Read, Access::Read, Access::ReadWrite, Access::ReadWrite],
        constants: Vec::new(),
    }
}

pub(crate) fn shaders() -> Vec<Shader> {
    TYPES.into_iter().filter_map(|ty| Some(shader(ty, parts(ty)?))).collect()
}

/// Stores `k` and `v`, of `n_kv_heads * head_dim` columns, in the slots of their rows: `batch[slots_at + row]`
/// is the page's number times `page_len`, plus the index in the page. Rows whose slot is beyond the last page
/// are not stored. If values are keys, `v` is not read.
///
/// Elements of 16 and 8 bits round to nearest, ties to even. F8 saturates, and stores values that are not finite
/// as NaN. Blocks are those of `realizar_quant::quantize` if the device's division is correctly rounded; a block
/// with a value that is not finite becomes NaN.
///
/// # Errors
/// If the kernels do not support the type or the page length, or the device refuses the kernel.
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
        values_are_keys: u32::from(spec.values_are_keys),
        k: [k.start, k.stride],
        v: [v.start, v.stride],
    };
    let grid = match is_in_blocks(spec.ty) {
        true => Grid { x: spec.n_kv_heads, rows: 1, z: spec.planes() as u32 },
        false => {
            Grid { x: (spec.n_kv_heads * spec.row_words()).div_ceil(WORKGROUP), rows: 1, z: 1 }
        }
    };
    let buffers = [rows.batch, rows.values, &layer.k, &layer.v];
    gpu.kernel(&shader(spec.ty, spec.parts()?), &params, &buffers, grid)
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
            BlockType::F8 => {
                let mut bits = vec![0];
                realizar_quant::quantize(ty, &[x], &mut bits).unwrap();
                bits
            }
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
        for ty in TYPES.into_iter().filter(|ty| !is_in_blocks(*ty)) {
            for head_dim in [5, 6, 20] {
                let spec = KvSpec {
                    ty,
                    n_kv_heads: 2,
                    head_dim,
                    page_len: 8,
                    n_pages: 3,
                    values_are_keys: false,
                };
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

    /// Columns `0..` of the levels and of the scales of a position of a head, as numbers.
    fn read_row(ty: BlockType, row: &[u8], row_len: usize) -> Vec<f32> {
        let (levels, scales) =
            row.split_at(if ty == BlockType::Q8_0 { row_len } else { row_len / 2 });
        let column = |i: usize| {
            let at = i / 32 * 2;
            let scale = half::f16::from_le_bytes([scales[at], scales[at + 1]]).to_f32();
            let level = match ty {
                BlockType::Q8_0 => i32::from(levels[i].cast_signed()),
                _ => i32::from(levels[i / 2] >> (4 * (i % 2)) & 15) - 8,
            };
            scale * level as f32
        };
        (0..row_len).map(column).collect()
    }

    #[test]
    fn blocks_are_those_of_the_host() {
        let Some(gpu) = testing::gpu() else { return };
        for ty in [BlockType::Q8_0, BlockType::Q4_0] {
            for head_dim in [20u32, 32, 96, 128, 320] {
                let spec = KvSpec {
                    ty,
                    n_kv_heads: 3,
                    head_dim,
                    page_len: 4,
                    n_pages: 2,
                    values_are_keys: false,
                };
                let (width, row_len) = (3 * head_dim, head_dim.next_multiple_of(32) as usize);
                let view = |start| View { start, stride: 2 * width + 1, width };
                let (k, v) = (view(2), view(2 + width));
                let n = (2 + 2 * (2 * width + 1)) as usize;
                let mut values: Vec<f32> =
                    (0..n).map(|i| ((i * 7919 + 31) % 4001) as f32 / 500.0 - 4.0).collect();
                // Of the first row a block of zeros, and in its last head a value that is not finite.
                values[2..22].fill(0.0);
                values[(2 + width - 1) as usize] = f32::INFINITY;
                // Two largest values: the first decides the sign.
                (values[(2 + width) as usize], values[(4 + width) as usize]) = (-5.0, 5.0);
                let slots = [6u32, 1];
                let bench = Bench::new(&gpu, &values, &[0, 2, slots[0], slots[1]]);
                let layer = KvLayer::new(&gpu, "a layer", &spec).unwrap();
                let kernel = kv_store(&gpu, bench.rows(0), &spec, &layer, k, v, 2).unwrap();
                bench.run(&[(&kernel, 2)]);
                let row_bytes = spec.page_bytes() as usize / 3 / 4;
                for (buffer, view) in [(&layer.k, k), (&layer.v, v)] {
                    let found: Vec<u8> = testing::contents(&gpu, buffer, spec.n_bytes() as usize);
                    for (row, slot) in (0..).zip(slots) {
                        for head in 0..3 {
                            let at = (slot / 4 * 3 + head) * 4 + slot % 4;
                            let bytes = &found[at as usize * row_bytes..][..row_bytes];
                            let found = read_row(ty, bytes, row_len);
                            let from = (view.start + row * view.stride + head * head_dim) as usize;
                            let mut x = values[from..from + head_dim as usize].to_vec();
                            x.resize(row_len, 0.0);
                            for (x, found) in x.chunks(32).zip(found.chunks(32)) {
                                let case = format!("{ty} {head_dim} row {row} head {head}");
                                if x.iter().any(|x| x.is_infinite()) {
                                    assert!(found.iter().all(|x| x.is_nan()), "{case}");
                                    continue;
                                }
                                let mut block = vec![0; ty.block_bytes()];
                                let mut wanted = [0.0; 32];
                                realizar_quant::quantize(ty, x, &mut block).unwrap();
                                realizar_quant::dequantize(ty, &block, &mut wanted).unwrap();
                                assert_eq!(found, wanted, "{case}");
                            }
                        }
                    }
                }
            }
        }
    }
}
