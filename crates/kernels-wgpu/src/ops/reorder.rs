//! Copies rows with their columns in another order.

use crate::dispatch::shader::{Access, Shader};
use crate::dispatch::{Grid, Kernel, Rows, View};
use crate::{Buffer, Error, Gpu};

/// Invocations per workgroup; each copies one element.
const WORKGROUP: u32 = 64;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct Params {
    width: u32,
    rows_at: u32,
    order: u32,
    padding: u32,
    x: [u32; 2], // start, stride
    out: [u32; 2],
}

fn shader() -> Shader {
    Shader {
        name: "reorder".into(),
        parts: vec![include_str!("../../shaders/reorder.wgsl")],
        bindings: &[Access::Read, Access::ReadWrite, Access::Read],
        constants: Vec::new(),
    }
}

pub(crate) fn shaders() -> Vec<Shader> {
    vec![shader()]
}

/// Copies column `order[c]` of each row of `x` to column `c` of `out`. Columns of `x` may be left out, and the
/// two must not overlap. The order is `out.width` integers, stored as floats, from element `order` of `vectors`
/// on.
///
/// # Errors
/// If the device refuses the kernel.
pub fn reorder(
    gpu: &Gpu,
    rows: Rows<'_>,
    vectors: &Buffer,
    order: u32,
    x: View,
    out: View,
) -> Result<Kernel, Error> {
    let params = Params {
        width: out.width,
        rows_at: rows.at.0,
        order,
        padding: 0,
        x: [x.start, x.stride],
        out: [out.start, out.stride],
    };
    let grid = Grid { x: out.width.div_ceil(WORKGROUP), rows: 1, z: 1 };
    gpu.kernel(&shader(), &params, &[rows.batch, rows.values, vectors], grid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Bench};

    #[test]
    fn columns_may_be_left_out() {
        for gpu in testing::gpus() {
            let (x, out) =
                (View { start: 0, stride: 4, width: 4 }, View { start: 8, stride: 2, width: 2 });
            let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
            let order = testing::filled(&gpu, &[3.0_f32, 1.0]);
            let bench = Bench::new(&gpu, &values, &[0, 2]);
            let kernel = reorder(&gpu, bench.rows(0), &order, 0, x, out).unwrap();
            assert_eq!(bench.run(&[(&kernel, 2)])[8..], [3.0, 1.0, 7.0, 5.0]);
        }
    }

    #[test]
    fn columns_land_where_they_belong() {
        for gpu in testing::gpus() {
            for width in [1, 64, 131] {
                let x = View { start: 2, stride: width + 3, width };
                let out = View { start: 2 + 5 * x.stride, stride: width + 1, width };
                let n = out.start + 4 * out.stride;
                let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
                let order: Vec<u32> = (0..width).map(|c| (c * 7 + 3) % width).collect();
                let floats: Vec<f32> = order.iter().map(|&c| c as f32).collect();
                let vectors = testing::filled(&gpu, &[&[9.0; 5][..], &floats].concat());
                // Rows 1 to 3.
                let bench = Bench::new(&gpu, &values, &[1, 3]);
                let kernel = reorder(&gpu, bench.rows(0), &vectors, 5, x, out).unwrap();
                let found = bench.run(&[(&kernel, 3)]);
                let mut wanted = values.clone();
                for r in 1..4 {
                    for (c, from) in (0..).zip(&order) {
                        let to = out.start + r * out.stride + c;
                        wanted[to as usize] = (x.start + r * x.stride + from) as f32;
                    }
                }
                assert_eq!(found, wanted, "width {width}");
            }
        }
    }
}
