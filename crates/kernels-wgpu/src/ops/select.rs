//! Copies rows: all of them, or those that the batch selects.

use crate::dispatch::shader::{Access, Shader};
use crate::dispatch::{Grid, Kernel, Rows, View};
use crate::{Error, Gpu};

/// Invocations per workgroup; each copies one element.
const WORKGROUP: u32 = 64;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    width: u32,
    rows_at: u32,
    by_id: u32,
    ids_at: u32,
    x: [u32; 2], // start, stride
    out: [u32; 2],
}

fn shader() -> Shader {
    Shader {
        name: "select".into(),
        parts: vec![include_str!("../../shaders/select.wgsl")],
        bindings: &[Access::Read, Access::ReadWrite],
        constants: Vec::new(),
    }
}

pub(crate) fn shaders() -> Vec<Shader> {
    vec![shader()]
}

fn kernel(
    gpu: &Gpu,
    rows: Rows<'_>,
    x: View,
    out: View,
    ids_at: Option<u32>,
) -> Result<Kernel, Error> {
    assert_eq!(x.width, out.width, "widths of operand and result");
    let params = Params {
        width: out.width,
        rows_at: rows.at.0,
        by_id: u32::from(ids_at.is_some()),
        ids_at: ids_at.unwrap_or(0),
        x: [x.start, x.stride],
        out: [out.start, out.stride],
    };
    let grid = Grid { x: out.width.div_ceil(WORKGROUP), rows: 1, z: 1 };
    gpu.kernel(&shader(), &params, &[rows.batch, rows.values], grid)
}

/// `out = x`; the two must not overlap.
///
/// # Errors
/// If the device refuses the kernel.
pub fn copy(gpu: &Gpu, rows: Rows<'_>, x: View, out: View) -> Result<Kernel, Error> {
    kernel(gpu, rows, x, out, None)
}

/// Copies row `batch[ids_at + r]` of `x` to row `r` of `out`, for each row in `rows`, which are rows of `out`. The
/// two must not overlap.
///
/// # Errors
/// If the device refuses the kernel.
pub fn select_rows(
    gpu: &Gpu,
    rows: Rows<'_>,
    x: View,
    out: View,
    ids_at: u32,
) -> Result<Kernel, Error> {
    kernel(gpu, rows, x, out, Some(ids_at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Bench};

    #[test]
    fn rows_land_where_they_belong() {
        let Some(gpu) = testing::gpu() else { return };
        for width in [1, 64, 131] {
            let x = View { start: 2, stride: width + 3, width };
            let out = View { start: 2 + 5 * x.stride, stride: width + 1, width };
            let n = out.start + 4 * out.stride;
            let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
            // Rows 1..4 of out; the ids of all four begin at 3.
            let ids = [9, 4, 0, 4];
            let batch = [&[1, 3, 77], &ids[..]].concat();
            for select in [false, true] {
                let bench = Bench::new(&gpu, &values, &batch);
                let kernel = if select {
                    select_rows(&gpu, bench.rows(0), x, out, 3).unwrap()
                } else {
                    copy(&gpu, bench.rows(0), x, out).unwrap()
                };
                let found = bench.run(&[(&kernel, 3)]);
                let mut wanted = values.clone();
                for (r, id) in (0..).zip(ids).skip(1) {
                    let from = if select { id } else { r };
                    for c in 0..width {
                        let to = out.start + r * out.stride + c;
                        wanted[to as usize] = (x.start + from * x.stride + c) as f32;
                    }
                }
                assert_eq!(found, wanted, "width {width}, select {select}");
            }
        }
    }
}
