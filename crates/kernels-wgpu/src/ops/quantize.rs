//! Activations as 8-bit integers, the input of the integer matrix products.
//!
//! One format serves every weight type: blocks of 32 values with an f32 scale, and the sums of each half for
//! weight types whose levels have an offset.

use crate::dispatch::shader::{Access, Shader};
use crate::dispatch::{Grid, Kernel, Rows, View};
use crate::{Buffer, Error, Gpu};

/// Values that share a scale.
pub(crate) const BLOCK_LEN: u32 = 32;
/// Blocks per workgroup of `quantize.wgsl`.
const BLOCKS_PER_WORKGROUP: u32 = 8;

/// Device memory for rows of 8-bit integers: `x[i] ≈ scale[i / 32] * q[i]`. The scale is the block's largest
/// magnitude, divided by 127; quants are rounded to nearest, ties to even. If a value is not finite the block's
/// scale is not either, and so is every product with it.
#[derive(Debug, Clone)]
pub struct QuantizedRows {
    /// Four quants per word. u32 `[max_rows, max_blocks * 8]`
    pub(crate) quants: Buffer,
    /// Per block, a word with the f32 scale and a word with the sums of the first and last 16 quants, as i16 in its
    /// low and high half. `[max_rows, max_blocks, 2]`
    pub(crate) blocks: Buffer,
    max_rows: u32,
    /// Blocks from one row to the next.
    pub(crate) max_blocks: u32,
}

impl QuantizedRows {
    /// Bytes for rows 0 to `max_rows - 1` of up to `max_cols` values.
    pub fn bytes(max_rows: u32, max_cols: u32) -> u64 {
        let n_blocks = u64::from(max_rows) * u64::from(max_cols.div_ceil(BLOCK_LEN));
        n_blocks * (u64::from(BLOCK_LEN) + 8)
    }

    /// Allocates for rows 0 to `max_rows - 1` of up to `max_cols` values.
    ///
    /// # Errors
    /// If it is larger than the device allows, or memory runs out.
    pub fn new(gpu: &Gpu, max_rows: u32, max_cols: u32) -> Result<Self, Error> {
        let max_blocks = max_cols.div_ceil(BLOCK_LEN);
        let n = u64::from(max_rows) * u64::from(max_blocks);
        Ok(Self {
            quants: gpu.buffer("8-bit activations", n * u64::from(BLOCK_LEN))?,
            blocks: gpu.buffer("the scales of 8-bit activations", n * 8)?,
            max_rows,
            max_blocks,
        })
    }

    /// Maximum number of rows.
    pub fn max_rows(&self) -> u32 {
        self.max_rows
    }

    /// Maximum number of values per row.
    pub fn max_cols(&self) -> u32 {
        self.max_blocks * BLOCK_LEN
    }
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    n_blocks: u32,
    max_blocks: u32,
    rows_at: u32,
    max_rows: u32,
    x: [u32; 2], // start, stride
    _pad: [u32; 2],
}

fn shader() -> Shader {
    Shader {
        name: "quantize".into(),
        parts: vec![include_str!("../../shaders/quantize.wgsl")],
        bindings: &[Access::Read, Access::ReadWrite, Access::ReadWrite, Access::ReadWrite],
        constants: Vec::new(),
    }
}

pub(crate) fn shaders() -> Vec<Shader> {
    vec![shader()]
}

/// Quantizes rows of `x` to the rows of `to` with the same indices. The width of `x` must be a multiple of 32.
///
/// # Errors
/// If the device refuses the kernel.
pub fn quantize(gpu: &Gpu, rows: Rows<'_>, x: View, to: &QuantizedRows) -> Result<Kernel, Error> {
    assert!(x.width.is_multiple_of(BLOCK_LEN), "{} columns are not blocks of 32", x.width);
    assert!(x.width <= to.max_cols(), "{} columns, room for {}", x.width, to.max_cols());
    let n_blocks = x.width / BLOCK_LEN;
    let params = Params {
        n_blocks,
        max_blocks: to.max_blocks,
        rows_at: rows.at.0,
        max_rows: to.max_rows,
        x: [x.start, x.stride],
        _pad: [0; 2],
    };
    let grid = Grid { x: n_blocks.div_ceil(BLOCKS_PER_WORKGROUP), rows: 1, z: 1 };
    gpu.kernel(&shader(), &params, &[rows.batch, rows.values, &to.quants, &to.blocks], grid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Bench};

    /// Quants, the bits of the scale and the two sums, as the CPU makes them.
    fn reference(x: &[f32]) -> (Vec<i8>, u32, [i16; 2]) {
        let amax = f32::from_bits(x.iter().map(|v| v.abs().to_bits()).max().unwrap());
        let scale = amax / 127.0;
        let quants: Vec<i8> = if scale.is_normal() {
            x.iter().map(|v| (v * scale.recip()).round_ties_even() as i8).collect()
        } else {
            vec![0; x.len()]
        };
        let sum = |half: &[i8]| half.iter().map(|&q| i16::from(q)).sum();
        let sums = [sum(&quants[..16]), sum(&quants[16..])];
        (quants, if scale.is_subnormal() { 0 } else { scale.to_bits() }, sums)
    }

    #[test]
    fn blocks_are_those_of_the_cpu() {
        let (n_rows, width, stride, start) = (5, 320, 333, 7);
        let mut values = testing::noise(start + n_rows * stride, 3);
        // Blocks of extremes in row 2: ties, zeros, subnormal, huge, not finite.
        let special = &mut values[start + 2 * stride..][..192];
        let ties = [127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0];
        special.fill(0.0);
        special[..7].copy_from_slice(&ties);
        special[64..96].fill(f32::MIN_POSITIVE / 2.0);
        special[96..128].fill(-f32::MAX);
        special[130] = f32::NEG_INFINITY;
        special[161] = f32::NAN;
        special[162] = 3.0;
        let Some(gpu) = testing::gpu() else { return };
        // Rows 1 to 4 only, into room for wider rows.
        let bench = Bench::new(&gpu, &values, &[9, 1, 4]);
        let to = QuantizedRows::new(&gpu, 6, 400).unwrap();
        let view = View { start: start as u32, stride: stride as u32, width };
        let kernel = quantize(&gpu, bench.rows(1), view, &to).unwrap();
        bench.run(&[(&kernel, 4)]);
        let quants: Vec<i8> = testing::contents(&gpu, &to.quants, 6 * 416);
        let blocks: Vec<[u32; 2]> = testing::contents(&gpu, &to.blocks, 6 * 13);
        for row in 0..5 {
            for block in 0..13 {
                let found = &quants[row * 416 + block * 32..][..32];
                let [scale, sums] = blocks[row * 13 + block];
                let what = format!("row {row}, block {block}");
                if row == 0 || block >= 10 {
                    assert!(found.iter().all(|&q| q == 0) && scale == 0, "{what}");
                    continue;
                }
                let x = &values[start + row * stride + block * 32..][..32];
                let wanted = reference(x);
                assert_eq!(found, wanted.0, "{what}");
                if f32::from_bits(wanted.1).is_nan() {
                    assert!(f32::from_bits(scale).is_nan(), "{what}");
                } else {
                    assert_eq!(scale, wanted.1, "{what}");
                }
                assert_eq!([sums as i16, (sums >> 16) as i16], wanted.2, "{what}");
            }
        }
    }
}
